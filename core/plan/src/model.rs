//! A plan: everything that a run needs to know, as data.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use diecast_core_experiment::{Clock, Metric, Mode, Protocol, Ready, SpeedPpm};
use diecast_core_net::{Change, Mac, NetSpec};
use diecast_core_vtime::{RealSpan, Tdf, VirtSpan};
use serde::{Serialize, Serializer};

use crate::options::{HostFacts, Scale, Tsc};
use crate::ratio::Ratio;

/// The host, as nodes name it that may reach one of its services.
pub const HOST_NAME: &str = "host.diecast";
/// Its address in such a node, on the node's own loopback device: nothing that goes there crosses the network.
pub const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 99);

/// What runs where. Its `Display` is the table that `diecast plan` prints.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Plan {
    /// Name of the experiment, and of the lab unless the caller gives it another.
    pub lab: String,
    /// The catalog's file name as it was given; paths of files are relative to its folder.
    pub catalog: String,
    /// How it runs.
    pub mode: Mode,
    /// Real seconds per virtual second.
    #[serde(serialize_with = "as_text")]
    pub tdf: Tdf,
    /// The scale factor; modes at full size have none.
    #[serde(serialize_with = "as_optional_text")]
    pub scale: Option<Scale>,
    /// By what the speeds of nodes that generate no load were multiplied.
    #[serde(serialize_with = "as_text")]
    pub speed: SpeedPpm,
    /// Seed of every random decision: the catalog's parameter `seed` if it is a whole number, else 1.
    pub seed: u64,
    /// Grain of the meter, real CPU time.
    pub grain_ns: u64,
    /// What rdtsc tells programs.
    pub tsc: Tsc,
    /// Calls that carry time after which a place in a program jumps to the blob instead of being trapped; 0 = never.
    pub call_sites: u32,
    /// The nodes, in the catalog's order.
    pub nodes: Vec<PlannedNode>,
    /// The load.
    pub workload: PlannedWorkload,
    /// What changes in the network while the load runs, in the order of time.
    pub faults: Vec<PlannedFault>,
    /// Ways between nodes and the host, outside the frame.
    pub gateway: Vec<PlannedWay>,
    /// What is measured.
    pub metrics: Vec<Metric>,
    /// The network, in virtual time; its nodes are in the order of `nodes`.
    pub net: NetSpec,
    /// What the nodes take of each CPU of the host.
    pub cpus: Vec<CpuLoad>,
    /// How much of each CPU they may take.
    pub core_limit: Ratio,
    /// Sum of the nodes' memory limits.
    pub memory_bytes: u64,
    /// The host that the plan is for.
    pub host: HostFacts,
    /// Virtual time of warm-up and measuring.
    #[serde(serialize_with = "virt_ns")]
    pub virtual_ns: VirtSpan,
    /// Real time of warm-up and measuring; start-up comes before it.
    #[serde(serialize_with = "real_ns")]
    pub expected_real_ns: RealSpan,
    /// What a reader should know beyond the tables.
    pub notes: Vec<String>,
}

/// One node.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlannedNode {
    /// Host name.
    pub name: String,
    /// Its group.
    pub group: String,
    /// Its machine type.
    pub machine_type: String,
    /// Load or server.
    pub role: Role,
    /// Virtual CPUs.
    pub cores: u32,
    /// Speed of each.
    pub speed_ppm: SpeedPpm,
    /// What each virtual CPU gets of a real one.
    pub share: Ratio,
    /// The CPUs it is pinned to, one per core, the same in every mode.
    pub cpus: Vec<u32>,
    /// Memory limit.
    pub memory_bytes: u64,
    /// Address of its NIC.
    pub mac: Mac,
    /// IPv4 address.
    pub ipv4: Ipv4Addr,
    /// IPv6 address.
    pub ipv6: Ipv6Addr,
    /// Positions of its NICs in the network: eth0, whose addresses these are, then eth1 and so on.
    pub nics: Vec<u32>,
    /// Whether its processes run in the frame, each with a blob.
    pub envelope: bool,
    /// Whether every thread has a CPU meter.
    pub metered: bool,
    /// CFS quota of the whole node.
    pub quota: Option<Quota>,
    /// How wrong its clock is at the start.
    #[serde(skip_serializing_if = "Clock::is_right")]
    pub clock: Clock,
    /// What serves on it, in start order.
    pub programs: Vec<PlannedProgram>,
    /// What generates load on it, started once every program is ready.
    pub load: Option<PlannedLoad>,
}

/// What a node is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Runs the workload's command.
    Load,
    /// Everything else.
    Server,
}

/// A CFS quota, for cgroup v1 (cpu.cfs_quota_us, cpu.cfs_period_us) and v2 (cpu.max) alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Quota {
    /// CPU time per period, real microseconds, for all CPUs of the node together.
    pub quota_us: u64,
    /// Period, real microseconds.
    pub period_us: u64,
    /// Why it is there.
    pub purpose: QuotaPurpose,
}

