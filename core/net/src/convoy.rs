//! The pieces of a large frame in one step: through a pipe, or to their node.
//!
//! What comes of it is what comes of one at a time: the same instants, the same order at each place, the same counters.
//! A place need not wait for what happens elsewhere meanwhile, since whatever enters a pipe now comes out of it a delay
//! later. Where it might not be the same, pieces go one at a time.

use diecast_core_vtime::{NS_PER_S, VirtNs, VirtSpan};

use crate::agenda::Event;
use crate::large::{Piece, Pieces};
use crate::link::Discipline;
use crate::network::{Arrived, Came, Network, What, later};
use crate::packets::{Dest, Frame, PacketIx};
use crate::pipe::{Departure, Pipe, PipeCounters, Sending};
use crate::spec::{NodeIx, PipeIx, VertexIx};
use crate::train::Passing;

/// Nothing is sent this late that could not be one at a time: a packet takes at most 2^50 ns.
const NEAR_THE_END: u64 = u64::MAX / 2;

/// A place to which more leads is not looked at for each packet.
const LOOKED_AT_MAX: usize = 64;

/// Kept for its room, and to try once.
#[derive(Debug, Default)]
pub(crate) struct Convoy {
    pieces: Vec<PacketIx>,
    passing: Vec<Passing>,
    starts: Vec<VirtNs>,
    arrivals: Vec<VirtNs>,
    /// Pieces of this large frame go one at a time from this vertex on.
    apart: Option<(u32, VertexIx)>,
}

/// What has become of a packet that reached a vertex.
pub(crate) enum Step {
    /// Nothing yet: this one goes on alone.
    Alone(PacketIx),
    /// It and those behind it have been sent on, or wait.
    Sent,
    /// It and those behind it are at their node.
    Arrived(Arrived),
}

/// Until when a place is sure to see nothing but what was looked at.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// Nothing happens anywhere before this instant but what comes of it.
    anywhere: VirtNs,
    /// Nothing else reaches the vertex before this instant, and the network does not change.
    here: VirtNs,
    /// What is to be seen.
    until: VirtNs,
    /// How long the first of a run waits for others at its node.
    patience: VirtSpan,
}

impl Bound {
    /// How many of those that are due, the first included, reach their node before anything else does.
    fn reach(&self, count: usize, at: impl Fn(usize) -> VirtNs) -> usize {
        (1..count).find(|i| at(*i) > self.until || at(*i) >= self.sure()).unwrap_or(count)
    }

    fn sure(&self) -> VirtNs {
        self.anywhere.max(self.here)
    }

    /// Until when the first waits, if others come soon and before anything else does.
    fn waits(&self, count: usize, at: impl Fn(usize) -> VirtNs) -> Option<VirtNs> {
        let limit = at(0).plus(self.patience);
        let last = (0..count).rev().map(at).find(|at| *at <= limit)?;
        (last > self.until && last < self.sure()).then_some(last)
    }
}

impl Network {
    /// A packet reaches a vertex.
    pub(crate) fn together(&mut self, event: Event, packet: PacketIx, merges: impl Fn(NodeIx, bool) -> bool) -> Step {
        let p = self.packets.peek(packet);
        let Dest::One(to) = p.dest else { return Step::Alone(packet) };
        let (vertex, broken) = (p.vertex, p.broken);
        match p.frame {
            Frame::Whole(_) => Step::Alone(packet),
            Frame::Train { .. } => self.train(event, packet, (vertex, to), merges),
            Frame::Piece(_) if broken => Step::Alone(packet),
            Frame::Piece(piece) => self.row(event, packet, piece, (vertex, to), merges),
        }
    }

