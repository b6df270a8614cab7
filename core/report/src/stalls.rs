//! For how long cores were kept from a lab in which nobody is metered, in the measured phase.

use std::collections::BTreeMap;

use diecast_core_journal::{Header, Record, Stall, Stalls};
use diecast_core_vtime::RealNs;
use serde::{Deserialize, Serialize};

/// Who had a core while nothing was seen to run on it.
const NOBODY: &str = "nobody seen";

/// When a core was somebody else's in the measured phase, for at least 100 µs each time. All times are real.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreStalls {
    /// The core.
    pub core: u32,
    /// How often.
    pub count: u64,
    /// For how long in all.
    pub r_total_ns: u64,
    /// For how long at most.
    pub r_longest_ns: u64,
    /// Who had it then.
    pub longest_by: String,
    /// For how long who had it: names of threads, and `nobody seen` where it stood still, as one that a hypervisor takes.
    pub r_by_ns: BTreeMap<String, u64>,
}

/// Every core of the nodes that was, by number; none where that was not watched. What found no room in the programs' ring counts as
/// the worst core's.
pub(crate) fn core_stalls(
    header: &Header,
    records: &[Record],
    (begin, end): (RealNs, RealNs),
) -> Option<Vec<CoreStalls>> {
    // Nodes that are pinned nowhere may run on any.
    let everywhere = header.nodes.iter().any(|node| node.host_cores.is_empty());
    let of_nodes = |core: u32| everywhere || header.nodes.iter().any(|node| node.host_cores.contains(&core));
    let looks: Vec<&Stalls> =
        records.iter().filter_map(|record| if let Record::Stalls(look) = record { Some(look) } else { None }).collect();
    let mut cores: BTreeMap<u32, CoreStalls> = BTreeMap::new();
    let mut stalls: Vec<&Stall> = looks.iter().flat_map(|look| &look.stalls).filter(|s| of_nodes(s.core)).collect();
    stalls.sort_by_key(|stall| (stall.core, stall.r_from_ns));
    // A timer may be late while somebody is seen to have the core.
    let (mut core_before, mut until) = (0, begin);
    for stall in stalls {
        if stall.core != core_before {
            (core_before, until) = (stall.core, begin);
        }
        let ns = stall.r_to_ns.min(end).since(stall.r_from_ns.max(until)).ns();
        until = until.max(stall.r_to_ns);
        if ns == 0 {
            continue;
        }
        let by = stall.by.as_deref().unwrap_or(NOBODY);
        let core = cores.entry(stall.core).or_insert_with(|| CoreStalls { core: stall.core, ..CoreStalls::default() });
        core.count += 1;
        core.r_total_ns += ns;
        *core.r_by_ns.entry(by.to_owned()).or_default() += ns;
        if ns > core.r_longest_ns {
            (core.r_longest_ns, core.longest_by) = (ns, by.to_owned());
        }
    }
    let lost_until = |r: RealNs| looks.iter().rfind(|look| look.r_ns <= r).map_or(0, |look| look.r_lost_ns);
    let lost_ns = lost_until(end).saturating_sub(lost_until(begin));
    if lost_ns > 0 {
        let worst = cores.values().max_by_key(|core| core.r_total_ns).map(|core| core.core);
        let worst =
            worst.or_else(|| header.nodes.iter().find_map(|node| node.host_cores.first().copied())).unwrap_or(0);
        let worst = cores.entry(worst).or_insert_with(|| CoreStalls { core: worst, ..CoreStalls::default() });
        worst.r_total_ns += lost_ns;
    }
    (!looks.is_empty()).then(|| cores.into_values().collect())
}
