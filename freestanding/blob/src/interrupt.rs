//! EINTR that a meter's hit would swallow.
//!
//! When a signal of the program ends a blocking call, the tick that falls on the way out of the kernel is
//! delivered first (perf's SIGTRAP is synchronous to the kernel), and the kernel decides by *its* SA_RESTART that
//! the call is made again. The program's handler then runs before the restarted call and EINTR is lost: an alarm
//! meant to end a read would not. About one interrupted call in ten meets this at a grain of 100 µs.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{BLOB_ADDR, BLOB_LEN_MAX};
use diecast_core_syscalls::nr;

use crate::entry::{self, UContext, reg};
use crate::{clock, node, process, signals, sys, user};

const SA_RESTART: u64 = 0x1000_0000;
/// The bytes of `syscall`.
const SYSCALL: u16 = 0x050f;
/// Number of restart_syscall.
const RESTART_SYSCALL: u64 = 219;

/// Calls that end with EINTR when a handler without SA_RESTART runs. Others either never restart, or restart
/// whatever the handler's flags are (fork, and futexes with priority inheritance).
fn is_interruptible(number: u64, op: u64) -> bool {
    match number as u32 {
        nr::FUTEX => !matches!(op as u32 & !0x180, 6 | 11 | 13),
        nr::FUTEX_WAITV | nr::FUTEX_WAIT2 | nr::MQ_TIMEDSEND | nr::MQ_TIMEDRECEIVE | nr::RECVMMSG => true,
        // read, write, open, ioctl, readv, writev, sendfile, connect to recvmsg, wait4, fcntl, flock, waitid,
        // openat, splice, accept4, sendmmsg, getrandom.
        n => matches!(n, 0 | 1 | 2 | 16 | 19 | 20 | 40 | 42..=47 | 61 | 72 | 73 | 247 | 257 | 275 | 288 | 307 | 318),
    }
}

/// Does the signal that the kernel delivers next have a handler without these flags?
fn next_handler_interrupts(blocked: u64, without: u64) -> bool {
    let mut pending = 0u64;
    sys::own(nr::RT_SIGPENDING, [&raw mut pending as u64, 8, 0, 0, 0, 0]);
    let mut left = pending & !blocked;
    while left != 0 {
        let signal = left.trailing_zeros() as u64 + 1;
        left &= left - 1;
        let mut action = [0u64; 4];
        match signals::view(signal) {
            Some(of_the_program) => action = of_the_program,
            None => _ = sys::own(nr::RT_SIGACTION, [signal, 0, &raw mut action as u64, 8, 0, 0]),
        }
        // Ignored and default actions don't decide: the first handler does.
        if action[0] > 1 {
            return without == 0 || action[1] & without == 0;
        }
    }
    false
}

/// How many handlers of the program were entered so far.
pub fn handled() -> u64 {
    process().own.handled.load(Relaxed)
}

/// Did a call end with EINTR although no handler of the program ran since `seen`? A process that is stopped and
/// continued while it waits meets this when a hit was due on the way: Linux would go on with the wait.
pub fn was_a_hit(r: sys::Ret, seen: u64) -> bool {
    r == sys::EINTR && node().metered.load(Relaxed) != 0 && handled() == seen
}

/// Did a call with a temporary mask end for a hit, the program's signal still waiting? The hit's frame restored the
/// program's own mask before that signal could be delivered under the temporary one: the call is made again, and
/// ends at once with the handler run. A SIGTRAP that waits is another hit: what the program is let to have of it comes by
/// SIGSYS.
#[inline(never)]
pub fn missed(r: sys::Ret, mask: u64) -> bool {
    if r != sys::EINTR {
        return false;
    }
    let mut pending = 0u64;
    sys::own(nr::RT_SIGPENDING, [&raw mut pending as u64, 8, 0, 0, 0, 0]);
    pending & !mask & !signals::SIGTRAP_BIT != 0
}

