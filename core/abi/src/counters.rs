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
    /// Charges begun and done, by hits and by the emulator for packets' senders. While they differ, charged time and
    /// threads' accounts disagree.
    pub charges_begun: AtomicU64,
    pub charges_done: AtomicU64,
    /// The part of what was charged by hits that was found in the kernel, real CPU ns.
    pub system_ns: AtomicU64,
    /// Hits that charged, and the CPU time that the blob saw them take, real ns.
    pub charging_hits: AtomicU64,
    pub seen_hits_ns: AtomicU64,
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
}

impl Shown {
    /// For a new thread.
    #[inline(always)]
    pub fn forget(&self) {
        for ns in [&self.thread_ns, &self.user_ns, &self.system_ns, &self.process_ns] {
            ns.store(0, Relaxed);
        }
    }
}
