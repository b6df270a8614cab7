//! May the numbers of a run be believed? Records in, [`Verdict`] out.
//!
//! Each run is judged against what its mode prescribes: baseline and diecast need a blob in every process and a meter
//! on every thread; native and naive have neither, and naive lives by its quota, so throttling is its nature there.
//! What should have been measured and was not counts as a reason too: a silent monitor is no good news.

use std::collections::BTreeMap;

use diecast_core_journal::{
    Finding, FindingKind, Header, HostUse, Lateness, LatenessSource, MeterFacts, Mode, NodeSample, Phase, Reason,
    Record, Verdict, wire,
};
use diecast_core_vtime::{RealNs, Tdf, VirtNs};
use serde::{Deserialize, Serialize};

use crate::check::{Check, at_most};
pub use crate::conservation::ConservationTotal;
use crate::conservation::{JUDGED_NS, Window};
use crate::stalls::{CoreStalls, core_stalls};
use crate::summary::node_use;
use crate::text::{duration, percent};
use crate::waits::{NodeWaits, node_waits};

/// The most that a trustworthy run may show. Times are virtual: what the programs see.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budgets {
    /// 99 % of the packets leave at most this late.
    pub emulator_p99_ns: u64,
    /// Every packet leaves at most this late, and none waits longer to be taken up. An emulator that is stopped for 50 ms
    /// is seen up to a TDF of 13.
    pub emulator_max_ns: u64,
    /// 99 % of a node's metered waits end at most this late.
    pub ledger_p99_ns: u64,
    /// Share of a node's metered waits that its catch-up could not make good.
    pub ledger_late_fraction: f64,
    /// Error of one conservation window.
    pub conservation_error: f64,
    /// Share of a node's conservation windows that may be outside.
    pub conservation_outside_fraction: f64,
    /// Share of a node's CPU time that no meter caught.
    pub escaped_fraction: f64,
    /// Share of a node's CPU time that was not charged because it was colder than on the original machine.
    pub cold_fraction: f64,
    /// By what share a node's latencies may be wrong for what was taken off by estimate: see [`ConservationTotal::doubt`].
    pub doubt: f64,
    /// Share of a node's CPU time that was not charged because the host's cores were slow.
    pub taken_off_slow_fraction: f64,
    /// Share of the measured time for which a node's ceiling held it.
    pub throttled_fraction: f64,
    /// Spread of a core's fixed-work probe, `(p90 - p10) / median`.
    pub host_probe_spread: f64,
    /// Share of a core's time that a hypervisor kept while measuring.
    pub stolen_fraction: f64,
    /// Share of a core's time at less than a third of its usual speed while measuring: what happens in less than a
    /// hundredth of the time decides no 99th percentile.
    pub slow_fraction: f64,
    /// Share of the cores' time that neither the lab nor `diecast` used while measuring.
    pub others_fraction: f64,
    /// Share of the measured time for which a core was kept from a lab without meters, for 100 µs and more at once: as with
    /// `slow_fraction`.
    pub stalled_fraction: f64,
}

impl Default for Budgets {
    fn default() -> Budgets {
        Budgets {
            emulator_p99_ns: 100_000,
            emulator_max_ns: 3_000_000,
            ledger_p99_ns: 500_000,
            ledger_late_fraction: 0.01,
            conservation_error: 0.01,
            conservation_outside_fraction: 0.0,
            escaped_fraction: 0.02,
            cold_fraction: 0.5,
            doubt: 1.0,
            taken_off_slow_fraction: 0.5,
            throttled_fraction: 0.001,
            host_probe_spread: 0.5,
            stolen_fraction: 0.02,
            slow_fraction: 0.01,
            others_fraction: 0.05,
            stalled_fraction: 0.01,
        }
    }
}

/// What a meter is meant to cost of what it meters.
const METER_TARGET: f64 = 0.05;
/// A longer grain makes requests of half a millisecond come out wrong where packets can't tell what their senders have used.
const GRAIN_WITHOUT_DEBT_MAX_NS: u64 = 100_000;
/// CPU time from which a node must have closed a conservation window: one may last until two windows' worth, and is looked
/// at now and then.
const CPU_WITHOUT_WINDOW_NS: u64 = 60_000_000;

