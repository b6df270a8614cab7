//! Carries things out: one command in a frame of its own, or a whole plan.
//!
//! ```text
//! Plan ── set up (namespaces, TAPs, emulator, nodes) ── start (programs, readiness) ── warm-up ── measure
//!      ── drain ── tear down (files collected) ── metrics, verdict, run.json
//! ```

mod facts;
pub mod frame;
mod host_watch;
mod lab;
mod progress;
mod ready;
mod recorder;
mod results;
mod running;
mod sysctls;

pub use facts::{default_grain_ns, host_facts, plan_facts};
pub use lab::{Ran, RunError, RunOptions, run};
pub use progress::Progress;
