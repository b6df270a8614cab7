//! The conformance suite: one program, several worlds, the real one first.

mod alternatives;
mod basics;
mod cost;
mod hazards;
mod languages;
mod processes;
mod suites;
mod surfaces;
