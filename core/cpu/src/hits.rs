//! What a hit of the meter costs a program.
//!
//! The blob sees a part of it; the probe estimates what comes before and after that. But a thread that was hit sleeps, and
//! others have its core meanwhile: the code that it goes on with is colder than it would have been, of one program more than
//! of another. So it is also learned from the node's own work. Hits come by a clock. Work that is no longer than what lies
//! between two of them is met by one with a chance that grows evenly with its length; what being met and CPU time have in
//! common beyond that is what hits added.
//!
//! A thread that slept finds more to do. So work is looked at in *pieces*, from one receive to the next or to where the thread
//! blocks or pays before a wait, and those that don't begin with a receive don't count.
//!
//! What the probe knows is taken off at the hit. What code takes longer after it is taken off where it occurs, at the first
//! packet or hit since: a program that works until its CPU clock says so would have the time that is taken off amid that, and
//! work for as much longer, which then seems to be the hit's.

use crate::learn::WAIT_KINDS;
use crate::sums;

/// Sums that are kept of the pieces of one kind of wait: their number, CPU time (µs), those with a hit, hits, the squares of
/// CPU time and of hits, and the products of CPU time with hits and with having one.
pub const HIT_SUMS: usize = 8;
const COUNT: usize = 0;
const CPU_US: usize = 1;
const HIT: usize = 2;
const HITS: usize = 3;
const CPU_CPU: usize = 4;
const HITS_HITS: usize = 5;
const HITS_CPU: usize = 6;
const HIT_CPU: usize = 7;
/// Of fewer pieces of a kind nothing is said.
const PIECES_MIN: f64 = 20.0;
/// Rounds in which the cost is found; it converges in a few.
const ROUNDS: usize = 30;
/// Nothing dearer is asked for.
const COST_MAX_US: f64 = 500.0;
/// Before anything is seen, what code takes longer after a hit is 0 give or take so much (a standard deviation).
const AFTER_DEVIATION_US: f64 = 20.0;
/// More is never taken for it: a program that does more after it slept, unseen, would be charged too little.
const AFTER_MAX_US: f64 = 80.0;

/// Pieces of work by how many hits they had, by kind of wait.
#[derive(Clone, PartialEq, Debug)]
pub struct HitSums(pub [[f64; HIT_SUMS]; WAIT_KINDS]);

impl Default for HitSums {
    fn default() -> HitSums {
        HitSums([[0.0; HIT_SUMS]; WAIT_KINDS])
    }
}

impl HitSums {
    /// Adds newer pieces; what was there counts `keep` of itself (0 to 1).
    pub fn age_and_add(&mut self, keep: f64, newer: &HitSums) {
        sums::age_and_add(keep, self.0.iter_mut().flatten().zip(newer.0.iter().flatten()));
    }

    /// How many there are.
    pub fn pieces(&self) -> f64 {
        self.0.iter().map(|sums| sums[COUNT]).sum()
    }

    /// What was added since an earlier reading of the same sums.
    pub fn since(&self, earlier: &HitSums) -> HitSums {
        let mut new = self.clone();
        sums::leave_new(new.0.iter_mut().flatten().zip(earlier.0.iter().flatten()));
        new
    }

    /// What the blob does not see of a hit, real ns, where it sees `seen_ns` and the probe's estimate is `probed_ns`; rounded
    /// down. The better it is known from the node's work, the less the probe counts (Bayes' rule for normal distributions).
    pub fn hidden_ns(&self, seen_ns: f64, probed_ns: u64) -> u64 {
        let probed_us = probed_ns as f64 / 1e3;
        let Some((added_us, variance_us2)) = self.added() else { return probed_ns };
        let prior = AFTER_DEVIATION_US * AFTER_DEVIATION_US;
        let after_us = (added_us - seen_ns / 1e3 - probed_us) * prior / (prior + variance_us2);
        ((probed_us + after_us.min(AFTER_MAX_US)).max(0.0) * 1e3) as u64
    }

    /// CPU time that a hit adds, µs, and the variance of that, µs².
    ///
    /// With L the CPU time of a piece, n its hits, h whether it has any, W = L - E n its work:
    /// cov(L, h) = var(W) mean(h) / mean(W) + E cov(n, h).
    fn added(&self) -> Option<(f64, f64)> {
        let kinds: [Option<Kind>; WAIT_KINDS] = core::array::from_fn(|k| Kind::of(&self.0[k]));
        let told = || kinds.iter().flatten();
        let vary: f64 = told().map(|k| k.hits_hit).sum();
        if vary <= 0.0 {
            return None;
        }
        let mut cost = 0.0;
        for _ in 0..ROUNDS {
            let found = told().map(|k| k.hit_cpu - k.by_length(cost)).sum::<f64>() / vary;
            cost = found.clamp(0.0, COST_MAX_US);
        }
        let noise: f64 = told().map(|k| k.work_varies(cost) / k.pieces * k.hit_varies).sum();
        Some((cost, noise / (vary * vary)))
    }
}

/// Of the pieces of a kind: means, and sums of squares and products of what differs from them.
struct Kind {
    pieces: f64,
    mean_us: f64,
    mean_hit: f64,
    mean_hits: f64,
    cpu_varies: f64,
    hit_varies: f64,
    hits_vary: f64,
    hits_hit: f64,
    hits_cpu: f64,
    hit_cpu: f64,
}

