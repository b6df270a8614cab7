//! One direction of a link: a queue, a transmitter, a propagation delay, and what can go wrong on the way.
//!
//! A packet that reaches a pipe is sent at once or waits. What waits starts when the transmitter is free; its fate on
//! the wire (loss, bit errors, duplication, jitter) is drawn then, each from a stream of its own, so that switching one
//! on does not change the others.

use diecast_core_vtime::{NS_PER_S, VirtNs, VirtSpan};
use serde::Serialize;

use crate::link::{Distribution, GilbertElliott, Link, NORMAL_CUT};
use crate::mark;
use crate::packets::{PacketIx, Packets, Seen};
use crate::queue::{Arrival, Judge, Queue, Waiting};
use crate::rng::{Chance, SplitMix64, mix};
use crate::spec::PipeIx;

/// What a pipe has seen. A sample of these at two instants gives rates; `busy_ns` over the time between them is the
/// utilisation.
///
/// `packets_in` = `packets_sent` + `dropped_queue_full` + `dropped_early` + `dropped_down` + `queue_packets`, and of
/// those sent `dropped_loss` and `dropped_cut` do not arrive and `duplicated` arrive twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PipeCounters {
    /// Packets that reached the pipe.
    pub packets_in: u64,
    /// Their bytes, Ethernet header included.
    pub bytes_in: u64,
    /// Packets whose transmission began, lost ones included.
    pub packets_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// How long the transmitter was or will be busy with them.
    pub busy_ns: u64,
    /// Packets dropped because the queue was full.
    pub dropped_queue_full: u64,
    /// Packets that RED or CoDel dropped.
    pub dropped_early: u64,
    /// Packets lost after they were sent, whatever the pattern.
    pub dropped_loss: u64,
    /// Packets that reached a cut pipe or waited when it was cut.
    pub dropped_down: u64,
    /// Packets that were being sent when the pipe was cut.
    pub dropped_cut: u64,
    /// Packets that RED or CoDel marked instead of dropping them.
    pub marked: u64,
    /// Packets that arrive twice.
    pub duplicated: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets that wait now.
    pub queue_packets: u32,
    /// Their bytes.
    pub queue_bytes: u64,
    /// Most packets that ever waited.
    pub queue_packets_max: u32,
    /// Most bytes that ever waited.
    pub queue_bytes_max: u64,
}

/// A packet that will reach the far end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Departure {
    pub packet: PacketIx,
    pub arrives: VirtNs,
}

/// What the transmitter sends until `end`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sending {
    pub end: VirtNs,
    pub packets: [Option<PacketIx>; 2],
    /// `last_arrival` before it.
    pub last_arrival: VirtNs,
}

/// A pipe with its state.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) link: Link,
    wire: Wire,
    pub(crate) queue: Queue,
    mtu_bytes: u32,
    seed: u64,
    up: bool,
    /// The transmitter is free at `free_ns + free_rem / bandwidth`.
    pub(crate) free_ns: u64,
    pub(crate) free_rem: u64,
    pub(crate) sending: Sending,
    /// When the last packet arrives; the next is not earlier unless the pipe reorders.
    pub(crate) last_arrival: VirtNs,
    /// Packets that have left it so far, modulo 2^32.
    pub(crate) left: u32,
    /// For when the next look at the queue is on the agenda.
    pub(crate) wake: Option<VirtNs>,
    /// Its own place, while somebody wants to see what it sends.
    pub(crate) watched: Option<PipeIx>,
    pub(crate) counters: PipeCounters,
}

/// The way behind the transmitter.
#[derive(Debug)]
struct Wire {
    loss: Chance,
    loss_rng: SplitMix64,
    /// Packets until the next one that is lost by count.
    every_left: u32,
    burst_rng: SplitMix64,
    bad: bool,
    corrupt: Chance,
    corrupt_rng: SplitMix64,
    duplicate: Chance,
    duplicate_rng: SplitMix64,
    jitter_rng: SplitMix64,
}

impl Wire {
    fn new(link: &Link, seed: u64) -> Wire {
        let stream = |n: u64| SplitMix64(mix(seed ^ n.wrapping_mul(0xa076_1d64_78bd_642f)));
        Wire {
            loss: Chance::new(link.loss),
            loss_rng: SplitMix64(seed),
            every_left: link.loss_every.unwrap_or(0),
            burst_rng: stream(1),
            bad: false,
            corrupt: Chance::new(link.corrupt),
            corrupt_rng: stream(2),
            duplicate: Chance::new(link.duplicate),
            duplicate_rng: stream(3),
            jitter_rng: stream(4),
        }
    }