/// What the monitor measured in a run: the input of the verdict, and a part of `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fidelity {
    /// How the catalog was run.
    pub mode: Mode,
    /// The lab's TDF.
    #[serde(with = "wire::tdf")]
    pub tdf: Tdf,
    /// How the nodes were metered.
    pub meter: Option<MeterFacts>,
    /// Real length of the measured phase.
    pub r_measured_ns: u64,
    /// Whether any packet was sent, so that the emulator must have a lateness.
    pub network_used: bool,
    /// The emulator's lateness.
    pub emulator: Option<Lateness>,
    /// Each node's ledger lateness.
    pub ledgers: Vec<Lateness>,
    /// Each node's conservation.
    pub conservation: Vec<ConservationTotal>,
    /// Nodes that used CPU but closed no conservation window.
    pub unaccounted: Vec<String>,
    /// Node to the real time for which it was throttled in the measured phase.
    pub r_throttled_ns: BTreeMap<String, u64>,
    /// Node to the packets of its TAP that the emulator did not take in time, where there are any.
    pub ring_dropped_packets: BTreeMap<String, u64>,
    /// System calls that trapped, of all nodes in the whole run.
    pub trapped_calls: u64,
    /// Node to its hits that found no slot for their thread, where there are any.
    pub slotless_hits: BTreeMap<String, u64>,
    /// Each host core's speed while measuring; over the whole run where it was not looked at then.
    pub host_speed: Vec<CoreSpeed>,
    /// Who had the cores while measuring.
    pub host_use: Option<HostShares>,
    /// What each node's threads waited for when they wanted a core, while measuring.
    #[serde(default)]
    pub waits: Vec<NodeWaits>,
    /// When cores were kept from the lab while measuring; none where that was not watched, as in runs with meters, whose waits
    /// tell it.
    #[serde(default)]
    pub stalls: Option<Vec<CoreStalls>>,
    /// Findings: kind, how many, in what words.
    pub findings: Vec<FindingTotal>,
}

/// What the fixed-work probe says about a host core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreSpeed {
    /// The core.
    pub core: u32,
    /// Every turn's CPU time, in order of time.
    pub probe_ns: Vec<u64>,
}

impl CoreSpeed {
    /// Of turns that came while measuring, or did not: those count only where there are no others.
    fn of(core: u32, turns: &[(bool, u64)]) -> CoreSpeed {
        let any = turns.iter().any(|(measuring, _)| *measuring);
        let counted = turns.iter().filter(|(measuring, _)| *measuring || !any);
        CoreSpeed { core, probe_ns: counted.map(|(_, ns)| *ns).collect() }
    }

    /// The median turn.
    pub fn median_ns(&self) -> u64 {
        crate::stats::Statistic::Percentile(500_000).of(&self.probe_ns).map_or(0, |value| value as u64)
    }

    /// What is between the fastest and the slowest turn, without the outer tenths (rounded up: a single turn of a short run
    /// shows no speed), over the median.
    pub fn spread(&self) -> f64 {
        let mut sorted = self.probe_ns.clone();
        sorted.sort_unstable();
        let outer = sorted.len().div_ceil(10);
        match sorted.get(outer..sorted.len().saturating_sub(outer)) {
            Some([first, .., last]) => (last - first) as f64 / self.median_ns().max(1) as f64,
            _ => 0.0,
        }
    }
}

/// Who had the host's cores in the measured phase, as shares of their time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostShares {
    /// Of each core, kept by a hypervisor.
    pub stolen: BTreeMap<u32, f64>,
    /// Of each core, at less than a third of its usual speed.
    pub slow: BTreeMap<u32, f64>,
    /// Of all cores, the nodes.
    pub nodes: f64,
    /// Of all cores, `diecast` itself, with the threads that keep cores awake.
    pub own: f64,
    /// Of all cores, the emulator: a part of `own`.
    pub emulator: f64,
    /// Of all cores, the threads that keep them awake and give way to anything else: a part of `own`.
    pub awake: f64,
    /// Of all cores, everything else that ran on this host.
    pub others: f64,
}

