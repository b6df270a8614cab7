//! The network of a lab on this host: namespaces, TAP devices, sysctls, and the emulator thread between them.
//!
//! `core/net` decides when a packet leaves; this crate moves it.
//! * [`create_netns`] makes a namespace that lives as long as its descriptor.
//! * [`prepare_node`] sets its sysctls for a TDF, makes the node's TAP device and gives it its addresses.
//! * [`receive_on`] has its packets received on cores of its own.
//! * [`Way`] joins a node and the host past the emulator.
//! * [`Emulator`] holds all TAP descriptors in one real-time thread.
//!
//! All unsafe code of this crate is in `sys`.

mod capture;
mod clock;
mod egress;
mod emulator;
mod error;
mod gateway;
mod lookout;
mod netlink;
mod netns;
mod priority;
mod share;
mod stats;
mod steering;
mod surplus;
mod sys;
mod sysctl;
mod tap;
mod writers;

pub use capture::{Capture, CapturePoint, CapturedFrame, Direction};
pub use clock::{FrameClock, SharedFrame, kernel_hz, monotonic_now};
pub use egress::{EgressLedger, LARGE_KEY_BYTES, ReceiveLedger, TRAILER_BYTES, thread_of};
pub use emulator::{Emulator, EmulatorConfig, EmulatorHandle};
pub use error::HostNetError;
pub use gateway::{Way, WayCounts, WayEnd};
pub use netns::{create_netns, in_netns, netns_cookie};
pub use priority::{Scheduling, become_fifo};
pub use stats::{EmulatorStats, LatenessSummary};
pub use steering::{Backlog, receive_on};
pub use sysctl::{SysctlOutcome, SysctlRow, ask_for_marks, set_device_sysctls, set_namespace_sysctls};
pub use tap::{
    LinkCounters, NODE_DEVICE, NicKind, PreparedNode, add_nic, create_tap, link_counters, nic_device, prepare_node,
    prepare_node_with, retime_node,
};
