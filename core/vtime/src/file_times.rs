//! Times of files, which the kernel writes by its own REALTIME, as a frame shows them.
//!
//! What is older than the frame stays what it is: a package's file of last year is of last year. From the start on a
//! file's time is what REALTIME showed in the frame at that instant. That can't go on for ever: at TDF 10 the year 2100
//! would be kept as the year 2760, which file systems cut. So what is later than [`HORIZON_S`] is shifted by as much as
//! the horizon is.

use crate::NS_PER_S;

/// Real seconds from a frame's start up to which times of files follow its clock: 417 days.
pub const HORIZON_S: i64 = 36_000_000;

/// An instant since 1970 as a file has it: any second, and a nanosecond of it below 10^9.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stamp {
    pub sec: i64,
    pub nsec: u32,
}

impl Stamp {
    /// Nanoseconds since 1970.
    pub const fn of_ns(ns: u64) -> Stamp {
        Stamp { sec: (ns / NS_PER_S) as i64, nsec: (ns % NS_PER_S) as u32 }
    }

    /// Only for stamps between a start and its horizon: `sec < 1.9e10`, which u64 nanoseconds can be until the year 2554.
    const fn ns(self) -> u64 {
        (self.sec as u64).wrapping_mul(NS_PER_S).wrapping_add(self.nsec as u64)
    }

    /// This one `ns` later, or earlier; seconds saturate.
    fn shifted(self, ns: i64) -> Stamp {
        let nsec = i64::from(self.nsec) + ns.rem_euclid(NS_PER_S as i64);
        let (carry, nsec) = if nsec >= NS_PER_S as i64 { (1, nsec - NS_PER_S as i64) } else { (0, nsec) };
        let sec = self.sec.saturating_add(ns.div_euclid(NS_PER_S as i64)).saturating_add(carry);
        Stamp { sec, nsec: nsec as u32 }
    }
}

/// First nanosecond since 1970 that is beyond the horizon of a frame that started at `start_ns`.
const fn horizon_ns(start_ns: u64) -> u64 {
    (start_ns / NS_PER_S + HORIZON_S as u64) * NS_PER_S
}

/// How a frame that started when the host's REALTIME was `start_ns` shows a file's time. `show` gives the frame's
/// REALTIME, ns, when the host's was this.
///
/// Example: TDF 10, started at 100 s: a file of 99 s is of 99 s, and one of 120 s of 102 s.
#[inline]
pub fn shown(kept: Stamp, start_ns: u64, show: impl Fn(u64) -> u64) -> Stamp {
    let start = Stamp::of_ns(start_ns);
    if kept <= start {
        return kept;
    }
    if kept.sec - start.sec >= HORIZON_S {
        let end = horizon_ns(start_ns);
        return kept.shifted(show(end).wrapping_sub(end) as i64);
    }
    Stamp::of_ns(show(kept.ns()))
}

/// What a file must have so that [`shown`] gives `wanted`, exactly where the TDF is at least one. `keep` gives the first
/// instant of the host's REALTIME, ns, at which the frame's is this.
#[inline]
pub fn kept(wanted: Stamp, start_ns: u64, show: impl Fn(u64) -> u64, keep: impl Fn(u64) -> u64) -> Stamp {
    if wanted <= Stamp::of_ns(start_ns) {
        return wanted;
    }
    let end = horizon_ns(start_ns);
    let last = show(end);
    if wanted >= Stamp::of_ns(last) {
        return wanted.shifted(end.wrapping_sub(last) as i64);
    }
    // A clock that was ahead of the host's from the start never showed some of this: then the first instant that it did.
    Stamp::of_ns(keep(wanted.ns()).max(start_ns.wrapping_add(1)).min(end))
}

#[cfg(all(test, feature = "alloc"))]
mod tests {
    use super::*;
    use crate::{FrameMap, RealNs, Tdf, VirtNs};

    /// REALTIME minus MONOTONIC of the host.
    const AHEAD: u64 = 1_700_000_000 * NS_PER_S + 123_456_789;

    struct Frame(FrameMap, i64);

    impl Frame {
        fn start_ns(&self) -> u64 {
            self.0.segments()[0].r0_ns + AHEAD
        }
        fn show(&self, ns: u64) -> u64 {
            self.0.v_of(RealNs(ns - AHEAD)).0.wrapping_add(AHEAD).wrapping_add(self.1 as u64)
        }
        fn keep(&self, ns: u64) -> u64 {
            self.0.r_of(VirtNs(ns.wrapping_sub(self.1 as u64) - AHEAD)).0 + AHEAD
        }
        fn shown(&self, t: Stamp) -> Stamp {
            shown(t, self.start_ns(), |ns| self.show(ns))
        }
        fn kept(&self, t: Stamp) -> Stamp {
            kept(t, self.start_ns(), |ns| self.show(ns), |ns| self.keep(ns))
        }
    }

