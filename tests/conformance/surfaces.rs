//! Calls: results, durations, signals.

use diecast_core_syscalls::ROWS;
use diecast_tests::{
    FRAMES, Run, World, alone, beside, c, conforms, diecast, judge, musl, real_ahead_ns, run, run_with, same_lines,
    value,
};

const STATIC: [World; 1] = [World::Frame("10")];

#[test]
fn every_wait_takes_its_virtual_time_and_meets_signals_as_natively() {
    conforms(&[&c("waits", false)], &FRAMES);
}

#[test]
fn every_wait_of_a_static_program() {
    conforms(&[&c("waits", true)], &STATIC);
}

#[test]
fn every_error_is_the_kernels_own() {
    conforms(&[&c("errors", false)], &FRAMES);
}

#[test]
fn every_error_of_a_static_program() {
    conforms(&[&c("errors", true)], &STATIC);
}

#[test]
fn all_clocks_agree_and_run_at_the_frames_rate() {
    conforms(&[&c("clocks", false)], &FRAMES);
}

#[test]
fn all_clocks_of_a_static_program() {
    conforms(&[&c("clocks", true)], &STATIC);
}

#[test]
fn setting_clocks_is_refused_as_natively() {
    conforms(&[&c("settime", false)], &FRAMES);
}

/// Only in frames: natively this would set the host's clock, which must not notice.
#[test]
fn clocks_can_be_set_stepped_and_steered() {
    for world in [World::Frame("1"), World::Frame("4"), World::Frame("0.5")] {
        diecast_quiet::look(|| {
            let before = real_ahead_ns();
            let ran = run(world, &[&c("settime", false), "set"]);
            assert_eq!(ran.status, Some(0), "{ran:?}");
            let same = same_lines(world, &ran.lines(), |_, _| false);
            assert_eq!(same, SET_CLOCKS, "in {world:?}");
            let findings = judge(world, &ran.lines(), |_, _| false);
            assert!(findings.is_empty(), "{findings:#?}");
            // What sets the host's own (a daemon) does so seldom.
            assert!((real_ahead_ns() - before).abs() < 50_000_000, "the host's clock moved");
        });
    }
}

/// Only in frames, as above. What comes is what clock_settime(2), timer_settime(2) and timerfd_create(2) say.
#[test]
fn waits_for_an_instant_follow_steps_of_the_clock() {
    diecast_quiet::look(|| {
        for world in [World::Frame("1"), World::Frame("4"), World::Frame("0.5")] {
            let ran = run(world, &[&c("steps", false)]);
            assert_eq!(ran.status, Some(0), "{ran:?}");
            let lines = ran.lines();
            // Seven waits for an instant, each with the clock past it, and the step itself, three times; one clock slowed; and
            // one period.
            assert_eq!(same_lines(world, &lines, |_, _| false).len(), 3 * 8 + 3, "in {world:?}: {lines:#?}");
            assert_eq!(
                lines.iter().filter(|(_, l)| l.starts_with("range ")).count(),
                3 * 12 + 5,
                "in {world:?}: {lines:#?}"
            );
            let findings = judge(world, &lines, |_, _| false);
            assert!(findings.is_empty(), "in {world:?}: {findings:#?}");
            let passed = lines
                .iter()
                .filter(|(_, l)| l.starts_with("= ") && (l.ends_with(" 0") || l.ends_with("shown 1")))
                .count();
            assert_eq!(passed, 3 * 8 + 3, "in {world:?}: {lines:#?}");
        }
    });
}

/// Only in a frame, as above. What comes is what ntp_adjtime(3) says: TIME_INS, TIME_OOP, TIME_WAIT; TIME_DEL, TIME_WAIT.
#[test]
fn leap_seconds_are_put_in_and_left_out() {
    diecast_quiet::look(|| {
        let world = World::Frame("0.5");
        let lines = run(world, &[&c("settime", false), "leap"]).lines();
        let expected = [
            "= leap.delete announced 0 then 24 tai 36 status 20",
            "= leap.delete.over 0",
            "= leap.insert announced 0 then 134 tai 38 status 10",
            "= leap.insert.over 0",
        ];
        assert_eq!(same_lines(world, &lines, |_, _| false), expected);
        let findings = judge(world, &lines, |_, _| false);
        assert!(findings.is_empty(), "{findings:#?}");
    });
}

