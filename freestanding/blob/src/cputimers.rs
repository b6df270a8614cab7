//! Timers that count CPU time, in a metered node.
//!
//! The kernel's count includes the meter's own CPU time, which is known only afterwards: its timer would fire early.
//! So each is kept here by its virtual deadline, looked at after every hit and where a thread pays before a wait, and the kernel's timer is told to fire
//! when the deadline is there. Meanwhile the kernel's is armed for long after, for threads without a meter.
//!
//! ITIMER_VIRTUAL and ITIMER_PROF outlive the image: the kernel's hold what is left of them, as of the last of these, plus
//! [`STOLEN_MAX_NS`], and the next image's page begins with that.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::TIMERS_MAX;
use diecast_core_syscalls::nr;

use crate::user::{Pair, Timespec};
use crate::{clock, node, process, signals, sys, timers, usage};

pub const TIMER_ABSTIME: u64 = 1;

/// Index of ITIMER_VIRTUAL (1) and ITIMER_PROF (2).
pub fn index_of_itimer(which: u32) -> usize {
    TIMERS_MAX + which as usize - 1
}

/// Is this kept here? Otherwise the kernel's count is right.
pub fn counts(clock_id: i32) -> bool {
    clock::is_cpu(clock_id) && node().metered.load(Relaxed) != 0
}

