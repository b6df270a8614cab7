//! The model: frames in, due frames out, everything between in virtual time.
//!
//! One agenda holds what happens next: a packet reaches a vertex, a pipe may send again, the network changes. Events of
//! one instant go in the order of their pipes, what comes from outside last and in the order of the calls: the outcome is
//! a function of what came in and depends neither on when the caller looks nor on what was found out ahead.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::{BTreeMap, BTreeSet};

use diecast_core_vtime::{VirtNs, VirtSpan};
use serde::Serialize;

use crate::agenda::{Agenda, Event};
use crate::change::Change;
use crate::convoy::{Convoy, Step};
use crate::large::Pieces;
use crate::neighbour::{self, Kind};
use crate::packets::{Dest, Frame, Packet, PacketIx, Packets, Seen};
use crate::pipe::{Departure, Pipe, PipeCounters};
use crate::record::Recorded;
use crate::rng::SplitMix64;
use crate::route::Routes;
use crate::spec::{
    ETHERNET_HEADER_BYTES, MTU_MAX, MTU_MIN, Mac, NetError, NetSpec, NodeIx, PipeIx, PipeSpec, VertexIx, VertexKind,
};

/// Flows with a release in the future are forgotten when the table holds at least this many and they have passed.
const FLOWS_PRUNE_MIN: usize = 256;
/// Rank of events at one instant: those of a pipe have its number in the upper half and count in the lower, those of
/// pipes that may send again this bit and the pipe's number.
const SERVES: u64 = 1 << 62;
/// And those that come from outside this bit, and are numbered.
const FROM_OUTSIDE: u64 = 1 << 63;

/// The rank of a packet that is so many behind another of its pipe or node.
pub(crate) fn later(rank: u64, behind: usize) -> u64 {
    if rank & FROM_OUTSIDE != 0 {
        return rank + behind as u64;
    }
    // Two of one pipe at one instant are never 2^31 apart.
    rank >> 32 << 32 | u64::from((rank as u32).wrapping_add(behind as u32))
}

/// A frame that has reached its node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The receiver.
    pub to: NodeIx,
    /// The frame; give its buffer back with [`Network::recycle`].
    pub frame: Vec<u8>,
    /// When it is due. The difference to the moment of delivery is lateness.
    pub due: VirtNs,
}

/// What a node has sent and received, and what became of frames that never reached a pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct NodeCounters {
    /// Frames that the node sent, dropped ones included.
    pub packets_sent: u64,
    /// Their bytes, Ethernet header included.
    pub bytes_sent: u64,
    /// Frames delivered to the node, answers to ARP and neighbour discovery included.
    pub packets_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// ARP requests and neighbour solicitations answered.
    pub neighbours_answered: u64,
    /// Broadcast and multicast frames that were spread over the segment.
    pub group_frames: u64,
    /// Group membership, router discovery and the like, which nobody listens to.
    pub ignored_control: u64,
    /// Asked for an address that no node has.
    pub dropped_unknown_neighbour: u64,
    /// Sent to a MAC that no node has, or to its own.
    pub dropped_unknown_destination: u64,
    /// Sent with a source MAC that is not the node's.
    pub dropped_spoofed: u64,
    /// Header cut off or lengths that contradict each other.
    pub dropped_malformed: u64,
    /// Longer than MTU plus Ethernet header.
    pub dropped_oversize: u64,
    /// Sent to a node on the other side of a partition; a group frame counts once for each such node.
    pub dropped_partition: u64,
    /// Came to a place from which no path leads on, after new routes were searched.
    pub dropped_no_route: u64,
}

/// A packet that has reached its node, or several.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub to: NodeIx,
    pub came: Came,
    pub due: VirtNs,
}

#[derive(Debug)]
pub(crate) enum Came {
    One(Frame),
    Run(Pieces),
}

/// What happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// A packet reaches its next vertex.
    Reach(PacketIx),
    /// A pipe's transmitter is free and packets wait.
    Serve(PipeIx),
    /// The network changes.
    Change(u32),
}

/// A node as the model needs it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) vertex: VertexIx,
    pub(crate) segment: u32,
    pub(crate) mac: Mac,
    pub(crate) counters: NodeCounters,
}

