//! Does a core run as fast as it did?
//!
//! A host of virtual machines may clock its cores down, to a tenth for 50 to 100 ms every other second here, and calls
//! none of it stolen. Whoever repeats the same small work on a core all the time sees it at once. The work of a node takes
//! as many times its usual CPU time then, and is charged what it usually takes: the machine that the node stands for does
//! not slow down.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::cold::WHOLE;

/// A core is slow when the work takes so many times what it usually takes.
const SLOW: u64 = 3;
/// Repetitions before the usual is known well enough.
const FIRST: u32 = 2000;
/// Repetitions in a row that show a slow core: a single one may have been interrupted.
const IN_A_ROW: u32 = 3;
/// A node's work is charged at least this part of its CPU time, in 1/65536: a hundredth.
const CHARGED_MIN: u64 = WHOLE.div_ceil(100);
/// Each repetition moves what is usual by such a part of it, up or down: that settles at the median, and a slow stretch of
/// a tenth of a second moves it by a twentieth.
const STEP: u64 = 10_000;

/// The speed of one core, from work of a fixed size that is repeated on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpeedWatch {
    usual_ns: u64,
    seen: u32,
    slow_ns: u64,
    /// Slow repetitions since the last that was not, and their CPU time.
    in_a_row: u32,
    in_a_row_ns: u64,
}

impl SpeedWatch {
    /// The work took `cpu_ns` of CPU time (see [`undisturbed_ns`]) and ended `passed_ns` of real time after the one before it. Returns
    /// [`slow_ns`](Self::slow_ns).
    ///
    /// Once a repetition was slow, the whole time since it counts as what the next one shows: a core that others keep from the
    /// work is seen again when they let go of it. Of the first only its own time does: received packets interrupt one now and
    /// then in more than half of its parts, two milliseconds after the last. Sums saturate.
    pub fn worked(&mut self, cpu_ns: u64, passed_ns: u64) -> u64 {
        self.seen = self.seen.saturating_add(1);
        if self.seen == 1 {
            self.usual_ns = cpu_ns;
        }
        if self.seen > FIRST && cpu_ns > self.usual_ns.saturating_mul(SLOW) {
            let shown_ns = if self.in_a_row == 0 { cpu_ns.min(passed_ns) } else { passed_ns };
            self.slow_ns = self.slow_ns.saturating_add(shown_ns);
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.in_a_row_ns = self.in_a_row_ns.saturating_add(cpu_ns);
        } else {
            (self.in_a_row, self.in_a_row_ns) = (0, 0);
        }
        let step = (self.usual_ns / STEP).max(1);
        self.usual_ns = if cpu_ns > self.usual_ns {
            self.usual_ns.saturating_add(step)
        } else {
            self.usual_ns - step.min(self.usual_ns)
        };
        self.slow_ns
    }

    /// The part of CPU time used now, in 1/65536, that goes to the core's slowness: 0 at its usual speed, nine tenths at a
    /// tenth of it. Rounded down. None after one or two slow repetitions, which may have been interrupted.
    pub fn discount(&self) -> Option<u32> {
        match self.in_a_row {
            0 => return Some(0),
            1..IN_A_ROW => return None,
            IN_A_ROW.. => {}
        }
        let usual_ns = u128::from(self.usual_ns) * u128::from(self.in_a_row);
        let charged = (usual_ns * u128::from(WHOLE)).div_ceil(u128::from(self.in_a_row_ns.max(1)));
        Some((WHOLE - charged.clamp(CHARGED_MIN.into(), WHOLE.into()) as u64) as u32)
    }

    /// Real time for which the core ran at less than a third of its usual speed.
    pub fn slow_ns(&self) -> u64 {
        self.slow_ns
    }
}

/// Pauses of a core shorter than this are not told from work: a program's exec is out of the meter's sight for as long.
const PAUSE_MIN_NS: u64 = 6_000_000;
/// And those in less than so many grains.
const PAUSE_MIN_GRAINS: u64 = 8;
/// Nobody keeps a core for longer and says that it did nothing: a thread was out of the meter's sight, under a tracer.
const PAUSE_MAX_NS: u64 = 1_000_000_000;

