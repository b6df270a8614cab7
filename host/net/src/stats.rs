//! What the emulator tells about itself.

use diecast_core_net::{NodeCounters, PipeCounters};
use diecast_core_vtime::{RealNs, RealSpan, VirtNs};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::priority::Scheduling;

/// Longest lateness that is told apart, ns; later ones count as this.
const LATENESS_NS_MAX: u64 = 60_000_000_000;

/// A snapshot. Everything counts from the emulator's start; take two and subtract for a window.
#[derive(Clone, Debug)]
pub struct EmulatorStats {
    /// When it was taken.
    pub at: RealNs,
    /// The same on the lab's clock.
    pub v_at: VirtNs,
    /// By pipe, in the order of the spec.
    pub pipes: Vec<PipeCounters>,
    /// By node, in the order of the spec.
    pub nodes: Vec<NodeCounters>,
    /// By node: real time that writes to its TAP took. The receiver's protocol stack runs inside them.
    pub receive_work: Vec<RealSpan>,
    /// Packets on their way, and those that are held at their node.
    pub in_flight: usize,
    /// Frames read from TAP devices.
    pub packets_read: u64,
    /// Frames written to TAP devices.
    pub packets_written: u64,
    /// Those among them that came to a node merged with others, as a NIC merges what it received.
    pub packets_merged: u64,
    /// By node: frames that its TAP device refused, for example because the NIC was down.
    pub write_errors: Vec<u64>,
    /// By node: its TAP device went away while the emulator ran.
    pub taps_lost: Vec<bool>,
    /// Frames that came without the trailer that every NIC appends when senders are charged.
    pub without_trailer: u64,
    /// Real ns between the instant a delivery was due and its write, in buckets of two significant digits. A late look at
    /// the TAPs is among them.
    pub lateness_ns: Histogram<u64>,
    /// CPU time of the emulator's threads.
    pub cpu: RealSpan,
    /// Times the thread woke up.
    pub wakeups: u64,
    /// Times a thread paused because it had used its share of the core.
    pub yields: u64,
    /// Length of these pauses.
    pub yielded: RealSpan,
    /// Its priority.
    pub scheduling: Scheduling,
}

/// Lateness in a few numbers, real ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct LatenessSummary {
    /// Deliveries, and looks that were late.
    pub count: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Largest.
    pub max_ns: u64,
}

impl EmulatorStats {
    /// Lateness of all deliveries and late looks.
    pub fn lateness(&self) -> LatenessSummary {
        summary(&self.lateness_ns)
    }

    /// Lateness of those after `earlier`, a snapshot of the same emulator.
    pub fn lateness_since(&self, earlier: &EmulatorStats) -> LatenessSummary {
        summary(&self.window(earlier))
    }

    /// The same as a histogram: the greatest lateness of each bucket, real ns, and how many fell into it, ascending.
    pub fn lateness_counts_since(&self, earlier: &EmulatorStats) -> Vec<(u64, u64)> {
        let window = self.window(earlier);
        window.iter_recorded().map(|bucket| (bucket.value_iterated_to(), bucket.count_since_last_iteration())).collect()
    }

    fn window(&self, earlier: &EmulatorStats) -> Histogram<u64> {
        let mut window = self.lateness_ns.clone();
        // Snapshots of one emulator have the same buckets, so only a later snapshot given as the earlier one fails.
        if window.subtract(&earlier.lateness_ns).is_err() {
            window.reset();
        }
        window
    }
}

fn summary(h: &Histogram<u64>) -> LatenessSummary {
    LatenessSummary {
        count: h.len(),
        p50_ns: h.value_at_quantile(0.5),
        p99_ns: h.value_at_quantile(0.99),
        p999_ns: h.value_at_quantile(0.999),
        max_ns: h.max(),
    }
}

/// An empty histogram of lateness, about 25 kB.
pub(crate) fn lateness_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENESS_NS_MAX, 2).expect("bounds of 1 and 60 s with two digits are valid")
}