/// What comes to a vertex, and how.
#[derive(Clone, Debug, Default)]
pub(crate) struct Into {
    /// Pipes that lead here, and the lane of the node that is here.
    pub lanes: Vec<u32>,
    /// The least delay of a pipe that leads here, which one that is, and the least of the others.
    least: (VirtSpan, Option<u32>, VirtSpan),
    /// What happens here is done until then.
    pub done: VirtNs,
}

impl Into {
    /// What enters any other pipe that leads here needs at least so long.
    pub(crate) fn least_but(&self, lane: Option<usize>) -> VirtSpan {
        let (least, of, second) = self.least;
        if of.map(|of| of as usize) == lane { second } else { least }
    }

    /// Finds the delays anew.
    pub(crate) fn measure(&mut self, pipes: &[PipeSpec]) {
        self.least = (VirtSpan(u64::MAX), None, VirtSpan(u64::MAX));
        for lane in &self.lanes {
            // The lane of a node is no pipe.
            let Some(pipe) = pipes.get(*lane as usize) else { continue };
            let delay = VirtSpan(pipe.link.least_delay_ns());
            if delay < self.least.0 {
                self.least = (delay, Some(*lane), self.least.0);
            } else {
                self.least.2 = self.least.2.min(delay);
            }
        }
    }
}

/// The network with its state. See the crate's text for its rules.
#[derive(Debug)]
pub struct Network {
    pub(crate) spec: NetSpec,
    pub(crate) nodes: Vec<Node>,
    pub(crate) node_of_vertex: Vec<Option<NodeIx>>,
    pub(crate) by_mac: BTreeMap<Mac, NodeIx>,
    by_ipv4: BTreeMap<Ipv4Addr, NodeIx>,
    by_ipv6: BTreeMap<Ipv6Addr, NodeIx>,
    pub(crate) pipes: Vec<Pipe>,
    pub(crate) routes: Routes,
    /// Packets may be on ways that the routes no longer know.
    pub(crate) rerouted: bool,
    pub(crate) reroutes_refused: u64,
    pub(crate) frame_bytes_max: usize,
    pub(crate) packets: Packets,
    /// By vertex.
    pub(crate) into: Vec<Into>,
    /// A lane for each pipe's arrivals, then one for what each node sends.
    pub(crate) agenda: Agenda,
    /// Events from outside so far.
    outside: u64,
    /// Nothing happens before this instant any more.
    pub(crate) processed: VirtNs,
    /// Something was found out ahead until then: no change takes place before it.
    pub(crate) done: VirtNs,
    /// What happens now is to be seen until then.
    pub(crate) until: VirtNs,
    /// How long the first of a run waits for others at its node.
    pub(crate) patience: VirtSpan,
    /// Everything happens in the order of its instants.
    pub(crate) strict: bool,
    /// Last release of flows that paid a debt, in the future when it was set.
    releases: BTreeMap<(NodeIx, u64), VirtNs>,
    prune_at: usize,
    pub(crate) changes: BTreeMap<u32, Change>,
    pub(crate) next_change: u32,
    /// The side of each node while the network is parted; empty when it is whole.
    pub(crate) side: Vec<u32>,
    pub(crate) record: Option<Vec<Recorded>>,
    /// Kept for its room.
    pub(crate) departures: Vec<Departure>,
    pub(crate) convoy: Convoy,
}

impl Network {
    /// Checks the spec and finds all paths.
    pub fn new(spec: &NetSpec) -> Result<Network, NetError> {
        check_indices(spec)?;
        check_pipes(spec)?;
        let routes = Routes::new(spec, |_| true)?;
        if let Some(unreachable) = routes.unreachable(spec) {
            return Err(unreachable);
        }
        let frame_bytes_max = spec.mtu as usize + ETHERNET_HEADER_BYTES;
        let mut net = Network {
            spec: spec.clone(),
            nodes: Vec::new(),
            node_of_vertex: vec![None; spec.vertices.len()],
            by_mac: BTreeMap::new(),
            by_ipv4: BTreeMap::new(),
            by_ipv6: BTreeMap::new(),
            pipes: Vec::new(),
            routes,
            rerouted: false,
            reroutes_refused: 0,
            frame_bytes_max,
            packets: Packets::new(frame_bytes_max),
            into: vec![Into::default(); spec.vertices.len()],
            agenda: Agenda::new(spec.pipes.len() + spec.nodes.len()),
            outside: 0,
            processed: VirtNs(0),
            done: VirtNs(0),
            until: VirtNs(0),
            patience: VirtSpan(0),
            strict: false,
            releases: BTreeMap::new(),
            prune_at: FLOWS_PRUNE_MIN,
            changes: BTreeMap::new(),
            next_change: 0,
            side: Vec::new(),
            record: None,
            departures: Vec::new(),
            convoy: Convoy::default(),
        };
        let mut seeds = SplitMix64(spec.seed);
        net.pipes = spec.pipes.iter().map(|p| Pipe::new(&p.link, frame_bytes_max as u32, seeds.next())).collect();
        net.find_into();
        for ix in 0..spec.nodes.len() {
            net.add_node(spec, NodeIx(ix as u32))?;
        }
        Ok(net)
    }

