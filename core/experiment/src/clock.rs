//! A node's own clock: how wrong it is, in a catalog and in the words of `diecast clock`.

use serde::Serialize;

use crate::quantity::{DRIFT, DURATION};

/// The largest drift, parts per billion.
pub const DRIFT_MAX_PPB: i64 = 100_000_000;
/// The largest offset either way, ns: ten years.
pub const OFFSET_MAX_NS: i64 = 315_360_000_000_000_000;

/// How a node's clock differs from the lab's at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Clock {
    /// CLOCK_REALTIME is so far ahead, ns.
    pub offset_ns: i64,
    /// All clocks are so much too fast, parts per billion.
    pub drift_ppb: i64,
}

impl Clock {
    /// Whether it does not differ.
    pub fn is_right(&self) -> bool {
        *self == Clock::default()
    }
}

impl std::fmt::Display for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (offset, drift) = (self.offset_ns as f64 / 1e6, self.drift_ppb as f64 / 1e3);
        match (self.offset_ns, self.drift_ppb) {
            (0, _) => write!(f, "{drift:+} ppm"),
            (_, 0) => write!(f, "{offset:+} ms"),
            _ => write!(f, "{offset:+} ms, {drift:+} ppm"),
        }
    }
}

/// A signed duration such as -250ms, in ns.
pub fn parse_offset(text: &str) -> Result<i64, String> {
    within(DURATION.parse_signed(text).map_err(|w| w.message)?, OFFSET_MAX_NS, text, "ten years")
}

/// A signed drift such as -50ppm, in parts per billion.
pub fn parse_drift(text: &str) -> Result<i64, String> {
    within(DRIFT.parse_signed(text).map_err(|w| w.message)?, DRIFT_MAX_PPB, text, "100000 ppm")
}

fn within(value: i64, max: i64, text: &str, most: &str) -> Result<i64, String> {
    if value.abs() <= max { Ok(value) } else { Err(format!("'{text}' is too much, expected at most {most}")) }
}
