//! Can CPU time be metered, and do clocks and timers keep their promises?

use std::io;
use std::sync::Arc;

use diecast_host_egress::Egress;
use diecast_host_net::kernel_hz;
use diecast_host_node::IdleGroup;
use diecast_host_supervisor::probe::question_cost_ns;
use diecast_host_supervisor::{Meters, PerfEvents};
use diecast_host_sys::perf::Meter;
use diecast_host_sys::{Tid, idle, time, trap};
use diecast_host_tick::{Cadence, CoreTicks, TickError};
use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep};

use super::{on_thread, refused, root_or, speed};
use crate::facts::{read, read_number, schedstat};
use crate::report::{Check, Need, Part, Subject};

/// The default grain of the meter, real CPU time.
pub(super) const GRAIN_NS: u64 = 100_000;
/// Real time that the delivery trial takes, and at most until there were enough sleeps.
const TRIAL_NS: u64 = 60_000_000;
const TRIAL_MAX_NS: u64 = 2_000_000_000;
const TRIAL_SLEEPS: u64 = 100;
/// A clock read that takes longer does not come from the vDSO.
const CLOCK_READ_NS_MAX: f64 = 100.0;
/// Length of a sleep in the timer trial, and how late half of them may end.
const SLEEP_NS: u64 = 100_000;
const LATE_NS_MAX: u64 = 200_000;
const SLEEPS: usize = 25;

pub(super) const fn subject(name: &'static str, need: Need) -> Subject {
    Subject { name, part: Part::Cpu, need }
}

/// What hits can come from, and why not from clocks of cores.
pub(super) fn meters() -> (Meters, Option<TickError>) {
    Meters::best(Cadence::of_grain(GRAIN_NS), None)
}

pub(super) fn all() -> Vec<Check> {
    let question_ns = question(None);
    let (meters, why) = meters();
    let mut checks = vec![meter(&meters), clocks(why, &meters, question_ns)];
    if meters.any() {
        checks.extend([delivery(meters.clone()), rate_limit()]);
    }
    checks.extend(speed::all(meters));
    checks.extend([run_delay(), waits(), clock(), timers(), idle_cores(), tick()]);
    checks
}

/// CPU time of a question to a thread on the same core, ns, of one that these clocks meter, where they are given.
fn question(ticks: Option<Arc<CoreTicks>>) -> Option<u64> {
    on_thread(move || {
        trap::install_handler();
        time::pin_to(&[*time::allowed_cpus().first().unwrap_or(&0)])?;
        let _ticking = ticks.map(|ticks| ticks.meter_here()).transpose()?;
        question_cost_ns()
    })
    .ok()
    .flatten()
}

/// What clocks of cores add to a switch, by a question without and one of a thread that they meter.
fn added_to_switches(meters: &Meters, without_ns: Option<u64>) -> String {
    match question(meters.ticks()).zip(without_ns) {
        Some((with, without)) => {
            let added_us = with.saturating_sub(without) as f64 / 1e3;
            format!("a switch costs {added_us:.1} us more, which the program pays")
        }
        None => "what they add to a switch could not be measured".to_owned(),
    }
}

/// Whether hits come from clocks of cores.
fn clocks(why_not: Option<TickError>, meters: &Meters, question_ns: Option<u64>) -> Check {
    let s = subject("clocks of cores", Need::Accuracy);
    match why_not {
        None => {
            s.ok(format!("BPF programs hit whoever has a core at its tick; {}", added_to_switches(meters, question_ns)))
        }
        Some(e) => s.degraded(
            e.to_string(),
            "each metered thread has an event of its own, whose timer is set at each switch to it: 1 to 4 us more, in \
             nested virtual machines up to 15; programs that switch often are slow, and nice and real-time priorities have no \
             effect among the threads of a node",
            root_or("use Linux 6.18 or later, with BTF (CONFIG_DEBUG_INFO_BTF)"),
        ),
    }
}

fn meter(meters: &Meters) -> Check {
    let s = subject("CPU meter", Need::Trust);
    let paranoid = match read_number("/proc/sys/kernel/perf_event_paranoid") {
        Some(n) => format!("perf_event_paranoid {n}"),
        None => "no perf_event_paranoid".to_owned(),
    };
    match meters {
        Meters::Cores(_) => s.ok(format!("cpu-clock events of cores, kernel mode counted; {paranoid}")),
        Meters::Threads(PerfEvents::KernelToo) => {
            s.ok(format!("cpu-clock events with sigtrap, kernel mode counted; {paranoid}"))
        }
        Meters::Threads(PerfEvents::UserOnly) => s.degraded(
            format!("cpu-clock events with sigtrap, user mode only; {paranoid}"),
            "hits come only of time in user mode: what programs use in the kernel is charged late, in lumps, so that servers \
             look faster than they are; a frame that spent over half of its CPU time there says that it is not trustworthy",
            root_or("sysctl kernel.perf_event_paranoid=1"),
        ),
        Meters::Threads(PerfEvents::None) => {
            let why = Meter::open(Tid(0), 1_000_000, 0, false).err().map_or_else(String::new, |e| refused(&e));
            s.missing(
                format!("{why}; {paranoid}"),
                "no program is held to its machine's speed: clocks, waits and links are still dilated, CPU work looks \
                 up to TDF times too fast, and every run at TDF > 1 says that it is not trustworthy",
                "sysctl kernel.perf_event_paranoid=1, and use Linux 5.13 or later with CONFIG_PERF_EVENTS",
            )
        }
    }
}

