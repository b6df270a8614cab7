//! What goes wrong at the nodes' NICs, by cause: into samples, and into findings once the lab is over.

use diecast_core_journal::{FindingKind, NicFaults};
use diecast_core_net::NodeCounters;
use diecast_host_net::{EmulatorStats, nic_device};

/// The faults of a node's NICs since its start, where there are any. `nics` are its places in the network, eth0 first.
pub fn faults(nics: &[u32], stats: &EmulatorStats) -> Vec<NicFaults> {
    let of = |(nic, ix): (usize, &u32)| {
        let at = *ix as usize;
        let not_taken = stats.write_errors.get(at).copied().unwrap_or(0);
        let gone = stats.taps_lost.get(at).copied().unwrap_or(false);
        Some(faults_of(nic, stats.nodes.get(at)?, not_taken, gone))
    };
    nics.iter().enumerate().filter_map(of).filter(|f| f.gone || f.total() > 0).collect()
}

fn faults_of(nic: usize, c: &NodeCounters, not_taken: u64, gone: bool) -> NicFaults {
    NicFaults {
        nic: nic_device(nic),
        malformed: c.dropped_malformed,
        oversize: c.dropped_oversize,
        spoofed: c.dropped_spoofed,
        unknown_destination: c.dropped_unknown_destination,
        partition: c.dropped_partition,
        no_route: c.dropped_no_route,
        not_taken,
        gone,
    }
}

/// What a reader must know of a node's NIC: its kind, how many, in what words. What a node sends that no network would
/// carry is the node's own affair, and in the table.
pub fn findings(node: &str, faults: &NicFaults) -> Vec<(FindingKind, u64, String)> {
    let (nic, mut all) = (&faults.nic, Vec::new());
    if faults.gone {
        let text = format!("{nic} of node {node} went away while the lab ran: the node had no such network any more");
        all.push((FindingKind::NicLost, 1, text));
    }
    if faults.not_taken > 0 {
        let why = if faults.gone { "it was gone" } else { "it was down" };
        let count = faults.not_taken;
        all.push((FindingKind::Warning, count, format!("{count} frames never reached {nic} of node {node}: {why}")));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_its_own_count() {
        let counters = NodeCounters {
            dropped_malformed: 1,
            dropped_oversize: 2,
            dropped_spoofed: 4,
            dropped_unknown_destination: 8,
            dropped_partition: 16,
            dropped_no_route: 32,
            // None of these is lost.
            packets_sent: 1000,
            ignored_control: 1000,
            group_frames: 1000,
            ..NodeCounters::default()
        };
        let faults = faults_of(1, &counters, 64, false);
        assert_eq!((faults.nic.as_str(), faults.total()), ("eth1", 127));
        assert_eq!(faults.causes().map(|(count, _)| count), [1, 2, 4, 8, 16, 32, 64]);
        let earlier = faults_of(1, &NodeCounters { dropped_oversize: 2, ..NodeCounters::default() }, 60, false);
        assert_eq!(faults.since(&earlier).causes().map(|(count, _)| count), [1, 0, 4, 8, 16, 32, 4]);
    }

    #[test]
    fn a_nic_that_is_down_is_a_warning_and_one_that_is_gone_is_not_what_was_asked_for() {
        let of = |not_taken, gone| findings("db", &faults_of(0, &NodeCounters::default(), not_taken, gone));
        assert_eq!(of(0, false), []);
        let down = "3 frames never reached eth0 of node db: it was down".to_owned();
        assert_eq!(of(3, false), [(FindingKind::Warning, 3, down)]);
        let kinds: Vec<FindingKind> = of(3, true).into_iter().map(|(kind, ..)| kind).collect();
        assert_eq!(kinds, [FindingKind::NicLost, FindingKind::Warning]);
        let lies = NodeCounters { dropped_malformed: 5, ..NodeCounters::default() };
        assert_eq!(findings("db", &faults_of(0, &lies, 0, false)), [], "told in the table");
    }
}
