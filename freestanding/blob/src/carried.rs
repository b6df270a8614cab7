//! Bits that a thread hands on to its children and to its next image: they ride on its timer slack, which the kernel
//! inherits in just this way. A thread of a frame has 1 ns of slack; the bits add up to 31.
//!
//! Real-time threads have no slack, and the kernel keeps none for them: for these no bit is set.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_syscalls::nr;

use crate::process;
use crate::sys::{self, Ret};

/// The thread blocks SIGTRAP, or SIGSYS, in the program's view.
pub const BLOCKS_SIGTRAP: u32 = 1;
pub const BLOCKS_SIGSYS: u32 = 2;
/// The program ignores SIGTRAP, or SIGSYS: it survives exec.
pub const IGNORES_SIGTRAP: u32 = 4;
pub const IGNORES_SIGSYS: u32 = 8;
/// A filter of the program's own judges the blob's calls too: only numbers that the program used itself.
pub const FILTERED: u32 = 16;
const ALL: u32 = 31;

const PR_SET_TIMERSLACK: u64 = 29;
const PR_GET_TIMERSLACK: u64 = 30;

/// This thread's bits.
pub fn load() -> u32 {
    let slack = sys::plain(nr::PRCTL, [PR_GET_TIMERSLACK, 0, 0, 0, 0, 0]);
    // Anything else is not a slack of ours.
    if (1..=1 + ALL as i64).contains(&slack) { (slack - 1) as u32 } else { 0 }
}

/// Sets this thread's bits.
pub fn store(bits: u32) {
    sys::plain(nr::PRCTL, [PR_SET_TIMERSLACK, 1 + (bits & ALL) as u64, 0, 0, 0, 0]);
}

/// prctl: the timer slack that the program sees, and filters of its own.
#[inline(never)]
pub fn prctl(a: [u64; 6]) -> Ret {
    const MACHINE_SLACK_NS: u64 = 50_000;
    let slack = &process().inherited.slack_v_ns;
    match a[0] as u32 as u64 {
        // Zero and less is the default.
        PR_SET_TIMERSLACK => {
            slack.store(if (a[1] as i64) > 0 { a[1] } else { 0 }, Relaxed);
            0
        }
        PR_GET_TIMERSLACK => match slack.load(Relaxed) {
            0 => MACHINE_SLACK_NS as Ret,
            v => v as Ret,
        },
        _ => install(nr::PRCTL, a),
    }
}

/// A seccomp filter of the program's own.
#[inline(never)]
pub fn install(number: u32, a: [u64; 6]) -> Ret {
    // Before it is there: the filter may refuse the call that sets the bit. One too many does no harm.
    store(load() | FILTERED);
    process().inherited.filtered.store(1, Relaxed);
    // SAFETY: the program's own arguments, judged by the kernel.
    unsafe { sys::call(number, a) }
}

/// May only numbers be used that the program used itself?
pub fn filtered() -> bool {
    process().inherited.filtered.load(Relaxed) != 0
}