impl HostShares {
    /// What happened from one instant to another; None when no time passed or a core is missing.
    fn between(from: &HostUse, to: &HostUse) -> Option<HostShares> {
        let (mut all_ns, mut busy_ns) = (0, 0);
        let (mut stolen, mut slow) = (BTreeMap::new(), BTreeMap::new());
        for b in &to.cores {
            let a = from.cores.iter().find(|a| a.core == b.core)?;
            let (busy, idle) = (b.busy_ns.saturating_sub(a.busy_ns), b.idle_ns.saturating_sub(a.idle_ns));
            let taken = b.stolen_ns.saturating_sub(a.stolen_ns);
            let core_ns = busy + idle + taken;
            stolen.insert(b.core, taken as f64 / core_ns.max(1) as f64);
            slow.insert(b.core, b.slow_ns.saturating_sub(a.slow_ns) as f64 / core_ns.max(1) as f64);
            (all_ns, busy_ns) = (all_ns + core_ns, busy_ns + busy);
        }
        let (nodes_ns, own_ns) = (to.nodes_ns.saturating_sub(from.nodes_ns), to.own_ns.saturating_sub(from.own_ns));
        let share = |ns: u64| ns as f64 / all_ns as f64;
        let others = share(busy_ns.saturating_sub(nodes_ns + own_ns));
        let part = |of: fn(&HostUse) -> u64| share(of(to).saturating_sub(of(from)));
        (all_ns > 0).then(|| HostShares {
            stolen,
            slow,
            nodes: share(nodes_ns),
            own: share(own_ns),
            emulator: part(|u| u.emulator_ns),
            awake: part(|u| u.awake_ns),
            others,
        })
    }
}

/// The findings of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindingTotal {
    /// The kind.
    pub kind: FindingKind,
    /// How many.
    pub count: u64,
    /// The first one's node.
    pub first_node: Option<String>,
    /// The words of the first ones, the same words once.
    pub details: Vec<String>,
}

/// Words of a kind of findings that a summary keeps; the journal has them all.
const DETAILS_MAX: usize = 40;
/// Words that a reason repeats.
const DETAILS_IN_REASON: usize = 3;

impl FindingTotal {
    fn add(&mut self, finding: &Finding) {
        self.count += finding.count;
        if self.details.len() < DETAILS_MAX && !self.details.contains(&finding.detail) {
            self.details.push(finding.detail.clone());
        }
    }

    /// The first details in one line.
    fn in_short(&self) -> String {
        let mut text = self.details[..self.details.len().min(DETAILS_IN_REASON)].join("; ");
        if self.details.len() > DETAILS_IN_REASON {
            text += &format!("; and {} more, see the journal", self.details.len() - DETAILS_IN_REASON);
        }
        text
    }
}

/// The measured phase of a journal: from its begin to the next phase, or the whole run where it has none.
pub(crate) fn measured_window(header: &Header, records: &[Record]) -> ((VirtNs, VirtNs), (RealNs, RealNs)) {
    let mut begin = None;
    let mut last = (header.v_start_ns, header.r_start_ns);
    for record in records {
        match record {
            Record::Phase(change) => {
                if let Some((v, r)) = begin {
                    return ((v, change.v_ns), (r, change.r_ns));
                }
                begin = (change.phase == Phase::Measure).then_some((change.v_ns, change.r_ns));
                last = (change.v_ns, change.r_ns);
            }
            Record::End(end) => last = (end.v_ns, end.r_ns),
            Record::Sample(sample) => last.0 = last.0.max(sample.v_ns),
            _ => {}
        }
    }
    let (v, r) = begin.unwrap_or((header.v_start_ns, header.r_start_ns));
    ((v, last.0.max(v)), (r, last.1.max(r)))
}

/// A counter that only grows: its last value up to the begin of the measured phase, and up to its end.
#[derive(Default)]
struct Within {
    before: u64,
    last: u64,
}

impl Within {
    fn add(&mut self, v_ns: VirtNs, (begin, end): (VirtNs, VirtNs), count: u64) {
        if v_ns <= begin {
            self.before = count;
        }
        if v_ns <= end {
            self.last = count;
        }
    }

