//! How much of its core the emulator's thread takes.

use std::thread;
use std::time::Duration;

use diecast_core_vtime::{NS_PER_S, RealNs, RealSpan};
use rustix::time::{ClockId, clock_gettime};

use crate::clock::monotonic_now;
use crate::surplus::Surplus;

/// The thread may be busy for `SHARE_NS` of each `WINDOW_NS`, 8 ms at a stretch; for the next 2 ms it has only what nobody
/// else wants. So an overloaded emulator leaves a fifth of its core to the rest of the machine, and stays clear of the
/// kernel's own bound: a real-time thread that was busy for 950 ms of a second is stopped for 50.
pub(crate) const WINDOW_NS: u64 = 10_000_000;
pub(crate) const SHARE_NS: u64 = 8_000_000;

/// How far the thread is ahead of its share of the core.
pub(crate) struct Share {
    /// Of each `WINDOW_NS`.
    share_ns: u64,
    /// When all that it was busy for is paid for, at `share_ns` in `WINDOW_NS`.
    paid_at: RealNs,
    /// CPU time of the thread when it was last compared with what was booked, when that was, and what was booked since.
    cpu: RealSpan,
    compared_at: RealNs,
    booked: RealSpan,
}

/// Real time between two comparisons: a read of the thread's CPU time is a system call.
const COMPARE_NS: u64 = 1_000_000;

impl Share {
    /// So much of each `WINDOW_NS`.
    pub(crate) fn new(share_ns: u64) -> Share {
        let (at, none) = (RealNs(0), RealSpan(0));
        Share { share_ns, paid_at: at, cpu: none, compared_at: at, booked: none }
    }

    /// From now on so much of each `WINDOW_NS`.
    pub(crate) fn set(&mut self, share_ns: u64) {
        self.share_ns = share_ns;
    }

    /// Books a busy stretch that ends now; returns how long to pause when the share is used up.
    pub(crate) fn book(&mut self, busy: RealSpan, now: RealNs) -> Option<RealSpan> {
        let began = RealNs(now.0.saturating_sub(busy.0));
        self.paid_at = self.paid_at.max(began).plus(RealSpan(busy.0 * WINDOW_NS / self.share_ns));
        self.used_up(now)
    }

    /// For how long from now on the thread has nothing: it was busy for its whole share of a window, and all of that is not paid
    /// for yet.
    pub(crate) fn used_up(&self, now: RealNs) -> Option<RealSpan> {
        let ahead = self.paid_at.since(now);
        (ahead.0 > WINDOW_NS - self.share_ns).then_some(ahead)
    }
}

impl Share {
    /// CPU time of the thread that was booked as none, since it began and ended in a wait: thousands of short ones a second
    /// cost a tenth of a core. `busy` is about to be booked, and so is what is returned; `cpu` is asked now and then.
    pub(crate) fn unbooked(&mut self, busy: RealSpan, now: RealNs, cpu: impl FnOnce() -> RealSpan) -> RealSpan {
        self.booked.0 += busy.0;
        if now.since(self.compared_at).0 < COMPARE_NS {
            return RealSpan(0);
        }
        let cpu = cpu();
        let used_ns = cpu.0.saturating_sub(std::mem::replace(&mut self.cpu, cpu).0);
        let booked_ns = std::mem::take(&mut self.booked).0;
        self.compared_at = now;
        RealSpan(used_ns.saturating_sub(booked_ns))
    }

    /// Goes on from here: what the thread did until now is booked or need not be.
    fn begin_anew(&mut self, cpu: RealSpan, now: RealNs) {
        (self.cpu, self.compared_at, self.booked) = (cpu, now, RealSpan(0));
    }
}

/// CPU time of this thread.
pub(crate) fn thread_cpu() -> RealSpan {
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    RealSpan(cpu.tv_sec as u64 * NS_PER_S + cpu.tv_nsec as u64)
}

/// Keeps a thread to its share.
pub(crate) struct Keeper {
    share: Share,
    /// For what is beyond it; without one the thread pauses.
    surplus: Option<Surplus>,
    beyond: bool,
    /// Since when the thread has been busy without a wait or a pause.
    pub busy_since: RealNs,
    /// How often the share was used up, and for how long in all.
    pub yields: u64,
    pub yielded: RealSpan,
}