/// Hits, sleeps and interrupted sleeps of a thread that sleeps all the time under a meter. A shorter period than the grain
/// of programs would be less than a hit takes on a slow core, and nothing but hits would happen there, for minutes.
fn sleep_under_meter(meters: &Meters) -> io::Result<(u64, u64, u64)> {
    let core = *time::allowed_cpus().first().unwrap_or(&0);
    time::pin_to(&[core])?;
    time::set_timer_slack_ns(1)?;
    trap::install_handler();
    let (mut sleeps, mut interrupted) = (0, 0);
    let before = trap::hits();
    let (_ticking, _meter) = match meters.ticks() {
        Some(ticks) => (Some(ticks.tick_here(core, GRAIN_NS)?), None),
        None => {
            let meter = Meter::open(Tid(0), GRAIN_NS, 0, meters.count_kernel())?;
            meter.enable()?;
            (None, Some(meter))
        }
    };
    let begin = time::monotonic_ns();
    while time::monotonic_ns() < begin + if sleeps < TRIAL_SLEEPS { TRIAL_MAX_NS } else { TRIAL_NS } {
        // As short as can be: most of the turn is CPU time on the way into and out of the wait.
        let slept = nanosleep(&Timespec { tv_sec: 0, tv_nsec: 1 });
        sleeps += 1;
        interrupted += u64::from(matches!(slept, NanosleepRelativeResult::Interrupted(_)));
    }
    Ok((trap::hits() - before, sleeps, interrupted))
}

fn delivery(meters: Meters) -> Check {
    let s = subject("delivery of hits", Need::Trust);
    let (hits, sleeps, interrupted) = match on_thread(move || sleep_under_meter(&meters)) {
        Ok(counts) => counts,
        Err(e) => return s.missing(e.to_string(), "the meter's events don't reach programs", ""),
    };
    judge_delivery(s, hits, sleeps, interrupted)
}

fn judge_delivery(s: Subject, hits: u64, sleeps: u64, interrupted: u64) -> Check {
    let found = format!("{hits} hits, {interrupted} of {sleeps} sleeps interrupted");
    if hits == 0 {
        return s.missing(
            found,
            "the meter never fires: nothing is held to its machine's speed, every metered run says that it is not \
             trustworthy",
            "report this kernel; a virtual machine without a working high-resolution timer does this",
        );
    }
    if interrupted > 0 {
        return s.degraded(
            found,
            "programs see EINTR from waits that the original machine would not interrupt",
            "use Linux 6.12 or later",
        );
    }
    s.ok(found)
}

fn rate_limit() -> Check {
    let s = subject("event rate limit", Need::Accuracy);
    let needed = 1_000_000_000 / GRAIN_NS;
    match read_number("/proc/sys/kernel/perf_event_max_sample_rate") {
        Some(rate) if rate < needed as i64 => s.degraded(
            format!("{rate} a second, the default grain needs {needed}"),
            "the kernel holds hits back: busy threads are metered late",
            format!("sysctl kernel.perf_event_max_sample_rate={}", 10 * needed),
        ),
        Some(rate) => s.ok(format!("{rate} a second, the default grain needs {needed}")),
        None => s.ok("none"),
    }
}

fn run_delay() -> Check {
    let s = subject("run delay", Need::Accuracy);
    let text = read("/proc/thread-self/schedstat").unwrap_or_default();
    match schedstat(&text) {
        Some((on_cpu, waited, _)) if on_cpu > 0 => {
            s.ok(format!("this thread ran {} us and waited {} us for a core", on_cpu / 1000, waited / 1000))
        }
        _ => s.degraded(
            format!("/proc/thread-self/schedstat says '{text}'"),
            "waiting for a core because other nodes run is charged to the node: response times on shared cores are \
             too long (measured: 1600 instead of 1073 us with eight nodes on a core)",
            "use a kernel with CONFIG_SCHED_INFO",
        ),
    }
}

/// Whom threads wait for: what a run tells beside its verdict.
fn waits() -> Check {
    let s = subject("waits by cause", Need::Information);
    match Egress::load() {
        Ok(_) => {
            s.ok("BPF programs at context switches tell other nodes, siblings, the ceiling, diecast and others apart")
        }
        Err(e) => s.degraded(
            refused(&e),
            "a run tells for how long its nodes' threads waited for a core as one sum (schedstat), not for whom",
            root_or(e.hint()),
        ),
    }
}

