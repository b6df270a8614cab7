//! Turns of threads with different weights: who has used more than its part of the node's cores waits while others want
//! them. Only in nodes where a thread's nice value or policy is not the usual one.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{Rival, ThreadSlot, compete};
use diecast_core_cpu::{self as ledger, IDLE_WEIGHT, REAL_TIME, USUAL_WEIGHT};
use diecast_core_vtime::{RealNs, VirtNs};

use crate::{node, sched};

/// For how many slices after its turn a thread still counts as one that wants a core: until its next hit, if it does.
const WANTS_SLICES: u64 = 2;
/// How many slices less than its part a thread may have had that it catches up with. One that is due for longer has slept.
const CREDIT_SLICES: u64 = 8;
/// By how many slices heavier ones may be late, and for how many at most a thread's turn is put off for that.
const BEHIND_SLICES: u64 = 2;
const PUT_OFF_SLICES: u64 = 16;
const SCHED_IDLE: u64 = 5;

/// The weight of a thread by what a hit tells (see `sched`).
pub fn weight_of(told: u64, tid: u32) -> u32 {
    let (nice, policy, carried) = (told >> 32 & 0xff, told >> 40 & 0xf, sched::carried_in(told));
    if carried != 0 && node().sched.get(carried).for_thread(tid).policy != 0 {
        REAL_TIME
    } else if policy == SCHED_IDLE {
        IDLE_WEIGHT
    } else if nice == 0 {
        USUAL_WEIGHT
    } else {
        ledger::weight_of_nice(nice as i8 - 21)
    }
}

/// What a thread has to wait for beside its ledger.
pub struct Turn {
    row: &'static Rival,
    tid: u32,
    weight: u32,
    from: VirtNs,
    work_v_ns: u64,
}

/// At `now`, after a charge that ends at `finish`.
pub fn after(told: u64, slot: &ThreadSlot, now: RealNs, finish: VirtNs) -> Option<Turn> {
    let n = node();
    let tid = slot.tid.load(Relaxed);
    let weight = weight_of(told, tid);
    if weight != USUAL_WEIGHT {
        n.weighted.store(1, Relaxed);
    } else if n.weighted.load(Relaxed) == 0 {
        return None;
    }
    let now = n.segment().v_of(now);
    let until = now.0.max(finish.0).saturating_add(WANTS_SLICES * slice_v_ns());
    let (row, known) = compete(&n.rivals, tid, weight, now.0, until)?;
    let charged = slot.charged_ns.load(Relaxed);
    let work = if known { ledger::charged_since(charged, row.due_charged_ns.load(Relaxed)) } else { 0 };
    row.due_charged_ns.store(charged, Relaxed);
    let work_v_ns = n.slowness().mul_floor(work);
    let began = finish.0.saturating_sub(work_v_ns);
    let due = row.due_v_ns.load(Relaxed);
    let awake = known && due.saturating_add(CREDIT_SLICES * slice_v_ns()) >= began;
    Some(Turn { row, tid, weight, from: VirtNs(if awake { due } else { began }), work_v_ns })
}

/// A grain in the node's time, ns.
pub fn slice_v_ns() -> u64 {
    let n = node();
    n.slowness().mul_floor(n.grain_ns.load(Relaxed))
}

impl Turn {
    /// When it may go on, as things are now, and until when to wait at most before this is asked again: others may have
    /// gone to sleep.
    pub fn look(&self, now: VirtNs) -> (VirtNs, VirtNs) {
        let n = node();
        let part = ledger::part_of(&n.rivals, now, self.tid, self.weight, n.entries().len());
        let due = part.end_of(self.from, self.work_v_ns);
        let slice = slice_v_ns();
        let wants = WANTS_SLICES * slice;
        self.row.due_v_ns.store(due.0, Relaxed);
        self.row.until_v_ns.store(due.0.max(now.0).saturating_add(wants), Relaxed);
        let again = now.0.saturating_add(wants);
        let put_off = due <= now
            && now.0 < due.0.saturating_add(PUT_OFF_SLICES * slice)
            && ledger::heavier_is_behind(&n.rivals, now, self.weight, BEHIND_SLICES * slice);
        (due, VirtNs(if put_off { again } else { due.0.min(again) }))
    }
}
