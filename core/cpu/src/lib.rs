//! The CPU ledger: when would the original machine have finished this work?
//!
//! One entry per virtual CPU holds the virtual instant at which it is free. A thread that used `cpu` of real
//! CPU time is charged `work = cpu / speed` of virtual time on one entry: it starts at
//! `max(earliest possible start, entry free)` and the entry is free again at `start + work`.
//! One compare-and-swap, no lock; a value per entry that only [`uncharge`] lowers, never below now.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;

#[cfg(feature = "alloc")]
mod ages;
mod cold;
mod egress;
#[cfg(feature = "alloc")]
mod hits;
mod interrupts;
#[cfg(feature = "alloc")]
mod learn;
#[cfg(feature = "alloc")]
mod level;
mod modes;
mod receive;
mod speed;
#[cfg(feature = "alloc")]
mod sums;
mod weights;

#[cfg(feature = "alloc")]
pub use ages::{AGE_CELLS, AGE_SUMS, Ages, Growth, growth_of_all};
pub use cold::{COLD_MAX_NS, burst_after, gap_bin, warm_ns};
pub use egress::{
    OVERCHARGE_MAX_NS, Sent, Then, account, charge_handing, charge_sender, give_back, is_new, mean_switch_ns,
};
#[cfg(feature = "alloc")]
pub use hits::{HIT_SUMS, HitSums};
pub use interrupts::{Interrupts, interrupt_part, shown_cpu_ns};
#[cfg(feature = "alloc")]
pub use learn::{Bursts, WAIT_KINDS, curve_of_all, discounts};
#[cfg(feature = "alloc")]
pub use level::Level;
pub use modes::{Split, kernels_of_meter_ns};
pub use receive::{RECEIVE_MAX_NS, ReceiveCounts, Received, Receiver};
pub use speed::{SpeedWatch, at_usual_speed, slow_given_back, stood_still_ns, undisturbed_ns};
pub use weights::{
    IDLE_WEIGHT, Part, REAL_TIME, USUAL_WEIGHT, charged_since, heavier_is_behind, part_of, weight_of_nice,
};

use core::sync::atomic::{AtomicU64, Ordering};

use diecast_core_abi::{NodePage, SWITCH_ONCE};
use diecast_core_vtime::VirtNs;

/// How far a running thread may be behind its virtual clock before its debt is forgiven (and counted).
pub const LAG_MAX_V_NS: u64 = 50_000_000;
/// A single charge longer than this is corruption, not work.
pub const WORK_MAX_V_NS: u64 = 600_000_000_000;

/// Where a charge ended up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charge {
    pub start: VirtNs,
    /// Virtual instant at which the original machine would have finished.
    pub finish: VirtNs,
    /// Debt that was forgiven because the thread was more than [`LAG_MAX_V_NS`] behind.
    pub forgiven_v_ns: u64,
    /// A value out of any sensible range was clamped.
    pub clamped: bool,
}

/// The entries of these cores (bits), with their places; all where that is none: a page can say anything.
fn among(entries: &[AtomicU64], cores: u64) -> impl Iterator<Item = (usize, &AtomicU64)> {
    let all = if entries.len() >= 64 { u64::MAX } else { (1 << entries.len()) - 1 };
    let cores = if cores & all == 0 { all } else { cores };
    entries.iter().enumerate().filter(move |(i, _)| *i >= 64 || cores >> *i & 1 != 0)
}

