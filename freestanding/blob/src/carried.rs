//! Bits that a thread hands on to its children and to its next image: they ride on its timer slack, which the kernel
//! inherits in just this way. A thread of a frame has 1 ns of slack; the bits add up to 15.
//!
//! Real-time threads have no slack, and the kernel keeps none for them: for these no bit is set.

use crate::sys;

/// The thread blocks SIGTRAP, or SIGSYS, in the program's view.
pub const BLOCKS_SIGTRAP: u32 = 1;
pub const BLOCKS_SIGSYS: u32 = 2;
/// The program ignores SIGTRAP, or SIGSYS: it survives exec.
pub const IGNORES_SIGTRAP: u32 = 4;
pub const IGNORES_SIGSYS: u32 = 8;
const ALL: u32 = 15;

const PR_SET_TIMERSLACK: u64 = 29;
const PR_GET_TIMERSLACK: u64 = 30;

/// This thread's bits.
pub fn load() -> u32 {
    let slack = sys::plain(sys::PRCTL, [PR_GET_TIMERSLACK, 0, 0, 0, 0, 0]);
    // Anything else is not a slack of ours.
    if (1..=1 + ALL as i64).contains(&slack) { (slack - 1) as u32 } else { 0 }
}

/// Sets this thread's bits.
pub fn store(bits: u32) {
    sys::plain(sys::PRCTL, [PR_SET_TIMERSLACK, 1 + (bits & ALL) as u64, 0, 0, 0, 0]);
}
