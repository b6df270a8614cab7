//! One number of the fidelity monitor, judged.

use crate::text::{duration, percent};

/// One number of the monitor beside its budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What was measured.
    pub what: String,
    /// Its value, with its unit.
    pub measured: String,
    /// What was expected, in words: `at most 100 µs`.
    pub budget: String,
    /// Whether it is more.
    pub exceeded: bool,
    /// By what the TDF would have to be multiplied to keep the budget; none when no TDF helps.
    pub(crate) tdf_factor: Option<f64>,
    pub(crate) advice: String,
}

impl Check {
    /// A number that no verdict depends on.
    pub(crate) fn told(what: String, measured: String, budget: String) -> Check {
        Check { what, measured, budget, exceeded: false, tdf_factor: None, advice: String::new() }
    }

    pub(crate) fn count(what: String, count: u64, advice: &str) -> Check {
        let (measured, budget) = (count.to_string(), "none".to_owned());
        Check { what, measured, budget, exceeded: count > 0, tdf_factor: None, advice: advice.into() }
    }

    pub(crate) fn missing(what: String) -> Check {
        let (measured, budget) = ("not measured".to_owned(), "a value".to_owned());
        let advice = "the monitor failed: see the warnings in the journal".to_owned();
        Check { what, measured, budget, exceeded: true, tdf_factor: None, advice }
    }

    pub(crate) fn lateness(what: String, measured_ns: u64, budget_ns: u64) -> Check {
        Check {
            what,
            measured: duration(measured_ns as f64),
            budget: at_most(duration(budget_ns as f64)),
            exceeded: measured_ns > budget_ns,
            tdf_factor: Some(1.25 * measured_ns as f64 / budget_ns.max(1) as f64),
            advice: String::new(),
        }
    }

    pub(crate) fn share(what: String, measured: f64, budget: f64, tdf_factor: Option<f64>, advice: &str) -> Check {
        let exceeded = measured > budget;
        Check {
            what,
            measured: percent(measured),
            budget: at_most(percent(budget)),
            exceeded,
            tdf_factor,
            advice: advice.into(),
        }
    }
}

pub(crate) fn at_most(budget: String) -> String {
    format!("at most {budget}")
}
