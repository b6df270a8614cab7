//! The conformance suite: one program, several worlds, the real one first.

mod alternatives;
mod basics;
mod cost;
mod fuzz;
mod hazards;
mod languages;
mod processes;
mod suites;
mod surfaces;
mod tracers;

/// For a test whose program is not there.
fn missing(what: &str) {
    diecast_quiet::skipped(format_args!("{what} is not installed"));
}
