//! Does a core run as fast as it did?
//!
//! A host of virtual machines may clock its cores down, to a tenth for 50 to 100 ms every other second here, and calls
//! none of it stolen. Whoever repeats the same small work on a core all the time sees it at once.

/// A core is slow when the work takes so many times what it usually takes.
const SLOW: u64 = 3;
/// Repetitions before the usual is known well enough.
const FIRST: u32 = 500;
/// Each repetition moves what is usual by such a part of it, up or down: that settles at the median, and a slow stretch of
/// a tenth of a second moves it by a twentieth.
const STEP: u64 = 4096;

/// The speed of one core, from work of a fixed size that is repeated on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpeedWatch {
    usual_ns: u64,
    seen: u32,
    slow_ns: u64,
}

impl SpeedWatch {
    /// The work took `cpu_ns` of CPU time and ended `passed_ns` of real time after the one before it. Returns
    /// [`slow_ns`](Self::slow_ns).
    ///
    /// The whole time since the one before counts as what this one shows: a core that others keep from the work is seen
    /// again when they let go of it. Sums saturate.
    pub fn worked(&mut self, cpu_ns: u64, passed_ns: u64) -> u64 {
        self.seen = self.seen.saturating_add(1);
        if self.seen == 1 {
            self.usual_ns = cpu_ns;
        }
        if self.seen > FIRST && cpu_ns > self.usual_ns.saturating_mul(SLOW) {
            self.slow_ns = self.slow_ns.saturating_add(passed_ns);
        }
        let step = (self.usual_ns / STEP).max(1);
        self.usual_ns = if cpu_ns > self.usual_ns {
            self.usual_ns.saturating_add(step)
        } else {
            self.usual_ns - step.min(self.usual_ns)
        };
        self.slow_ns
    }

    /// Real time for which the core ran at less than a third of its usual speed.
    pub fn slow_ns(&self) -> u64 {
        self.slow_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch that has seen so many repetitions of about 50 µs.
    fn watch(repetitions: u64) -> SpeedWatch {
        let mut w = SpeedWatch::default();
        for n in 0..repetitions {
            w.worked(50_000 + n % 7 * 1_000, 60_000);
        }
        w
    }

    #[test]
    fn a_core_at_a_tenth_of_its_speed_is_slow_and_one_at_half_is_not() {
        let mut w = watch(1000);
        for _ in 0..20 {
            w.worked(100_000, 120_000);
        }
        assert_eq!(w.slow_ns(), 0);
        for _ in 0..50 {
            w.worked(500_000, 700_000);
        }
        assert_eq!(w.slow_ns(), 35_000_000);
        w.worked(51_000, 60_000);
        assert_eq!(w.slow_ns(), 35_000_000);
    }

    #[test]
    fn an_absurd_reading_does_not_make_every_other_one_slow() {
        let mut w = watch(1000);
        [0, 1, 2, 3].iter().for_each(|ns| assert_eq!(w.worked(*ns, 60_000), 0));
        assert_eq!(w.worked(60_000, 60_000), 0);
        // Nor does one at the beginning.
        let mut w = SpeedWatch::default();
        w.worked(u64::MAX, u64::MAX);
        for _ in 0..200_000 {
            w.worked(50_000, 60_000);
        }
        assert_eq!(w.worked(50_000, 60_000), 0);
        assert_eq!(w.worked(500_000, 700_000), 700_000);
    }

    #[test]
    fn nothing_is_said_before_the_usual_is_known() {
        let mut w = SpeedWatch::default();
        w.worked(1_000, 1_000);
        for _ in 1..FIRST {
            assert_eq!(w.worked(900_000, 900_000), 0);
        }
    }
}