/// The part of a thread's CPU time since its last charge in which its core stood still, ns: a host of virtual machines lets
/// one rest for milliseconds now and then, and calls not all of it stolen. Whoever is not in the kernel all the while is hit
/// after a grain or two of CPU time, so that far more was no work. A grain of it counts as work.
#[inline(always)]
const fn paused_ns(used_ns: u64, grain_ns: u64) -> u64 {
    let most_ns = grain_ns.saturating_mul(PAUSE_MIN_GRAINS).saturating_add(PAUSE_MIN_NS);
    if used_ns > most_ns && used_ns < PAUSE_MAX_NS { used_ns - grain_ns } else { 0 }
}

/// The part in which its core stood still, as far as the core's clock saw it (`seen_ns`) or as it is inferred: only of threads
/// of which a grain is given, since they are not out of the meter's sight.
#[inline(always)]
pub const fn stood_still_ns(used_ns: u64, grain_ns: Option<u64>, seen_ns: u64) -> u64 {
    let seen_ns = seen_paused_ns(used_ns, seen_ns);
    let inferred_ns = match grain_ns {
        Some(grain_ns) => paused_ns(used_ns, grain_ns),
        None => 0,
    };
    if inferred_ns > seen_ns { inferred_ns } else { seen_ns }
}

/// What a core's clock saw, all of it. None where less was used: then a host that calls the pause stolen has taken it off
/// itself, or it was taken off at a packet already.
#[inline(always)]
const fn seen_paused_ns(used_ns: u64, seen_ns: u64) -> u64 {
    if used_ns >= seen_ns { seen_ns } else { 0 }
}

/// What work of so many equal parts takes by the speed of the core alone: each as long as the median of them, of two the
/// upper. A packet's softirq, an interrupt or another program's turn falls into one or two parts; a slow core is in all.
/// Saturates.
pub fn undisturbed_ns<const PARTS: usize>(mut parts_ns: [u64; PARTS]) -> u64 {
    parts_ns.sort_unstable();
    parts_ns.get(PARTS / 2).map_or(0, |median| median.saturating_mul(PARTS as u64))
}

/// What work that took `cpu_ns` on cores with such a [`SpeedWatch::discount`] usually takes. Rounded up; at least a
/// hundredth.
#[inline(always)]
pub fn at_usual_speed(discount: u32, cpu_ns: u64) -> u64 {
    let most = (WHOLE - CHARGED_MIN) as u32;
    let discount = u64::from(if discount < most { discount } else { most });
    // In two parts, each below 2^64: the whole units of 65,536 ns and the rest.
    cpu_ns - ((cpu_ns / WHOLE) * discount + (cpu_ns % WHOLE) * discount / WHOLE)
}

