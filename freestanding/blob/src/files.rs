//! Times of files: the kernel writes them by its own REALTIME, and programs compare them with theirs.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_syscalls::nr;
use diecast_core_vtime::NS_PER_S;
use diecast_core_vtime::file_times::{Stamp, kept, shown};

use crate::clock::{host_at, shown_at};
use crate::sys::{self, Ret, as_is};
use crate::user::{self, Pair, Timespec, Timeval};
use crate::{carried, node};

/// Access, change of the contents, change of the inode, in `struct stat`.
const STAT_TIMES: [u64; 3] = [72, 88, 104];
/// Access, birth, change of the inode, change of the contents, in `struct statx`.
const STATX_TIMES: [u64; 4] = [64, 80, 96, 112];

/// How far the host's REALTIME is ahead of its MONOTONIC. Not as it is now: reading two clocks is not the same twice.
fn host_ahead() -> i64 {
    node().clock.host_ahead_ns.load(Relaxed)
}

/// The host's REALTIME at the lab's start, ns.
fn start_ns() -> u64 {
    let [first, ..] = &node().segments;
    first.r0_ns.load(Relaxed).wrapping_add(host_ahead() as u64)
}

/// A second and its nanoseconds, in 64 bits or in the lower 32 of them, as this node shows them.
fn show(addr: u64) {
    const LOW: u64 = u32::MAX as u64;
    // SAFETY: the kernel has just filled the structure that this is in.
    unsafe {
        user::change(addr, |[sec, nsec]: [u64; 2]| {
            let stamp = Stamp { sec: sec as i64, nsec: nsec as u32 };
            let ahead = host_ahead();
            let t = shown(stamp, start_ns(), |ns| shown_at(ns, ahead));
            [t.sec as u64, nsec & !LOW | t.nsec as u64]
        });
    }
}

/// stat, fstat, lstat and newfstatat; `out` is what they fill.
#[inline(never)]
pub fn stat(number: u32, a: [u64; 6], out: u64) -> Ret {
    let r = as_is(number, a);
    if r == 0 {
        for at in STAT_TIMES {
            show(out.wrapping_add(at));
        }
    }
    r
}

#[inline(never)]
pub fn statx(a: [u64; 6]) -> Ret {
    let r = as_is(nr::STATX, a);
    if r == 0 {
        for at in STATX_TIMES {
            show(a[4].wrapping_add(at));
        }
    }
    r
}

/// What the kernel is to write so that [`show`] gives this. What is no time (UTIME_NOW, UTIME_OMIT, values that the kernel
/// refuses) stays as it is.
fn keep(t: Timespec) -> Timespec {
    if t.nsec as u64 >= NS_PER_S {
        return t;
    }
    let ahead = host_ahead();
    let wanted = Stamp { sec: t.sec, nsec: t.nsec as u32 };
    let k = kept(wanted, start_ns(), |ns| shown_at(ns, ahead), |ns| host_at(ns, ahead));
    Timespec { sec: k.sec, nsec: k.nsec as i64 }
}

#[inline(never)]
pub fn utimensat(mut a: [u64; 6]) -> Ret {
    // Access first, which is where a timer has its interval.
    let Ok(t) = user::get::<Pair<Timespec>>(a[2]) else { return as_is(nr::UTIMENSAT, a) };
    let copy = Pair { interval: keep(t.interval), value: keep(t.value) };
    a[2] = &raw const copy as u64;
    as_is(nr::UTIMENSAT, a)
}

/// Sets both times of what `path` names from `folder`. Served by utimensat, which takes nanoseconds, unless a filter of the
/// program's own might refuse that: `own` then makes the program's call, by what was rounded up to its unit.
fn set<const UNIT_NS: i64>(folder: u64, path: u64, t: Pair<Timespec>, own: impl FnOnce(Pair<Timespec>) -> Ret) -> Ret {
    let up = |t: Timespec| {
        let nsec = (t.nsec + UNIT_NS - 1) / UNIT_NS * UNIT_NS;
        if nsec >= NS_PER_S as i64 {
            Timespec { sec: t.sec.saturating_add(1), nsec: 0 }
        } else {
            Timespec { nsec, ..t }
        }
    };
    let copy = Pair { interval: keep(t.interval), value: keep(t.value) };
    if carried::filtered() {
        return own(Pair { interval: up(copy.interval), value: up(copy.value) });
    }
    as_is(nr::UTIMENSAT, [folder, path, &raw const copy as u64, 0, 0, 0])
}

/// utimes and futimesat, in microseconds; `times` is where they are.
#[inline(never)]
pub fn utimes(number: u32, a: [u64; 6], folder: u64, path: u64, times: u64) -> Ret {
    let Ok(t) = user::get::<Pair<Timeval>>(times) else { return as_is(number, a) };
    let valid = |t: Timeval| (0..1_000_000).contains(&t.usec);
    if !valid(t.interval) || !valid(t.value) {
        return as_is(number, a);
    }
    let fine = |t: Timeval| Timespec { sec: t.sec, nsec: t.usec * 1000 };
    let coarse = |t: Timespec| Timeval { sec: t.sec, usec: t.nsec / 1000 };
    set::<1000>(folder, path, Pair { interval: fine(t.interval), value: fine(t.value) }, |t| {
        let copy = Pair { interval: coarse(t.interval), value: coarse(t.value) };
        let at = &raw const copy as u64;
        as_is(number, if number == nr::UTIMES { [a[0], at, 0, 0, 0, 0] } else { [a[0], a[1], at, 0, 0, 0] })
    })
}

/// utime, in seconds.
#[inline(never)]
pub fn utime(a: [u64; 6]) -> Ret {
    let Ok([access, change]) = user::get::<[u64; 2]>(a[1]) else { return as_is(nr::UTIME, a) };
    let second = |sec: u64| Timespec { sec: sec as i64, nsec: 0 };
    let t = Pair { interval: second(access), value: second(change) };
    set::<{ NS_PER_S as i64 }>(sys::AT_FDCWD, a[0], t, |t| {
        let copy = [t.interval.sec, t.value.sec];
        as_is(nr::UTIME, [a[0], &raw const copy as u64, 0, 0, 0, 0])
    })
}
