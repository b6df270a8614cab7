//! From a finished lab to files: samples of counters, metrics, lateness, the verdict.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::Counters;
use diecast_core_experiment::{Combine, Metric, MetricSource, Protocol};
use diecast_core_journal::{
    End, FindingKind, JOURNAL_FILE, MetricData, MetricValue, NicFaults, NodeSample, Outcome, Record, Throttling,
    WaitCauses, Waits, metrics,
};
use diecast_core_net::{NetSpec, NodeCounters, PipeSpec};
use diecast_core_plan::Plan;
use diecast_core_report::{Budgets, Fidelity, METRICS_FILE, RunSummary, SUMMARY_FILE, samples_file};
use diecast_core_vtime::VirtNs;
use diecast_host_egress::Egress;
use diecast_host_net::{EmulatorStats, link_counters, nic_device};
use diecast_host_supervisor::NodeFrame;

use crate::arrivals::ARRIVALS_FILE;
use crate::host_watch::{Sample, Sampler};
use crate::lab::{Lab, RunError};
use crate::recorder::Recorder;
use crate::running::{Measured, WORK_DIR};
use crate::{lateness, nics, pipe_log};

struct Sampled {
    name: String,
    cgroup: diecast_host_node::Cgroup,
    frame: Option<Arc<NodeFrame>>,
    netns: Arc<OwnedFd>,
    /// Its NICs in the network.
    nics: Vec<u32>,
    /// Pipes that begin or end at the node.
    pipes: Vec<usize>,
    has_quota: bool,
    /// Who tells what its threads wait for, and by which cookie.
    egress: Option<(Arc<Egress>, u64)>,
}

impl Sampled {
    fn waits(&self, v_ns: VirtNs) -> Option<Waits> {
        let (egress, cookie) = self.egress.as_ref()?;
        let by = egress.waits(*cookie).ok()?;
        let causes = WaitCauses {
            other_nodes_ns: by.other_nodes_ns,
            siblings_ns: by.siblings_ns,
            ceiling_ns: by.ceiling_ns,
            diecast_ns: by.diecast_ns,
            others_ns: by.others_ns,
            nobody_ns: by.nobody_ns,
        };
        Some(Waits { node: self.name.clone(), v_ns, waited_ns: by.total_ns(), causes: Some(causes) })
    }

    fn read(&self, v_ns: VirtNs, stats: &EmulatorStats) -> Option<Sample> {
        let nics = || self.nics.iter().filter_map(|&ix| stats.nodes.get(ix as usize));
        let sum = |of: fn(&NodeCounters) -> u64| nics().map(of).sum::<u64>();
        let nic_faults = nics::faults(&self.nics, stats);
        let pipes = || self.pipes.iter().filter_map(|&at| stats.pipes.get(at));
        let in_pipes: u64 = pipes().map(|p| pipe_log::drops(p).total()).sum();
        let charged = |f: &Arc<NodeFrame>| {
            let c = &f.page().counters;
            c.charged_ns.load(Relaxed) + c.charged_by_supervisor_ns.load(Relaxed)
        };
        let count =
            |of: fn(&Counters) -> &AtomicU64| self.frame.as_ref().map_or(0, |f| of(&f.page().counters).load(Relaxed));
        let received = self.frame.as_ref().map(|f| f.receiver.received()).unwrap_or_default();
        let sample = NodeSample {
            node: self.name.clone(),
            v_ns,
            cpu_charged_ns: self.frame.as_ref().map_or(0, charged),
            cpu_received_ns: received.charged_ns,
            cpu_received_cut_ns: received.cut_ns,
            cpu_used_ns: self.cgroup.cpu_usage_ns().ok()?,
            memory_bytes: self.cgroup.memory_usage().unwrap_or(0),
            sent_bytes: sum(|n| n.bytes_sent),
            sent_packets: sum(|n| n.packets_sent),
            received_bytes: sum(|n| n.bytes_received),
            received_packets: sum(|n| n.packets_received),
            dropped_packets: in_pipes + nic_faults.iter().map(NicFaults::total).sum::<u64>(),
            // What the emulator did not read is counted by the device alone.
            ring_dropped_packets: (0..self.nics.len())
                .map(|nic| link_counters(self.netns.as_fd(), &nic_device(nic)).map_or(0, |c| c.sent_dropped))
                .sum(),
            trapped_calls: count(|c| &c.traps),
            slotless_hits: count(|c| &c.no_slot),
            nic_faults,
        };
        let throttling = self.has_quota.then(|| self.cgroup.throttled().ok()).flatten().map(|t| Throttling {
            node: self.name.clone(),
            v_ns,
            periods: 0,
            throttled_periods: t.nr_throttled,
            r_throttled_ns: t.throttled_ns,
        });
        Some(Sample { node: sample, throttling, waits: self.waits(v_ns) })
    }
}