    /// A train reaches a vertex: as much of it as can goes on, what is left comes when its first one is due.
    fn train(
        &mut self,
        event: Event,
        train: PacketIx,
        (vertex, to): (VertexIx, NodeIx),
        merges: impl Fn(NodeIx, bool) -> bool,
    ) -> Step {
        let mut convoy = std::mem::take(&mut self.convoy);
        // Of a broken one only the last packet is.
        let (all, broken) = (self.packets.count(train), self.packets.peek(train).broken);
        let whole = all - usize::from(broken);
        let pipe = self.routes.next(vertex.at(), to);
        let may = match pipe {
            Some(pipe) => self.pipes[pipe.at()].only_sends(whole),
            None => self.is_at(vertex, to) && whole > 1 && merges(to, false),
        };
        let bound = (may && whole > 1).then(|| self.bound(event.due, vertex, 0));
        let coming = self.packets.coming(train).expect("the caller has seen a train");
        if let (Some(bound), None) = (bound, pipe)
            && let Some(due) = bound.waits(whole, |i| coming.get(i).at)
        {
            self.agenda.put_back(Event { due, ..event }, due);
            self.convoy = convoy;
            return Step::Sent;
        }
        let goes = match (bound, pipe) {
            (None, _) => 1,
            (Some(bound), None) => match bound.reach(whole, |i| coming.get(i).at) {
                2.. if !merges(to, true) => 1,
                goes => goes,
            },
            (Some(bound), Some(pipe)) => self.pipes[pipe.at()].convey(whole, |i| coming.get(i), bound, &mut convoy),
        };
        let step = if goes < 2 {
            let (first, rest) = self.packets.uncouple(train, 1);
            self.put_back(event, train, 1, rest);
            Step::Alone(first)
        } else if let Some(pipe) = pipe {
            self.conveyed(vertex, convoy.starts[goes - 1]);
            let sent = if goes == all {
                train
            } else {
                let (first, rest) = self.packets.uncouple(train, goes);
                self.put_back(event, train, goes, rest);
                first
            };
            self.depart_as_one(pipe, sent, &mut convoy.arrivals);
            Step::Sent
        } else {
            let (bytes, first, last) = (coming.bytes_of(goes), coming.get(0).at, coming.get(goes - 1).at);
            self.conveyed(vertex, last);
            let (pieces, rest) = self.packets.arrive(train, goes);
            if let Some(rest) = rest {
                self.put_back(event, train, goes, rest);
            }
            Step::Arrived(self.deliver_run(to, pieces, bytes, first))
        };
        self.convoy = convoy;
        step
    }

    /// A piece reaches a vertex: those that come right behind it may go on as one.
    fn row(
        &mut self,
        event: Event,
        first: PacketIx,
        piece: Piece,
        (vertex, to): (VertexIx, NodeIx),
        merges: impl Fn(NodeIx, bool) -> bool,
    ) -> Step {
        let pipe = self.routes.next(vertex.at(), to);
        let may = match pipe {
            Some(pipe) => self.pipes[pipe.at()].only_sends(2),
            None => self.is_at(vertex, to) && merges(to, false),
        };
        if !may || piece.ix > 0 && self.convoy.apart == Some((piece.large, vertex)) {
            return Step::Alone(first);
        }
        let mut convoy = std::mem::take(&mut self.convoy);
        self.gather(&mut convoy, event.due, first, piece, (vertex, to));
        let count = convoy.passing.len();
        let mut goes = 1;
        if count > 1 {
            let bound = self.bound(event.due, vertex, count - 1);
            let passing = std::mem::take(&mut convoy.passing);
            goes = match pipe {
                None if merges(to, true) => bound.reach(count, |i| passing[i].at),
                None => 1,
                Some(pipe) => self.pipes[pipe.at()].convey(count, |i| passing[i], bound, &mut convoy),
            };
            convoy.passing = passing;
        }
        let step = if goes < 2 {
            if count > 1 {
                convoy.apart = Some((piece.large, vertex));
            }
            Step::Alone(first)
        } else {
            self.agenda.skip(goes - 1);
            let train = self.packets.couple(&convoy.pieces[..goes]);
            match pipe {
                Some(pipe) => {
                    self.conveyed(vertex, convoy.starts[goes - 1]);
                    self.depart_as_one(pipe, train, &mut convoy.arrivals);
                    Step::Sent
                }
                None => {
                    self.conveyed(vertex, convoy.passing[goes - 1].at);
                    let bytes = convoy.passing[..goes].iter().map(|p| u64::from(p.bytes)).sum();
                    let (pieces, _) = self.packets.arrive(train, goes);
                    Step::Arrived(self.deliver_run(to, pieces, bytes, event.due))
                }
            }
        };
        self.convoy = convoy;
        step
    }

    /// Pieces on the same way that are due and follow each other, the first included.
    fn gather(&self, convoy: &mut Convoy, due: VirtNs, first: PacketIx, piece: Piece, way: (VertexIx, NodeIx)) {
        convoy.pieces.clear();
        convoy.passing.clear();
        convoy.pieces.push(first);
        convoy.passing.push(Passing { at: due, bytes: piece.bytes });
        for event in self.agenda.row() {
            let What::Reach(ix) = event.what else { return };
            let p = self.packets.peek(ix);
            match (&p.frame, &p.dest) {
                (Frame::Piece(next), Dest::One(to))
                    if next.large == piece.large
                        && usize::from(next.ix) == usize::from(piece.ix) + convoy.pieces.len()
                        && (p.vertex, *to) == way
                        && !p.broken
                        && event.due <= self.until =>
                {
                    convoy.pieces.push(ix);
                    convoy.passing.push(Passing { at: event.due, bytes: next.bytes });
                }
                _ => return,
            }
        }
    }