    fn add_node(&mut self, spec: &NetSpec, ix: NodeIx) -> Result<(), NetError> {
        let node = &spec.nodes[ix.at()];
        if node.mac.is_group() {
            return Err(NetError::GroupMac(node.name.clone(), node.mac));
        }
        let same = |other: NodeIx, address: String| {
            NetError::SameAddress(spec.nodes[other.at()].name.clone(), node.name.clone(), address)
        };
        if let Some(other) = self.by_mac.insert(node.mac, ix) {
            return Err(same(other, node.mac.to_string()));
        }
        if let Some(other) = self.by_ipv4.insert(node.ipv4, ix) {
            return Err(same(other, node.ipv4.to_string()));
        }
        for address in [node.ipv6, node.mac.link_local()] {
            if let Some(other) = self.by_ipv6.insert(address, ix).filter(|o| *o != ix) {
                return Err(same(other, address.to_string()));
            }
        }
        if self.node_of_vertex[node.vertex.at()].replace(ix).is_some() {
            return Err(NetError::BadVertex(node.name.clone()));
        }
        self.nodes.push(Node {
            vertex: node.vertex,
            segment: node.segment,
            mac: node.mac,
            counters: NodeCounters::default(),
        });
        Ok(())
    }

    /// For how long any frame is on its way to another node at least, by the delays of links as they are: that of a link which
    /// joins two nodes, or that of a first and a last one.
    pub fn least_way(&self) -> VirtSpan {
        let node = |v: VertexIx| self.node_of_vertex[v.at()].is_some();
        let of = |from: bool, to: bool| {
            let pipes = self.spec.pipes.iter().zip(&self.pipes);
            let such = pipes.filter(|(spec, _)| node(spec.from) == from && node(spec.to) == to);
            such.map(|(_, pipe)| pipe.link().least_delay_ns()).min().unwrap_or(u64::MAX)
        };
        VirtSpan(of(true, true).min(of(true, false).saturating_add(of(false, true))))
    }

    /// A frame leaves a node's NIC at `now`.
    ///
    /// `debt` is CPU that its sender used for it and that is not charged yet: the frame enters the first pipe at
    /// `now + debt`, never before an earlier frame of the same flow. An instant before one that was already
    /// processed counts as that one.
    pub fn ingress(&mut self, now: VirtNs, from: NodeIx, mut frame: Vec<u8>, debt: VirtSpan) {
        let now = self.not_before(now, from);
        if let Some(record) = &mut self.record {
            record.push(Recorded::Frame { at: now, from, debt, frame: frame.clone() });
        }
        let node = &mut self.nodes[from.at()];
        let c = &mut node.counters;
        c.packets_sent += 1;
        c.bytes_sent += frame.len() as u64;
        let Some((dst, src)) = neighbour::addresses(&frame) else {
            c.dropped_malformed += 1;
            return self.recycle(frame);
        };
        if frame.len() > self.frame_bytes_max {
            c.dropped_oversize += 1;
            return self.recycle(frame);
        }
        if src != node.mac {
            c.dropped_spoofed += 1;
            return self.recycle(frame);
        }
        let segment = node.segment;
        let asked = match neighbour::kind(&frame) {
            Kind::Data => return self.forward(now, from, dst, frame, debt),
            Kind::AskV4(target) => heard(self.by_ipv4.get(&target), &self.nodes, segment).map(|n| {
                neighbour::answer_arp(&mut frame, target, self.nodes[n.at()].mac);
                *n
            }),
            Kind::AskV6(target) => heard(self.by_ipv6.get(&target), &self.nodes, segment).map(|n| {
                neighbour::answer_solicitation(&mut frame, target, self.nodes[n.at()].mac);
                *n
            }),
            Kind::Chatter => {
                c.ignored_control += 1;
                return self.recycle(frame);
            }
            Kind::Malformed => {
                c.dropped_malformed += 1;
                return self.recycle(frame);
            }
        };
        let node = &mut self.nodes[from.at()];
        match asked {
            // A node that asks for its own address wants to know whether somebody else has it: nobody has.
            Some(n) if n == from => node.counters.ignored_control += 1,
            Some(_) => {
                node.counters.neighbours_answered += 1;
                let vertex = node.vertex;
                return self.admit(now, vertex, from, Dest::One(from), Frame::Whole(frame));
            }
            None => node.counters.dropped_unknown_neighbour += 1,
        }
        self.recycle(frame);
    }

