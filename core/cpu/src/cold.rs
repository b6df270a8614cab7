//! Cold code: work after a long sleep costs more CPU time than the same work after a short one.
//!
//! Caches, translation buffers and branch predictors forget by the clock: whatever else uses the processor meanwhile
//! pushes a program's lines out. A dilated node sleeps TDF times as long, in real time, as the machine that it stands
//! for, so that its bursts of work start colder than they would there, and cost more.
//!
//! How much more is learned from the node itself. Its own sleeps differ in length, and the CPU time of the bursts
//! after them, told apart by what the thread had waited for, shows how work grows with the sleep before it: the
//! *curve*. A burst after a real sleep of `g` is then charged what the curve says of `g / TDF`, relative to `g`. At
//! TDF 1 nothing is changed, and neither where sleeps make no difference.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::GAP_BINS;

/// Kinds of waiting that are told apart: hashes of the system call in which a thread slept and of where its stack was.
pub const WAIT_KINDS: usize = 32;
/// CPU time of one burst that can be cold at most, real ns. Beyond it a program has everything it needs.
pub const COLD_MAX_NS: u64 = 1_000_000;
/// Discounts are parts of this.
pub const WHOLE: u64 = 65_536;
/// No burst is charged less than a quarter of its CPU time.
const DISCOUNT_MAX: u64 = WHOLE * 3 / 4;
/// Below this bin (128 µs) the node was busy with the same work a moment ago: its bursts are parts of larger ones.
const BIN_MIN: usize = 7;
/// A mean of fewer bursts than this says nothing.
const BURSTS_MIN: f64 = 8.0;
/// A curve rests on at least so many bursts, else there is none.
const CURVE_MIN: f64 = 100.0;
/// Rounds of the fit; it converges in a few.
const ROUNDS: usize = 30;

/// Bin of a sleep: the binary logarithm of its microseconds, rounded down.
#[inline(always)]
pub const fn gap_bin(gap_ns: u64) -> usize {
    let us = gap_ns / 1_000;
    let bin = if us < 2 { 0 } else { 63 - us.leading_zeros() as usize };
    if bin < GAP_BINS { bin } else { GAP_BINS - 1 }
}

/// The part of a burst's CPU time that is charged, after the node had not run for `gap_ns` real ns. Rounded up.
/// `discount` is the node page's.
#[inline(always)]
pub fn warm_ns(discount: &[AtomicU32; GAP_BINS], gap_ns: u64, cpu_ns: u64) -> u64 {
    let discount = discount.get(gap_bin(gap_ns)).map_or(0, |d| u64::from(d.load(Relaxed)));
    let discount = if discount < DISCOUNT_MAX { discount } else { DISCOUNT_MAX };
    let cold = if cpu_ns < COLD_MAX_NS { cpu_ns } else { COLD_MAX_NS };
    cpu_ns - cold * discount / WHOLE
}

/// Bursts of a node by what its thread had waited for and by how long the node had not run before.
#[derive(Clone, PartialEq, Debug)]
pub struct Bursts {
    /// How many.
    pub count: [[f64; GAP_BINS]; WAIT_KINDS],
    /// Their CPU time, real ns.
    pub cpu_ns: [[f64; GAP_BINS]; WAIT_KINDS],
}

impl Default for Bursts {
    fn default() -> Bursts {
        Bursts { count: [[0.0; GAP_BINS]; WAIT_KINDS], cpu_ns: [[0.0; GAP_BINS]; WAIT_KINDS] }
    }
}

impl Bursts {
    /// Adds newer bursts; what was there counts `keep` of itself (0 to 1).
    pub fn age_and_add(&mut self, keep: f64, newer: &Bursts) {
        for (mine, theirs) in [(&mut self.count, &newer.count), (&mut self.cpu_ns, &newer.cpu_ns)] {
            for (m, t) in mine.iter_mut().flatten().zip(theirs.iter().flatten()) {
                *m = *m * keep + t;
            }
        }
    }

    /// What was added since an earlier reading of the same counts.
    pub fn since(&self, earlier: &Bursts) -> Bursts {
        let mut new = self.clone();
        for (mine, theirs) in [(&mut new.count, &earlier.count), (&mut new.cpu_ns, &earlier.cpu_ns)] {
            for (m, t) in mine.iter_mut().flatten().zip(theirs.iter().flatten()) {
                *m = (*m - t).max(0.0);
            }
        }
        new
    }

    /// How CPU time grows with the sleep before it: a factor per bin, never falling, and 1 where there is no evidence.
    ///
    /// The mean burst of kind k after a sleep in bin b is modelled as `size(k) x curve(b)`, fitted so that the sums of
    /// CPU time over each kind and over each bin are met; then neighbours that fall are pooled.
    pub fn curve(&self) -> [f64; GAP_BINS] {
        let cells = |f: &mut dyn FnMut(usize, usize, f64, f64)| {
            for (kind, (counts, times)) in self.count.iter().zip(&self.cpu_ns).enumerate() {
                for (bin, (n, t)) in counts.iter().zip(times).enumerate().skip(BIN_MIN) {
                    if *n >= BURSTS_MIN {
                        f(kind, bin, *n, *t);
                    }
                }
            }
        };
        let (mut curve, mut weight, mut bursts) = ([1.0; GAP_BINS], [0.0; GAP_BINS], 0.0);
        cells(&mut |_, _, n, _| bursts += n);
        if bursts < CURVE_MIN {
            return curve;
        }
        for _ in 0..ROUNDS {
            let (mut time, mut expected) = ([0.0; WAIT_KINDS], [0.0; WAIT_KINDS]);
            cells(&mut |k, b, n, t| {
                time[k] += t;
                expected[k] += n * curve[b];
            });
            let size = |k: usize| if expected[k] > 0.0 { time[k] / expected[k] } else { 0.0 };
            let (mut time, mut flat) = ([0.0; GAP_BINS], [0.0; GAP_BINS]);
            cells(&mut |k, b, n, t| {
                time[b] += t;
                flat[b] += n * size(k);
            });
            for b in 0..GAP_BINS {
                curve[b] = if flat[b] > 0.0 { time[b] / flat[b] } else { 1.0 };
            }
            weight = flat;
        }
        never_falling(&mut curve, &weight);
        curve
    }
}

