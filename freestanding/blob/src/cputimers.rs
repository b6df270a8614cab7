//! Timers that count CPU time, in a metered node.
//!
//! The kernel's count includes the meter's own CPU time, which is known only afterwards: its timer would fire early.
//! So each is kept here by its virtual deadline, looked at after every hit, and the kernel's timer is told to fire
//! when the deadline is there. Meanwhile the kernel's is armed for long after, for threads without a meter.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::TIMERS_MAX;
use diecast_core_syscalls::nr;

use crate::user::{Pair, Timespec, Timeval};
use crate::{clock, node, process, sys, timers, usage};

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

/// Keeps a timer that was set, value and interval in virtual ns; gives the kernel's, real.
pub fn keep(index: usize, absolute: bool, value_ns: u64, every_ns: u64) -> (u64, u64) {
    let inherited = &process().inherited;
    if let (Some(due), Some(every)) = (cell(&inherited.cpu_due_ns, index), cell(&inherited.cpu_every_ns, index)) {
        every.store(every_ns, Relaxed);
        let at = now(index);
        due.store(if absolute { value_ns } else { at.saturating_add(value_ns) }, Relaxed);
        mark(index, value_ns != 0);
        let span = if value_ns == 0 { 0 } else { due.load(Relaxed).saturating_sub(at).max(1) };
        return (backstop(span), backstop(every_ns));
    }
    (value_ns, every_ns)
}

/// What a hypervisor may keep a core for while the meter's handler runs: the kernel counts it as CPU time, the program's
/// clock as the meter's cost.
const STOLEN_MAX_NS: u64 = 1_000_000_000;

/// The kernel's real span for a virtual one: it must not be first.
fn backstop(v_ns: u64) -> u64 {
    let twice = clock::span_in(clock::PROCESS_CPU, v_ns).saturating_mul(2);
    if v_ns == 0 { 0 } else { twice.saturating_add(STOLEN_MAX_NS) }
}

/// After a hit: has a deadline come?
#[inline(never)]
pub fn check() {
    for (i, w) in process().own.cpu_timers_armed.iter().enumerate() {
        let mut left = w.load(Relaxed);
        while left != 0 {
            let index = i * 64 + left.trailing_zeros() as usize;
            left &= left - 1;
            look(index);
        }
    }
}

#[inline(never)]
fn look(index: usize) {
    let inherited = &process().inherited;
    let (Some(due), Some(every)) = (cell(&inherited.cpu_due_ns, index), cell(&inherited.cpu_every_ns, index)) else {
        return;
    };
    let (at, due_ns, every_ns) = (now(index), due.load(Relaxed), every.load(Relaxed));
    if at < due_ns {
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
    fire(index, backstop(every_ns));
}

fn fire(index: usize, interval_ns: u64) {
    if index < TIMERS_MAX {
        let soon = Pair { interval: clock::timespec(interval_ns), value: Timespec { sec: 0, nsec: 1 } };
        sys::own(nr::TIMER_SETTIME, [index as u64, 0, &raw const soon as u64, 0, 0, 0]);
    } else {
        let t = clock::timespec(interval_ns);
        let interval = Timeval { sec: t.sec, usec: t.nsec / 1000 };
        let soon = Pair { interval, value: Timeval { sec: 0, usec: 1 } };
        sys::own(nr::SETITIMER, [(index - TIMERS_MAX + 1) as u64, &raw const soon as u64, 0, 0, 0, 0]);
    }
}
