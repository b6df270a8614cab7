//! Sleeps and waits with a timeout. Each is re-issued with the same number, the time translated in a copy.
//!
//! A value that the kernel would refuse, or a pointer that can't be read, goes to the kernel as it is: errno
//! and its priority are then the kernel's own.

use diecast_core_syscalls::nr;

use crate::clock::{self, FOREVER, MONOTONIC};
use crate::signals::strip;
use crate::sys::{EFAULT, EINTR, ENOSYS, RESTART, Ret, as_is};
use crate::user::{self, Timespec, Timeval};
use crate::{carried, interrupt};

/// A call that Linux makes again when its process was stopped and continued: RESTART where a hit prevented it.
fn restartable(number: u32, a: [u64; 6]) -> Ret {
    let seen = interrupt::handled();
    let r = as_is(number, a);
    if interrupt::was_a_hit(r, seen) { RESTART } else { r }
}

/// These end with EINTR when their process is stopped and continued.
fn ends_when_stopped(number: u32) -> bool {
    matches!(
        number,
        nr::SEMTIMEDOP | nr::RT_SIGTIMEDWAIT | nr::EPOLL_WAIT | nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 | nr::IO_GETEVENTS
    )
}

/// A valid timespec of the program, or None when the kernel must refuse it.
fn valid_timespec(addr: u64) -> Option<Timespec> {
    match user::get::<Timespec>(addr) {
        Ok(t) if clock::valid(t) => Some(t),
        _ => None,
    }
}

/// What is left of `asked`, in virtual time; never more than was asked.
fn remaining(asked: Timespec, left: Timespec) -> Timespec {
    let ns = clock::wait_left(left);
    let cap = clock::ns_of(asked);
    if ns >= cap { asked } else { clock::timespec(ns) }
}

/// The real instant at which a wait made now ends.
fn end_of(real: Timespec) -> u64 {
    clock::now_real().0.saturating_add(clock::ns_of(real))
}

/// What is left of a wait that must go on; at least 1 ns, since zero can mean something else.
fn left_until(end_r_ns: u64) -> Timespec {
    if end_r_ns == u64::MAX { FOREVER } else { clock::timespec(end_r_ns.saturating_sub(clock::now_real().0).max(1)) }
}

#[inline(never)]
pub fn nanosleep(a: [u64; 6]) -> Ret {
    let Some(t) = valid_timespec(a[0]) else { return as_is(nr::NANOSLEEP, a) };
    let mut left = Timespec { sec: 0, nsec: 0 };
    let mut real = clock::wait_in(t);
    let end = end_of(real);
    let r = loop {
        let r = restartable(nr::NANOSLEEP, [&raw const real as u64, &raw mut left as u64, 0, 0, 0, 0]);
        if r != RESTART {
            break r;
        }
        real = left_until(end);
    };
    if r == EINTR && a[1] != 0 && user::put(a[1], remaining(t, left)).is_err() { EFAULT } else { r }
}

#[inline(never)]
pub fn clock_nanosleep(a: [u64; 6]) -> Ret {
    let Some(t) = valid_timespec(a[2]) else { return as_is(nr::CLOCK_NANOSLEEP, a) };
    let id = a[0] as i32;
    if a[1] & 1 != 0 {
        let real = clock::wait_until(id, t);
        loop {
            let r = restartable(nr::CLOCK_NANOSLEEP, [a[0], a[1], &raw const real as u64, 0, 0, 0]);
            if r != RESTART {
                return r;
            }
        }
    }
    let mut left = Timespec { sec: 0, nsec: 0 };
    let mut real = if clock::is_cpu(id) { clock::rel_in(id, t) } else { clock::wait_in(t) };
    let end = end_of(real);
    let r = loop {
        let r = restartable(nr::CLOCK_NANOSLEEP, [a[0], a[1], &raw const real as u64, &raw mut left as u64, 0, 0]);
        if r != RESTART {
            break r;
        }
        real = if clock::is_cpu(id) { left } else { left_until(end) };
    };
    if r == EINTR && a[3] != 0 && user::put(a[3], remaining(t, left)).is_err() { EFAULT } else { r }
}

/// poll, epoll_wait and epoll_pwait: an int of milliseconds in argument `at`, positive.
///
/// Real milliseconds are too coarse for a frame of any TDF: the calls that take nanoseconds serve these, unless a
/// filter of the program's own might refuse them.
#[inline(never)]
pub fn milliseconds(number: u32, a: [u64; 6], at: usize) -> Ret {
    let ms = a[at] as i32;
    if ms <= 0 {
        return as_is(number, a);
    }
    if carried::filtered() {
        return whole_milliseconds(number, a, at);
    }
    let mut real = clock::wait_in(Timespec { sec: ms as i64 / 1000, nsec: ms as i64 % 1000 * 1_000_000 });
    let time = &raw mut real as u64;
    let r = match number {
        // The kernel leaves in `real` what is left.
        nr::POLL => loop {
            let r = restartable(nr::PPOLL, [a[0], a[1], time, 0, 8, 0]);
            if r != RESTART {
                break r;
            }
        },
        nr::EPOLL_PWAIT => as_is(nr::EPOLL_PWAIT2, [a[0], a[1], a[2], time, a[4], a[5]]),
        _ => as_is(nr::EPOLL_PWAIT2, [a[0], a[1], a[2], time, 0, 8]),
    };
    if r == ENOSYS { whole_milliseconds(number, a, at) } else { r }
}

