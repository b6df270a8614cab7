//! The checks, part by part.

mod cgroup;
mod cpu;
mod envelope;
mod later;
mod network;
mod nodes;
mod speed;

use std::io;

use diecast_host_sys::process;

use crate::report::Check;

/// Makes every check.
pub(crate) fn all() -> Vec<Check> {
    let mut checks = Vec::new();
    checks.extend(envelope::all());
    checks.extend(cpu::all());
    checks.extend(cgroup::all());
    checks.extend(network::all());
    checks.extend(nodes::all());
    checks.extend(later::all());
    checks
}

/// The reason in words, and that root might have got through.
fn refused(error: &impl std::fmt::Display) -> String {
    if process::is_root() { error.to_string() } else { format!("{error} (as an ordinary user)") }
}

/// What to do about a refusal: become root, or what mends it for root.
fn root_or(fix: &str) -> String {
    if process::is_root() { fix.to_owned() } else { "run diecast as root".to_owned() }
}

/// Runs on a thread of its own, so that its scheduling, pinning and slack end with it.
fn on_thread<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let thread = std::thread::Builder::new().name("doctor".into()).spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a trial panicked")))
}