/// A reader of all nodes' counters, for the watch.
pub fn sampler(plan: &Plan, lab: &Lab) -> Sampler {
    let log = lab.pipes.clone();
    let nodes: Vec<Sampled> = (plan.nodes.iter().enumerate())
        .map(|(at, n)| Sampled {
            name: n.name.clone(),
            cgroup: lab.nodes[at].cgroup().clone(),
            frame: lab.frames[at].clone(),
            netns: lab.netns[at].clone(),
            nics: n.nics.clone(),
            pipes: pipes_of(&plan.net, &n.nics),
            has_quota: n.quota.is_some(),
            egress: lab.egress.clone().zip(lab.cookies.get(at).copied()),
        })
        .collect();
    Box::new(move || {
        let Some(net) = log.sample() else { return Vec::new() };
        nodes.iter().filter_map(|n| n.read(net.v_at, &net)).collect()
    })
}

/// Positions of the pipes that begin or end at a node.
fn pipes_of(net: &NetSpec, nics: &[u32]) -> Vec<usize> {
    let vertices: Vec<_> = nics.iter().map(|&ix| net.nodes[ix as usize].vertex).collect();
    let own = |pipe: &PipeSpec| vertices.contains(&pipe.from) || vertices.contains(&pipe.to);
    (0..net.pipes.len()).filter(|&at| own(&net.pipes[at])).collect()
}

/// Makes the directory of a run. What an earlier run left in it goes: its logs and samples would pass for this one's.
/// Nothing is touched in a directory that holds no run.
pub fn prepare(out: &Path) -> Result<(), RunError> {
    let folders = ["logs", "samples"].map(|name| out.join(name));
    let failed = |what: &str, path: &Path, e: std::io::Error| RunError::Host(format!("{what} {}: {e}", path.display()));
    if out.join(JOURNAL_FILE).exists() {
        for folder in folders.iter().filter(|folder| folder.exists()) {
            std::fs::remove_dir_all(folder).map_err(|e| failed("removing an earlier run's", folder, e))?;
        }
        for file in
            [SUMMARY_FILE, METRICS_FILE, ARRIVALS_FILE].map(|name| out.join(name)).iter().filter(|file| file.exists())
        {
            std::fs::remove_file(file).map_err(|e| failed("removing an earlier run's", file, e))?;
        }
    }
    for folder in &folders {
        std::fs::create_dir_all(folder).map_err(|e| failed("making the results' directory", folder, e))?;
    }
    Ok(())
}

