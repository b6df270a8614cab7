//! Changes of a running network, at an instant of virtual time.
//!
//! A change is an event like a packet's: it takes place between the packets before and those after it, however late the
//! host is. What was on its way:
//!
//! * New parameters ([`Change::Set`], [`Change::Adjust`]): the packet that is being sent goes on as it began, those on the wire arrive when
//!   they would have, those that wait keep their order and are sent with the new parameters. Nothing is dropped, even
//!   where the new queue limit is below what waits: it refuses newcomers only.
//! * A cut pipe ([`Change::Cut`]) drops what waits, what is being sent and what reaches it until it is healed, each
//!   counted. What was sent in full arrives. Paths stay as they are until [`Change::Reroute`].
//! * A partition ([`Change::Partition`]) drops frames between its sides as they leave their sender. What has left
//!   arrives.

use diecast_core_vtime::{VirtNs, VirtSpan};
use serde::{Deserialize, Serialize};

use crate::link::{Link, LinkPart};
use crate::network::{Network, What};
use crate::route::Routes;
use crate::spec::{NetError, NodeIx, PipeIx};

/// Something that happens to a running network.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A pipe gets other parameters.
    Set {
        /// The pipe.
        pipe: PipeIx,
        /// All of its new parameters.
        link: Box<Link>,
    },
    /// A pipe gets some other parameters and keeps the rest as it is at that instant.
    Adjust {
        /// The pipe.
        pipe: PipeIx,
        /// What changes.
        parts: Vec<LinkPart>,
        /// Their new values; the rest of it counts for nothing.
        link: Box<Link>,
    },
    /// A pipe breaks.
    Cut(PipeIx),
    /// A cut pipe works again.
    Heal(PipeIx),
    /// A pipe breaks and works again, several times, and ends whole.
    Flap {
        /// The pipe.
        pipe: PipeIx,
        /// How long it is cut, virtual nanoseconds.
        down_ns: u64,
        /// How long it works in between.
        up_ns: u64,
        /// How often it is cut.
        times: u32,
    },
    /// Nodes reach only nodes of their own side. Nodes that are not named form one side more. Takes the place of an
    /// earlier partition.
    Partition(Vec<Vec<NodeIx>>),
    /// The partition ends.
    Join,
    /// Paths are searched anew without the pipes that are cut now; where there is none, packets are dropped and counted
    /// at their sender.
    Reroute,
}

impl Change {
    /// Whether a pipe may mark packets from then on.
    pub fn marks(&self) -> bool {
        match self {
            Change::Set { link, .. } => link.discipline.marks(),
            Change::Adjust { parts, link, .. } => parts.contains(&LinkPart::Discipline) && link.discipline.marks(),
            _ => false,
        }
    }
}

impl Network {
    /// Has a change take place at `at`, or at the last instant that was processed if that is later. Changes of one
    /// instant take place in the order of the calls.
    pub fn schedule(&mut self, at: VirtNs, change: Change) -> Result<(), NetError> {
        self.check_change(&change)?;
        let at = at.max(self.processed).max(self.done);
        if let Some(record) = &mut self.record {
            record.push(crate::record::Recorded::Change { at, change: change.clone() });
        }
        self.push_change(at, change);
        Ok(())
    }

    /// The pipes of a vertex by name of the other end, in the order of the spec: those from `from` to `to`.
    pub fn pipes_between(&self, from: &str, to: &str) -> Vec<PipeIx> {
        let name = |v: crate::spec::VertexIx| self.spec.vertices[v.at()].name.as_str();
        let pipes = self.spec.pipes.iter().enumerate();
        pipes.filter(|(_, p)| name(p.from) == from && name(p.to) == to).map(|(i, _)| PipeIx(i as u32)).collect()
    }

    /// The present parameters of a pipe; `None` when there is no such pipe.
    pub fn link(&self, pipe: PipeIx) -> Option<Link> {
        self.pipes.get(pipe.at()).map(|p| *p.link())
    }

