//! What blobs count, and have shown.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::LATE_BUCKETS;

/// Counts that the blob keeps for the fidelity monitor.
#[repr(C)]
pub struct Counters {
    /// CPU time charged by blobs, real CPU ns.
    pub charged_ns: AtomicU64,
    /// CPU time charged by the supervisor for what escaped.
    pub charged_by_supervisor_ns: AtomicU64,
    /// CPU time spent by the meter itself (measured part plus the estimate per hit).
    pub meter_cost_ns: AtomicU64,
    pub hits: AtomicU64,
    /// System calls served by the blob.
    pub traps: AtomicU64,
    /// Ledger values out of any sensible range that were clamped.
    pub clamped: AtomicU64,
    /// Times a thread was so late that its debt was forgiven.
    pub forgiven: AtomicU64,
    pub forgiven_v_ns: AtomicU64,
    /// Hits without a free slot.
    pub no_slot: AtomicU64,
    /// First unexpected state of a blob: a [`BlobFault`].
    pub fault: AtomicU32,
    pub fault_detail: AtomicU32,
    /// Waiting for the host's cores that was subtracted, real ns.
    pub waited_ns: AtomicU64,
    /// CPU time that was not charged because the work was colder than on the original machine, real CPU ns.
    pub cold_ns: AtomicU64,
    /// CPU time that was not charged because the host's cores were slow when it was used, real CPU ns.
    pub slow_ns: AtomicU64,
    /// Changes of charged, cold, slow and the meter's own time, begun and done, by threads and by the emulator for packets'
    /// senders. While they differ, these and threads' accounts disagree.
    pub charges_begun: AtomicU64,
    pub charges_done: AtomicU64,
    /// The part of what was charged by hits that was found in the kernel, real CPU ns.
    pub system_ns: AtomicU64,
    /// Hits that charged, and the CPU time that the blob saw them take, real ns.
    pub charging_hits: AtomicU64,
    pub seen_hits_ns: AtomicU64,
    /// Sleeps of threads before they look for more to do, and the CPU time that these took, real ns.
    pub pays: AtomicU64,
    pub seen_pays_ns: AtomicU64,
    /// Histogram of ledger lateness, virtual ns: how long after the virtual end of its sender's work each packet left,
    /// and of the hits that found their thread behind, by how much it was.
    pub late_v: [AtomicU64; LATE_BUCKETS],
    /// Histogram of the lateness of the meter's own sleeps, real ns.
    pub sleep_late: [AtomicU64; LATE_BUCKETS],
}

/// Unexpected states that a blob reports instead of printing.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlobFault {
    None = 0,
    /// A trapped call that has no handler.
    NoHandler = 1,
    /// A Rust panic in the blob.
    Panic = 2,
}

/// Highest virtual CPU times that were shown of a thread with a slot, and of the process whose first thread it is: what a
/// hit costs is known at its end only, and no clock must go back.
#[repr(C)]
#[derive(Default, Debug)]
pub struct Shown {
    pub thread_ns: AtomicU64,
    pub user_ns: AtomicU64,
    pub system_ns: AtomicU64,
    pub process_ns: AtomicU64,
    pub process_user_ns: AtomicU64,
    pub process_system_ns: AtomicU64,
    pub late: LateCost,
}

impl Shown {
    /// For a new thread.
    #[inline(always)]
    pub fn forget(&self) {
        for ns in [&self.thread_ns, &self.user_ns, &self.system_ns] {
            ns.store(0, Relaxed);
        }
        for ns in [&self.process_ns, &self.process_user_ns, &self.process_system_ns] {
            ns.store(0, Relaxed);
        }
        self.late.take_over(&LateCost::default());
    }
}

/// What is no part of a thread's clock and is found at its packets, by the emulator: while the thread goes on already, and may
/// be at work until its clock has come to some time. In the midst of that its clock must not stand still, or it works for so much
/// longer; so it does only from the next packet on, if it was read since the last.
#[repr(C)]
#[derive(Default, Debug)]
pub struct LateCost {
    /// All of it so far, real CPU ns.
    all_ns: AtomicU64,
    /// The thread's CPU time at the last packet of which it is known, real ns.
    packet_cpu_ns: AtomicU64,
    /// What of it the clock shows.
    shown_ns: AtomicU64,
    /// The thread's CPU time when the clock was read last, real ns.
    read_cpu_ns: AtomicU64,
}

impl LateCost {
    /// So much more was found at a packet that left when the thread had used so much.
    #[inline(always)]
    pub fn add(&self, ns: u64, packet_cpu_ns: u64) {
        self.all_ns.fetch_add(ns, Relaxed);
        self.packet_cpu_ns.store(packet_cpu_ns, Relaxed);
    }

    /// The clock is read when the thread has used so much. What of it the clock does not show yet, real CPU ns.
    #[inline(always)]
    pub fn unseen_ns(&self, cpu_ns: u64) -> u64 {
        let all_ns = self.all_ns.load(Relaxed);
        // A packet may be told to have left when the thread had used what it had at its last look at its clock: what it has used
        // since is known to within a switch only.
        if self.packet_cpu_ns.load(Relaxed) >= self.read_cpu_ns.swap(cpu_ns, Relaxed) {
            self.shown_ns.store(all_ns, Relaxed);
        }
        all_ns.wrapping_sub(self.shown_ns.load(Relaxed))
    }

    /// From now on it is another's.
    #[inline(always)]
    pub fn take_over(&self, other: &LateCost) {
        for (mine, others) in self.words().into_iter().zip(other.words()) {
            mine.store(others.load(Relaxed), Relaxed);
        }
    }

    #[inline(always)]
    fn words(&self) -> [&AtomicU64; 4] {
        [&self.all_ns, &self.packet_cpu_ns, &self.shown_ns, &self.read_cpu_ns]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_packet_took_off_is_not_seen_amid_the_work_after_it() {
        let late = LateCost::default();
        assert_eq!(late.unseen_ns(100), 0);
        // Sent at 150, and known before the thread looks at its clock again.
        late.add(30, 150);
        assert_eq!([160, 170].map(|cpu_ns| late.unseen_ns(cpu_ns)), [0, 0]);
        // Sent at 200, and known only when it has begun to work by its clock.
        assert_eq!(late.unseen_ns(210), 0);
        late.add(25, 200);
        assert_eq!([220, 300].map(|cpu_ns| late.unseen_ns(cpu_ns)), [25, 25]);
        // The next one ends that work.
        late.add(10, 310);
        assert_eq!(late.unseen_ns(320), 0);
        // Told to have left at the last look.
        late.add(20, 320);
        assert_eq!([330, 340].map(|cpu_ns| late.unseen_ns(cpu_ns)), [0, 0]);
        let other = LateCost::default();
        other.take_over(&late);
        late.add(5, 335);
        assert_eq!([&late, &other].map(|l| l.unseen_ns(350)), [5, 0]);
    }
}
