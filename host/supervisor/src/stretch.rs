//! How real spans change with the rate.

use diecast_core_vtime::Tdf;

/// How much longer real spans are from now on.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// The TDF before.
    pub from: Tdf,
    /// And now.
    pub to: Tdf,
}

impl Stretch {
    pub const NONE: Stretch = Stretch { from: Tdf::ONE, to: Tdf::ONE };

    /// A real span from now on. Rounded up: no period gets shorter.
    pub fn of(self, real: u64) -> u64 {
        let (num, den) = (u128::from(self.to.num()), u128::from(self.to.den()));
        let (was_num, was_den) = (u128::from(self.from.num()), u128::from(self.from.den()));
        // Bound: 2^64 * 2^32 * 2^32.
        let span = (u128::from(real) * num).saturating_mul(was_den).div_ceil(den * was_num);
        u64::try_from(span).unwrap_or(u64::MAX)
    }

    /// The virtual span for which a real one of any unit stood. Rounded down: what was rounded up on its way in comes
    /// back as it was, at a TDF of 1 or more.
    pub fn asked(self, real: u64) -> u64 {
        let virt = u128::from(real) * u128::from(self.from.den()) / u128::from(self.from.num());
        u64::try_from(virt).unwrap_or(u64::MAX)
    }

    /// The real span from now on that stands for a virtual one of any unit. Rounded up.
    pub fn lasts(self, virt: u64) -> u64 {
        let real = (u128::from(virt) * u128::from(self.to.num())).div_ceil(u128::from(self.to.den()));
        u64::try_from(real).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_there_and_back() {
        let tdf = |text: &str| text.parse::<Tdf>().unwrap();
        let up = Stretch { from: tdf("3/2"), to: tdf("7") };
        // 5 s were 8 real ones, 7.5 rounded up, and are 35 now.
        assert_eq!((up.asked(8), up.lasts(5), up.of(8)), (5, 35, 38));
        let down = Stretch { from: tdf("7"), to: tdf("0.3") };
        assert_eq!((down.asked(35), down.lasts(5), down.of(35)), (5, 2, 2));
        assert_eq!(Stretch::NONE.of(9), 9);
    }
}