    fn inside(&self) -> u64 {
        self.last.saturating_sub(self.before)
    }
}

impl Fidelity {
    /// Collects what the monitor wrote.
    pub fn from_records(header: &Header, records: &[Record]) -> Fidelity {
        let (v_window, r_window) = measured_window(header, records);
        let mut conservation: BTreeMap<&str, (ConservationTotal, Window)> = BTreeMap::new();
        let mut last_sample: BTreeMap<&str, &NodeSample> = BTreeMap::new();
        let mut throttled: BTreeMap<&str, Within> = BTreeMap::new();
        let mut ring_dropped: BTreeMap<&str, Within> = BTreeMap::new();
        let mut host_speed: BTreeMap<u32, Vec<(bool, u64)>> = BTreeMap::new();
        // The last look before the measured phase, or the first in it; the last look in it.
        let mut host_use: Option<(&HostUse, &HostUse)> = None;
        let mut findings: BTreeMap<FindingKind, FindingTotal> = BTreeMap::new();
        let (mut emulator, mut ledgers) = (None, Vec::new());
        for record in records {
            match record {
                Record::Conservation(window) => {
                    let (total, last) = conservation.entry(&window.node).or_default();
                    total.add(window, v_window, last);
                }
                Record::Sample(sample) => {
                    last_sample.insert(&sample.node, sample);
                    let dropped = ring_dropped.entry(&sample.node).or_default();
                    dropped.add(sample.v_ns, v_window, sample.ring_dropped_packets);
                }
                Record::Throttling(now) => {
                    throttled.entry(&now.node).or_default().add(now.v_ns, v_window, now.r_throttled_ns);
                }
                Record::HostSpeed(probe) => {
                    let measuring = (r_window.0..=r_window.1).contains(&probe.r_ns);
                    host_speed.entry(probe.core).or_default().push((measuring, probe.probe_ns));
                }
                Record::HostUse(look) if look.r_ns <= r_window.0 || host_use.is_none() => host_use = Some((look, look)),
                Record::HostUse(look) if look.r_ns <= r_window.1 => {
                    host_use = host_use.map(|(first, _)| (first, look));
                }
                Record::Lateness(lateness) if lateness.source == LatenessSource::Emulator => {
                    emulator = Some(lateness.clone());
                }
                Record::Lateness(lateness) => ledgers.push(lateness.clone()),
                Record::Finding(finding) => {
                    let (kind, first_node) = (finding.kind, finding.node.clone());
                    let first = || FindingTotal { kind, count: 0, first_node, details: Vec::new() };
                    findings.entry(kind).or_insert_with(first).add(finding);
                }
                _ => {}
            }
        }
        let unaccounted = last_sample
            .values()
            .filter(|sample| sample.cpu_used_ns >= CPU_WITHOUT_WINDOW_NS)
            .map(|sample| sample.node.as_str())
            .filter(|&node| conservation.get(node).is_none_or(|(total, _)| total.used_ns < JUDGED_NS))
            .map(str::to_owned)
            .collect();
        Fidelity {
            mode: header.mode,
            tdf: header.tdf,
            meter: header.meter.clone(),
            r_measured_ns: r_window.1.since(r_window.0).ns(),
            network_used: last_sample.values().any(|sample| sample.sent_packets > 0),
            emulator,
            ledgers,
            conservation: conservation
                .into_iter()
                .map(|(node, (total, _))| {
                    let facts = header.nodes.iter().find(|n| n.name == node);
                    let sample = last_sample.get(node);
                    ConservationTotal {
                        node: node.to_owned(),
                        fullness: facts.map_or(0.0, |n| node_use(n, records, v_window).cpu_share),
                        received_ns: sample.map_or(0, |s| s.cpu_received_ns),
                        received_cut_ns: sample.map_or(0, |s| s.cpu_received_cut_ns),
                        ..total
                    }
                })
                .collect(),
            unaccounted,
            r_throttled_ns: throttled.into_iter().map(|(node, count)| (node.to_owned(), count.inside())).collect(),
            ring_dropped_packets: ring_dropped
                .into_iter()
                .map(|(node, count)| (node.to_owned(), count.inside()))
                .filter(|(_, packets)| *packets > 0)
                .collect(),
            trapped_calls: last_sample.values().map(|sample| sample.trapped_calls).sum(),
            slotless_hits: last_sample
                .values()
                .filter(|sample| sample.slotless_hits > 0)
                .map(|sample| (sample.node.clone(), sample.slotless_hits))
                .collect(),
            waits: node_waits(records, v_window),
            stalls: core_stalls(header, records, r_window),
            host_use: host_use.and_then(|(from, to)| HostShares::between(from, to)),
            host_speed: host_speed.into_iter().map(|(core, turns)| CoreSpeed::of(core, &turns)).collect(),
            findings: findings.into_values().collect(),
        }
    }