    /// A node's NIC sent so many bytes that can't be told to be a frame.
    pub fn malformed(&mut self, from: NodeIx, bytes: usize) {
        let c = &mut self.nodes[from.at()].counters;
        c.packets_sent += 1;
        c.bytes_sent += bytes as u64;
        c.dropped_malformed += 1;
    }

    fn forward(&mut self, now: VirtNs, from: NodeIx, dst: Mac, frame: Vec<u8>, debt: VirtSpan) {
        let dest = if dst.is_group() {
            self.nodes[from.at()].counters.group_frames += 1;
            let of_segment = |n: &NodeIx| *n != from && self.same_segment(from, *n);
            let others = (0..self.nodes.len() as u32).map(NodeIx).filter(of_segment);
            let (members, parted): (Vec<NodeIx>, Vec<NodeIx>) = others.partition(|n| self.same_side(from, *n));
            self.nodes[from.at()].counters.dropped_partition += parted.len() as u64;
            group(members)
        } else {
            match heard(self.by_mac.get(&dst), &self.nodes, self.nodes[from.at()].segment) {
                Some(to) if *to != from && self.same_side(from, *to) => Some(Dest::One(*to)),
                Some(to) if *to != from => {
                    self.nodes[from.at()].counters.dropped_partition += 1;
                    None
                }
                _ => {
                    self.nodes[from.at()].counters.dropped_unknown_destination += 1;
                    None
                }
            }
        };
        let Some(dest) = dest else { return self.recycle(frame) };
        let release = self.release(now, from, &frame, debt);
        let vertex = self.nodes[from.at()].vertex;
        let frame = Frame::Whole(self.packets.fitted(frame));
        self.admit(release, vertex, from, dest, frame);
    }

    fn same_segment(&self, a: NodeIx, b: NodeIx) -> bool {
        self.nodes[a.at()].segment == self.nodes[b.at()].segment
    }

    pub(crate) fn same_side(&self, a: NodeIx, b: NodeIx) -> bool {
        self.side.is_empty() || self.side[a.at()] == self.side[b.at()]
    }

    /// A packet begins its way.
    pub(crate) fn admit(&mut self, at: VirtNs, vertex: VertexIx, from: NodeIx, dest: Dest, frame: Frame) {
        let packet = self.packets.insert(Packet { frame, dest, from, vertex, broken: false });
        self.begin(at, from, packet);
    }

    pub(crate) fn begin(&mut self, at: VirtNs, from: NodeIx, packet: PacketIx) {
        let least = self.least(What::Reach(packet));
        let lane = self.pipes.len() + from.at();
        let count = self.packets.count(packet);
        self.push_from_outside(Some(lane), at, count, least, What::Reach(packet));
    }

    /// When something that a node does now takes place.
    pub(crate) fn not_before(&self, now: VirtNs, from: NodeIx) -> VirtNs {
        let vertex = self.nodes[from.at()].vertex;
        now.max(self.processed).max(self.into[vertex.at()].done)
    }

    /// When a frame may enter the first pipe.
    pub(crate) fn release(&mut self, now: VirtNs, from: NodeIx, frame: &[u8], debt: VirtSpan) -> VirtNs {
        if debt == VirtSpan(0) && self.releases.is_empty() {
            return now;
        }
        if self.releases.len() >= self.prune_at {
            self.releases.retain(|_, r| *r > now);
            // Twice what is left: a flood of flows costs a constant time each.
            self.prune_at = FLOWS_PRUNE_MIN.max(2 * self.releases.len());
        }
        let key = (from, neighbour::flow_key(frame));
        let earlier = self.releases.get(&key).copied().unwrap_or_default();
        let release = now.plus(debt).max(earlier);
        if release > now {
            self.releases.insert(key, release);
        } else {
            self.releases.remove(&key);
        }
        release
    }

