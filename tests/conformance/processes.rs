//! Processes: every way to start one, and many of them.

use diecast_tests::{FRAMES, World, alone, c, conforms, diecast, full, run, run_with, tiny, value};

#[test]
fn every_new_process_is_in_the_frame() {
    conforms(&[&c("processes", false)], &FRAMES);
}

#[test]
fn every_new_process_of_a_static_program() {
    conforms(&[&c("processes", true)], &[World::Frame("10")]);
}

/// Issue 2: 20,000 execs keep the supervisor's descriptors flat. A tenth of them by default.
#[test]
fn twenty_thousand_execs_keep_descriptors_flat() {
    let _turn = alone();
    let n = if full() { "20000" } else { "2000" };
    let r = run_with(World::Frame("2"), &[], &[&c("execs", true), &tiny(), n], b"", &[]);
    assert_eq!(value(&r.lines(), "good").to_string(), n, "{} {}", r.text(), r.stderr);
    let (quarter, last) = r.descriptors;
    println!("descriptors: {quarter} after a quarter, {last} at the end, {} at most", r.descriptors_max);
    // Meters of lineages that ended stay open until a scan has missed them three times.
    // The same bound for 2,000 and 20,000 execs is what flat means.
    assert!(r.descriptors_max < 1000, "{} at most", r.descriptors_max);
}

/// The supervisor reads a new image's stack, which may end right behind what it looks for: 16 of 1000 such execs were killed.
#[test]
fn programs_without_environment_start() {
    let _turn = alone();
    let r = run_with(World::Frame("2"), &[], &[&c("execs", true), &tiny(), "1000", "bare"], b"", &[]);
    let lines = r.lines();
    assert_eq!((value(&lines, "killed"), value(&lines, "other")), (0, 0), "{} {}", r.text(), r.stderr);
    assert_eq!(value(&lines, "good"), 1000);
}

/// Issue 2: 10,000 execs under a 10 µs meter kill nobody. A tenth of them by default.
#[test]
fn ten_thousand_execs_under_a_10_us_meter_kill_nobody() {
    let _turn = alone();
    let n = if full() { "10000" } else { "1000" };
    let r = run_with(World::Frame("2"), &["--grain", "10us"], &[&c("execs", true), &tiny(), n], b"", &[]);
    let lines = r.lines();
    assert_eq!((value(&lines, "killed"), value(&lines, "other")), (0, 0), "{} {}", r.text(), r.stderr);
    assert_eq!(value(&lines, "good").to_string(), n);
    // Where a hit costs as much itself, a longer grain is kept, and said.
    println!("{}", r.stderr);
}

/// Execs that fail late, or with little room for what a frame adds, end as natively. Some of them hung.
#[test]
fn hard_execs_end_as_natively() {
    conforms(&[&c("hardexecs", true), &tiny()], &[World::Frame("1")]);
}

/// A command that dies at its exec, where it is traced: its status is its parent's, though the tracer's wait takes it. In
/// three of four runs `diecast` waited for ever.
#[test]
fn a_command_that_dies_at_its_exec_ends_its_frame() {
    // Less address space than the blob and its pages take.
    let command = ["prlimit", "--as=1500000", &tiny()];
    assert_eq!(run(World::Native, &command).status, Some(0));
    for world in [World::Frame("1"), World::Frame("10")].into_iter().cycle().take(12) {
        let r = run(world, &command);
        assert_eq!(r.status, Some(128 + libc::SIGKILL), "{r:?}");
        assert!(r.stderr.contains("initialising the blob"), "{r:?}");
    }
}

/// Whoever started `diecast` may ignore SIGCHLD: the command does too, and its status is known all the same. `diecast` waited
/// for ever.
#[test]
fn an_ignored_sigchld_is_the_commands_affair() {
    let command = ["grep", "SigIgn", "/proc/self/status"];
    let diecast = diecast().to_str().expect("a plain path");
    let seen = |before: &[&str]| {
        let r = run(World::Native, &[before, &command].concat());
        let ignored = u64::from_str_radix(r.text().split_whitespace().last().expect("a set"), 16).expect("in hex");
        (r.status, ignored >> (libc::SIGCHLD - 1) & 1)
    };
    assert_eq!(seen(&["env", "--ignore-signal=CHLD"]), (Some(0), 1));
    assert_eq!(seen(&["env", "--ignore-signal=CHLD", diecast, "frame", "--tdf", "1", "--"]), (Some(0), 1));
    assert_eq!(seen(&[diecast, "frame", "--tdf", "1", "--"]), (Some(0), 0));
}

/// A thread that takes its process into the next image has its own CPU time there, not the first thread's. Its clock stood
/// still until it had used as much, and in a frame with a nice value it slept for ever.
#[test]
fn a_thread_that_execs_keeps_its_cpu_time() {
    let guest = c("execthread", false);
    conforms(&[&guest, "30"], &[World::Frame("1"), World::Frame("10")]);
    conforms(&["nice", "-n", "10", &guest, "30"], &[World::Frame("10")]);
}

/// A full table of descriptors whose limit nobody may raise: as natively, or an errno.
#[test]
fn an_exec_with_a_full_table_never_hangs() {
    let r = run(World::Frame("1"), &[&c("hardexecs", true), &tiny(), "full"]);
    let ends = value(&r.lines(), "full.hard");
    assert!([0, i64::from(libc::EMFILE)].contains(&ends), "{ends}\n{}{}", r.text(), r.stderr);
    assert_eq!(ends != 0, r.stderr.contains("can't be lent"), "{}", r.stderr);
}