/// What adjtimex(2) answers on any Linux, sorted.
const SET_CLOCKS: [&str; 19] = [
    "= adjtime 0",
    "= adjtime.done 0 0",
    "= freq 1",
    "= freq.reads_back 32768000",
    "= monotone 0 0",
    "= pll 0",
    "= pll.off 0 0",
    "= pll.offset 0 4000000 status 8193",
    "= set 0",
    "= set.back 0",
    "= set.state 5",
    "= set.unsync 1 16000000 16000000",
    "= setoffset 5",
    "= tai 37",
    "= tick.interval 12345678",
    "= tick.reads_back 9000 0",
    "= zone 0",
    "= zone.call -120 1",
    "= zone.vdso -120 1",
];

#[test]
fn timers_fire_in_virtual_time() {
    conforms(&[&c("timers", false)], &FRAMES);
}

#[test]
fn timers_of_a_static_program() {
    conforms(&[&c("timers", true)], &[World::Frame("0.5")]);
}

#[test]
fn signals_are_the_programs_own() {
    conforms(&[&c("signals", false)], &FRAMES);
}

#[test]
fn signals_of_a_static_program() {
    conforms(&[&c("signals", true)], &STATIC);
}

/// A program's handler on an alternate stack of 8 KiB, most of which it uses.
#[test]
fn small_alternate_stacks() {
    conforms(&[&c("signals", false), "small_stack"], &[World::Frame("1"), World::Frame("0.5")]);
}

#[test]
fn small_alternate_stacks_under_a_meter() {
    conforms(&[&c("signals", false), "small_stack"], &[World::Frame("10")]);
}

#[test]
fn cpu_time_agrees_with_itself_and_timers_count_it() {
    conforms(&[&c("usage", false)], &FRAMES);
}

#[test]
fn cpu_time_agrees_with_its_limits() {
    conforms(&[&c("usage", false), "limits"], &FRAMES);
}

#[test]
fn timers_and_sleeps_by_cpu_clocks_are_the_programs() {
    conforms(&[&c("cputimers", false)], &FRAMES);
}

/// Looks for more to do, with signals and cancellation amid the work before, of a thread that its hits put to sleep; of one whose
/// packets tell what it uses see the system tests' `owed`.
#[test]
fn who_looks_for_more_has_done_what_it_did() {
    conforms(&[&c("owed", false)], &FRAMES);
    match musl("owed") {
        Some(guest) => conforms(&[&guest], &[World::Frame("10")]),
        None => diecast_quiet::skipped("musl-gcc is not installed"),
    }
}

/// As a search of PATH makes them: each went through a tracer, 416 µs for 2.
#[test]
fn execs_of_what_is_not_there_fail_at_once() {
    conforms(&[&c("missing", false)], &FRAMES);
}

/// One that met a hit on its way was lost.
#[test]
fn sigtraps_that_threads_send_each_other_come() {
    conforms(&[&c("sentraps", false)], &FRAMES);
}

/// Cores, real-time policies and nice values: the same as natively on as many cores.
#[test]
fn cores_and_policies_are_judged_remembered_and_inherited() {
    conforms(&[&c("cores", false)], &FRAMES);
}

/// More cores than the host has, and fewer.
#[test]
fn a_frame_has_the_cores_that_it_was_given() {
    let guest = c("cores", false);
    for cores in ["5", "1", "64"] {
        let _turn = beside();
        let r = run_with(World::Frame("10"), &["--cores", cores], &[&guest, "count"], b"", &[]);
        let count: i64 = cores.parse().expect("a number");
        assert_eq!(value(&r.lines(), "affinity"), count, "{}", r.stderr);
        assert_eq!(value(&r.lines(), "last"), count - 1, "the last core can be pinned to, and getcpu says so");
        assert!(
            value(&r.lines(), "differ") <= 5,
            "stat tells the core that getcpu does, but where it changes amid both"
        );
        assert_eq!(value(&r.lines(), "told"), count - 1, "Cpus_allowed_list is that core");
        assert_eq!(value(&r.lines(), "beyond"), -22, "the one after it can't");
        assert_eq!(value(&r.lines(), "outside"), 0, "no getcpu names a core that is not there");
    }
}