    /// Every number of the monitor that has a budget in this mode, kept or exceeded, in order of weight.
    pub fn checks(&self, budgets: &Budgets) -> Vec<Check> {
        let mut checks = Vec::new();
        self.check_findings(&mut checks);
        if self.mode.has_envelope() {
            self.check_meter(budgets, &mut checks);
        }
        if self.mode != Mode::Naive {
            self.check_throttling(budgets, &mut checks);
        }
        self.check_emulator(budgets, &mut checks);
        self.check_host(budgets, &mut checks);
        checks
    }

    /// The verdict: every check that exceeds its budget is a reason.
    ///
    /// The advised TDF: a host is late by its own, real time, which the TDF divides (late_virtual = late_real / TDF). A
    /// budget B that was measured as L > B is kept from TDF · L / B on, so the advice is the largest of these over all
    /// latenesses, plus a quarter for the next run's bad luck, rounded up to a whole number. Where a share and not a
    /// time was exceeded (throttled, waits that could not catch up), the load per real second must fall and the advice
    /// is at least twice the TDF. None outside mode diecast, beyond 1000, or when only what no TDF changes is wrong.
    ///
    /// Example: TDF 10, emulator p99 of 240 µs against 100 µs: 10 · 2.4 · 1.25 = 30.
    pub fn verdict(&self, budgets: &Budgets) -> Verdict {
        let broken: Vec<Check> = self.checks(budgets).into_iter().filter(|check| check.exceeded).collect();
        let factor = broken
            .iter()
            .filter_map(|check| check.tdf_factor)
            .fold(None, |most: Option<f64>, factor| Some(most.map_or(factor, |most| most.max(factor))));
        let advised_tdf = factor.filter(|_| self.mode == Mode::Diecast).and_then(|factor| {
            let tdf = (self.tdf.as_f64() * factor).ceil();
            if tdf <= 1000.0 { Tdf::new(tdf as u64, 1).ok() } else { None }
        });
        let reasons = broken
            .into_iter()
            .map(|check| Reason {
                advice: match (check.tdf_factor, self.mode, advised_tdf) {
                    (None, _, _) => check.advice,
                    (Some(_), Mode::Diecast, Some(tdf)) => format!("raise the TDF to {tdf}"),
                    (Some(_), Mode::Diecast, None) => {
                        "no TDF up to 1000 would do: use a quieter or a larger host".into()
                    }
                    (Some(_), _, _) => {
                        format!("mode {} has no TDF to raise: use a quieter or a larger host", self.mode)
                    }
                },
                what: check.what,
                measured: check.measured,
                budget: check.budget,
            })
            .collect::<Vec<_>>();
        let missing = self.findings.iter().filter(|total| total.kind == FindingKind::MissingFeature);
        let without = missing.flat_map(|total| total.details.iter().cloned()).collect();
        Verdict { trustworthy: reasons.is_empty(), reasons, advised_tdf, without }
    }

