//! The model: frames in, due frames out, everything between in virtual time.

use core::cmp::{Ordering, Reverse};
use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use diecast_core_vtime::{VirtNs, VirtSpan};
use serde::Serialize;

use crate::neighbour::{self, Kind};
use crate::pipe::{Pipe, PipeCounters, SplitMix64, Verdict};
use crate::route::Routes;
use crate::spec::{ETHERNET_HEADER_BYTES, Mac, NetError, NetSpec, NodeIx, PipeIx, VertexIx, VertexKind};

/// Buffers kept for reuse; more are freed.
const SPARE_BUFFERS_MAX: usize = 4096;
/// Flows with a release in the future are forgotten when the table holds this many and they have passed.
const FLOWS_PRUNE_AT: usize = 256;

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
}

/// Who a frame is for.
#[derive(Clone, Debug)]
enum Dest {
    One(NodeIx),
    /// Copies part where their paths part.
    Group(Vec<NodeIx>),
}

/// A frame reaches a vertex. The order is (due, seq), so equal instants keep the order of their causes.
#[derive(Debug)]
struct Event {
    due: VirtNs,
    seq: u64,
    vertex: VertexIx,
    dest: Dest,
    frame: Vec<u8>,
}

impl Ord for Event {
    /// Reversed: the heap's greatest is the earliest.
    fn cmp(&self, other: &Event) -> Ordering {
        (other.due, other.seq).cmp(&(self.due, self.seq))
    }
}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Event {}

/// A node as the model needs it.
#[derive(Clone, Debug)]
struct Node {
    vertex: VertexIx,
    mac: Mac,
    counters: NodeCounters,
}

/// The network with its state. See the crate's text for its rules.
#[derive(Debug)]
pub struct Network {
    nodes: Vec<Node>,
    node_of_vertex: Vec<Option<NodeIx>>,
    by_mac: BTreeMap<Mac, NodeIx>,
    by_ipv4: BTreeMap<Ipv4Addr, NodeIx>,
    by_ipv6: BTreeMap<Ipv6Addr, NodeIx>,
    pipes: Vec<Pipe>,
    pipe_to: Vec<VertexIx>,
    routes: Routes,
    frame_bytes_max: usize,
    events: BinaryHeap<Event>,
    /// For each event the earliest instant at which its frame can be delivered, then the event's own order, by
    /// which entries of processed events are told.
    earliest: BinaryHeap<Reverse<(VirtNs, VirtNs, u64)>>,
    seq: u64,
    /// Nothing happens before this instant any more.
    processed: VirtNs,
    /// Order of the last processed event.
    processed_seq: u64,
    /// Last release of flows that paid a debt, in the future when it was set.
    releases: BTreeMap<(NodeIx, u64), VirtNs>,
    spare: Vec<Vec<u8>>,
}

impl Network {
    /// Checks the spec and finds all paths.
    pub fn new(spec: &NetSpec) -> Result<Network, NetError> {
        check_indices(spec)?;
        check_pipes(spec)?;
        let mut net = Network {
            nodes: Vec::new(),
            node_of_vertex: vec![None; spec.vertices.len()],
            by_mac: BTreeMap::new(),
            by_ipv4: BTreeMap::new(),
            by_ipv6: BTreeMap::new(),
            pipes: Vec::new(),
            pipe_to: spec.pipes.iter().map(|p| p.to).collect(),
            routes: Routes::new(spec)?,
            frame_bytes_max: spec.mtu as usize + ETHERNET_HEADER_BYTES,
            events: BinaryHeap::new(),
            earliest: BinaryHeap::new(),
            seq: 1,
            processed: VirtNs(0),
            processed_seq: 0,
            releases: BTreeMap::new(),
            spare: Vec::new(),
        };
        let mut seeds = SplitMix64(spec.seed);
        net.pipes = spec.pipes.iter().map(|p| Pipe::new(p, seeds.next())).collect();
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
        self.nodes.push(Node { vertex: node.vertex, mac: node.mac, counters: NodeCounters::default() });
        Ok(())
    }

