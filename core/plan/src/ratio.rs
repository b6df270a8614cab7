//! Exact ratios for shares of a core.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A non-negative ratio in lowest terms.
///
/// Bound: a share is `speed_ppm * den / (10^6 * num)` with a speed of at most 10^9 ppm and a TDF of two 32-bit
/// numbers, so both terms are below 2^62. Sums of shares of one plan have denominators that divide
/// 10^6 * num(TDF) * num(scale) < 2^84, and stay below 2^44 as a value, so 128 bits hold them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ratio {
    num: u128,
    den: u128,
}

const fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Ratio {
    /// Nothing.
    pub const ZERO: Ratio = Ratio { num: 0, den: 1 };
    /// The whole.
    pub const ONE: Ratio = Ratio { num: 1, den: 1 };

    /// `num/den`, reduced.
    ///
    /// # Panics
    /// If `den` is 0.
    pub const fn new(num: u128, den: u128) -> Ratio {
        assert!(den != 0, "a ratio with denominator 0");
        let g = gcd(num, den);
        Ratio { num: num / g, den: den / g }
    }

    /// Numerator.
    pub const fn num(self) -> u128 {
        self.num
    }

    /// Denominator, never 0.
    pub const fn den(self) -> u128 {
        self.den
    }

    /// The sum.
    pub const fn plus(self, other: Ratio) -> Ratio {
        let g = gcd(self.den, other.den);
        Ratio::new(self.num * (other.den / g) + other.num * (self.den / g), self.den / g * other.den)
    }

    /// The product with a whole number.
    pub const fn times(self, factor: u128) -> Ratio {
        Ratio::new(self.num * factor, self.den)
    }

    /// The smallest whole number that is not below this.
    pub const fn ceil(self) -> u128 {
        self.num.div_ceil(self.den)
    }

    /// The largest whole number that is not above this.
    pub const fn floor(self) -> u128 {
        self.num / self.den
    }

    /// For people and plots.
    pub fn as_f64(self) -> f64 {
        self.num as f64 / self.den as f64
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Ratio) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ratio {
    /// By whole part, then by the fractions' reciprocals (Euclid), so that no product can overflow.
    fn cmp(&self, other: &Ratio) -> Ordering {
        let whole = self.floor().cmp(&other.floor());
        let (a, b) = (self.num % self.den, other.num % other.den);
        match (whole, a, b) {
            (Ordering::Equal, 0, 0) => Ordering::Equal,
            (Ordering::Equal, 0, _) => Ordering::Less,
            (Ordering::Equal, _, 0) => Ordering::Greater,
            (Ordering::Equal, ..) => Ratio { num: other.den, den: b }.cmp(&Ratio { num: self.den, den: a }),
            _ => whole,
        }
    }
}

impl fmt::Display for Ratio {
    /// A decimal with at least two and at most five places, rounded; exact ratios are in the JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.5}", self.as_f64());
        let kept = text.trim_end_matches('0').len().max(text.len() - 3);
        f.pad(&text[..kept])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_exact() {
        let third = Ratio::new(2, 6);
        assert_eq!((third.num(), third.den()), (1, 3));
        assert_eq!(third.plus(Ratio::new(1, 6)), Ratio::new(1, 2));
        assert_eq!(third.times(3), Ratio::ONE);
        assert_eq!((Ratio::new(7, 2).ceil(), Ratio::new(7, 2).floor(), Ratio::new(8, 2).ceil()), (4, 3, 4));
        assert_eq!(Ratio::ZERO.plus(third), third);
    }

    #[test]
    fn order_agrees_with_cross_multiplication_and_never_overflows() {
        let values: Vec<Ratio> = (0..40).flat_map(|n| (1..40).map(move |d| Ratio::new(n, d))).collect();
        for a in &values {
            for b in &values {
                assert_eq!(a.cmp(b), (a.num * b.den).cmp(&(b.num * a.den)), "{a:?} {b:?}");
            }
        }
        let big = Ratio::new(u128::MAX, u128::MAX - 1);
        assert!(big > Ratio::ONE && big < Ratio::new(u128::MAX - 1, u128::MAX - 2));
    }

    #[test]
    fn people_see_two_to_five_places() {
        let show = |n, d| Ratio::new(n, d).to_string();
        assert_eq!([show(1, 1), show(1, 10), show(1, 200), show(1, 3)], ["1.00", "0.10", "0.005", "0.33333"]);
    }
}
