//! Bits that a thread hands on to its children and to its next image: they ride on its timer slack, which the kernel
//! inherits in just this way. A thread of a frame has 1 ns of slack; the bits add up to 255.
//!
//! Real-time threads have no slack, and the kernel keeps none for them: for these no bit is set.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_syscalls::nr;

use crate::clock::REALTIME;
use crate::filter::{ALLOW, EQUAL, IP_HIGH, IP_LOW, LOAD, NUMBER, RETURN, RT_SIGRETURN, SET_MODE_FILTER, op};
use crate::sys::{self, EFAULT, EINVAL, Ret, as_is};
use crate::{entry, process, tsc, user};

/// The thread blocks SIGTRAP, SIGSYS or SIGSEGV in the program's view.
pub const BLOCKS_SIGTRAP: u32 = 1;
pub const BLOCKS_SIGSYS: u32 = 2;
pub const BLOCKS_SIGSEGV: u32 = 4;
/// The program ignores SIGTRAP, SIGSYS or SIGSEGV: it survives exec.
pub const IGNORES_SIGTRAP: u32 = 8;
pub const IGNORES_SIGSYS: u32 = 16;
pub const IGNORES_SIGSEGV: u32 = 32;
/// A filter of the program's own judges the blob's calls too: only numbers that the program used itself.
pub const FILTERED: u32 = 64;
/// The thread has asked for SIGSEGV in place of a TSC (PR_SET_TSC).
pub const REFUSES_TSC: u32 = 128;
const ALL: u32 = 255;

const PR_SET_TIMERSLACK: u64 = 29;
const PR_GET_TIMERSLACK: u64 = 30;
const PR_GET_SECCOMP: u64 = 21;
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;

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

/// prctl: the timer slack that the program sees, filters of its own, and whether it has a TSC.
#[inline(never)]
pub fn prctl(a: [u64; 6]) -> Ret {
    const MACHINE_SLACK_NS: u64 = 50_000;
    let slack = &process().inherited.slack_v_ns;
    match a[0] as u32 as u64 {
        // Zero is the default.
        PR_SET_TIMERSLACK => {
            slack.store(a[1], Relaxed);
            0
        }
        PR_GET_TIMERSLACK => match slack.load(Relaxed) {
            0 => MACHINE_SLACK_NS as Ret,
            v => v as Ret,
        },
        // The frame's own filter is no mode of the program's.
        PR_GET_SECCOMP if !filtered() => 0,
        PR_GET_SECCOMP => as_is(nr::PRCTL, a),
        // The meter's own calls would be the program's to answer: SIGSYS within a hit kills.
        PR_SET_SYSCALL_USER_DISPATCH if a[1] != 0 => EINVAL,
        PR_SET_SYSCALL_USER_DISPATCH => as_is(nr::PRCTL, a),
        tsc::PR_GET_TSC => tsc::get(a),
        tsc::PR_SET_TSC => tsc::set(a),
        _ => install(nr::PRCTL, a),
    }
}

/// A seccomp filter of the program's own.
#[inline(never)]
pub fn install(number: u32, a: [u64; 6]) -> Ret {
    // Before it is there: the filter may refuse the call that sets the bit.
    let before = load();
    store(before | FILTERED);
    process().inherited.filtered.fetch_add(1, Relaxed);
    let r = install_copy(number, a);
    // A thread's number, or a descriptor, are answers too: of a filter for all threads that was not installed, or was.
    if r < 0 {
        process().inherited.filtered.fetch_sub(1, Relaxed);
        store(before);
    }
    r
}

#[inline(never)]
fn install_copy(number: u32, a: [u64; 6]) -> Ret {
    let mode = if number == nr::PRCTL { (a[1] as u32).wrapping_sub(1) } else { a[0] as u32 };
    let copy = if mode == SET_MODE_FILTER { with_way_through(a[2]) } else { None };
    let Some(copy) = copy else { return as_is(number, a) };
    let mut changed = a;
    changed[2] = &raw const copy as u64;
    let r = as_is(number, changed);
    core::hint::black_box(&copy);
    sys::own(sys::MUNMAP, [copy.code, copy.count * 8, 0, 0, 0, 0]);
    r
}

/// Instructions that a filter may have.
const FILTER_MAX: u64 = 4096;

/// `struct sock_fprog`; the code is a mapping of its own, of 8 bytes an instruction.
#[repr(C)]
struct Program {
    count: u64,
    code: u64,
}

/// A copy of the program's filter that begins by letting the blob's own calls through, and the return from its handlers: a
/// program without handlers need not allow that. What the program itself does,
/// re-issued by the blob or not, is judged as before. None where the kernel shall judge the arguments as they are.
#[inline(never)]
fn with_way_through(fprog: u64) -> Option<Program> {
    const PRIVATE_ANON: u64 = 0x22;
    const READ_WRITE: u64 = 3;
    let count = user::get::<u64>(fprog).ok()? & 0xffff;
    let code = user::get::<u64>(fprog.wrapping_add(8)).ok()?;
    let ip = entry::own_call_ip();
    // Where its handlers return; in the blob as well, so that the upper halves are equal.
    let back = entry::restorer() + entry::RESTORER_LEN;
    let way = [
        op(LOAD, 0, 0, IP_HIGH),
        op(EQUAL, 0, 6, ip >> 32),
        op(LOAD, 0, 0, IP_LOW),
        op(EQUAL, 3, 0, ip),
        op(EQUAL, 0, 3, back),
        op(LOAD, 0, 0, NUMBER),
        op(EQUAL, 0, 1, RT_SIGRETURN),
        op(RETURN, 0, 0, ALLOW),
    ];
    let all = count + way.len() as u64;
    if count == 0 || all > FILTER_MAX {
        return None;
    }
    let at = sys::own(sys::MMAP, [0, all * 8, READ_WRITE, PRIVATE_ANON, u64::MAX, 0]);
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
                sys::own(sys::MUNMAP, [at as u64, all * 8, 0, 0, 0, 0]);
                return None;
            }
        }
    }
    Some(Program { count: all, code: at as u64 })
}

/// What filters of the program's answer to a call that the frame serves without one of its number: it is made once so that
/// nothing comes of it. None where they let it be. (alarm, which ends the one before, has it made in its place.)
#[inline(never)]
pub fn refused(number: u32, a: [u64; 6]) -> Option<Ret> {
    // The kernel can't read it.
    const NOWHERE: u64 = 8;
    let mut time = [0u64; 2];
    let (harmless, answer) = match number {
        nr::CLOCK_GETTIME => ([a[0], &raw mut time as u64, 0, 0, 0, 0], 0),
        nr::GETTIMEOFDAY | nr::TIME | nr::TIMES => ([0; 6], 0),
        nr::CLOCK_SETTIME | nr::CLOCK_ADJTIME if a[0] as i32 == REALTIME => ([a[0], NOWHERE, 0, 0, 0, 0], EFAULT),
        nr::SETTIMEOFDAY | nr::ADJTIMEX => ([NOWHERE, 0, 0, 0, 0, 0], EFAULT),
        _ => return None,
    };
    let r = sys::plain(number, harmless);
    if r < 0 && r != answer { Some(r) } else { None }
}

/// May only numbers be used that the program used itself?
pub fn filtered() -> bool {
    process().inherited.filtered.load(Relaxed) != 0
}