    fn check_findings(&self, checks: &mut Vec<Check>) {
        use FindingKind::*;
        let kinds: [(FindingKind, &str, &str); 3] = [
            (
                ProcessOutsideFrame,
                "processes outside the frame",
                "these keep the host's clocks and speed: start programs by the catalog or `diecast exec`; LIMITS.md says what can't be \
                 in a frame",
            ),
            (
                ThreadWithoutMeter,
                "threads without a meter",
                "these run at the host's speed: see the meter in `diecast doctor`, and what is traced, in LIMITS.md",
            ),
            (ClampedLedger, "clamped ledgers", "a program wrote into its ledger page: report it"),
        ];
        for (kind, what, advice) in kinds.into_iter().filter(|_| self.mode.has_envelope()) {
            let total = self.findings.iter().find(|total| total.kind == kind);
            let advice = total.map_or_else(|| advice.to_owned(), |total| format!("{}: {advice}", total.in_short()));
            checks.push(Check::count(what.into(), total.map_or(0, |total| total.count), &advice));
        }
        if let Some(total) = self.findings.iter().find(|total| total.kind == ProgramDied) {
            checks.push(Check::count("programs that died".into(), total.count, &total.in_short()));
        }
        if let Some(total) = self.findings.iter().find(|total| total.kind == NicLost) {
            checks.push(Check::count("NICs that went away".into(), total.count, &total.in_short()));
        }
    }

    fn check_meter(&self, budgets: &Budgets, checks: &mut Vec<Check>) {
        if let Some(meter) = self.meter.as_ref().filter(|meter| !meter.packets_tell) {
            checks.push(Check {
                what: "the grain, without debt at egress".into(),
                measured: duration(meter.grain_ns as f64),
                budget: at_most(duration(GRAIN_WITHOUT_DEBT_MAX_NS as f64)),
                exceeded: meter.grain_ns > GRAIN_WITHOUT_DEBT_MAX_NS,
                tdf_factor: None,
                advice:
                    "packets leave up to a grain of CPU time early: --grain 100us, or allow BPF (see `diecast doctor`)"
                        .into(),
            });
        }
        if self.mode.has_envelope() {
            checks.push(Check::told(
                "system calls that trapped".into(),
                self.trapped_calls.to_string(),
                "told only".into(),
            ));
        }
        if let Some((node, count)) = self.slotless_hits.iter().max_by_key(|(_, count)| **count) {
            let what = format!("hits that were charged to nobody ({node})");
            checks.push(Check::count(what, *count, "the node has more threads than the meter has room for: 8192"));
        }
        for node in &self.unaccounted {
            checks.push(Check::missing(format!("conservation of {node}")));
        }
        let judged = self.conservation.iter().filter(|total| !total.errors.is_empty());
        if let Some(worst) = judged.max_by(|a, b| a.worst().total_cmp(&b.worst())) {
            let outside = |total: &ConservationTotal| {
                let outside = total.errors.iter().filter(|&&error| error > budgets.conservation_error).count();
                outside as f64 / total.errors.len().max(1) as f64
            };
            let outside_worst = self.conservation.iter().map(outside).fold(0.0, f64::max);
            checks.push(Check {
                what: format!("conservation error, worst window ({})", worst.node),
                measured: percent(worst.worst()),
                budget: at_most(percent(budgets.conservation_error)),
                exceeded: outside_worst > budgets.conservation_outside_fraction,
                tdf_factor: None,
                advice: "CPU time was charged wrongly: a larger grain, or a host with less interrupt load".into(),
            });
        }
        if let Some(worst) = max_by_key(&self.conservation, ConservationTotal::escaped_fraction)
            && worst.measured_used_ns > 0
        {
            checks.push(Check::share(
                format!("CPU time that no meter caught ({})", worst.node),
                worst.escaped_fraction(),
                budgets.escaped_fraction,
                None,
                "short-lived processes outran the meter: a smaller grain",
            ));
        }
        if let Some(worst) = max_by_key(&self.conservation, ConservationTotal::meter_fraction)
            && worst.meter_cost_ns > 0
        {
            let what = format!("meter's own CPU time, of what it meters ({})", worst.node);
            // It is charged to nobody: what it costs is room on the host's cores.
            checks.push(Check::told(
                what,
                percent(worst.meter_fraction()),
                format!("target {}", percent(METER_TARGET)),
            ));
        }
        if let Some(worst) = max_by_key(&self.conservation, ConservationTotal::cold_fraction) {
            checks.push(Check::share(
                format!("CPU time taken off for cold caches ({})", worst.node),
                worst.cold_fraction(),
                budgets.cold_fraction,
                None,
                "idle caches lose too much on this host: a smaller TDF, or a host with fewer neighbours",
            ));
        }
        if let Some(worst) = max_by_key(&self.conservation, ConservationTotal::received_cut_fraction)
            && worst.received_cut_ns > 0
        {
            let what = format!("CPU time for packets taken off as cold or interrupted ({})", worst.node);
            checks.push(Check::told(what, percent(worst.received_cut_fraction()), "told only".into()));
        }
        if let Some(worst) = max_by_key(&self.conservation, ConservationTotal::doubt) {
            let full = percent(worst.fullness);
            checks.push(Check::share(
                format!("latency in doubt for what was taken off ({})", worst.node),
                worst.doubt(),
                budgets.doubt,
                None,
                &format!(
                    "it used {full} of its machine, and a part of that is estimated: less load, a larger --grain (2ms)"
                ),
            ));
        }
        if let Some(worst) = max_by_key(&self.conservation, ConservationTotal::slow_fraction) {
            checks.push(Check::share(
                format!("CPU time taken off while cores were slow ({})", worst.node),
                worst.slow_fraction(),
                budgets.taken_off_slow_fraction,
                None,
                "this host's cores run at a fraction of their speed too often: run again, or on a steadier host",
            ));
        }
        if let Some(worst) = self.ledgers.iter().max_by_key(|ledger| ledger.v_p99_ns) {
            let what = format!("ledger lateness p99 ({})", node_name(worst));
            checks.push(Check::lateness(what, worst.v_p99_ns.ns(), budgets.ledger_p99_ns));
        }
        if let Some(worst) = max_by_key(&self.ledgers, late_fraction) {
            checks.push(Check::share(
                format!("waits beyond catch-up ({})", node_name(worst)),
                late_fraction(worst),
                budgets.ledger_late_fraction,
                Some(2.0),
                "",
            ));
        }
        if self.ledgers.is_empty() && !self.conservation.is_empty() {
            checks.push(Check::missing("ledger lateness".into()));
        }
    }

