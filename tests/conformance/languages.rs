//! Unmodified runtimes: each sees one second per TDF real ones, with threads, timers and sockets in use.

use diecast_quiet::look;
use diecast_tests::{FRAMES, World, alone, c, conforms, go, java, run, run_with, rust, tool, value};

use crate::missing;

fn guest(name: &str) -> String {
    format!("{}/guests/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The interpreter itself: a version manager's start script would cost seconds of virtual CPU.
fn python() -> Option<String> {
    let found = tool("python3")?;
    let real = run(World::Native, &[&found, "-c", "import sys; print(sys.executable)"]).text().trim().to_owned();
    Some(if real.is_empty() { found } else { real })
}

/// Of the JVM: without the second compiler and with the simplest collector it starts fastest.
const JVM_FAST: [&str; 2] = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];

#[test]
fn cpython() {
    let Some(python) = python() else { return missing("python3") };
    conforms(&[&python, "-S", &guest("guest.py")], &FRAMES);
}

#[test]
fn node() {
    let Some(node) = tool("node") else { return missing("node") };
    conforms(&[&node, &guest("guest.js")], &FRAMES);
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
    conforms(&[&vm, JVM_FAST[0], JVM_FAST[1], "-cp", &classes, "Guest"], &FRAMES);
    // As it comes.
    conforms(&[&vm, "-cp", &classes, "Guest"], &[World::Frame("1")]);
}

/// How long each wait of an idle guest is.
const WAIT_NS: i64 = 2_000_000;

/// Waits that nothing ends must not make a runtime spin: CPU time of the whole process, natively and in a frame. What spins
/// for a twentieth of its wait is found. What traps cost is a benchmark's (`make bench-frame`, 3 us): on a nested AMD EPYC the
/// 2.7 of a wait of Go's, each in cold code, were 25 to 65 us.
#[test]
fn idle_runtimes_do_not_spin() {
    let guests = [
        python().map(|python| vec![python, "-S".to_owned(), guest("guest.py")]),
        tool("node").map(|node| vec![node, guest("guest.js")]),
        tool("go").map(|compiler| vec![go(&compiler, "guest")]),
        tool("java").zip(tool("javac")).map(|(vm, compiler)| {
            [&[vm], &JVM_FAST.map(str::to_owned)[..], &["-cp".to_owned(), java(&compiler), "Guest".to_owned()]].concat()
        }),
    ];
    for (name, found) in ["python3", "node", "go", "java"].into_iter().zip(guests) {
        let Some(command) = found else {
            missing(name);
            continue;
        };
        let command: Vec<&str> = command.iter().map(String::as_str).chain(["idle", "50"]).collect();
        look(|| {
            let _turn = alone();
            let cost = |world| value(&run_with(world, &[], &command, b"", &[]).lines(), "cpu_ns_per_wait");
            let (native, framed) = (cost(World::Native), cost(World::Frame("1")));
            println!("idle waits: {name} native {native} ns, framed {framed} ns");
            assert!(framed <= native + WAIT_NS / 20, "{name}: {framed} ns a wait, natively {native}");
        });
    }
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
