//! Quantities: a decimal number and a unit, exactly.
//!
//! A quantity is `mantissa / 10^digits * factor` in the base unit of its kind. It is computed in 128 bits
//! and refused when it is no whole number of base units, so nothing is ever rounded. Bound: the mantissa has
//! at most 18 digits (below 2^60) and a unit's factor is below 2^42, so the product is below 2^102.
//!
//! Example: `0.5us` has mantissa 5, digits 1, factor 1000: 5 * 1000 / 10 = 500 ns.

use crate::diagnostic::nearest;

/// A unit: its name and how many base units it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unit {
    pub name: &'static str,
    factor: u64,
}

const fn unit(name: &'static str, factor: u64) -> Unit {
    Unit { name, factor }
}

/// A kind of quantity: its units (the base unit is not always among them) and how it is talked about.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Dimension {
    /// With its article, for messages: `a duration`.
    pub name: &'static str,
    pub units: &'static [Unit],
    /// An example of a right value.
    pub example: &'static str,
    /// The smallest step, for messages.
    finest: &'static str,
}

/// Base unit: nanosecond.
pub(crate) static DURATION: Dimension = Dimension {
    name: "a duration",
    units: &[
        unit("ns", 1),
        unit("us", 1_000),
        unit("ms", 1_000_000),
        unit("s", 1_000_000_000),
        unit("min", 60_000_000_000),
        unit("h", 3_600_000_000_000),
    ],
    example: "10ms",
    finest: "1 ns",
};

/// Base unit: bit per second.
pub(crate) static BANDWIDTH: Dimension = Dimension {
    name: "a bandwidth",
    units: &[
        unit("bit/s", 1),
        unit("kbit/s", 1_000),
        unit("Mbit/s", 1_000_000),
        unit("Gbit/s", 1_000_000_000),
        unit("Tbit/s", 1_000_000_000_000),
    ],
    example: "100Mbit/s",
    finest: "1 bit/s",
};

/// Base unit: byte.
pub(crate) static SIZE: Dimension = Dimension {
    name: "a size",
    units: &[
        unit("B", 1),
        unit("KiB", 1 << 10),
        unit("MiB", 1 << 20),
        unit("GiB", 1 << 30),
        unit("TiB", 1 << 40),
        unit("kB", 1_000),
        unit("MB", 1_000_000),
        unit("GB", 1_000_000_000),
        unit("TB", 1_000_000_000_000),
    ],
    example: "256MiB",
    finest: "1 byte",
};

/// Base unit: one millionth.
pub(crate) static SHARE: Dimension =
    Dimension { name: "a share", units: &[unit("%", 10_000)], example: "0.1%", finest: "0.0001 %" };

/// Base unit: packet.
pub(crate) static PACKETS: Dimension = Dimension {
    name: "a number of packets",
    units: &[unit("packets", 1), unit("packet", 1)],
    example: "256 packets",
    finest: "1 packet",
};

/// Base unit: one per day, so that every unit is a whole factor.
pub(crate) static RATE: Dimension = Dimension {
    name: "a rate",
    units: &[unit("/s", 86_400), unit("/min", 1_440), unit("/h", 24)],
    example: "90/s",
    finest: "1 per day",
};

/// Base unit: one billionth.
pub(crate) static DRIFT: Dimension =
    Dimension { name: "a drift", units: &[unit("ppm", 1_000), unit("ppb", 1)], example: "50ppm", finest: "1 ppb" };

/// A number as written: `mantissa / 10^digits`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Decimal {
    pub mantissa: u64,
    pub digits: u32,
}

/// What is wrong with a quantity: message and hint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wrong {
    pub message: String,
    pub hint: Option<String>,
}

fn wrong(message: String) -> Wrong {
    Wrong { message, hint: None }
}

impl Dimension {
    /// `ns, us, ms, s, min or h`
    pub(crate) fn accepted(&self) -> String {
        let names: Vec<&str> = self.units.iter().map(|u| u.name).collect();
        match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => names.concat(),
        }
    }

    /// Whether a unit is one of this kind.
    pub(crate) fn has_unit(&self, name: &str) -> bool {
        self.units.iter().any(|u| u.name == name)
    }

    /// The quantity in base units.
    pub(crate) fn parse(&self, text: &str) -> Result<u64, Wrong> {
        let expected = format!("expected {} such as {}", self.name, self.example);
        let Some((number, rest)) = split_number(text) else {
            return Err(wrong(format!("'{text}' is not a quantity, {expected}")));
        };
        let number = number.map_err(|_| wrong(format!("'{text}' has more than 18 digits, {expected}")))?;
        let unit_text = rest.trim();
        if unit_text.is_empty() {
            return Err(Wrong {
                message: format!("'{text}' has no unit, {expected}"),
                hint: Some(format!("accepted units: {}", self.accepted())),
            });
        }
        let Some(unit) = self.units.iter().find(|u| u.name == unit_text) else {
            let near = nearest(unit_text, self.units.iter().map(|u| u.name))
                .map_or(String::new(), |n| format!("did you mean '{n}'? "));
            return Err(Wrong {
                message: format!("'{unit_text}' in '{text}' is no accepted unit, {expected}"),
                hint: Some(format!("{near}accepted units: {}", self.accepted())),
            });
        };
        let product = u128::from(number.mantissa) * u128::from(unit.factor);
        let divisor = 10u128.pow(number.digits);
        if product % divisor != 0 {
            return Err(wrong(format!("'{text}' is finer than {}, the smallest step", self.finest)));
        }
        u64::try_from(product / divisor).map_err(|_| wrong(format!("'{text}' is too large, {expected}")))
    }

    /// The quantity in base units, with a sign in front or without.
    pub(crate) fn parse_signed(&self, text: &str) -> Result<i64, Wrong> {
        let text = text.trim();
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let size = i64::try_from(self.parse(rest)?)
            .map_err(|_| wrong(format!("'{text}' is too large, expected {} such as {}", self.name, self.example)))?;
        Ok(if negative { -size } else { size })
    }
}