    /// No delivery is due before this instant: the caller calls [`Network::pop_due`] then, not at every hop. It may
    /// find nothing due yet, when a packet has to wait in a queue or the network changes, and asks again.
    pub fn next_due(&mut self) -> Option<VirtNs> {
        self.agenda.earliest()
    }

    /// Moves packets on until one reaches its node, in the order of their instants; `None` when nothing more is
    /// due at `now`.
    pub fn pop_due(&mut self, now: VirtNs) -> Option<Delivery> {
        match self.arrived(now, |_, _| false)? {
            Arrived { to, came: Came::One(frame), due } => Some(self.give(to, frame, due)),
            Arrived { came: Came::Run(_), .. } => unreachable!("no node wants runs"),
        }
    }

    /// As [`Network::pop_due`]; nodes that `merges` names get what is due and belongs together as one; with
    /// `false` it is asked whether they will.
    pub(crate) fn arrived(&mut self, now: VirtNs, merges: impl Fn(NodeIx, bool) -> bool) -> Option<Arrived> {
        self.until = now;
        while let Some(event) = self.next_event() {
            match event.what {
                What::Reach(packet) => {
                    let arrived = match self.together(event, packet, &merges) {
                        Step::Alone(packet) => self.reach(event.due, packet),
                        Step::Sent => None,
                        Step::Arrived(arrived) => Some(arrived),
                    };
                    if arrived.is_some() {
                        return arrived;
                    }
                }
                What::Serve(pipe) => {
                    let p = &mut self.pipes[pipe.at()];
                    if p.wake == Some(event.due) {
                        p.wake = None;
                    }
                    self.on_pipe(pipe, |p, packets, out| p.serve(event.due, packets, out));
                }
                What::Change(ix) => self.carry_out(event.due, ix),
            }
        }
        None
    }

    fn reach(&mut self, at: VirtNs, ix: PacketIx) -> Option<Arrived> {
        let packet = self.packets.get(ix);
        if packet.broken {
            self.packets.discard(ix);
            return None;
        }
        let here = self.node_of_vertex[packet.vertex.at()];
        match &packet.dest {
            Dest::One(to) if here == Some(*to) => {
                let to = *to;
                let frame = self.packets.take(ix).frame;
                Some(self.deliver(to, frame, at))
            }
            Dest::One(to) => {
                match self.routes.next(packet.vertex.at(), *to) {
                    Some(pipe) => self.enter(at, pipe, ix),
                    None => {
                        self.nodes[packet.from.at()].counters.dropped_no_route += 1;
                        self.packets.discard(ix);
                    }
                }
                None
            }
            Dest::Group(_) => self.spread(at, here, ix),
        }
    }

    fn deliver(&mut self, to: NodeIx, frame: Frame, due: VirtNs) -> Arrived {
        let c = &mut self.nodes[to.at()].counters;
        c.packets_received += 1;
        c.bytes_received += frame.len() as u64;
        Arrived { to, came: Came::One(frame), due }
    }

    fn enter(&mut self, at: VirtNs, pipe: PipeIx, packet: PacketIx) {
        let flow = if self.pipes[pipe.at()].sorts_flows() { self.packets.flow(packet) } else { 0 };
        self.on_pipe(pipe, |p, packets, out| p.enter(at, packet, flow, packets, out));
    }

    /// Has a pipe do something, then puts on the agenda what follows from it.
    pub(crate) fn on_pipe(&mut self, pipe: PipeIx, act: impl FnOnce(&mut Pipe, &mut Packets, &mut Vec<Departure>)) {
        let mut out = std::mem::take(&mut self.departures);
        act(&mut self.pipes[pipe.at()], &mut self.packets, &mut out);
        self.depart(pipe, &mut out);
        // What would be the next event of all needs not go on the agenda.
        while let Some(at) = self.pipes[pipe.at()].next_serve()
            && at <= self.until
            && (at, SERVES | u64::from(pipe.0)) < self.agenda.first()
        {
            self.processed = at;
            self.pipes[pipe.at()].serve(at, &mut self.packets, &mut out);
            self.depart(pipe, &mut out);
        }
        self.departures = out;
        let p = &mut self.pipes[pipe.at()];
        if let Some(at) = p.next_serve()
            && p.wake.is_none_or(|w| at < w)
        {
            p.wake = Some(at);
            let least = self.least(What::Serve(pipe));
            self.push(None, at, SERVES | u64::from(pipe.0), least, What::Serve(pipe));
        }
    }

