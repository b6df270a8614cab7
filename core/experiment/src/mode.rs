//! The four ways to run a catalog; plan, journal and command line share the words.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a catalog is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// TDF 1, every node in a frame with its full resources: the original system.
    Baseline,
    /// No envelope, no meter, every core of a node alone on a CPU.
    Native,
    /// Dilated: 1/TDF of each core's speed, the same machine in virtual time.
    Diecast,
    /// TDF 1, the same nodes under a CFS quota of 1/S of their CPU.
    Naive,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 4] = [Mode::Baseline, Mode::Native, Mode::Diecast, Mode::Naive];

    /// The name used in files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Baseline => "baseline",
            Mode::Native => "native",
            Mode::Diecast => "diecast",
            Mode::Naive => "naive",
        }
    }

    /// Whether every process must have the blob and every thread a meter.
    pub const fn has_envelope(self) -> bool {
        matches!(self, Mode::Baseline | Mode::Diecast)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that is no mode.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is no mode, expected baseline, native, diecast or naive")]
pub struct ModeError(String);

impl FromStr for Mode {
    type Err = ModeError;
    fn from_str(text: &str) -> Result<Mode, ModeError> {
        Mode::ALL.into_iter().find(|m| m.name() == text).ok_or_else(|| ModeError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_command_line_and_in_files_are_the_same() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
        }
        assert!("Naive".parse::<Mode>().is_err());
    }
}
