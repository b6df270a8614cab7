//! How much of a node's work is cold code by what it cost at a lower TDF.
//!
//! What is learned at one TDF (`learn`, `ages`) shows how bursts differ, not what all of them have in common: what a request
//! touches now and then was last touched many requests ago, whatever its last sleep was. A lab that ran at a lower TDF for a
//! moment has seen what the same work costs there. That is taken for what it costs in the original: below a TDF of 3 or so
//! it hardly falls any more (PROMISES.md, "Why cold code is hard"), and what is wrong then is charged too much, not too
//! little. The discounts keep their shape over sleeps, and get that mean.

use diecast_core_abi::GAP_BINS;

use crate::cold::{COLD_MAX_NS, DISCOUNT_MAX, WHOLE};
use crate::learn::{BIN_MIN, Bursts, CHANCE, more_than_chance};

/// Of fewer bursts, there or here, nothing is said.
const BURSTS_MIN: f64 = 50.0;
/// Bursts that are longer in the mean are cold in a part only: what is taken off all work says nothing of them, real ns.
const SHORT_NS: f64 = COLD_MAX_NS as f64;
/// A shape whose mean is a smaller part of what is wanted is none: all sleeps are the same then.
const SHAPE_MIN: f64 = 0.2;
/// How far what is taken off may be from what was meant to be, either way.
const OFF_MAX: f64 = 2.0;

/// What part of its work a node's bursts need not cost, and how well the discounts keep to that.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    trim: f64,
}

impl Default for Level {
    fn default() -> Level {
        Level { trim: 1.0 }
    }
}

impl Level {
    /// The part of its CPU time that a node's work costs beyond what it did at a lower TDF, 0 to 3/4; None where too little
    /// was seen. Work is measured by what was received: so many bytes, and so much for each receive ([`Bursts::data`]). What
    /// differs by chance counts for nothing.
    pub fn wanted(now: &Bursts, probed: &Bursts) -> Option<f64> {
        let (here, there) = (Cost::of(now)?, Cost::of(probed)?);
        let ratio = there.of_data / here.of_data;
        let by_chance = CHANCE * ratio * ratio * (here.variance + there.variance);
        Some(more_than_chance(1.0 - ratio, by_chance).min(DISCOUNT_MAX as f64 / WHOLE as f64))
    }

    /// Discounts of the same shape over sleeps whose mean over the node's work is `wanted`. In parts of [`WHOLE`], rounded down.
    pub fn set(&self, shape: &[u32; GAP_BINS], now: &Bursts, wanted: f64) -> [u32; GAP_BINS] {
        let (mut all_ns, mut off_ns) = (0.0, 0.0);
        for (bin, part) in shape.iter().enumerate() {
            let cpu_ns: f64 = now.cpu_ns.iter().map(|cells| cells[bin]).sum();
            all_ns += cpu_ns;
            off_ns += cpu_ns * f64::from(*part) / WHOLE as f64;
        }
        let mean = if all_ns > 0.0 { off_ns / all_ns } else { 0.0 };
        core::array::from_fn(|bin| {
            let part = if mean > 0.0 && mean >= SHAPE_MIN * wanted {
                f64::from(shape[bin]) / WHOLE as f64 * wanted / mean
            } else if bin >= BIN_MIN {
                wanted
            } else {
                0.0
            };
            ((part * self.trim * WHOLE as f64) as u32).min(DISCOUNT_MAX as u32)
        })
    }

    /// What was taken off since the last look, and what was charged: where sleeps are not known as well at a hit as to the
    /// learner, it differs from what was wanted, and is made up for. Real CPU ns.
    pub fn follow(&mut self, now: &Bursts, wanted: f64, cold_ns: u64, charged_ns: u64) {
        let (count, cpu_ns) = (now.count.iter().flatten().sum::<f64>(), now.cpu_ns.iter().flatten().sum::<f64>());
        if cpu_ns > SHORT_NS * count || cold_ns == 0 || charged_ns == 0 {
            return;
        }
        let seen = cold_ns as f64 / (cold_ns + charged_ns) as f64;
        // Half of the way, so that one odd half second does little.
        let towards = 1.0 + (wanted / seen - 1.0).clamp(-0.5, 0.5) / 2.0;
        self.trim = (self.trim * towards).clamp(1.0 / OFF_MAX, OFF_MAX);
    }
}

/// What a unit of data cost.
struct Cost {
    of_data: f64,
    /// Of that, as a part of its square: each burst may have cost more or less than its data.
    variance: f64,
}

