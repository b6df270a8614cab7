//! Changes of the network while an experiment runs: as a catalog's faults, or as words of a command.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::diagnostic::Pos;
use crate::network::Pipe;

/// A change at its instant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Fault {
    /// Virtual time after the start of the workload, with which the warm-up begins.
    pub at_ns: u64,
    /// What changes.
    pub change: NetworkChange,
    /// Where it is in the text.
    pub place: Pos,
}

/// One direction of a link, by the names of its ends.
pub type PipeName = (String, String);

/// What changes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkChange {
    /// Pipes get some other parameters.
    Set {
        /// Which.
        pipes: Vec<PipeName>,
        /// What changes.
        parts: Vec<Part>,
        /// Their new values; the rest of it counts for nothing.
        values: Pipe,
    },
    /// Pipes break.
    Cut(Vec<PipeName>),
    /// Pipes work again.
    Heal(Vec<PipeName>),
    /// Pipes break and work again, several times.
    Flap {
        /// Which.
        pipes: Vec<PipeName>,
        /// How long they are cut.
        down_ns: u64,
        /// How long they work in between.
        up_ns: u64,
        /// How often.
        times: u32,
    },
    /// Nodes reach only nodes of their own side; those of no side are one side more.
    Partition(Vec<Vec<String>>),
    /// The partition ends.
    Join,
    /// Paths are searched anew without the pipes that are cut.
    Reroute,
}

/// A parameter of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// `bandwidth`.
    Bandwidth,
    /// `framing`.
    Framing,
    /// `delay`.
    Delay,
    /// `jitter`.
    Jitter,
    /// `loss`, all kinds of it.
    Loss,
    /// `duplicate`.
    Duplicate,
    /// `corrupt`.
    Corrupt,
    /// `queue`.
    Queue,
    /// `discipline`.
    Discipline,
}

impl Part {
    /// Each with its key in a catalog.
    pub const NAMES: [(&'static str, Part); 9] = [
        ("bandwidth", Part::Bandwidth),
        ("framing", Part::Framing),
        ("delay", Part::Delay),
        ("jitter", Part::Jitter),
        ("loss", Part::Loss),
        ("duplicate", Part::Duplicate),
        ("corrupt", Part::Corrupt),
        ("queue", Part::Queue),
        ("discipline", Part::Discipline),
    ];
}

/// What the names in a change can stand for.
#[derive(Clone, Debug, Default)]
pub struct NetworkNames {
    /// Group, node, switch or router to the ends of links that it stands for.
    stands_for: BTreeMap<String, Vec<String>>,
    /// Groups and nodes.
    nodes: BTreeSet<String>,
    /// Both directions of every link.
    pipes: BTreeSet<PipeName>,
}

impl NetworkNames {
    /// From the nodes, each with its group, and the pipes.
    pub fn new<'a>(
        nodes: impl IntoIterator<Item = (&'a str, &'a str)>,
        pipes: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> NetworkNames {
        let mut names = NetworkNames::default();
        for (node, group) in nodes {
            names.nodes.extend([node.to_owned(), group.to_owned()]);
            names.stands_for.insert(node.to_owned(), vec![node.to_owned()]);
            if node != group {
                names.stands_for.entry(group.to_owned()).or_default().push(node.to_owned());
            }
        }
        for (from, to) in pipes {
            for end in [from, to] {
                names.stands_for.entry(end.to_owned()).or_insert_with(|| vec![end.to_owned()]);
            }
            names.pipes.insert((from.to_owned(), to.to_owned()));
        }
        names
    }

    pub(crate) fn known(&self) -> Vec<&str> {
        self.stands_for.keys().map(String::as_str).collect()
    }

    /// What a name stands for: one or several ends of links.
    pub(crate) fn ends(&self, name: &str) -> Option<&[String]> {
        self.stands_for.get(name).map(Vec::as_slice)
    }

    /// The nodes of a group, or one node.
    pub fn nodes(&self, name: &str) -> Option<&[String]> {
        self.nodes.contains(name).then(|| self.ends(name)).flatten()
    }

    /// Groups and nodes.
    pub(crate) fn known_nodes(&self) -> Vec<&str> {
        self.nodes.iter().map(String::as_str).collect()
    }

    /// The pipes from any of these ends to any of those, or from them to anywhere; with the ways back unless `one_way`.
    pub(crate) fn pipes(&self, from: &[String], to: Option<&[String]>, one_way: bool) -> Vec<PipeName> {
        let leads = |a: &String, b: &String| from.contains(a) && to.is_none_or(|to| to.contains(b));
        self.pipes.iter().filter(|(a, b)| leads(a, b) || (!one_way && leads(b, a))).cloned().collect()
    }

    pub(crate) fn neighbours(&self, of: &[String]) -> Vec<&str> {
        let all = self.pipes.iter().filter(|(a, _)| of.contains(a)).map(|(_, b)| b.as_str());
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl std::fmt::Display for NetworkChange {
    /// In the words of `diecast link`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NetworkChange::Set { pipes, parts, .. } => {
                let parts: Vec<&str> =
                    Part::NAMES.iter().filter(|(_, part)| parts.contains(part)).map(|(name, _)| *name).collect();
                write!(f, "set {} of {}", parts.join(", "), list(pipes))
            }
            NetworkChange::Cut(pipes) => write!(f, "cut {}", list(pipes)),
            NetworkChange::Heal(pipes) => write!(f, "heal {}", list(pipes)),
            NetworkChange::Flap { pipes, down_ns, up_ns, times } => {
                let (down, up) = (*down_ns as f64 / 1e6, *up_ns as f64 / 1e6);
                write!(f, "flap {}: {times} times {down} ms down, {up} ms up", list(pipes))
            }
            NetworkChange::Partition(sides) => {
                let sides: Vec<String> = sides.iter().map(|side| side.join(",")).collect();
                write!(f, "partition {}", sides.join(" | "))
            }
            NetworkChange::Join => f.write_str("join"),
            NetworkChange::Reroute => f.write_str("reroute"),
        }
    }
}

/// `a:b, b:a`, and how many more.
fn list(pipes: &[PipeName]) -> String {
    const SHOWN: usize = 6;
    let names: Vec<String> = pipes.iter().take(SHOWN).map(|(a, b)| format!("{a}:{b}")).collect();
    let more = pipes.len().saturating_sub(SHOWN);
    if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") }
}
