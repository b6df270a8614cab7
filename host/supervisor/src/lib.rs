//! Frames as Linux processes live in them: the blob's image, the memory it shares, every exec, every meter.

mod dead_slots;
mod descriptors;
mod exec;
mod frame;
pub mod image;
mod interrupts;
mod lend;
mod load;
mod meters;
mod monitor;
mod node_clock;
mod pace;
pub mod probe;
mod socket_times;
mod steps;
mod stopped;
mod stretch;
mod supervisor;
mod timer_fds;
mod traced;

pub use dead_slots::DeadSlots;
pub use exec::ExecError;
pub use frame::{CpuConfig, FRAME_SLACK_NS, LabFrame, Members, NodeFrame, SPEED_ONE_PPM, Usage};
pub use interrupts::{INTERRUPTS_NEED, interrupt_cost_ns};
pub use meters::{HitsFrom, Meters, PerfEvents};
pub use monitor::{Monitor, OnTheWay, Unmetered, Window};
pub use node_clock::{ClockChange, ClockError, ClockState};
pub use pace::{PaceError, Standing};
pub use socket_times::{HeldSocket, SocketTimes, sockets_of};
pub use stretch::Stretch;
pub use supervisor::{Counts, Supervisor};

use diecast_core_abi::{BLOB_ADDR, BLOB_LEN_MAX, TRAP_MAGIC};

/// The seccomp filter that every process of a frame carries, as bytes.
pub fn filter() -> Vec<u8> {
    diecast_core_syscalls::filter_bytes((BLOB_ADDR, BLOB_ADDR + BLOB_LEN_MAX - 1), TRAP_MAGIC)
}
