//! The statistics that comparisons are made of.
//!
//! Percentiles are nearest rank ([`percentile_rank`]). Everything random takes a seed, and the seed is printed.

pub use diecast_core_journal::metrics::{Statistic, percentile_rank};
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// `(measured - reference) / reference`. Zero when both are zero, none when only the reference is or one is not finite.
///
/// Example: 110 against 100 is 0.1.
pub fn relative_error(measured: f64, reference: f64) -> Option<f64> {
    if measured == reference {
        return Some(0.0);
    }
    Some((measured - reference) / reference.abs()).filter(|error| error.is_finite())
}

/// Two-sample Kolmogorov-Smirnov distance: the largest difference between the two empirical distribution functions,
/// 0 when they are the same, 1 when they do not overlap. Both samples ascending; none when one is empty.
///
/// Ties are stepped over together, so equal values on both sides make no distance.
pub fn ks_distance(a: &[u64], b: &[u64]) -> Option<f64> {
    let (Some(mut i), Some(mut j)) = ((!a.is_empty()).then_some(0), (!b.is_empty()).then_some(0)) else {
        return None;
    };
    let mut distance = 0.0_f64;
    while i < a.len() && j < b.len() {
        let value = a[i].min(b[j]);
        i += a[i..].iter().take_while(|&&x| x == value).count();
        j += b[j..].iter().take_while(|&&x| x == value).count();
        distance = distance.max((i as f64 / a.len() as f64 - j as f64 / b.len() as f64).abs());
    }
    Some(distance)
}

/// What to take of an ordered sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// A figure of the values.
    Of(Statistic),
    /// The values are gaps between successive completions in nanoseconds: completions per second.
    Throughput,
}

impl Figure {
    fn of_sorted(self, sorted: &[u64]) -> Option<f64> {
        match self {
            Figure::Of(statistic) => statistic.of_sorted(sorted).ok(),
            Figure::Throughput => Some(1e9 / Statistic::Mean.of_sorted(sorted).ok()?).filter(|rate| rate.is_finite()),
        }
    }
}

/// An interval of relative errors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Half its width.
    pub fn half_width(self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// How to resample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// Seed of the resampling; print it beside the result.
    pub seed: u64,
    /// How often.
    pub resamples: u32,
}

impl Default for Bootstrap {
    fn default() -> Bootstrap {
        Bootstrap { seed: 1, resamples: 1000 }
    }
}

/// The block length for `count` samples: `ceil(sqrt(count))`.
///
/// Successive latencies of a queue are correlated, and independent resampling would give intervals that are too
/// narrow. The usual rate `count^(1/3)` is for short memory; a server at 70 % load remembers for tens of requests, so
/// the longer block is taken: 20,000 samples give 142.
pub fn block_length(count: usize) -> usize {
    let floor = count.isqrt();
    floor + usize::from(floor * floor < count)
}

/// 95 % interval of the relative error of each figure between two ordered samples, by moving-block bootstrap.
///
/// Each sample comes in parts (a run, a node) whose order matters; blocks never cross from one part into the next. A
/// resample of a side draws blocks, each block start of all parts being equally likely, until it has as many values
/// as the side. The interval is the 2.5th to the 97.5th percentile of the relative errors over `resamples` pairs. The
/// sides are drawn independently: where requests were the same on both, [`paired_error_intervals`] knows more.
///
/// None for a figure that cannot be had (a side is empty, the reference's figure is 0).
pub fn relative_error_intervals(
    reference: &[&[u64]],
    measured: &[&[u64]],
    figures: &[Figure],
    bootstrap: Bootstrap,
) -> Vec<Option<Interval>> {
    let mut random = fastrand::Rng::with_seed(bootstrap.seed);
    let mut errors: Vec<Vec<f64>> = vec![Vec::new(); figures.len()];
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for _ in 0..bootstrap.resamples {
        resample(reference, &mut random, &mut left);
        resample(measured, &mut random, &mut right);
        for (figure, errors) in figures.iter().zip(&mut errors) {
            let pair = figure.of_sorted(&right).zip(figure.of_sorted(&left));
            errors.extend(pair.and_then(|(measured, reference)| relative_error(measured, reference)));
        }
    }
    errors.into_iter().map(|errors| middle_95(errors, bootstrap.resamples)).collect()
}

