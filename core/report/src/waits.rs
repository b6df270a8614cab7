//! What threads waited for when they wanted a core, in the measured phase.

use std::collections::BTreeMap;

use diecast_core_journal::{Record, WaitCauses, Waits};
use diecast_core_vtime::VirtNs;
use serde::{Deserialize, Serialize};

/// A node's waits in the measured phase, all threads together, real time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeWaits {
    /// The node.
    pub node: String,
    /// In all.
    pub waited_ns: u64,
    /// What ran instead; none where that could not be told.
    pub causes: Option<WaitCauses>,
}

fn since(later: &WaitCauses, earlier: &WaitCauses) -> WaitCauses {
    WaitCauses {
        other_nodes_ns: later.other_nodes_ns.saturating_sub(earlier.other_nodes_ns),
        siblings_ns: later.siblings_ns.saturating_sub(earlier.siblings_ns),
        ceiling_ns: later.ceiling_ns.saturating_sub(earlier.ceiling_ns),
        diecast_ns: later.diecast_ns.saturating_sub(earlier.diecast_ns),
        others_ns: later.others_ns.saturating_sub(earlier.others_ns),
        nobody_ns: later.nobody_ns.saturating_sub(earlier.nobody_ns),
    }
}

/// From the last sums before the phase, or the first in it, to the last in it.
pub(crate) fn node_waits(records: &[Record], (begin, end): (VirtNs, VirtNs)) -> Vec<NodeWaits> {
    let mut seen: BTreeMap<&str, (&Waits, &Waits)> = BTreeMap::new();
    for record in records {
        let Record::Waits(now) = record else { continue };
        let known = seen.entry(&now.node).or_insert((now, now));
        if now.v_ns <= begin {
            *known = (now, now);
        } else if now.v_ns <= end {
            known.1 = now;
        }
    }
    let of_node = |(node, (from, to)): (&str, (&Waits, &Waits))| NodeWaits {
        node: node.to_owned(),
        waited_ns: to.waited_ns.saturating_sub(from.waited_ns),
        causes: from.causes.as_ref().zip(to.causes.as_ref()).map(|(from, to)| since(to, from)),
    };
    seen.into_iter().map(of_node).collect()
}

impl NodeWaits {
    /// The causes in the order of the table, as shares of the wait; none where they are not known.
    pub fn shares(&self) -> Option<[f64; 6]> {
        let c = self.causes?;
        let all = [c.other_nodes_ns, c.siblings_ns, c.ceiling_ns, c.diecast_ns, c.others_ns, c.nobody_ns];
        let sum = all.iter().sum::<u64>().max(1) as f64;
        Some(all.map(|ns| ns as f64 / sum))
    }
}

/// Names of the causes in the order of [`NodeWaits::shares`].
pub const CAUSES: [&str; 6] = ["other nodes", "siblings", "ceiling", "DieCast", "others on host", "nobody ran"];