/// sysconf, /proc/cpuinfo and /sys, with nothing left or handed on; the host's /sys where the right to mount is missing.
#[test]
fn files_show_the_cores_of_a_frame() {
    let _turn = beside();
    let guest = c("cores", false);
    let names = ["online", "configured", "processors", "directories"];
    let shown = |r: &Run| names.map(|name| value(&r.lines(), name));
    let natively = || shown(&run_with(World::Native, &[], &[&guest, "count"], b"", &[]));
    let before = natively();
    let program = diecast_tests::diecast().to_string_lossy().into_owned();
    // In a namespace whose mounts hand on what is mounted in them.
    let shared = ["unshare", "--mount", "--propagation", "shared"];
    let may = run_with(World::Native, &[], &[&shared[..], &["true"]].concat(), b"", &[]).status == Some(0);
    let look = "pwd; \"$@\"; echo \"value left $(grep -c sys/devices /proc/self/mountinfo)\"";
    // A core more than are online, the most, and one where there are several.
    let host = before[0];
    for cores in [host + 1, 64, 1].into_iter().filter(|cores| *cores != host && *cores <= 64) {
        let text = cores.to_string();
        let frame =
            [&program, "frame", "--tdf", "10", "--cores", &text, "--", "sh", "-c", "pwd; exec \"$0\" count", &guest];
        let prefix = if may { &shared[..] } else { &[] };
        let r = run_with(World::Native, &[], &[prefix, &["sh", "-c", look, "look"], &frame].concat(), b"", &[]);
        let mut expected = [cores; 4];
        if !may {
            diecast_quiet::skipped("no right to mount here");
            (expected[0], expected[1], expected[3]) = (before[0], before[1], before[3]);
        }
        assert_eq!(shown(&r), expected, "{}", r.stderr);
        assert_eq!(r.stderr.contains("this host's cores"), !may, "{}", r.stderr);
        assert_eq!(value(&r.lines(), "left"), 0, "{}", r.text());
        let places: Vec<String> = r.text().lines().filter(|line| line.starts_with('/')).map(str::to_owned).collect();
        assert!(places.len() == 2 && places[0] == places[1], "it stays where it was started: {places:?}");
    }
    assert_eq!(natively(), before);
    let without = ["setpriv", "--bounding-set", "-sys_admin"];
    if run_with(World::Native, &[], &[&without[..], &["true"]].concat(), b"", &[]).status != Some(0) {
        return diecast_quiet::skipped("setpriv can't drop a capability");
    }
    let (cores, text) = (host + 1, (host + 1).to_string());
    let frame = [&program, "frame", "--tdf", "10", "--cores", &text, "--", &guest, "count"];
    let r = run_with(World::Native, &[], &[&without[..], &frame].concat(), b"", &[]);
    assert_eq!(shown(&r), [before[0], before[1], cores, before[3]], "{}", r.stderr);
    assert!(r.stderr.contains("/sys, and sysconf with it, shows this host's cores"), "{}", r.stderr);
}

/// Threads that share the only core of their machine do not wake each other across two of this host's.
#[test]
fn a_metered_frame_keeps_to_as_many_cores_as_it_has() {
    let host = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if host < 2 {
        diecast_quiet::skipped("this host has one core");
        return;
    }
    let on = |cores: usize| {
        let _turn = beside();
        let cores = cores.to_string();
        // Without room for a view of it the kernel's own file.
        let show = ["sh", "-c", "ulimit -f 0; exec grep Cpus_allowed: /proc/self/status"];
        let r = run_with(World::Frame("10"), &["--cores", &cores], &show, b"", &[]);
        // Words of 32 bits.
        let mask = r.text().trim().rsplit('\t').next().unwrap_or_default().to_owned();
        mask.split(',').map(|word| u32::from_str_radix(word, 16).expect("bits").count_ones() as usize).sum::<usize>()
    };
    assert_eq!([on(1), on(host), on(2 * host)], [1, host, host]);
}

