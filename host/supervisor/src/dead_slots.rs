//! Slots of threads that have ended.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{NodePage, ThreadSlot};
use diecast_host_sys::{Tid, process, time};

use crate::frame::NodeFrame;

/// Real time without a charge after which a dead thread's slot is free again, ns.
const REST_NS: u64 = 1_000_000_000;

/// A slot's place, and its thread.
pub type Place = (usize, u32);

/// The slots that have a thread which is not among these.
pub fn of_dead<'a>(page: &'a NodePage, live: &'a BTreeSet<u32>) -> impl Iterator<Item = (Place, &'a ThreadSlot)> {
    let places = page.slots.iter().enumerate().map(|(at, s)| ((at, s.tid.load(Relaxed)), s));
    places.filter(|((_, tid), _)| *tid != 0 && !live.contains(tid))
}

/// Frees the slots of a node's dead threads: else whoever comes when all are taken has no meter, and who gets the number of a
/// dead thread its account.
#[derive(Default)]
pub struct DeadSlots {
    /// Those without a thread at the last look.
    seen: BTreeSet<usize>,
}

impl DeadSlots {
    /// A look: a slot whose thread was gone at two, and that nobody used for a while, is free again. `live` has the numbers
    /// of all threads in the node.
    pub fn free(&mut self, page: &NodePage, live: &BTreeSet<u32>) {
        let now = time::monotonic_ns();
        let mut dead = BTreeSet::new();
        for ((i, _), s) in of_dead(page, live) {
            if now.saturating_sub(s.last_wall_ns.load(Relaxed)) < REST_NS {
                continue;
            }
            if self.seen.contains(&i) {
                page.free_slot(i);
            } else {
                dead.insert(i);
            }
        }
        self.seen = dead;
    }

    /// The same beside a [`Monitor`](crate::Monitor), which looks only where its node works.
    pub fn free_of(&mut self, node: &NodeFrame) -> io::Result<()> {
        let mut live = BTreeSet::new();
        for pid in (node.members)()? {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let tids = tasks.filter_map(|task| task.file_name().to_str().and_then(|name| name.parse().ok()));
            live.extend(tids.filter_map(|tid| process::number_inside(Tid(tid))));
        }
        self.free(node.page(), &live);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{CpuConfig, LabFrame};

    #[test]
    fn a_dead_threads_slot_is_free_at_the_second_look_and_a_live_ones_never() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id() as i32;
        let number = process::number_inside(Tid(pid)).unwrap();
        let lab = LabFrame::start("10".parse().unwrap());
        let cpu = CpuConfig { metered: true, ..CpuConfig::PLAIN };
        let node = NodeFrame::create(&lab, "n", cpu, Box::new(move || Ok(vec![pid])), None).unwrap();
        let (page, dead, late) = (node.page(), 1 << 22, (1 << 22) + 1);
        for tid in [number, dead, late] {
            page.claim_slot(tid).unwrap().charged_ns.store(7, Relaxed);
        }
        page.slot(late).unwrap().last_wall_ns.store(time::monotonic_ns(), Relaxed);
        let mut slots = DeadSlots::default();
        let has = |tid| page.slot(tid).is_some();
        for (look, expected) in [(1, [true, true, true]), (2, [true, false, true]), (3, [true, false, true])] {
            slots.free_of(&node).unwrap();
            assert_eq!([has(number), has(dead), has(late)], expected, "look {look}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        slots.free_of(&node).unwrap();
        slots.free_of(&node).unwrap();
        assert!(!has(number));
    }
}
