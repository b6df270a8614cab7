//! How much of its core the emulator's thread takes.

use diecast_core_vtime::{RealNs, RealSpan};

/// The thread may be busy for `SHARE_NS` of each `WINDOW_NS`, 8 ms at a stretch; then it pauses for 2 ms. So an
/// overloaded emulator leaves a fifth of its core to the rest of the machine, and stays clear of the kernel's own bound:
/// a real-time thread that was busy for 950 ms of a second is stopped for 50.
pub(crate) const WINDOW_NS: u64 = 10_000_000;
pub(crate) const SHARE_NS: u64 = 8_000_000;

/// How far the thread is ahead of its share of the core.
pub(crate) struct Share {
    /// Of each `WINDOW_NS`.
    share_ns: u64,
    /// When all that it was busy for is paid for, at `share_ns` in `WINDOW_NS`.
    pub(crate) paid_at: RealNs,
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

    /// Books a busy stretch that ends now; returns how long to pause when the share is used up.
    pub(crate) fn book(&mut self, busy: RealSpan, now: RealNs) -> Option<RealSpan> {
        let began = RealNs(now.0.saturating_sub(busy.0));
        self.paid_at = self.paid_at.max(began).plus(RealSpan(busy.0 * WINDOW_NS / self.share_ns));
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
