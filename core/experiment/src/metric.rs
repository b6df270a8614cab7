//! Metrics as the catalog states them. Numbers are read out of a program's output by `core/journal`, which
//! takes the same texts; here they are only checked, so that a wrong one is found before anything runs.

use serde::Serialize;

use crate::diagnostic::Pos;

/// Something that is measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// Names of the nodes whose programs report it.
    pub from: Vec<String>,
    /// Where the numbers are.
    pub source: MetricSource,
    /// The unit, as it is printed.
    pub unit: String,
    /// How the nodes' numbers become one; `None` for samples, which are pooled, and for a single node.
    pub combine: Option<Combine>,
    /// Figures of pooled samples to show: `mean`, `min`, `max`, `p50`, `p99.9`; empty for single numbers.
    pub show: Vec<String>,
    /// Where the metric is in the text.
    pub at: Pos,
}

/// Where a metric's numbers are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricSource {
    /// Path (`$.a.b[0]`) into the last line of standard output that is a JSON object or array.
    Json(String),
    /// Regular expression with one capture group; its last match in standard output counts.
    Regex(String),
    /// File of little-endian unsigned 64-bit values, relative to the command's working directory.
    /// Its name ends in `_<unit>.bin`.
    Samples(String),
}

/// How numbers of several nodes become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Combine {
    /// Their sum.
    Sum,
    /// Their arithmetic mean.
    Mean,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl Combine {
    pub(crate) const NAMES: [(&'static str, Combine); 4] =
        [("sum", Combine::Sum), ("mean", Combine::Mean), ("max", Combine::Max), ("min", Combine::Min)];

    /// The name used in catalogs and journals.
    pub fn name(self) -> &'static str {
        Combine::NAMES.into_iter().find(|(_, c)| *c == self).map_or("", |(name, _)| name)
    }

    /// The combined value; none when there are no values.
    pub fn apply(self, values: &[f64]) -> Option<f64> {
        let value = match self {
            Combine::Sum | Combine::Mean => values.iter().copied().reduce(|a, b| a + b),
            Combine::Max => values.iter().copied().reduce(f64::max),
            Combine::Min => values.iter().copied().reduce(f64::min),
        }?;
        Some(if self == Combine::Mean { value / values.len() as f64 } else { value })
    }
}

/// Figures shown when the catalog names none.
pub(crate) const SHOW_DEFAULT: [&str; 3] = ["mean", "p50", "p99"];

/// `$` followed by any number of `.key` and `[index]`; a key is anything without `.`, `[` and `]`.
pub(crate) fn is_json_path(text: &str) -> bool {
    let Some(mut rest) = text.strip_prefix('$') else { return false };
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[', ']']).unwrap_or(after.len());
            if end == 0 {
                return false;
            }
            rest = &after[end..];
        } else {
            let Some((index, after)) = rest.strip_prefix('[').and_then(|r| r.split_once(']')) else { return false };
            if index.is_empty() || index.len() > 9 || !index.bytes().all(|b| b.is_ascii_digit()) {
                return false;
            }
            rest = after;
        }
    }
    true
}

/// What is wrong with a pattern, if anything.
pub(crate) fn pattern_fault(text: &str) -> Option<String> {
    match regex_lite::Regex::new(text) {
        Err(e) => Some(format!("'{text}' is no regular expression: {e}")),
        Ok(r) if r.captures_len() != 2 => {
            Some(format!("'{text}' has {} capture groups, expected one around the number", r.captures_len() - 1))
        }
        Ok(_) => None,
    }
}

/// `mean`, `min`, `max`, or `p` and a percentage above 0 up to 100 with at most four places.
pub(crate) fn is_statistic(text: &str) -> bool {
    if matches!(text, "mean" | "min" | "max") {
        return true;
    }
    let Some(number) = text.strip_prefix('p') else { return false };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |t: &str, max: usize| (1..=max).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole, 3) || !digits(fraction, 4) {
        return false;
    }
    let (whole, none) = (whole.parse().unwrap_or(u32::MAX), fraction.bytes().all(|b| b == b'0'));
    if none { (1..=100).contains(&whole) } else { whole < 100 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_paths() {
        for good in ["$", "$.rate", "$.a.b[0]", "$[3][4].c d"] {
            assert!(is_json_path(good), "{good}");
        }
        for bad in ["", "rate", "$rate", "$.", "$..a", "$[x]", "$[0", "$.a]", "$[]", "$[1234567890]"] {
            assert!(!is_json_path(bad), "{bad}");
        }
    }

    #[test]
    fn patterns_need_one_group() {
        assert_eq!(pattern_fault(r"errors=(\d+)"), None);
        assert_eq!(pattern_fault(r"e=(?:a|b)(\d+)"), None);
        let groups = pattern_fault(r"(\d+)/(\d+)").unwrap();
        assert!(groups.contains("2 capture groups"), "{groups}");
        assert!(pattern_fault("(a").unwrap().contains("no regular expression"));
    }

    #[test]
    fn statistics() {
        for good in ["mean", "min", "max", "p1", "p50", "p99.9", "p99.9999", "p100", "p0.1", "p100.0"] {
            assert!(is_statistic(good), "{good}");
        }
        for bad in ["", "p", "median", "p0", "p101", "p100.1", "p9.", "p99.99999", "p-1", "P50"] {
            assert!(!is_statistic(bad), "{bad}");
        }
    }
}