fn cell(table: &'static [AtomicU64], index: usize) -> Option<&'static AtomicU64> {
    table.get(index)
}

/// The timer's clock, ns of virtual CPU time.
fn now(index: usize) -> u64 {
    if index == index_of_itimer(1) {
        return usage::user_ns();
    }
    let id = if index == index_of_itimer(2) { clock::PROCESS_CPU } else { timers::timer_clock(index as u64) };
    clock::read(id).map_or(0, clock::ns_of)
}

fn is_armed(index: usize) -> bool {
    process().own.cpu_timers_armed.get(index / 64).is_some_and(|w| w.load(Relaxed) & 1 << (index % 64) != 0)
}

fn mark(index: usize, armed: bool) {
    let own = &process().own;
    let Some(w) = own.cpu_timers_armed.get(index / 64) else { return };
    let bit = 1u64 << (index % 64);
    let before = if armed { w.fetch_or(bit, Relaxed) } else { w.fetch_and(!bit, Relaxed) };
    match (before & bit != 0, armed) {
        (false, true) => _ = own.cpu_timers.fetch_add(1, Relaxed),
        (true, false) => _ = own.cpu_timers.fetch_sub(1, Relaxed),
        _ => {}
    }
}

/// A new timer, which is not set: its number was another's before, or its parent's.
pub fn begin(index: usize) {
    let inherited = &process().inherited;
    mark(index, false);
    for c in [cell(&inherited.cpu_due_ns, index), cell(&inherited.cpu_every_ns, index)].into_iter().flatten() {
        c.store(0, Relaxed);
    }
}

/// What is left and the interval, virtual ns; zero when disarmed.
pub fn left(index: usize) -> (u64, u64) {
    let inherited = &process().inherited;
    let every = cell(&inherited.cpu_every_ns, index).map_or(0, |c| c.load(Relaxed));
    if !is_armed(index) {
        return (0, every);
    }
    let due = cell(&inherited.cpu_due_ns, index).map_or(0, |c| c.load(Relaxed));
    (due.saturating_sub(now(index)).max(1), every)
}

/// Keeps a timer that was set, value and interval in virtual ns; gives the kernel's span and interval, real. No span is
/// one whose instant has passed: see [`passed`].
pub fn keep(index: usize, absolute: bool, value_ns: u64, every_ns: u64) -> (Option<u64>, u64) {
    let inherited = &process().inherited;
    if let (Some(due), Some(every)) = (cell(&inherited.cpu_due_ns, index), cell(&inherited.cpu_every_ns, index)) {
        every.store(every_ns, Relaxed);
        let at = now(index);
        if absolute && value_ns != 0 && value_ns <= at {
            let missed = (at - value_ns).checked_div(every_ns).unwrap_or(0);
            due.store(value_ns.saturating_add(every_ns.saturating_mul(missed + 1)), Relaxed);
            mark(index, every_ns != 0);
            return (None, backstop(every_ns));
        }
        due.store(if absolute { value_ns } else { at.saturating_add(value_ns) }, Relaxed);
        mark(index, value_ns != 0);
        let span = if value_ns == 0 { 0 } else { due.load(Relaxed).saturating_sub(at).max(1) };
        let real = if index < TIMERS_MAX { backstop } else { held };
        return (Some(real(span)), real(every_ns));
    }
    (Some(value_ns), every_ns)
}

/// An instant of the kernel's clock that has just passed: a POSIX timer that is set to it fires at once, whether its
/// threads run or not, and has missed no period.
pub fn passed(index: usize) -> Timespec {
    let mut t = Timespec { sec: 0, nsec: 0 };
    let id = timers::timer_clock(index as u64);
    sys::own(nr::CLOCK_GETTIME, [id as u32 as u64, &raw mut t as u64, 0, 0, 0, 0]);
    clock::timespec(clock::ns_of(t).max(1))
}

/// What a hypervisor may keep a core for while the meter's handler runs: the kernel counts it as CPU time, the program's
/// clock as the meter's cost.
const STOLEN_MAX_NS: u64 = 1_000_000_000;

/// The kernel's real span for a virtual one: it must not be first.
fn backstop(v_ns: u64) -> u64 {
    let twice = clock::span_in(clock::PROCESS_CPU, v_ns).saturating_mul(2);
    if v_ns == 0 { 0 } else { twice.saturating_add(STOLEN_MAX_NS) }
}

/// What the kernel's ITIMER_VIRTUAL or ITIMER_PROF is set to for a virtual span.
pub fn held(v_ns: u64) -> u64 {
    if v_ns == 0 { 0 } else { clock::span_in(clock::PROCESS_CPU, v_ns).saturating_add(STOLEN_MAX_NS) }
}

/// The reverse: a span of whole microseconds is told as it was set.
pub fn held_out(real_ns: u64) -> u64 {
    if real_ns == 0 {
        return 0;
    }
    let v = clock::span_out(clock::PROCESS_CPU, real_ns.saturating_sub(STOLEN_MAX_NS).max(1));
    let whole = v / 1000 * 1000;
    let us = |ns: u64| ns / 1000 + !ns.is_multiple_of(1000) as u64;
    if whole != 0 && us(held(whole)) >= us(real_ns) { whole } else { v }
}

/// In a new image: one of the two that the image before it had set.
pub fn inherit(which: u32, value_ns: u64, every_ns: u64) {
    if counts(clock::PROCESS_CPU) {
        keep(index_of_itimer(which), false, held_out(value_ns), held_out(every_ns));
    }
}

fn set_kernels(index: usize, value_ns: u64, interval_ns: u64) {
    let of = |ns: u64| timers::whole(clock::timespec(ns));
    let p = Pair { interval: of(interval_ns), value: of(value_ns) };
    sys::own(nr::SETITIMER, [(index - TIMERS_MAX + 1) as u64, &raw const p as u64, 0, 0, 0, 0]);
}

/// After a hit, or what pays for one, of a thread that blocks these signals: has a deadline come? A child of vfork finds its parent's timers.
#[inline(never)]
pub fn check(blocked: u64) {
    if signals::is_guest() {
        return;
    }
    for (i, w) in process().own.cpu_timers_armed.iter().enumerate() {
        let mut left = w.load(Relaxed);
        while left != 0 {
            let index = i * 64 + left.trailing_zeros() as usize;
            left &= left - 1;
            look(index, blocked);
        }
    }
}

#[inline(never)]
fn look(index: usize, blocked: u64) {
    let inherited = &process().inherited;
    let (Some(due), Some(every)) = (cell(&inherited.cpu_due_ns, index), cell(&inherited.cpu_every_ns, index)) else {
        return;
    };
    let (at, due_ns, every_ns) = (now(index), due.load(Relaxed), every.load(Relaxed));
    if at < due_ns {
        if index >= TIMERS_MAX {
            set_kernels(index, held(due_ns - at), held(every_ns));
            if !is_armed(index) {
                // Another thread has disarmed it meanwhile.
                set_kernels(index, 0, 0);
            }
        }
        return;
    }
    // One thread fires it.
    let next = if every_ns == 0 { u64::MAX } else { due_ns.saturating_add(every_ns).max(at) };
    if due.compare_exchange(due_ns, next, Relaxed, Relaxed).is_err() {
        return;
    }
    if every_ns == 0 {
        mark(index, false);
    }
    if index < TIMERS_MAX {
        let at_once = Pair { interval: clock::timespec(backstop(every_ns)), value: passed(index) };
        sys::own(nr::TIMER_SETTIME, [index as u64, TIMER_ABSTIME, &raw const at_once as u64, 0, 0, 0]);
    } else {
        let left = if every_ns == 0 { 0 } else { next.saturating_sub(at).max(1) };
        set_kernels(index, held(left), held(every_ns));
        const SIGVTALRM: u64 = 26;
        tell(SIGVTALRM + (index - TIMERS_MAX) as u64, blocked);
    }
}

/// SIGVTALRM, SIGPROF or SIGXCPU, as the kernel sends it: to the process, of which the thread that used the CPU time comes first.
/// This one blocks everything until its hit is over, so it gets the signal by name.
pub fn tell(signo: u64, blocked: u64) {
    const SI_KERNEL: u64 = 0x80;
    let info = [signo, SI_KERNEL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    if blocked & 1 << (signo - 1) == 0 {
        sys::queue_here(&info);
    } else {
        // A process is told by any of its threads' numbers; who says that a signal is the kernel's may only name itself.
        sys::own(sys::RT_SIGQUEUEINFO, [sys::gettid() as u64, signo, &raw const info as u64, 0, 0, 0]);
    }
}
