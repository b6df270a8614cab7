//! EINTR that a meter's hit would swallow.
//!
//! When a signal of the program ends a blocking call, the tick that falls on the way out of the kernel is
//! delivered first (perf's SIGTRAP is synchronous to the kernel), and the kernel decides by *its* SA_RESTART that
//! the call is made again. The program's handler then runs before the restarted call and EINTR is lost: an alarm
//! meant to end a read would not. About one interrupted call in ten meets this at a grain of 100 µs.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{BLOB_ADDR, BLOB_LEN_MAX, METER_PAYS};
use diecast_core_syscalls::nr;

use crate::entry::{self, Below, Record, UContext, reg};
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
        // read, write, open, ioctl, readv, writev, sendfile, connect to recvmsg, wait4, fcntl, flock, creat, waitid,
        // openat, splice, tee, vmsplice, accept4, preadv, pwritev, open_by_handle_at, sendmmsg, getrandom,
        // copy_file_range, preadv2, pwritev2, openat2.
        n => matches!(
            n,
            0 | 1 | 2 | 16 | 19 | 20 | 40 | 42..=47 | 61 | 72 | 73 | 85 | 247 | 257 | 275 | 276 | 278 | 288 | 295 | 296 | 304
                | 307 | 318 | 326..=328 | 437
        ),
    }
}

/// Does the signal that the kernel delivers next have a handler without these flags?
fn next_handler_interrupts(blocked: u64, without: u64) -> bool {
    let mut left = sys::pending() & !blocked;
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

/// How many handlers of the program were entered so far, where they are counted; by the blob; and how many kicks there were.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    handled: u64,
    chained: u64,
    kicked: u64,
}

impl Seen {
    /// By the kernel.
    fn entered(self) -> u64 {
        self.handled.wrapping_sub(self.chained)
    }
}

pub fn seen() -> Seen {
    let own = &process().own;
    let (handled, chained) = (own.handled.load(Relaxed), own.chained.load(Relaxed));
    Seen { handled, chained, kicked: own.kicked.load(Relaxed) }
}

/// Did a call end with EINTR although no handler of the program ran since `before`? A process that is stopped and
/// continued while it waits meets this when a hit was due on the way: Linux would go on with the wait.
pub fn was_a_hit(r: sys::Ret, before: Seen) -> bool {
    r == sys::EINTR && node().metered.load(Relaxed) != 0 && seen().handled == before.handled
}

/// Did a call with a temporary mask end for a frame of ours (a hit, a kick, a SIGSYS or SIGTRAP of the program's), the
/// program's other signal still waiting? That frame restored the program's own mask before the other could be delivered
/// under the temporary one: the call is made again, and ends at once with the handler run. Where a handler did run, it may
/// have sent its signal again, as musl's does that cancels threads. A SIGTRAP that waits is another hit: what the program is let to have of it comes by SIGSYS.
#[inline(never)]
pub fn missed(r: sys::Ret, mask: u64, before: Seen) -> bool {
    let now = seen();
    let ours = node().metered.load(Relaxed) != 0 || (now.kicked, now.chained) != (before.kicked, before.chained);
    if r != sys::EINTR || !ours || now.entered() != before.entered() {
        return false;
    }
    sys::pending() & !mask & !signals::SIGTRAP_BIT != 0
}

/// Whether the kernel went back before a call that was made: `syscall` leaves the address after it in rcx.
fn is_made_again(u: &UContext) -> bool {
    let at = u.regs[reg::RIP];
    u.regs[reg::RCX] == at.wrapping_add(2) && user::get::<u16>(at) == Ok(SYSCALL)
}

fn is_ours(at: u64) -> bool {
    (BLOB_ADDR..BLOB_ADDR + BLOB_LEN_MAX).contains(&at)
}

