//! Random early detection: Floyd and Jacobson, "Random Early Detection Gateways for Congestion Avoidance",
//! IEEE/ACM Transactions on Networking 1 (4), 1993, figure 2. Queue and thresholds count waiting packets.

use diecast_core_vtime::{NS_PER_S, VirtNs};

use super::Arrival;
use crate::link::Red;
use crate::rng::SplitMix64;

/// A typical small packet: an idle pipe's average falls as if such packets had been sent (the paper's s).
const TYPICAL_BYTES: f64 = 500.0;

#[derive(Clone, Debug)]
pub(super) struct State {
    params: Red,
    rng: SplitMix64,
    avg: f64,
    /// Packets since the last drop; -1 while the average is below the minimum.
    count: i64,
}

impl State {
    pub(super) fn new(params: Red, rng: SplitMix64) -> State {
        State { params, rng, avg: 0.0, count: -1 }
    }

    pub(super) fn arrival(&mut self, now: VirtNs, queue: usize, idle: Option<VirtNs>, bandwidth_bps: u64) -> Arrival {
        self.average(now, queue, idle, bandwidth_bps);
        let p = self.params;
        let (min, max) = (f64::from(p.min_packets), f64::from(p.max_packets));
        let end = if p.gentle { 2.0 * max } else { max };
        if self.avg < min {
            self.count = -1;
            return Arrival::Pass;
        }
        if self.avg >= end {
            self.count = 0;
            return Arrival::Drop;
        }
        self.count += 1;
        let base = if self.avg < max {
            p.max_probability * (self.avg - min) / (max - min)
        } else {
            p.max_probability + (1.0 - p.max_probability) * (self.avg - max) / max
        };
        let spread = 1.0 - self.count as f64 * base;
        // Drops are spread evenly: after 1/base packets without one the next is certain.
        if spread > 0.0 && self.rng.unit() >= base / spread {
            return Arrival::Pass;
        }
        self.count = 0;
        // Above the maximum marks did not help (RFC 3168, 7).
        if p.ecn && self.avg < max { Arrival::Mark } else { Arrival::Drop }
    }

    /// The average: of the queue when packets wait, else as if small packets had been sent since it became idle.
    fn average(&mut self, now: VirtNs, queue: usize, idle: Option<VirtNs>, bandwidth_bps: u64) {
        let w = self.params.weight;
        match idle {
            Some(since) => {
                let sent = now.since(since).0 as f64 * bandwidth_bps as f64 / (TYPICAL_BYTES * 8.0 * NS_PER_S as f64);
                self.avg *= power(1.0 - w, sent as u64);
            }
            None => self.avg += w * (queue as f64 - self.avg),
        }
    }
}

/// `base^n` by squaring: multiplications only, so the bits are the same everywhere.
fn power(base: f64, mut n: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while n > 0 {
        if n & 1 == 1 {
            result *= square;
        }
        square *= square;
        n >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At a fixed average the gaps between drops are uniform (the paper, section 7). The algorithm's figure counts a
    /// packet before it decides about it, so the last of 1/base possible gaps never comes.
    #[test]
    fn drops_are_spread_as_the_paper_says() {
        let params = Red { weight: 1.0, max_probability: 0.1, ..Red::new(5, 15) };
        let mut red = State::new(params, SplitMix64(5));
        // An average of 10 is half way: base 0.05, gaps from 1 to 19 with a mean of 10.
        let mut gaps = Vec::new();
        let mut since = 0;
        for _ in 0..200_000 {
            since += 1;
            if red.arrival(VirtNs(0), 10, None, 1_000_000) == Arrival::Drop {
                gaps.push(since);
                since = 0;
            }
        }
        gaps.remove(0);
        let mean = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64;
        assert!((mean - 10.0).abs() < 0.25, "mean gap {mean}");
        assert!(gaps.iter().all(|g| (1..=19).contains(g)), "longest {:?}", gaps.iter().max());
        for gap in 1..=19u64 {
            let share = gaps.iter().filter(|g| **g == gap).count() as f64 / gaps.len() as f64;
            assert!((share - 1.0 / 19.0).abs() < 0.01, "gap {gap}: {share}");
        }
    }

    #[test]
    fn the_average_follows_the_queue_and_forgets_while_idle() {
        let mut red = State::new(Red { weight: 0.002, ..Red::new(5, 15) }, SplitMix64(1));
        for _ in 0..1000 {
            red.arrival(VirtNs(0), 10, None, 1_000_000);
        }
        // 10 * (1 - 0.998^1000)
        assert!((red.avg - 8.649).abs() < 0.001, "{}", red.avg);
        // 500 bytes at 4 Mbit/s are 1 ms: 346 of them halve the average.
        red.arrival(VirtNs(346_000_000), 0, Some(VirtNs(0)), 4_000_000);
        assert!((red.avg - 8.649 * 0.5002).abs() < 0.01, "{}", red.avg);
    }

    #[test]
    fn regions_pass_mark_or_drop() {
        let at = |queue: usize, gentle: bool, ecn: bool| {
            let params = Red { weight: 1.0, max_probability: 1.0, gentle, ecn, ..Red::new(5, 15) };
            let mut red = State::new(params, SplitMix64(1));
            // The second packet: at a probability of 1 the count makes it certain.
            red.arrival(VirtNs(0), queue, None, 1);
            red.arrival(VirtNs(0), queue, None, 1)
        };
        assert_eq!([at(4, false, false), at(4, true, true)], [Arrival::Pass; 2]);
        assert_eq!([at(14, false, true), at(14, true, true)], [Arrival::Mark; 2]);
        assert_eq!([at(14, false, false), at(15, false, true), at(15, true, true)], [Arrival::Drop; 3]);
        assert_eq!(at(30, true, true), Arrival::Drop);
    }
}