#[inline(never)]
fn whole_milliseconds(number: u32, mut a: [u64; 6], at: usize) -> Ret {
    let ms = a[at] as i32;
    let ns = clock::span_in(MONOTONIC, ms as u64 * 1_000_000);
    // Rounded up to whole milliseconds; what an int can't hold is waited for in pieces.
    let mut left_ms = ns / 1_000_000 + !ns.is_multiple_of(1_000_000) as u64;
    loop {
        let piece = if left_ms > i32::MAX as u64 { i32::MAX as u64 } else { left_ms };
        a[at] = piece;
        let end = clock::now_real().0.saturating_add(piece * 1_000_000);
        let r = loop {
            let r = if number == nr::POLL { restartable(number, a) } else { as_is(number, a) };
            if r != RESTART {
                break r;
            }
            let left = end.saturating_sub(clock::now_real().0);
            a[at] = left / 1_000_000 + !left.is_multiple_of(1_000_000) as u64;
        };
        left_ms -= piece;
        if r != 0 || left_ms == 0 {
            return r;
        }
    }
}

/// A copy of the program's mask without our signals; the original pointer when the kernel must refuse it. `copy`
/// keeps its value (all blocked: no signal can be missed) when there is no mask.
#[inline(always)]
fn mask_copy(addr: u64, size: u64, copy: &mut u64) -> u64 {
    if addr == 0 || size != 8 {
        return addr;
    }
    match user::get::<u64>(addr) {
        Ok(m) => {
            *copy = strip(m);
            copy as *mut u64 as u64
        }
        Err(_) => addr,
    }
}

#[inline(never)]
pub fn epoll_pwait(mut a: [u64; 6]) -> Ret {
    let mut mask = u64::MAX;
    a[4] = mask_copy(a[4], a[5], &mut mask);
    loop {
        let r = milliseconds(nr::EPOLL_PWAIT, a, 3);
        if !interrupt::missed(r, mask) {
            return r;
        }
    }
}

#[inline(never)]
pub fn epoll_pwait2(mut a: [u64; 6]) -> Ret {
    let mut mask = u64::MAX;
    a[4] = mask_copy(a[4], a[5], &mut mask);
    loop {
        let r = relative(nr::EPOLL_PWAIT2, a, 3);
        if !interrupt::missed(r, mask) {
            return r;
        }
    }
}

#[inline(never)]
pub fn ppoll(mut a: [u64; 6]) -> Ret {
    let mut mask = u64::MAX;
    a[3] = mask_copy(a[3], a[4], &mut mask);
    loop {
        let r = in_out(nr::PPOLL, a, 2);
        if !interrupt::missed(r, mask) {
            return r;
        }
    }
}

/// A relative timespec that the kernel overwrites with what is left (unless it was zero).
#[inline(never)]
fn in_out(number: u32, mut a: [u64; 6], at: usize) -> Ret {
    let addr = a[at];
    if addr == 0 {
        return as_is(number, a);
    }
    let Some(t) = valid_timespec(addr) else { return as_is(number, a) };
    let mut real = clock::wait_in(t);
    a[at] = &raw mut real as u64;
    let r = loop {
        let r = restartable(number, a);
        if r != RESTART {
            break r;
        }
    };
    if t.sec != 0 || t.nsec != 0 {
        // A write that fails is ignored, as in the kernel.
        let _ = user::put(addr, remaining(t, real));
    }
    r
}

/// pselect6 and io_pgetevents: timespec in a4, `{mask*, size}` in a5.
#[inline(never)]
#[expect(unused_assignments, reason = "the kernel reads the copy through its address")]
pub fn with_packed_mask(number: u32, mut a: [u64; 6]) -> Ret {
    let mut mask = u64::MAX;
    let mut packed = [0u64; 2];
    if a[5] != 0
        && let Ok(p) = user::get::<[u64; 2]>(a[5])
    {
        packed = [mask_copy(p[0], p[1], &mut mask), p[1]];
        a[5] = &raw const packed as u64;
    }
    loop {
        let r = if number == nr::PSELECT6 { in_out(number, a, 4) } else { io_wait(number, a) };
        if !interrupt::missed(r, mask) {
            return r;
        }
    }
}

pub fn io_getevents(a: [u64; 6]) -> Ret {
    io_wait(nr::IO_GETEVENTS, a)
}

