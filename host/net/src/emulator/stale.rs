//! What a node's kernel must not measure: round trips as long as a pause (see [`diecast_core_net::StaleEchoes`]).
//!
//! All of it happens where frames come in and go out, not in the model: a record of a run has the frames as they were sent
//! and delivered, and a replay needs to know of no pause.

use diecast_core_net::{Checksum, Delivery, NodeIx};
use diecast_core_vtime::{RealNs, VirtNs};

use super::Runner;
use crate::clock::monotonic_now;

impl Runner {
    /// The lab's map may have changed: whether time passes. Whoever changes it kicks, so nobody needs to ask per frame.
    pub(super) fn look_at_pace(&mut self) {
        // What is held depends on the rate, and for how long frames may gather; on links, too, which may be about to change.
        (self.least_hold_at, self.gather_at) = (RealNs(0), RealNs(0));
        let v = self.clock.v_of(monotonic_now());
        self.stands_still = self.clock.r_of(VirtNs(v.0.saturating_add(1))) == RealNs::NEVER;
    }

    /// A frame, or a large one, leaves its node.
    pub(super) fn note_timestamp(&mut self, node: usize, frame: &[u8], v: VirtNs) {
        if self.stands_still {
            self.echoes.sends(v, NodeIx(node as u32), frame);
        }
    }

    /// A frame is about to be handed over.
    pub(super) fn erase_stale_echo(&mut self, delivery: &mut Delivery) {
        if !self.echoes.is_empty()
            && let Some(echo) = self.echoes.delivered(delivery.due, delivery.to, &delivery.frame)
        {
            // Nothing is left to the receiver of a frame that was not merged.
            echo.erase(&mut delivery.frame, Checksum::Done);
        }
    }
}
