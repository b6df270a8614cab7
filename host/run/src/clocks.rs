//! The clocks of a running lab's nodes, for those who ask.

use std::sync::Arc;

use diecast_core_experiment::NetworkNames;
use diecast_core_vtime::VirtNs;
use diecast_host_supervisor::{ClockChange, LabFrame, NodeFrame};
use serde::{Deserialize, Serialize};

use crate::live::Answer;

/// The words of `diecast clock`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClockWords {
    /// A node or group; all nodes when it is missing.
    pub node: Option<String>,
    /// CLOCK_REALTIME so far ahead of the lab's, ns.
    pub offset_ns: Option<i64>,
    /// CLOCK_REALTIME jumps, ns.
    pub step_ns: Option<i64>,
    /// All clocks too fast, parts per billion.
    pub drift_ppb: Option<i64>,
}

/// How a node's clock differs from the lab's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeClock {
    /// The node.
    pub node: String,
    /// CLOCK_REALTIME ahead of the lab's, ns.
    pub offset_ns: i64,
    /// The oscillator too fast, parts per billion.
    pub drift_ppb: i64,
    /// What the node's own discipline adds to that, parts per billion.
    pub frequency_ppb: i64,
    /// What its slews still have to gain, ns.
    pub slew_ns: i64,
    /// Whether the node's kernel says that somebody keeps the clock right.
    pub synchronised: bool,
}

/// All nodes that have clocks of their own.
pub struct Clocks {
    frame: Arc<LabFrame>,
    nodes: Vec<Arc<NodeFrame>>,
}

impl Clocks {
    pub fn new(frame: Arc<LabFrame>, nodes: Vec<Arc<NodeFrame>>) -> Clocks {
        Clocks { frame, nodes }
    }

    /// Changes what the words say, telling `note`, and shows the clocks that they name.
    pub fn answer(&self, words: &ClockWords, names: &NetworkNames, note: impl Fn(VirtNs, String)) -> Answer {
        let named = match &words.node {
            None => None,
            Some(name) => match names.nodes(name) {
                Some(nodes) => Some(nodes),
                None => return Answer::Faults(vec![format!("no node or group '{name}'")]),
            },
        };
        let chosen: Vec<_> = self.nodes.iter().filter(|n| named.is_none_or(|all| all.contains(&n.name))).collect();
        if chosen.is_empty() {
            return Answer::Error("nodes without an envelope have the host's clock".into());
        }
        for node in &chosen {
            for (change, text) in changes(words) {
                if let Err(e) = node.change_clock(&self.frame, change) {
                    return Answer::Faults(vec![format!("{}: {e}", node.name)]);
                }
                note(self.frame.now(), format!("clock of {}: {text}", node.name));
            }
        }
        Answer::Clocks(chosen.iter().map(|n| self.show(n)).collect())
    }

    fn show(&self, node: &NodeFrame) -> NodeClock {
        let c = node.clock(&self.frame);
        NodeClock {
            node: node.name.clone(),
            offset_ns: c.offset_ns,
            drift_ppb: c.drift_ppb,
            frequency_ppb: c.frequency_ppb,
            slew_ns: c.slew_ns,
            synchronised: c.synchronised,
        }
    }
}

fn changes(words: &ClockWords) -> impl Iterator<Item = (ClockChange, String)> {
    let ms = |ns: i64| ns as f64 / 1e6;
    let offset = words.offset_ns.map(|ns| (ClockChange::Offset(ns), format!("offset {:+} ms", ms(ns))));
    let step = words.step_ns.map(|ns| (ClockChange::Step(ns), format!("step {:+} ms", ms(ns))));
    let drift = words.drift_ppb.map(|ppb| (ClockChange::Drift(ppb), format!("drift {:+} ppm", ppb as f64 / 1e3)));
    offset.into_iter().chain(step).chain(drift)
}
