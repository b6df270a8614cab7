//! Hits of a perf event on the calling thread, taken as the meter's handler takes them: read the thread's CPU time, sleep,
//! read it again.

use std::cell::Cell;

use crate::{process, time};

thread_local! {
    static HITS: Cell<u64> = const { Cell::new(0) };
    static PAUSE_NS: Cell<u64> = const { Cell::new(0) };
    static INSIDE_NS: Cell<u64> = const { Cell::new(0) };
}

/// The instant at which the kernel reads this thread's CPU time, nearly.
fn reading_of_cpu_time() -> u64 {
    let before = time::monotonic_ns();
    time::thread_cpu_ns();
    before.midpoint(time::monotonic_ns())
}

extern "C" fn on_trap(_: libc::c_int) {
    let from = reading_of_cpu_time();
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
    process::on_signal(libc::SIGTRAP, on_trap);
}

/// From now on a hit's handler on the calling thread sleeps for so long.
pub fn sleep_in_hits(pause_ns: u64) {
    PAUSE_NS.set(pause_ns);
}

/// Hits that the calling thread has had.
pub fn hits() -> u64 {
    HITS.get()
}

/// Spins on the clock until `count` hits came, or until `end_ns`. What each took of this thread outside of the two
/// readings of its CPU time, ns: interrupt, signal, return. A hit's handler sleeps for `pause_ns`.
pub fn hidden_costs(count: usize, pause_ns: u64, end_ns: u64) -> Vec<u64> {
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
            costs.push((after - before).saturating_sub(INSIDE_NS.get()));
        }
        seen = HITS.get();
        (before, last) = (time::monotonic_ns(), time::monotonic_ns());
    }
    PAUSE_NS.set(0);
    costs
}
