//! What part of a core a thread has beside others, by nice values and real-time policies.
//!
//! The original machine's scheduler gives busy threads parts of its cores in proportion to their weights, none more than
//! one core. Under a TDF above 1 threads sleep between their slices, so that the host's scheduler has nothing to decide:
//! the ledger's order alone would give all of them equal parts.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::Rival;
use diecast_core_vtime::VirtNs;

/// The weight of nice 0.
pub const USUAL_WEIGHT: u32 = 1024;
/// Of SCHED_IDLE.
pub const IDLE_WEIGHT: u32 = 3;
/// Stands for SCHED_FIFO and SCHED_RR.
pub const REAL_TIME: u32 = u32::MAX;
/// What real-time threads take of a core that they keep busy, in thousandths: the kernel leaves the rest to others
/// (sched_rt_runtime_us, the fair server).
const REAL_TIME_MILLI: u64 = 950;

/// The weight of a nice value, -20 to 19: each step is a factor of 1.25 (kernel: sched/core.c), here to the nearest.
pub const fn weight_of_nice(nice: i8) -> u32 {
    // In 1/2^16; the largest is below 2^33.
    let mut weight = (USUAL_WEIGHT as u64) << 16;
    let mut step = 0;
    while step < nice.unsigned_abs() {
        weight = if nice < 0 { weight * 5 / 4 } else { weight * 4 / 5 };
        step += 1;
    }
    ((weight + (1 << 15)) >> 16) as u32
}

/// A part of a core: `num / den`, at most 1, never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    num: u64,
    den: u64,
}

impl Part {
    const WHOLE: Part = Part { num: 1, den: 1 };

    /// When so much work ends that begins at `from` and has this part of a core. Rounds up: nothing is early. Saturates; a
    /// denominator below 2^47 fits.
    pub fn end_of(self, from: VirtNs, work_v_ns: u64) -> VirtNs {
        let slower = (self.den << 16).div_ceil(self.num.max(1));
        let long = (u128::from(work_v_ns) * u128::from(slower) + 0xffff) >> 16;
        VirtNs(from.0.saturating_add(u64::try_from(long).unwrap_or(u64::MAX)))
    }
}

/// The part of a core that a thread of this weight has beside its rivals at this instant.
///
/// Real-time threads come first. Of what they leave, whoever's part by weight would be more than a core has one, the
/// heaviest first; the others share what is left by weight. Sums of at most 256 weights below 2^17 stay below 2^25.
pub fn part_of(rivals: &[Rival], now: VirtNs, tid: u32, weight: u32, cpus: usize) -> Part {
    let others =
        || rivals.iter().filter_map(|r| r.at(now.0)).filter(|(other, _)| *other != tid).map(|(_, weight)| weight);
    let real_time = others().filter(|w| *w == REAL_TIME).count() as u64;
    let cpus = cpus.max(1) as u64;
    if weight == REAL_TIME {
        let all = real_time + 1;
        return if all <= cpus { Part::WHOLE } else { Part { num: cpus, den: all } };
    }
    let weight = weight.max(1);
    let mut left_milli = 1000 * cpus - REAL_TIME_MILLI * real_time.min(cpus);
    let mut sum = u64::from(weight) + others().filter(|w| *w != REAL_TIME).map(u64::from).sum::<u64>();
    let mut below = REAL_TIME;
    // Each turn takes those of the greatest weight that is left away, if they have a core each.
    for _ in 0..cpus {
        let lighter = || others().chain([weight]).filter(|w| *w < below);
        let Some(most) = lighter().max() else { break };
        if left_milli * u64::from(most) < 1000 * sum {
            break;
        }
        if weight == most {
            return Part::WHOLE;
        }
        let count = lighter().filter(|w| *w == most).count() as u64;
        left_milli = left_milli.saturating_sub(1000 * count);
        sum -= count * u64::from(most);
        below = most;
    }
    let den = 1000 * sum;
    Part { num: (left_milli * u64::from(weight)).min(den).max(1), den }
}

/// What a thread was charged between two readings of its sum, ns. The sum falls, below zero too, where CPU time that it was
/// charged ahead is given back: then nothing.
pub const fn charged_since(now: u64, before: u64) -> u64 {
    let more = now.wrapping_sub(before) as i64;
    if more > 0 { more as u64 } else { 0 }
}

