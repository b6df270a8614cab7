//! How a node's work grows with what is older than the sleep before it.
//!
//! Two bursts after sleeps of the same length don't cost the same: what a program touches only now and then was last touched
//! several bursts ago, and what it shares with others of its kind (code, libraries) was last touched by those. In a dilated
//! lab all of these ages are TDF times as long, in real time. So each burst is counted by two ages beside its sleep: that of
//! its process's eighth last burst, the *past*, and how long ago another process of the same *program* ran, if one did since
//! its own. Within bursts of one kind of wait and sleeps of one bin, CPU time is fitted to their logarithms by least squares.

use alloc::vec;
use alloc::vec::Vec;

use diecast_core_abi::GAP_BINS;

use crate::learn::{BIN_MIN, KINSHIP_DEVIATION, WAIT_KINDS, more_than_chance};
use crate::sums;

/// Sums that are kept of the bursts of a cell.
pub const AGE_SUMS: usize = 10;
const BINS: usize = GAP_BINS - BIN_MIN;
/// Cells: those of bursts before which their own process was the last of its program to run, then the others; by kind of
/// wait; by bin of the sleep, from the first on that says anything.
pub const AGE_CELLS: usize = 2 * WAIT_KINDS * BINS;
/// Ages are in parts of a doubling.
const AGE_ONE: f64 = 16.0;
/// Ages below which nothing is colder, as logarithms of µs: what another process left half a millisecond ago is warm (0 to 3 %
/// up to 1 ms, 40 % at 64 ms, of a Python server on a shared host), and eight bursts in 8 ms are one after the other.
const FRESH: [f64; 2] = [9.0, 13.0];
/// Growth by chance alone counts for nothing: what is found has to be so many times its variance. Twice as much as elsewhere,
/// since what the host does to bursts lasts for several.
const CHANCE: f64 = 4.0;
/// Of fewer bursts in all nodes nothing is said.
const BURSTS_MIN: f64 = 5_000.0;
/// No more than this part of a burst is taken for older ages.
const PART_MAX: f64 = 0.25;

// Places in a cell.
const COUNT: usize = 0;
const CPU_US: usize = 1;
const SQUARE_US2: usize = 2;
const AGE: [usize; 2] = [3, 4];
const AGE_AGE: [[usize; 2]; 2] = [[5, 6], [6, 7]];
const AGE_CPU_US: [usize; 2] = [8, 9];

/// Sums over the bursts of a node: their number, CPU time (µs) and its square, ages (of the program, of the past) and the
/// products of ages, and of ages and CPU time.
#[derive(Clone, PartialEq, Debug)]
pub struct Ages(pub Vec<[f64; AGE_SUMS]>);

impl Default for Ages {
    fn default() -> Ages {
        Ages(vec![[0.0; AGE_SUMS]; AGE_CELLS])
    }
}

/// How much a burst grows, as a part of the mean, for each doubling of the age of its program and of its past.
pub type Growth = [f64; 2];

impl Ages {
    /// Adds newer bursts; what was there counts `keep` of itself (0 to 1).
    pub fn age_and_add(&mut self, keep: f64, newer: &Ages) {
        sums::age_and_add(keep, self.0.iter_mut().flatten().zip(newer.0.iter().flatten()));
    }

    /// What was added since an earlier reading of the same sums.
    pub fn since(&self, earlier: &Ages) -> Ages {
        let mut new = self.clone();
        sums::leave_new(new.0.iter_mut().flatten().zip(earlier.0.iter().flatten()));
        new
    }

    /// How this node's bursts grow with their ages. Before anything is seen of it, as all nodes' do, give or take half.
    pub fn growth(&self, of_all: &Growth) -> Growth {
        let mut sums = Squares::of([self].into_iter());
        let variance = sums.variance();
        for (age, all) in of_all.iter().enumerate().filter(|(_, all)| **all > 0.0) {
            // Bayes' rule for normal distributions, in units of the bursts' variance.
            let deviation = KINSHIP_DEVIATION * all;
            let precision = variance / (deviation * deviation);
            sums.ages[age][age] += precision;
            sums.with_cpu[age] += precision * all;
        }
        let found = sums.solve();
        core::array::from_fn(|age| found[age].min(2.0 * of_all[age]))
    }