impl Kind {
    fn of(s: &[f64; HIT_SUMS]) -> Option<Kind> {
        let n = s[COUNT];
        let both = |product: f64, a: usize, b: usize| product - s[a] * s[b] / n;
        // What has hits has one: the product of both is the hits, and the square of having one is having one.
        let kind = Kind {
            pieces: n,
            mean_us: s[CPU_US] / n,
            mean_hit: s[HIT] / n,
            mean_hits: s[HITS] / n,
            cpu_varies: both(s[CPU_CPU], CPU_US, CPU_US),
            hit_varies: both(s[HIT], HIT, HIT),
            hits_vary: both(s[HITS_HITS], HITS, HITS),
            hits_hit: both(s[HITS], HITS, HIT),
            hits_cpu: both(s[HITS_CPU], HITS, CPU_US),
            hit_cpu: both(s[HIT_CPU], HIT, CPU_US),
        };
        (n >= PIECES_MIN && kind.hits_hit > 1e-6 * n).then_some(kind)
    }

    /// How much the work varies when a hit costs so much.
    fn work_varies(&self, cost_us: f64) -> f64 {
        (self.cpu_varies - 2.0 * cost_us * self.hits_cpu + cost_us * cost_us * self.hits_vary).max(0.0)
    }

    /// What being met and CPU time have in common since what is longer is met more often.
    fn by_length(&self, cost_us: f64) -> f64 {
        let work_us = (self.mean_us - cost_us * self.mean_hits).max(self.mean_us / 4.0);
        self.work_varies(cost_us) * self.mean_hit / work_us.max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any fixed sequence will do; evenly from 0 to 1.
    fn random(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    const TICK_US: f64 = 900.0;

    /// Pieces that begin at any time between two ticks; each tick adds `hit_us`. Works are those of `work`, in µs.
    fn pieces(n: usize, hit_us: f64, seed: u64, work: impl Fn(f64) -> f64) -> HitSums {
        let mut sums = HitSums::default();
        let mut state = seed;
        for _ in 0..n {
            let (mut left_us, mut tick_us) = (work(random(&mut state)), random(&mut state) * TICK_US);
            let (mut l, mut hits) = (left_us, 0.0f64);
            while tick_us < left_us {
                left_us -= tick_us;
                l += hit_us;
                hits += 1.0;
                // The thread sleeps, and goes on at any time.
                tick_us = random(&mut state) * TICK_US;
            }
            if l <= TICK_US {
                let hit = hits.min(1.0);
                let of_piece = [1.0, l, hit, hits, l * l, hits * hits, hits * l, hit * l];
                sums.0[3].iter_mut().zip(of_piece).for_each(|(sum, more)| *sum += more);
            }
        }
        sums
    }

    /// 500 µs give or take 20.
    fn steady(random: f64) -> f64 {
        480.0 + 40.0 * random
    }

    /// As its mean varies.
    fn exponential(mean_us: f64) -> impl Fn(f64) -> f64 {
        move |random| -random.ln() * mean_us
    }

    #[test]
    fn what_a_hit_adds_is_found() {
        for hit_us in [0.0, 50.0, 80.0] {
            for (seed, n) in [(1, 1_000), (2, 4_000)] {
                let (found, variance) = pieces(n, hit_us, seed, steady).added().unwrap();
                assert!((found - hit_us).abs() < 4.0 * variance.sqrt(), "{found} of {hit_us}, {variance}");
                assert!(variance.sqrt() < 2.0, "{variance}");
            }
            for mean_us in [40.0, 100.0, 300.0, 600.0] {
                let (found, variance) = pieces(20_000, hit_us, 3, exponential(mean_us)).added().unwrap();
                assert!((found - hit_us).abs() < 3.0 * variance.sqrt() + 7.0, "{found} of {hit_us}, {variance}");
            }
        }
    }

    #[test]
    fn what_is_known_well_outweighs_the_probe() {
        let hidden_us =
            |n, hit_us, seen_us: f64| pieces(n, hit_us, 5, steady).hidden_ns(seen_us * 1e3, 30_000) as f64 / 1e3;
        assert!((hidden_us(4_000, 70.0, 25.0) - 45.0).abs() < 2.0, "{}", hidden_us(4_000, 70.0, 25.0));
        assert!((hidden_us(4_000, 40.0, 25.0) - 15.0).abs() < 2.0, "{}", hidden_us(4_000, 40.0, 25.0));
        assert_eq!(hidden_us(10, 70.0, 25.0), 30.0, "ten pieces tell nothing");
        // Work that differs a lot tells little: half way between 30 and 55 or so.
        let few = pieces(300, 80.0, 8, exponential(300.0)).hidden_ns(25e3, 30_000);
        assert!((30_001..55_000).contains(&few), "{few}");
        // Bounds: a hit never adds less than the blob sees, nor far more than the probe does.
        assert_eq!(hidden_us(4_000, 0.0, 60.0), 0.0);
        assert!((hidden_us(4_000, 300.0, 25.0) - 110.0).abs() < 0.01);
    }

    #[test]
    fn without_evidence_the_probe_decides() {
        assert_eq!(HitSums::default().hidden_ns(0.0, 7), 7);
        // Each piece is met.
        let mut met = HitSums::default();
        met.0[2] = [100.0, 8e4, 100.0, 100.0, 64e6, 100.0, 8e4, 8e4];
        assert_eq!(met.hidden_ns(25e3, 30_000), 30_000);
    }

    #[test]
    fn older_pieces_count_less() {
        let (first, second) = (pieces(100, 70.0, 1, steady), pieces(300, 20.0, 2, steady));
        let mut both = first.clone();
        both.age_and_add(1.0, &second);
        let rest = both.since(&first).0[3];
        assert!(rest.iter().zip(second.0[3]).all(|(a, b)| (a - b).abs() <= 1e-9 * b.max(1.0)));
        both.age_and_add(0.0, &first);
        assert_eq!(both, first);
    }
}
