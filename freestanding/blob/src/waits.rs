//! Sleeps and waits with a timeout. Each is re-issued with the same number, the time translated in a copy.
//!
//! A value that the kernel would refuse, or a pointer that can't be read, goes to the kernel as it is: errno
//! and its priority are then the kernel's own.

use core::mem::take;

use diecast_core_syscalls::nr;

use crate::clock::{self, FOREVER, MONOTONIC, Wait};
use crate::entry::{self, WaitCall};
use crate::signals::{TemporaryMask, strip, took_kick};
use crate::sys::{EAGAIN, EFAULT, EINTR, ENOSYS, ETIMEDOUT, RESTART, Ret, as_is};
use crate::user::{self, Timespec, Timeval};
use crate::{carried, interrupt, meter, pay};

/// A call with a time that one generation of the frame's map translated: RESTART where that has changed.
fn timed(number: u32, args: [u64; 6], generation: u64) -> Ret {
    // SAFETY: the program's own arguments, judged by the kernel, and pointers to locals that live on.
    let r = unsafe { entry::wait(&WaitCall { nr: number as u64, args, generation }) };
    if number == nr::RT_SIGTIMEDWAIT && took_kick(r, args[1]) {
        return RESTART;
    }
    // Many waits are frozen where they are, their timers running: whether this end is the right one, the next try says.
    if is_timeout(number, r) && clock::generation() != generation { RESTART } else { r }
}

/// Whether this result says that time is up, and nothing else.
fn is_timeout(number: u32, r: Ret) -> bool {
    match number {
        nr::NANOSLEEP
        | nr::CLOCK_NANOSLEEP
        | nr::POLL
        | nr::PPOLL
        | nr::SELECT
        | nr::PSELECT6
        | nr::EPOLL_WAIT
        | nr::EPOLL_PWAIT
        | nr::EPOLL_PWAIT2
        | nr::IO_GETEVENTS
        | nr::IO_PGETEVENTS => r == 0,
        nr::SEMTIMEDOP | nr::RT_SIGTIMEDWAIT => r == EAGAIN,
        _ => r == ETIMEDOUT,
    }
}

/// The same of a call that Linux makes again when its process was stopped and continued: RESTART also where a hit
/// prevented that.
fn restartable(number: u32, a: [u64; 6], generation: u64) -> Ret {
    let seen = interrupt::seen();
    let r = timed(number, a, generation);
    if interrupt::was_a_hit(r, seen) { RESTART } else { r }
}