/// Pools neighbours until the values rise or stay (isotonic regression); values without weight take their lower
/// neighbour's, the first ones the first's that has any.
fn never_falling(values: &mut [f64; GAP_BINS], weight: &[f64; GAP_BINS]) {
    // Pools so far: weighted mean, weight, first bin.
    let (mut pools, mut used) = ([(0.0, 0.0, 0usize); GAP_BINS], 0);
    for (bin, (v, w)) in values.iter().zip(weight).enumerate().filter(|(_, (_, w))| **w > 0.0) {
        let mut pool = (*v, *w, bin);
        while used > 0 && pools[used - 1].0 >= pool.0 {
            let (v, w, first) = pools[used - 1];
            pool = ((v * w + pool.0 * pool.1) / (w + pool.1), w + pool.1, first);
            used -= 1;
        }
        pools[used] = pool;
        used += 1;
    }
    let pools = &pools[..used];
    let Some((lowest, ..)) = pools.first() else { return };
    for (bin, v) in values.iter_mut().enumerate() {
        *v = pools.iter().rev().find(|(_, _, first)| *first <= bin).map_or(*lowest, |p| p.0);
    }
}

/// What a burst after a real sleep in each bin costs less after a TDF-th of it, in parts of [`WHOLE`], rounded down.
///
/// Bins stand for their middle (1.5 x 2^bin µs); between two middles the curve is straight.
pub fn discounts(curve: &[f64; GAP_BINS], tdf: f64) -> [u32; GAP_BINS] {
    let middle_us = |bin: usize| 1.5 * (1u64 << bin) as f64;
    let at_us = |us: f64| {
        let above = (0..GAP_BINS).find(|b| middle_us(*b) >= us);
        match above {
            Some(0) => curve[0],
            Some(b) => {
                let part = (us - middle_us(b - 1)) / (middle_us(b) - middle_us(b - 1));
                curve[b - 1] + part * (curve[b] - curve[b - 1])
            }
            None => curve[GAP_BINS - 1],
        }
    };
    core::array::from_fn(|bin| {
        let (here, there) = (curve[bin], at_us(middle_us(bin) / tdf));
        let part = if here > 0.0 && there < here { 1.0 - there / here } else { 0.0 };
        ((part * WHOLE as f64) as u32).min(DISCOUNT_MAX as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bursts of two kinds, of 100 and 300 µs, that cost more after longer sleeps; the kinds sleep differently.
    fn bursts(growth: impl Fn(usize) -> f64) -> Bursts {
        let mut b = Bursts::default();
        for bin in BIN_MIN..18 {
            for (kind, size_us, n) in [(1, 100.0, if bin < 14 { 50.0 } else { 5000.0 }), (2, 300.0, 900.0)] {
                b.count[kind][bin] = n;
                b.cpu_ns[kind][bin] = n * size_us * 1e3 * growth(bin);
            }
        }
        b
    }

    #[test]
    fn bins_are_powers_of_two_of_a_microsecond() {
        assert_eq!((gap_bin(0), gap_bin(1_999), gap_bin(2_000), gap_bin(3_999)), (0, 0, 1, 1));
        assert_eq!((gap_bin(1_024_000), gap_bin(u64::MAX)), (10, GAP_BINS - 1));
    }

    #[test]
    fn a_curve_is_found_though_kinds_of_work_sleep_differently() {
        let step = |bin: usize| if bin < 11 { 1.0 } else { 2.0 };
        let c = bursts(step).curve();
        for (bin, value) in c.iter().enumerate().take(18) {
            let relative = value / c[BIN_MIN];
            assert!((relative - step(bin)).abs() < 0.01, "bin {bin}: {relative}");
        }
        // A sleep of 12 ms stands for one of 1.2 ms, on the way up; one of 100 ms for one of 10 ms, which is as cold.
        let d = discounts(&c, 10.0);
        assert_eq!(d[BIN_MIN], 0);
        assert!((28_000..=32_768).contains(&d[13]), "{}", d[13]);
        assert_eq!(d[17], 0);
    }

    #[test]
    fn nothing_is_taken_off_without_growth_without_dilation_or_without_evidence() {
        assert_eq!(discounts(&bursts(|_| 1.0).curve(), 10.0), [0; GAP_BINS]);
        assert_eq!(discounts(&bursts(|bin| bin as f64).curve(), 1.0), [0; GAP_BINS]);
        let mut few = Bursts::default();
        few.age_and_add(1.0, &bursts(|bin| bin as f64));
        few.age_and_add(0.0001, &Bursts::default());
        assert_eq!(few.curve(), [1.0; GAP_BINS]);
    }

    #[test]
    fn work_that_shrinks_with_the_sleep_is_left_alone() {
        let c = bursts(|bin| 20.0 - bin as f64).curve();
        assert!(c.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!(discounts(&c, 10.0), [0; GAP_BINS]);
    }
}