    /// What a vertex is sure of when something reaches it at `due`, with so many behind it in its lane.
    fn bound(&self, due: VirtNs, vertex: VertexIx, behind: usize) -> Bound {
        let beside = self.agenda.beside(behind);
        let here = beside.next.min(self.others_reach(vertex, beside.lane, due.min(beside.elsewhere)));
        Bound { anywhere: beside.next.min(beside.elsewhere), here, until: self.until, patience: self.patience }
    }

    /// Nothing but what is in a lane reaches the vertex before this instant, and the network does not change, where
    /// nothing happens before `from`.
    fn others_reach(&self, vertex: VertexIx, lane: Option<usize>, from: VirtNs) -> VirtNs {
        let into = &self.into[vertex.at()];
        // What enters a pipe from now on.
        let mut reach = from.plus(into.least_but(lane));
        if let Some(pipe) = lane.and_then(|lane| self.pipes.get(lane)) {
            reach = reach.min(pipe.next_arrival(from));
        }
        // What is on its way.
        reach = reach.min(self.agenda.first_loose());
        for other in &into.lanes {
            if Some(*other as usize) != lane {
                reach = reach.min(self.agenda.head(*other as usize));
            }
        }
        reach
    }

    /// What happens next. At a place that is sure of it packets go on although others, elsewhere, are due before them.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        if let Some((lane, from)) = self.agenda.waits(self.until).filter(|_| !self.strict) {
            let vertex = match self.pipes.get(lane) {
                // Nodes get what they get in order.
                Some(_) => Some(self.spec.pipes[lane].to).filter(|to| self.node_of_vertex[to.at()].is_none()),
                None => Some(self.nodes[lane - self.pipes.len()].vertex),
            };
            let vertex = vertex.filter(|v| self.into[v.at()].lanes.len() <= LOOKED_AT_MAX);
            let sure = vertex.map_or(VirtNs(0), |vertex| self.others_reach(vertex, Some(lane), from));
            self.agenda.need_not_wait(sure);
        }
        let event = self.agenda.pop(self.until)?;
        match event.what {
            What::Reach(packet) if self.agenda.is_ahead(&event) => {
                let vertex = self.packets.peek(packet).vertex;
                self.conveyed(vertex, event.due);
            }
            _ => self.processed = event.due,
        }
        Some(event)
    }

    fn is_at(&self, vertex: VertexIx, to: NodeIx) -> bool {
        self.nodes[to.at()].vertex == vertex
    }

    /// What a vertex does until then is done: what comes from outside comes after it.
    fn conveyed(&mut self, vertex: VertexIx, until: VirtNs) {
        let place = &mut self.into[vertex.at()];
        place.done = place.done.max(until);
        self.done = self.done.max(until);
    }

    fn depart_as_one(&mut self, pipe: PipeIx, train: PacketIx, arrivals: &mut Vec<VirtNs>) {
        let departure = Departure { packet: train, arrives: arrivals[0] };
        self.packets.retime(train, arrivals);
        self.pipes[pipe.at()].sending.packets = [Some(train), None];
        let mut out = std::mem::take(&mut self.departures);
        out.push(departure);
        self.depart(pipe, &mut out);
        self.departures = out;
    }

    fn put_back(&mut self, event: Event, rest: PacketIx, gone: usize, due: VirtNs) {
        let what = What::Reach(rest);
        let least = self.least(what);
        let rest = Event { due, rank: later(event.rank, gone), what };
        self.agenda.put_back(rest, due.plus(least));
    }

    fn deliver_run(&mut self, to: NodeIx, pieces: Pieces, bytes: u64, due: VirtNs) -> Arrived {
        let c = &mut self.nodes[to.at()].counters;
        c.packets_received += u64::from(pieces.count);
        c.bytes_received += bytes;
        Arrived { to, came: Came::Run(pieces), due }
    }
}

/// What a pipe is after some packets.
#[derive(Clone, Copy)]
struct After {
    packets: usize,
    bytes: u64,
    busy_ns: u64,
    free: (u64, u64),
    last_arrival: VirtNs,
    before: VirtNs,
    end: VirtNs,
    queue_max: (u32, u64),
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