/// Writes lateness, findings and metrics to the journal. A metric that can't be found fails the experiment.
pub fn collect(plan: &Plan, lab: &Lab, out: &Path, measured: &Measured, mut outcome: Outcome) -> Outcome {
    // Of a run that was re-timed: no lateness is told too small.
    let tdf = lab.live.world.lowest_tdf();
    if let (Some(before), Some(after)) = (&measured.emulator_before, &measured.emulator_after) {
        lab.journal.write(Record::Lateness(lateness::of_emulator(tdf, before, after)));
        if let diecast_host_net::Scheduling::Normal { reason } = &after.scheduling {
            lab.journal.finding(
                FindingKind::MissingFeature,
                None,
                1,
                format!("the emulator runs at normal priority: {reason}"),
            );
        }
    }
    if let (Some(before), Some(after)) = (&measured.emulator_before, &measured.emulator_after) {
        let count = after.without_trailer - before.without_trailer;
        if count > 0 {
            let text = format!("{count} frames came without their sender's CPU time, which its threads paid for later");
            lab.journal.finding(FindingKind::Warning, None, count, text);
        }
    }
    let unheard = lab.egress.as_ref().map_or(0, |egress| egress.lost_handed());
    if unheard > 0 {
        let text = format!(
            "{unheard} times a thread handed work on, or ended a burst of it, and was not heard: nobody was free to listen"
        );
        lab.journal.finding(FindingKind::Warning, None, unheard, text);
    }
    let lost = lab.backlog.dropped();
    if lost > 0 {
        let text = format!("{lost} frames were lost on cores that had net.core.netdev_max_backlog waiting already");
        lab.journal.finding(FindingKind::Warning, None, lost, text);
    }
    if let Some(after) = &measured.emulator_after {
        for node in &plan.nodes {
            let found = nics::faults(&node.nics, after).into_iter().flat_map(|f| nics::findings(&node.name, &f));
            found.for_each(|(kind, count, text)| lab.journal.finding(kind, Some(&node.name), count, text));
        }
    }
    for (name, before, after) in &measured.ledgers {
        lab.journal.write(Record::Lateness(lateness::of_ledger(tdf, name, before, after)));
        if after.clamped > before.clamped {
            let count = after.clamped - before.clamped;
            lab.journal.finding(
                FindingKind::ClampedLedger,
                Some(name),
                count,
                format!("{count} ledger values of node {name} were out of range"),
            );
        }
    }
    let counts = lab.supervisor.counts();
    let problems = counts.problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    // Problems are kept once and only the first ones; the last line stands for the rest.
    let mut left = counts.outside.load(Relaxed);
    for (i, text) in problems.iter().enumerate() {
        let count = if i + 1 == problems.len() { left } else { left.min(1) };
        left -= count;
        let node = plan.nodes.iter().map(|n| n.name.as_str()).find(|n| text.starts_with(&format!("node {n}: ")));
        lab.journal.finding(FindingKind::ProcessOutsideFrame, node, count, text.clone());
    }
    note_gateway(plan, lab);
    for f in lab.frames.iter().flatten() {
        let fault = f.page().counters.fault.load(Relaxed);
        if fault != 0 {
            let detail = f.page().counters.fault_detail.load(Relaxed);
            lab.journal.finding(
                FindingKind::ProcessOutsideFrame,
                Some(&f.name),
                1,
                format!("node {}: a blob reported fault {fault}, detail {detail}", f.name),
            );
        }
    }
    if outcome == Outcome::Completed {
        let of = |m: &Metric| value_of(plan, lab, out, measured, m);
        outcome = all_metrics(&plan.metrics, of, |value| lab.journal.write(Record::Metric(value)));
    }
    outcome
}

/// Keeps every metric that has a value, also after one that can't be found; the first such one fails the experiment.
fn all_metrics(
    metrics: &[Metric],
    of: impl Fn(&Metric) -> Result<MetricValue, String>,
    mut keep: impl FnMut(MetricValue),
) -> Outcome {
    let mut outcome = Outcome::Completed;
    for m in metrics {
        match of(m) {
            Ok(value) => keep(value),
            Err(reason) if outcome == Outcome::Completed => {
                outcome = Outcome::Failed { reason: format!("metric {}: {reason}", m.name) };
            }
            Err(_) => {}
        }
    }
    outcome
}

/// Says of each way what went through it: it is no part of the emulated system.
fn note_gateway(plan: &Plan, lab: &Lab) {
    for (planned, way) in plan.gateway.iter().zip(&lab.gateway) {
        let c = way.counts();
        let began = match planned.protocol {
            Protocol::Tcp => format!("{} connections", c.connections),
            Protocol::Udp => format!("{} flows, {} datagrams", c.connections, c.datagrams),
        };
        let text = format!(
            "outside the frame: {planned}: {began}, {} bytes, {} refused; in real time, past all links",
            c.bytes, c.refused
        );
        lab.journal.finding(FindingKind::Warning, Some(&planned.node), 1, text);
    }
}