/// The fastest of a few batches, since anything may come between.
fn clock_read_ns() -> f64 {
    const READS: u64 = 2000;
    let batch = |_| {
        let before = time::monotonic_ns();
        for _ in 1..READS {
            std::hint::black_box(time::monotonic_ns());
        }
        (time::monotonic_ns() - before) as f64 / READS as f64
    };
    (0..5).map(batch).fold(f64::INFINITY, f64::min)
}

fn clock() -> Check {
    let s = subject("clock", Need::Accuracy);
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.unwrap_or_else(|| "unknown".to_owned());
    let read_ns = clock_read_ns();
    let found = format!("source {source}, {read_ns:.0} ns a read");
    if read_ns > CLOCK_READ_NS_MAX {
        return s.degraded(
            found,
            "every clock read is a system call, inside and outside of frames: programs that read it often are slow",
            "switch to a clock source that the vDSO can read: \
             echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        );
    }
    s.ok(found)
}

/// How late sleeps end, sorted, with the least slack.
fn lateness() -> io::Result<Vec<u64>> {
    time::set_timer_slack_ns(1)?;
    let late = |_| {
        let due = time::monotonic_ns() + SLEEP_NS;
        time::sleep_until_ns(due);
        time::monotonic_ns() - due
    };
    let mut all: Vec<u64> = (0..SLEEPS).map(late).collect();
    all.sort_unstable();
    Ok(all)
}

fn timers() -> Check {
    let s = subject("timers", Need::Accuracy);
    let slack = match read_number("/proc/self/timerslack_ns") {
        Some(ns) => format!("slack {} us, can be set", ns / 1000),
        None => "slack can be set".to_owned(),
    };
    match on_thread(lateness) {
        Ok(late) => {
            let (median, worst) = (late[late.len() / 2], late[late.len() - 1]);
            let found = format!(
                "{slack}; without it a sleep ends {} us late (median of {SLEEPS}, worst {})",
                median / 1000,
                worst / 1000
            );
            if median > LATE_NS_MAX {
                return s.degraded(
                    found,
                    "waits, meter and emulator are late by as much: at low TDF response times are too long",
                    "use a kernel with CONFIG_HIGH_RES_TIMERS; keep other work off this host",
                );
            }
            s.ok(found)
        }
        Err(e) => s.degraded(e.to_string(), "waits end up to 50 us late: at TDF 1 a tenth of a 500 us request", ""),
    }
}

/// Whether Linux can have idle cores poll, so that they wake up at once and stay warm.
fn idle_cores() -> Check {
    let s = subject("idle cores", Need::Accuracy);
    let found = match (idle::driver(), idle::have_cores_poll()) {
        (Some(driver), Ok(_)) => return s.ok(format!("driver {driver}; they poll while a lab runs")),
        (Some(driver), Err(_)) => format!("driver {driver}, {} can't be written", idle::LATENCY_REQUEST),
        (None, _) => "no driver for idle cores".to_owned(),
    };
    s.degraded(
        found,
        match IdleGroup::find() {
            Ok(_) => {
                "threads of diecast keep cores awake instead, behind all others: beside one a switch to another program of \
                 the same core costs up to 1 us more, and a wake-up less"
            }
            Err(_) => {
                "threads of diecast keep cores awake instead, in the control group of its session: a program that wakes up a \
                 moment after it went to sleep may be up to 3 ms late, which is seen at a low TDF, and a busy one loses up to \
                 a half of its core to them"
            }
        },
        "run as root, on a kernel with CONFIG_CPU_IDLE and, in a virtual machine, CONFIG_HALTPOLL_CPUIDLE",
    )
}

fn tick() -> Check {
    let hz = kernel_hz();
    // The kernel enforces quotas at its tick; naive mode shows what that does.
    subject("tick", Need::Information)
        .ok(format!("{hz} Hz: CPU quotas and TCP's timers have steps of {} ms", 1000 / hz.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;

    #[test]
    fn a_meter_that_never_fires_or_interrupts_is_found_out() {
        let s = subject("delivery of hits", Need::Trust);
        assert_eq!(judge_delivery(s, 500, 900, 0).status, Status::Ok);
        assert_eq!(judge_delivery(s, 500, 900, 1).status, Status::Degraded);
        assert_eq!(judge_delivery(s, 0, 900, 0).status, Status::Missing);
    }

    #[test]
    fn the_delivery_trial_sleeps_and_is_hit() {
        let of_threads = Meters::of_threads();
        if !of_threads.count_kernel() {
            diecast_quiet::skipped("no event that counts kernel mode");
            return;
        }
        let (meters, _) = super::meters();
        for one in [of_threads, meters] {
            let (hits, sleeps, interrupted) = on_thread(move || sleep_under_meter(&one)).unwrap();
            assert!(sleeps > 10 && hits > 10 && interrupted <= sleeps, "{hits} {sleeps} {interrupted}");
        }
    }
}