/// The AIO waits do not validate: a negative time never ends, too many nanoseconds are carried over.
#[inline(never)]
fn io_wait(number: u32, mut a: [u64; 6]) -> Ret {
    if a[4] == 0 {
        return as_is(number, a);
    }
    let Ok(t) = user::get::<Timespec>(a[4]) else { return as_is(number, a) };
    if t.sec < 0 || t.nsec < 0 {
        return as_is(number, a);
    }
    let carried = Timespec { sec: t.sec.saturating_add(t.nsec / 1_000_000_000), nsec: t.nsec % 1_000_000_000 };
    let real = clock::wait_in(carried);
    a[4] = &raw const real as u64;
    if number == nr::IO_GETEVENTS {
        return as_is(number, a);
    }
    // Linux begins this one anew, with its whole timeout.
    loop {
        let r = restartable(number, a);
        if r != RESTART {
            return r;
        }
    }
}

/// A timeval in and out; too many microseconds are legal.
#[inline(never)]
pub fn select(mut a: [u64; 6]) -> Ret {
    let addr = a[4];
    let t = match user::get::<Timeval>(addr) {
        Ok(t) if t.sec >= 0 && t.usec >= 0 => t,
        _ => return as_is(nr::SELECT, a),
    };
    let asked = Timespec { sec: t.sec.saturating_add(t.usec / 1_000_000), nsec: t.usec % 1_000_000 * 1000 };
    let real = clock::wait_in(asked);
    // Microseconds, rounded up; a carry into a full second is legal here.
    let given = Timeval { sec: real.sec, usec: (real.nsec + 999) / 1000 };
    let mut copy = given;
    a[4] = &raw mut copy as u64;
    let r = loop {
        let r = restartable(nr::SELECT, a);
        if r != RESTART {
            break r;
        }
    };
    // The kernel leaves it alone under the STICKY_TIMEOUTS personality; in any other case time has passed.
    let written = copy.sec != given.sec || copy.usec != given.usec;
    if written {
        let left = remaining(asked, Timespec { sec: copy.sec, nsec: copy.usec * 1000 });
        let _ = user::put(addr, Timeval { sec: left.sec, usec: left.nsec / 1000 });
    }
    r
}

/// A relative timespec that is only read.
#[inline(never)]
#[expect(unused_assignments, reason = "the kernel reads what is left through its address")]
pub fn relative(number: u32, mut a: [u64; 6], at: usize) -> Ret {
    let addr = match a.get(at) {
        Some(p) if *p != 0 => *p,
        _ => return as_is(number, a),
    };
    let Some(t) = valid_timespec(addr) else { return as_is(number, a) };
    let mut real = clock::wait_in(t);
    let end = end_of(real);
    if let Some(p) = a.get_mut(at) {
        *p = &raw mut real as u64;
    }
    loop {
        let r = if ends_when_stopped(number) { as_is(number, a) } else { restartable(number, a) };
        if r != RESTART {
            return r;
        }
        real = left_until(end);
    }
}

/// An absolute timespec on `id` that is only read. {0,0} has passed and stays so.
#[inline(never)]
pub fn absolute(number: u32, mut a: [u64; 6], at: usize, id: i32) -> Ret {
    let addr = match a.get(at) {
        Some(p) if *p != 0 => *p,
        _ => return as_is(number, a),
    };
    let Some(t) = valid_timespec(addr) else { return as_is(number, a) };
    let real = clock::wait_until(id, t);
    if let Some(p) = a.get_mut(at) {
        *p = &raw const real as u64;
    }
    loop {
        let r = restartable(number, a);
        if r != RESTART {
            return r;
        }
    }
}

#[inline(never)]
pub fn futex(a: [u64; 6]) -> Ret {
    const WAIT: u32 = 0;
    const LOCK_PI: u32 = 6;
    const CLOCK_REALTIME: u32 = 0x100;
    let op = a[1] as u32;
    match op & !0x180 {
        WAIT => relative(nr::FUTEX, a, 3),
        LOCK_PI => absolute(nr::FUTEX, a, 3, clock::REALTIME),
        _ => absolute(nr::FUTEX, a, 3, if op & CLOCK_REALTIME != 0 { clock::REALTIME } else { MONOTONIC }),
    }
}

/// The timeout is looked at after each datagram and written back only when there was one.
#[inline(never)]
pub fn recvmmsg(mut a: [u64; 6]) -> Ret {
    let addr = a[4];
    let Some(t) = valid_timespec(addr) else { return as_is(nr::RECVMMSG, a) };
    let mut real = clock::wait_in(t);
    if real.sec == FOREVER.sec {
        real = Timespec { sec: 1 << 32, nsec: 0 };
    }
    a[4] = &raw mut real as u64;
    let r = as_is(nr::RECVMMSG, a);
    if r > 0 && user::put(addr, remaining(t, real)).is_err() { EFAULT } else { r }
}
