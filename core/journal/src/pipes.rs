//! Records of the network: what its pipes and NICs have seen over time, and what was changed while it ran.

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

/// What a NIC of a node sent or should have received in vain, by cause, since the node's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicFaults {
    /// Its device in the node.
    pub nic: String,
    /// Frames that it sent with a header that is cut off or with lengths that contradict each other.
    pub malformed: u64,
    /// Those longer than the MTU.
    pub oversize: u64,
    /// Those whose source MAC is not its own.
    pub spoofed: u64,
    /// Those to a MAC that no node has, or to its own.
    pub unknown_destination: u64,
    /// Those to the other side of a partition.
    pub partition: u64,
    /// Those that came to a place from which no path leads on.
    pub no_route: u64,
    /// Frames for it that the device did not take: it was down, or gone.
    pub not_taken: u64,
    /// The device went away while the lab ran.
    pub gone: bool,
}

impl NicFaults {
    /// Frames that were lost here, by all causes.
    pub fn total(&self) -> u64 {
        self.causes().iter().map(|(count, _)| count).sum()
    }

    /// How many frames for which cause, in words.
    pub fn causes(&self) -> [(u64, &'static str); 7] {
        [
            (self.malformed, "malformed"),
            (self.oversize, "longer than the MTU"),
            (self.spoofed, "from another's MAC"),
            (self.unknown_destination, "to an unknown MAC"),
            (self.partition, "across a partition"),
            (self.no_route, "without a path"),
            (self.not_taken, "not taken by its device"),
        ]
    }

    /// What happened after `earlier`.
    pub fn since(&self, earlier: &NicFaults) -> NicFaults {
        NicFaults {
            nic: self.nic.clone(),
            malformed: self.malformed.saturating_sub(earlier.malformed),
            oversize: self.oversize.saturating_sub(earlier.oversize),
            spoofed: self.spoofed.saturating_sub(earlier.spoofed),
            unknown_destination: self.unknown_destination.saturating_sub(earlier.unknown_destination),
            partition: self.partition.saturating_sub(earlier.partition),
            no_route: self.no_route.saturating_sub(earlier.no_route),
            not_taken: self.not_taken.saturating_sub(earlier.not_taken),
            gone: self.gone,
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
    /// The lab itself, which runs at a lower TDF for a moment of its warm-up.
    Probe,
}