    /// New parameters; streams and the burst's state go on, the count of every n-th packet only when n is the same.
    fn set(&mut self, old: &Link, link: &Link) {
        self.loss = Chance::new(link.loss);
        self.corrupt = Chance::new(link.corrupt);
        self.duplicate = Chance::new(link.duplicate);
        if old.loss_every != link.loss_every {
            self.every_left = link.loss_every.unwrap_or(0);
        }
    }

    /// Every pattern sees every packet.
    fn loses(&mut self, link: &Link) -> bool {
        let mut lost = self.loss.happens(&mut self.loss_rng);
        if let Some(n) = link.loss_every {
            self.every_left -= 1;
            if self.every_left == 0 {
                self.every_left = n;
                lost = true;
            }
        }
        if let Some(burst) = link.loss_burst {
            lost |= self.burst(&burst);
        }
        lost
    }

    fn burst(&mut self, p: &GilbertElliott) -> bool {
        let (loss, change) = if self.bad { (p.loss_bad, p.leave) } else { (p.loss_good, p.enter) };
        let lost = Chance::new(loss).happens(&mut self.burst_rng);
        self.bad ^= Chance::new(change).happens(&mut self.burst_rng);
        lost
    }

    fn delay(&mut self, link: &Link) -> VirtSpan {
        let Some(jitter) = link.jitter else { return VirtSpan(link.delay_ns) };
        let spread = jitter.spread_ns;
        let (later, by) = match jitter.distribution {
            Distribution::Uniform => {
                // 0 to 2 * spread, both included; a spread of 292 years and more saturates.
                let drawn = self.jitter_rng.below(spread.saturating_mul(2).saturating_add(1));
                (drawn >= spread, drawn.abs_diff(spread))
            }
            Distribution::Normal => {
                let z = self.jitter_rng.normal().clamp(-NORMAL_CUT, NORMAL_CUT);
                (z >= 0.0, (z.abs() * spread as f64) as u64)
            }
        };
        VirtSpan(if later { link.delay_ns.saturating_add(by) } else { link.delay_ns.saturating_sub(by) })
    }
}

/// Marks and drops on behalf of a queue.
struct Hands<'a> {
    packets: &'a mut Packets,
    counters: &'a mut PipeCounters,
}

impl Judge for Hands<'_> {
    fn mark(&mut self, packet: PacketIx) -> bool {
        let marked = mark::congestion(self.packets.bytes_mut(packet));
        self.counters.marked += u64::from(marked);
        marked
    }

    fn drop(&mut self, packet: PacketIx) {
        self.counters.dropped_early += 1;
        self.packets.discard(packet);
    }
}

impl Pipe {
    /// A pipe that is idle. `seed` belongs to this pipe alone, so that loss here does not depend on traffic elsewhere.
    pub(crate) fn new(link: &Link, mtu_bytes: u32, seed: u64) -> Pipe {
        Pipe {
            link: *link,
            wire: Wire::new(link, seed),
            queue: Queue::new(&link.discipline, mtu_bytes, mix(!seed)),
            mtu_bytes,
            seed,
            up: true,
            free_ns: 0,
            free_rem: 0,
            sending: Sending::default(),
            last_arrival: VirtNs(0),
            left: 0,
            wake: None,
            watched: None,
            counters: PipeCounters::default(),
        }
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up
    }

    /// Whether [`Pipe::enter`] wants to know the packet's flow.
    pub(crate) fn sorts_flows(&self) -> bool {
        self.queue.sorts_flows()
    }

    pub(crate) fn counters(&self) -> PipeCounters {
        PipeCounters { queue_packets: self.queue.packets(), queue_bytes: self.queue.bytes(), ..self.counters }
    }

