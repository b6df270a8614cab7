//! Acknowledgements wait as long as on the original machine (see [`diecast_core_net::DelayedAcks`]).

use diecast_core_net::{Departure, NodeIx};
use diecast_core_vtime::{VirtNs, VirtSpan};

use super::Runner;
use crate::egress::Trailer;

impl Runner {
    /// A frame leaves its node: it enters the network, or waits.
    pub(super) fn leave(&mut self, node: usize, frame: Vec<u8>, v: VirtNs, debt: VirtSpan, trailer: Option<Trailer>) {
        self.note_timestamp(node, &frame, v);
        let asked = trailer.is_some_and(|trailer| trailer.asked);
        let Some(due) = self.look_at_acks(node, &frame, v, debt, asked) else {
            return self.ingress(node, frame, v, debt);
        };
        let acks = self.acks.as_mut();
        if let Some(earlier) = acks.and_then(|acks| acks.hold(due, NodeIx(node as u32), frame)) {
            self.net.recycle(earlier);
        }
    }

    /// A large frame, which is no acknowledgement, leaves its node.
    pub(super) fn pass_acks(&mut self, node: usize, frame: &[u8], v: VirtNs, debt: VirtSpan) {
        self.note_timestamp(node, frame, v);
        self.look_at_acks(node, frame, v, debt, false);
    }

    /// What its leaving does to one that waits; until when it waits itself.
    fn look_at_acks(&mut self, node: usize, frame: &[u8], v: VirtNs, debt: VirtSpan, asked: bool) -> Option<VirtNs> {
        match self.acks.as_mut()?.sends(v.plus(debt), NodeIx(node as u32), frame, asked) {
            Departure::Leaves => {}
            Departure::Waits(due) => return Some(due),
            Departure::InPlaceOf(ack) => self.net.recycle(ack),
            Departure::After(due, ack) => self.ingress(node, ack, v, due.since(v)),
        }
        None
    }

    /// Those that have waited long enough enter the network.
    pub(super) fn send_due_acks(&mut self, v: VirtNs) {
        while let Some((due, from, ack)) = self.acks.as_mut().and_then(|acks| acks.pop_due(v)) {
            self.entered = self.entered.max(due);
            self.ingress(from.at(), ack, self.entered, VirtSpan(0));
        }
    }
}