/// Charges `work_v_ns` that could start at `earliest`, seen at `now`, to one of `cores` (bits; 0 for all).
///
/// Picks the entry that was free last but not after `earliest` (so that idle virtual CPUs stay idle), else
/// the one that is free first. All sums saturate.
pub fn charge(entries: &[AtomicU64], cores: u64, now: VirtNs, earliest: VirtNs, work_v_ns: u64) -> Charge {
    let mut clamped = false;
    let mut forgiven_v_ns = 0;
    let work = if work_v_ns > WORK_MAX_V_NS {
        clamped = true;
        WORK_MAX_V_NS
    } else {
        work_v_ns
    };
    // An entry further in the future than any queue of work explains is corruption.
    let ceiling = now.0.saturating_add(WORK_MAX_V_NS);
    loop {
        let (mut best, mut best_free) = (0usize, u64::MAX);
        let (mut fit, mut fit_free) = (usize::MAX, 0u64);
        for (i, e) in among(entries, cores) {
            let free = e.load(Ordering::Relaxed);
            if free <= earliest.0 && (fit == usize::MAX || free > fit_free) {
                (fit, fit_free) = (i, free);
            }
            if free < best_free {
                (best, best_free) = (i, free);
            }
        }
        let (index, seen) = if fit == usize::MAX { (best, best_free) } else { (fit, fit_free) };
        let Some(entry) = entries.get(index) else {
            return Charge { start: earliest, finish: VirtNs(earliest.0.saturating_add(work)), forgiven_v_ns, clamped };
        };
        let mut free = seen;
        if free > ceiling {
            clamped = true;
            free = now.0;
        }
        let mut start = if free > earliest.0 { free } else { earliest.0 };
        let floor = now.0.saturating_sub(LAG_MAX_V_NS).saturating_sub(work);
        if start < floor {
            forgiven_v_ns = floor - start;
            start = floor;
        }
        let finish = start.saturating_add(work);
        if entry.compare_exchange_weak(seen, finish, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Charge { start: VirtNs(start), finish: VirtNs(finish), forgiven_v_ns, clamped };
        }
    }
}

/// Takes back what was charged too much: from what is still to come, the entries that are furthest ahead of `now` first. What is
/// past is past: nothing then began earlier. Of a core that a thread is pinned to as of any other.
pub fn uncharge(entries: &[AtomicU64], now: VirtNs, work_v_ns: u64) {
    let mut left_v_ns = work_v_ns;
    // Each lowers an entry to `now`, or is the last; or somebody else charged meanwhile.
    for _ in 0..2 * entries.len() {
        let ahead = |e: &AtomicU64| e.load(Ordering::Relaxed).saturating_sub(now.0);
        let Some(entry) = entries.iter().max_by_key(|e| ahead(e)).filter(|e| ahead(e) > 0) else { return };
        let seen = entry.load(Ordering::Relaxed);
        let back_v_ns = seen.saturating_sub(now.0).min(left_v_ns);
        if entry.compare_exchange(seen, seen - back_v_ns, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            left_v_ns -= back_v_ns;
        }
        if left_v_ns == 0 {
            return;
        }
    }
}

/// When a thread that somebody set out to wake at `woke` could begin on the original machine: it is still at what it did
/// before, or is on its way to an idle core for so long.
pub fn begins(before: VirtNs, woke: VirtNs, way_v_ns: u64) -> VirtNs {
    if before.0 > woke.0 { before } else { VirtNs(woke.0.saturating_add(way_v_ns)) }
}

/// When `work_v_ns` that could start at `earliest` would end on one of `cores` (bits; 0 for all), without charging it.
pub fn finish_of(entries: &[AtomicU64], cores: u64, earliest: VirtNs, work_v_ns: u64) -> VirtNs {
    let free = among(entries, cores).map(|(_, e)| e.load(Ordering::Relaxed)).min().unwrap_or(0);
    VirtNs(free.max(earliest.0).saturating_add(work_v_ns))
}

/// Part of the CPU time between two charges that is at most taken for the cost of switches, in 1/16.
const SWITCHES_MAX: u64 = 15;

/// What the meter adds to a switch and BPF programs take at one, real CPU ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchCost {
    /// Of setting and ending a thread's timer, and how many times that on the average, in parts of [`SWITCH_ONCE`].
    pub each_ns: u64,
    pub part: u32,
    /// Of BPF programs.
    pub own_ns: u64,
}

impl SwitchCost {
    /// Of a node; `part` is what is known of it where this is asked.
    pub fn of_node(page: &NodePage, part: u32) -> SwitchCost {
        let [each_ns, own_ns] = [&page.switch_cost_ns, &page.own_switch_ns].map(|ns| ns.load(Ordering::Relaxed));
        SwitchCost { each_ns, part, own_ns }
    }

