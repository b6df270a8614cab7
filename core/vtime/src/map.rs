//! The map from real to virtual time: pieces of straight line, one per rate the lab has had.

use crate::{RealNs, Tdf, VirtNs};

#[cfg(feature = "alloc")]
pub use frame_map::{FrameMap, SegmentError};

/// A rate as a 64.64 fixed-point number: `int + frac / 2^64`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Rate {
    /// Whole part.
    pub int: u64,
    /// Fraction, in units of 2^-64.
    pub frac: u64,
}

impl Rate {
    /// No virtual time passes.
    pub const ZERO: Rate = Rate { int: 0, frac: 0 };

    /// `num/den` rounded up to a multiple of 2^-64.
    ///
    /// Rounding up makes `x * rate`, floored, equal to `floor(x * num / den)` exactly while
    /// `x * den < 2^64` (TDF 1000: 213 days), because the exact value is at least `1/den` below the next
    /// integer or equal to one, and the error `x * 2^-64` is smaller. Beyond, it is at most 1 ns more.
    pub fn ratio_up(num: u32, den: u32) -> Rate {
        let n = u128::from(num);
        let d = u128::from(den);
        let int = (n / d) as u64;
        let frac = ((n % d) << 64).div_ceil(d);
        Rate { int, frac: frac as u64 }
    }

    /// `floor(x * rate)`, saturating at `u64::MAX`.
    ///
    /// Bound: `x * int < 2^128` and the shifted product is below 2^64, so the sum fits 128 bits.
    #[inline(always)]
    pub const fn mul_floor(self, x: u64) -> u64 {
        let hi = ((x as u128 * self.frac as u128) >> 64) as u64;
        if self.int == 0 {
            return hi;
        }
        let whole = x as u128 * self.int as u128 + hi as u128;
        if whole > u64::MAX as u128 { u64::MAX } else { whole as u64 }
    }

    /// `x * rate` rounded up (by at most 1 ns too much), zero only for `x == 0`, saturating.
    #[inline(always)]
    pub const fn mul_up(self, x: u64) -> u64 {
        self.mul_floor(x).saturating_add((self.frac != 0 && x != 0) as u64)
    }
}

/// One straight piece: from real instant `r0` on, virtual time is `v0 + (r - r0) * rate`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Segment {
    /// Real start, nanoseconds of CLOCK_MONOTONIC.
    pub r0_ns: u64,
    /// Virtual time at the start, nanoseconds.
    pub v0_ns: u64,
    /// Virtual nanoseconds per real nanosecond (1/TDF; zero while paused).
    pub rate: Rate,
    /// Real nanoseconds per virtual nanosecond (TDF; zero while paused), a guess that `r_of` corrects.
    pub inverse: Rate,
}

impl Segment {
    /// A segment that starts at (`r0`, `v0`) and runs at `1/tdf`.
    pub fn new(r0: RealNs, v0: VirtNs, tdf: Tdf) -> Segment {
        Segment {
            r0_ns: r0.0,
            v0_ns: v0.0,
            rate: Rate::ratio_up(tdf.den(), tdf.num()),
            inverse: Rate::ratio_up(tdf.num(), tdf.den()),
        }
    }

    /// A segment in which no virtual time passes.
    pub const fn paused(r0: RealNs, v0: VirtNs) -> Segment {
        Segment { r0_ns: r0.0, v0_ns: v0.0, rate: Rate::ZERO, inverse: Rate::ZERO }
    }

    /// Virtual time at real instant `r`, rounded down, monotone in `r`, saturating.
    /// Before the start the map is the identity with the start's offset.
    ///
    /// Example: `r0 = 100, v0 = 7, TDF 10`: `v_of(119) = 8`.
    #[inline(always)]
    pub const fn v_of(&self, r: RealNs) -> VirtNs {
        if r.0 < self.r0_ns {
            return VirtNs(self.v0_ns.saturating_sub(self.r0_ns - r.0));
        }
        VirtNs(self.v0_ns.saturating_add(self.rate.mul_floor(r.0 - self.r0_ns)))
    }

