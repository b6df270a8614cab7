//! Bits that a thread hands on to its children and to its next image: they ride on its timer slack, which the kernel
//! inherits in just this way. A thread of a frame has 1 ns of slack; the bits add up to 31.
//!
//! Real-time threads have no slack, and the kernel keeps none for them: for these no bit is set.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_syscalls::nr;

use crate::sys::{self, Ret};
use crate::{entry, process, user};

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
    let slack = sys::own(nr::PRCTL, [PR_GET_TIMERSLACK, 0, 0, 0, 0, 0]);
    // Anything else is not a slack of ours.
    if (1..=1 + ALL as i64).contains(&slack) { (slack - 1) as u32 } else { 0 }
}

/// Sets this thread's bits.
pub fn store(bits: u32) {
    sys::own(nr::PRCTL, [PR_SET_TIMERSLACK, 1 + (bits & ALL) as u64, 0, 0, 0, 0]);
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
    let mut copy = Copy { at: 0, len: 0 };
    let mut program = [0u64; 2];
    let mut changed = a;
    let mode = if number == nr::PRCTL { (a[1] as u32).wrapping_sub(1) } else { a[0] as u32 };
    let is_filter = mode == SET_MODE_FILTER;
    if is_filter && let Some((at, len, count)) = with_way_through(a[2]) {
        copy = Copy { at, len };
        program = [count, at];
        changed[2] = &raw const program as u64;
    }
    // SAFETY: the program's own arguments, or a copy of its filter; judged by the kernel.
    let r = unsafe { sys::call(number, changed) };
    core::hint::black_box(&program);
    if copy.at != 0 {
        sys::own(sys::MUNMAP, [copy.at, copy.len, 0, 0, 0, 0]);
    }
    r
}

const SET_MODE_FILTER: u32 = 1;
/// Instructions that a filter may have.
const FILTER_MAX: u64 = 4096;

struct Copy {
    at: u64,
    len: u64,
}

/// A copy of the program's filter that begins by letting the blob's own calls through: address, length of the mapping
/// and instructions. What the program itself does, re-issued by the blob or not, is judged as before. None where the
/// kernel shall judge the arguments as they are.
#[inline(never)]
fn with_way_through(fprog: u64) -> Option<(u64, u64, u64)> {
    const PRIVATE_ANON: u64 = 0x22;
    const READ_WRITE: u64 = 3;
    const LOAD: u64 = 0x20;
    const EQUAL: u64 = 0x15;
    const RETURN: u64 = 0x06;
    const ALLOW: u64 = 0x7fff_0000;
    let count = user::get::<u64>(fprog).ok()? & 0xffff;
    let code = user::get::<u64>(fprog.wrapping_add(8)).ok()?;
    // struct sock_filter: code of 16 bits, jumps of 8 bits when it holds and when not, operand of 32 bits.
    let op = |code: u64, not: u64, k: u64| code | not << 24 | (k & 0xffff_ffff) << 32;
    let ip = entry::own_call_ip();
    // High and low half of the instruction pointer.
    let way = [op(LOAD, 0, 12), op(EQUAL, 3, ip >> 32), op(LOAD, 0, 8), op(EQUAL, 1, ip), op(RETURN, 0, ALLOW)];
    if count == 0 || count + way.len() as u64 > FILTER_MAX {
        return None;
    }
    let len = (count + way.len() as u64) * 8;
    let at = sys::own(sys::MMAP, [0, len, READ_WRITE, PRIVATE_ANON, u64::MAX, 0]);
    if at < 0 {
        return None;
    }
    let put = |i: u64, word: u64| {
        // SAFETY: within the mapping that was just made for these words.
        unsafe { ((at as u64 + 8 * i) as *mut u64).write(word) };
    };
    for (i, word) in way.iter().enumerate() {
        put(i as u64, *word);
    }
    for i in 0..count {
        match user::get::<u64>(code.wrapping_add(8 * i)) {
            Ok(word) => put(way.len() as u64 + i, word),
            Err(_) => {
                sys::own(sys::MUNMAP, [at as u64, len, 0, 0, 0, 0]);
                return None;
            }
        }
    }
    Some((at as u64, len, count + way.len() as u64))
}

/// May only numbers be used that the program used itself?
pub fn filtered() -> bool {
    process().inherited.filtered.load(Relaxed) != 0
}
