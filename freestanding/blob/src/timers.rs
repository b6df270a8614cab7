//! Timers: interval timers, POSIX timers, timerfd.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use diecast_core_abi::{TIMER_AT_WALL_TIME, TIMERS_MAX};
use diecast_core_syscalls::nr;

use crate::clock::{self, MONOTONIC};
use crate::sys::{self, Ret, as_is};
use crate::user::{self, Pair, Timespec, Timeval};
use crate::{carried, cputimers, process, signals, sockets};

/// This image sets timers that run in the kernel and are its own: whoever pauses the lab has to know.
pub fn note_timers(how: u32) {
    process().own.timers.fetch_max(how, Ordering::Relaxed);
}

/// The interval timers that the image before this one may have set.
#[inline(never)]
pub fn note_inherited() {
    for which in 0..=2 {
        let mut now = Pair { interval: ZERO_TV, value: ZERO_TV };
        let r = sys::own(nr::GETITIMER, [which as u64, &raw mut now as u64, 0, 0, 0, 0]);
        if r != 0 || us(now.value) == 0 {
            continue;
        }
        if which == 0 {
            note_timers(1);
        } else {
            let (value, interval) = spans(now);
            cputimers::inherit(which, value, interval);
        }
    }
}

pub fn timeval_in(t: Timeval) -> Timeval {
    whole(clock::rel_in(MONOTONIC, Timespec { sec: t.sec, nsec: t.usec * 1000 }))
}

pub fn timeval_period_in(t: Timeval) -> Timeval {
    whole(clock::period_in(MONOTONIC, Timespec { sec: t.sec, nsec: t.usec * 1000 }))
}

/// In microseconds, rounded up.
pub fn whole(real: Timespec) -> Timeval {
    let up = (real.nsec + 999) / 1000;
    // Exactly one second of microseconds is not legal in a timer: carry it.
    if up >= 1_000_000 { Timeval { sec: real.sec + 1, usec: 0 } } else { Timeval { sec: real.sec, usec: up } }
}

pub fn timeval_out(t: Timeval) -> Timeval {
    whole_us(clock::span_out(MONOTONIC, clock::ns_of(Timespec { sec: t.sec, nsec: t.usec * 1000 })))
}

fn whole_us(ns: u64) -> Timeval {
    let us = ns / 1000 + !ns.is_multiple_of(1000) as u64;
    Timeval { sec: (us / 1_000_000) as i64, usec: (us % 1_000_000) as i64 }
}

/// What Linux makes of an interval that it can't hold.
const LONGEST_NS: u64 = i64::MAX as u64;

pub fn itimer_out(p: Pair<Timeval>) -> Pair<Timeval> {
    let us = |t: Timeval| t.sec as u64 * 1_000_000 + t.usec as u64;
    let of = |us: u64| Timeval { sec: (us / 1_000_000) as i64, usec: (us % 1_000_000) as i64 };
    // An interval reads back as it was set: the smallest one that gives this real interval.
    let real = us(p.interval);
    let ns = clock::ns_of(Timespec { sec: p.interval.sec, nsec: p.interval.usec * 1000 });
    if ns == u64::MAX {
        return Pair { interval: of(LONGEST_NS / 1000), value: timeval_out(p.value) };
    }
    let mut v = us(whole_us(clock::interval_out(MONOTONIC, ns)));
    while v > 0 && us(timeval_period_in(of(v - 1))) >= real {
        v -= 1;
    }
    Pair { interval: of(v), value: timeval_out(p.value) }
}

const ZERO_TV: Timeval = Timeval { sec: 0, usec: 0 };