    /// The smallest `r` with `v_of(r) >= v`; [`RealNs::NEVER`] while paused or out of range.
    ///
    /// The fixed-point inverse is a guess that is at most a few nanoseconds off; the two loops make it
    /// exact, whatever the rounding of the inverse was.
    #[inline]
    pub const fn r_of(&self, v: VirtNs) -> RealNs {
        if v.0 <= self.v0_ns {
            return RealNs(self.r0_ns.saturating_sub(self.v0_ns - v.0));
        }
        if self.rate.int == 0 && self.rate.frac == 0 {
            return RealNs::NEVER;
        }
        let mut d = self.inverse.mul_floor(v.0 - self.v0_ns);
        if d > u64::MAX / 2 {
            return RealNs::NEVER;
        }
        let want = v.0 - self.v0_ns;
        while self.rate.mul_floor(d) < want {
            d += 1;
        }
        while d > 0 && self.rate.mul_floor(d - 1) >= want {
            d -= 1;
        }
        RealNs(self.r0_ns.saturating_add(d))
    }
}

#[cfg(feature = "alloc")]
mod frame_map {
    use alloc::vec::Vec;
    use core::fmt;

    use super::Segment;
    use crate::{RealNs, Tdf, VirtNs};

    /// Why a segment cannot be appended.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum SegmentError {
        /// It would start before the last one.
        NotLater,
    }

    impl fmt::Display for SegmentError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a segment must not start before the last one")
        }
    }

    impl core::error::Error for SegmentError {}

    /// Every segment since the lab's start: one monotone function for the lab's life.
    #[derive(Clone, Debug)]
    pub struct FrameMap {
        segments: Vec<Segment>,
    }

    impl FrameMap {
        /// A frame that starts at real instant `r0`, with virtual time equal to real time there.
        pub fn start(r0: RealNs, tdf: Tdf) -> FrameMap {
            FrameMap { segments: alloc::vec![Segment::new(r0, VirtNs(r0.0), tdf)] }
        }

        /// All segments, oldest first, never empty.
        pub fn segments(&self) -> &[Segment] {
            &self.segments
        }

        /// The segment in force now.
        pub fn current(&self) -> &Segment {
            &self.segments[self.segments.len() - 1]
        }

        /// From `at` on the rate is `1/tdf`; virtual time is continuous there.
        pub fn retime(&mut self, at: RealNs, tdf: Tdf) -> Result<(), SegmentError> {
            self.push(at, |v0| Segment::new(at, v0, tdf))
        }

        /// From `at` on no virtual time passes.
        pub fn pause(&mut self, at: RealNs) -> Result<(), SegmentError> {
            self.push(at, |v0| Segment::paused(at, v0))
        }

        fn push(&mut self, at: RealNs, make: impl Fn(VirtNs) -> Segment) -> Result<(), SegmentError> {
            if at.0 < self.current().r0_ns {
                return Err(SegmentError::NotLater);
            }
            let v0 = self.current().v_of(at);
            self.segments.push(make(v0));
            Ok(())
        }

        /// Virtual time at any real instant, past ones included.
        pub fn v_of(&self, r: RealNs) -> VirtNs {
            let i = self.segments.partition_point(|s| s.r0_ns <= r.0).saturating_sub(1);
            self.segments[i].v_of(r)
        }

        /// The smallest real instant at which virtual time is at least `v`.
        pub fn r_of(&self, v: VirtNs) -> RealNs {
            // The first segment whose end (the start of the next) has reached v holds the answer.
            for pair in self.segments.windows(2) {
                if pair[1].v0_ns >= v.0 {
                    return pair[0].r_of(v);
                }
            }
            self.current().r_of(v)
        }
    }
}