/// At the end of a hit: where the kernel set up a restart and the program's own handler is about to run, the call
/// returns EINTR if that handler asks for it.
#[inline(never)]
pub fn give_back(u: &mut UContext) {
    let at = u.regs[reg::RIP];
    // `syscall` leaves the address after it in rcx: the call was made, and the kernel went back before it.
    if u.regs[reg::RCX] != at.wrapping_add(2) || user::get::<u16>(at) != Ok(SYSCALL) {
        return;
    }
    let inside = (BLOB_ADDR..BLOB_ADDR + BLOB_LEN_MAX).contains(&at);
    if u.regs[reg::RAX] == RESTART_SYSCALL {
        // Stopped and continued: the kernel was about to go on with the wait when the hit came, and forgets how when
        // the hit returns. The blob's own waits know; the program's can only be a poll without a timeout.
        if next_handler_interrupts(u.mask, 0) {
            return;
        }
        if inside {
            u.regs[reg::RAX] = sys::RESTART as u64;
            u.regs[reg::RIP] = at.wrapping_add(2);
        } else {
            u.regs[reg::RAX] = nr::POLL as u64;
        }
        return;
    }
    if is_interruptible(u.regs[reg::RAX], u.regs[reg::RSI]) && next_handler_interrupts(u.mask, SA_RESTART) {
        u.regs[reg::RAX] = sys::EINTR as u64;
        u.regs[reg::RIP] = at.wrapping_add(2);
    }
}

/// Before a handler of the program's with these flags runs for SIGSYS or SIGTRAP: the kernel made up its mind whether
/// the interrupted call is made again by the flags of ours, which are SA_RESTART for those that the program blocks or
/// ignores.
#[inline(never)]
pub fn by_flags(u: &mut UContext, flags: u64) {
    let at = u.regs[reg::RIP];
    let is_restarted = u.regs[reg::RCX] == at.wrapping_add(2) && user::get::<u16>(at) == Ok(SYSCALL);
    if flags & SA_RESTART == 0 && is_restarted && is_interruptible(u.regs[reg::RAX], u.regs[reg::RSI]) {
        u.regs[reg::RAX] = sys::EINTR as u64;
        u.regs[reg::RIP] = at.wrapping_add(2);
    }
}

/// Whether a thread is in a wait, or just before or after it.
fn is_in_wait(u: &UContext) -> bool {
    (entry::wait_begin()..=entry::wait_end()).contains(&u.regs[reg::RIP])
}

/// After a hit.
#[inline(never)]
pub fn after_change(u: &mut UContext) {
    if is_in_wait(u) && u.regs[reg::RBX] as u32 != clock::generation() as u32 {
        after_kick(u);
    }
}

/// At a kick, and after a hit where the frame's map has changed since the wait that was interrupted was translated: it is
/// made again. Whoever kicks a thread that runs can't know whether it has translated anew already. One that has not begun
/// yet goes back, and one that the kick or the freezing has ended does not show it. Where a handler of the program ends it
/// too, that stays so.
#[inline(never)]
pub fn after_kick(u: &mut UContext) {
    if !is_in_wait(u) {
        return;
    }
    let (at, end) = (u.regs[reg::RIP], entry::wait_end());
    let (number, op) = (u.regs[reg::RAX], u.regs[reg::RSI]);
    if at == end {
        if number as sys::Ret != sys::EINTR || next_handler_interrupts(u.mask, 0) {
            return;
        }
    } else if u.regs[reg::RCX] == end && is_interruptible(number, op) && next_handler_interrupts(u.mask, SA_RESTART) {
        // The kernel went back by the flags of SIGTRAP's handler, not by those of the program's.
        u.regs[reg::RAX] = sys::EINTR as u64;
        u.regs[reg::RIP] = end;
        return;
    }
    u.regs[reg::RAX] = sys::RESTART as u64;
    u.regs[reg::RIP] = end;
}
