//! Records of the network: what its pipes have seen over time, and what was changed while it ran.

use diecast_core_vtime::{RealNs, VirtNs, VirtSpan};
use serde::{Deserialize, Serialize};

use crate::wire;

/// Counters of the pipes at one instant. A pipe is listed when its counters differ from those in the record before;
/// one that was never listed has seen no packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipesSample {
    /// When, virtual.
    #[serde(with = "wire::virt_ns")]
    pub v_ns: VirtNs,
    /// Those that changed.
    pub pipes: Vec<PipeSample>,
}

/// A pipe's counters, all since the start of the lab. They only grow, except what waits now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipeSample {
    /// Its place in the plan's list of pipes.
    pub pipe: u32,
    /// Where packets enter.
    pub from: String,
    /// Where they leave.
    pub to: String,
    /// Packets that reached it.
    pub packets_in: u64,
    /// Their bytes, Ethernet header included.
    pub bytes_in: u64,
    /// Packets that it sent, lost ones included.
    pub packets_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// How long its transmitter was busy; over the time between two samples this is the utilisation.
    #[serde(with = "wire::virt_span")]
    pub v_busy_ns: VirtSpan,
    /// Packets that it dropped.
    pub dropped: Drops,
    /// Packets marked instead of dropped.
    pub marked: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets that wait now.
    pub queue_packets: u32,
    /// Their bytes.
    pub queue_bytes: u64,
    /// Most packets that ever waited.
    pub queue_packets_max: u32,
    /// Most bytes that ever waited.
    pub queue_bytes_max: u64,
}

/// Packets that a pipe dropped, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drops {
    /// The queue was full.
    pub queue_full: u64,
    /// RED or CoDel.
    pub early: u64,
    /// The loss model, after sending.
    pub loss: u64,
    /// The pipe was cut when they came, or while they waited.
    pub down: u64,
    /// The pipe was cut while they were sent.
    pub cut: u64,
}

impl Drops {
    /// All causes together.
    pub fn total(&self) -> u64 {
        self.queue_full + self.early + self.loss + self.down + self.cut
    }

    /// What was dropped after `earlier`.
    pub fn since(&self, earlier: &Drops) -> Drops {
        Drops {
            queue_full: self.queue_full.saturating_sub(earlier.queue_full),
            early: self.early.saturating_sub(earlier.early),
            loss: self.loss.saturating_sub(earlier.loss),
            down: self.down.saturating_sub(earlier.down),
            cut: self.cut.saturating_sub(earlier.cut),
        }
    }
}

/// The network was changed while the lab ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkChange {
    /// When it takes place, virtual.
    #[serde(with = "wire::virt_ns")]
    pub v_ns: VirtNs,
    /// When it was asked for, real.
    #[serde(with = "wire::real_ns")]
    pub r_ns: RealNs,
    /// Who asked.
    pub source: ChangeSource,
    /// What changes, in words.
    pub change: String,
}

/// Who asked for a change of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeSource {
    /// The catalog's faults.
    Catalog,
    /// `diecast link`.
    Command,
}