#[inline(never)]
pub fn setitimer(a: [u64; 6]) -> Ret {
    if matches!(a[0] as u32, 1 | 2) {
        return set_cpu_itimer(a);
    }
    if a[0] as u32 != 0 {
        return as_is(nr::SETITIMER, a);
    }
    // A null pointer disarms.
    let new = if a[1] == 0 { Ok(Pair { interval: ZERO_TV, value: ZERO_TV }) } else { user::get::<Pair<Timeval>>(a[1]) };
    let ok = |t: Timeval| t.sec >= 0 && (t.usec as u64) < 1_000_000;
    let new = match new {
        Ok(p) if ok(p.interval) && ok(p.value) => p,
        _ => return as_is(nr::SETITIMER, a),
    };
    note_timers(1);
    let mut old = Pair { interval: ZERO_TV, value: ZERO_TV };
    let r = set_real_itimer(sys::plain, new, &mut old);
    if r == 0
        && a[2] != 0
        && let Err(e) = user::put(a[2], itimer_out(old))
    {
        e
    } else {
        r
    }
}

#[inline(never)]
fn set_real_itimer(call: sys::Call, new: Pair<Timeval>, old: &mut Pair<Timeval>) -> Ret {
    clock::by_one_rate(|made| {
        let real = Pair { interval: timeval_period_in(new.interval), value: timeval_in(new.value) };
        let was = if made == 0 { &raw mut *old as u64 } else { 0 };
        call(nr::SETITIMER, [0, &raw const real as u64, was, 0, 0, 0])
    })
}

pub fn us(t: Timeval) -> u64 {
    (t.sec as u64).saturating_mul(1_000_000).saturating_add(t.usec as u64)
}

/// Microseconds, rounded up but for the rounding of the rate itself; zero only for zero.
fn timeval(ns: u64) -> Timeval {
    let us = (ns.saturating_add(990) / 1000).max((ns != 0) as u64);
    Timeval { sec: (us / 1_000_000) as i64, usec: (us % 1_000_000) as i64 }
}

fn spans(p: Pair<Timeval>) -> (u64, u64) {
    (us(p.value).saturating_mul(1000), us(p.interval).saturating_mul(1000))
}

/// ITIMER_VIRTUAL and ITIMER_PROF as they are now, in virtual CPU time.
fn cpu_itimer_left(which: u64, kernel: Pair<Timeval>) -> Pair<Timeval> {
    let (value, interval) = if !cputimers::counts(clock::PROCESS_CPU) {
        let (v, i) = spans(kernel);
        (clock::span_out(clock::PROCESS_CPU, v), clock::span_out(clock::PROCESS_CPU, i))
    } else if signals::is_guest() {
        let (v, i) = spans(kernel);
        (cputimers::held_out(v), cputimers::held_out(i))
    } else {
        let (left, every) = cputimers::left(cputimers::index_of_itimer(which as u32));
        // A child finds its parent's.
        (left, if us(kernel.interval) == 0 { 0 } else { every })
    };
    Pair { interval: timeval(interval), value: timeval(value) }
}

#[inline(never)]
fn set_cpu_itimer(a: [u64; 6]) -> Ret {
    let ok = |t: Timeval| t.sec >= 0 && (t.usec as u64) < 1_000_000;
    let new = if a[1] == 0 { Ok(Pair { interval: ZERO_TV, value: ZERO_TV }) } else { user::get::<Pair<Timeval>>(a[1]) };
    let new = match new {
        Ok(p) if ok(p.interval) && ok(p.value) => p,
        _ => return as_is(nr::SETITIMER, a),
    };
    let mut now = Pair { interval: ZERO_TV, value: ZERO_TV };
    sys::own(nr::GETITIMER, [a[0], &raw mut now as u64, 0, 0, 0, 0]);
    let old = cpu_itimer_left(a[0], now);
    let (value, interval) = spans(new);
    let (value, interval) = if !cputimers::counts(clock::PROCESS_CPU) {
        (clock::span_in(clock::PROCESS_CPU, value), clock::span_in(clock::PROCESS_CPU, interval))
    } else if signals::is_guest() {
        // The page is its parent's: the next image finds what is left.
        (cputimers::held(value), cputimers::held(interval))
    } else {
        let (value, interval) = cputimers::keep(cputimers::index_of_itimer(a[0] as u32), false, value, interval);
        (value.unwrap_or(0), interval)
    };
    let real = Pair { interval: timeval(interval), value: timeval(value) };
    let r = sys::plain(nr::SETITIMER, [a[0], &raw const real as u64, 0, 0, 0, 0]);
    if r == 0 && a[2] != 0 { user::put(a[2], old).err().unwrap_or(0) } else { r }
}

