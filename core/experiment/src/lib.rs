//! Catalog text to a typed [`Experiment`], or every fault in the text with its place.
//!
//! Text only: nothing here looks at the machine, so a catalog that is right here is right everywhere.
//!
//! * Unknown keys and keys given twice are refused, so a typing error can't be a silent default.
//! * Every quantity has a unit and is kept exactly, as a whole number of nanoseconds, bits per second, bytes
//!   or millionths.
//! * Groups become nodes, grouped links become one link per node, and every name must stand for something.
//! * Parameters are put into commands; what differs per node stays a [`Template`].
//! * Paths of files stay relative to the catalog: reading them is for those who start the run.
//!
//! ```
//! let faults = diecast_core_experiment::parse("a.yaml", "diecast: 1\nnam: x\n", &[]).unwrap_err();
//! assert_eq!(faults.last().unwrap().to_string(), "a.yaml:2:1: the catalog has no key 'nam'\n  hint: did you mean 'name'?");
//! ```
#![forbid(unsafe_code)]

mod clock;
mod diagnostic;
mod fault;
mod gateway;
mod grammar;
mod grammar_net;
mod graph;
mod metric;
mod mode;
mod model;
mod network;
mod quantity;
mod read;
mod schema;
mod template;
mod tree;

pub use clock::{Clock, DRIFT_MAX_PPB, OFFSET_MAX_NS, parse_drift, parse_offset};
pub use diagnostic::{Diagnostic, Pos};
pub use fault::{Fault, NetworkChange, NetworkNames, Part, PipeName};
pub use gateway::{Gateway, Protocol, Publish, Reach};
pub use metric::{Combine, Metric, MetricSource};
pub use mode::{Mode, ModeError};
pub use model::{
    Command, Experiment, Group, MachineType, Node, NodeFile, Parameter, ParameterValue, Program, Ready, ReadyCheck,
    SpeedPpm, Workload,
};
pub use network::{
    Burst, Codel, Discipline, FqCodel, Framing, Jitter, Link, Nic, Pipe, QueueLimit, Red, Route, Routing, Topology,
};
pub use read::faults::{ChangeWords, parse_change};
pub use schema::json_schema;
pub use template::{BUILT_IN, Template};

/// Nanoseconds of a duration as a catalog writes it: `10ms`.
pub fn duration_ns(text: &str) -> Result<u64, String> {
    quantity::DURATION.parse(text).map_err(|wrong| match wrong.hint {
        Some(hint) => format!("{} ({hint})", wrong.message),
        None => wrong.message,
    })
}

/// Reads a catalog that stands alone: one that imports a graph is refused.
///
/// `file` is only a name for messages. `overrides` are the command line's `-p name=value`; a later one wins.
/// All faults are reported at once, in the order of the text.
pub fn parse(file: &str, text: &str, overrides: &[(String, String)]) -> Result<Experiment, Vec<Diagnostic>> {
    read::parse(file, text, overrides, None)
}

/// Reads a catalog; `load` reads a file that it imports, given by its path relative to the catalog, and says why if it
/// can't.
pub fn parse_with(
    file: &str,
    text: &str,
    overrides: &[(String, String)],
    load: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Experiment, Vec<Diagnostic>> {
    read::parse(file, text, overrides, Some(load))
}