/// At the end of a hit: where the kernel set up a restart and the program's own handler is about to run, the call
/// returns EINTR if that handler asks for it.
#[inline(never)]
pub fn give_back(u: &mut UContext) {
    let at = u.regs[reg::RIP];
    if !is_made_again(u) {
        return;
    }
    let inside = is_ours(at);
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
    if flags & SA_RESTART == 0 && is_made_again(u) && is_interruptible(u.regs[reg::RAX], u.regs[reg::RSI]) {
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

/// Before a handler of a signal by which a C library acts on its own threads. One that cancels looks whether the thread is
/// at the system call of a cancellation point, or before it, by its instruction pointer: musl's does, and glibc's from 2.41
/// on. So a call that has done nothing yet is taken back: the thread stands before its `syscall` again.
#[inline(never)]
pub extern "C" fn rewind(u: &mut UContext) {
    let at = u.regs[reg::RIP];
    let (record, below) = if at == entry::trampoline() || at == entry::trampoline_up() {
        let Ok(record) = user::get::<Record>(u.regs[reg::RSP]) else { return };
        (record, None)
    } else if has_done_nothing(u) {
        let Some((record, below)) = call_under_way(u.regs[reg::RSP]) else { return };
        if has_a_mask(record.nr) && !pays(u) {
            // It ends with EINTR.
            return;
        }
        (record, Some(below))
    } else {
        return;
    };
    let r = &mut u.regs;
    if let Some(b) = below {
        (r[reg::RBX], r[reg::RBP]) = (b.rbx, b.rbp);
        (r[reg::R12], r[reg::R13], r[reg::R14], r[reg::R15]) = (b.r12, b.r13, b.r14, b.r15);
    }
    (r[reg::RDI], r[reg::RSI], r[reg::RDX]) = (record.rdi, record.rsi, record.rdx);
    (r[reg::R10], r[reg::R8], r[reg::R9]) = (record.r10, record.r8, record.r9);
    (r[reg::RAX], r[reg::RCX], r[reg::R11]) = (record.nr, record.resume, record.rflags);
    (r[reg::RSP], r[reg::RIP], r[reg::EFL]) = (record.rsp, record.resume.wrapping_sub(2), record.rflags);
}

/// Whether a thread is before the call that it is served by, pays what it owes before that, or the kernel went back there to
/// make it again.
fn has_done_nothing(u: &UContext) -> bool {
    let at = u.regs[reg::RIP];
    if is_in_wait(u) {
        return at != entry::wait_end();
    }
    pays(u) || (is_ours(at) && at.wrapping_add(2) != entry::own_call_ip() && is_made_again(u))
}

/// Whether a thread pays what it owes before a wait (see `pay`).
pub fn pays(u: &UContext) -> bool {
    let at = u.regs[reg::RIP];
    let own_call = entry::own_call_ip();
    (at == own_call || at.wrapping_add(2) == own_call) && u.regs[reg::R8] == METER_PAYS
}

fn has_a_mask(number: u64) -> bool {
    let n = number as u32;
    matches!(n, nr::PPOLL | nr::PSELECT6 | nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 | nr::IO_PGETEVENTS | nr::RT_SIGSUSPEND)
}

/// The call that came by a signal and is served above this place of the stack.
fn call_under_way(rsp: u64) -> Option<(Record, Below)> {
    // Serving takes 1.6 KiB.
    const FAR: u64 = 4096;
    let mut at = rsp & !7;
    while at < rsp.wrapping_add(FAR) {
        if user::get::<u64>(at) == Ok(entry::trapped_after()) {
            let below = user::get::<Below>(at).ok()?;
            let record_at = at + size_of::<Below>() as u64;
            let record = user::get::<Record>(record_at).ok()?;
            // What an earlier one left, that a handler never returned to, lies elsewhere.
            let its_place = record.rsp.wrapping_sub(128 + size_of::<Record>() as u64) & !15;
            if its_place == record_at && user::get::<u16>(record.resume.wrapping_sub(2)) == Ok(SYSCALL) {
                return Some((record, below));
            }
        }
        at = at.wrapping_add(8);
    }
    None
}
