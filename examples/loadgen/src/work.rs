//! The loop that burns CPU: a chain of dependent shifts, so that no processor can overlap two turns.

use std::hint::black_box;

use crate::clock::thread_cpu_ns;

/// Does `turns` turns and returns a value that depends on all of them.
#[inline(never)]
pub fn spin(turns: u64) -> u64 {
    let mut x = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..turns {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x)
}

/// Burns given amounts of CPU time of the calling thread.
///
/// The amount is measured, not computed: the thread's CPU clock is read between chunks of a few microseconds, as each
/// read is a system call of some 0.3 µs. Turns per nanosecond only decide how long a chunk is, so a host that changes
/// its speed changes the overshoot (below one chunk), not the amount.
#[derive(Clone, Copy, Debug)]
pub struct CpuBurner {
    turns_per_us: u64,
}

/// Longest work between two reads of the clock.
const CHUNK_NS: u64 = 5_000;

impl CpuBurner {
    /// Times the loop on this thread, some 2 ms of CPU. The fastest of several goes counts, as interruptions only slow.
    pub fn calibrate() -> Self {
        const TURNS: u64 = 100_000;
        let fastest_ns = (0..8).map(|_| cpu_of(|| spin(TURNS))).min().unwrap_or_default();
        CpuBurner { turns_per_us: (TURNS * 1000 / fastest_ns.max(1)).max(1) }
    }

    /// Burns until the thread's CPU clock has advanced by `cpu_ns` and returns by how much it did.
    pub fn burn(&self, cpu_ns: u64) -> u64 {
        let start_ns = thread_cpu_ns();
        loop {
            let used_ns = thread_cpu_ns() - start_ns;
            if used_ns >= cpu_ns {
                return used_ns;
            }
            spin(self.turns_for((cpu_ns - used_ns).min(CHUNK_NS)));
        }
    }

    /// Turns that fill this much CPU time, rounded up.
    pub fn turns_for(&self, cpu_ns: u64) -> u64 {
        (u128::from(cpu_ns) * u128::from(self.turns_per_us)).div_ceil(1000) as u64
    }
}

fn cpu_of(work: impl FnOnce() -> u64) -> u64 {
    let start_ns = thread_cpu_ns();
    work();
    thread_cpu_ns() - start_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_grows_with_turns() {
        diecast_quiet::look(|| {
            let (one_ns, ten_ns) = (cpu_of(|| spin(200_000)), cpu_of(|| spin(2_000_000)));
            assert!(ten_ns > 4 * one_ns && ten_ns < 25 * one_ns, "{one_ns} ns and {ten_ns} ns");
        });
    }

    /// Never less than asked, and most of the time less than one chunk more.
    #[test]
    fn burns_what_was_asked() {
        diecast_quiet::look(|| {
            let burner = CpuBurner::calibrate();
            let mut over_ns: Vec<u64> = (0..200).map(|_| burner.burn(500_000) - 500_000).collect();
            over_ns.sort_unstable();
            assert!(over_ns[100] < CHUNK_NS, "median overshoot {} ns", over_ns[100]);
            assert!(burner.burn(0) < CHUNK_NS * 10);
        });
    }
}
