//! Who is hit by a core's clock, how often, and what a hit interrupts.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use diecast_core_abi::{delay_before_ns, left_since_ns, paused_before_ns};
use diecast_host_sys::{Tid, time, trap};
use diecast_host_tick::{Cadence, CoreTicks};

const GRAIN_NS: u64 = 1_000_000;
const MS: u64 = 1_000_000;

/// Clocks of these cores; `None`, and the test says so, where the kernel has none.
fn ticks(cores: &[usize]) -> Option<CoreTicks> {
    match CoreTicks::start(cores, Cadence::of_grain(GRAIN_NS), None) {
        Ok(ticks) => Some(ticks),
        Err(e) => {
            diecast_quiet::skipped(e.to_string());
            None
        }
    }
}

fn here() -> usize {
    let core = time::allowed_cpus()[0];
    time::pin_to(&[core]).unwrap();
    trap::install_handler();
    core
}

fn usage_of_this_thread() -> libc::rusage {
    // SAFETY: zero is a valid value, and the kernel fills it.
    unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    }
}

fn spin(cpu_ns: u64) {
    let end_ns = time::thread_cpu_ns() + cpu_ns;
    while time::thread_cpu_ns() < end_ns {}
}

#[test]
fn a_busy_thread_is_hit_once_a_period_and_others_are_not() {
    let Some(ticks) = ticks(&[]) else { return };
    let core = here();
    let ticking = ticks.tick_here(core, GRAIN_NS).unwrap();
    diecast_quiet::look(|| {
        let before = trap::hits();
        spin(200 * MS);
        let hits = trap::hits() - before;
        // As it gets the core it is hit too, after a grain without a hit: others on the core don't keep it from its hits.
        assert!((150..300).contains(&hits), "{hits}");
    });
    drop(ticking);
    let before = trap::hits();
    spin(20 * MS);
    assert_eq!(trap::hits(), before);
}

#[test]
fn a_hit_tells_for_how_long_the_core_stood_still_before_a_late_tick() {
    let Some(ticks) = ticks(&[]) else { return };
    let core = here();
    // The core's clock has a period of 1.854 ms by what the programs know, and of seven ticks six are missing.
    let period_ns = Cadence::of_grain(GRAIN_NS).period_ns;
    let ticking = ticks.tick_here(core, 7 * period_ns).unwrap();
    let expected_ns = 6 * period_ns - 600_000..6 * period_ns + 100_000;
    // Ticks meet other threads too where the core is shared, and what those had of it is none of this one's; hits as the thread
    // gets the core again tell of none.
    let end = Instant::now() + Duration::from_secs(20);
    let mut paused = vec![0];
    while paused.len() < 9 || (!expected_ns.contains(&paused[0]) && Instant::now() < end) {
        let before = trap::hits();
        while trap::hits() == before && Instant::now() < end {}
        paused.push(paused_before_ns(trap::told()));
        paused.sort_unstable_by(|a, b| b.cmp(a));
    }
    assert!(expected_ns.contains(&paused[0]), "{paused:?}");
    drop(ticking);
    // A tick in time tells when it was left.
    let _ticking = ticks.tick_here(core, MS).unwrap();
    spin(20 * MS);
    diecast_quiet::look(|| {
        spin(5 * MS);
        assert!(left_since_ns(trap::told(), 0).is_some(), "{:#x}", trap::told());
    });
}

