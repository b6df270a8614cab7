//! A run in one value, and how it is loaded from a run directory.
//!
//! A run directory holds
//!
//! | file | content |
//! |---|---|
//! | `run.json` | [`RunSummary`]: header and summary |
//! | `journal.jsonl` | the journal |
//! | `plan.json` | what ran where |
//! | `metrics.json` | the metrics, as in the summary |
//! | `samples/<metric>.<node>.bin` | raw samples |
//! | `logs/<node>.<program>.out`, `.err` | what programs printed |

use std::collections::BTreeMap;
use std::io;

use diecast_core_journal::metrics::{MetricError, from_sample_bytes};
use diecast_core_journal::{
    Header, JOURNAL_FILE, Journal, JournalError, MetricData, MetricValue, NetworkChange, NicFaults, NodeSample,
    Outcome, PhaseChange, PipesSample, Record, Verdict, read,
};
use diecast_core_vtime::VirtNs;
use serde::{Deserialize, Serialize};

use crate::fidelity::{Budgets, Fidelity, measured_window};
use crate::pipes::{PipeUse, network_changes, pipe_uses};

/// The summary's name in a run directory.
pub const SUMMARY_FILE: &str = "run.json";
/// The metrics' name in a run directory.
pub const METRICS_FILE: &str = "metrics.json";
/// The plan's name in a run directory.
pub const PLAN_FILE: &str = "plan.json";

/// Name of a node's raw samples of a metric in the run directory.
pub fn samples_file(metric: &str, node: &str) -> String {
    format!("samples/{metric}.{node}.bin")
}

/// Everything of a run that a comparison needs except raw samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSummary {
    /// What ran, where and how.
    pub header: Header,
    /// How it ended; none when it was killed.
    pub outcome: Option<Outcome>,
    /// Whether its numbers may be believed.
    pub verdict: Verdict,
    /// The metrics.
    pub metrics: Vec<MetricValue>,
    /// What each node used in the measured phase, in the header's order.
    pub nodes: Vec<NodeUse>,
    /// What each pipe did in the measured phase, in the plan's order; those without a packet are left out.
    pub pipes: Vec<PipeUse>,
    /// What was changed in the network while the lab ran.
    pub network_changes: Vec<NetworkChange>,
    /// What the monitor measured.
    pub fidelity: Fidelity,
    /// The phases.
    pub phases: Vec<PhaseChange>,
    /// Virtual length of the measured phase.
    pub v_measured_ns: u64,
    /// Real length of the measured phase.
    pub r_measured_ns: u64,
    /// Real length of the whole run.
    pub r_total_ns: u64,
}

/// What a node used in the measured phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeUse {
    /// The node.
    pub node: String,
    /// Virtual time between the samples that this was taken from.
    pub v_span_ns: u64,
    /// Real CPU time that the kernel counted.
    pub cpu_used_ns: u64,
    /// Real CPU time that the ledger was charged for its threads.
    pub cpu_charged_ns: u64,
    /// Real CPU time that the ledger was charged for what the kernel did for it when packets came.
    pub cpu_received_ns: u64,
    /// Share of the original machine's CPU: CPU time over `cores · speed · virtual time`. CPU time is what the ledger was
    /// charged, packets included, and where there is no ledger what the kernel counted.
    pub cpu_share: f64,
    /// The most memory that a sample saw.
    pub memory_max_bytes: u64,
    /// Bytes it sent.
    pub sent_bytes: u64,
    /// Bytes it received.
    pub received_bytes: u64,
    /// Packets it sent.
    pub sent_packets: u64,
    /// Packets it received.
    pub received_packets: u64,
    /// Packets to or from it that were dropped.
    pub dropped_packets: u64,
    /// Packets of its TAP that the emulator did not take in time.
    pub ring_dropped_packets: u64,
    /// Its NICs with which something was not right.
    pub nic_faults: Vec<NicFaults>,
}