#[inline(never)]
fn get_cpu_itimer(a: [u64; 6]) -> Ret {
    let mut now = Pair { interval: ZERO_TV, value: ZERO_TV };
    let r = sys::plain(nr::GETITIMER, [a[0], &raw mut now as u64, 0, 0, 0, 0]);
    if r == 0 { user::put(a[1], cpu_itimer_left(a[0], now)).err().unwrap_or(0) } else { r }
}

#[inline(never)]
pub fn getitimer(a: [u64; 6]) -> Ret {
    if matches!(a[0] as u32, 1 | 2) {
        return get_cpu_itimer(a);
    }
    if a[0] as u32 != 0 {
        return as_is(nr::GETITIMER, a);
    }
    let mut now = Pair { interval: ZERO_TV, value: ZERO_TV };
    let r = sys::plain(nr::GETITIMER, [a[0], &raw mut now as u64, 0, 0, 0, 0]);
    if r == 0
        && let Err(e) = user::put(a[1], itimer_out(now))
    {
        e
    } else {
        r
    }
}

/// Through setitimer, whose microseconds are exact for any TDF. The result is rounded as the kernel does.
#[inline(never)]
pub fn alarm(a: [u64; 6]) -> Ret {
    note_timers(1);
    let new = Pair { interval: ZERO_TV, value: Timeval { sec: (a[0] as u32) as i64, usec: 0 } };
    let mut old = Pair { interval: ZERO_TV, value: ZERO_TV };
    let r = if carried::filtered() {
        // The alarm that a filter judges ends the one before, which is asked for first.
        sys::own(nr::GETITIMER, [0, &raw mut old as u64, 0, 0, 0, 0]);
        let judged = sys::plain(nr::ALARM, [0; 6]);
        if judged < 0 {
            return judged;
        }
        set_real_itimer(sys::own, new, &mut Pair { interval: ZERO_TV, value: ZERO_TV })
    } else {
        set_real_itimer(sys::own, new, &mut old)
    };
    if r < 0 {
        return r;
    }
    let left = timeval_out(old.value);
    let up = (left.sec == 0 && left.usec > 0) || left.usec >= 500_000;
    left.sec + up as i64
}

#[inline(never)]
pub fn timer_create(a: [u64; 6]) -> Ret {
    let r = as_is(nr::TIMER_CREATE, a);
    if r == 0
        && let Ok(made) = user::get::<u32>(a[2])
        && let Some(c) = process().timer_clock.get(made as usize)
        && !signals::is_guest()
    {
        // Asked for by another thread, "this thread's" must still be the creator's.
        let id = if a[0] as i32 == clock::THREAD_CPU { (!sys::gettid()) << 3 | 6 } else { a[0] as u32 };
        c.store(id.wrapping_add(1), Ordering::Relaxed);
        cputimers::begin(made as usize);
    }
    r
}

/// The clock of a timer of this process. Numbers are not used again while there are others, so a process that makes and
/// deletes timers soon has ones that the table has no room for; of these the kernel tells.
pub fn timer_clock(id: u64) -> i32 {
    match process().timer_clock.get(id as u32 as usize).map(|c| c.load(Ordering::Relaxed)) {
        None => kernels_timer_clock(id as u32),
        Some(0) => MONOTONIC,
        Some(known) if is_at_wall_time(known) => (known - TIMER_AT_WALL_TIME).wrapping_sub(1) as i32,
        Some(known) => known.wrapping_sub(1) as i32,
    }
}