    /// What the node's bursts would cost with ages of a TDF-th, as a part of what they do: at most 1. `doublings` is the TDF's
    /// binary logarithm.
    pub fn factor(&self, growth: &Growth, doublings: f64) -> f64 {
        let all_us: f64 = self.0.iter().map(|c| c[CPU_US]).sum();
        if all_us <= 0.0 || doublings <= 0.0 {
            return 1.0;
        }
        let taken = |(at, c): (usize, &[f64; AGE_SUMS])| -> f64 {
            if c[COUNT] <= 0.0 {
                return 0.0;
            }
            let of_age = |age: usize| {
                let older = (c[AGE[age]] / c[COUNT] / AGE_ONE - FRESH[age]).clamp(0.0, doublings);
                growth[age] * older
            };
            let program = if at < AGE_CELLS / 2 { 0.0 } else { of_age(0) };
            c[CPU_US] * (program + of_age(1)).min(PART_MAX)
        };
        1.0 - self.0.iter().enumerate().map(taken).sum::<f64>() / all_us
    }
}

/// Sums of squares and products of what differs from the mean of its cell; CPU time as a part of the cell's mean.
#[derive(Default)]
struct Squares {
    ages: [[f64; 2]; 2],
    with_cpu: [f64; 2],
    cpu: f64,
    /// Bursts without a mean for each cell.
    freedom: f64,
}

impl Squares {
    fn of<'a>(nodes: impl Iterator<Item = &'a Ages>) -> Squares {
        let mut sums = Squares::default();
        for c in nodes.flat_map(|n| &n.0).filter(|c| c[COUNT] >= 2.0 && c[CPU_US] > 0.0) {
            let (n, mean_us) = (c[COUNT], c[CPU_US] / c[COUNT]);
            for a in 0..2 {
                for b in 0..2 {
                    sums.ages[a][b] += (c[AGE_AGE[a][b]] - c[AGE[a]] * c[AGE[b]] / n) / (AGE_ONE * AGE_ONE);
                }
                sums.with_cpu[a] += (c[AGE_CPU_US[a]] / mean_us - c[AGE[a]]) / AGE_ONE;
            }
            sums.cpu += c[SQUARE_US2] / (mean_us * mean_us) - n;
            sums.freedom += n - 1.0;
        }
        sums
    }

    fn variance(&self) -> f64 {
        if self.freedom > 0.0 { self.cpu.max(0.0) / self.freedom } else { 0.0 }
    }

    /// Least squares with no growth below 0.
    fn solve(&self) -> Growth {
        let alone = |age: usize| {
            let square = self.ages[age][age];
            if square > 1e-9 { (self.with_cpu[age] / square).max(0.0) } else { 0.0 }
        };
        let [[a, b], [_, d]] = self.ages;
        let determinant = a * d - b * b;
        if determinant > 1e-6 * a * d {
            let both = [
                (d * self.with_cpu[0] - b * self.with_cpu[1]) / determinant,
                (a * self.with_cpu[1] - b * self.with_cpu[0]) / determinant,
            ];
            if both.iter().all(|g| *g >= 0.0) {
                return both;
            }
            return if both[0] < 0.0 { [0.0, alone(1)] } else { [alone(0), 0.0] };
        }
        // One can't be told from the other: the one that varies more has it.
        if a >= d { [alone(0), 0.0] } else { [0.0, alone(1)] }
    }
}

/// How bursts grow with their ages in all nodes together: without what chance alone would show, and 0 where there are few.
pub fn growth_of_all<'a>(nodes: impl Iterator<Item = &'a Ages>) -> Growth {
    let sums = Squares::of(nodes);
    if sums.freedom < BURSTS_MIN {
        return [0.0; 2];
    }
    let found = sums.solve();
    core::array::from_fn(|age| {
        // The variance of what is found, were the other known.
        let by_chance = sums.variance() / sums.ages[age][age].max(1e-9);
        more_than_chance(found[age], CHANCE * by_chance)
    })
}

#[cfg(test)]
mod tests {
    use core::f64::consts::LOG2_10;

    use super::*;

