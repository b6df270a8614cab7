//! One direction of a link: a drop-tail queue, a transmitter, a delay, random loss.

use std::collections::VecDeque;

use diecast_core_vtime::{NS_PER_S, VirtNs, VirtSpan};
use serde::Serialize;

use crate::spec::PipeSpec;

/// What a pipe has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PipeCounters {
    /// Packets that reached the pipe.
    pub packets_in: u64,
    /// Their bytes, Ethernet header included.
    pub bytes_in: u64,
    /// Packets that the transmitter accepted, lost ones included.
    pub packets_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Packets that found the queue full.
    pub dropped_queue_full: u64,
    /// Packets lost at random after they were sent.
    pub dropped_loss: u64,
    /// Most packets that ever waited.
    pub queue_packets_max: u32,
}

/// What happens to a packet that reaches a pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It reaches the far end then.
    Arrives(VirtNs),
    /// It is gone.
    Dropped,
}

/// A pipe with its state.
#[derive(Clone, Debug)]
pub(crate) struct Pipe {
    bandwidth_bps: Option<u64>,
    delay: VirtSpan,
    queue_packets: u32,
    /// A packet is lost when a random 64-bit number is below this; `None` is every packet.
    loss_below: Option<u64>,
    rng: SplitMix64,
    /// The transmitter is free at `free_ns + free_rem / bandwidth`.
    free_ns: u64,
    free_rem: u64,
    /// When the waiting packets start to be sent, in order.
    starts: VecDeque<VirtNs>,
    pub(crate) counters: PipeCounters,
}

impl Pipe {
    /// A pipe that is idle. `seed` belongs to this pipe alone, so that loss here does not depend on traffic elsewhere.
    pub(crate) fn new(spec: &PipeSpec, seed: u64) -> Pipe {
        // The only floating point: 1.0 is exact, everything below maps to round(loss * 2^64) < 2^64.
        let loss_below = if spec.loss >= 1.0 { None } else { Some((spec.loss * 18_446_744_073_709_551_616.0) as u64) };
        Pipe {
            bandwidth_bps: spec.bandwidth_bps,
            delay: VirtSpan(spec.delay_ns),
            queue_packets: spec.queue_packets,
            loss_below,
            rng: SplitMix64(seed),
            free_ns: 0,
            free_rem: 0,
            starts: VecDeque::new(),
            counters: PipeCounters::default(),
        }
    }

    /// A packet of `bytes` reaches the pipe at `at`. Calls must come in order of `at`.
    pub(crate) fn enter(&mut self, at: VirtNs, bytes: usize) -> Verdict {
        self.counters.packets_in += 1;
        self.counters.bytes_in += bytes as u64;
        let Some(sent) = self.transmit(at, bytes) else {
            self.counters.dropped_queue_full += 1;
            return Verdict::Dropped;
        };
        self.counters.packets_sent += 1;
        self.counters.bytes_sent += bytes as u64;
        let lost = match self.loss_below {
            Some(0) => false,
            Some(below) => self.rng.next() < below,
            None => true,
        };
        if lost {
            self.counters.dropped_loss += 1;
            return Verdict::Dropped;
        }
        Verdict::Arrives(sent.plus(self.delay))
    }

    /// When the last bit leaves, rounded up to a nanosecond; `None` when the queue is full.
    ///
    /// The exact end of a busy period's k-th packet is `start + sum(bits) * 10^9 / bandwidth`; the remainder of
    /// that division is carried, so rounding never adds up. Bound: 2^16 bytes * 8 * 10^9 + a remainder below
    /// 2^64 fits 128 bits, and a quotient beyond 64 bits (584 years) saturates.
    ///
    /// Example: 1514 bytes at 100 Mbit/s take 121,120 ns.
    fn transmit(&mut self, at: VirtNs, bytes: usize) -> Option<VirtNs> {
        let Some(bps) = self.bandwidth_bps else { return Some(at) };
        while self.starts.front().is_some_and(|s| *s <= at) {
            self.starts.pop_front();
        }
        if self.free_at() <= at {
            (self.free_ns, self.free_rem) = (at.0, 0);
        } else {
            if self.starts.len() >= self.queue_packets as usize {
                return None;
            }
            self.starts.push_back(self.free_at());
            self.counters.queue_packets_max = self.counters.queue_packets_max.max(self.starts.len() as u32);
        }
        let total = bytes as u128 * 8 * u128::from(NS_PER_S) + u128::from(self.free_rem);
        let whole = u64::try_from(total / u128::from(bps)).unwrap_or(u64::MAX);
        self.free_ns = self.free_ns.saturating_add(whole);
        self.free_rem = (total % u128::from(bps)) as u64;
        Some(self.free_at())
    }

    /// When the transmitter is free, rounded up.
    fn free_at(&self) -> VirtNs {
        VirtNs(self.free_ns.saturating_add(u64::from(self.free_rem > 0)))
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seedable, good enough to decide loss.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
