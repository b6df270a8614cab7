//! Socket options that hold times or rates.

use diecast_core_syscalls::nr;
use diecast_core_vtime::Rate;

use crate::clock;
use crate::sys::{self, Ret, as_is};
use crate::user::{self, Timeval};
use crate::{node, stamps, timers};

const SOL_SOCKET: u32 = 1;
const SOL_TCP: u32 = 6;
const SOL_VSOCK: u32 = 40;
const SO_LINGER: u32 = 13;
const TCP_KEEPIDLE: u32 = 4;
const TCP_KEEPINTVL: u32 = 5;
const SO_MAX_PACING_RATE: u32 = 47;
const TCP_INFO: u32 = 11;
const TCP_CONGESTION: u32 = 13;
const TCP_CC_INFO: u32 = 26;
const TCP_TX_DELAY: u32 = 37;
const TCP_RTO_MAX_MS: u32 = 44;
const TCP_RTO_MIN_US: u32 = 45;
const TCP_DELACK_MAX_US: u32 = 46;
/// The kernel takes no more seconds for the keepalive options.
const KEEPALIVE_MAX_S: u64 = 32767;
/// TCP_RTO_MIN and TCP_DELACK_MAX of Linux, which the options of these names can only shorten.
const SHORTEST_RTO_MAX_US: u64 = 200_000;
const LONGEST_RTO_MAX_MS: u64 = 120_000;
/// The kernel keeps it shifted by three bits.
const TX_DELAY_MAX_US: u64 = (1 << 28) - 1;

/// Parts of a unit, so that the rounding of the rate itself does not show.
const PARTS: u64 = 1_000_000;

/// Real units for virtual ones, rounded up, at most what an int holds.
pub fn units_in(v: u64) -> u64 {
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
        (SOL_SOCKET, SO_MAX_PACING_RATE) => set_rate(a),
        (SOL_SOCKET | SOL_VSOCK, _) => set_timeout(a),
        (SOL_TCP, TCP_RTO_MIN_US | TCP_DELACK_MAX_US) => set_judged(a, SHORTEST_RTO_MAX_US),
        (SOL_TCP, TCP_RTO_MAX_MS) => set_judged(a, LONGEST_RTO_MAX_MS),
        (SOL_TCP, TCP_TX_DELAY) => set_judged(a, TX_DELAY_MAX_US),
        (SOL_TCP, TCP_KEEPIDLE | TCP_KEEPINTVL) => set_number(a, 0, KEEPALIVE_MAX_S),
        _ => set_number(a, 0, u64::MAX),
    }
}

#[inline(never)]
fn get_by(a: [u64; 6]) -> Ret {
    match (a[1] as u32, a[2] as u32) {
        (SOL_SOCKET, SO_LINGER) => get_number(a, 4),
        (SOL_SOCKET, SO_MAX_PACING_RATE) => get_rate(a),
        (SOL_SOCKET | SOL_VSOCK, _) => get_timeout(a),
        (SOL_TCP, TCP_INFO) => tcp_info(a),
        (SOL_TCP, TCP_CC_INFO) => congestion_info(a),
        _ => get_number(a, 0),
    }
}

/// SO_RCVTIMEO, SO_SNDTIMEO and how long a connect waits on a vsock. Zero is for ever; a negative time means "do not wait"; both pass.
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

/// A positive int whose range the kernel keeps in real time. It judges the program's value first; then it gets the nearest
/// real one that it takes, and where there is none the program's stays.
#[inline(never)]
fn set_judged(mut a: [u64; 6], max: u64) -> Ret {
    let r = as_is(nr::SETSOCKOPT, a);
    if r == 0
        && let Ok(v) = user::get::<u32>(a[3])
        && v != 0
    {
        let real = units_in(v as u64).min(max) as u32;
        (a[3], a[4]) = (&raw const real as u64, 4);
        as_is(nr::SETSOCKOPT, a);
    }
    r
}

/// Bytes a real second for bytes a virtual one, or the reverse; to the nearest, so that the rounding of the rate itself
/// does not show. What is not zero stays so: a rate of zero sends nothing.
fn rate_by(factor: Rate, v: u64) -> u64 {
    let nearest = if v >> 40 == 0 { (factor.mul_floor(v * PARTS) + PARTS / 2) / PARTS } else { factor.mul_floor(v) };
    nearest.max((v != 0) as u64)
}

/// SO_MAX_PACING_RATE: 32 or 64 bits by the length that is given; all ones are no limit.
#[inline(never)]
fn set_rate(mut a: [u64; 6]) -> Ret {
    let asked = match a[4] as i32 {
        8.. => user::get::<u64>(a[3]),
        4..8 => user::get::<u32>(a[3]).map(u64::from),
        _ => Err(0),
    };
    let Ok(v) = asked else { return as_is(nr::SETSOCKOPT, a) };
    if v == u64::MAX || (a[4] as i32) < 8 && v == u32::MAX as u64 {
        return as_is(nr::SETSOCKOPT, a);
    }
    let real = rate_by(node().segment().rate, v);
    (a[3], a[4]) = (&raw const real as u64, 8);
    as_is(nr::SETSOCKOPT, a)
}

#[inline(never)]
fn get_rate(a: [u64; 6]) -> Ret {
    let r = as_is(nr::GETSOCKOPT, a);
    let inverse = node().segment().inverse;
    match user::get::<u32>(a[4]) {
        Ok(8) if r == 0 => {
            if let Ok(v) = user::get::<u64>(a[3])
                && v != u64::MAX
            {
                let _ = user::put(a[3], rate_by(inverse, v));
            }
        }
        Ok(4) if r == 0 => {
            if let Ok(v) = user::get::<u32>(a[3])
                && v != u32::MAX
            {
                put_int(a[3], rate_by(inverse, v as u64).min(u32::MAX as u64) as u32);
            }
        }
        _ => {}
    }
    r
}

/// What BBR says of itself: bandwidth in bytes a second, shortest round trip, then gains. Of those that come with Linux,
/// Vegas and its kin tell round trips too; they are told from it by name and left alone.
#[inline(never)]
fn congestion_info(a: [u64; 6]) -> Ret {
    const BBR: u32 = u32::from_le_bytes(*b"bbr\0");
    let r = as_is(nr::GETSOCKOPT, a);
    let (mut name, mut len) = ([0u64; 2], 16u32);
    let about = [a[0], SOL_TCP as u64, TCP_CONGESTION as u64, &raw mut name as u64, &raw mut len as u64, 0];
    if r < 0 || sys::own(nr::GETSOCKOPT, about) < 0 || name[0] as u32 != BBR {
        return r;
    }
    let Ok(len) = user::get::<u32>(a[4]) else { return r };
    let s = node().segment();
    if len >= 8
        && let Ok(rate) = user::get::<u64>(a[3])
    {
        let _ = user::put(a[3], s.inverse.mul_floor(rate));
    }
    if len >= 12
        && let Ok(round_trip) = user::get::<u32>(a[3] + 8)
        && round_trip != u32::MAX
    {
        put_int(a[3] + 8, s.rate.mul_floor(round_trip as u64) as u32);
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
