//! Shortest paths: for each node, the next pipe from every vertex.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::spec::{NetError, NetSpec, NodeIx, PipeIx, VertexKind};

/// Next pipes towards each node.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    vertices: usize,
    /// `next[node * vertices + vertex]`.
    next: Vec<Option<PipeIx>>,
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
        Ok(Routes { vertices, next })
    }

    /// The pipe to take at `vertex` towards `to`; `None` at the destination itself.
    pub(crate) fn next(&self, vertex: usize, to: NodeIx) -> Option<PipeIx> {
        self.next[to.at() * self.vertices + vertex]
    }
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
