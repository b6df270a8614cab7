//! Setting the node's own clock. Nothing here reaches the host's.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use diecast_core_abi::STEPPED_MAGIC;
use diecast_core_clock::{Adjusted, Discipline, Refused, Request, STA_NANO, is_time, modes, real_fits};
use diecast_core_syscalls::nr;

use crate::clock::{self, REALTIME};
use crate::node;
use crate::sys::{self, EFAULT, EINVAL, EPERM, Ret};
use crate::user::{self, Timespec, Timeval};

const NS_PER_S: i128 = 1_000_000_000;
/// A zone is at most so many minutes from Greenwich.
const ZONE_MAX_MIN: i32 = 15 * 60;
/// Where `tick` is in `struct timex`, and how long that is, in words.
const TICK_WORD: usize = 11;
const TIMEX_WORDS: usize = 26;
/// Largest frequency, as `tolerance` shows it.
const TOLERANCE: u64 = 500 << 16;

/// Whether the kernel lets this thread set clocks. It is asked with a tick that it refuses after its check of the
/// right, so it sets nothing whatever the answer is.
#[inline(never)]
fn may_set(number: u32) -> bool {
    let mut timex = MaybeUninit::<[u64; TIMEX_WORDS]>::uninit();
    let words = timex.as_mut_ptr() as *mut u64;
    // SAFETY: both words lie in this local; the kernel looks at no other for this mode.
    unsafe {
        words.write(modes::TICK as u64);
        words.add(TICK_WORD).write(0);
    }
    let at = words as u64;
    let a = if number == nr::CLOCK_ADJTIME { [0, at, 0, 0, 0, 0] } else { [at, 0, 0, 0, 0, 0] };
    sys::own(number, a) != EPERM
}

/// REALTIME now, seconds.
fn now_s() -> i64 {
    clock::read(REALTIME).map_or(0, |t| t.sec)
}

/// Lets REALTIME jump to this far ahead of MONOTONIC, where the kernel would let it.
fn step(ahead_ns: i128) -> Ret {
    let c = &node().clock;
    if !real_fits(ahead_ns, clock::mono_now()) {
        return EINVAL;
    }
    c.step(ahead_ns as i64);
    let mut d = c.discipline();
    d.clear(now_s());
    c.keep(&d);
    let latest = c.latest();
    if latest.adjust_ns != 0 || latest.phase_ns != 0 {
        c.change(|| clock::v_now().0, |rates| (rates.adjust_ns, rates.phase_ns) = (0, 0));
    }
    tell();
    0
}

/// What waits for an instant of the wall clock is moved by the supervisor, before this returns where it can be.
#[inline(never)]
pub fn tell() {
    sys::own(nr::EXECVE, [STEPPED_MAGIC, 0, 0, 0, 0, 0]);
}

fn set(t: Timespec) -> Ret {
    step(t.sec as i128 * NS_PER_S + t.nsec as i128 - clock::mono_now() as i128)
}

#[inline(never)]
pub fn clock_settime(a: [u64; 6]) -> Ret {
    if a[0] as i32 != REALTIME {
        // SAFETY: the program's own pointer; others refuse by themselves or are the host's.
        return unsafe { sys::call(nr::CLOCK_SETTIME, a) };
    }
    match user::get::<Timespec>(a[1]) {
        Ok(t) if !is_time(t.sec, t.nsec) => EINVAL,
        Ok(_) if !may_set(nr::ADJTIMEX) => EPERM,
        Ok(t) => set(t),
        Err(e) => e,
    }
}

#[inline(never)]
pub fn settimeofday(a: [u64; 6]) -> Ret {
    let time = match (a[0] != 0).then(|| user::get::<Timeval>(a[0])) {
        Some(Err(e)) => return e,
        Some(Ok(t)) if !(0..1_000_000).contains(&t.usec) => return EINVAL,
        Some(Ok(t)) => Some(Timespec { sec: t.sec, nsec: t.usec * 1000 }),
        None => None,
    };
    let zone = match (a[1] != 0).then(|| user::get::<u64>(a[1])) {
        Some(Err(e)) => return e,
        Some(Ok(zone)) => Some(zone),
        None => None,
    };
    if time.is_some_and(|t| !is_time(t.sec, t.nsec)) {
        return EINVAL;
    }
    if !may_set(nr::ADJTIMEX) {
        return EPERM;
    }
    if let Some(zone) = zone {
        if !(-ZONE_MAX_MIN..=ZONE_MAX_MIN).contains(&(zone as i32)) {
            return EINVAL;
        }
        node().clock.zone.store(zone, Ordering::Relaxed);
        node().clock.zone_set.store(1, Ordering::Release);
    }
    time.map_or(0, set)
}