impl RunSummary {
    /// Sums up a journal. The verdict is the journal's own, or made with these budgets where the run was killed before
    /// it could write one; a killed run is never trustworthy.
    pub fn from_journal(journal: &Journal, budgets: &Budgets) -> RunSummary {
        let records = &journal.records;
        let (v_window, r_window) = measured_window(&journal.header, records);
        let fidelity = Fidelity::from_records(&journal.header, records);
        let (outcome, verdict) = match journal.end() {
            Some(end) => (Some(end.outcome.clone()), end.verdict.clone()),
            None => (None, killed(fidelity.verdict(budgets))),
        };
        let metrics = records.iter().filter_map(|record| match record {
            Record::Metric(metric) => Some(metric.clone()),
            _ => None,
        });
        let phases: Vec<PhaseChange> = records
            .iter()
            .filter_map(|record| match record {
                Record::Phase(change) => Some(change.clone()),
                _ => None,
            })
            .collect();
        let r_end = journal.end().map(|end| end.r_ns).or(phases.last().map(|change| change.r_ns));
        RunSummary {
            header: journal.header.clone(),
            outcome,
            verdict,
            metrics: metrics.collect(),
            nodes: journal.header.nodes.iter().map(|node| node_use(node, records, v_window)).collect(),
            pipes: pipe_uses(records, v_window),
            network_changes: network_changes(records),
            fidelity,
            phases,
            v_measured_ns: v_window.1.since(v_window.0).ns(),
            r_measured_ns: r_window.1.since(r_window.0).ns(),
            r_total_ns: r_end.map_or(0, |end| end.since(journal.header.r_start_ns).ns()),
        }
    }

    /// As the text of `run.json`.
    pub fn to_json(&self) -> String {
        crate::to_json(self)
    }
}

fn killed(verdict: Verdict) -> Verdict {
    let mut reasons = verdict.reasons;
    reasons.insert(
        0,
        diecast_core_journal::Reason {
            what: "end of the run".into(),
            measured: "the journal stops before it".into(),
            budget: "a last record".into(),
            advice: "run again; `diecast clean` removes what was left".into(),
        },
    );
    Verdict { trustworthy: false, reasons, ..verdict }
}

pub(crate) fn node_use(
    node: &diecast_core_journal::NodeFacts,
    records: &[Record],
    v_window: (VirtNs, VirtNs),
) -> NodeUse {
    let samples = || {
        records.iter().filter_map(|record| match record {
            Record::Sample(sample) if sample.node == node.name => Some(sample),
            _ => None,
        })
    };
    let inside: Vec<&NodeSample> = samples().filter(|s| v_window.0 <= s.v_ns && s.v_ns <= v_window.1).collect();
    let (Some(&within), Some(last)) = (inside.first(), inside.last()) else {
        return NodeUse { node: node.name.clone(), ..NodeUse::default() };
    };
    // One is taken right before the phase begins.
    let before = samples().rfind(|s| s.v_ns < v_window.0);
    let nearer = |s: &&NodeSample| v_window.0.since(s.v_ns) < within.v_ns.since(v_window.0);
    let first = before.filter(nearer).unwrap_or(within);
    let v_span_ns = last.v_ns.since(first.v_ns).ns();
    let cpu_used_ns = last.cpu_used_ns.saturating_sub(first.cpu_used_ns);
    let capacity_ns = f64::from(node.cores) * node.speed * v_span_ns as f64;
    let cpu_charged_ns = last.cpu_charged_ns.saturating_sub(first.cpu_charged_ns);
    let cpu_received_ns = last.cpu_received_ns.saturating_sub(first.cpu_received_ns);
    let counted_ns = if cpu_charged_ns + cpu_received_ns > 0 { cpu_charged_ns + cpu_received_ns } else { cpu_used_ns };
    NodeUse {
        node: node.name.clone(),
        v_span_ns,
        cpu_used_ns,
        cpu_charged_ns,
        cpu_received_ns,
        cpu_share: if capacity_ns > 0.0 { counted_ns as f64 / capacity_ns } else { 0.0 },
        memory_max_bytes: inside.iter().map(|sample| sample.memory_bytes).max().unwrap_or(0),
        sent_bytes: last.sent_bytes.saturating_sub(first.sent_bytes),
        received_bytes: last.received_bytes.saturating_sub(first.received_bytes),
        sent_packets: last.sent_packets.saturating_sub(first.sent_packets),
        received_packets: last.received_packets.saturating_sub(first.received_packets),
        dropped_packets: last.dropped_packets.saturating_sub(first.dropped_packets),
        ring_dropped_packets: last.ring_dropped_packets.saturating_sub(first.ring_dropped_packets),
        nic_faults: nic_faults(first, last),
    }
}

