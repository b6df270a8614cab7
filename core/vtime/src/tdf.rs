//! The time dilation factor: how many real seconds pass in one virtual second.

use core::fmt;
use core::str::FromStr;

use crate::{RealSpan, VirtSpan};

/// Time dilation factor `num/den`, a rational from 1/100 to 1000 in lowest terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tdf {
    num: u32,
    den: u32,
}

/// Why a text or a pair of numbers is no TDF.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TdfError {
    /// Not a number, a decimal fraction or `a/b`.
    NotANumber,
    /// Outside 1/100 to 1000.
    OutOfRange,
    /// More digits than a ratio of 32-bit numbers carries.
    TooFine,
}

impl fmt::Display for TdfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TdfError::NotANumber => "not a time dilation factor, expected a number such as 10, 0.5 or 3/2",
            TdfError::OutOfRange => "time dilation factor out of range, expected 1/100 to 1000",
            TdfError::TooFine => "time dilation factor has too many digits, expected at most six after the point",
        })
    }
}

impl core::error::Error for TdfError {}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Tdf {
    /// Real time: one virtual second per real second.
    pub const ONE: Tdf = Tdf { num: 1, den: 1 };

    /// `num/den`, reduced. Errors when outside 1/100..=1000 or when a term needs more than 32 bits.
    pub fn new(num: u64, den: u64) -> Result<Tdf, TdfError> {
        if den == 0 || num == 0 {
            return Err(TdfError::OutOfRange);
        }
        let g = gcd(num, den);
        let (num, den) = (num / g, den / g);
        let (Ok(n), Ok(d)) = (u32::try_from(num), u32::try_from(den)) else {
            return Err(TdfError::TooFine);
        };
        // 1/100 <= n/d <= 1000, compared without division; both products fit 64 bits.
        if u64::from(n) * 100 < u64::from(d) || u64::from(n) > u64::from(d) * 1000 {
            return Err(TdfError::OutOfRange);
        }
        Ok(Tdf { num: n, den: d })
    }

    /// Numerator: real seconds.
    pub const fn num(self) -> u32 {
        self.num
    }
    /// Denominator: virtual seconds.
    pub const fn den(self) -> u32 {
        self.den
    }
    /// For people, plots and rates that are not time.
    pub fn as_f64(self) -> f64 {
        f64::from(self.num) / f64::from(self.den)
    }

    /// Real length of a virtual span, rounded up, saturating: never too short.
    ///
    /// Example: TDF 3/2, 1 ns virtual is 2 ns real. Bound: the product is below 2^96.
    pub fn to_real(self, span: VirtSpan) -> RealSpan {
        let p = u128::from(span.0) * u128::from(self.num);
        let q = p.div_ceil(u128::from(self.den));
        RealSpan(u64::try_from(q).unwrap_or(u64::MAX))
    }

    /// Virtual length of a real span, rounded down, saturating.
    ///
    /// Example: TDF 10, 19 ns real is 1 ns virtual. Bound: the product is below 2^96.
    pub fn to_virt(self, span: RealSpan) -> VirtSpan {
        let p = u128::from(span.0) * u128::from(self.den);
        VirtSpan(u64::try_from(p / u128::from(self.num)).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Tdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.den == 1 { write!(f, "{}", self.num) } else { write!(f, "{}/{}", self.num, self.den) }
    }
}

impl FromStr for Tdf {
    type Err = TdfError;
    fn from_str(s: &str) -> Result<Tdf, TdfError> {
        let int = |t: &str| -> Result<u64, TdfError> {
            if t.is_empty() || !t.bytes().all(|b| b.is_ascii_digit()) {
                return Err(TdfError::NotANumber);
            }
            t.parse().map_err(|_| TdfError::OutOfRange)
        };
        if let Some((a, b)) = s.split_once('/') {
            return Tdf::new(int(a)?, int(b)?);
        }
        let (whole, frac) = s.split_once('.').unwrap_or((s, ""));
        if s.contains('.') && frac.is_empty() {
            return Err(TdfError::NotANumber);
        }
        if frac.len() > 6 {
            return Err(TdfError::TooFine);
        }
        let mut scale = 1u64;
        let mut num = int(whole)?;
        for b in frac.bytes() {
            if !b.is_ascii_digit() {
                return Err(TdfError::NotANumber);
            }
            scale *= 10;
            num = num.checked_mul(10).ok_or(TdfError::OutOfRange)?.saturating_add(u64::from(b - b'0'));
        }
        Tdf::new(num, scale)
    }
}
