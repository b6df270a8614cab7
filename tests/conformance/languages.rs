//! Unmodified runtimes: each sees one second per TDF real ones, with threads, timers and sockets in use.

use diecast_tests::{FRAMES, World, c, conforms, go, java, run, rust, tool};

/// The runtimes that take long to start run in fewer frames.
const SLOW: [World; 2] = [World::Frame("10"), World::Frame("0.5")];

fn missing(what: &str) {
    diecast_quiet::skipped(format_args!("{what} is not installed"));
}

fn guest(name: &str) -> String {
    format!("{}/guests/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The interpreter itself: a version manager's start script would cost seconds of virtual CPU.
fn python() -> Option<String> {
    let found = tool("python3")?;
    let real = run(World::Native, &[&found, "-c", "import sys; print(sys.executable)"]).text().trim().to_owned();
    Some(if real.is_empty() { found } else { real })
}

#[test]
fn cpython() {
    let Some(python) = python() else { return missing("python3") };
    conforms(&[&python, "-S", &guest("guest.py")], &FRAMES);
}

#[test]
fn node() {
    let Some(node) = tool("node") else { return missing("node") };
    conforms(&[&node, &guest("guest.js")], &SLOW);
}

#[test]
fn go_static() {
    let Some(compiler) = tool("go") else { return missing("go") };
    conforms(&[&go(&compiler, "guest")], &FRAMES);
    // Its scheduler reads the processor's counter.
    conforms(&[&go(&compiler, "guest")], &[World::Trapped("4")]);
}

/// A goroutine's stack that is all but full has another one below it, which the blob must not reach.
#[test]
fn goroutines_with_full_stacks() {
    let Some(compiler) = tool("go") else { return missing("go") };
    conforms(&[&go(&compiler, "goroutines")], &[World::Frame("1"), World::Frame("0.5"), World::Trapped("1")]);
}

#[test]
fn jvm() {
    let (Some(vm), Some(compiler)) = (tool("java"), tool("javac")) else { return missing("java or javac") };
    let classes = java(&compiler);
    conforms(&[&vm, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", &classes, "Guest"], &SLOW);
}

#[test]
fn rust_std() {
    conforms(&[&rust()], &FRAMES);
}

#[test]
fn bash_script() {
    if tool("bash").is_none() {
        return missing("bash");
    }
    conforms(&[&guest("guest.sh")], &FRAMES);
}

/// The same guest under a shell script under a guest: nothing is lost on the way.
#[test]
fn a_chain_of_programs_keeps_the_frame() {
    let inner = c("processes", false);
    let r = run(World::Frame("10"), &["sh", "-c", &format!("env sh -c '{inner} pace chain'")]);
    let found = diecast_tests::judge(World::Frame("10"), &r.lines(), |_, _| false);
    assert!(r.text().contains("= pace chain") && found.iter().all(|f| f.may_be_noise), "{} {found:?}", r.text());
}