    fn frame(num: u64, den: u64) -> Frame {
        Frame(FrameMap::start(RealNs(5_000_000_007), Tdf::new(num, den).unwrap()), 0)
    }

    const ALL: [(u64, u64); 8] = [(1, 1), (10, 1), (4, 1), (3, 2), (7, 3), (1000, 1), (1, 2), (1, 100)];

    #[test]
    fn what_is_older_than_the_frame_stays() {
        for (num, den) in ALL {
            let f = frame(num, den);
            let start = Stamp::of_ns(f.start_ns());
            for t in [
                start,
                Stamp { sec: start.sec, nsec: start.nsec - 1 },
                Stamp { sec: 0, nsec: 0 },
                Stamp { sec: -1, nsec: 999_999_999 },
                Stamp { sec: i64::MIN, nsec: 0 },
            ] {
                assert_eq!((f.shown(t), f.kept(t)), (t, t), "TDF {num}/{den}");
            }
        }
    }

    #[test]
    fn what_is_later_is_the_frames_own_time() {
        let f = frame(10, 1);
        let start = Stamp::of_ns(f.start_ns());
        let later = |ns| start.shifted(ns);
        assert_eq!(f.shown(later(20_000_000_000)), later(2_000_000_000));
        assert_eq!(f.shown(later(9)), start, "rounded down");
        assert_eq!(f.kept(later(2_000_000_001)), later(20_000_000_010));
    }

    #[test]
    fn what_is_set_is_read_back_and_nothing_is_out_of_order() {
        let mut f = frame(10, 1);
        f.0.retime(RealNs(9_000_000_000), Tdf::new(3, 2).unwrap()).unwrap();
        f.0.pause(RealNs(11_000_000_000)).unwrap();
        f.0.retime(RealNs(15_000_000_000), Tdf::new(1000, 1).unwrap()).unwrap();
        let frames: Vec<Frame> = ALL.iter().filter(|(n, d)| n >= d).map(|&(n, d)| frame(n, d)).chain([f]).collect();
        for f in frames {
            let start = Stamp::of_ns(f.start_ns());
            let mut random = 0x9e37_79b9_7f4a_7c15u64;
            let mut pairs = Vec::new();
            for i in 0..4000u64 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i | 1);
                let t = start.shifted((random >> (i % 60)) as i64 / 2 - 1000);
                assert_eq!(f.shown(f.kept(t)), t, "{:?}", f.0.segments());
                pairs.push((f.kept(t), t));
            }
            pairs.sort();
            assert!(pairs.windows(2).all(|w| w[0].1 <= w[1].1), "monotone");
        }
    }

    /// A frame that is faster than the host shows no time between two nanoseconds of the host's.
    #[test]
    fn a_faster_frame_reads_back_what_it_set_or_its_next_instant() {
        for den in [2, 100] {
            let f = frame(1, den);
            let start = Stamp::of_ns(f.start_ns());
            for ns in (0..10_000).chain((1 << 50)..(1 << 50) + 1000) {
                let t = start.shifted(ns);
                let back = f.shown(f.kept(t));
                assert!(back >= t && back <= t.shifted(den as i64), "{t:?} {back:?}");
            }
        }
    }

    #[test]
    fn far_stamps_are_shifted_and_keep_their_distance() {
        for (num, den) in ALL {
            let f = frame(num, den);
            for t in [4_102_444_800, 7_258_118_400, i64::MAX / 2].map(|sec| Stamp { sec, nsec: 5 }) {
                let kept = f.kept(t);
                // The years that a faster frame has before its horizon it shows as any time: to its next instant.
                let back = f.shown(kept);
                assert!(back >= t && back < t.shifted(den as i64), "TDF {num}/{den}: {back:?}");
                // 417 days of real time are at most 114 years of a frame at TDF 1/100.
                assert!((kept.sec - t.sec).abs() <= HORIZON_S * den as i64, "TDF {num}/{den}: {kept:?}");
            }
            assert!(f.kept(Stamp { sec: i64::MAX, nsec: 999_999_999 }).sec > i64::MAX / 2, "saturates");
        }
    }

    /// A clock that was ahead of the host's from the start, or behind it.
    #[test]
    fn a_clock_that_is_wrong_shows_its_own_files_by_itself() {
        for offset in [5_000_000_000i64, -5_000_000_000] {
            let mut f = frame(10, 1);
            f.1 = offset;
            let start = Stamp::of_ns(f.start_ns());
            assert_eq!(f.shown(start), start, "what is older is not touched");
            let written = start.shifted(1_000_000_000);
            let seen = f.shown(written);
            assert_eq!(seen, start.shifted(100_000_000 + offset));
            assert_eq!(f.shown(f.kept(seen)), seen);
            // Never shown by anything that was written: the nearest.
            if offset > 0 {
                assert_eq!(f.kept(start.shifted(1)), start.shifted(1));
            }
        }
    }
}
