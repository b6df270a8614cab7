//! The typed catalog: what the original system is, in original units.
//!
//! Lists keep the order of the text. Groups are expanded to nodes and grouped links to one link per node.
//! Nothing here depends on the machine that reads it.

use serde::Serialize;

use crate::clock::Clock;
use crate::diagnostic::{Diagnostic, Pos};
use crate::fault::Fault;
use crate::gateway::Gateway;
use crate::metric::Metric;
use crate::network::Topology;
use crate::template::Template;

/// One catalog, checked.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Experiment {
    /// The catalog's file name as it was given.
    pub file: String,
    /// Version of the grammar; 1.
    pub version: u32,
    /// Name of the experiment, usable as a host name.
    pub name: String,
    /// Machine types, in the order of the text.
    pub machine_types: Vec<MachineType>,
    /// Groups of equal nodes, in the order of the text.
    pub groups: Vec<Group>,
    /// All nodes, group by group.
    pub nodes: Vec<Node>,
    /// Switches, routers and links.
    pub topology: Topology,
    /// Programs that serve, in the order of the text.
    pub programs: Vec<Program>,
    /// What puts load on the service, and for how long.
    pub workload: Workload,
    /// What changes in the network while the workload runs, in the order of time.
    pub faults: Vec<Fault>,
    /// Ways between nodes and the host that are outside the frame.
    pub gateway: Gateway,
    /// What is measured, in the order of the text.
    pub metrics: Vec<Metric>,
}

/// Speed of a core in millionths of a core of the host that runs the experiment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct SpeedPpm(pub u64);

impl SpeedPpm {
    /// The speed of one core of the host.
    pub const ONE: SpeedPpm = SpeedPpm(1_000_000);
}

impl std::fmt::Display for SpeedPpm {
    /// A decimal with at least two places: 1.00, 0.15, 0.125.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fraction = format!("{:06}", self.0 % 1_000_000);
        let short = fraction.trim_end_matches('0');
        write!(f, "{}.{short:0<2}", self.0 / 1_000_000)
    }
}

/// A kind of machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MachineType {
    /// Its name.
    pub name: String,
    /// Virtual CPUs.
    pub cores: u32,
    /// Speed of each; of a type with a score it is known only where a plan is made.
    pub speed_ppm: SpeedPpm,
    /// Score of each in thousandths, where the text has it instead of a speed.
    pub score_milli: Option<u64>,
    /// Memory limit.
    pub memory_bytes: u64,
    /// Where the type is in the text.
    pub at: Pos,
    /// Where its speed or score is.
    pub speed_at: Pos,
    /// Where its cores are.
    pub cores_at: Pos,
    /// Where its memory is.
    pub memory_at: Pos,
}

/// A group of equal nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Name of its machine type.
    pub machine_type: String,
    /// How many nodes; their names are in `nodes`.
    pub nodes: Vec<String>,
    /// Where the group is in the text.
    pub at: Pos,
}

/// One machine of the original system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Node {
    /// Host name: the group's, with `-1`, `-2` … when the group has a `count` above 1.
    pub name: String,
    /// The group's name.
    pub group: String,
    /// Place in the group, from 1.
    pub index: u32,
    /// Name of its machine type.
    pub machine_type: String,
    /// How wrong its clock is at the start.
    pub clock: Clock,
}

/// A program with the nodes that it runs on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Program {
    /// Names of the nodes, one instance on each.
    pub on: Vec<String>,
    /// The command.
    pub command: Command,
    /// How to see that it is ready to serve; without one it counts as ready once started.
    pub ready: Option<Ready>,
    /// Where the program is in the text.
    pub at: Pos,
}

/// What is executed on a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Command {
    /// Program and arguments, at least one word.
    pub argv: Vec<Template>,
    /// Files to put into the node first.
    pub files: Vec<NodeFile>,
    /// Variables added to the node's environment.
    pub env: Vec<(String, Template)>,
    /// Working directory in the node.
    pub cwd: Option<String>,
    /// Where the command is in the text.
    pub at: Pos,
}

/// A file of the host that a node gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NodeFile {
    /// Absolute path in the node.
    pub path: String,
    /// Path of the host's file, relative to the catalog.
    pub source: String,
    /// Where the entry is in the text.
    pub at: Pos,
}

/// A readiness check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Ready {
    /// What to look at.
    pub check: ReadyCheck,
    /// Virtual time after the program's start within which it must succeed.
    pub within_ns: u64,
}

/// What a readiness check looks at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadyCheck {
    /// The port accepts a TCP connection.
    Tcp {
        /// Port on the node.
        port: u16,
    },
    /// A GET request is answered with a status from 200 to 399.
    Http {
        /// Port on the node.
        port: u16,
        /// Path with its leading slash.
        path: String,
    },
    /// A line of the program's output contains the text.
    Log {
        /// Plain text, no pattern.
        text: String,
    },
}

/// The load.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Workload {
    /// Parameters after command-line overrides, in the order of the text.
    pub parameters: Vec<Parameter>,
    /// Virtual time before measuring.
    pub warm_up_ns: u64,
    /// Virtual time that is measured.
    pub measure_ns: u64,
    /// Names of the nodes that generate load.
    pub on: Vec<String>,
    /// What runs on each of them.
    pub command: Command,
}

/// A named value that commands use as `${name}`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// The text that replaces `${name}`, exactly as it was written.
    pub text: String,
    /// What the text means.
    pub value: ParameterValue,
    /// Set with `-p`.
    pub overridden: bool,
    /// Where it is in the text.
    pub at: Pos,
}

/// What a parameter's text means. An override must mean the same kind of thing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterValue {
    /// A whole number.
    Integer(u64),
    /// A rate; events per day, which is exact for every unit.
    RatePerDay(u64),
    /// A duration.
    DurationNs(u64),
    /// A bandwidth.
    BandwidthBps(u64),
    /// A size.
    SizeBytes(u64),
    /// A share in millionths.
    SharePpm(u64),
    /// Anything else.
    Text,
}

impl Experiment {
    /// The machine type of a node.
    ///
    /// # Panics
    /// If the node is not of this experiment.
    pub fn machine_type_of(&self, node: &Node) -> &MachineType {
        let found = self.machine_types.iter().find(|m| m.name == node.machine_type);
        found.expect("parse checked that every node's machine type exists")
    }

    /// The node with this name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.name == name)
    }

    /// The parameter with this name.
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.workload.parameters.iter().find(|p| p.name == name)
    }

    /// Whether the workload's command runs on this node.
    pub fn generates_load(&self, node: &str) -> bool {
        self.workload.on.iter().any(|n| n == node)
    }

    /// A fault at a place of this catalog that only shows once more than the text is known.
    pub fn diagnostic(&self, at: Pos, message: impl Into<String>, hint: Option<String>) -> Diagnostic {
        Diagnostic { file: self.file.clone(), line: at.line, column: at.column, message: message.into(), hint }
    }
}
