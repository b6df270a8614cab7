//! Paths: for each node, the next pipe from every vertex.
//!
//! One search per node over the reversed graph, O(pipes * log vertices) each; 20 bytes of table per pair of node and
//! vertex, bounds included.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use diecast_core_vtime::{NS_PER_S, VirtSpan};

use crate::link::{Framing, Link};
use crate::rng::mix;
use crate::spec::{NetError, NetSpec, NodeIx, PipeIx, PipeSpec, Routing, VertexKind};

/// No pipe: the destination itself, or no way.
const NONE: u32 = u32::MAX;

/// Next pipes towards each node.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    vertices: usize,
    /// `next[node * vertices + vertex]`.
    next: Vec<u32>,
    /// Same order: what the way from there to the node takes at least.
    ahead: Vec<Ahead>,
    /// For each pipe, what a packet that has just been sent through it needs at least to its node.
    behind: Vec<u64>,
    /// What each pipe took when the table was made, and how much less it takes now.
    steps: Vec<(Ahead, Ahead)>,
    /// The sum of all that is less: no way became shorter by more, as it goes through a pipe once at most.
    less: Ahead,
}

/// The least time of a way: its delays, and its serialisation time per byte in units of 2^-20 ns, rounded down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Ahead {
    delay_ns: u64,
    per_byte: u64,
}

impl Ahead {
    /// One pipe. Bound: 8 * 10^9 * 2^20 is below 2^53.
    fn step(link: &Link) -> Ahead {
        // A pipe that does not count the Ethernet header needs less per byte of the frame than its rate says.
        let counted = link.bandwidth_bps.filter(|_| link.framing != Framing::Ip);
        Ahead { delay_ns: link.least_delay_ns(), per_byte: counted.map_or(0, |bps| ((8 * NS_PER_S) << 20) / bps) }
    }

    fn plus(self, other: Ahead) -> Ahead {
        Ahead {
            delay_ns: self.delay_ns.saturating_add(other.delay_ns),
            per_byte: self.per_byte.saturating_add(other.per_byte),
        }
    }

    fn minus(self, other: Ahead) -> Ahead {
        Ahead {
            delay_ns: self.delay_ns.saturating_sub(other.delay_ns),
            per_byte: self.per_byte.saturating_sub(other.per_byte),
        }
    }
}

/// Sum of delays or costs, then pipes.
type Length = (u128, u32);

impl Routes {
    /// Paths of the least total delay or cost; among these the fewest pipes; among these the lowest pipe index at each
    /// vertex, or one that depends on destination and vertex where the spec spreads them. A path never leads through another node, and not through a pipe that `up` says is cut. Fixed routes win.
    ///
    /// No loop without fixed routes: along the chosen pipes the pair (length left, pipes left) falls strictly.
    pub(crate) fn new(spec: &NetSpec, up: impl Fn(PipeIx) -> bool) -> Result<Routes, NetError> {
        let vertices = spec.vertices.len();
        let mut into: Vec<Vec<u32>> = vec![Vec::new(); vertices];
        for (i, p) in spec.pipes.iter().enumerate().filter(|(i, _)| up(PipeIx(*i as u32))) {
            into[p.to.at()].push(i as u32);
        }
        let fixed = fixed_routes(spec)?;
        let mut next = vec![NONE; spec.nodes.len() * vertices];
        for (d, row) in next.chunks_exact_mut(vertices.max(1)).enumerate() {
            let ties = if spec.spread { Some(mix(d as u64 + 1)) } else { None };
            search(spec, &into, spec.nodes[d].vertex.at(), row, ties);
            for (&(_, at), &pipe) in fixed.range((d as u32, 0)..(d as u32 + 1, 0)) {
                row[at as usize] = pipe.0;
            }
        }
        let steps = spec.pipes.iter().map(|p| (Ahead::step(&p.link), Ahead::default())).collect();
        let (ahead, behind) = (Vec::new(), Vec::new());
        let mut routes = Routes { vertices, next, ahead, behind, steps, less: Ahead::default() };
        if !fixed.is_empty() {
            routes.check_loops(spec)?;
        }
        routes.measure(&spec.pipes);
        Ok(routes)
    }

    /// The first pair of nodes of one segment without a path.
    pub(crate) fn unreachable(&self, spec: &NetSpec) -> Option<NetError> {
        for (d, to) in spec.nodes.iter().enumerate() {
            let row = &self.next[d * self.vertices..][..self.vertices];
            let mut others = spec.nodes.iter().filter(|n| n.segment == to.segment && n.vertex != to.vertex);
            let cut_off = others.find(|n| row[n.vertex.at()] == NONE);
            if let Some(from) = cut_off {
                return Some(NetError::Unreachable { from: from.name.clone(), to: to.name.clone() });
            }
        }
        None
    }

    /// Fixed routes can lead in a circle; a search can't.
    fn check_loops(&self, spec: &NetSpec) -> Result<(), NetError> {
        for (d, to) in spec.nodes.iter().enumerate() {
            let row = &self.next[d * self.vertices..][..self.vertices];
            for from in &spec.nodes {
                let mut at = from.vertex;
                for _ in 0..=self.vertices {
                    if row[at.at()] == NONE {
                        break;
                    }
                    at = spec.pipes[row[at.at()] as usize].to;
                }
                if row[at.at()] != NONE {
                    let [from, to] = [from, to].map(|n| n.name.clone());
                    return Err(NetError::RouteLoop { from, to, at: spec.vertices[at.at()].name.clone() });
                }
            }
        }
        Ok(())
    }