/// The same where every run on both sides has as many values in each part, as of the same requests in the same order: each
/// block is drawn from all runs together, so that what the requests have in common is no difference. None where runs don't
/// have as many.
///
/// Of runs that have nothing in common the interval is the same as if sides were drawn independently.
pub fn paired_error_intervals(
    reference: &[Vec<&[u64]>],
    measured: &[Vec<&[u64]>],
    figures: &[Figure],
    bootstrap: Bootstrap,
) -> Option<Vec<Option<Interval>>> {
    let lengths = |run: &Vec<&[u64]>| run.iter().map(|part| part.len()).collect::<Vec<usize>>();
    let like = lengths(measured.first()?);
    let total: usize = like.iter().sum();
    if total == 0 || reference.is_empty() || reference.iter().chain(measured).any(|run| lengths(run) != like) {
        return None;
    }
    let mut random = fastrand::Rng::with_seed(bootstrap.seed);
    let mut errors: Vec<Vec<f64>> = vec![Vec::new(); figures.len()];
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for _ in 0..bootstrap.resamples {
        left.clear();
        right.clear();
        for (part, range) in blocks(&like, &mut random) {
            reference.iter().for_each(|run| left.extend_from_slice(&run[part][range.clone()]));
            measured.iter().for_each(|run| right.extend_from_slice(&run[part][range.clone()]));
        }
        left.sort_unstable();
        right.sort_unstable();
        for (figure, errors) in figures.iter().zip(&mut errors) {
            let pair = figure.of_sorted(&right).zip(figure.of_sorted(&left));
            errors.extend(pair.and_then(|(measured, reference)| relative_error(measured, reference)));
        }
    }
    Some(errors.into_iter().map(|errors| middle_95(errors, bootstrap.resamples)).collect())
}

/// The middle 95 % of the errors; none when a resample had no error to give.
fn middle_95(mut errors: Vec<f64>, resamples: u32) -> Option<Interval> {
    if errors.is_empty() || errors.len() < resamples as usize {
        return None;
    }
    errors.sort_unstable_by(f64::total_cmp);
    let low = percentile_rank(errors.len(), 25_000)?;
    let high = percentile_rank(errors.len(), 975_000)?;
    Some(Interval { low: errors[low], high: errors[high] })
}

/// One resample of a side into `out`, ascending.
fn resample(parts: &[&[u64]], random: &mut fastrand::Rng, out: &mut Vec<u64>) {
    out.clear();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    for (part, range) in blocks(&lengths, random) {
        out.extend_from_slice(&parts[part][range]);
    }
    out.sort_unstable();
}

/// Blocks of parts of these lengths, as many values as there are: part and range.
fn blocks(lengths: &[usize], random: &mut fastrand::Rng) -> Vec<(usize, Range<usize>)> {
    let total: usize = lengths.iter().sum();
    let length = block_length(total).max(1);
    // A part shorter than a block is one block.
    let starts = |part: usize| if part == 0 { 0 } else { part.saturating_sub(length) + 1 };
    let all_starts: usize = lengths.iter().map(|part| starts(*part)).sum();
    let (mut drawn, mut blocks) = (0, Vec::new());
    while drawn < total {
        let mut start = random.usize(0..all_starts);
        for (part, &values) in lengths.iter().enumerate() {
            if start < starts(values) {
                let end = (start + length).min(values).min(start + total - drawn);
                drawn += end - start;
                blocks.push((part, start..end));
                break;
            }
            start -= starts(values);
        }
    }
    blocks
}

/// What a bar says about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judged {
    /// The point lies inside the bar, and the interval's half-width is at most the bar.
    Pass,
    /// The whole interval lies outside the bar.
    Fail,
    /// Neither: more samples are needed.
    Inconclusive,
}

impl Judged {
    /// The name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Judged::Pass => "pass",
            Judged::Fail => "FAIL",
            Judged::Inconclusive => "inconclusive",
        }
    }
}

