//! Random decisions: one stream per pipe and purpose, integers and exact IEEE operations only, so that the same
//! seed gives the same decisions on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014): small, seedable, good enough to decide loss.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform from 0 to below 1, in steps of 2^-53.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Uniform from 0 to below `n`: the high half of the product, whose bias is below n / 2^64.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Standard normal: the sum of twelve uniforms, its shape mended by Teichroew's polynomial (Knuth, The Art of
    /// Computer Programming 2, 3.4.1): no logarithm, hence the same bits everywhere. Its distribution is within
    /// 0.0002 of the normal one as far as three deviations.
    pub(crate) fn normal(&mut self) -> f64 {
        let r = ((0..12).map(|_| self.unit()).sum::<f64>() - 6.0) / 4.0;
        let r2 = r * r;
        ((((0.029_899_776 * r2 + 0.008_355_968) * r2 + 0.076_542_912) * r2 + 0.252_408_784) * r2 + 3.949_846_138) * r
    }
}

/// The finaliser of SplitMix64: spreads every bit over the whole word.
pub(crate) fn mix(x: u64) -> u64 {
    let mut z = x;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An event of fixed probability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance {
    /// It happens when a random 64-bit number is below this; `None` is always.
    below: Option<u64>,
}

impl Chance {
    /// 1.0 is exact; everything below maps to round(p * 2^64) < 2^64.
    pub(crate) fn new(probability: f64) -> Chance {
        let below = if probability >= 1.0 { None } else { Some((probability * 18_446_744_073_709_551_616.0) as u64) };
        Chance { below }
    }

    /// Draws only when the answer is open, so a pipe without the effect leaves the stream alone.
    pub(crate) fn happens(self, rng: &mut SplitMix64) -> bool {
        match self.below {
            Some(0) => false,
            Some(below) => rng.next() < below,
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_are_normal() {
        // Kolmogorov-Smirnov against table values of the normal distribution; n = 200,000, so 0.0043 is the bound of
        // one in a thousand.
        let n = 200_000;
        let mut rng = SplitMix64(42);
        let mut x: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        x.sort_by(f64::total_cmp);
        let share_below = |z: f64| x.partition_point(|v| *v < z) as f64 / f64::from(n);
        for (z, p) in [(-3.0, 0.00135), (-2.0, 0.02275), (-1.0, 0.15866), (-0.5, 0.30854), (0.0, 0.5), (0.25, 0.59871)]
        {
            assert!((share_below(z) - p).abs() < 0.0043, "{z}: {}", share_below(z));
            assert!((1.0 - share_below(-z) - p).abs() < 0.0043, "{}: {}", -z, share_below(-z));
        }
        let tail = x.iter().filter(|v| v.abs() > 3.0).count();
        assert!((420..=660).contains(&tail), "{tail} of 540 beyond three deviations");
    }

    #[test]
    fn chances_are_exact_at_their_ends() {
        let mut rng = SplitMix64(1);
        assert!((0..1000).all(|_| Chance::new(1.0).happens(&mut rng)));
        assert!((0..1000).all(|_| !Chance::new(0.0).happens(&mut rng)));
        assert!((0..1000).all(|_| rng.below(7) < 7));
    }
}