fn value_of(plan: &Plan, lab: &Lab, out: &Path, measured: &Measured, m: &Metric) -> Result<MetricValue, String> {
    let at = |name: &str| plan.nodes.iter().position(|n| n.name == name).ok_or_else(|| format!("no node {name}"));
    let output = |name: &str| -> Result<String, String> {
        let at = at(name)?;
        let mut text = String::new();
        for (node, file) in measured.load_outputs.iter().chain(&measured.outputs) {
            if *node == at {
                text += &String::from_utf8_lossy(
                    &std::fs::read(file).map_err(|e| format!("reading the output of node {name}: {e}"))?,
                );
            }
        }
        Ok(text)
    };
    let data = match &m.source {
        MetricSource::Samples(file) => {
            let (mut pooled, mut files) = (Vec::new(), BTreeMap::new());
            for name in &m.from {
                let node = &lab.nodes[at(name)?];
                let cwd =
                    plan.nodes[at(name)?].load.as_ref().and_then(|l| l.cwd.clone()).unwrap_or_else(|| WORK_DIR.into());
                let path = format!("/proc/{}/root{}/{file}", node.init_pid(), cwd);
                let bytes = std::fs::read(&path).map_err(|e| format!("reading {cwd}/{file} on node {name}: {e}"))?;
                pooled.extend(metrics::from_sample_bytes(&bytes).map_err(|e| format!("{file} of node {name}: {e}"))?);
                let kept = samples_file(&m.name, name);
                std::fs::write(out.join(&kept), &bytes).map_err(|e| format!("writing {kept}: {e}"))?;
                files.insert(name.clone(), kept);
            }
            pooled.sort_unstable();
            let asked = m.show.iter().map(|s| s.parse().map_err(|_| format!("'{s}' is no figure")));
            let show = metrics::figures(&asked.collect::<Result<Vec<_>, String>>()?, &pooled);
            MetricData::Samples { count: pooled.len() as u64, show, files }
        }
        MetricSource::Json(path) => {
            scalar(m, |name| metrics::from_json(&output(name)?, path).map_err(|e| format!("node {name}: {e}")))?
        }
        MetricSource::Regex(pattern) => {
            let number =
                |name: &str| metrics::from_regex(&output(name)?, pattern).map_err(|e| format!("node {name}: {e}"));
            scalar(m, |name| number(name).map(Some))?
        }
    };
    Ok(MetricValue { name: m.name.clone(), unit: m.unit.clone(), data })
}

fn scalar(m: &Metric, of: impl Fn(&str) -> Result<Option<f64>, String>) -> Result<MetricData, String> {
    let mut per_node = BTreeMap::new();
    for name in &m.from {
        per_node.insert(name.clone(), of(name)?);
    }
    let combine = m.combine.unwrap_or(Combine::Sum);
    let value = metrics::combined_of_nodes(combine, &per_node).map_err(|e| e.to_string())?;
    Ok(MetricData::Scalar { value, combine, per_node })
}

/// The verdict, the last record, and the summary files.
pub fn finish(journal: &Recorder, out: &Path, outcome: Outcome) -> Result<RunSummary, RunError> {
    let records = journal.records();
    let budgets = Budgets::default();
    let Some(Record::Header(header)) = records.first() else {
        return Err(RunError::Host("the journal has no header".into()));
    };
    let verdict = Fidelity::from_records(header, &records).verdict(&budgets);
    let (v_ns, r_ns) = journal.now();
    journal.write(Record::End(End { v_ns, r_ns, outcome, verdict }));
    journal.finish().map_err(RunError::host("writing the journal"))?;
    let bytes = std::fs::read(out.join(JOURNAL_FILE)).map_err(RunError::host("reading the journal"))?;
    let read = diecast_core_journal::read(bytes.as_slice()).map_err(RunError::host("reading the journal"))?;
    let summary = RunSummary::from_journal(&read, &budgets);
    let write =
        |name: &str, text: String| std::fs::write(out.join(name), text).map_err(RunError::host("writing results"));
    write(SUMMARY_FILE, summary.to_json())?;
    write(METRICS_FILE, diecast_core_report::to_json(&summary.metrics))?;
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(name: &str) -> Metric {
        Metric {
            name: name.into(),
            from: vec!["load".into()],
            source: MetricSource::Json("$.rate".into()),
            unit: "1/s".into(),
            show: vec![],
            combine: None,
            at: diecast_core_experiment::Pos::default(),
        }
    }

    #[test]
    fn a_metric_that_fails_takes_no_other_with_it() {
        let of = |m: &Metric| match m.name.as_str() {
            "lost" | "late" => Err("nothing was printed".to_owned()),
            _ => Ok(MetricValue { name: m.name.clone(), unit: m.unit.clone(), data: scalar(m, |_| Ok(Some(7.0)))? }),
        };
        let mut kept = Vec::new();
        let outcome = all_metrics(&["first", "lost", "late", "last"].map(metric), of, |value| kept.push(value.name));
        assert_eq!(outcome, Outcome::Failed { reason: "metric lost: nothing was printed".into() });
        assert_eq!(kept, ["first", "last"]);
        let none: [Metric; 0] = [];
        assert_eq!(all_metrics(&none, of, |_| ()), Outcome::Completed);
    }
}
