//! What has reached its node is held for what the original's kernel works longer on it than ours.

use diecast_core_net::{Due, OFFLOAD_HEADER_BYTES};
use diecast_core_vtime::{RealNs, VirtNs, VirtSpan};

use super::Runner;
use crate::capture::Direction;
use crate::lookout::Lookout;

/// The least that anything is held changes slowly; it is asked for so seldom.
const LEAST_EVERY_NS: u64 = 10_000_000;

impl Runner {
    /// The next that is handed over by `v`.
    pub(super) fn pop_due(&mut self, v: VirtNs, patience: VirtSpan) -> Option<Due> {
        loop {
            let held = self.holding.pop_due(v);
            if held.is_some() {
                return held;
            }
            let due = self.pop_arrived(v, patience)?;
            let hold = self.hold_of(&due);
            let at_once = self.holding.hold(due, hold, v);
            if at_once.is_some() {
                return at_once;
            }
        }
    }

    /// The next that has reached its node by `v`, seen by captures. Frames are merged where nobody looks at them.
    fn pop_arrived(&mut self, v: VirtNs, patience: VirtSpan) -> Option<Due> {
        let (lookouts, captured) = (&self.lookouts, !self.captures.is_empty());
        let due = self.net.pop_due_merged(v, patience, |to, sure| {
            let looks = |l: &Lookout| if sure { l.is_clear() } else { l.was_clear() };
            !captured && lookouts[to.at()].as_ref().is_some_and(looks)
        })?;
        if let Due::Frame(delivery) = &due
            && captured
        {
            self.captures.at_nic(delivery.to.at(), delivery.due, Direction::Received, &delivery.frame);
        }
        Some(due)
    }

    fn hold_of(&self, due: &Due) -> VirtSpan {
        let Some(receivers) = &self.hand.receivers else { return VirtSpan(0) };
        let node = due.to().at();
        let header_bytes = if self.hand.offload[node] { OFFLOAD_HEADER_BYTES } else { 0 };
        receivers.hold(node, self.net.bytes_of(due) + header_bytes)
    }

    /// When the next may be handed over, at the earliest.
    pub(super) fn next_due(&mut self, now: RealNs) -> Option<VirtNs> {
        if let Some(receivers) = &self.hand.receivers
            && now.since(self.least_hold_at).0 >= LEAST_EVERY_NS
        {
            (self.least_hold, self.least_hold_at) = (receivers.least_hold(), now);
        }
        let arrives = self.net.next_due().map(|due| due.plus(self.least_hold));
        arrives.into_iter().chain(self.holding.next_due()).min()
    }
}