    /// What that cost a thread in so many switches to it, and `beside_ns` with it, out of what it used. Rounds down; no
    /// product exceeds 2^96.
    pub const fn of(self, switches: u64, beside_ns: u64, used_ns: u64) -> u64 {
        let timer = self.each_ns.saturating_mul(switches) as u128 * self.part as u128 / SWITCH_ONCE as u128;
        let cost = timer + self.own_ns.saturating_mul(switches) as u128 + beside_ns as u128;
        let most = used_ns / 16 * SWITCHES_MAX;
        if cost < most as u128 { cost as u64 } else { most }
    }
}

/// A thread's count of context switches: the last sixteen bits of all, above them those of its own will.
pub const fn switches_of(voluntary: u64, involuntary: u64) -> u64 {
    voluntary << 16 | (voluntary.wrapping_add(involuntary) & 0xffff)
}

/// The count after so many more switches, whatever they were.
pub const fn switches_after(before: u64, more: u64) -> u64 {
    before & !0xffff | (before.wrapping_add(more) & 0xffff)
}

/// Whether a thread has given up its core of its own will between two counts.
pub const fn has_waited(before: u64, after: u64) -> bool {
    before >> 16 != after >> 16
}

/// Switches from one count to another of which the last sixteen bits are known; none when the second was counted first.
pub const fn switches_since(before: u64, after: u64) -> u64 {
    let more = (after as u16).wrapping_sub(before as u16) as i16;
    if more > 0 { more as u64 } else { 0 }
}