/// What of CPU time that was charged too much comes off `slow_ns`, a node's slow time; the rest comes off what it was charged.
/// It is divided as CPU time is now: it may have been charged at another speed, so that less was slow in all. The two always
/// make up `over_ns`.
#[inline(always)]
pub fn slow_given_back(slow_ns: &AtomicU64, discount: u32, over_ns: u64) -> u64 {
    let most_ns = over_ns - at_usual_speed(discount, over_ns);
    let take = |slow: u64| Some(slow.saturating_sub(most_ns));
    slow_ns.fetch_update(Relaxed, Relaxed, take).map_or(0, |before| before.min(most_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_charged_too_much_at_the_usual_speed_is_given_back_whole_at_another() {
        let slow_ns = AtomicU64::new(700_000);
        let given_back = |discount| slow_given_back(&slow_ns, discount, 2_500_000);
        assert_eq!(given_back(0), 0, "at the usual speed none of it was slow");
        assert_eq!(given_back(WHOLE as u32 / 10), 250_000 - 23, "a tenth of whole units");
        assert_eq!(given_back(u32::MAX), 450_023, "no more than was slow at all");
        assert_eq!((given_back(u32::MAX), slow_ns.load(Relaxed)), (0, 0));
    }

    #[test]
    fn what_a_slow_core_did_is_charged_what_it_usually_takes() {
        let mut w = watch(FIRST.into());
        w.worked(510_000, 600_000);
        w.worked(530_000, 600_000);
        assert_eq!(w.discount(), None, "two may be interruptions");
        w.worked(530_000, 600_000);
        let discount = w.discount().unwrap();
        let share = 1.0 - f64::from(discount) / WHOLE as f64;
        assert!((share - 0.1).abs() < 0.003, "{share}");
        assert!((52_000..54_000).contains(&at_usual_speed(discount, 530_000)));
        w.worked(53_000, 60_000);
        assert_eq!(w.discount(), Some(0));
    }

    #[test]
    fn no_discount_takes_all_and_none_overflows() {
        assert_eq!(at_usual_speed(0, u64::MAX), u64::MAX);
        let least = at_usual_speed(u32::MAX, 1_000_000);
        assert!((10_000..10_100).contains(&least), "{least}");
        assert!(at_usual_speed(u32::MAX, u64::MAX) > u64::MAX / 101);
        assert_eq!(at_usual_speed(u32::MAX, 1), 1);
        let mut w = watch(FIRST.into());
        for _ in 0..10 {
            w.worked(u64::MAX / 4, 1);
        }
        assert_eq!(w.discount().map(u64::from), Some(WHOLE - CHARGED_MIN));
    }

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
        let mut w = watch(FIRST.into());
        for _ in 0..20 {
            w.worked(100_000, 120_000);
        }
        assert_eq!(w.slow_ns(), 0);
        for _ in 0..50 {
            w.worked(500_000, 700_000);
        }
        assert_eq!(w.slow_ns(), 500_000 + 49 * 700_000);
        w.worked(51_000, 60_000);
        assert_eq!(w.slow_ns(), 34_800_000);
    }

    #[test]
    fn one_slow_repetition_says_nothing_of_the_time_before_it() {
        let mut w = watch(FIRST.into());
        for n in 0..100 {
            w.worked(if n % 2 == 0 { 200_000 } else { 50_000 }, 2_000_000);
        }
        assert_eq!(w.slow_ns(), 50 * 200_000);
        w.worked(500_000, 20_000_000);
        w.worked(500_000, 20_000_000);
        assert_eq!(w.slow_ns(), 10_000_000 + 500_000 + 20_000_000, "two do");
    }

    #[test]
    fn a_pause_is_far_more_than_a_slice_and_not_a_second() {
        assert_eq!((seen_paused_ns(5_400_000, 5_000_000), seen_paused_ns(400_000, 5_000_000)), (5_000_000, 0));
        assert_eq!(paused_ns(9_900_000, 500_000), 0);
        assert_eq!(paused_ns(15_300_000, 500_000), 14_800_000);
        assert_eq!(paused_ns(15_300_000, 5_000_000), 0, "three grains of this length");
        assert_eq!(paused_ns(1_000_000_000, 100_000), 0);
        assert_eq!((paused_ns(0, 0), paused_ns(u64::MAX, u64::MAX)), (0, 0));
    }

    #[test]
    fn an_absurd_reading_does_not_make_every_other_one_slow() {
        let mut w = watch(FIRST.into());
        [0, 1, 2, 3].iter().for_each(|ns| assert_eq!(w.worked(*ns, 60_000), 0));
        assert_eq!(w.worked(60_000, 60_000), 0);
        // Nor does one at the beginning.
        let mut w = SpeedWatch::default();
        w.worked(u64::MAX, u64::MAX);
        for _ in 0..500_000 {
            w.worked(50_000, 60_000);
        }
        assert_eq!(w.worked(50_000, 60_000), 0);
        assert_eq!(w.worked(500_000, 700_000), 500_000);
    }

    #[test]
    fn interrupted_work_is_no_slow_core() {
        let usual = undisturbed_ns([2_500; 8]);
        assert_eq!(usual, 20_000);
        assert_eq!(undisturbed_ns([2_500, 90_000, 2_500, 2_500, 2_500, 60_000, 14_000, 2_500]), usual);
        assert_eq!(undisturbed_ns([25_000, 25_000, 26_000, 24_000, 25_000, 90_000, 25_000, 25_000]), 10 * usual);
        assert_eq!(undisturbed_ns([u64::MAX; 8]), u64::MAX);
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
