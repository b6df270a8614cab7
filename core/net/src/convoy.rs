//! The pieces of a large frame through a pipe in one step, where nothing else happens meanwhile.
//!
//! What comes of it is what comes of one at a time: the same instants, the same order, the same counters. Where it might
//! not be so, they go one at a time.

use diecast_core_vtime::{NS_PER_S, VirtNs, VirtSpan};

use crate::link::Discipline;
use crate::network::{Network, What};
use crate::packets::{Dest, Frame, PacketIx};
use crate::pipe::{Departure, Pipe, Sending};
use crate::spec::VertexIx;

/// Nothing is sent this late that could not be one at a time: a packet takes at most 2^50 ns.
const NEAR_THE_END: u64 = u64::MAX / 2;

/// A packet that reaches a pipe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passing {
    at: VirtNs,
    packet: PacketIx,
    bytes: u32,
}

/// Kept for its room, and to try once.
#[derive(Debug, Default)]
pub(crate) struct Convoy {
    passing: Vec<Passing>,
    starts: Vec<VirtNs>,
    /// Pieces of this large frame go one at a time from this vertex on.
    apart: Option<(u32, VertexIx)>,
}

impl Network {
    /// A packet reaches a vertex. True when it and those behind it have been sent on; else nothing has happened.
    pub(crate) fn together(&mut self, due: VirtNs, packet: PacketIx) -> bool {
        let first = self.packets.peek(packet);
        let (Frame::Piece(piece), Dest::One(to), false) = (&first.frame, &first.dest, first.broken) else {
            return false;
        };
        let (large, to, vertex) = (piece.large, *to, first.vertex);
        if piece.ix > 0 && self.convoy.apart == Some((large, vertex)) {
            return false;
        }
        let Some(pipe) = self.routes.next(vertex.at(), to) else { return false };
        let mut convoy = std::mem::take(&mut self.convoy);
        convoy.passing.clear();
        convoy.passing.push(Passing { at: due, packet, bytes: piece.bytes });
        let (row, elsewhere) = self.agenda.row();
        let mut before = elsewhere.0;
        for event in row {
            let member = match event.what {
                What::Reach(ix) if event.due <= self.until && event.key() < elsewhere => Some(ix),
                _ => None,
            };
            let member = member.and_then(|packet| {
                let p = self.packets.peek(packet);
                match (&p.frame, &p.dest) {
                    (Frame::Piece(piece), Dest::One(other))
                        if piece.large == large && *other == to && p.vertex == vertex && !p.broken =>
                    {
                        Some(Passing { at: event.due, packet, bytes: piece.bytes })
                    }
                    _ => None,
                }
            });
            let Some(member) = member else {
                before = before.min(event.due);
                break;
            };
            convoy.passing.push(member);
        }
        let mut out = std::mem::take(&mut self.departures);
        let p = &mut self.pipes[pipe.at()];
        let last = (convoy.passing.len() > 1).then(|| p.convey(&mut convoy, before, self.until, &mut out)).flatten();
        match last {
            Some(last) => {
                self.processed = last;
                self.agenda.skip(convoy.passing.len() - 1);
                self.depart(pipe, &mut out);
            }
            None => convoy.apart = Some((large, vertex)),
        }
        self.departures = out;
        self.convoy = convoy;
        last.is_some()
    }
}

impl Pipe {
    /// Whether all it does now is to send one after the other, whatever comes.
    fn only_sends(&self, packets: usize) -> bool {
        let l = &self.link;
        let clean = l.loss <= 0.0 && l.loss_every.is_none() && l.loss_burst.is_none() && l.corrupt <= 0.0;
        let orderly = l.jitter.is_none() && l.duplicate <= 0.0 && matches!(l.discipline, Discipline::DropTail);
        let roomy = l.queue_bytes.is_none() && l.queue_delay_ns.is_none() && packets <= l.queue_packets as usize;
        self.is_up() && self.watched.is_none() && self.queue.packets() == 0 && clean && orderly && roomy
    }

    /// Sends packets that reach it; when the last one's transmission began. None, and nothing has happened, unless all
    /// begin by `until`, before `before` and before the first has arrived at the other end.
    fn convey(
        &mut self,
        convoy: &mut Convoy,
        before: VirtNs,
        until: VirtNs,
        out: &mut Vec<Departure>,
    ) -> Option<VirtNs> {
        let bps = self.link.bandwidth_bps.filter(|_| self.only_sends(convoy.passing.len()))?;
        let (mut free_ns, mut free_rem) = (self.free_ns, self.free_rem);
        let (mut counters, mut sending, mut last_arrival) = (self.counters, self.sending, self.last_arrival);
        // Those that wait: from this one on, and their bytes.
        let (mut waits, mut waiting_bytes) = (0, 0);
        convoy.starts.clear();
        for (i, p) in convoy.passing.iter().enumerate() {
            while waits < i && convoy.starts[waits] <= p.at {
                waiting_bytes -= u64::from(convoy.passing[waits].bytes);
                waits += 1;
            }
            if free_ns + u64::from(free_rem > 0) <= p.at.0 {
                (free_ns, free_rem) = (p.at.0, 0);
                waits = i + 1;
            }
            let start = VirtNs(free_ns + u64::from(free_rem > 0));
            if start > p.at {
                waiting_bytes += u64::from(p.bytes);
                counters.queue_packets_max = counters.queue_packets_max.max((i + 1 - waits) as u32);
                counters.queue_bytes_max = counters.queue_bytes_max.max(waiting_bytes);
            }
            // Bounds as in `transmit`.
            let total = (self.link.framing.counted(p.bytes as usize) * 8 * NS_PER_S).checked_add(free_rem);
            // One that needs more bits is for `transmit`, and out of any range.
            let Some(total) = total.filter(|_| free_ns < NEAR_THE_END) else {
                out.clear();
                return None;
            };
            free_ns += total / bps;
            free_rem = total % bps;
            let end = VirtNs(free_ns + u64::from(free_rem > 0));
            counters.packets_in += 1;
            counters.bytes_in += u64::from(p.bytes);
            counters.packets_sent += 1;
            counters.bytes_sent += u64::from(p.bytes);
            counters.busy_ns += end.since(start).0;
            sending = Sending { end, packets: [Some(p.packet), None], last_arrival };
            last_arrival = last_arrival.max(end.plus(VirtSpan(self.link.delay_ns)));
            convoy.starts.push(start);
            out.push(Departure { packet: p.packet, arrives: last_arrival });
        }
        let last = *convoy.starts.last()?;
        if last > until || last >= before || last >= out[0].arrives {
            out.clear();
            return None;
        }
        (self.free_ns, self.free_rem, self.last_arrival) = (free_ns, free_rem, last_arrival);
        (self.counters, self.sending) = (counters, sending);
        Some(last)
    }
}
