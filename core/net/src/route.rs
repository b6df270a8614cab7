//! Shortest paths: for each node, the next pipe from every vertex.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use diecast_core_vtime::{NS_PER_S, VirtSpan};

use crate::spec::{NetError, NetSpec, NodeIx, PipeIx, PipeSpec, VertexKind};

/// Next pipes towards each node.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    vertices: usize,
    /// `next[node * vertices + vertex]`.
    next: Vec<Option<PipeIx>>,
    /// Same order: what the way from there to the node takes at least.
    ahead: Vec<Ahead>,
}

/// The least time of a way: its delays, and its serialisation time per byte in units of 2^-20 ns, rounded down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Ahead {
    delay_ns: u64,
    per_byte: u64,
}

impl Ahead {
    /// The way that begins with this pipe and goes on like `self`. Bound: 8 * 10^9 * 2^20 is below 2^53.
    fn after(self, pipe: &PipeSpec) -> Ahead {
        let per_byte = pipe.bandwidth_bps.map_or(0, |bps| ((8 * NS_PER_S) << 20) / bps);
        Ahead {
            delay_ns: self.delay_ns.saturating_add(pipe.delay_ns),
            per_byte: self.per_byte.saturating_add(per_byte),
        }
    }
}

impl Routes {
    /// Paths of the least total delay; among these the fewest pipes; among these the lowest pipe index at each
    /// vertex. A path never leads through another node.
    ///
    /// No loop: along the chosen pipes the pair (delay left, pipes left) falls strictly.
    pub(crate) fn new(spec: &NetSpec) -> Result<Routes, NetError> {
        let vertices = spec.vertices.len();
        let mut into: Vec<Vec<PipeIx>> = vec![Vec::new(); vertices];
        for (i, p) in spec.pipes.iter().enumerate() {
            into[p.to.at()].push(PipeIx(i as u32));
        }
        let mut next = vec![None; spec.nodes.len() * vertices];
        for (d, dest) in spec.nodes.iter().enumerate() {
            let cost = costs_to(spec, &into, dest.vertex.at());
            let row = &mut next[d * vertices..][..vertices];
            let mut best: Vec<Option<(u128, u32)>> = vec![None; vertices];
            for (i, p) in spec.pipes.iter().enumerate() {
                let onward = p.to == dest.vertex || spec.vertices[p.to.at()].kind == VertexKind::Switch;
                let Some((delay, hops)) = cost[p.to.at()].filter(|_| onward) else { continue };
                let here = (delay + u128::from(p.delay_ns), hops + 1);
                let slot = &mut best[p.from.at()];
                if p.from != dest.vertex && slot.is_none_or(|b| here < b) {
                    *slot = Some(here);
                    row[p.from.at()] = Some(PipeIx(i as u32));
                }
            }
            for from in &spec.nodes {
                if from.vertex != dest.vertex && row[from.vertex.at()].is_none() {
                    return Err(NetError::Unreachable { from: from.name.clone(), to: dest.name.clone() });
                }
            }
        }
        let ahead =
            (0..next.len()).map(|i| least_ahead(spec, &next[i / vertices * vertices..][..vertices], i % vertices));
        let ahead = ahead.collect();
        Ok(Routes { vertices, next, ahead })
    }

    /// What a frame of `bytes` needs at least from `vertex` to a node: nothing on the way has to wait, roundings are
    /// downwards.
    pub(crate) fn least(&self, vertex: usize, to: NodeIx, bytes: usize) -> VirtSpan {
        let ahead = self.ahead[to.at() * self.vertices + vertex];
        let sending = (u128::from(ahead.per_byte) * bytes as u128) >> 20;
        VirtSpan(ahead.delay_ns.saturating_add(u64::try_from(sending).unwrap_or(u64::MAX)))
    }

    /// The pipe to take at `vertex` towards `to`; `None` at the destination itself.
    pub(crate) fn next(&self, vertex: usize, to: NodeIx) -> Option<PipeIx> {
        self.next[to.at() * self.vertices + vertex]
    }
}

/// Sums up the way from `vertex` along the next pipes towards one node.
fn least_ahead(spec: &NetSpec, next: &[Option<PipeIx>], vertex: usize) -> Ahead {
    let mut sum = Ahead::default();
    let mut at = vertex;
    while let Some(pipe) = next[at].map(|p| &spec.pipes[p.at()]) {
        sum = sum.after(pipe);
        at = pipe.to.at();
    }
    sum
}

/// (delay, pipes) from each vertex to `dest`: Dijkstra over the reversed graph. Sums fit 128 bits always.
fn costs_to(spec: &NetSpec, into: &[Vec<PipeIx>], dest: usize) -> Vec<Option<(u128, u32)>> {
    let mut cost: Vec<Option<(u128, u32)>> = vec![None; spec.vertices.len()];
    let mut heap = BinaryHeap::from([Reverse((0u128, 0u32, dest))]);
    while let Some(Reverse((delay, hops, vertex))) = heap.pop() {
        if cost[vertex].is_some() {
            continue;
        }
        cost[vertex] = Some((delay, hops));
        if vertex != dest && spec.vertices[vertex].kind == VertexKind::Node {
            continue;
        }
        for &p in &into[vertex] {
            let pipe = &spec.pipes[p.at()];
            if cost[pipe.from.at()].is_none() {
                heap.push(Reverse((delay + u128::from(pipe.delay_ns), hops + 1, pipe.from.at())));
            }
        }
    }
    cost
}