/// Whether a heavier rival that competes at this instant has had less than its part, by more than `by_v_ns` of virtual time:
/// it was due before. One that is hit late, since the host's cores are busy, does not seem to compete for a while, and
/// others take its part. Real-time ones never get the whole core that they are due, and don't count.
pub fn heavier_is_behind(rivals: &[Rival], now: VirtNs, weight: u32, by_v_ns: u64) -> bool {
    let behind = |r: &Rival| r.due_v_ns.load(Relaxed).saturating_add(by_v_ns) < now.0;
    let heavier = |other| other > weight && other != REAL_TIME;
    rivals.iter().any(|r| r.at(now.0).is_some_and(|(_, other)| heavier(other)) && behind(r))
}

#[cfg(test)]
mod tests {
    use diecast_core_abi::compete;

    use super::*;

    fn part(others: &[u32], weight: u32, cpus: usize) -> f64 {
        let rivals = [const { Rival::free() }; 8];
        for (tid, other) in (10..).zip(others) {
            _ = compete(&rivals, tid, *other, 0, 100);
        }
        // An entry of its own, as each hit leaves one, changes nothing.
        _ = compete(&rivals, 1, weight, 0, 100);
        let p = part_of(&rivals, VirtNs(50), 1, weight, cpus);
        assert_eq!(part_of(&rivals, VirtNs(100), 1, weight, cpus), Part::WHOLE, "their time is over");
        p.num as f64 / p.den as f64
    }

    /// The kernel's own are 88761, 9548, 335, 110 and 15.
    #[test]
    fn weights_are_the_kernels_to_a_per_cent() {
        let ours = [-20, -10, 0, 5, 10, 19].map(weight_of_nice);
        assert_eq!(ours, [88_818, 9_537, 1_024, 336, 110, 15]);
    }

    #[test]
    fn parts_are_by_weight_and_at_most_a_core() {
        assert_eq!(part(&[], 15, 1), 1.0, "alone");
        assert_eq!(part(&[1024], 1024, 1), 0.5);
        assert!((part(&[1024], 110, 1) - 110.0 / 1134.0).abs() < 1e-6);
        assert!((part(&[110], 1024, 1) - 1024.0 / 1134.0).abs() < 1e-6);
        assert_eq!(part(&[1024], 15, 2), 1.0, "a core is left");
        assert_eq!(part(&[15], 1024, 2), 1.0);
        assert_eq!(part(&[1024, 1024, 1024], 1024, 2), 0.5);
        // Two have a core each, the others share the third by weight.
        assert!((part(&[88_818, 88_818, 1024], 110, 3) - 110.0 / 1134.0).abs() < 1e-6);
        assert!((part(&[1024, 15, 15], 15, 2) - 1.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn real_time_threads_leave_a_twentieth() {
        assert_eq!(part(&[1024, 1024], REAL_TIME, 1), 1.0);
        assert_eq!(part(&[REAL_TIME], REAL_TIME, 1), 0.5);
        assert!((part(&[REAL_TIME], 1024, 1) - 0.05).abs() < 1e-6);
        assert!((part(&[REAL_TIME, REAL_TIME, 1024], 1024, 1) - 0.025).abs() < 1e-6);
        assert_eq!(part(&[REAL_TIME], 15, 2), 1.0);
        assert!((part(&[REAL_TIME, 1024], 15, 2) - 0.05).abs() < 1e-6);
    }

    #[test]
    fn what_is_given_back_is_no_work() {
        assert_eq!(charged_since(7, 5), 2);
        assert_eq!(charged_since(5, 7), 0);
        assert_eq!(charged_since(5u64.wrapping_sub(9), 5), 0, "below zero");
        assert_eq!(charged_since(3, 5u64.wrapping_sub(9)), 7, "and up again");
    }

    #[test]
    fn who_is_heavier_and_late_is_seen_while_it_competes() {
        let rivals = [const { Rival::free() }; 2];
        compete(&rivals, 1, 1024, 0, 1_000).unwrap().0.due_v_ns.store(300, Relaxed);
        let behind = |now, weight| heavier_is_behind(&rivals, VirtNs(now), weight, 200);
        assert_eq!(
            [behind(500, 15), behind(501, 15), behind(501, 1024), behind(1_000, 15)],
            [false, true, false, false]
        );
    }

    #[test]
    fn an_end_is_never_early_and_never_overflows() {
        let third = Part { num: 1, den: 3 };
        assert_eq!(third.end_of(VirtNs(5), 7), VirtNs(26));
        assert_eq!(Part { num: 2, den: 3 }.end_of(VirtNs(0), 5), VirtNs(8));
        assert_eq!(third.end_of(VirtNs(5), u64::MAX), VirtNs(u64::MAX));
        // A nice 19 beside 255 of nice -20.
        let least = Part { num: 15_000, den: 1000 * (15 + 255 * 88_818) };
        assert_eq!(least.end_of(VirtNs(0), 500_000).0, 754_953_500_000, "twelve minutes for a slice");
    }
}
