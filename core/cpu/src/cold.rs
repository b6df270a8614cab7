//! Cold code: work after a long sleep costs more CPU time than the same work after a short one.
//!
//! Caches, translation buffers and branch predictors forget by the clock: whatever else uses the processor meanwhile
//! pushes a program's lines out. A dilated node sleeps TDF times as long, in real time, as the machine that it stands
//! for, so that its bursts of work start colder than they would there, and cost more. What is too much is not charged;
//! how much that is, `learn` knows.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::GAP_BINS;

/// CPU time of one burst that can be cold at most, real ns. Beyond it a program has everything it needs.
pub const COLD_MAX_NS: u64 = 1_000_000;
/// Discounts are parts of this.
pub const WHOLE: u64 = 65_536;
/// No burst is charged less than a quarter of its CPU time.
pub(crate) const DISCOUNT_MAX: u64 = WHOLE * 3 / 4;

/// Bin of a sleep: the binary logarithm of its microseconds, rounded down.
#[inline(always)]
pub const fn gap_bin(gap_ns: u64) -> usize {
    let us = gap_ns / 1_000;
    let bin = if us < 2 { 0 } else { 63 - us.leading_zeros() as usize };
    if bin < GAP_BINS { bin } else { GAP_BINS - 1 }
}

/// The part of CPU time that is charged, in a burst that began after the node had not run for `gap_ns` real ns and had taken
/// `burst_ns` before. Rounded up. `discount` is the node page's. Sleeps of the meter begin no burst: what rests for its slice
/// is hardly colder after it.
#[inline(always)]
pub fn warm_ns(discount: &[AtomicU32; GAP_BINS], gap_ns: u64, burst_ns: u64, cpu_ns: u64) -> u64 {
    let discount = discount.get(gap_bin(gap_ns)).map_or(0, |d| u64::from(d.load(Relaxed)));
    let discount = if discount < DISCOUNT_MAX { discount } else { DISCOUNT_MAX };
    let left = COLD_MAX_NS.saturating_sub(burst_ns);
    let cold = if cpu_ns < left { cpu_ns } else { left };
    cpu_ns - cold * discount / WHOLE
}

/// What a burst had taken after more CPU time, for [`warm_ns`].
#[inline(always)]
pub const fn burst_after(burst_ns: u64, cpu_ns: u64) -> u64 {
    let sum = burst_ns.saturating_add(cpu_ns);
    if sum < COLD_MAX_NS { sum } else { COLD_MAX_NS }
}