/// Why a node has a quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QuotaPurpose {
    /// Twice the share, under a meter: a healthy run never touches it.
    Ceiling,
    /// The share itself: naive mode.
    Allotment,
}

impl Quota {
    /// The text for cgroup v2's `cpu.max`.
    pub fn cpu_max(self) -> String {
        format!("{} {}", self.quota_us, self.period_us)
    }
}

/// A program on a node.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlannedProgram {
    /// Place of the program in the catalog, from 0: the start order over all nodes.
    pub order: u32,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables added to the environment.
    pub env: BTreeMap<String, String>,
    /// Working directory in the node.
    pub cwd: Option<String>,
    /// Files to put into the node first.
    pub files: Vec<PlannedFile>,
    /// How to see that it serves.
    pub ready: Option<Ready>,
    /// Line of the command in the catalog, for messages about it.
    pub line: u32,
    /// Column of the command.
    pub column: u32,
}

/// The load generator on a node.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlannedLoad {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables added to the environment.
    pub env: BTreeMap<String, String>,
    /// Working directory in the node.
    pub cwd: Option<String>,
    /// Files to put into the node first.
    pub files: Vec<PlannedFile>,
    /// Line of the command in the catalog, for messages about it.
    pub line: u32,
    /// Column of the command.
    pub column: u32,
}

/// A file of the host that a node gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PlannedFile {
    /// Absolute path in the node.
    pub path: String,
    /// Path relative to the catalog's folder.
    pub source: String,
    /// Line of the catalog, for messages about a missing file.
    pub line: u32,
    /// Column of the catalog.
    pub column: u32,
}

/// The load as a whole; its commands are in the nodes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlannedWorkload {
    /// Parameters after overrides.
    pub parameters: BTreeMap<String, String>,
    /// Names of the nodes that generate load.
    pub on: Vec<String>,
    /// Virtual time before measuring.
    #[serde(serialize_with = "virt_ns")]
    pub warm_up_ns: VirtSpan,
    /// Virtual time that is measured.
    #[serde(serialize_with = "virt_ns")]
    pub measure_ns: VirtSpan,
}

/// Changes of the network at one instant.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlannedFault {
    /// Virtual time after the start of the workload.
    #[serde(serialize_with = "virt_ns")]
    pub at_ns: VirtSpan,
    /// In words.
    pub text: String,
    /// For the emulator.
    pub changes: Vec<Change>,
}

/// A way between a node and the host that does not go through the network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PlannedWay {
    /// The node.
    pub node: String,
    /// Who begins connections.
    pub from: WayFrom,
    /// What it carries.
    pub protocol: Protocol,
    /// The end in the node.
    pub in_node: SocketAddr,
    /// The end on the host.
    pub on_host: SocketAddr,
    /// Line of the catalog, for messages about it.
    pub line: u32,
    /// Column of the catalog.
    pub column: u32,
}

/// Who begins the connections of a way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WayFrom {
    /// The node's port is published.
    Host,
    /// The node reaches a service of the host.
    Node,
}

/// `node server:80 published at 127.0.0.1:8080`
impl std::fmt::Display for PlannedWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (node, port, host) = (&self.node, self.in_node.port(), self.on_host);
        let udp = if self.protocol == Protocol::Udp { "UDP " } else { "" };
        match self.from {
            WayFrom::Host => write!(f, "node {node}'s {udp}port {port} published at {host}"),
            WayFrom::Node => write!(f, "{host} reached from node {node} as {udp}{HOST_NAME}:{port}"),
        }
    }
}

/// What the nodes take of one CPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CpuLoad {
    /// The CPU.
    pub cpu: u32,
    /// Sum of the shares pinned to it.
    pub share: Ratio,
    /// Names of the nodes pinned to it.
    pub nodes: Vec<String>,
}

impl Plan {
    /// Every program with its node, in start order.
    pub fn programs_in_start_order(&self) -> Vec<(&PlannedNode, &PlannedProgram)> {
        let mut all: Vec<_> = self.nodes.iter().flat_map(|n| n.programs.iter().map(move |p| (n, p))).collect();
        // Stable: within one entry of the catalog the nodes keep their order.
        all.sort_by_key(|(_, p)| p.order);
        all
    }

    /// Whether a pipe marks packets, from the start or by a fault: then the nodes' TCP asks for marks.
    pub fn marks(&self) -> bool {
        self.net.marks() || self.faults.iter().flat_map(|fault| &fault.changes).any(Change::marks)
    }

    /// The node with this name.
    pub fn node(&self, name: &str) -> Option<&PlannedNode> {
        self.nodes.iter().find(|n| n.name == name)
    }

    /// The table that `diecast plan` prints.
    pub fn render(&self) -> String {
        self.to_string()
    }
}

fn as_text<S: Serializer>(value: &impl std::fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn as_optional_text<S: Serializer>(value: &Option<Scale>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

fn virt_ns<S: Serializer>(value: &VirtSpan, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(value.0)
}

fn real_ns<S: Serializer>(value: &RealSpan, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(value.0)
}