/// Two busy threads that are pinned to one core of two have half of it each, whatever the other core does.
#[test]
fn pinned_threads_share_the_core_that_they_asked_for() {
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        diecast_quiet::skipped("this host has one core");
        return;
    }
    diecast_quiet::look(|| {
        let _turn = alone();
        let guest = c("weights", false);
        for of in [&["0@0", "0@0", "0@1"][..], &["0@1", "0@1"], &["0@0", "0@0", "0"]] {
            let native = parts(World::Native, &[], &[&guest], of);
            let ours = parts(World::Frame("4"), &["--cores", "2"], &[&guest], of);
            println!("{of:?}: {native:.3?} natively, {ours:.3?} at TDF 4");
            for (native, ours) in native.iter().zip(&ours) {
                assert!((ours - native).abs() < 0.12, "{of:?}: {ours} at TDF 4, {native} natively");
            }
        }
    });
}

/// Nice values, SCHED_IDLE and bursts of a heavier thread: a busy thread has the part of the core that it has natively.
/// SCHED_FIFO, which would keep others from a core of this host, is held against what the kernel leaves them, a twentieth.
#[test]
fn busy_threads_have_parts_of_a_core_by_weight() {
    let clocks =
        std::process::Command::new(diecast()).args(["frame", "--hits", "cores", "--tdf", "1", "--", "true"]).status();
    if !clocks.expect("diecast").success() {
        diecast_quiet::skipped("events of threads don't tell weights, and this host has no clocks of cores");
        return;
    }
    diecast_quiet::look(weights);
}

/// What part of a core each thread of the guest `weights` has; `command` ends with the guest.
fn parts(world: World, options: &[&str], command: &[&str], of: &[&str]) -> Vec<f64> {
    let lines = run_with(world, options, &[command, of].concat(), b"", &[]).lines();
    (0..of.len()).map(|n| value(&lines, &format!("part{n}")) as f64 / 1e3).collect()
}

fn weights() {
    let _turn = alone();
    let guest = c("weights", false);
    let framed = |tdf, of: &[&str]| parts(World::Frame(tdf), &["--hits", "cores", "--cores", "1"], &[&guest], of);
    for of in [&["0", "0"][..], &["0", "10"], &["0", "5", "5"], &["0", "i"], &["0%", "19"]] {
        let native = parts(World::Native, &[], &["taskset", "-c", "0", &guest], of);
        let ours = framed("4", of);
        println!("{of:?}: {native:.3?} natively, {ours:.3?} at TDF 4");
        let (all, all_ours) = (native.iter().sum::<f64>(), ours.iter().sum::<f64>());
        assert!(all_ours > 0.85, "who wants the core has it: {ours:?}");
        for (native, ours) in native.iter().zip(&ours) {
            assert!((ours / all_ours - native / all).abs() < 0.06, "{of:?}: {ours} at TDF 4, {native} natively");
        }
    }
    for (of, expected) in [(&["0", "f"][..], &[0.05, 0.95][..]), (&["f", "f", "0"], &[0.475, 0.475, 0.05])] {
        let ours = framed("4", of);
        println!("{of:?}: {ours:.3?}");
        assert!(ours.iter().zip(expected).all(|(ours, expected)| (ours - expected).abs() < 0.08), "{of:?}: {ours:?}");
    }
}

#[test]
fn socket_options_are_in_virtual_time() {
    conforms(&[&c("sockets", false)], &FRAMES);
}

#[test]
fn stamps_of_packets_and_ipc_objects_are_in_virtual_time() {
    conforms(&[&c("stamps", false)], &FRAMES);
}

#[test]
fn times_of_files_are_in_virtual_time() {
    conforms(&[&c("files", false), "exact"], &[World::Frame("1"), World::Frame("10")]);
    conforms(&[&c("files", false)], &[World::Frame("0.5")]);
}

#[test]
fn alternate_stacks_of_every_size() {
    conforms(&[&c("altstacks", false)], &FRAMES);
}

#[test]
fn files_of_proc_tell_the_time_of_the_frame() {
    conforms(&[&c("procfs", false)], &FRAMES);
}