    /// A frame leaves a node's NIC at `now`.
    ///
    /// `debt` is CPU that its sender used for it and that is not charged yet: the frame enters the first pipe at
    /// `now + debt`, never before an earlier frame of the same flow. An instant before one that was already
    /// processed counts as that one.
    pub fn ingress(&mut self, now: VirtNs, from: NodeIx, mut frame: Vec<u8>, debt: VirtSpan) {
        let now = now.max(self.processed);
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
        let asked = match neighbour::kind(&frame) {
            Kind::Data => return self.forward(now, from, dst, frame, debt),
            Kind::AskV4(target) => self.by_ipv4.get(&target).map(|n| {
                neighbour::answer_arp(&mut frame, target, self.nodes[n.at()].mac);
                *n
            }),
            Kind::AskV6(target) => self.by_ipv6.get(&target).map(|n| {
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
                return self.push(now, vertex, Dest::One(from), frame);
            }
            None => node.counters.dropped_unknown_neighbour += 1,
        }
        self.recycle(frame);
    }

    fn forward(&mut self, now: VirtNs, from: NodeIx, dst: Mac, frame: Vec<u8>, debt: VirtSpan) {
        let dest = if dst.is_group() {
            self.nodes[from.at()].counters.group_frames += 1;
            Dest::Group((0..self.nodes.len() as u32).map(NodeIx).filter(|n| *n != from).collect())
        } else {
            match self.by_mac.get(&dst) {
                Some(to) if *to != from => Dest::One(*to),
                _ => {
                    self.nodes[from.at()].counters.dropped_unknown_destination += 1;
                    return self.recycle(frame);
                }
            }
        };
        let release = self.release(now, from, &frame, debt);
        let vertex = self.nodes[from.at()].vertex;
        self.push(release, vertex, dest, frame);
    }

    /// When a frame may enter the first pipe.
    fn release(&mut self, now: VirtNs, from: NodeIx, frame: &[u8], debt: VirtSpan) -> VirtNs {
        if debt == VirtSpan(0) && self.releases.is_empty() {
            return now;
        }
        if self.releases.len() >= FLOWS_PRUNE_AT {
            self.releases.retain(|_, r| *r > now);
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
    /// find nothing due yet, when a packet has to wait in a queue, and asks again.
    pub fn next_due(&self) -> Option<VirtNs> {
        self.earliest.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Moves packets on until one reaches its node, in the order of their instants; `None` when nothing more is
    /// due at `now`.
    pub fn pop_due(&mut self, now: VirtNs) -> Option<Delivery> {
        let delivery = self.advance(now);
        // Events leave in order, so exactly those up to the last processed one are done.
        let done = (self.processed, self.processed_seq);
        while self.earliest.peek().is_some_and(|Reverse((_, due, seq))| (*due, *seq) <= done) {
            self.earliest.pop();
        }
        delivery
    }

    fn advance(&mut self, now: VirtNs) -> Option<Delivery> {
        while self.events.peek().is_some_and(|e| e.due <= now) {
            let event = self.events.pop()?;
            (self.processed, self.processed_seq) = (event.due, event.seq);
            let here = self.node_of_vertex[event.vertex.at()];
            match event.dest {
                Dest::One(to) if here == Some(to) => return Some(self.deliver(to, event.frame, event.due)),
                Dest::One(to) => self.cross(event.due, event.vertex, Dest::One(to), event.frame),
                Dest::Group(members) => {
                    if let Some(d) = self.spread(event.due, event.vertex, here, members, event.frame) {
                        return Some(d);
                    }
                }
            }
        }
        None
    }

    fn deliver(&mut self, to: NodeIx, frame: Vec<u8>, due: VirtNs) -> Delivery {
        let c = &mut self.nodes[to.at()].counters;
        c.packets_received += 1;
        c.bytes_received += frame.len() as u64;
        Delivery { to, frame, due }
    }

    /// A frame enters the next pipe towards its destination, for a group the one of its first member.
    fn cross(&mut self, at: VirtNs, vertex: VertexIx, dest: Dest, frame: Vec<u8>) {
        let towards = match &dest {
            Dest::One(to) => Some(*to),
            Dest::Group(members) => members.first().copied(),
        };
        let Some(pipe) = towards.and_then(|to| self.routes.next(vertex.at(), to)) else {
            return self.recycle(frame);
        };
        match self.pipes[pipe.at()].enter(at, frame.len()) {
            Verdict::Arrives(due) => self.push(due, self.pipe_to[pipe.at()], dest, frame),
            Verdict::Dropped => self.recycle(frame),
        }
    }

    /// A group frame at a vertex: one copy into each pipe that leads to members, one for the node that is here.
    fn spread(
        &mut self,
        at: VirtNs,
        vertex: VertexIx,
        here: Option<NodeIx>,
        members: Vec<NodeIx>,
        frame: Vec<u8>,
    ) -> Option<Delivery> {
        let mut by_pipe: BTreeMap<PipeIx, Vec<NodeIx>> = BTreeMap::new();
        for &m in members.iter().filter(|m| Some(**m) != here) {
            if let Some(pipe) = self.routes.next(vertex.at(), m) {
                by_pipe.entry(pipe).or_default().push(m);
            }
        }
        for group in by_pipe.into_values() {
            let mut copy = self.buffer();
            copy.extend_from_slice(&frame);
            self.cross(at, vertex, Dest::Group(group), copy);
        }
        if let Some(to) = here.filter(|h| members.contains(h)) {
            return Some(self.deliver(to, frame, at));
        }
        self.recycle(frame);
        None
    }

    fn push(&mut self, due: VirtNs, vertex: VertexIx, dest: Dest, frame: Vec<u8>) {
        let seq = self.seq;
        self.seq += 1;
        let least = match &dest {
            Dest::One(to) => self.routes.least(vertex.at(), *to, frame.len()),
            Dest::Group(_) => VirtSpan(0),
        };
        self.earliest.push(Reverse((due.plus(least), due, seq)));
        self.events.push(Event { due, seq, vertex, dest, frame });
    }

    /// An empty buffer, a used one when there is one.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.frame_bytes_max))
    }

    /// Keeps the buffer of a delivered frame for reuse.
    pub fn recycle(&mut self, mut frame: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX {
            frame.clear();
            self.spare.push(frame);
        }
    }

    /// Copies of frames that are on their way.
    pub fn in_flight(&self) -> usize {
        self.events.len()
    }

    /// Counters of each pipe, in the order of the spec.
    pub fn pipe_counters(&self) -> Vec<PipeCounters> {
        self.pipes.iter().map(|p| p.counters).collect()
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
            at = self.pipe_to[pipe.at()];
        }
        pipes
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
    let mut taken = BTreeSet::new();
    for n in &spec.nodes {
        if vertex(n.vertex)?.kind != VertexKind::Node || !taken.insert(n.vertex) {
            return Err(NetError::BadVertex(n.name.clone()));
        }
    }
    Ok(())
}

fn check_pipes(spec: &NetSpec) -> Result<(), NetError> {
    for p in &spec.pipes {
        let from = spec.vertices[p.from.at()].name.clone();
        let to = spec.vertices[p.to.at()].name.clone();
        if p.from == p.to {
            return Err(NetError::Loop(from));
        }
        if p.bandwidth_bps == Some(0) {
            return Err(NetError::NoBandwidth { from, to });
        }
        if !(0.0..=1.0).contains(&p.loss) {
            return Err(NetError::BadLoss { from, to, loss: p.loss });
        }
    }
    Ok(())
}