/// `struct timezone`, once the node has one of its own.
pub fn zone() -> Option<u64> {
    let c = &node().clock;
    (c.zone_set.load(Ordering::Acquire) != 0).then(|| c.zone.load(Ordering::Relaxed))
}

#[inline(never)]
pub fn clock_adjtime(a: [u64; 6]) -> Ret {
    if a[0] as i32 != REALTIME {
        // SAFETY: the program's own pointer; others refuse by themselves or are the host's.
        return unsafe { sys::call(nr::CLOCK_ADJTIME, a) };
    }
    adjtimex(nr::CLOCK_ADJTIME, a[1])
}

/// adjtimex and clock_adjtime of REALTIME; `number` is the one that the program used.
#[inline(never)]
pub fn adjtimex(number: u32, buf: u64) -> Ret {
    let word = |i: u64| user::get::<u64>(buf.wrapping_add(8 * i));
    // The kernel copies all of it first.
    if word(0).is_err() || word(TIMEX_WORDS as u64 - 1).is_err() {
        return EFAULT;
    }
    let w = |i: u64| word(i).unwrap_or(0) as i64;
    let request = Request {
        modes: w(0) as u32,
        offset: w(1),
        freq: w(2),
        maxerror: w(3),
        esterror: w(4),
        status: w(5) as u32,
        constant: w(6),
        tick: w(TICK_WORD as u64),
        fraction: w(10),
    };
    match request.check(|| may_set(number)) {
        Err(Refused::Invalid) => return EINVAL,
        Err(Refused::NotPermitted) => return EPERM,
        Ok(()) => {}
    }
    if request.modes & modes::SETOFFSET != 0 {
        let fraction = if request.modes & modes::NANO != 0 { request.fraction } else { request.fraction * 1000 };
        let jump = w(9) as i128 * NS_PER_S + fraction as i128;
        let r = step(node().clock.real_ahead_ns.load(Ordering::Relaxed) as i128 + jump);
        if r < 0 {
            return r;
        }
    }
    carry_out(buf, &request)
}

#[inline(never)]
fn carry_out(buf: u64, request: &Request) -> Ret {
    let c = &node().clock;
    let Ok(now) = clock::read(REALTIME) else { return EINVAL };
    let left = left(request.modes);
    let mut d = c.discipline();
    d.age(now.sec);
    let adjusted = d.apply(request, now.sec);
    c.keep(&d);
    if adjusted.rate || adjusted.phase_ns.is_some() || adjusted.adjust_us.is_some() {
        steer(&d, &adjusted);
    }
    let nano = d.status & STA_NANO != 0;
    let unit = if nano { 1 } else { 1000 };
    let offset =
        if request.modes & modes::ADJTIME != 0 { left / 1000 } else { adjusted.phase_ns.unwrap_or(left) / unit };
    answer(buf, &d, offset, now.sec, now.nsec / unit)
}

/// What is left of a slew of adjtime where that is asked for, else of the loop's, ns. This and the next two are functions of their own because
/// stacks are small.
#[inline(never)]
fn left(asked: u32) -> i64 {
    let (latest, v) = (node().clock.latest(), clock::v_now().0);
    if asked & modes::ADJTIME != 0 { latest.adjust_left(v) } else { latest.phase_left(v) }
}

#[inline(never)]
fn steer(d: &Discipline, adjusted: &Adjusted) {
    node().clock.change(|| clock::v_now().0, |rates| d.steer(adjusted, rates));
}

/// Writes what the program reads back.
#[inline(never)]
fn answer(buf: u64, d: &Discipline, offset: i64, sec: i64, fraction: i64) -> Ret {
    let first = [
        offset as u64,
        d.shown_freq() as u64,
        d.maxerror_us as u64,
        d.esterror_us as u64,
        d.status as u64,
        d.constant as u64,
    ];
    let second = [1, TOLERANCE, sec as u64, fraction as u64, d.tick_us as u64];
    // What a pulse per second would say is zero, as without one.
    let third = [0, 0, 0, 0, 0, 0, 0, 0, d.tai_s as u64];
    let put = user::put_words(buf + 8, &first)
        .and_then(|()| user::put_words(buf + 56, &second))
        .and_then(|()| user::put_words(buf + 96, &third));
    if put.is_err() { EFAULT } else { d.state(sec) }
}