    /// Bursts of two kinds by how they grow for each doubling, with a deviation of a third; ages are as they come.
    fn bursts(n: usize, growth: Growth, seed: u64) -> Ages {
        let mut state = seed;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / f64::from(1u32 << 31)
        };
        let mut ages = Ages::default();
        for i in 0..n {
            let (kind, mean_us) = if i % 3 == 0 { (1, 300.0) } else { (2, 100.0) };
            let bin = (random() * 5.0) as usize + 4;
            let sibling = random() < 0.7;
            // 2 to 32 ms, and 64 ms to 1 s; the past is longer when the program's is.
            let common = random();
            let doublings = [11.0 + 2.0 * (common + random()), 16.0 + common + 3.0 * random()];
            let program = if sibling { doublings[0] } else { 0.0 };
            let grown =
                1.0 + growth[0] * if sibling { program - 11.0 } else { 0.0 } + growth[1] * (doublings[1] - 16.0);
            let us = mean_us * grown * (1.0 + 0.33 * (random() + random() + random() + random() - 2.0) * 1.73);
            let (p, q) = ((program * 16.0).floor(), (doublings[1] * 16.0).floor());
            let cell = &mut ages.0[(usize::from(sibling) * WAIT_KINDS + kind) * BINS + bin];
            let sums = [1.0, us, us * us, p, q, p * p, p * q, q * q, p * us, q * us];
            cell.iter_mut().zip(sums).for_each(|(sum, more)| *sum += more);
        }
        ages
    }

    #[test]
    fn both_growths_are_found_though_the_ages_go_together() {
        let all = bursts(60_000, [0.02, 0.04], 1);
        let found = growth_of_all([&all].into_iter());
        // As parts of the mean burst, which is 1.1 times the smallest.
        for (found, expected) in found.into_iter().zip([0.02 / 1.1, 0.04 / 1.1]) {
            assert!((found - expected).abs() < 0.006, "{found} instead of {expected}");
        }
        let factor = all.factor(&found, LOG2_10);
        let past = 0.04 / 1.1 * 3.32;
        assert!((factor - (1.0 - past - 0.7 * 0.02 / 1.1 * 3.32)).abs() < 0.03, "{factor}");
        assert_eq!(all.factor(&found, 0.0), 1.0);
        assert_eq!(all.factor(&found, -1.0), 1.0);
    }

    #[test]
    fn what_chance_shows_is_no_growth() {
        for seed in 0..20 {
            let few = bursts(6_000, [0.0, 0.0], seed);
            let found = growth_of_all([&few].into_iter());
            let factor = few.factor(&few.growth(&found), LOG2_10);
            assert!(factor > 0.8, "{seed}: {found:?} {factor}");
        }
        let mean = |n| {
            (0..20)
                .map(|s| bursts(n, [0.0; 2], s))
                .map(|b| b.factor(&growth_of_all([&b].into_iter()), LOG2_10))
                .sum::<f64>()
                / 20.0
        };
        assert!(mean(6_000) > 0.95 && mean(20_000) > 0.99, "{} {}", mean(6_000), mean(20_000));
        assert_eq!(growth_of_all([&bursts(4_900, [0.5, 0.5], 1)].into_iter()), [0.0; 2]);
    }

    #[test]
    fn a_node_that_does_not_grow_is_not_taken_for_one_that_does() {
        let (grows, flat) = (bursts(30_000, [0.05, 0.08], 1), bursts(30_000, [0.0, 0.0], 2));
        let of_all = growth_of_all([&grows, &flat].into_iter());
        let (cold, warm) = (grows.factor(&grows.growth(&of_all), LOG2_10), flat.factor(&flat.growth(&of_all), LOG2_10));
        assert!(cold < 0.8 && warm > 0.95, "{cold} {warm}");
        // A newcomer is like the others.
        let new = bursts(10, [0.05, 0.08], 3);
        assert!(new.growth(&of_all).iter().zip(of_all).all(|(own, all)| (own / all - 1.0).abs() < 0.3));
        assert_eq!(new.growth(&[0.0; 2]), [0.0; 2]);
    }

    #[test]
    fn what_is_fresh_already_gets_no_fresher() {
        let mut ages = Ages::default();
        // Another process of the program ran 1 ms ago, the eighth last burst was 16 ms ago: one doubling each is left.
        let (p, q) = (10.0 * 16.0, 14.0 * 16.0);
        ages.0[AGE_CELLS / 2 + 8] =
            [100.0, 1e4, 1e6, 100.0 * p, 100.0 * q, 100.0 * p * p, 100.0 * p * q, 100.0 * q * q, 1e4 * p, 1e4 * q];
        assert!((ages.factor(&[0.1, 0.05], 100f64.log2()) - 0.85).abs() < 1e-6);
        // Where no other process of the program runs only the past counts.
        ages.0.swap(8, AGE_CELLS / 2 + 8);
        assert!((ages.factor(&[0.1, 0.05], 100f64.log2()) - 0.95).abs() < 1e-6);
        assert!(ages.factor(&[1.0, 1.0], 1e9f64.log2()) >= 1.0 - PART_MAX);
    }
}