impl Cost {
    fn of(b: &Bursts) -> Option<Cost> {
        let sum = |cells: &[[f64; GAP_BINS]]| cells.iter().flatten().sum::<f64>();
        let (count, us, data) = (sum(&b.count), sum(&b.cpu_ns) / 1e3, sum(&b.data));
        if count < BURSTS_MIN || data <= 0.0 || us <= 0.0 {
            return None;
        }
        let of_data = us / data;
        let left = sum(&b.square_us2) - 2.0 * of_data * sum(&b.data_us) + of_data * of_data * sum(&b.data_square);
        // Of a ratio of two sums.
        Some(Cost { of_data, variance: left.max(0.0) / (us * us) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bursts of 100 µs after sleeps of some lengths, each with two units of data.
    fn bursts(n: f64, us: f64) -> Bursts {
        let mut b = Bursts::default();
        for bin in [9, 12] {
            b.count[3][bin] = n;
            b.cpu_ns[3][bin] = n * us * 1e3;
            b.data[3][bin] = n * 2.0;
            b.square_us2[3][bin] = n * us * us;
            b.data_square[3][bin] = n * 4.0;
            b.data_us[3][bin] = n * 2.0 * us;
        }
        b
    }

    /// The same, give or take so large a part of each.
    fn varied(n: f64, us: f64, part: f64) -> Bursts {
        let mut b = bursts(n, us);
        b.square_us2[3].iter_mut().for_each(|square| *square *= 1.0 + part * part);
        b
    }

    #[test]
    fn the_mean_is_what_the_work_cost_more() {
        let (now, probed) = (bursts(1_000.0, 160.0), bursts(200.0, 100.0));
        let wanted = Level::wanted(&now, &probed).unwrap();
        assert!((wanted - 0.375).abs() < 1e-9, "{wanted}");
        let mut shape = [0; GAP_BINS];
        (shape[9], shape[12]) = (6_000, 18_000);
        let set = Level::default().set(&shape, &now, wanted);
        let mean = f64::from(set[9] + set[12]) / 2.0 / WHOLE as f64;
        assert!((mean - wanted).abs() < 1e-4, "{set:?}");
        assert!((f64::from(set[12]) / f64::from(set[9]) - 3.0).abs() < 1e-3, "{set:?}");
        assert_eq!(set[10], 0);
    }

    #[test]
    fn without_a_shape_all_sleeps_are_the_same() {
        let (now, probed) = (bursts(1_000.0, 160.0), bursts(200.0, 100.0));
        let wanted = Level::wanted(&now, &probed).unwrap();
        let set = Level::default().set(&[0; GAP_BINS], &now, wanted);
        assert_eq!(set[..BIN_MIN], [0; BIN_MIN]);
        assert!(set[BIN_MIN..].iter().all(|d| f64::from(d.abs_diff((wanted * WHOLE as f64) as u32)) < 2.0), "{set:?}");
    }

    #[test]
    fn too_little_says_nothing_and_dearer_work_takes_nothing_off() {
        assert_eq!(Level::wanted(&bursts(1_000.0, 160.0), &bursts(24.0, 100.0)), None);
        assert_eq!(Level::wanted(&bursts(24.0, 160.0), &bursts(200.0, 100.0)), None);
        assert_eq!(Level::wanted(&Bursts::default(), &Bursts::default()), None);
        assert_eq!(Level::wanted(&bursts(1_000.0, 100.0), &bursts(200.0, 130.0)), Some(0.0));
        assert_eq!(Level::wanted(&bursts(1_000.0, 1_000.0), &bursts(200.0, 10.0)), Some(0.75));
    }

    /// Work that differs by as much as it takes: a tenth is nothing after a hundred bursts, and most of it after ten thousand.
    #[test]
    fn what_chance_shows_is_not_wanted() {
        let of = |n, part| Level::wanted(&varied(10.0 * n, 110.0, part), &varied(n, 100.0, part)).unwrap();
        assert_eq!(of(50.0, 1.0), 0.0);
        let (known, all) = (of(5_000.0, 1.0), 1.0 - 100.0 / 110.0);
        assert!((0.9 * all..all).contains(&known) && (of(5_000.0, 0.0) - all).abs() < 1e-9, "{known}");
        // A server whose work is nearly always the same.
        assert!((0.9 * all..all).contains(&of(50.0, 0.1)), "{}", of(50.0, 0.1));
    }

    /// Hits see sleeps as too short and take off two thirds of what is meant.
    #[test]
    fn what_is_taken_off_comes_to_what_was_wanted() {
        let (now, wanted) = (bursts(1_000.0, 160.0), 0.3);
        let mut level = Level::default();
        let seen = |level: &Level| {
            let set = level.set(&[10_000; GAP_BINS], &now, wanted);
            f64::from(set[9]) / WHOLE as f64 * 2.0 / 3.0
        };
        for _ in 0..20 {
            let off = seen(&level);
            level.follow(&now, wanted, (1e6 * off) as u64, (1e6 * (1.0 - off)) as u64);
        }
        assert!((seen(&level) - wanted).abs() < 0.01, "{}", seen(&level));
        // Nothing follows from nothing, and nothing goes on for ever.
        let before = level.trim;
        level.follow(&now, wanted, 0, 1_000_000);
        assert!((level.trim - before).abs() < 1e-12);
        (0..100).for_each(|_| level.follow(&now, wanted, 1, 1_000_000));
        assert!((level.trim - OFF_MAX).abs() < 1e-9);
        // Long bursts are cold in a part only.
        let mut long = Level::default();
        long.follow(&bursts(10.0, 1100.0), wanted, 10, 1_000_000);
        assert!((long.trim - 1.0).abs() < 1e-12);
    }
}
