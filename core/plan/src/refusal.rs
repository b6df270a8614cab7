//! Why there is no plan: a fault in the command (exit 2) or a host that can't (exit 3).

use std::fmt;

use diecast_core_experiment::{Experiment, Mode, Pos, SpeedPpm};
use diecast_core_vtime::Tdf;
use serde::Serialize;
use thiserror::Error;

use crate::options::{NODE_CORES_MAX, Scale};
use crate::ratio::Ratio;
use crate::render::bytes;

/// A refusal: what is needed and what is there, where the catalog says so, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What is wrong.
    pub reason: Box<Reason>,
    /// The catalog's line that asks for it, if one does.
    pub place: Option<Place>,
    /// What to do.
    pub hint: String,
}

/// A place in the catalog.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Place {
    /// File name as it was given.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Reason {
    /// Diecast needs a factor.
    #[error("mode diecast needs a TDF or a scale factor, found neither")]
    NoFactor,
    /// Naive needs a scale factor.
    #[error("mode naive needs a scale factor")]
    NoScale,
    /// A TDF for a mode that runs at TDF 1.
    #[error("mode {mode} runs at TDF 1, found --tdf {tdf}")]
    TdfNotOne {
        /// The mode.
        mode: Mode,
        /// What was asked for.
        tdf: Tdf,
    },
    /// A scale factor for a mode that has none.
    #[error("mode {mode} runs at full size, found --scale {scale}")]
    ScaleNotOne {
        /// The mode.
        mode: Mode,
        /// What was asked for.
        scale: Scale,
    },
    /// The nodes would use more than 1/S of the baseline.
    #[error("TDF {tdf} is below the scale factor {scale}: the nodes would use more than 1/{scale} of the baseline")]
    TdfBelowScale {
        /// The TDF.
        tdf: Tdf,
        /// The scale factor.
        scale: Scale,
    },
    /// A grain that no meter can keep.
    #[error("a grain of {grain_ns} ns is out of range, expected 10000 to 10000000 ns")]
    GrainOutOfRange {
        /// What was asked for.
        grain_ns: u64,
    },
    /// The host has no usable CPU.
    #[error("the host has no usable CPU")]
    NoCpu,
    /// A score needs the host's.
    #[error("machine type '{machine_type}' has a score, and the score of this host is not known")]
    NoScore {
        /// Name of the machine type.
        machine_type: String,
    },
    /// A core that needs more than a real one.
    #[error("machine type '{machine_type}' has speed {speed}: at TDF {tdf} each core would need {share} real cores")]
    SpeedAboveTdf {
        /// Name of the machine type.
        machine_type: String,
        /// Its speed.
        speed: SpeedPpm,
        /// The TDF.
        tdf: Tdf,
        /// speed/TDF.
        share: Ratio,
    },
    /// More cores in one node than the host has.
    #[error(
        "machine type '{machine_type}' has {cores} cores, each needs a CPU of its own and the host has {cpus} to use"
    )]
    TooManyCores {
        /// Name of the machine type.
        machine_type: String,
        /// Its cores.
        cores: u32,
        /// CPUs of the host.
        cpus: usize,
    },
    /// More cores in one node than a ledger has.
    #[error("machine type '{machine_type}' has {cores} cores, and a node's ledger has room for {NODE_CORES_MAX}")]
    MoreThanLedger {
        /// Name of the machine type.
        machine_type: String,
        /// Its cores.
        cores: u32,
    },
    /// Native runs at the host's own speed only.
    #[error("machine type '{machine_type}' has speed {speed}, and mode native runs at speed 1.00 only")]
    NativeSpeed {
        /// Name of the machine type.
        machine_type: String,
        /// Its speed.
        speed: SpeedPpm,
    },
    /// Native needs a CPU per core.
    #[error("mode native gives each core a CPU of its own: {cores} are needed, the host has {cpus} to use")]
    NativeCores {
        /// Cores of all nodes.
        cores: u64,
        /// CPUs of the host.
        cpus: usize,
    },
    /// A CPU would be overloaded.
    #[error(
        "CPU {cpu} would carry {needed} of a core for {nodes}, where at most {limit} is for nodes; \
         all nodes together need {total} of the host's {cpus} cores"
    )]
    TooMuchCpu {
        /// The CPU.
        cpu: u32,
        /// Sum of the shares on it.
        needed: Ratio,
        /// The nodes on it.
        nodes: String,
        /// What may be used.
        limit: Ratio,
        /// Sum over all CPUs.
        total: Ratio,
        /// CPUs of the host.
        cpus: usize,
    },
    /// Not enough memory.
    #[error("the nodes need {} of memory, the host has {} for them", bytes(*needed_bytes), bytes(*there_bytes))]
    TooMuchMemory {
        /// Sum of the limits.
        needed_bytes: u64,
        /// What the host has.
        there_bytes: u64,
    },
    /// A share below what the kernel can enforce.
    #[error("node '{node}' would get {share} of a CPU, below the {least} that a CFS quota can enforce")]
    QuotaTooSmall {
        /// The node.
        node: String,
        /// cores * speed / S.
        share: Ratio,
        /// The kernel's smallest quota over its longest period.
        least: Ratio,
    },
    /// The network of the catalog can't be emulated.
    #[error("the network can't be emulated: {0}")]
    Net(String),
}

impl Reason {
    /// 2 when the command is at fault, 3 when the host can't.
    pub const fn exit_status(&self) -> u8 {
        match self {
            Reason::NoFactor
            | Reason::NoScale
            | Reason::TdfNotOne { .. }
            | Reason::ScaleNotOne { .. }
            | Reason::TdfBelowScale { .. }
            | Reason::GrainOutOfRange { .. } => 2,
            _ => 3,
        }
    }
}

impl Refusal {
    /// A refusal that no line of the catalog is to blame for: a fault of the command or a host without CPUs.
    pub(crate) fn elsewhere(reason: Reason, hint: impl Into<String>) -> Refusal {
        Refusal { reason: Box::new(reason), place: None, hint: hint.into() }
    }

    /// A refusal of what a line of the catalog asks for.
    pub(crate) fn at(experiment: &Experiment, at: Pos, reason: Reason, hint: impl Into<String>) -> Refusal {
        let place = Place { file: experiment.file.clone(), line: at.line, column: at.column };
        Refusal { reason: Box::new(reason), place: Some(place), hint: hint.into() }
    }

    /// 2 when the command is at fault, 3 when the host can't.
    pub const fn exit_status(&self) -> u8 {
        self.reason.exit_status()
    }
}

impl fmt::Display for Refusal {
    /// `file:line:column: message`, and a second line `  hint: …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Place { file, line, column }) = &self.place {
            write!(f, "{file}:{line}:{column}: ")?;
        }
        write!(f, "{}\n  hint: {}", self.reason, self.hint)
    }
}

impl std::error::Error for Refusal {}
