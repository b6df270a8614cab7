//! What has reached its node and waits for the node's kernel.
//!
//! A dilated node's kernel works on a frame at the host's full speed, so whoever waits for it would be woken as soon as a
//! TDF-th of that work has passed in virtual time. So a frame is handed over later, by what the original's kernel would
//! still work on it when ours is done.

use std::collections::BTreeMap;

use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::merge::Due;

/// Frames in the order in which they are handed over: by the instant, then as they came.
#[derive(Debug, Default)]
pub struct Holding {
    waiting: BTreeMap<(VirtNs, u64), Due>,
    /// Those that came, for their order.
    came: u64,
    /// By node: when the last that came for it is handed over. None passes another.
    last: Vec<VirtNs>,
}

impl Holding {
    /// Keeps this for so much longer than it is due, and until what came for its node before is handed over. What need not
    /// wait is given back, if all that is due at `now` was popped.
    pub fn hold(&mut self, mut due: Due, hold: VirtSpan, now: VirtNs) -> Option<Due> {
        let node = due.to().at();
        if self.last.len() <= node {
            self.last.resize(node + 1, VirtNs(0));
        }
        let at = due.at().plus(hold).max(self.last[node]);
        self.last[node] = at;
        due.set_at(at);
        if at <= now {
            return Some(due);
        }
        self.waiting.insert((at, self.came), due);
        self.came += 1;
        None
    }

    /// When the next is handed over.
    pub fn next_due(&self) -> Option<VirtNs> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next, if it is due by now; its instant is that of handing over.
    pub fn pop_due(&mut self, now: VirtNs) -> Option<Due> {
        self.next_due().filter(|due| *due <= now)?;
        self.waiting.pop_first().map(|(_, due)| due)
    }

    /// Frames that wait.
    pub fn frames(&self) -> usize {
        self.waiting.values().map(Due::frames).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Delivery;
    use crate::spec::NodeIx;

    fn frame(to: u32, due: u64) -> Due {
        Due::Frame(Delivery { to: NodeIx(to), frame: vec![due as u8], due: VirtNs(due) })
    }

    fn popped(h: &mut Holding, now: u64) -> Vec<(u32, u64, u8)> {
        let next = || {
            let Due::Frame(d) = h.pop_due(VirtNs(now))? else { unreachable!("only frames came") };
            Some((d.to.0, d.due.0, d.frame[0]))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn each_waits_for_its_own_node_and_passes_none_of_it() {
        let mut h = Holding::default();
        let hold = |h: &mut Holding, due, hold_ns| h.hold(due, VirtSpan(hold_ns), VirtNs(14));
        assert_eq!(hold(&mut h, frame(0, 10), 20), None);
        assert_eq!(hold(&mut h, frame(1, 12), 5), None);
        // A short one behind a long one, and one that need not wait.
        assert_eq!(hold(&mut h, frame(0, 14), 0), None);
        assert_eq!(hold(&mut h, frame(2, 14), 0), Some(frame(2, 14)));
        assert_eq!((h.next_due(), h.frames()), (Some(VirtNs(17)), 3));
        assert_eq!(popped(&mut h, 16), []);
        assert_eq!(popped(&mut h, 17), [(1, 17, 12)]);
        assert_eq!(popped(&mut h, 40), [(0, 30, 10), (0, 30, 14)]);
        assert_eq!((h.next_due(), h.frames()), (None, 0));
    }
}
