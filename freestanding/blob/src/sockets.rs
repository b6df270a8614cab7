//! Socket options that hold times or rates.

use diecast_core_syscalls::nr;

use crate::clock;
use crate::sys::{Ret, as_is};
use crate::user::{self, Timeval};
use crate::{node, stamps, timers};

const SOL_SOCKET: u32 = 1;
const SOL_TCP: u32 = 6;
const SO_LINGER: u32 = 13;
const TCP_KEEPIDLE: u32 = 4;
const TCP_KEEPINTVL: u32 = 5;
const TCP_INFO: u32 = 11;
/// The kernel takes no more seconds for the keepalive options.
const KEEPALIVE_MAX_S: u64 = 32767;

/// Parts of a unit, so that the rounding of the rate itself does not show.
const PARTS: u64 = 1_000_000;

/// Real units for virtual ones, rounded up, at most what an int holds.
fn units_in(v: u64) -> u64 {
    let parts = clock::stretched(v * PARTS);
    (parts.saturating_add(PARTS - 1000) / PARTS).clamp(1, i32::MAX as u64)
}

/// Virtual units for real ones. Rounded down: what was rounded up on its way in comes back as it was set.
fn units_out(r: u64) -> u64 {
    (node().segment().rate.mul_floor(r * PARTS + 1000) / PARTS).max(1)
}

#[inline(never)]
pub fn set(a: [u64; 6]) -> Ret {
    if a[1] as u32 == SOL_SOCKET && stamps::is_asking(a[2] as u32) {
        stamps::ask(a)
    } else {
        clock::by_one_rate(|_| set_by(a))
    }
}

#[inline(never)]
pub fn get(a: [u64; 6]) -> Ret {
    clock::by_one_rate(|_| get_by(a))
}

#[inline(never)]
fn set_by(a: [u64; 6]) -> Ret {
    match (a[1] as u32, a[2] as u32) {
        (SOL_SOCKET, SO_LINGER) => set_number(a, 4, u64::MAX),
        (SOL_SOCKET, _) => set_timeout(a),
        (SOL_TCP, TCP_KEEPIDLE | TCP_KEEPINTVL) => set_number(a, 0, KEEPALIVE_MAX_S),
        _ => set_number(a, 0, u64::MAX),
    }
}

#[inline(never)]
fn get_by(a: [u64; 6]) -> Ret {
    match (a[1] as u32, a[2] as u32) {
        (SOL_SOCKET, SO_LINGER) => get_number(a, 4),
        (SOL_SOCKET, _) => get_timeout(a),
        (SOL_TCP, TCP_INFO) => tcp_info(a),
        _ => get_number(a, 0),
    }
}

/// SO_RCVTIMEO and SO_SNDTIMEO. Zero is for ever; a negative time means "do not wait"; both pass.
#[inline(never)]
fn set_timeout(mut a: [u64; 6]) -> Ret {
    let t = match user::get::<Timeval>(a[3]) {
        Ok(t) if a[4] as i32 >= 16 && t.sec >= 0 && (t.usec as u64) < 1_000_000 => t,
        _ => return as_is(nr::SETSOCKOPT, a),
    };
    let real = timers::timeval_in(t);
    a[3] = &raw const real as u64;
    as_is(nr::SETSOCKOPT, a)
}

#[inline(never)]
fn get_timeout(a: [u64; 6]) -> Ret {
    let r = as_is(nr::GETSOCKOPT, a);
    if r == 0
        && user::get::<u32>(a[4]) == Ok(16)
        && let Ok(t) = user::get::<Timeval>(a[3])
        && t.sec >= 0
    {
        let _ = user::put(a[3], timers::timeval_out(t));
    }
    r
}

/// A positive int of any unit, at an offset of 0 or 4. Zero and negative ones have other meanings and pass, as do
/// those above `max`, which the kernel refuses.
#[inline(never)]
fn set_number(mut a: [u64; 6], at: u64, max: u64) -> Ret {
    let Ok(v) = user::get::<u32>(a[3].wrapping_add(at)) else { return as_is(nr::SETSOCKOPT, a) };
    if (a[4] as u32 as u64) < at + 4 || (v as i32) <= 0 || v as u64 > max {
        return as_is(nr::SETSOCKOPT, a);
    }
    let mut copy = [units_in(v as u64).min(max) as u32, 0];
    if at == 4 {
        copy = [user::get::<u32>(a[3]).unwrap_or(0), copy[0]];
    }
    a[3] = &raw const copy as u64;
    a[4] = at + 4;
    as_is(nr::SETSOCKOPT, a)
}

#[inline(never)]
fn get_number(a: [u64; 6], at: u64) -> Ret {
    let r = as_is(nr::GETSOCKOPT, a);
    if r == 0
        && user::get::<u32>(a[4]).is_ok_and(|len| len as u64 >= at + 4)
        && let Ok(v) = user::get::<u32>(a[3].wrapping_add(at))
        && (v as i32) > 0
    {
        put_int(a[3].wrapping_add(at), units_out(v as u64) as u32);
    }
    r
}

/// Writes an int that the kernel has just written.
fn put_int(addr: u64, v: u32) {
    // SAFETY: the kernel wrote these bytes a moment ago, and the program is in this call.
    unsafe { (addr as *mut u32).write_unaligned(v) };
}

/// Round trips and ages shrink with the TDF, rates grow with it. Fields beyond the returned length are left alone.
#[inline(never)]
fn tcp_info(a: [u64; 6]) -> Ret {
    let r = as_is(nr::GETSOCKOPT, a);
    let Ok(len) = user::get::<u32>(a[4]) else { return r };
    if r < 0 {
        return r;
    }
    let s = node().segment();
    // Microseconds and milliseconds of 32 bits: rto, ato, ages, rtt, rttvar, rcv_rtt, min_rtt, total_rto_time.
    for at in 0..62u64 {
        const DURATIONS: u64 = 1 << 2 | 1 << 3 | 15 << 11 | 3 << 17 | 1 << 23 | 1 << 37 | 1 << 61;
        if DURATIONS >> at & 1 != 0
            && (at + 1) * 4 <= len as u64
            && let Ok(v) = user::get::<u32>(a[3] + at * 4)
            && v != u32::MAX
        {
            put_int(a[3] + at * 4, s.rate.mul_floor(v as u64) as u32);
        }
    }
    // 64 bits: pacing, highest pacing and delivery rate; busy, receiver-limited and buffer-limited time.
    for (at, is_rate) in [(104u64, true), (112, true), (160, true), (168, false), (176, false), (184, false)] {
        if at + 8 <= len as u64
            && let Ok(v) = user::get::<u64>(a[3] + at)
            && v != u64::MAX
        {
            let _ = user::put(a[3] + at, if is_rate { s.inverse.mul_floor(v) } else { s.rate.mul_floor(v) });
        }
    }
    r
}