/// Waiting for a core that is the host's fault: run delay since the last reading, less what the ledger
/// already explains and less what siblings were charged meanwhile (they may have held the core), at least 0.
pub const fn waited_for_others(run_delay_ns: u64, explained_ns: u64, siblings_ns: u64) -> u64 {
    run_delay_ns.saturating_sub(explained_ns).saturating_sub(siblings_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(free: &[u64]) -> Vec<AtomicU64> {
        free.iter().map(|f| AtomicU64::new(*f)).collect()
    }

    #[test]
    fn pinned_work_waits_for_its_own_cores() {
        let l = ledger(&[0, 0, 0]);
        let now = VirtNs(1_000);
        let finish = |cores| charge(&l, cores, now, now, 100).finish.0;
        assert_eq!([finish(0b10), finish(0b10), finish(0b11)], [1_100, 1_200, 1_100]);
        assert_eq!(finish_of(&l, 0b10, now, 50).0, 1_250);
        assert_eq!(finish_of(&l, 0b110, now, 50).0, 1_050);
        // No core of the ledger: all of them, whatever a page says.
        assert_eq!([finish(1 << 3), finish(u64::MAX << 7)], [1_100, 1_200]);
        assert_eq!(charge(&[], 5, now, now, 7).finish.0, 1_007);
    }

    #[test]
    fn idle_cpu_starts_at_once_and_busy_cpu_queues() {
        let l = ledger(&[0]);
        let a = charge(&l, 0, VirtNs(1_000_100), VirtNs(1_000_000), 500);
        assert_eq!((a.start.0, a.finish.0), (1_000_000, 1_000_500));
        let b = charge(&l, 0, VirtNs(1_000_100), VirtNs(1_000_050), 500);
        assert_eq!((b.start.0, b.finish.0), (1_000_500, 1_001_000));
    }

    #[test]
    fn two_cpus_serve_two_threads_and_the_third_waits_for_the_first_free() {
        let l = ledger(&[0, 0]);
        let now = VirtNs(2_000);
        assert_eq!(charge(&l, 0, now, VirtNs(1_000), 100).finish.0, 1_100);
        assert_eq!(charge(&l, 0, now, VirtNs(1_000), 300).finish.0, 1_300);
        assert_eq!(charge(&l, 0, now, VirtNs(1_000), 100).finish.0, 1_200);
        // Free at 1200 and 1300, work at 1250: the first is taken, not the second.
        assert_eq!(charge(&l, 0, now, VirtNs(1_250), 10).start.0, 1_250);
    }

    #[test]
    fn debt_beyond_the_bound_is_forgiven_and_counted() {
        let l = ledger(&[0]);
        let now = VirtNs(1_000_000_000);
        let c = charge(&l, 0, now, VirtNs(100), 1_000);
        assert_eq!(c.start.0, now.0 - LAG_MAX_V_NS - 1_000);
        assert!(c.forgiven_v_ns > 0 && !c.clamped);
    }

    #[test]
    fn what_was_charged_too_much_is_taken_from_what_is_still_to_come() {
        let left = |free: &[u64], work_v_ns| {
            let l = ledger(free);
            uncharge(&l, VirtNs(1_000), work_v_ns);
            l.iter().map(|e| e.load(Ordering::Relaxed)).collect::<Vec<_>>()
        };
        assert_eq!(left(&[1_500, 400], 200), [1_300, 400]);
        assert_eq!(left(&[1_500, 1_900], 1_000), [1_400, 1_000], "the furthest first, and none below now");
        assert_eq!(left(&[1_500, 1_900, 7], 10_000), [1_000, 1_000, 7], "the rest is past");
        assert_eq!(left(&[1_000, 7], 1), [1_000, 7]);
        assert_eq!(left(&[u64::MAX], u64::MAX), [1_000]);
        assert_eq!(left(&[], 1), [0; 0]);
    }

    #[test]
    fn corrupt_values_are_clamped_and_counted() {
        let l = ledger(&[u64::MAX]);
        let c = charge(&l, 0, VirtNs(5), VirtNs(5), u64::MAX);
        assert!(c.clamped);
        assert_eq!(c.finish.0, 5 + WORK_MAX_V_NS);
        assert_eq!(charge(&[], 0, VirtNs(5), VirtNs(5), 7).finish.0, 12);
    }

    #[test]
    fn switches_cost_what_they_are_and_never_all_of_it() {
        const HALF: u32 = 1 << 15;
        let cost = |each_ns, part, own_ns| SwitchCost { each_ns, part, own_ns };
        assert_eq!(cost(5_000, 1 << 16, 0).of(3, 0, 100_000), 15_000);
        assert_eq!(cost(5_000, HALF, 0).of(3, 0, 100_000), 7_500);
        assert_eq!(cost(5_000, 0, 0).of(3, 0, 100_000), 0);
        assert_eq!(cost(5_000, 3 << 15, 0).of(3, 0, 100_000), 22_500);
        assert_eq!(cost(5_000, HALF, 1_000).of(3, 700, 100_000), 11_200);
        assert_eq!(cost(5_000, 1 << 16, 0).of(3, 0, 16_000), 15_000);
        assert_eq!(cost(5_000, 1 << 16, 0).of(30, 0, 16_000), 15_000, "fifteen sixteenths");
        assert_eq!(cost(0, 0, 1_000).of(30, 0, 16_000), 15_000, "fifteen sixteenths");
        assert_eq!(cost(u64::MAX, HALF, 0).of(u64::MAX, 0, u64::MAX), u64::MAX / 2, "no overflow");
        assert_eq!(cost(u64::MAX, u32::MAX, u64::MAX).of(u64::MAX, u64::MAX, 32), 30, "no overflow");
    }

    #[test]
    fn switches_are_counted_across_an_overflow_and_not_twice() {
        assert_eq!(switches_since(7, 9), 2);
        assert_eq!(switches_since(0x1_fffe, 1), 3);
        assert_eq!(switches_since(9, 7), 0);
        assert_eq!(switches_since(0x5_0000, 0), 0);
    }

    #[test]
    fn switches_of_a_threads_own_will_are_told_apart() {
        let before = switches_of(7, 0xfffe);
        assert!(!has_waited(before, switches_of(7, 0x1_0001)), "was preempted");
        assert!(has_waited(before, switches_of(8, 0xfffe)), "waited");
        assert!(!has_waited(before, switches_after(before, 3)));
        assert!(has_waited(switches_after(before, 3), switches_of(8, 0)));
        assert_eq!(switches_since(before, switches_of(8, 0x1_0000)), 3);
        assert_eq!(switches_since(before, switches_after(before, 3)), 3);
    }

    #[test]
    fn waiting_is_never_negative() {
        assert_eq!(waited_for_others(100, 30, 20), 50);
        assert_eq!(waited_for_others(100, 130, 20), 0);
    }
}