    /// A packet reaches the pipe; what can be sent now is added to `out`.
    pub(crate) fn enter(
        &mut self,
        at: VirtNs,
        packet: PacketIx,
        flow: u64,
        packets: &mut Packets,
        out: &mut Vec<Departure>,
    ) {
        let bytes = packets.get(packet).frame.len() as u32;
        self.counters.packets_in += 1;
        self.counters.bytes_in += u64::from(bytes);
        if !self.up {
            self.counters.dropped_down += 1;
            return packets.discard(packet);
        }
        let waiting = Waiting { packet, bytes, since: at };
        let Some(bps) = self.link.bandwidth_bps else {
            (self.free_ns, self.free_rem) = (at.0, 0);
            return self.transmit(waiting, packets, out);
        };
        // A transmitter that becomes free at this instant is free before this packet.
        self.serve(at, packets, out);
        let idle = self.free_at() <= at;
        let verdict = self.queue.arrival(at, idle.then(|| self.free_at()), bps);
        let dropped = match verdict {
            Arrival::Pass => false,
            Arrival::Mark => !Hands { packets, counters: &mut self.counters }.mark(packet),
            Arrival::Drop => true,
        };
        if dropped {
            self.counters.dropped_early += 1;
            return packets.discard(packet);
        }
        if idle {
            self.queue.passed_by(bytes, flow);
            (self.free_ns, self.free_rem) = (at.0, 0);
            return self.transmit(waiting, packets, out);
        }
        self.wait(waiting, flow, bps, packets);
    }

    fn wait(&mut self, waiting: Waiting, flow: u64, bps: u64, packets: &mut Packets) {
        if self.is_full_for(waiting.bytes, waiting.since, bps) {
            if !self.queue.sorts_flows() {
                self.counters.dropped_queue_full += 1;
                return packets.discard(waiting.packet);
            }
            self.queue.push(waiting, flow);
            for w in self.queue.relieve() {
                self.counters.dropped_queue_full += 1;
                packets.discard(w.packet);
            }
        } else {
            self.queue.push(waiting, flow);
        }
        self.counters.queue_packets_max = self.counters.queue_packets_max.max(self.queue.packets());
        self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(self.queue.bytes());
    }

    fn is_full_for(&self, bytes: u32, at: VirtNs, bps: u64) -> bool {
        let link = &self.link;
        if self.queue.packets() >= link.queue_packets {
            return true;
        }
        if link.queue_bytes.is_some_and(|limit| self.queue.bytes() + u64::from(bytes) > limit) {
            return true;
        }
        link.queue_delay_ns.is_some_and(|limit| {
            let before = u128::from(self.queue.bytes()) * 8 * u128::from(NS_PER_S) / u128::from(bps);
            u128::from(self.free_at().since(at).0) + before > u128::from(limit)
        })
    }

    /// Sends what waits and whose turn has come by `now`.
    pub(crate) fn serve(&mut self, now: VirtNs, packets: &mut Packets, out: &mut Vec<Departure>) {
        while self.queue.packets() > 0 && self.free_at() <= now {
            let start = self.free_at();
            let mut hands = Hands { packets: &mut *packets, counters: &mut self.counters };
            let Some(next) = self.queue.pop(start, &mut hands) else { return };
            self.transmit(next, packets, out);
        }
    }

    /// When the transmitter looks at the queue next; `None` when nothing waits.
    pub(crate) fn next_serve(&self) -> Option<VirtNs> {
        (self.queue.packets() > 0).then(|| self.free_at())
    }

    /// What the next waiting packet needs at least to be sent, where it is known which that is.
    pub(crate) fn least_sending(&self) -> VirtSpan {
        let (Some(head), Some(bps)) = (self.queue.certain_head(), self.link.bandwidth_bps) else {
            return VirtSpan(0);
        };
        // Bound as in `transmit`.
        let bits = self.link.framing.counted(head.bytes as usize) * 8;
        // The transmitter may begin a fraction of a nanosecond before the instant at which it is free.
        VirtSpan((bits * NS_PER_S / bps).saturating_sub(1))
    }

