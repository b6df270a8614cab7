//! The clocks that the programs read: CLOCK_MONOTONIC and the calling thread's CPU clock, in nanoseconds.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// CLOCK_MONOTONIC, nanoseconds.
pub fn monotonic_ns() -> u64 {
    ns_of(clock_gettime(ClockId::Monotonic))
}

/// CPU time of the calling thread, nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    ns_of(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time of the whole process, nanoseconds.
pub fn process_cpu_ns() -> u64 {
    ns_of(clock_gettime(ClockId::ProcessCPUTime))
}

/// The kernel's form of a number of nanoseconds.
pub fn timespec_of(ns: u64) -> Timespec {
    // Both halves fit: u64::MAX nanoseconds are 1.8e10 seconds.
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

fn ns_of(time: Timespec) -> u64 {
    // These clocks start at zero and never run backwards, so the sign carries nothing.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
