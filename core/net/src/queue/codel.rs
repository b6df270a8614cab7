//! Controlled delay: RFC 8289, section 5, name for name where names help.

use diecast_core_vtime::{VirtNs, VirtSpan};

use super::{Counting, Fifo, Judge, Waiting};
use crate::link::Codel;

#[derive(Clone, Debug)]
pub(super) struct State {
    params: Codel,
    mtu_bytes: u64,
    /// When the time in the queue will have been above the target for an interval; `None` while it is below.
    first_above: Option<VirtNs>,
    drop_next: VirtNs,
    count: u32,
    last_count: u32,
    dropping: bool,
}

impl State {
    pub(super) fn new(params: Codel, mtu_bytes: u32) -> State {
        let mtu_bytes = u64::from(mtu_bytes);
        let (first_above, drop_next) = (None, VirtNs(0));
        State { params, mtu_bytes, first_above, drop_next, count: 0, last_count: 0, dropping: false }
    }

    /// The queue was found empty.
    pub(super) fn relax(&mut self) {
        self.first_above = None;
        self.dropping = false;
    }

    /// The RFC's `dodequeue`: the next packet and whether it may be dropped.
    fn next(&mut self, now: VirtNs, q: &mut Fifo) -> (Option<Waiting>, bool) {
        let Some(w) = q.pop() else {
            self.first_above = None;
            return (None, false);
        };
        if now.since(w.since).0 < self.params.target_ns || q.bytes <= self.mtu_bytes {
            self.first_above = None;
            return (Some(w), false);
        }
        match self.first_above {
            None => {
                self.first_above = Some(now.plus(VirtSpan(self.params.interval_ns)));
                (Some(w), false)
            }
            Some(at) => (Some(w), now >= at),
        }
    }

    /// The RFC's `deque`, with marks in place of drops where the packet takes one.
    pub(super) fn pop<J: Judge>(&mut self, now: VirtNs, q: &mut Fifo, judge: &mut Counting<'_, J>) -> Option<Waiting> {
        let (mut next, ok_to_drop) = self.next(now, q);
        if self.dropping {
            self.dropping = ok_to_drop;
            while self.dropping && now >= self.drop_next {
                let Some(w) = next else { break };
                self.count = self.count.saturating_add(1);
                if self.params.ecn && judge.mark(w) {
                    self.drop_next = self.control_law(self.drop_next);
                    return Some(w);
                }
                judge.drop(w);
                (next, self.dropping) = self.next(now, q);
                if self.dropping {
                    self.drop_next = self.control_law(self.drop_next);
                }
            }
        } else if let Some(w) = next.filter(|_| ok_to_drop) {
            if !(self.params.ecn && judge.mark(w)) {
                judge.drop(w);
                (next, _) = self.next(now, q);
            }
            self.dropping = true;
            // A short absence of congestion: go on about where the drop rate was.
            let delta = self.count.saturating_sub(self.last_count);
            let recent = now.since(self.drop_next).0 < 16 * self.params.interval_ns;
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next = self.control_law(now);
            self.last_count = self.count;
        }
        next
    }

    /// `t + interval / sqrt(count)`; IEEE square root and division are exact to the last bit everywhere.
    fn control_law(&self, t: VirtNs) -> VirtNs {
        t.plus(VirtSpan((self.params.interval_ns as f64 / f64::from(self.count).sqrt()) as u64))
    }
}
