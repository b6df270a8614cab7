//! The host under suspicion: what does the same work cost on each core now, and what does a meter's hit cost
//! beyond what the blob can see?

use std::io;

use diecast_host_sys::perf::Meter;
use diecast_host_sys::{Tid, process, time};

/// Turns of the probe's loop; about 400 µs on a core of 2 GHz.
const TURNS: u64 = 400_000;
/// Period of the probe's own event.
const PERIOD_NS: u64 = 50_000;

/// One look at one core.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub cpu: usize,
    /// CPU time of the fixed work, ns.
    pub work_ns: u64,
    /// CPU time per hit that a handler can't see, ns; None when no hit came.
    pub hit_cost_ns: Option<u64>,
}

/// Fixed work that a compiler can't shorten: a chain of multiplications.
#[inline(never)]
pub fn fixed_work(turns: u64) -> u64 {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    for i in 0..turns {
        x = std::hint::black_box(x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ i);
    }
    x
}

fn timed(turns: u64) -> u64 {
    let before = time::thread_cpu_ns();
    fixed_work(turns);
    time::thread_cpu_ns() - before
}

/// A probe for the calling thread, which it moves from core to core.
pub struct Probe {
    meter: Option<Meter>,
}

impl Probe {
    /// Opens the probe's own event on the calling thread; without permission only the work is timed.
    pub fn new(count_kernel: bool) -> io::Result<Probe> {
        process::install_counting_trap_handler()?;
        let meter = Meter::open(Tid(0), PERIOD_NS, 0, count_kernel).ok();
        Ok(Probe { meter })
    }

    /// Looks at one core: the same work without and with the event.
    pub fn look(&self, cpu: usize) -> io::Result<Look> {
        time::pin_to(&[cpu])?;
        // The first pass warms the caches and is not counted.
        timed(TURNS / 10);
        let plain = timed(TURNS);
        let Some(meter) = &self.meter else { return Ok(Look { cpu, work_ns: plain, hit_cost_ns: None }) };
        // Hits of a busy thread are warm too: the first ones after a pause cost twice as much.
        meter.enable()?;
        timed(TURNS / 2);
        let before = process::trap_hits();
        let hit = timed(TURNS);
        meter.disable()?;
        let hits = process::trap_hits() - before;
        let plain_again = timed(TURNS);
        // The mean of the passes around it, not the shorter: that would make every hit look dearer on a noisy host.
        let around = plain.midpoint(plain_again);
        let cost = hit.saturating_sub(around).checked_div(hits);
        Ok(Look { cpu, work_ns: plain.min(plain_again), hit_cost_ns: cost })
    }
}
