//! What a plan is made from besides the catalog: the mode, the factors and the host.

use std::fmt;
use std::str::FromStr;

use diecast_core_experiment::{Mode, SpeedPpm};
use diecast_core_vtime::Tdf;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ratio::Ratio;

/// Grain of the CPU meter, real CPU time between two hits, where it is what bounds the error of a latency.
pub const GRAIN_NS_DEFAULT: u64 = 100_000;
/// Grain where packets carry their senders' debt: latencies over the network are right below it. Also of a single command
/// that may take most of the host.
pub const GRAIN_NS_WITH_DEBT: u64 = 500_000;

/// Most cores of a node that is metered.
pub const NODE_CORES_MAX: u32 = 64;

/// Scale factor S: the host's budget is 1/S of what the baseline used. A rational from 1/100 to 1000.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    num: u32,
    den: u32,
}

/// A text that is no scale factor.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{0}' is no scale factor, expected a number from 1/100 to 1000 such as 10, 2.5 or 3/2")]
pub struct ScaleError(String);

impl Scale {
    /// Its value.
    pub const fn ratio(self) -> Ratio {
        Ratio::new(self.num as u128, self.den as u128)
    }

    /// The TDF of the same value: the default when only a scale factor is given.
    ///
    /// # Panics
    /// Never: both have the same range and the same terms.
    pub fn as_tdf(self) -> Tdf {
        Tdf::new(u64::from(self.num), u64::from(self.den)).expect("a scale factor has the range of a TDF")
    }
}

impl From<Tdf> for Scale {
    /// The scale factor of the same value: the default when only a TDF is given.
    fn from(tdf: Tdf) -> Scale {
        Scale { num: tdf.num(), den: tdf.den() }
    }
}

impl FromStr for Scale {
    type Err = ScaleError;
    fn from_str(text: &str) -> Result<Scale, ScaleError> {
        text.parse::<Tdf>().map(Scale::from).map_err(|_| ScaleError(text.to_owned()))
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_tdf().fmt(f)
    }
}

/// Calls that carry time after which a place in a program jumps to the blob. Changing it takes some 30 µs and two pages
/// of memory, a trapped call 2 µs more than a jump: programs that are short take the same with 1, 16 and 64.
pub const CALL_SITES_DEFAULT: u32 = 1;
/// The most that can be counted.
pub const CALL_SITES_MAX: u32 = 60_000;

/// What rdtsc tells programs in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tsc {
    /// The processor's counter: real time, at native speed.
    #[default]
    Native,
    /// One in virtual time; each reading traps.
    Trap,
}

impl FromStr for Tsc {
    type Err = TscError;

    fn from_str(text: &str) -> Result<Tsc, TscError> {
        match text {
            "native" => Ok(Tsc::Native),
            "trap" => Ok(Tsc::Trap),
            _ => Err(TscError(text.to_owned())),
        }
    }
}

/// A word that is no [`Tsc`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{0}' is neither native nor trap")]
pub struct TscError(String);

/// What the caller wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanOptions {
    /// How to run.
    pub mode: Mode,
    /// `--tdf`; only diecast takes one.
    pub tdf: Option<Tdf>,
    /// `--scale`; diecast and naive take one.
    pub scale: Option<Scale>,
    /// `--speed`: by what the speed of each node that generates no load is multiplied.
    pub speed: SpeedPpm,
    /// Grain of the meter, real nanoseconds of CPU time.
    pub grain_ns: u64,
    /// What rdtsc tells; only modes with an envelope can trap it.
    pub tsc: Tsc,
    /// Calls that carry time after which a place in a program jumps to the blob instead of being trapped; 0 = never.
    pub call_sites: u32,
    /// How much of each CPU the nodes may take together; the rest is for emulator, meter and supervisor.
    pub core_limit: Ratio,
}

impl PlanOptions {
    /// A mode with the default grain and 0.85 of each CPU for nodes.
    pub const fn new(mode: Mode) -> PlanOptions {
        PlanOptions {
            mode,
            tdf: None,
            scale: None,
            speed: SpeedPpm::ONE,
            grain_ns: GRAIN_NS_DEFAULT,
            tsc: Tsc::Native,
            call_sites: CALL_SITES_DEFAULT,
            core_limit: Ratio::new(85, 100),
        }
    }
}

/// What the host offers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostFacts {
    /// CPUs that may be used, as the kernel numbers them, ascending.
    pub cpus: Vec<u32>,
    /// Memory that nodes may use together.
    pub memory_bytes: u64,
    /// Score of one core in thousandths; measured only for catalogs that have scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_milli: Option<u64>,
    /// What a hit of the meter costs, real CPU ns; measured only for a plan that is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_cost_ns: Option<u64>,
}
