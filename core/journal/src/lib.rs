//! The journal: what a run writes as it goes, and how its metrics are taken from program output.
//!
//! A journal is a text of JSON lines, one [`Record`] a line, the first a [`Header`]. It is append-only, so a run that
//! is killed leaves everything up to its last whole line. This crate does no I/O of its own: it turns records into
//! lines and readers into records; who opens the file is not its business.
//!
//! Rules of the format:
//! * a record that a reader does not know, or a key too many, is an error with its line number: a journal is evidence;
//! * only the *last* line may be torn (no newline at its end), and the reader says so ([`Journal::torn`]);
//! * the version is checked before anything else is parsed. Raise [`JOURNAL_VERSION`] when a key is added, removed or
//!   changes its meaning; nothing else needs it.
//!
//! Virtual and real times are [`VirtNs`](diecast_core_vtime::VirtNs) and [`RealNs`](diecast_core_vtime::RealNs), in
//! the file plain numbers under keys that begin with `v_` and `r_`. CPU times are real CPU time unless their name says
//! otherwise.
#![forbid(unsafe_code)]

mod codec;
pub mod metrics;
mod pipes;
mod record;
mod stalls;
pub mod wire;

pub use diecast_core_experiment::{Combine, Mode};

pub use codec::{Journal, JournalError, hash_text, read, to_line, write_record};
pub use pipes::{ChangeSource, Drops, NetworkChange, NicFaults, PipeSample, PipesSample};
pub use record::{
    Conservation, CoreUse, End, Exit, Finding, FindingKind, Header, HostFacts, HostSpeed, HostUse, JOURNAL_FILE,
    JOURNAL_VERSION, Lateness, LatenessSource, MeterFacts, MetricData, MetricValue, NodeFacts, NodeSample, Outcome,
    Phase, PhaseChange, ProgramChange, ProgramEvent, Reason, Record, Shown, Throttling, Verdict, WaitCauses, Waits,
    examples,
};
pub use stalls::{Stall, Stalls};