/// Whether a word of the table is of a timer that steps of the clock move.
pub fn is_at_wall_time(known: u32) -> bool {
    known & !0xf == TIMER_AT_WALL_TIME
}

/// The same, or as the kernel says where the table is another process's, which is whether it is.
fn clock_and_guest(id: u64) -> (i32, bool) {
    if signals::is_guest() { (kernels_timer_clock(id as u32), true) } else { (timer_clock(id), false) }
}

/// Before a timer of this clock is set: whether it is to an instant that steps move, and how far that clock is ahead now.
fn note_wall_time(timer: u64, id: i32, absolute: bool) {
    let timer = timer as u32 as usize;
    let p = process();
    let (Some(known), Some(ahead)) = (p.timer_clock.get(timer), p.inherited.timer_ahead_ns.get(timer)) else { return };
    if !clock::is_wall(id) || known.load(Ordering::Relaxed) == 0 {
        return;
    }
    let plain = (id as u32).wrapping_add(1);
    ahead.store(clock::ahead(id), Ordering::Relaxed);
    known.store(if absolute { plain | TIMER_AT_WALL_TIME } else { plain }, Ordering::Release);
    if absolute {
        p.own.wall_timers.store(1, Ordering::Relaxed);
    }
}

/// From /proc/self/timers, whose entries begin with `ID: ` and end with `ClockID: `. MONOTONIC where it is missing.
#[inline(never)]
fn kernels_timer_clock(wanted: u32) -> i32 {
    let path = *b"/proc/self/timers\0\0\0\0\0\0\0";
    let file = sys::own(nr::OPENAT, [-100i64 as u64, &raw const path as u64, 0o2000000, 0, 0, 0]);
    if file < 0 {
        return MONOTONIC;
    }
    let mut text = MaybeUninit::<[u64; 24]>::uninit();
    let (mut first, mut number, mut negative, mut here, mut clock) = (b'\n', 0u32, false, false, None);
    while clock.is_none() {
        let got = sys::own(sys::READ, [file as u64, text.as_mut_ptr() as u64, 192, 0, 0, 0]);
        if got <= 0 || got > 192 {
            break;
        }
        // SAFETY: the kernel filled the first `got` bytes of this local.
        for b in unsafe { core::slice::from_raw_parts(text.as_ptr() as *const u8, got as usize) } {
            if *b == b'\n' {
                match first {
                    b'I' => here = number == wanted,
                    b'C' if here => {
                        let value = if negative { number.wrapping_neg() } else { number };
                        clock = clock.or(Some(value as i32));
                    }
                    _ => {}
                }
                (first, number, negative) = (b'\n', 0, false);
            } else if first == b'\n' {
                first = *b;
            } else if b.is_ascii_digit() {
                number = number.wrapping_mul(10).wrapping_add((*b - b'0') as u32);
            } else {
                negative |= *b == b'-';
            }
        }
    }
    sys::own(sys::CLOSE, [file as u64, 0, 0, 0, 0, 0]);
    clock.unwrap_or(MONOTONIC)
}

/// Seconds until a key ends; zero is never.
#[inline(never)]
pub fn key_timeout(mut a: [u64; 6]) -> Ret {
    let v = a[2] as u32 as u64;
    clock::by_one_rate(|_| {
        if v != 0 {
            a[2] = sockets::units_in(v);
        }
        as_is(nr::KEYCTL, a)
    })
}

const ZERO_TS: Timespec = Timespec { sec: 0, nsec: 0 };

/// Interval and value in, by the timer's clock. Zero disarms and stays zero.
fn spec_in(id: i32, absolute: bool, p: Pair<Timespec>) -> Pair<Timespec> {
    let value = if p.value.sec == 0 && p.value.nsec == 0 {
        ZERO_TS
    } else if absolute {
        clock::abs_in(id, p.value)
    } else {
        clock::rel_in(id, p.value)
    };
    Pair { interval: clock::period_in(id, p.interval), value }
}

