//! Quantities on the command line: `90/s`, `5s`, `500us`; a bare number is per second or seconds.

/// What is wrong with a quantity, in words that name the text.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum UnitError {
    #[error("expected a rate such as 90/s, got {0:?}")]
    Rate(String),
    #[error("expected a time such as 5s, 20ms or 500us, got {0:?}")]
    Time(String),
}

/// Requests per second, positive and finite: `90/s` or `90`.
pub fn parse_rate(text: &str) -> Result<f64, UnitError> {
    let number = text.trim().strip_suffix("/s").unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err(UnitError::Rate(text.to_owned())),
    }
}

/// Nanoseconds, rounded to the nearest: `5s`, `1.5s`, `20ms`, `500us`, `100ns` or a number of seconds.
pub fn parse_time_ns(text: &str) -> Result<u64, UnitError> {
    let error = || UnitError::Time(text.to_owned());
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| c.is_ascii_alphabetic() || c == 'µ').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let scale = match unit {
        "" | "s" => 1e9,
        "ms" => 1e6,
        "us" | "µs" => 1e3,
        "ns" => 1.0,
        "min" => 60e9,
        _ => return Err(error()),
    };
    let ns = number.trim().parse::<f64>().map_err(|_| error())? * scale;
    // 2^53 ns (104 days) is the last range in which every nanosecond is a float of its own.
    if ns.is_finite() && (0.0..=9_007_199_254_740_992.0).contains(&ns) { Ok(ns.round() as u64) } else { Err(error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(parse_rate("90/s"), Ok(90.0));
        assert_eq!(parse_rate("12.5"), Ok(12.5));
        for bad in ["", "/s", "0/s", "-1/s", "90/min", "inf", "nan/s", "ninety"] {
            assert_eq!(parse_rate(bad), Err(UnitError::Rate(bad.to_owned())));
        }
    }

    #[test]
    fn times() {
        assert_eq!(parse_time_ns("5s"), Ok(5_000_000_000));
        assert_eq!(parse_time_ns("5"), Ok(5_000_000_000));
        assert_eq!(parse_time_ns("1.5ms"), Ok(1_500_000));
        assert_eq!(parse_time_ns("500us"), Ok(500_000));
        assert_eq!(parse_time_ns("500µs"), Ok(500_000));
        assert_eq!(parse_time_ns("2 min"), Ok(120_000_000_000));
        assert_eq!(parse_time_ns("7ns"), Ok(7));
        assert_eq!(parse_time_ns("0s"), Ok(0));
        for bad in ["", "s", "-1s", "5h", "1e30s", "nan", "5 s s"] {
            assert_eq!(parse_time_ns(bad), Err(UnitError::Time(bad.to_owned())));
        }
    }
}
