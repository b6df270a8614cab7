//! An open-loop HTTP/1.1 load generator, and the programs that the checks of DieCast aim it at.
//!
//! * `diecast-loadgen`: requests at seeded Poisson arrival times, latency counted from the *intended* send time, so
//!   that a slow answer delays no later request's clock (no coordinated omission).
//! * `diecast-cpuserver`: an HTTP server whose service is an amount of CPU time, not a number of loop turns.
//! * `diecast-spin`: a fixed number of loop turns with the wall and CPU time that they took.
//! * `diecast-netprobe`: datagrams at a constant rate, round trips and TCP in bulk, counted where they arrive.
//!
//! All are ordinary programs: they know nothing of frames and read the clocks that every program reads.
//! They sleep in the kernel when there is nothing to do; none of them polls.
//!
//! | module | what it holds |
//! |---|---|
//! | [`schedule`] | arrival times and paths, computed before the first request |
//! | [`response`] | how many bytes of a stream belong to one response |
//! | [`client`] | the event loop that sends and receives |
//! | [`summary`] | what is printed at the end |
//! | [`server`] | the CPU-time server |
//! | [`stages`] | its threads and processes that a request passes through |
//! | [`probe`] | what the network probe sends and counts |
//! | [`work`] | the loop that burns CPU |
//! | [`clock`] | the two clocks that are read, in nanoseconds |
//! | [`units`] | `90/s`, `5s`, `500us` on the command line |
#![forbid(unsafe_code)]

pub mod client;
pub mod clock;
pub mod probe;
pub mod response;
pub mod schedule;
pub mod server;
pub mod stages;
pub mod summary;
pub mod units;
pub mod work;