    fn check_throttling(&self, budgets: &Budgets, checks: &mut Vec<Check>) {
        let Some((node, &throttled_ns)) = self.r_throttled_ns.iter().max_by_key(|(_, ns)| **ns) else { return };
        let share = throttled_ns as f64 / self.r_measured_ns.max(1) as f64;
        let what = format!("time throttled by the ceiling ({node})");
        checks.push(Check::share(what, share, budgets.throttled_fraction, Some(2.0), ""));
    }

    fn check_emulator(&self, budgets: &Budgets, checks: &mut Vec<Check>) {
        match &self.emulator {
            Some(late) => {
                checks.push(Check::lateness(
                    "emulator lateness p99".into(),
                    late.v_p99_ns.ns(),
                    budgets.emulator_p99_ns,
                ));
                checks.push(Check::lateness(
                    "emulator lateness max".into(),
                    late.v_max_ns.ns(),
                    budgets.emulator_max_ns,
                ));
            }
            None if self.network_used => checks.push(Check::missing("emulator lateness".into())),
            None => {}
        }
        if let Some((node, &count)) = self.ring_dropped_packets.iter().max_by_key(|(_, count)| **count) {
            let check = Check::count(format!("packets lost between TAP and emulator ({node})"), count, "");
            checks.push(Check { tdf_factor: Some(2.0), ..check });
        }
    }

    fn check_host(&self, budgets: &Budgets, checks: &mut Vec<Check>) {
        self.check_host_speed(budgets, checks);
        self.check_others(budgets, checks);
        self.check_stalls(budgets, checks);
    }

    /// What others on this host or beside it did to the run, beyond its budget: the same run may go well at another
    /// time. Empty when they did not.
    pub fn spoiled_by_others(&self, budgets: &Budgets) -> Vec<String> {
        let mut checks = Vec::new();
        self.check_others(budgets, &mut checks);
        let broken = checks.into_iter().filter(|check| check.exceeded);
        broken.map(|check| format!("{} {}, {} expected", check.what, check.measured, check.budget)).collect()
    }