/// procps sees the frame's clocks: how long a process runs, since when, and for how long the machine. It takes the time
/// since the boot in hundredths, rounded down, so that of 3.00 s it may see 2.99.
#[test]
fn ps_agrees_with_the_clocks() {
    let script = "sleep 3.1; echo value before $(date +%s); set -- $(ps -o etimes=,lstart= -p $$); \
                  echo value now $(date +%s); echo value etimes $1; shift; echo value since $(date +%s -d \"$*\"); \
                  echo value up $(cut -d. -f1 /proc/uptime); echo value boot $(date +%s -d \"$(uptime -s)\")";
    if diecast_tests::tool("ps").is_none() {
        return diecast_quiet::skipped("ps is not installed");
    }
    for world in [World::Native, World::Frame("0.5")] {
        let lines = run(world, &["sh", "-c", script]).lines();
        let of = |name| value(&lines, name);
        assert!((3..=5).contains(&of("etimes")), "{world:?}: {lines:?}");
        // Three numbers of whole seconds, each rounded down, make this sum: the age, the instant of the boot (btime)
        // and how long after it the process began.
        let read_at = of("since") + of("etimes");
        assert!((of("before") - 2..=of("now")).contains(&read_at), "{world:?}: {lines:?}");
        assert!((of("boot") + of("up") - of("now")).abs() <= 2, "{world:?}: {lines:?}");
    }
}

#[test]
fn blocked_sigsys_and_sigtrap_wait_and_are_inherited() {
    conforms(&[&c("blocked", false)], &FRAMES);
}

#[test]
fn resolutions_of_coarse_clocks_are_a_tick_of_the_frame() {
    let guest = c("clocks", false);
    let native = run(World::Native, &[&guest]).lines();
    for world in FRAMES {
        let lines = run(world, &[&guest]).lines();
        for clock in ["realtime", "monotonic", "raw", "boottime", "tai"] {
            assert_eq!(value(&lines, &format!("res.{clock}")), 1, "{clock}");
        }
        for clock in ["realtime_coarse", "monotonic_coarse"] {
            let tick = value(&native, &format!("res.{clock}")) as f64 / world.tdf();
            let got = value(&lines, &format!("res.{clock}")) as f64;
            assert!((got - tick).abs() <= 1.0, "{clock} in {world:?}: {got}, expected {tick}");
        }
    }
}

#[test]
fn what_a_frame_refuses() {
    let lines = run(World::Frame("1"), &[&c("refusals", false)]).lines();
    for call in ["io_uring_setup", "io_uring_enter", "io_uring_register", "rseq", "x32"] {
        assert_eq!(value(&lines, call), -38, "{call}");
    }
    assert_eq!(value(&lines, "perf_event_open"), -13, "EACCES");
    assert_eq!((value(&lines, "dispatch"), value(&lines, "dispatch.off")), (-22, 0), "EINVAL");
}

/// Needs root, as the kernel does for namespaces.
#[test]
fn time_namespaces_are_refused_and_no_others() {
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return diecast_quiet::skipped("needs root");
    }
    let lines = run(World::Frame("1"), &[&c("refusals", false)]).lines();
    let refused = ["clone3", "unshare", "unshare.beside", "setns.named", "setns.any"];
    for (calls, errno) in [
        (&refused[..], -22),
        (&["unshare.fs", "setns.uts"], 0),
        (&["setns.bad"], -9),
        (&["unshare.nobody", "clone3.nobody"], -1),
    ] {
        for call in calls {
            assert_eq!(value(&lines, call), errno, "{call}");
        }
    }
}

/// At one rate only: the kernel counts a key's time in whole real seconds.
#[test]
fn keys_end_in_virtual_time() {
    conforms(&[&c("timers", false), "keys"], &[World::Frame("4")]);
}

/// Each row of the table names the guest that shows it; that guest says so.
#[test]
fn every_row_of_the_table_has_its_guest() {
    for row in ROWS {
        let path = format!("{}/guests/{}.c", env!("CARGO_MANIFEST_DIR"), row.test);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {path}: {e}", row.name));
        let head: Vec<&str> = text.lines().take_while(|l| l.starts_with("//")).collect();
        let named = head.iter().flat_map(|l| l.split_whitespace()).any(|w| w == row.name);
        assert!(named, "{} is not among what {path} covers", row.name);
    }
}
