//! Carries things out: one command in a frame of its own, or a whole plan.
//!
//! ```text
//! Plan ── set up (namespaces, TAPs, emulator, nodes) ── start (programs, readiness) ── warm-up ── measure
//!      ── drain ── tear down (files collected) ── metrics, verdict, run.json
//! ```

mod arrivals;
mod capture;
mod clocks;
mod cold;
mod cores;
mod facts;
mod family;
pub mod frame;
mod host_use;
mod host_watch;
mod kernel_times;
mod lab;
mod lateness;
mod live;
mod nics;
mod pace;
mod pipe_log;
mod progress;
mod ready;
mod recorder;
mod results;
mod running;
mod sysctls;

pub use arrivals::{ARRIVALS_FILE, ReplayError, Replayed, ReplayedPipe, replay_run};
pub use capture::{CaptureCounts, CaptureRequest};
pub use clocks::{ClockWords, NodeClock};
pub use diecast_host_supervisor::HitsFrom;
pub use diecast_host_sys::process::keep_statuses;
pub use facts::{default_grain_ns, hit_cost_ns, host_facts, kept_grain_ns, plan_facts};
pub use lab::{Ran, RunError, RunOptions, on_interrupt, run};
pub use live::{Answer, Changed, Request, When};
pub use pace::Pace;
pub use progress::Progress;
