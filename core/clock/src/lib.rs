//! A node's own clocks over the lab's virtual time: an oscillator that drifts, what a daemon's discipline makes of it,
//! and the kernel's rules for both.
//!
//! Virtual time is one for a lab. A node's CLOCK_MONOTONIC_RAW counts its oscillator, which is off by its *drift*;
//! CLOCK_MONOTONIC counts the oscillator corrected by frequency, tick and slew, as adjtimex(2) sets them; and
//! CLOCK_REALTIME is MONOTONIC plus what steps have made of the difference. So a step never touches MONOTONIC.
//!
//! Instants here are plain nanoseconds: `v` on the lab's virtual clock, others on the clock of their name.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod discipline;
mod leap;
mod rates;

pub use discipline::{
    Adjusted, Discipline, MAXERROR_US, Refused, Request, STA_NANO, STA_UNSYNC, TICK_US, is_time, modes, real_fits,
};
pub use leap::{Leap, LeapState};
pub use rates::{DRIFT_MAX_PPB, LEAD_NS, NodeClock, parts_of_ppb, ppb_of_parts};