    /// A pipe has new parameters. Bounds stay true for all ways at the price of one pipe; they are exact again when the
    /// pipe is as it was.
    pub(crate) fn relax(&mut self, pipe: PipeIx, link: &Link) {
        let (then, less) = &mut self.steps[pipe.at()];
        let others = self.less.minus(*less);
        *less = then.minus(Ahead::step(link));
        self.less = others.plus(*less);
    }

    fn measure(&mut self, pipes: &[PipeSpec]) {
        let mut ahead = vec![Ahead::default(); self.next.len()];
        let mut known = vec![NONE; self.vertices];
        let mut stack = Vec::new();
        let mut behind = vec![u64::MAX; pipes.len()];
        for d in 0..self.next.len() / self.vertices.max(1) {
            let row = &self.next[d * self.vertices..][..self.vertices];
            let sums = &mut ahead[d * self.vertices..][..self.vertices];
            for vertex in 0..self.vertices {
                // Down the way as far as it is not known yet, then back up.
                let mut at = vertex;
                while known[at] != d as u32 && row[at] != NONE {
                    known[at] = d as u32;
                    stack.push(at);
                    at = pipes[row[at] as usize].to.at();
                }
                while let Some(at) = stack.pop() {
                    let pipe = row[at];
                    sums[at] = sums[pipes[pipe as usize].to.at()].plus(self.steps[pipe as usize].0);
                    let least = &mut behind[pipe as usize];
                    *least = (*least).min(sums[at].delay_ns);
                }
            }
        }
        self.ahead = ahead;
        self.behind = behind;
    }

    /// What a frame of `bytes` needs at least from `vertex` to a node: nothing on the way has to wait, roundings are
    /// downwards.
    pub(crate) fn least(&self, vertex: usize, to: NodeIx, bytes: usize) -> VirtSpan {
        let ahead = self.ahead[to.at() * self.vertices + vertex].minus(self.less);
        let sending = (u128::from(ahead.per_byte) * bytes as u128) >> 20;
        VirtSpan(ahead.delay_ns.saturating_add(u64::try_from(sending).unwrap_or(u64::MAX)))
    }

    /// What any packet that has left this pipe's transmitter needs at least to reach its node. Packets that were sent
    /// this way before other routes were found are not bound by it.
    pub(crate) fn least_behind(&self, pipe: PipeIx) -> VirtSpan {
        VirtSpan(self.behind[pipe.at()].saturating_sub(self.less.delay_ns))
    }

    /// The pipe to take at `vertex` towards `to`; `None` at the destination itself and where there is no way.
    pub(crate) fn next(&self, vertex: usize, to: NodeIx) -> Option<PipeIx> {
        match self.next[to.at() * self.vertices + vertex] {
            NONE => None,
            pipe => Some(PipeIx(pipe)),
        }
    }
}

/// Fixed routes by destination and place.
fn fixed_routes(spec: &NetSpec) -> Result<BTreeMap<(u32, u32), PipeIx>, NetError> {
    let mut fixed = BTreeMap::new();
    for r in &spec.routes {
        let name = |at: usize| spec.vertices[at].name.clone();
        let (at, to) = (name(r.at.at()), spec.nodes[r.to.at()].name.clone());
        let pipe = &spec.pipes[r.pipe.at()];
        if pipe.from != r.at {
            return Err(NetError::BadRoute { at, to, begins: name(pipe.from.at()) });
        }
        if fixed.insert((r.to.0, r.at.0), r.pipe).is_some() {
            return Err(NetError::SecondRoute { at, to });
        }
    }
    Ok(fixed)
}

/// Dijkstra over the reversed graph from `dest`; fills in the next pipe of every vertex that reaches it.
/// `ties` says how: not at all (the lowest index), or by this number.
fn search(spec: &NetSpec, into: &[Vec<u32>], dest: usize, row: &mut [u32], ties: Option<u64>) {
    let mut length: Vec<Option<Length>> = vec![None; row.len()];
    let mut best: Vec<Option<Length>> = vec![None; row.len()];
    let mut heap = BinaryHeap::from([Reverse(((0u128, 0u32), dest as u32))]);
    while let Some(Reverse((here, vertex))) = heap.pop() {
        let vertex = vertex as usize;
        if length[vertex].is_some() {
            continue;
        }
        length[vertex] = Some(here);
        if vertex != dest && spec.vertices[vertex].kind == VertexKind::Node {
            continue;
        }
        for &i in &into[vertex] {
            let pipe = &spec.pipes[i as usize];
            let from = pipe.from.at();
            if length[from].is_some() {
                continue;
            }
            let step = match spec.routing {
                Routing::Delay => u128::from(pipe.link.delay_ns),
                Routing::Cost => u128::from(pipe.cost),
            };
            let there = (here.0 + step, here.1 + 1);
            if best[from].is_none_or(|b| there < b) {
                best[from] = Some(there);
                row[from] = i;
                heap.push(Reverse((there, from as u32)));
            } else if best[from] == Some(there) {
                row[from] = match ties {
                    None => row[from].min(i),
                    Some(seed) => preferred(seed, row[from], i),
                };
            }
        }
    }
}

/// One of two pipes, as the number says; of several pipes each is as likely, whatever their order.
fn preferred(seed: u64, a: u32, b: u32) -> u32 {
    let rank = |pipe: u32| (mix(seed ^ mix(u64::from(pipe) + 1)), pipe);
    if rank(a) < rank(b) { a } else { b }
}