    /// Sends one packet after the one before it: the transmitter is free by now.
    ///
    /// The exact end of a busy period's k-th packet is `start + sum(bits) * 10^9 / bandwidth`; the remainder of
    /// that division is carried, so rounding never adds up. Bound: 2^17 bytes * 8 * 10^9 is below 2^50, and only a
    /// bandwidth beyond 2^63 has a remainder that does not fit beside it.
    ///
    /// Example: 1514 bytes at 100 Mbit/s take 121,120 ns.
    fn transmit(&mut self, w: Waiting, packets: &mut Packets, out: &mut Vec<Departure>) {
        let start = self.free_at();
        if let Some(bps) = self.link.bandwidth_bps {
            let bits = self.link.framing.counted(w.bytes as usize) * 8;
            let (whole, rem) = match (bits * NS_PER_S).checked_add(self.free_rem) {
                Some(total) => (total / bps, total % bps),
                None => {
                    let total = u128::from(bits * NS_PER_S) + u128::from(self.free_rem);
                    // Below 2^65 over more than 2^63.
                    ((total / u128::from(bps)) as u64, (total % u128::from(bps)) as u64)
                }
            };
            self.free_ns = self.free_ns.saturating_add(whole);
            self.free_rem = rem;
        }
        let end = self.free_at();
        self.counters.packets_sent += 1;
        self.counters.bytes_sent += u64::from(w.bytes);
        self.counters.busy_ns += end.since(start).0;
        if let Some(pipe) = self.watched {
            let frame = packets.bytes_of(w.packet);
            packets.seen.push(Seen { pipe, at: start, frame });
        }
        self.sending = Sending { end, packets: [None; 2], last_arrival: self.last_arrival };
        if self.wire.loses(&self.link) {
            self.counters.dropped_loss += 1;
            return packets.discard(w.packet);
        }
        self.propagate(end, w.packet, packets, out);
    }

    fn propagate(&mut self, end: VirtNs, packet: PacketIx, packets: &mut Packets, out: &mut Vec<Departure>) {
        if self.wire.corrupt.happens(&mut self.wire.corrupt_rng) {
            self.counters.corrupted += 1;
            mark::corrupt(packets.bytes_mut(packet), &mut self.wire.corrupt_rng);
        }
        let mut arrives = end.plus(self.wire.delay(&self.link));
        if !self.link.jitter.is_some_and(|j| j.reorder) {
            arrives = arrives.max(self.last_arrival);
        }
        self.last_arrival = self.last_arrival.max(arrives);
        out.push(Departure { packet, arrives });
        self.sending.packets[0] = Some(packet);
        if self.wire.duplicate.happens(&mut self.wire.duplicate_rng) {
            self.counters.duplicated += 1;
            let second = packets.copy(packet);
            out.push(Departure { packet: second, arrives });
            self.sending.packets[1] = Some(second);
        }
    }

    /// When the transmitter is free, rounded up.
    fn free_at(&self) -> VirtNs {
        VirtNs(self.free_ns.saturating_add(u64::from(self.free_rem > 0)))
    }

    /// New parameters from `now` on. The packet that is being sent goes on as it began and those on the wire arrive as
    /// they would have; what waits stays in its order and is sent with the new parameters, even where the queue's new
    /// limit is smaller: that refuses newcomers only.
    pub(crate) fn set(&mut self, now: VirtNs, link: &Link, packets: &mut Packets, out: &mut Vec<Departure>) {
        self.serve(now, packets, out);
        self.wire.set(&self.link, link);
        if self.link.discipline != link.discipline {
            let waiting = self.queue.drain();
            self.queue = Queue::new(&link.discipline, self.mtu_bytes, mix(!self.seed));
            for w in waiting {
                let flow = if self.queue.sorts_flows() { packets.flow(w.packet) } else { 0 };
                self.queue.push(w, flow);
            }
        }
        // A remainder counts parts of the old bandwidth.
        (self.free_ns, self.free_rem) = (self.free_at().0, 0);
        self.link = *link;
        if link.bandwidth_bps.is_none() {
            for w in self.queue.drain() {
                self.transmit(w, packets, out);
            }
        }
    }

    /// The pipe breaks: what waits is gone, and so is the packet that is being sent. What was sent in full arrives.
    pub(crate) fn cut(&mut self, now: VirtNs, packets: &mut Packets, out: &mut Vec<Departure>) {
        if !self.up {
            return;
        }
        self.serve(now, packets, out);
        self.up = false;
        for w in self.queue.drain() {
            self.counters.dropped_down += 1;
            packets.discard(w.packet);
        }
        if self.sending.end > now {
            for packet in self.sending.packets.into_iter().flatten() {
                packets.get(packet).broken = true;
            }
            // One that is lost anyway is counted there.
            self.counters.dropped_cut += u64::from(self.sending.packets[0].is_some());
            self.counters.busy_ns -= self.sending.end.since(now).0;
            self.last_arrival = self.sending.last_arrival;
            self.sending = Sending::default();
        }
        (self.free_ns, self.free_rem) = (now.0, 0);
    }

    /// The pipe works again.
    pub(crate) fn heal(&mut self) {
        self.up = true;
    }
}