    /// Whether a pipe works; false when there is no such pipe.
    pub fn is_up(&self, pipe: PipeIx) -> bool {
        self.pipes.get(pipe.at()).is_some_and(|p| p.is_up())
    }

    /// Whether the network takes a change.
    pub fn check_change(&self, change: &Change) -> Result<(), NetError> {
        let pipe = |p: PipeIx| match self.spec.pipes.get(p.at()) {
            Some(found) => Ok(found),
            None => Err(NetError::NoSuch { what: "pipe", index: p.0, count: self.pipes.len() }),
        };
        match change {
            Change::Set { pipe: ix, link } | Change::Adjust { pipe: ix, link, .. } => {
                let found = pipe(*ix)?;
                link.check().map_err(|problem| self.spec.bad_link(found, problem))
            }
            Change::Cut(ix) | Change::Heal(ix) | Change::Flap { pipe: ix, .. } => pipe(*ix).map(|_| ()),
            Change::Partition(sides) => {
                let count = self.nodes.len();
                let mut seen = std::collections::BTreeSet::new();
                for node in sides.iter().flatten() {
                    if node.at() >= count {
                        return Err(NetError::NoSuch { what: "node", index: node.0, count });
                    }
                    if !seen.insert(*node) {
                        return Err(NetError::TwoSides(self.spec.nodes[node.at()].name.clone()));
                    }
                }
                Ok(())
            }
            Change::Join | Change::Reroute => Ok(()),
        }
    }

    fn push_change(&mut self, at: VirtNs, change: Change) {
        let ix = self.next_change;
        self.next_change += 1;
        self.changes.insert(ix, change);
        self.push_from_outside(None, at, 1, VirtSpan(0), What::Change(ix));
    }

    fn set_link(&mut self, at: VirtNs, pipe: PipeIx, link: &Link) {
        self.spec.pipes[pipe.at()].link = *link;
        self.on_pipe(pipe, |p, packets, out| p.set(at, link, packets, out));
        self.routes.relax(pipe, self.pipes[pipe.at()].link());
        let to = self.spec.pipes[pipe.at()].to;
        self.into[to.at()].measure(&self.spec.pipes);
        self.bind_anew();
    }

    /// Carries out a change whose instant has come.
    pub(crate) fn carry_out(&mut self, at: VirtNs, ix: u32) {
        let Some(change) = self.changes.remove(&ix) else { return };
        match change {
            Change::Set { pipe, link } => self.set_link(at, pipe, &link),
            Change::Adjust { pipe, parts, link } => {
                let link = self.pipes[pipe.at()].link().with(&parts, &link);
                self.set_link(at, pipe, &link);
            }
            Change::Cut(pipe) => self.on_pipe(pipe, |p, packets, out| p.cut(at, packets, out)),
            Change::Heal(pipe) => self.pipes[pipe.at()].heal(),
            Change::Flap { pipe, down_ns, up_ns, times } => {
                if times > 0 {
                    let up = at.plus(VirtSpan(down_ns));
                    self.on_pipe(pipe, |p, packets, out| p.cut(at, packets, out));
                    self.push_change(up, Change::Heal(pipe));
                    let rest = Change::Flap { pipe, down_ns, up_ns, times: times - 1 };
                    self.push_change(up.plus(VirtSpan(up_ns)), rest);
                }
            }
            Change::Partition(sides) => {
                self.side = vec![0; self.nodes.len()];
                for (i, side) in sides.iter().enumerate() {
                    for node in side {
                        self.side[node.at()] = i as u32 + 1;
                    }
                }
            }
            Change::Join => self.side.clear(),
            Change::Reroute => {
                let pipes = &self.pipes;
                // The spec's indices and fixed routes were checked when the network was made; a search has no loops,
                // and a fixed route through other ways of a search can have one: then the old paths stay.
                if let Ok(routes) = Routes::new(&self.spec, |p| pipes[p.at()].is_up()) {
                    self.routes = routes;
                    self.rerouted = true;
                    self.bind_anew();
                } else {
                    self.reroutes_refused += 1;
                }
            }
        }
    }
}