#[test]
fn hits_tell_how_long_their_thread_has_waited_for_its_core() {
    let Some(ticks) = ticks(&[]) else { return };
    let core = here();
    // Has the core for half of the time, in turns of 300 us: it runs here, as who began it.
    let over = Arc::new(AtomicBool::new(false));
    let other = std::thread::spawn({
        let over = over.clone();
        move || {
            while !over.load(Relaxed) {
                spin(3 * MS / 10);
                std::thread::sleep(Duration::from_micros(300));
            }
        }
    });
    let _ticking = ticks.tick_here(core, 2 * MS).unwrap();
    diecast_quiet::look(|| {
        // By how much what a hit tells and what the kernel says right after it and the last differ: seldom waits lie in between.
        let (mut off_ns, mut last) = (Vec::<u64>::new(), None::<u64>);
        let end = Instant::now() + Duration::from_secs(3);
        while off_ns.len() < 41 && Instant::now() < end {
            let hits = trap::hits();
            while trap::hits() == hits && Instant::now() < end {}
            let (told, delay_ns) = (delay_before_ns(trap::told()), diecast_quiet::run_delay_ns("thread-self"));
            let one_more = trap::hits() == hits + 1;
            if let (true, Some(told_ns @ 50_000..), Some(last_ns)) = (one_more, told, last) {
                off_ns.push((delay_ns - last_ns).abs_diff(told_ns));
            }
            last = one_more.then_some(delay_ns);
        }
        off_ns.sort_unstable();
        assert!(off_ns.len() > 20 && off_ns[off_ns.len() / 2] < 16_384, "{off_ns:?}");
    });
    over.store(true, Relaxed);
    other.join().unwrap();
}

/// A core is idle between two requests, for no time that anybody would be charged. Of any core: kernels have been met in which
/// no event meets the idle thread of all but the first.
#[test]
fn no_hit_takes_idle_time_for_a_pause() {
    trap::install_handler();
    for core in time::allowed_cpus() {
        time::pin_to(&[core]).unwrap();
        let Some(ticks) = ticks(&[core]) else { return };
        let _ticking = ticks.meter_here().unwrap();
        diecast_quiet::look(|| {
            let (mut hits, mut paused) = (0, Vec::new());
            for _ in 0..150 {
                let before = trap::hits();
                spin(3 * MS);
                if trap::hits() == before + 1 {
                    hits += 1;
                    paused.extend(Some(paused_before_ns(trap::told())).filter(|ns| *ns > 0));
                }
                std::thread::sleep(Duration::from_micros(2_900));
            }
            assert!(hits > 30, "core {core}: {hits}");
            // The host's own are a few.
            assert!(paused.len() <= hits / 10, "core {core}: {paused:?} of {hits}");
        });
    }
}

#[test]
fn a_thread_that_gives_the_core_up_before_each_tick_is_hit_after_each_grain() {
    let Some(ticks) = ticks(&[]) else { return };
    let core = here();
    // Of a period in which no tick comes while the test lasts.
    let _ticking = ticks.tick_here(core, 3_600_000 * MS).unwrap();
    let before = trap::hits();
    for _ in 0..400 {
        spin(MS / 4);
        std::thread::sleep(Duration::from_micros(50));
    }
    let hits = trap::hits() - before;
    // 100 ms: each hit comes after a grain and up to a burst more.
    assert!((60..=101).contains(&hits), "{hits}");
}

/// The handler gives the core up: as the thread gets it again, the hit is over.
#[test]
fn a_hit_that_sleeps_is_followed_by_no_other() {
    let Some(ticks) = ticks(&[]) else { return };
    let core = here();
    let period_ns = Cadence::of_grain(GRAIN_NS).period_ns;
    let _ticking = ticks.tick_here(core, period_ns).unwrap();
    trap::sleep_in_hits(MS / 10);
    diecast_quiet::look(|| hits_of_300_ms(period_ns));
}

fn hits_of_300_ms(period_ns: u64) {
    let lost = || usage_of_this_thread().ru_nivcsw as u64;
    let (begin, hits, lost_before) = (Instant::now(), trap::hits(), lost());
    // Without a call: one that reads CPU time has the kernel add it up.
    while begin.elapsed() < Duration::from_millis(300) {}
    let (hits, lost) = (trap::hits() - hits, lost() - lost_before);
    let ticked = begin.elapsed().as_nanos() as u64 / period_ns;
    println!("{hits} hits in {ticked} ticks, the core lost {lost} times");
    // Whoever loses the core to others may be hit as it gets it again.
    assert!(
        hits > 50 && hits <= ticked + ticked / 20 + lost,
        "{hits} hits in {ticked} ticks, the core lost {lost} times"
    );
}

