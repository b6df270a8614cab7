//! Receive work: what the kernel does for a node outside of the node's threads.
//!
//! A frame that reaches a node's NIC runs the node's protocol stack in the thread that delivers it, and whatever that
//! stack sends in answer. On the original machine the same work is done by the machine's own processor, before the
//! program that waits for the packet, and instead of one that computes. So it is charged to the node's ledger, on the
//! virtual CPU that is free first.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use diecast_core_abi::NodePage;
use diecast_core_vtime::{RealNs, VirtNs};

use crate::{LAG_MAX_V_NS, at_usual_speed, warm_ns};

/// The longest that one frame is taken to have kept the kernel busy, real ns. What takes longer was interrupted: a
/// whole window of segments that one acknowledgement lets go takes half as long.
pub const RECEIVE_MAX_NS: u64 = 250_000;

/// The receiving side of a node. One thread writes it, others read.
#[derive(Debug, Default)]
pub struct Receiver {
    /// Charged, real CPU ns.
    charged_ns: AtomicU64,
    /// Not charged, because it was colder or slower than on the original machine or longer than a frame's work can be.
    cut_ns: AtomicU64,
    /// Not charged, because a machine that did nothing else could not have kept up either.
    beyond_ns: AtomicU64,
    /// Virtual instant at which a machine that did nothing else would be done with it.
    free_v_ns: AtomicU64,
    /// When the last of it ended, real.
    last_r_ns: AtomicU64,
}

/// What became of a node's receive work, real CPU ns since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Charged to the ledger.
    pub charged_ns: u64,
    /// Taken off: colder or slower than on the original machine, or interrupted.
    pub cut_ns: u64,
    /// More than the original machine can do: it would have lost these frames.
    pub beyond_ns: u64,
}

impl Receiver {
    /// What became of it so far.
    pub fn received(&self) -> Received {
        Received {
            charged_ns: self.charged_ns.load(Relaxed),
            cut_ns: self.cut_ns.load(Relaxed),
            beyond_ns: self.beyond_ns.load(Relaxed),
        }
    }

    /// Charges the node of `page` for a frame that the kernel worked on from `begun` to `ended`.
    pub fn charge(&self, page: &NodePage, begun: RealNs, ended: RealNs) {
        let took_ns = ended.since(begun).0;
        let last_r = RealNs(self.last_r_ns.load(Relaxed).max(page.busy_r_ns.load(Relaxed)));
        self.last_r_ns.store(ended.0, Relaxed);
        // Before its first frame a node has not been watched: no sleep is known.
        let gap_ns = if last_r.0 == 0 { 0 } else { begun.since(last_r).0 };
        let usual_ns = at_usual_speed(page.slow_discount.load(Relaxed), took_ns).min(RECEIVE_MAX_NS);
        let work_ns = warm_ns(&page.cold_discount, gap_ns, 0, usual_ns);
        add(&self.cut_ns, took_ns - work_ns);
        let now = page.segment().v_of(begun);
        if self.book(page.entries(), now, page.slowness().mul_floor(work_ns)) {
            add(&self.charged_ns, work_ns);
        } else {
            add(&self.beyond_ns, work_ns);
        }
    }

    /// False when the machine would be too far behind with frames alone.
    fn book(&self, entries: &[AtomicU64], now: VirtNs, work_v_ns: u64) -> bool {
        let alone = self.free_v_ns.load(Relaxed).max(now.0);
        if alone - now.0 > LAG_MAX_V_NS {
            return false;
        }
        self.free_v_ns.store(alone.saturating_add(work_v_ns), Relaxed);
        interrupt(entries, now, work_v_ns);
        true
    }
}

fn add(to: &AtomicU64, ns: u64) {
    to.fetch_add(ns, Relaxed);
}

/// Has the virtual CPU that is free first do `work_v_ns` more, before whatever it is charged next.
///
/// Where it seems to have been idle the work is done as early as that, not now: a thread that computes is charged when
/// its slice ends, and may be late by [`LAG_MAX_V_NS`], so the time since may be the thread's, and work that began now
/// would lose it to both. Frames at a node that was idle indeed are thereby taken for done early.
fn interrupt(entries: &[AtomicU64], now: VirtNs, work_v_ns: u64) {
    let floor = now.0.saturating_sub(LAG_MAX_V_NS);
    loop {
        let Some(entry) = entries.iter().min_by_key(|e| e.load(Relaxed)) else { return };
        let free = entry.load(Relaxed);
        let after = free.max(floor).saturating_add(work_v_ns);
        if entry.compare_exchange_weak(free, after, AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;

    fn ledger(free: &[u64]) -> Vec<AtomicU64> {
        free.iter().map(|f| AtomicU64::new(*f)).collect()
    }

    fn free(entries: &[AtomicU64]) -> Vec<u64> {
        entries.iter().map(|e| e.load(Relaxed)).collect()
    }

    /// A thread that computes is charged a slice of 500 µs every 500 µs, one of 20 frames in between takes 10 µs: all of
    /// both is done by the ledger, none twice and no time is lost between them.
    #[test]
    fn frames_and_a_busy_thread_share_the_cpu_without_a_gap() {
        let (entries, receiver) = (ledger(&[0]), Receiver::default());
        let mut finish = 0;
        for slice in 1..=1000u64 {
            // The slice ran up to now; its frames came while it did.
            let began = finish.max((slice - 1) * 500 * US);
            for frame in 0..20 {
                assert!(receiver.book(&entries, VirtNs(began + frame * 25 * US), 10 * US));
            }
            finish = charge(&entries, 0, VirtNs(began + 500 * US), VirtNs(finish), 500 * US).finish.0;
        }
        assert_eq!(finish, 1000 * (500 + 20 * 10) * US);
    }

    #[test]
    fn a_thread_that_sleeps_off_its_slice_sleeps_longer() {
        let (entries, receiver) = (ledger(&[7 * MS]), Receiver::default());
        assert!(receiver.book(&entries, VirtNs(5 * MS), 40 * US));
        assert_eq!(free(&entries), [7 * MS + 40 * US]);
    }

    #[test]
    fn frames_alone_keep_a_cpu_as_busy_as_they_are() {
        let (entries, receiver) = (ledger(&[0]), Receiver::default());
        // 60 % of the CPU for a second: it was idle for the rest, and a thread need not wait.
        for frame in 0..10_000u64 {
            assert!(receiver.book(&entries, VirtNs(frame * 100 * US), 60 * US));
        }
        assert_eq!(free(&entries), [999_900 * US - LAG_MAX_V_NS + 60 * US]);
    }

    #[test]
    fn the_cpu_that_is_free_first_takes_the_frame() {
        let (entries, receiver) = (ledger(&[9 * MS, 8 * MS]), Receiver::default());
        assert!(receiver.book(&entries, VirtNs(8 * MS), 10 * US));
        assert_eq!(free(&entries), [9 * MS, 8 * MS + 10 * US]);
    }

    #[test]
    fn what_no_machine_can_do_is_not_charged() {
        let (entries, receiver) = (ledger(&[0]), Receiver::default());
        // Twice the CPU for a second.
        let taken = (0..10_000u64).filter(|f| receiver.book(&entries, VirtNs(f * 100 * US), 200 * US)).count();
        let free = free(&entries)[0];
        assert!((free - (999 * MS + 900 * US)) <= LAG_MAX_V_NS + 200 * US, "{free}");
        assert!((5_000..5_400).contains(&taken), "{taken}");
    }
}