    /// What enters it at `now` or later arrives after all that is before this instant.
    fn next_arrival(&self, now: VirtNs) -> VirtNs {
        let by_delay = now.plus(VirtSpan(self.link.least_delay_ns()));
        if self.link.jitter.is_some_and(|j| j.reorder) {
            return by_delay;
        }
        by_delay.max(self.last_arrival.plus(VirtSpan(1)))
    }

    /// How long frames of so many bytes take, in nanoseconds and parts of one; bounds as in `transmit`.
    fn sending_time(&self, bytes: u32) -> (u64, u64) {
        let bits = self.link.framing.counted(bytes as usize) * 8;
        self.link.bandwidth_bps.map_or((0, 0), |bps| (bits * NS_PER_S / bps, bits * NS_PER_S % bps))
    }

    /// Sends the first of some packets that reach it, as many as it can without a look at anything else; how many. When
    /// each began and arrives is in `convoy`. Less than two are none: nothing has happened.
    fn convey(&mut self, count: usize, passing: impl Fn(usize) -> Passing, bound: Bound, convoy: &mut Convoy) -> usize {
        // Two remainders of such a bandwidth can be added.
        let bps = self.link.bandwidth_bps.unwrap_or(1);
        if count < 2 || bps > u64::MAX / 2 || !self.only_sends(count) {
            return 0;
        }
        let (starts, arrivals) = (&mut convoy.starts, &mut convoy.arrivals);
        starts.clear();
        arrivals.clear();
        let PipeCounters { queue_packets_max, queue_bytes_max, .. } = self.counters;
        let mut now = After {
            packets: 0,
            bytes: 0,
            busy_ns: 0,
            free: (self.free_ns, self.free_rem),
            last_arrival: self.last_arrival,
            before: self.last_arrival,
            end: VirtNs(0),
            queue_max: (queue_packets_max, queue_bytes_max),
        };
        let mut good = now;
        let (mut bytes, mut takes) = (0, (0, 0));
        // Those that wait: from this one on, and their bytes.
        let (mut waits, mut waiting_bytes) = (0, 0);
        let mut next = passing(0);
        for i in 0..count {
            let p = next;
            if p.bytes != bytes {
                (bytes, takes) = (p.bytes, self.sending_time(p.bytes));
            }
            while waits < i && starts[waits] <= p.at {
                waiting_bytes -= u64::from(passing(waits).bytes);
                waits += 1;
            }
            if now.free.0 + u64::from(now.free.1 > 0) <= p.at.0 || self.link.bandwidth_bps.is_none() {
                now.free = (p.at.0, 0);
                (waits, waiting_bytes) = (i + 1, 0);
            }
            let start = VirtNs(now.free.0 + u64::from(now.free.1 > 0));
            let first_arrival = arrivals.first().copied().unwrap_or(VirtNs::NEVER);
            let sure = start < bound.here || start < bound.anywhere && start < first_arrival;
            if start > bound.until || !sure && i > 0 || start.0 >= NEAR_THE_END {
                break;
            }
            if start > p.at {
                waiting_bytes += u64::from(p.bytes);
                let (packets, bytes) = now.queue_max;
                now.queue_max = (packets.max((i + 1 - waits) as u32), bytes.max(waiting_bytes));
            }
            let rem = now.free.1 + takes.1;
            now.free = if rem >= bps { (now.free.0 + takes.0 + 1, rem - bps) } else { (now.free.0 + takes.0, rem) };
            now.end = VirtNs(now.free.0 + u64::from(now.free.1 > 0));
            now.packets += 1;
            now.bytes += u64::from(p.bytes);
            now.busy_ns += now.end.since(start).0;
            now.before = now.last_arrival;
            now.last_arrival = now.last_arrival.max(now.end.plus(VirtSpan(self.link.delay_ns)));
            starts.push(start);
            arrivals.push(now.last_arrival);
            let done = i + 1 == count || {
                next = passing(i + 1);
                next.at >= start
            };
            if done {
                good = now;
            }
        }
        if good.packets < 2 {
            return 0;
        }
        arrivals.truncate(good.packets);
        (self.free_ns, self.free_rem, self.last_arrival) = (good.free.0, good.free.1, good.last_arrival);
        self.sending = Sending { end: good.end, packets: [None; 2], last_arrival: good.before };
        let c = &mut self.counters;
        c.packets_in += good.packets as u64;
        c.bytes_in += good.bytes;
        c.packets_sent += good.packets as u64;
        c.bytes_sent += good.bytes;
        c.busy_ns += good.busy_ns;
        (c.queue_packets_max, c.queue_bytes_max) = good.queue_max;
        good.packets
    }
}