    /// Puts on the agenda what a pipe has sent.
    pub(crate) fn depart(&mut self, pipe: PipeIx, out: &mut Vec<Departure>) {
        for d in out.drain(..) {
            self.packets.get(d.packet).vertex = self.spec.pipes[pipe.at()].to;
            let least = self.least(What::Reach(d.packet));
            let count = self.packets.count(d.packet) as u32;
            let left = &mut self.pipes[pipe.at()].left;
            let rank = u64::from(pipe.0) << 32 | u64::from(std::mem::replace(left, left.wrapping_add(count)));
            self.push(Some(pipe.at()), d.arrives, rank, least, What::Reach(d.packet));
        }
    }

    /// A group frame at a vertex: one copy into each pipe that leads to members, one for the node that is here.
    fn spread(&mut self, at: VirtNs, here: Option<NodeIx>, ix: PacketIx) -> Option<Arrived> {
        let packet = self.packets.take(ix);
        let bytes = self.packets.whole(packet.frame);
        let Dest::Group(members) = packet.dest else { return None };
        let mut by_pipe: BTreeMap<PipeIx, Vec<NodeIx>> = BTreeMap::new();
        for &m in members.iter().filter(|m| Some(**m) != here) {
            match self.routes.next(packet.vertex.at(), m) {
                Some(pipe) => by_pipe.entry(pipe).or_default().push(m),
                None => self.nodes[packet.from.at()].counters.dropped_no_route += 1,
            }
        }
        for (pipe, members) in by_pipe {
            let Some(dest) = group(members) else { continue };
            let (from, vertex) = (packet.from, packet.vertex);
            let copy = Packet { frame: Frame::Whole(bytes.clone()), dest, from, vertex, broken: false };
            let copy = self.packets.insert(copy);
            self.enter(at, pipe, copy);
        }
        if let Some(to) = here.filter(|h| members.contains(h)) {
            return Some(self.deliver(to, Frame::Whole(bytes), at));
        }
        self.recycle(bytes);
        None
    }

    /// What has to pass at least between an event and a delivery that it leads to.
    pub(crate) fn least(&mut self, what: What) -> VirtSpan {
        match what {
            What::Reach(ix) => {
                let packet = self.packets.get(ix);
                match &packet.dest {
                    Dest::One(to) => self.routes.least(packet.vertex.at(), *to, packet.frame.len()),
                    Dest::Group(_) => VirtSpan(0),
                }
            }
            What::Serve(pipe) => {
                let p = &self.pipes[pipe.at()];
                let behind = if self.rerouted { VirtSpan(0) } else { self.routes.least_behind(pipe) };
                VirtSpan(p.least_sending().0.saturating_add(behind.0))
            }
            What::Change(_) => VirtSpan(0),
        }
    }

    /// So many things happen.
    pub(crate) fn push_from_outside(
        &mut self,
        lane: Option<usize>,
        due: VirtNs,
        count: usize,
        least: VirtSpan,
        what: What,
    ) {
        let rank = self.outside | FROM_OUTSIDE;
        self.outside += count as u64;
        self.push(lane, due, rank, least, what);
    }

    fn push(&mut self, lane: Option<usize>, due: VirtNs, rank: u64, least: VirtSpan, what: What) {
        self.agenda.push(lane, Event { due, rank, what }, due.plus(least));
    }

    /// Finds what leads to each vertex.
    fn find_into(&mut self) {
        for (ix, pipe) in self.spec.pipes.iter().enumerate() {
            self.into[pipe.to.at()].lanes.push(ix as u32);
        }
        for (ix, node) in self.spec.nodes.iter().enumerate() {
            self.into[node.vertex.at()].lanes.push((self.spec.pipes.len() + ix) as u32);
        }
        self.into.iter_mut().for_each(|into| into.measure(&self.spec.pipes));
    }

    /// Finds the earliest delivery of every event anew, after the network has changed.
    pub(crate) fn bind_anew(&mut self) {
        let mut agenda = std::mem::take(&mut self.agenda);
        agenda.bind_anew(|e| e.due.plus(self.least(e.what)));
        self.agenda = agenda;
    }

