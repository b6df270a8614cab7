//! strace and gdb inside a frame: what they trace is in it, and they see no stop that natively is none.

use diecast_tests::{Run, World, beside, c, conforms, run_with, tool};

use crate::missing;

/// In a frame of TDF 10, metered or not.
fn traced(options: &[&str], command: &[&str]) -> Run {
    let _turn = beside();
    run_with(World::Frame("10"), options, command, b"", &[])
}

/// A whole core at TDF 10: nothing to meter, so nothing to say about it.
const UNMETERED: [&str; 2] = ["--speed", "10"];

fn log(name: &str) -> String {
    let path = std::env::temp_dir().join(format!("diecast-{name}-{}", std::process::id()));
    path.to_str().expect("a plain path").to_owned()
}

#[test]
fn a_tracer_of_its_child_sees_what_it_sees_natively() {
    conforms(&[&c("tracers", false)], &[World::Frame("1"), World::Frame("0.5")]);
}

#[test]
fn what_strace_starts_is_in_the_frame() {
    let Some(strace) = tool("strace") else { return missing("strace") };
    let out = log("strace");
    let script = "sleep 0.2; /bin/no-such-program; no-such-program; exec date +year-%Y";
    let r = traced(&UNMETERED, &[&strace, "-f", "-o", &out, "sh", "-c", script]);
    let text = std::fs::read_to_string(&out).unwrap();
    let _ = std::fs::remove_file(&out);
    assert_eq!(r.status, Some(0), "{} {}\n{text}", r.text(), r.stderr);
    assert!(r.text().starts_with("year-20"), "{}", r.text());
    // 0.2 s are 2 s here, and what waits is the call that natively does.
    assert!(r.real.as_secs_f64() >= 2.0, "{:?}", r.real);
    let lines = |part: &str| text.lines().filter(|l| l.contains(part)).count();
    assert!(lines("clock_nanosleep(") >= 1, "{text}");
    assert_eq!(lines("+++ exited with 0 +++"), 2, "{text}");
    assert_eq!(lines("+++ killed by"), 0, "{text}");
    assert!(r.stderr.contains("no-such-program"), "{}", r.stderr);
    assert_eq!(lines("--- SIGTRAP"), 0, "{text}");
}

#[test]
fn a_traced_program_has_no_meter_and_it_is_said_once() {
    let Some(strace) = tool("strace") else { return missing("strace") };
    let r = traced(&[], &[&strace, "-f", "-o", "/dev/null", "sh", "-c", "sleep 0.05; sleep 0.05; true"]);
    assert_eq!(r.status, Some(4), "{} {}", r.text(), r.stderr);
    let said: Vec<&str> = r.stderr.lines().filter(|l| l.contains("is traced by strace")).collect();
    assert_eq!(said.len(), 1, "{}", r.stderr);
    assert!(said[0].contains("not metered"), "{}", r.stderr);
}

/// A tracer of both would have to wait for the supervisor, which it has stopped. It was so for ever.
#[test]
fn a_tracer_of_diecast_itself_is_told_where_to_trace() {
    let Some(strace) = tool("strace") else { return missing("strace") };
    let out = std::process::Command::new("timeout")
        .args(["-k", "5", "30", &strace, "-f", "-o", "/dev/null"])
        .arg(diecast_tests::diecast())
        .args(["frame", "--tdf", "10", UNMETERED[0], UNMETERED[1], "--", "true"])
        .output()
        .expect("timeout runs");
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(!matches!(out.status.code(), Some(0 | 124 | 137) | None), "{:?} {stderr}", out.status);
    assert!(stderr.contains("trace inside the frame"), "{stderr}");
}

/// The meter goes off when strace comes, and on again when it has gone.
#[test]
fn a_meter_is_off_while_its_program_is_attached_to() {
    let Some(strace) = tool("strace") else { return missing("strace") };
    diecast_quiet::look(|| attached(&strace));
}

fn attached(strace: &str) {
    let _turn = beside();
    let out = log("attached");
    let script = format!("while :; do :; done & p=$!; timeout 3 {strace} -ttt -p $p -o {out}; kill -KILL $p; wait");
    let r = run_with(World::Frame("2"), &[], &["bash", "-c", &script], b"", &[]);
    let text = std::fs::read_to_string(&out).unwrap();
    let _ = std::fs::remove_file(&out);
    assert!(r.stderr.contains("is traced by strace"), "{}", r.stderr);
    let hits = text.lines().filter(|l| l.contains("--- SIGTRAP"));
    let at: Vec<f64> = hits.filter_map(|l| l.split(' ').next()?.parse().ok()).collect();
    // It is looked for once a second of real time, and attached to for six.
    let lasted = at.last().zip(at.first()).map_or(0.0, |(last, first)| last - first);
    assert!(lasted < 2.0, "hits for {lasted:.1} s of 3: {}", at.len());
}

const GDB_COMMANDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/diecast.gdb");

#[test]
fn gdb_attaches_to_what_runs_and_lets_go_of_it() {
    let Some(gdb) = tool("gdb") else { return missing("gdb") };
    let script = format!(
        "sleep 2 & p=$!; sleep 0.1; {gdb} -batch -nx -x {GDB_COMMANDS} -p $p -ex 'info registers rip' -ex detach; wait $p; echo it ended with $?"
    );
    let r = traced(&UNMETERED, &["sh", "-c", &script]);
    assert_eq!(r.status, Some(0), "{} {}", r.text(), r.stderr);
    assert!(r.text().contains("rip  ") && r.text().contains("it ended with 0"), "{} {}", r.text(), r.stderr);
    assert!(r.real.as_secs_f64() >= 20.0, "{:?}", r.real);
}

/// gdb asks in vfork for what it starts, and waits for two images: the shell's and the program's.
#[test]
fn gdb_starts_a_program_in_the_frame() {
    let Some(gdb) = tool("gdb") else { return missing("gdb") };
    let program = c("debugged", false);
    // Half a core has to be metered.
    for (options, said) in [(UNMETERED, false), (["--speed", "5"], true)] {
        let commands = "-ex|break middle|-ex|run|-ex|print number|-ex|backtrace|-ex|continue|-ex|info breakpoints";
        let mut command = vec![gdb.as_str(), "-batch", "-nx", "-x", GDB_COMMANDS];
        command.extend(commands.split('|'));
        command.push(&program);
        let r = traced(&options, &command);
        let out = format!("{}{}", r.text(), r.stderr);
        assert!(out.contains("Breakpoint 1, middle (number=41)"), "{out}");
        assert!(out.contains("$1 = 41") && out.contains(" main ("), "{out}");
        assert!(out.contains("slept 0.2 s") && out.contains("exited with code 07"), "{out}");
        assert!(out.contains("breakpoint already hit 1 time"), "{out}");
        assert!(r.real.as_secs_f64() >= 2.0, "{:?}", r.real);
        assert_eq!(out.contains("is traced by gdb"), said, "{out}");
    }
}