impl Keeper {
    /// For the calling thread.
    pub fn new(surplus: Option<Surplus>) -> Keeper {
        let (none, busy_since) = (RealSpan(0), monotonic_now());
        Keeper { share: Share::new(SHARE_NS), surplus, beyond: false, busy_since, yields: 0, yielded: none }
    }

    /// Whether others may run in the middle of the thread's work.
    pub fn is_beyond(&self) -> bool {
        self.beyond
    }

    /// Call it after every turn of work. When the share is used up the thread pauses, or has a low priority for a while.
    pub fn keep(&mut self) {
        let now = monotonic_now();
        if let (true, Some(surplus)) = (self.beyond, &self.surplus) {
            match surplus.ended() {
                None => {
                    self.busy_since = now;
                    return;
                }
                Some(ended) => {
                    self.beyond = false;
                    self.busy_since = self.busy_since.max(ended);
                    self.share.begin_anew(thread_cpu(), now);
                }
            }
        }
        let mut busy = now.since(self.busy_since);
        busy.0 += self.share.unbooked(busy, now, thread_cpu).0;
        self.busy_since = now;
        let Some(pause) = self.share.book(busy, now) else { return };
        self.yields += 1;
        self.yielded.0 += pause.0;
        if let Some(surplus) = &self.surplus {
            self.beyond = true;
            surplus.begin(now.plus(pause));
        } else {
            thread::sleep(Duration::from_nanos(pause.0));
            self.busy_since = monotonic_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_used_up_share_pauses_until_the_window_ends() {
        let mut share = Share::new(SHARE_NS);
        assert_eq!(share.book(RealSpan(7 * MS), RealNs(7 * MS)), None);
        assert_eq!(share.book(RealSpan(1_500_000), RealNs(8_500_000)), Some(RealSpan(2_125_000)));
        // After the pause it is as if nothing had been.
        assert_eq!(share.book(RealSpan(7_900_000), RealNs(18_525_000)), None);
        // Time without work pays.
        assert_eq!(share.book(RealSpan(7 * MS), RealNs(28 * MS)), None);
    }

    /// Twenty times 25 us, one right after the other, are a share of 500. One more, and the next has to wait until that is
    /// paid for.
    #[test]
    fn a_share_may_be_used_at_once() {
        let (mut share, mut now) = (Share::new(500_000), 0);
        for _ in 0..21 {
            assert_eq!(share.used_up(RealNs(now)), None);
            now += 25_000;
            share.book(RealSpan(25_000), RealNs(now));
        }
        assert!(share.used_up(RealNs(now)).is_some());
        assert_eq!(share.used_up(RealNs(now + 500_000)), None);
    }

    /// Each 25 us: 10 booked, 10 that the waits cost, 5 asleep.
    #[test]
    fn what_short_waits_cost_is_booked_too() {
        let (mut share, mut now, mut cpu) = (Share::new(SHARE_NS), 0, 0);
        while now < 1_000 * MS {
            now += 25_000;
            cpu += 20_000;
            let mut busy = RealSpan(10_000);
            busy.0 += share.unbooked(busy, RealNs(now), || RealSpan(cpu)).0;
            now += share.book(busy, RealNs(now)).map_or(0, |pause| pause.0);
        }
        let used = cpu as f64 / now as f64;
        assert!((0.77..0.81).contains(&used), "{used}");
    }

    /// Whatever the length of its stretches, above the share or below: nothing is forgotten at the end of a window.
    #[test]
    fn stretches_of_any_length_stay_below_the_share() {
        for stretch in [10_000, 300_000, 2_100_000, 7_900_000, 8_100_000, 25 * MS] {
            let (mut share, mut now, mut busy) = (Share::new(SHARE_NS), 0, 0);
            while now < 1_000 * MS {
                now += stretch;
                busy += stretch;
                now += share.book(RealSpan(stretch), RealNs(now)).map_or(0, |pause| pause.0);
            }
            let used = busy as f64 / now as f64;
            assert!((0.79..0.81).contains(&used), "{stretch} ns: {used}");
        }
    }
}
