//! ITIMER_REAL and POSIX timers while the lab stands still, or gets another rate: the kernel's would run on.
//!
//! The supervisor calls [`serve`] in one thread of a process of which every thread is stopped, first to hold the timers,
//! then to set them again by the map and the rates of the node's clock that hold from then on. A held timer is remembered by
//! its instant on the node's MONOTONIC.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::TIMERS_MAX;
use diecast_core_syscalls::nr;
use diecast_core_vtime::RealNs;

use crate::sys::{self, Ret};
use crate::timers::{self, timer_clock};
use crate::user::{Pair, Timespec, Timeval};
use crate::{clock, node, process};

const ZERO: Timespec = Timespec { sec: 0, nsec: 0 };
const ZERO_TV: Timeval = Timeval { sec: 0, usec: 0 };

/// Holds this process's timers (0), or sets them again (anything else).
pub extern "C" fn serve(again: u64) -> Ret {
    if again == 0 {
        hold_itimer()
    } else {
        set_itimer()
    }
    for (id, known) in process().timer_clock.iter().enumerate().take(TIMERS_MAX) {
        if known.load(Relaxed) != 0 && !clock::is_cpu(timer_clock(id as u64)) {
            if again == 0 { hold_timer(id) } else { set_timer(id) }
        }
    }
    0
}

/// The node's MONOTONIC in so many real nanoseconds; never zero.
fn due_in(real_ns: u64) -> u64 {
    node().mono_at(RealNs(clock::now_real().0.saturating_add(real_ns)))
}

#[inline(never)]
fn hold_itimer() {
    let (zero, mut old) = (Pair { interval: ZERO_TV, value: ZERO_TV }, Pair { interval: ZERO_TV, value: ZERO_TV });
    sys::own(nr::SETITIMER, [0, &raw const zero as u64, &raw mut old as u64, 0, 0, 0]);
    // The kernel goes on with one whose signal is pending only once that is taken, and now not any more.
    let left_us = match timers::us(old.value) {
        0 => timers::us(old.interval),
        left => left,
    };
    if left_us != 0 {
        // The kernel rounded down.
        process().own.itimer_due_ns.store(due_in(left_us.saturating_add(1).saturating_mul(1000)), Relaxed);
        let every_us = timers::us(timers::itimer_out(old).interval);
        process().own.itimer_every_ns.store(every_us * 1000, Relaxed);
    }
}

#[inline(never)]
fn set_itimer() {
    let own = &process().own;
    let due = own.itimer_due_ns.swap(0, Relaxed);
    if due == 0 {
        return;
    }
    let left_ns = node().r_of_mono(due).0.saturating_sub(clock::now_real().0);
    let every = clock::timespec(own.itimer_every_ns.load(Relaxed));
    let interval = timers::timeval_period_in(Timeval { sec: every.sec, usec: every.nsec / 1000 });
    let real = Pair { interval, value: timers::whole(clock::timespec(left_ns.max(1))) };
    sys::own(nr::SETITIMER, [0, &raw const real as u64, 0, 0, 0, 0]);
}

#[inline(never)]
fn hold_timer(id: usize) {
    let mut now = Pair { interval: ZERO, value: ZERO };
    let r = sys::own(nr::TIMER_GETTIME, [id as u64, &raw mut now as u64, 0, 0, 0, 0]);
    // One that is gone, is not set, or has fired for good stays as it is.
    if r < 0 || clock::ns_of(now.value) == 0 {
        return;
    }
    let before = sys::pending();
    let zero = Pair { interval: ZERO, value: ZERO };
    sys::own(nr::TIMER_SETTIME, [id as u64, 0, &raw const zero as u64, &raw mut now as u64, 0, 0]);
    let after = sys::pending();
    if clock::ns_of(now.value) == 0 && after & !before != 0 {
        return;
    }
    let every = clock::ns_of(timers::spec_out(clock::MONOTONIC, now).interval);
    let mut due = due_in(clock::ns_of(now.value));
    if before & !after != 0 {
        // Linux 6.13 and later drop the signal of a periodic timer, blocked until now, with its setting.
        due = due.saturating_sub(every).max(1);
    }
    let kept = &process().inherited;
    if let (Some(d), Some(e)) = (kept.cpu_due_ns.get(id), kept.cpu_every_ns.get(id)) {
        d.store(due, Relaxed);
        e.store(every, Relaxed);
    }
}

/// An instant at which a timer is due, after all steps of its clock since it was set.
#[inline(never)]
fn by_wall_time(id: usize, due: u64) -> u64 {
    let p = process();
    let (Some(known), Some(was)) = (p.timer_clock.get(id), p.inherited.timer_ahead_ns.get(id)) else { return due };
    if !timers::is_at_wall_time(known.load(Relaxed)) {
        return due;
    }
    let ahead = clock::ahead(timer_clock(id as u64));
    let jump = ahead.wrapping_sub(was.swap(ahead, Relaxed));
    due.saturating_add_signed(jump.saturating_neg()).max(1)
}

#[inline(never)]
fn set_timer(id: usize) {
    let kept = &process().inherited;
    let (Some(due), Some(every)) = (kept.cpu_due_ns.get(id), kept.cpu_every_ns.get(id)) else { return };
    let due = due.swap(0, Relaxed);
    if due == 0 {
        return;
    }
    let due = by_wall_time(id, due);
    // By an instant, so that the phase stays: one that has passed fires at once and then on.
    let id_of_clock = timer_clock(id as u64);
    let ahead = clock::kernel_ahead(id_of_clock);
    let at = (node().r_of_mono(due).0 as i64).saturating_add(ahead).max(1);
    let interval = clock::period_in(clock::MONOTONIC, clock::timespec(every.load(Relaxed)));
    let real = Pair { interval, value: clock::timespec(at as u64) };
    sys::own(nr::TIMER_SETTIME, [id as u64, 1, &raw const real as u64, 0, 0, 0]);
}