    fn check_others(&self, budgets: &Budgets, checks: &mut Vec<Check>) {
        let Some(host_use) = &self.host_use else {
            checks.push(Check::missing("use of the host's cores".into()));
            return;
        };
        let rest = (host_use.own - host_use.emulator - host_use.awake).max(0.0);
        for (what, share) in [
            ("cores used by the nodes", host_use.nodes),
            ("cores used by the emulator", host_use.emulator),
            ("cores used by the supervisor", rest),
            ("cores kept awake, which others can have", host_use.awake),
        ] {
            checks.push(Check::told(what.into(), percent(share), "told only".into()));
        }
        let stolen: Vec<(u32, f64)> = host_use.stolen.iter().map(|(core, share)| (*core, *share)).collect();
        if let Some((core, share)) = max_by_key(&stolen, |(_, share)| *share) {
            let advice =
                "a hypervisor gave the core to others: run again when its host is quiet, or on a host of your own";
            checks.push(Check::share(
                format!("time stolen by a hypervisor (core {core})"),
                *share,
                budgets.stolen_fraction,
                None,
                advice,
            ));
        }
        let slow: Vec<(u32, f64)> = host_use.slow.iter().map(|(core, share)| (*core, *share)).collect();
        if let Some((core, share)) = max_by_key(&slow, |(_, share)| *share) {
            checks.push(Check::share(
                format!("time at less than a third of its speed (core {core})"),
                *share,
                budgets.slow_fraction,
                None,
                "the machine clocks its cores down (heat, power, a hypervisor's limit): run again when it does not, or elsewhere",
            ));
        }
        checks.push(Check::share(
            "cores used by others on this host".into(),
            host_use.others,
            budgets.others_fraction,
            None,
            "other programs ran beside the lab: end them, or run again when they are done",
        ));
    }

    /// A meter makes what others take good, in the mean; where there is none, whoever wanted the core waited.
    fn check_stalls(&self, budgets: &Budgets, checks: &mut Vec<Check>) {
        let Some(stalls) = &self.stalls else { return };
        let worst = stalls.iter().max_by_key(|core| core.r_total_ns);
        let of_core = worst.map_or(String::new(), |core| format!(" (core {})", core.core));
        let share = worst.map_or(0, |core| core.r_total_ns) as f64 / self.r_measured_ns.max(1) as f64;
        checks.push(Check::share(
            format!("time kept from the lab, 100 us and more at once{of_core}"),
            share,
            budgets.stalled_fraction,
            None,
            "others had the core, or the kernel for them or the nodes' disks: end them, or run again when they are done or on a host \
             of your own; run.json says who",
        ));
        let longest = stalls.iter().max_by_key(|core| core.r_longest_ns);
        let by = longest.map_or(String::new(), |core| format!(" (core {}, {})", core.core, core.longest_by));
        let ns = longest.map_or(0, |core| core.r_longest_ns);
        checks.push(Check::told(format!("the longest of that{by}"), duration(ns as f64), "told only".into()));
    }

    fn check_host_speed(&self, budgets: &Budgets, checks: &mut Vec<Check>) {
        let Some(worst) = max_by_key(&self.host_speed, CoreSpeed::spread) else {
            checks.push(Check::missing("host speed".into()));
            return;
        };
        checks.push(Check::share(
            format!("host speed spread (core {})", worst.core),
            worst.spread(),
            budgets.host_probe_spread,
            None,
            "the host's speed wavered: run again when it is quiet",
        ));
    }
}

fn late_fraction(lateness: &Lateness) -> f64 {
    lateness.late_events as f64 / lateness.events.max(1) as f64
}

fn node_name(lateness: &Lateness) -> &str {
    lateness.node.as_deref().unwrap_or("no node")
}

/// The item with the largest key; the first of equals.
fn max_by_key<T>(items: &[T], key: impl Fn(&T) -> f64) -> Option<&T> {
    items.iter().reduce(|most, item| if key(item) > key(most) { item } else { most })
}