#[test]
fn a_hit_interrupts_no_call() {
    let Some(ticks) = ticks(&[]) else { return };
    let core = here();
    let _ticking = ticks.tick_here(core, MS / 10).unwrap();
    let before = trap::hits();
    let (mut interrupted, end) = (0, Instant::now() + Duration::from_secs(20));
    while trap::hits() < before + 100 && Instant::now() < end {
        let wait = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 1 };
        interrupted += u32::from(matches!(
            rustix::thread::nanosleep(&wait),
            rustix::thread::NanosleepRelativeResult::Interrupted(_)
        ));
    }
    assert!(trap::hits() >= before + 100, "{}", trap::hits() - before);
    assert_eq!(interrupted, 0);
}

/// What was left for a thread on its way out of the kernel stays left while it sleeps there.
#[test]
fn threads_that_sleep_with_a_hit_before_them_take_none_from_others() {
    let Some(ticks) = ticks(&[]) else { return };
    let core = here();
    let _ticking = ticks.tick_here(core, MS / 50).unwrap();
    let (pipes, threads): (Vec<_>, Vec<_>) = (0..100)
        .map(|_| {
            let (reader, mut writer) = std::io::pipe().unwrap();
            // Fills the pipe and sleeps in the same call; it is metered and runs here, as who began it.
            (reader, std::thread::spawn(move || drop(writer.write_all(&[0; 1 << 20]))))
        })
        .unzip();
    std::thread::sleep(Duration::from_millis(100));
    diecast_quiet::look(|| {
        let before = trap::hits();
        spin(50 * MS);
        let hits = trap::hits() - before;
        assert!(hits > 100, "{hits}");
    });
    drop(pipes);
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// One that ignores its hits, until it says `trap - TRAP`: from then on one is its end. It goes on when its input ends; its
/// exec is over: an exec takes the meter away, and a parent goes on before the end of one.
fn shell(script: &str) -> Child {
    let script = format!("trap '' TRAP; echo; read go; {script}");
    let mut command = Command::new("sh");
    let mut child = command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    child
}

/// Its end: soon.
fn end_of(mut child: Child) -> ExitStatus {
    drop(child.stdin.take());
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("it did not end: {:?}", child.wait());
}

#[test]
fn children_are_metered_and_what_they_execute_is_not() {
    let cores = time::online_cpus();
    let Some(ticks) = ticks(&cores) else { return };
    let end_of_metered = |script: &str| {
        let child = shell(script);
        ticks.begin(Tid(child.id() as i32)).unwrap();
        end_of(child)
    };
    assert_eq!(end_of_metered("trap - TRAP; while :; do :; done").signal(), Some(libc::SIGTRAP));
    let parent = end_of_metered("(trap - TRAP; while :; do :; done) & wait $!; exit $?");
    assert_eq!(parent.code(), Some(128 + libc::SIGTRAP), "its child's end");
    let spin = "env --default-signal=TRAP timeout 0.2 sh -c 'while :; do :; done'";
    let executed = end_of_metered(&format!("exec {spin}"));
    assert_eq!((executed.signal(), executed.code()), (None, Some(124)), "what it executes");
}

#[test]
fn no_clock_outlives_its_owner() {
    let cores = time::online_cpus();
    let Some(one) = ticks(&cores) else { return };
    let child = shell("trap - TRAP; i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done");
    one.begin(Tid(child.id() as i32)).unwrap();
    drop(one);
    let end = end_of(child);
    assert!(end.success(), "{end}");
}

#[test]
fn a_period_is_twice_the_grain_less_what_keeps_it_from_being_round() {
    assert_eq!(Cadence::of_grain(500_000), Cadence { period_ns: 927_000, overdue_ns: 500_000 });
    assert_eq!(Cadence::told_by_packets(500_000), Cadence { period_ns: 927_000, overdue_ns: 927_000 });
    assert_eq!(Cadence::of_grain(10_000_000_000).period_ns, 18_540_000_000);
}
