//! From the journals of runs to what people read: verdict, tables, comparison, HTML.
//!
//! Everything is made from the run directory's data alone, so an old run can be reported by a newer binary. This crate
//! does no I/O: [`load_run`] is given a closure that reads a file of the directory, and every renderer returns text.
//!
//! The way: a run collects records, asks [`Fidelity::verdict`] and ends its journal with it; [`RunSummary`] is
//! `run.json`; [`Comparison`] puts several [`Run`]s side by side; [`text`] and [`html`] show them.
#![forbid(unsafe_code)]

mod check;
pub mod compare;
mod conservation;
pub mod fidelity;
pub mod html;
mod pipes;
mod plot;
mod stalls;
pub mod stats;
mod summary;
pub mod text;
mod waits;

pub use check::Check;
pub use compare::{Comparison, Distrusted, Overall};
pub use fidelity::{Budgets, Fidelity};
pub use pipes::PipeUse;
pub use stalls::CoreStalls;
pub use summary::{LoadError, METRICS_FILE, NodeUse, PLAN_FILE, Run, RunSummary, SUMMARY_FILE, load_run, samples_file};
pub use waits::{CAUSES as WAIT_CAUSES, NodeWaits};

/// Indented JSON with a newline at its end.
///
/// # Panics
/// Never for the types here: their keys are text and their numbers finite.
pub fn to_json(value: &impl serde::Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("plain data");
    text.push('\n');
    text
}
