//! When cores were somebody else's.

use diecast_core_vtime::RealNs;
use serde::{Deserialize, Serialize};

use crate::wire;

/// When cores were kept from a lab without meters, between the last look and this one. All times are real.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stalls {
    /// When.
    #[serde(with = "wire::real_ns")]
    pub r_ns: RealNs,
    /// Each for at least 100 µs, in order of its end on each core.
    pub stalls: Vec<Stall>,
    /// Those that are missing because they came faster than they were taken up: for how long in all, since the run's start.
    pub r_lost_ns: u64,
}

/// A core was kept from the lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// The core.
    pub core: u32,
    /// Since when. Without a name it may have begun up to a tick of the kernel (4 ms) earlier.
    #[serde(with = "wire::real_ns")]
    pub r_from_ns: RealNs,
    /// Until when.
    #[serde(with = "wire::real_ns")]
    pub r_to_ns: RealNs,
    /// Name of the thread that had it, neither a node's nor of `diecast`; none where the core stood still, as one that a
    /// hypervisor takes.
    pub by: Option<String>,
}
