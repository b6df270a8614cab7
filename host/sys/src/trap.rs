//! Hits of a perf event on the calling thread, taken as the meter's handler takes them: read the thread's CPU time, sleep,
//! read it again.

use std::cell::Cell;

use crate::{process, time};

thread_local! {
    static HITS: Cell<u64> = const { Cell::new(0) };
    static PAUSE_NS: Cell<u64> = const { Cell::new(0) };
    static INSIDE_NS: Cell<u64> = const { Cell::new(0) };
    static TOLD: Cell<u64> = const { Cell::new(0) };
    static FROM_NS: Cell<u64> = const { Cell::new(0) };
}

/// The instant at which the kernel reads this thread's CPU time, nearly.
fn reading_of_cpu_time() -> u64 {
    let before = time::monotonic_ns();
    time::thread_cpu_ns();
    before.midpoint(time::monotonic_ns())
}

extern "C" fn on_trap(_: libc::c_int, info: *const libc::siginfo_t, _: *const libc::c_void) {
    let from = reading_of_cpu_time();
    // SAFETY: the kernel passes a valid siginfo, and what comes with a signal is in it.
    TOLD.set(unsafe { (*info).si_value().sival_ptr } as u64);
    FROM_NS.set(from);
    let pause_ns = PAUSE_NS.get();
    if pause_ns > 0 {
        time::sleep_until_ns(from + pause_ns);
    }
    INSIDE_NS.set(reading_of_cpu_time().saturating_sub(from));
    HITS.set(HITS.get() + 1);
}

/// Installs the handler, for all threads of this process. It reads clocks, sleeps and touches const-initialised thread
/// locals.
pub fn install_handler() {
    process::on_signal_with(libc::SIGTRAP, on_trap);
}

/// From now on a hit's handler on the calling thread sleeps for so long.
pub fn sleep_in_hits(pause_ns: u64) {
    PAUSE_NS.set(pause_ns);
}

/// What of a hit's cost its handler can't see.
#[derive(Clone, Copy, Debug)]
pub struct Hidden {
    /// CPU time, ns.
    pub ns: u64,
    /// What came with its signal (`si_value`).
    pub told: u64,
    /// When the handler read its thread's CPU time first, CLOCK_MONOTONIC ns.
    pub handled_ns: u64,
}

/// Hits that the calling thread has had.
pub fn hits() -> u64 {
    HITS.get()
}

/// What came with the last of them (`si_value`).
pub fn told() -> u64 {
    TOLD.get()
}

/// Spins on the clock until `count` hits came, or until `end_ns`. What each took of this thread outside of the two
/// readings of its CPU time, ns: interrupt, signal, return. A hit's handler sleeps for `pause_ns`.
///
/// With each what came with its signal, and when the handler read first, CLOCK_MONOTONIC ns.
pub fn hidden_costs(count: usize, pause_ns: u64, end_ns: u64) -> Vec<Hidden> {
    PAUSE_NS.set(pause_ns);
    let mut costs = Vec::with_capacity(count);
    let mut seen = HITS.get();
    let (mut before, mut last) = (time::monotonic_ns(), time::monotonic_ns());
    while costs.len() < count && last < end_ns {
        let now = time::monotonic_ns();
        let hits = HITS.get();
        if hits == seen {
            (before, last) = (last, now);
            continue;
        }
        // The hit fell before the reading or after it: between `before` and the next one it lies for certain.
        let after = time::monotonic_ns();
        if hits == seen + 1 {
            let ns = (after - before).saturating_sub(INSIDE_NS.get());
            costs.push(Hidden { ns, told: TOLD.get(), handled_ns: FROM_NS.get() });
        }
        seen = HITS.get();
        (before, last) = (time::monotonic_ns(), time::monotonic_ns());
    }
    PAUSE_NS.set(0);
    costs
}
