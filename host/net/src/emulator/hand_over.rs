//! What is due goes to its node's NIC, or to the thread that writes to it.

use std::io::IoSlice;

use diecast_core_net::{Checksum, Delivery, OFFLOAD_HEADER_BYTES, Run};
use diecast_core_vtime::RealNs;

use super::Runner;
use crate::clock::monotonic_now;
use crate::writers::{Parcel, Writers};

impl Runner {
    /// Hands a frame to its node; until when that took.
    pub(super) fn hand_over(&mut self, mut delivery: Delivery, now: RealNs) -> RealNs {
        self.erase_stale_echo(&mut delivery);
        let node = delivery.to.at();
        if let Some(acks) = &mut self.acks {
            acks.delivered(delivery.due, delivery.to, &delivery.frame);
        }
        if let Some(writers) = self.writers_of(node) {
            let (due, bytes) = (delivery.due, delivery.frame);
            writers.leave(Parcel { nic: node, due, frames: 1, merged: false, bytes });
            return monotonic_now();
        }
        let ended = self.hand.frame(node, delivery.due, &delivery.frame, now);
        self.net.recycle(delivery.frame);
        ended
    }

    /// Hands frames to their node as one, each as late as the first.
    pub(super) fn hand_over_run(&mut self, run: Run, now: RealNs) -> RealNs {
        let (node, due, frames) = (run.to.at(), run.due, run.count() as u64);
        let mut head = std::mem::take(&mut self.head);
        let mut rest = self.net.merged(&run, &mut head);
        let headers = if head.is_empty() { rest } else { &head };
        let headers = headers.get(OFFLOAD_HEADER_BYTES..).unwrap_or(&[]);
        if let Some(acks) = &mut self.acks {
            acks.delivered(due, run.to, headers);
        }
        if !self.echoes.is_empty()
            && let Some(echo) = self.echoes.delivered(due, run.to, headers)
        {
            head = [&head, rest].concat();
            rest = &[];
            // The receiver's kernel takes the rest of a merged frame's checksum for granted.
            echo.erase(&mut head[OFFLOAD_HEADER_BYTES..], Checksum::Left);
        }
        let ended = if let Some(writers) = self.writers_of(node) {
            writers.leave(Parcel { nic: node, due, frames, merged: true, bytes: [&head, rest].concat() });
            monotonic_now()
        } else {
            let parts = [IoSlice::new(&head), IoSlice::new(rest)];
            self.hand.run(&run, if head.is_empty() { &parts[1..] } else { &parts }, now)
        };
        self.head = head;
        self.net.release_run(run);
        ended
    }

    /// Those to whom what comes next is left: all but the first that is due, and what must not pass what they have.
    fn writers_of(&self, node: usize) -> Option<&Writers> {
        let writers = self.writers.as_ref()?;
        (self.backlog || !writers.is_idle(node)).then_some(writers)
    }
}