/// Remaining times out. 1 ns means "expired, not yet delivered" and stays 1 ns. An interval reads back as it was
/// set: the smallest one that gives this real interval (at TDF 1/100 at most a hundred steps down). So does a CPU
/// timer of which nothing has passed.
pub fn spec_out(id: i32, p: Pair<Timespec>) -> Pair<Timespec> {
    let smallest = |t: Timespec| {
        let real = clock::ns_of(t);
        let mut v = clock::interval_out(id, real);
        while v > 0 && v != u64::MAX && clock::interval_in(id, v - 1) >= real {
            v -= 1;
        }
        clock::timespec(v.min(LONGEST_NS))
    };
    let value =
        if clock::is_cpu(id) { smallest(p.value) } else { clock::timespec(clock::span_out(id, clock::ns_of(p.value))) };
    Pair { interval: smallest(p.interval), value }
}

/// What the program sets, if the kernel would.
fn spec_at(addr: u64) -> Option<Pair<Timespec>> {
    user::get::<Pair<Timespec>>(addr).ok().filter(|p| clock::valid(p.interval) && clock::valid(p.value))
}

#[inline(never)]
fn settime(number: u32, a: [u64; 6], id: i32) -> Ret {
    match spec_at(a[2]) {
        Some(new) => set(number, a, id, new, None),
        None => as_is(number, a),
    }
}

/// `before` is what was set before, where that is known.
#[inline(never)]
fn set(number: u32, a: [u64; 6], id: i32, new: Pair<Timespec>, before: Option<Pair<Timespec>>) -> Ret {
    let mut old = Pair { interval: ZERO_TS, value: ZERO_TS };
    let r = clock::by_one_rate(|made| {
        if number == nr::TIMER_SETTIME && !signals::is_guest() {
            note_wall_time(a[0], id, a[1] & 1 != 0);
        }
        let real = spec_in(id, a[1] & 1 != 0, new);
        let was = if made == 0 { &raw mut old as u64 } else { 0 };
        sys::plain(number, [a[0], a[1], &raw const real as u64, was, 0, 0])
    });
    if r == 0
        && a[3] != 0
        && let Err(e) = user::put(a[3], spec_out(id, before.unwrap_or(old)))
    {
        e
    } else {
        r
    }
}

#[inline(never)]
fn gettime(number: u32, a: [u64; 6], id: i32) -> Ret {
    let mut now = Pair { interval: ZERO_TS, value: ZERO_TS };
    let r = sys::plain(number, [a[0], &raw mut now as u64, 0, 0, 0, 0]);
    if r == 0
        && let Err(e) = user::put(a[1], spec_out(id, now))
    {
        e
    } else {
        r
    }
}

/// Whether a timer counts CPU time that the meter has no part in: those that the tables have no room for are the kernel's.
fn is_kept(id: i32, timer: u64) -> bool {
    cputimers::counts(id) && (timer as u32 as usize) < TIMERS_MAX
}

pub fn timer_settime(a: [u64; 6]) -> Ret {
    let (id, guest) = clock_and_guest(a[0]);
    if !clock::is_cpu(id) {
        note_timers(if a[0] as u32 as usize >= TIMERS_MAX { 2 } else { 1 });
    }
    if !guest && is_kept(id, a[0]) { set_cpu_timer(a) } else { settime(nr::TIMER_SETTIME, a, id) }
}

pub fn timer_gettime(a: [u64; 6]) -> Ret {
    let (id, guest) = clock_and_guest(a[0]);
    if !guest && is_kept(id, a[0]) { get_cpu_timer(a) } else { gettime(nr::TIMER_GETTIME, a, id) }
}

fn cpu_timer_left(id: u64) -> Pair<Timespec> {
    let (value, interval) = cputimers::left(id as u32 as usize);
    Pair { interval: clock::timespec(interval), value: clock::timespec(value) }
}

