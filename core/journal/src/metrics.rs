//! Metrics from what programs print and write: pure functions over text and bytes.
//!
//! A metric takes one number from each node's output (a JSON path, a regular expression) and combines them, or pools
//! raw samples over the nodes. Figures of samples are always taken over the pooled raw samples, never averaged: the
//! mean of two nodes' p99 is nobody's p99.
//!
//! A program that answered nothing has no figure: an empty file of samples, a JSON null. That is a result, no fault.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use diecast_core_experiment::Combine;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::Shown;

/// Why a metric has no value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetricError {
    /// The path's text.
    #[error("{path:?} is no JSON path: {problem}; expected for example $.rate or $.load.rates[0]")]
    Path {
        /// The path.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No line parses.
    #[error("no line of the output is a JSON object or array")]
    NoJson,
    /// The path leads nowhere.
    #[error("the last JSON line has nothing at {path}: {line}")]
    NoValue {
        /// The path.
        path: String,
        /// The line, shortened.
        line: String,
    },
    /// There is something, but no number.
    #[error("{at} is no number: {found}")]
    NotANumber {
        /// The path or pattern.
        at: String,
        /// What was found.
        found: String,
    },
    /// The pattern's text.
    #[error("{pattern:?} is no regular expression: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The pattern has none or several captures.
    #[error("{pattern:?} has {captures} capture groups, expected one")]
    Captures {
        /// The pattern.
        pattern: String,
        /// How many it has.
        captures: usize,
    },
    /// Nothing matched.
    #[error("{pattern:?} matches nothing in the output")]
    NoMatch {
        /// The pattern.
        pattern: String,
    },
    /// A sample file with a broken end.
    #[error("a sample file has {length} bytes, expected a multiple of 8 (unsigned 64-bit numbers, little endian)")]
    SampleLength {
        /// Its length.
        length: usize,
    },
    /// Nothing to combine or to take a figure of.
    #[error("there is no value to take {what} of")]
    Nothing {
        /// The figure.
        what: String,
    },
}

/// The numbers of several nodes as one, or an error when there are none.
pub fn combined(how: Combine, values: &[f64]) -> Result<f64, MetricError> {
    how.apply(values).ok_or_else(|| MetricError::Nothing { what: how.name().into() })
}

/// The same of nodes that may have none: one without a number leaves none at all, since a sum or a maximum over the others is
/// another figure.
pub fn combined_of_nodes(how: Combine, per_node: &BTreeMap<String, Option<f64>>) -> Result<Option<f64>, MetricError> {
    match per_node.values().copied().collect::<Option<Vec<f64>>>() {
        Some(values) => combined(how, &values).map(Some),
        None => Ok(None),
    }
}

/// These figures of ascending samples; no figure when there are no samples.
pub fn figures(asked: &[Statistic], sorted: &[u64]) -> Vec<Shown> {
    asked.iter().filter_map(|&statistic| Some(Shown { statistic, value: statistic.of_sorted(sorted).ok()? })).collect()
}

/// A figure of samples. In text `mean`, `min`, `max` or `p` with a percentage above 0 up to 100: `p50`, `p99.9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Statistic {
    /// Arithmetic mean.
    Mean,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Nearest-rank percentile in parts per million: 990,000 is p99.
    Percentile(u32),
}

impl Statistic {
    /// The median.
    pub const P50: Statistic = Statistic::Percentile(500_000);
    /// The 99th percentile.
    pub const P99: Statistic = Statistic::Percentile(990_000);

    /// The figure of these samples, which are in any order, or an error when there are none.
    pub fn of(self, samples: &[u64]) -> Result<f64, MetricError> {
        match self {
            Statistic::Percentile(_) => {
                let mut sorted = samples.to_vec();
                sorted.sort_unstable();
                self.of_sorted(&sorted)
            }
            _ => self.of_sorted(samples),
        }
    }

    /// The figure of ascending samples. Only percentiles need the order.
    pub fn of_sorted(self, sorted: &[u64]) -> Result<f64, MetricError> {
        let value = match self {
            // Sums up to 2^128 are exact; one rounding to f64 each for sum and quotient.
            Statistic::Mean if sorted.is_empty() => None,
            Statistic::Mean => Some(sorted.iter().map(|&s| u128::from(s)).sum::<u128>() as f64 / sorted.len() as f64),
            Statistic::Min => sorted.iter().min().map(|&s| s as f64),
            Statistic::Max => sorted.iter().max().map(|&s| s as f64),
            Statistic::Percentile(ppm) => percentile_rank(sorted.len(), ppm).map(|rank| sorted[rank] as f64),
        };
        value.ok_or_else(|| MetricError::Nothing { what: self.to_string() })
    }
}

/// Index of the nearest-rank percentile among `count` ascending samples; none when there are none.
///
/// Nearest rank: the smallest sample such that at least `ppm` parts per million of the samples are at most it, which
/// is number `ceil(count * ppm / 10^6)` counted from 1. It is always a sample that occurred. Bound: the product fits
/// 128 bits for any count. Example: p99 of 200 samples is the 198th, p50 of 5 is the 3rd.
pub fn percentile_rank(count: usize, ppm: u32) -> Option<usize> {
    if count == 0 {
        return None;
    }
    let rank = (count as u128 * u128::from(ppm)).div_ceil(1_000_000) as usize;
    Some(rank.clamp(1, count) - 1)
}

