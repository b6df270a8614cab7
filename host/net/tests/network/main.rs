//! The emulator on real namespaces, TAP devices and sockets. Needs root; without it each test says so and passes.
//!
//! All tests are in one program and take turns: they measure time and share two cores.

mod accuracy;
mod faults;
mod lab;
mod live;
mod offload;
mod pause;
mod priority;
mod segment;
mod steering;