/// The leading decimal number and what follows. `None` when there is no number, `Err` when it is too long.
pub(crate) fn split_number(text: &str) -> Option<(Result<Decimal, TooLong>, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let (whole, fraction) = match number.split_once('.') {
        Some((w, f)) if !f.is_empty() => (w, f),
        Some(_) => return None,
        None => (number, ""),
    };
    if whole.is_empty() || fraction.contains('.') {
        return None;
    }
    Some((Decimal::from_digits(whole, fraction), rest))
}

/// A number with more digits than are computed with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLong;

impl Decimal {
    fn from_digits(whole: &str, fraction: &str) -> Result<Decimal, TooLong> {
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{}{fraction}", whole.trim_start_matches('0'));
        if digits.len() > 18 || fraction.len() > 18 {
            return Err(TooLong);
        }
        let mantissa = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| TooLong)? };
        Ok(Decimal { mantissa, digits: fraction.len() as u32 })
    }

    /// The number in millionths; `None` when finer.
    pub(crate) fn millionths(self) -> Option<u64> {
        let product = u128::from(self.mantissa) * 1_000_000;
        let divisor = 10u128.pow(self.digits);
        (product % divisor == 0).then(|| u64::try_from(product / divisor).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_exact() {
        assert_eq!(DURATION.parse("0.5us"), Ok(500));
        assert_eq!(DURATION.parse("50 us"), Ok(50_000));
        assert_eq!(DURATION.parse("1.000000001s"), Ok(1_000_000_001));
        assert_eq!(BANDWIDTH.parse("1Gbit/s"), Ok(1_000_000_000));
        assert_eq!(BANDWIDTH.parse("0.056Mbit/s"), Ok(56_000));
        assert_eq!(SIZE.parse("1.5KiB"), Ok(1536));
        assert_eq!(SHARE.parse("0.0001%"), Ok(1));
        assert_eq!(PACKETS.parse("256 packets"), Ok(256));
        assert_eq!(RATE.parse("90/s"), Ok(90 * 86_400));
        assert_eq!(DURATION.parse("000000000000000000000001s"), Ok(1_000_000_000));
        assert!(SIZE.parse("18446744.073709551615TB").unwrap_err().message.contains("18 digits"));
    }

    #[test]
    fn signs_are_read_where_they_mean_something() {
        assert_eq!(DURATION.parse_signed("-1.5s"), Ok(-1_500_000_000));
        assert_eq!(DURATION.parse_signed("+2ms"), Ok(2_000_000));
        assert_eq!(DRIFT.parse_signed("-12.345 ppm"), Ok(-12_345));
        assert!(DRIFT.parse_signed("--1ppm").is_err() && DRIFT.parse_signed("-0.5ppb").is_err());
        assert!(DURATION.parse_signed("9223372037s").unwrap_err().message.contains("too large"));
    }

    #[test]
    fn wrong_quantities_say_what_was_expected() {
        let message = |d: &Dimension, t: &str| d.parse(t).unwrap_err().message;
        assert_eq!(message(&DURATION, "5"), "'5' has no unit, expected a duration such as 10ms");
        assert_eq!(message(&DURATION, "1.5ns"), "'1.5ns' is finer than 1 ns, the smallest step");
        assert_eq!(message(&PACKETS, "0.5 packets"), "'0.5 packets' is finer than 1 packet, the smallest step");
        assert_eq!(message(&DURATION, "-5s"), "'-5s' is not a quantity, expected a duration such as 10ms");
        for bad in ["", "s", "1.s", ".5s", "1.2.3s", "1e3s"] {
            assert!(DURATION.parse(bad).is_err(), "{bad}");
        }
        let hint = BANDWIDTH.parse("10mbit/s").unwrap_err().hint.unwrap();
        assert!(hint.starts_with("did you mean 'Mbit/s'?"), "{hint}");
        assert!(SIZE.parse("18446744073709551615TiB").is_err());
        assert!(SIZE.parse("99999999999999999TiB").unwrap_err().message.contains("too large"));
    }
}