/// Judges a relative error with its interval against a bar such as 0.05.
pub fn judge_error(point: f64, interval: Interval, bar: f64) -> Judged {
    if interval.low > bar || interval.high < -bar {
        Judged::Fail
    } else if point.abs() <= bar && interval.half_width() <= bar {
        Judged::Pass
    } else {
        Judged::Inconclusive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_errors() {
        assert_eq!(relative_error(110.0, 100.0), Some(0.1));
        assert_eq!(relative_error(50.0, 100.0), Some(-0.5));
        assert_eq!(relative_error(-11.0, -10.0), Some(-0.1));
        assert_eq!(relative_error(0.0, 0.0), Some(0.0));
        assert_eq!(relative_error(1.0, 0.0), None);
    }

    #[test]
    fn kolmogorov_smirnov_by_hand() {
        assert_eq!(ks_distance(&[1, 2, 3], &[1, 2, 3]), Some(0.0));
        assert_eq!(ks_distance(&[1, 2], &[3, 4]), Some(1.0));
        assert_eq!(ks_distance(&[1, 2, 3, 4], &[3, 4, 5, 6]), Some(0.5));
        // All tied: the same distribution, though of different sizes.
        assert_eq!(ks_distance(&[7; 5], &[7; 9]), Some(0.0));
        assert_eq!(ks_distance(&[1, 1, 1, 2], &[1, 2, 2, 2]), Some(0.5));
        assert_eq!(ks_distance(&[], &[1]), None);
    }

    #[test]
    fn block_lengths() {
        assert_eq!([0, 1, 2, 4, 5, 20_000].map(block_length), [0, 1, 2, 2, 3, 142]);
    }

    /// A sluggish random walk around `centre`: like latencies of a queue, neighbours are alike.
    fn correlated(seed: u64, centre: f64, count: usize) -> Vec<u64> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut state = 0.0;
        (0..count)
            .map(|_| {
                state = 0.9 * state + (random.f64() - 0.5);
                (centre * (1.0 + 0.1 * state)) as u64
            })
            .collect()
    }

    #[test]
    fn the_interval_covers_the_true_error_about_as_often_as_it_says() {
        // True relative error of the mean: 0.2. Of 40 intervals of 95 %, 38 should cover it; a broken interval (far
        // too narrow, off centre) covers few, an absurdly wide one fails the width check.
        let bootstrap = Bootstrap { seed: 3, resamples: 100 };
        let mut covered = 0;
        for trial in 0..40 {
            let (a, b) = (correlated(trial, 1e6, 500), correlated(1000 + trial, 1.2e6, 500));
            let intervals = relative_error_intervals(&[&a], &[&b], &[Figure::Of(Statistic::Mean)], bootstrap);
            let interval = intervals[0].unwrap();
            assert!(interval.half_width() < 0.06, "{interval:?}");
            covered += usize::from(interval.low <= 0.2 && 0.2 <= interval.high);
        }
        assert!((33..=40).contains(&covered), "{covered} of 40");
    }

    #[test]
    fn blocks_widen_the_interval_of_correlated_samples() {
        // The same values shuffled lose their memory: the interval of the ordered ones must be clearly wider.
        let a = correlated(5, 1e6, 2000);
        let mut shuffled = a.clone();
        fastrand::Rng::with_seed(9).shuffle(&mut shuffled);
        let width = |sample: &[u64]| {
            let figures = [Figure::Of(Statistic::Mean)];
            relative_error_intervals(&[sample], &[sample], &figures, Bootstrap { seed: 1, resamples: 100 })[0]
                .unwrap()
                .half_width()
        };
        assert!(width(&a) > 2.0 * width(&shuffled), "{} and {}", width(&a), width(&shuffled));
    }

    /// The same requests, each a fifth slower and a little different: what they have in common does not widen the interval.
    /// Runs that have nothing in common get the one that they get as independent sides.
    #[test]
    fn the_same_requests_are_drawn_together() {
        let figures = [Figure::Of(Statistic::Mean), Figure::Of(Statistic::P99)];
        let bootstrap = Bootstrap { seed: 1, resamples: 200 };
        let a = correlated(5, 1e6, 2000);
        let slower: Vec<u64> =
            correlated(6, 1e4, 2000).iter().zip(&a).map(|(noise, v)| v * 6 / 5 + noise - 10_000).collect();
        let other = correlated(7, 1.2e6, 2000);
        let paired = |b: &[u64]| {
            let runs = [vec![&a[..700], &a[700..]], vec![&a[..700], &a[700..]]];
            paired_error_intervals(&runs, &[vec![&b[..700], &b[700..]]], &figures, bootstrap).unwrap()
        };
        let apart =
            |b: &[u64]| relative_error_intervals(&[&a[..700], &a[700..]], &[&b[..700], &b[700..]], &figures, bootstrap);
        for (figure, found) in paired(&slower).into_iter().enumerate() {
            let (found, wide) = (found.unwrap(), apart(&slower)[figure].unwrap());
            assert!(found.low <= 0.2 && 0.2 <= found.high, "{found:?}");
            assert!(wide.half_width() > 5.0 * found.half_width(), "{found:?} and {wide:?}");
            let (found, wide) = (paired(&other)[figure].unwrap(), apart(&other)[figure].unwrap());
            assert!((0.6..1.6).contains(&(found.half_width() / wide.half_width())), "{found:?} and {wide:?}");
        }
        assert_eq!(paired_error_intervals(&[vec![&a[..]]], &[vec![&other[1..]]], &figures, bootstrap), None);
        assert_eq!(paired_error_intervals(&[vec![&a[..]]], &[vec![&a[..9], &a[9..]]], &figures, bootstrap), None);
        assert_eq!(paired_error_intervals(&[], &[vec![&a[..]]], &figures, bootstrap), None);
        assert_eq!(paired_error_intervals(&[vec![]], &[vec![]], &figures, bootstrap), None);
    }

    #[test]
    fn a_seed_repeats_an_interval() {
        let (a, b) = (correlated(1, 1e6, 500), correlated(2, 1e6, 700));
        let run = |seed| {
            let figures = [Figure::Of(Statistic::P50), Figure::Of(Statistic::P99), Figure::Throughput];
            relative_error_intervals(&[&a[..200], &a[200..]], &[&b], &figures, Bootstrap { seed, resamples: 50 })
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert!(run(1).iter().all(Option::is_some));
    }

    #[test]
    fn blocks_stay_inside_their_part() {
        // Two parts of very different values: a block that crossed would put a 9 right after a 1 run's end, but sorted
        // output hides that, so count instead: every block is pure, hence multiples of the block length (10).
        let (ones, nines) = (vec![1; 50], vec![9; 50]);
        let mut random = fastrand::Rng::with_seed(4);
        let mut out = Vec::new();
        for _ in 0..50 {
            resample(&[&ones, &nines], &mut random, &mut out);
            assert_eq!(out.len(), 100);
            assert_eq!(out.iter().filter(|&&x| x == 1).count() % 10, 0);
        }
    }

    #[test]
    fn empty_sides_have_no_interval() {
        let figures = [Figure::Of(Statistic::P50)];
        assert_eq!(relative_error_intervals(&[], &[&[1, 2]], &figures, Bootstrap::default()), [None]);
        assert_eq!(relative_error_intervals(&[&[]], &[&[]], &figures, Bootstrap::default()), [None]);
        assert_eq!(relative_error_intervals(&[&[0, 0]], &[&[1, 2]], &figures, Bootstrap::default()), [None]);
    }

    #[test]
    fn throughput_is_the_inverse_of_the_mean_gap() {
        assert_eq!(Figure::Throughput.of_sorted(&[5_000_000, 15_000_000]), Some(100.0));
        assert_eq!(Figure::Throughput.of_sorted(&[0, 0]), None);
    }

    #[test]
    fn bars() {
        let judge = |point, low, high| judge_error(point, Interval { low, high }, 0.1);
        assert_eq!(judge(0.02, -0.01, 0.05), Judged::Pass);
        assert_eq!(judge(0.09, 0.05, 0.13), Judged::Pass);
        assert_eq!(judge(0.2, 0.11, 0.3), Judged::Fail);
        assert_eq!(judge(-0.2, -0.3, -0.11), Judged::Fail);
        assert_eq!(judge(0.12, 0.05, 0.19), Judged::Inconclusive);
        assert_eq!(judge(0.0, -0.11, 0.11), Judged::Inconclusive);
    }
}