    /// Has all packets go one at a time and in the order of their instants wherever they are, for whoever wants to see
    /// that the outcome is the same.
    pub fn set_strict(&mut self, strict: bool) {
        self.strict = strict;
    }

    /// From now on keeps a copy of every packet that the pipe sends, or stops to. Take them with
    /// [`Network::take_seen`].
    pub fn watch(&mut self, pipe: PipeIx, on: bool) {
        if let Some(p) = self.pipes.get_mut(pipe.at()) {
            p.watched = on.then_some(pipe);
        }
    }

    /// What watched pipes have sent since the last call. Those of one pipe are in order; those of several may not be.
    pub fn take_seen(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.packets.seen)
    }

    /// An empty buffer, a used one when there is one.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.packets.buffer()
    }

    /// Keeps the buffer of a delivered frame for reuse.
    pub fn recycle(&mut self, frame: Vec<u8>) {
        self.packets.recycle(frame);
    }

    /// Copies of frames that are on their way.
    pub fn in_flight(&self) -> usize {
        self.packets.len()
    }

    /// Bytes of memory that packets on their way and buffers in reserve take, the agenda included.
    pub fn memory_bytes(&self) -> usize {
        self.packets.memory_bytes() + self.agenda.memory_bytes()
    }

    /// Changes of routes that were refused because fixed routes would have led in a circle.
    pub fn reroutes_refused(&self) -> u64 {
        self.reroutes_refused
    }

    /// Counters of each pipe, in the order of the spec.
    pub fn pipe_counters(&self) -> Vec<PipeCounters> {
        self.pipes.iter().map(Pipe::counters).collect()
    }

    /// Counters of each node, in the order of the spec.
    pub fn node_counters(&self) -> Vec<NodeCounters> {
        self.nodes.iter().map(|n| n.counters).collect()
    }

    /// The pipes from one node to another, in order; empty when they are the same.
    pub fn path(&self, from: NodeIx, to: NodeIx) -> Vec<PipeIx> {
        let mut pipes = Vec::new();
        let mut at = self.nodes[from.at()].vertex;
        while let Some(pipe) = self.routes.next(at.at(), to) {
            pipes.push(pipe);
            at = self.spec.pipes[pipe.at()].to;
        }
        pipes
    }
}

/// A node that is found, if it is in the segment.
pub(crate) fn heard<'a>(found: Option<&'a NodeIx>, nodes: &[Node], segment: u32) -> Option<&'a NodeIx> {
    found.filter(|n| nodes[n.at()].segment == segment)
}

/// Where a frame for several nodes goes; `None` when there is none.
fn group(members: Vec<NodeIx>) -> Option<Dest> {
    match members[..] {
        [] => None,
        [one] => Some(Dest::One(one)),
        _ => Some(Dest::Group(members.into_boxed_slice())),
    }
}

fn check_indices(spec: &NetSpec) -> Result<(), NetError> {
    let vertex = |v: VertexIx| match spec.vertices.get(v.at()) {
        Some(found) => Ok(found),
        None => Err(NetError::NoSuch { what: "vertex", index: v.0, count: spec.vertices.len() }),
    };
    for p in &spec.pipes {
        vertex(p.from)?;
        vertex(p.to)?;
    }
    for r in &spec.routes {
        vertex(r.at)?;
        let (node, pipe) = (r.to.at() < spec.nodes.len(), r.pipe.at() < spec.pipes.len());
        if !node {
            return Err(NetError::NoSuch { what: "node", index: r.to.0, count: spec.nodes.len() });
        }
        if !pipe {
            return Err(NetError::NoSuch { what: "pipe", index: r.pipe.0, count: spec.pipes.len() });
        }
    }
    let mut taken = BTreeSet::new();
    for n in &spec.nodes {
        if vertex(n.vertex)?.kind != VertexKind::Node || !taken.insert(n.vertex) {
            return Err(NetError::BadVertex(n.name.clone()));
        }
    }
    Ok(())
}

fn check_pipes(spec: &NetSpec) -> Result<(), NetError> {
    if !(MTU_MIN..=MTU_MAX).contains(&spec.mtu) {
        return Err(NetError::BadMtu(spec.mtu));
    }
    for p in &spec.pipes {
        if p.from == p.to {
            return Err(NetError::Loop(spec.vertices[p.from.at()].name.clone()));
        }
        p.link.check().map_err(|problem| spec.bad_link(p, problem))?;
    }
    Ok(())
}