/// The one or the other, by what Linux does.
fn as_when_stopped(number: u32, a: [u64; 6], generation: u64) -> Ret {
    if ends_when_stopped(number) { timed(number, a, generation) } else { restartable(number, a, generation) }
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

#[inline(never)]
pub fn nanosleep(a: [u64; 6]) -> Ret {
    let Some(t) = valid_timespec(a[0]) else { return as_is(nr::NANOSLEEP, a) };
    let mut left = Timespec { sec: 0, nsec: 0 };
    pay::before_wait();
    let wait = Wait::new(t);
    let r = loop {
        let (real, generation) = wait.left();
        let r = restartable(nr::NANOSLEEP, [&raw const real as u64, &raw mut left as u64, 0, 0, 0, 0], generation);
        if r != RESTART {
            break r;
        }
    };
    if r == EINTR && a[1] != 0 && user::put(a[1], remaining(t, left)).is_err() { EFAULT } else { r }
}

#[inline(never)]
pub fn clock_nanosleep(a: [u64; 6]) -> Ret {
    let Some(t) = valid_timespec(a[2]) else { return as_is(nr::CLOCK_NANOSLEEP, a) };
    let id = a[0] as i32;
    if clock::is_cpu(id) {
        return cpu_sleep(a, id, t);
    }
    if a[1] & 1 != 0 {
        return absolute(nr::CLOCK_NANOSLEEP, a, 2, id);
    }
    let mut left = Timespec { sec: 0, nsec: 0 };
    pay::before_wait();
    let wait = Wait::new(t);
    let r = loop {
        let (real, generation) = wait.left();
        let call = [a[0], a[1], &raw const real as u64, &raw mut left as u64, 0, 0];
        let r = restartable(nr::CLOCK_NANOSLEEP, call, generation);
        if r != RESTART {
            break r;
        }
    };
    if r == EINTR && a[3] != 0 && user::put(a[3], remaining(t, left)).is_err() { EFAULT } else { r }
}

/// A sleep by a CPU clock. The kernel's has what the meter uses meanwhile too: it is asked again until the program's own
/// says that the sleep is over.
#[inline(never)]
fn cpu_sleep(a: [u64; 6], id: i32, t: Timespec) -> Ret {
    const TIMER_ABSTIME: u64 = 1;
    let read = || clock::read(id).map(clock::ns_of);
    let Ok(mut at) = read() else { return as_is(nr::CLOCK_NANOSLEEP, a) };
    let asked = clock::ns_of(t);
    let absolute = a[1] & TIMER_ABSTIME != 0;
    let end = if absolute { asked } else { at.saturating_add(asked) };
    let r = loop {
        let left = if end == u64::MAX { FOREVER } else { clock::timespec(end.saturating_sub(at)) };
        // Of zero the kernel says what is wrong with the clock, else nothing.
        let real = clock::rel_in(id, left);
        let call = [a[0], 0, &raw const real as u64, 0, 0, 0];
        let r = restartable(nr::CLOCK_NANOSLEEP, call, clock::generation());
        if r != 0 && r != RESTART && r != EINTR {
            break r;
        }
        // A clock that has gone with its process gives no more.
        let Ok(now) = read() else { break r };
        at = now;
        if r != RESTART && at >= end {
            break 0;
        }
        if r == EINTR {
            break r;
        }
    };
    if r == EINTR && !absolute && a[3] != 0 {
        return user::put(a[3], clock::timespec(end.saturating_sub(at).min(asked))).err().unwrap_or(r);
    }
    r
}

/// poll and epoll_wait: an int of milliseconds in argument `at`.
#[inline(never)]
pub fn poll(number: u32, a: [u64; 6], at: usize) -> Ret {
    let paid_ns = pay_for(number == nr::EPOLL_WAIT || a[1] != 0);
    milliseconds(number, a, at, paid_ns)
}

/// A timeout is mostly what lies between now and some event of the program's, and was found before the thread pays: it began by
/// then. One of a wait for nothing else is a sleep. What of it has passed, virtual ns.
fn pay_for(anything: bool) -> u64 {
    let paid_ns = pay::before_wait();
    if anything { paid_ns } else { 0 }
}

/// The same, for a thread that has paid for so much virtual time since it began, and epoll_pwait.
///
/// Real milliseconds are too coarse for a frame of any TDF: the calls that take nanoseconds serve these, unless a
/// filter of the program's own might refuse them.
#[inline(never)]
fn milliseconds(number: u32, a: [u64; 6], at: usize, paid_ns: u64) -> Ret {
    let ms = a[at] as i32;
    if ms <= 0 {
        return if ms == 0 { as_is(number, a) } else { untimed(number, a) };
    }
    if carried::filtered() {
        return whole_milliseconds(number, a, at, paid_ns);
    }
    let wait = Wait::since(Timespec { sec: ms as i64 / 1000, nsec: ms as i64 % 1000 * 1_000_000 }, paid_ns);
    let r = loop {
        let (mut real, generation) = wait.left();
        let time = &raw mut real as u64;
        let r = match number {
            nr::POLL => restartable(nr::PPOLL, [a[0], a[1], time, 0, 8, 0], generation),
            nr::EPOLL_PWAIT => timed(nr::EPOLL_PWAIT2, [a[0], a[1], a[2], time, a[4], a[5]], generation),
            _ => timed(nr::EPOLL_PWAIT2, [a[0], a[1], a[2], time, 0, 8], generation),
        };
        if r != RESTART {
            break r;
        }
    };
    if r == ENOSYS { whole_milliseconds(number, a, at, paid_ns) } else { r }
}

/// Rounded up to whole milliseconds; what an int can't hold is waited for in pieces.
#[inline(never)]
fn whole_milliseconds(number: u32, mut a: [u64; 6], at: usize, paid_ns: u64) -> Ret {
    let ms = a[at] as i64;
    let wait = Wait::since(Timespec { sec: ms / 1000, nsec: ms % 1000 * 1_000_000 }, paid_ns);
    loop {
        let (real, generation) = wait.left();
        let ns = clock::ns_of(real);
        let left_ms = ns / 1_000_000 + !ns.is_multiple_of(1_000_000) as u64;
        a[at] = left_ms.min(i32::MAX as u64);
        let r = if number == nr::POLL { restartable(number, a, generation) } else { timed(number, a, generation) };
        if r != RESTART && (r != 0 || wait.is_over()) {
            return r;
        }
    }
}

/// A copy of the program's mask without our signals; the original pointer when the kernel must refuse it. `copy`
/// keeps its value (all blocked: no signal can be missed) when there is no mask. The mask holds until `call` has ended.
#[inline(always)]
fn mask_copy(addr: u64, size: u64, copy: &mut u64, call: &mut Option<TemporaryMask>) -> u64 {
    if addr == 0 || size != 8 {
        return addr;
    }
    match user::get::<u64>(addr) {
        Ok(m) => {
            *copy = strip(m);
            *call = Some(TemporaryMask::begin(m));
            copy as *mut u64 as u64
        }
        Err(_) => addr,
    }
}

#[inline(never)]
pub fn epoll_pwait(mut a: [u64; 6]) -> Ret {
    let paid_ns = pay_for(true);
    let (mut mask, mut call) = (u64::MAX, None);
    a[4] = mask_copy(a[4], a[5], &mut mask, &mut call);
    loop {
        let seen = interrupt::seen();
        let r = milliseconds(nr::EPOLL_PWAIT, a, 3, paid_ns);
        if !interrupt::missed(r, mask, seen) {
            return r;
        }
    }
}

#[inline(never)]
pub fn epoll_pwait2(mut a: [u64; 6]) -> Ret {
    let paid_ns = pay_for(true);
    let (mut mask, mut call) = (u64::MAX, None);
    a[4] = mask_copy(a[4], a[5], &mut mask, &mut call);
    loop {
        let seen = interrupt::seen();
        let r = relative_since(nr::EPOLL_PWAIT2, a, 3, paid_ns);
        if !interrupt::missed(r, mask, seen) {
            return r;
        }
    }
}

#[inline(never)]
pub fn ppoll(mut a: [u64; 6]) -> Ret {
    let mut paid_ns = pay_for(a[1] != 0);
    let (mut mask, mut call) = (u64::MAX, None);
    a[3] = mask_copy(a[3], a[4], &mut mask, &mut call);
    loop {
        let seen = interrupt::seen();
        let r = in_out(nr::PPOLL, a, 2, take(&mut paid_ns));
        if !interrupt::missed(r, mask, seen) {
            return r;
        }
    }
}

/// A relative timespec that the kernel overwrites with what is left (unless it was zero).
#[inline(never)]
fn in_out(number: u32, mut a: [u64; 6], at: usize, paid_ns: u64) -> Ret {
    let addr = a[at];
    if addr == 0 {
        return as_is(number, a);
    }
    let Some(t) = valid_timespec(addr) else { return as_is(number, a) };
    let wait = Wait::since(t, paid_ns);
    let (mut given, mut real);
    let r = loop {
        let generation;
        (given, generation) = wait.left();
        real = given;
        a[at] = &raw mut real as u64;
        let r = restartable(number, a, generation);
        if r != RESTART {
            break r;
        }
    };
    // A kernel that leaves the time alone (STICKY_TIMEOUTS) leaves it as it was asked for.
    if (t.sec != 0 || t.nsec != 0) && (real.sec, real.nsec) != (given.sec, given.nsec) {
        // A write that fails is ignored, as in the kernel.
        let _ = user::put(addr, remaining(t, real));
    }
    r
}

/// pselect6 and io_pgetevents: timespec in a4, `{mask*, size}` in a5.
#[inline(never)]
#[expect(unused_assignments, reason = "the kernel reads the copy through its address")]
pub fn with_packed_mask(number: u32, mut a: [u64; 6]) -> Ret {
    // Made again it goes on with what was left.
    let mut paid_ns = pay_for(a[0] != 0);
    let (mut mask, mut call) = (u64::MAX, None);
    let mut packed = [0u64; 2];
    if a[5] != 0
        && let Ok(p) = user::get::<[u64; 2]>(a[5])
    {
        packed = [mask_copy(p[0], p[1], &mut mask, &mut call), p[1]];
        a[5] = &raw const packed as u64;
    }
    loop {
        let seen = interrupt::seen();
        let r = if number == nr::PSELECT6 {
            in_out(number, a, 4, take(&mut paid_ns))
        } else {
            io_wait(number, a, take(&mut paid_ns))
        };
        if !interrupt::missed(r, mask, seen) {
            return r;
        }
    }
}

pub fn io_getevents(a: [u64; 6]) -> Ret {
    io_wait(nr::IO_GETEVENTS, a, 0)
}

/// The AIO waits do not validate: a negative time never ends, too many nanoseconds are carried over.
#[inline(never)]
fn io_wait(number: u32, mut a: [u64; 6], paid_ns: u64) -> Ret {
    if a[4] == 0 {
        return as_is(number, a);
    }
    let Ok(t) = user::get::<Timespec>(a[4]) else { return as_is(number, a) };
    let (more, nsec) = (t.nsec.div_euclid(1_000_000_000), t.nsec.rem_euclid(1_000_000_000));
    let carried = Timespec { sec: t.sec.saturating_add(more), nsec };
    if carried.sec < 0 {
        return as_is(number, a);
    }
    let wait = Wait::since(carried, paid_ns);
    loop {
        let (real, generation) = wait.left();
        a[4] = &raw const real as u64;
        let r =
            if number == nr::IO_GETEVENTS { timed(number, a, generation) } else { restartable(number, a, generation) };
        if r != RESTART {
            return r;
        }
    }
}

/// A timeval in and out; too many microseconds are legal.
#[inline(never)]
pub fn select(mut a: [u64; 6]) -> Ret {
    let paid_ns = pay_for(a[0] != 0);
    let addr = a[4];
    let Ok(t) = user::get::<Timeval>(addr) else { return as_is(nr::SELECT, a) };
    // As the kernel does, which adds first, without a bound, and then refuses what is negative.
    let sec = t.sec.wrapping_add(t.usec / 1_000_000);
    let asked = Timespec { sec, nsec: t.usec % 1_000_000 * 1000 };
    if asked.sec < 0 || asked.nsec < 0 {
        return as_is(nr::SELECT, a);
    }
    let wait = Wait::since(asked, paid_ns);
    let (mut given, mut copy);
    let r = loop {
        let (real, generation) = wait.left();
        // Microseconds, rounded up; a carry into a full second is legal here.
        given = Timeval { sec: real.sec, usec: (real.nsec + 999) / 1000 };
        copy = given;
        a[4] = &raw mut copy as u64;
        let r = restartable(nr::SELECT, a, generation);
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
pub fn relative(number: u32, a: [u64; 6], at: usize) -> Ret {
    relative_since(number, a, at, 0)
}

/// One that began so much virtual time ago.
#[inline(never)]
fn relative_since(number: u32, mut a: [u64; 6], at: usize, ago_ns: u64) -> Ret {
    let addr = match a.get(at) {
        Some(p) if *p != 0 => *p,
        _ => return untimed(number, a),
    };
    let Some(t) = valid_timespec(addr) else { return as_is(number, a) };
    let wait = Wait::since(t, ago_ns);
    loop {
        let (real, generation) = wait.left();
        if let Some(p) = a.get_mut(at) {
            *p = &raw const real as u64;
        }
        let r = as_when_stopped(number, a, generation);
        if r != RESTART {
            return r;
        }
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
    loop {
        let generation = clock::generation();
        let real = clock::wait_until(id, t);
        if let Some(p) = a.get_mut(at) {
            *p = &raw const real as u64;
        }
        let r = restartable(number, a, generation);
        if r != RESTART {
            return r;
        }
    }
}

/// A wait without a timeout: a signal of the program's ends it, and nothing else that it can see.
#[inline(never)]
fn untimed(number: u32, a: [u64; 6]) -> Ret {
    loop {
        let r = as_when_stopped(number, a, clock::generation());
        if r != RESTART {
            return r;
        }
    }
}

#[inline(never)]
pub fn futex(a: [u64; 6]) -> Ret {
    if a[2] as u32 == meter::CONTENDED { meter::while_wanted(|| wait_for_word(a)) } else { wait_for_word(a) }
}

#[inline(never)]
fn wait_for_word(a: [u64; 6]) -> Ret {
    const WAIT: u32 = 0;
    const LOCK_PI: u32 = 6;
    const CLOCK_REALTIME: u32 = 0x100;
    let op = a[1] as u32;
    if a[3] == 0 {
        return untimed(nr::FUTEX, a);
    }
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
    let wait = Wait::new(t);
    let mut real;
    let r = loop {
        let generation;
        (real, generation) = wait.left();
        if real.sec == FOREVER.sec {
            real = Timespec { sec: 1 << 32, nsec: 0 };
        }
        a[4] = &raw mut real as u64;
        let r = timed(nr::RECVMMSG, a, generation);
        if r != RESTART {
            break r;
        }
    };
    if r > 0 && user::put(addr, remaining(t, real)).is_err() { EFAULT } else { r }
}