#[inline(never)]
fn set_cpu_timer(a: [u64; 6]) -> Ret {
    let Some(new) = spec_at(a[2]) else { return as_is(nr::TIMER_SETTIME, a) };
    let old = cpu_timer_left(a[0]);
    let (value, interval) = (clock::ns_of(new.value), clock::ns_of(new.interval));
    let index = a[0] as u32 as usize;
    let (span, interval) = cputimers::keep(index, a[1] & 1 != 0, value, interval);
    let (flags, value) = match span {
        Some(ns) => (0, clock::timespec(ns)),
        None => (cputimers::TIMER_ABSTIME, cputimers::passed(index)),
    };
    let real = Pair { interval: clock::timespec(interval), value };
    let r = sys::plain(nr::TIMER_SETTIME, [a[0], flags, &raw const real as u64, 0, 0, 0]);
    if r == 0 && a[3] != 0 { user::put(a[3], old).err().unwrap_or(0) } else { r }
}

#[inline(never)]
fn get_cpu_timer(a: [u64; 6]) -> Ret {
    let mut now = Pair { interval: ZERO_TS, value: ZERO_TS };
    let r = sys::plain(nr::TIMER_GETTIME, [a[0], &raw mut now as u64, 0, 0, 0, 0]);
    if r == 0 { user::put(a[1], cpu_timer_left(a[0])).err().unwrap_or(0) } else { r }
}

pub fn timerfd_settime(a: [u64; 6]) -> Ret {
    const KNOWN_FLAGS: u64 = 3;
    if a[1] & 1 == 0 {
        return settime(nr::TIMERFD_SETTIME, a, MONOTONIC);
    }
    // Only what the kernel is going to set anyway.
    match spec_at(a[2]) {
        Some(new) if a[1] as u32 as u64 & !KNOWN_FLAGS == 0 => set_timerfd_until(a, new),
        _ => as_is(nr::TIMERFD_SETTIME, a),
    }
}

/// Descriptors are duplicated, inherited and passed, so a table of their clocks would be wrong, and fdinfo takes 20 to 50 us
/// where code is cold. The timer itself tells its clock: it is set to an instant far ahead, and says what is left until then.
#[inline(never)]
fn set_timerfd_until(a: [u64; 6], new: Pair<Timespec>) -> Ret {
    const AHEAD_NS: u64 = 1_000_000_000_000_000;
    // No handler of the program's may set it meanwhile.
    let mask = signals::set_kernel_mask(!signals::SIGSYS_BIT);
    let zero = Pair { interval: ZERO_TS, value: ZERO_TS };
    let at = clock::kernel_ns(clock::REALTIME).saturating_add(AHEAD_NS);
    let far = Pair { interval: ZERO_TS, value: clock::timespec(at) };
    let (mut before, mut now) = (zero, zero);
    let asked = sys::own(nr::TIMERFD_SETTIME, [a[0], 1, &raw const far as u64, &raw mut before as u64, 0, 0]);
    let r = if asked == 0 {
        sys::own(nr::TIMERFD_GETTIME, [a[0], &raw mut now as u64, 0, 0, 0, 0]);
        let shows = at.saturating_sub(clock::ns_of(now.value));
        let off = |id: i32| clock::kernel_ns(id).abs_diff(shows);
        // The alarm clocks show the same times.
        let mut id = MONOTONIC;
        for other in [clock::BOOTTIME, clock::REALTIME] {
            if off(other) < off(id) / 2 {
                id = other;
            }
        }
        set(nr::TIMERFD_SETTIME, a, id, new, Some(before))
    } else {
        as_is(nr::TIMERFD_SETTIME, a)
    };
    signals::set_kernel_mask(mask);
    r
}

pub fn timerfd_gettime(a: [u64; 6]) -> Ret {
    gettime(nr::TIMERFD_GETTIME, a, MONOTONIC)
}