/// What happened at a node's NICs from one sample to another.
fn nic_faults(first: &NodeSample, last: &NodeSample) -> Vec<NicFaults> {
    let since = |now: &NicFaults| match first.nic_faults.iter().find(|before| before.nic == now.nic) {
        Some(before) => now.since(before),
        None => now.clone(),
    };
    last.nic_faults.iter().map(since).filter(|faults| faults.gone || faults.total() > 0).collect()
}

/// A run with its raw samples and its journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What people call it: its directory.
    pub label: String,
    /// The summary.
    pub summary: RunSummary,
    /// Metric to its raw samples, one part per node in the order of names.
    pub samples: BTreeMap<String, Vec<Vec<u64>>>,
    /// The nodes' samples over time, for plots.
    pub node_samples: Vec<NodeSample>,
    /// The pipes' samples over time, for plots.
    pub pipe_samples: Vec<PipesSample>,
}

/// Why a directory is no run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file can't be read.
    #[error("{run}: {file}: {source}")]
    Read {
        /// The run's label.
        run: String,
        /// The file in it.
        file: String,
        /// The failure.
        source: io::Error,
    },
    /// The journal is broken.
    #[error("{run}: {JOURNAL_FILE}: {source}")]
    Journal {
        /// The run's label.
        run: String,
        /// The failure.
        source: JournalError,
    },
    /// Raw samples are broken.
    #[error("{run}: {file}: {source}")]
    Samples {
        /// The run's label.
        run: String,
        /// The file in it.
        file: String,
        /// The failure.
        source: MetricError,
    },
}

/// Loads a run. `read_file` is given names within the run directory; the summary is made anew from the journal, so
/// that an old run can be reported by a newer binary, and a killed run, which has no `run.json`, all the same.
pub fn load_run(
    label: &str,
    budgets: &Budgets,
    mut read_file: impl FnMut(&str) -> io::Result<Vec<u8>>,
) -> Result<Run, LoadError> {
    let mut get =
        |file: &str| read_file(file).map_err(|source| LoadError::Read { run: label.into(), file: file.into(), source });
    let journal =
        read(get(JOURNAL_FILE)?.as_slice()).map_err(|source| LoadError::Journal { run: label.into(), source })?;
    let summary = RunSummary::from_journal(&journal, budgets);
    let mut samples = BTreeMap::new();
    for metric in &summary.metrics {
        let MetricData::Samples { files, .. } = &metric.data else { continue };
        let mut parts = Vec::new();
        for file in files.values() {
            let part = from_sample_bytes(&get(file)?).map_err(|source| LoadError::Samples {
                run: label.into(),
                file: file.into(),
                source,
            })?;
            parts.push(part);
        }
        samples.insert(metric.name.clone(), parts);
    }
    let (mut node_samples, mut pipe_samples) = (Vec::new(), Vec::new());
    for record in journal.records {
        match record {
            Record::Sample(sample) => node_samples.push(sample),
            Record::Pipes(sample) => pipe_samples.push(sample),
            _ => {}
        }
    }
    Ok(Run { label: label.into(), summary, samples, node_samples, pipe_samples })
}