impl fmt::Display for Statistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Statistic::Mean => f.write_str("mean"),
            Statistic::Min => f.write_str("min"),
            Statistic::Max => f.write_str("max"),
            Statistic::Percentile(ppm) => {
                let (whole, rest) = (ppm / 10_000, ppm % 10_000);
                let digits = format!("{rest:04}");
                let digits = digits.trim_end_matches('0');
                if digits.is_empty() { write!(f, "p{whole}") } else { write!(f, "p{whole}.{digits}") }
            }
        }
    }
}

impl FromStr for Statistic {
    type Err = String;
    fn from_str(text: &str) -> Result<Statistic, String> {
        let unknown =
            || format!("unknown figure {text:?}, expected mean, min, max, or a percentile such as p50 or p99.9");
        match text {
            "mean" => return Ok(Statistic::Mean),
            "min" => return Ok(Statistic::Min),
            "max" => return Ok(Statistic::Max),
            _ => {}
        }
        let number = text.strip_prefix('p').ok_or_else(unknown)?;
        let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
        let all_digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
        if !all_digits(whole) || !all_digits(rest) || whole.len() > 3 || rest.len() > 4 {
            return Err(unknown());
        }
        let whole: u32 = whole.parse().map_err(|_| unknown())?;
        let rest: u32 = format!("{rest:0<4}").parse().map_err(|_| unknown())?;
        let ppm = whole * 10_000 + rest;
        if ppm == 0 || ppm > 1_000_000 { Err(unknown()) } else { Ok(Statistic::Percentile(ppm)) }
    }
}

impl Serialize for Statistic {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Statistic {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Statistic, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// One step of a JSON path.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// `$.a.b[0]` into steps.
fn parse_path(path: &str) -> Result<Vec<Step>, MetricError> {
    let problem = |problem: &str| MetricError::Path { path: path.to_owned(), problem: problem.to_owned() };
    let mut rest = path.strip_prefix('$').ok_or_else(|| problem("it does not begin with $"))?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            if end == 0 {
                return Err(problem("a key is missing after a point"));
            }
            steps.push(Step::Key(after[..end].to_owned()));
            rest = &after[end..];
        } else if let Some(after) = rest.strip_prefix('[') {
            let (index, after) = after.split_once(']').ok_or_else(|| problem("a bracket is not closed"))?;
            let index = index.parse().map_err(|_| problem("an index is no whole number"))?;
            steps.push(Step::Index(index));
            rest = after;
        } else {
            return Err(problem("a key or index must follow . or ["));
        }
    }
    Ok(steps)
}

/// The number at `path` in the last line of `text` that is a JSON object or array; none where it says null.
pub fn from_json(text: &str, path: &str) -> Result<Option<f64>, MetricError> {
    let steps = parse_path(path)?;
    let (line, root) = text
        .lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok().map(|value| (line, value)))
        .find(|(_, value)| value.is_object() || value.is_array())
        .ok_or(MetricError::NoJson)?;
    let found = steps.iter().try_fold(&root, |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Index(index) => value.get(index),
    });
    let found = found.ok_or_else(|| MetricError::NoValue { path: path.to_owned(), line: shorten(line) })?;
    if found.is_null() {
        return Ok(None);
    }
    let not_a_number = || MetricError::NotANumber { at: path.to_owned(), found: shorten(&found.to_string()) };
    found.as_f64().filter(|number| number.is_finite()).ok_or_else(not_a_number).map(Some)
}

/// The number in the one capture group of `pattern`, at its last match in `text`.
pub fn from_regex(text: &str, pattern: &str) -> Result<f64, MetricError> {
    let regex = regex_lite::Regex::new(pattern)
        .map_err(|error| MetricError::Pattern { pattern: pattern.to_owned(), problem: error.to_string() })?;
    let captures = regex.captures_len() - 1;
    if captures != 1 {
        return Err(MetricError::Captures { pattern: pattern.to_owned(), captures });
    }
    let group = regex.captures_iter(text).last().and_then(|captures| captures.get(1));
    let found = group.ok_or_else(|| MetricError::NoMatch { pattern: pattern.to_owned() })?.as_str();
    let not_a_number = || MetricError::NotANumber { at: format!("the match of {pattern:?}"), found: shorten(found) };
    found.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(not_a_number)
}

/// Raw samples: unsigned 64-bit numbers, little endian, nothing else, in the order in which they happened.
pub fn from_sample_bytes(bytes: &[u8]) -> Result<Vec<u64>, MetricError> {
    let numbers = bytes.chunks_exact(8);
    if !numbers.remainder().is_empty() {
        return Err(MetricError::SampleLength { length: bytes.len() });
    }
    Ok(numbers.map(|number| number.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))).collect())
}

/// The other direction of [`from_sample_bytes`].
pub fn to_sample_bytes(samples: &[u64]) -> Vec<u8> {
    samples.iter().flat_map(|sample| sample.to_le_bytes()).collect()
}

/// At most 120 characters of a text, for messages.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
