//! What was found, and the verdict that follows from it.

use serde::Serialize;

use crate::facts::HostFacts;

/// How a piece of the host is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It works.
    Ok,
    /// It works, but not as well as it might.
    Degraded,
    /// It is not there, or may not be used.
    Missing,
}

/// What is lost when a piece is [`Status::Missing`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// Nothing of today's DieCast.
    Information,
    /// Accuracy, or convenience; each run measures how much.
    Accuracy,
    /// Labs and frames run, and say that they are not trustworthy.
    Trust,
    /// Labs; `diecast frame` works.
    Labs,
    /// Everything.
    Frames,
}

/// Part of DieCast that a check is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Putting programs in a frame.
    Envelope,
    /// Giving them the CPU that their machine would have.
    Cpu,
    /// Links between nodes, and their TCP.
    Network,
    /// Container nodes.
    Nodes,
    /// Virtual machines and drives.
    Later,
}

impl Part {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Envelope => "envelope",
            Part::Cpu => "cpu",
            Part::Network => "network",
            Part::Nodes => "nodes",
            Part::Later => "later",
        }
    }
}

/// One piece of the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// What was examined.
    pub name: &'static str,
    /// The part of DieCast that stands on it.
    pub part: Part,
    /// How it is.
    pub status: Status,
    /// What its absence costs.
    pub need: Need,
    /// What is there, measured.
    pub found: String,
    /// What follows for the user; empty when all is well.
    pub consequence: String,
    /// What the user can do about it.
    pub fix: Option<String>,
}

/// A check that is being made: what it is about is known, what will be found is not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub name: &'static str,
    pub part: Part,
    pub need: Need,
}

impl Subject {
    fn is(self, status: Status, found: String, consequence: &str, fix: Option<String>) -> Check {
        let Subject { name, part, need } = self;
        Check { name, part, status, need, found, consequence: consequence.to_owned(), fix }
    }

    /// It works.
    pub fn ok(self, found: impl Into<String>) -> Check {
        self.is(Status::Ok, found.into(), "", None)
    }

    /// It works badly.
    pub fn degraded(self, found: impl Into<String>, consequence: &str, fix: impl Into<String>) -> Check {
        self.is(Status::Degraded, found.into(), consequence, some(fix.into()))
    }

    /// It is not there.
    pub fn missing(self, found: impl Into<String>, consequence: &str, fix: impl Into<String>) -> Check {
        self.is(Status::Missing, found.into(), consequence, some(fix.into()))
    }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// What this host can run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Not even one command in a frame.
    Nothing,
    /// `diecast frame`, no labs.
    Frames,
    /// `diecast run` and everything else.
    Labs,
}

/// An examined host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The machine.
    pub host: HostFacts,
    /// What it can run.
    pub verdict: Verdict,
    /// False: whatever it runs will be marked as not trustworthy.
    pub trustworthy: bool,
    /// The verdict and its reasons in one line.
    pub summary: String,
    /// Every piece, in the order of the parts.
    pub checks: Vec<Check>,
}

impl Report {
    /// Draws the verdict from the checks.
    pub fn new(host: HostFacts, checks: Vec<Check>) -> Report {
        let lost = |need: Need| -> Vec<&'static str> {
            checks.iter().filter(|c| c.status == Status::Missing && c.need == need).map(|c| c.name).collect()
        };
        let (no_frames, no_labs, no_trust) = (lost(Need::Frames), lost(Need::Labs), lost(Need::Trust));
        let verdict = match (no_frames.is_empty(), no_labs.is_empty()) {
            (false, _) => Verdict::Nothing,
            (true, false) => Verdict::Frames,
            (true, true) => Verdict::Labs,
        };
        let mut summary = match verdict {
            Verdict::Nothing => format!("nothing: no program can be put in a frame ({})", no_frames.join(", ")),
            Verdict::Frames => format!("frames only: labs miss {}", no_labs.join(", ")),
            Verdict::Labs => "this host can run labs".to_owned(),
        };
        if verdict != Verdict::Nothing && !no_trust.is_empty() {
            summary.push_str(&format!("; every run will say that it is not trustworthy ({})", no_trust.join(", ")));
        }
        let worse = checks.iter().filter(|c| {
            c.need != Need::Information
                && (c.status == Status::Degraded || c.status == Status::Missing && c.need == Need::Accuracy)
        });
        let worse: Vec<_> = worse.map(|c| c.name).collect();
        if verdict != Verdict::Nothing && !worse.is_empty() {
            summary.push_str(&format!("; not at its best: {}", worse.join(", ")));
        }
        Report { host, verdict, trustworthy: no_trust.is_empty(), summary, checks }
    }

    /// True when `diecast run` can work here.
    pub fn can_run_labs(&self) -> bool {
        self.verdict == Verdict::Labs
    }

    /// The check of this name.
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|c| c.name == name)
    }
}
