//! Whether the host can carry the nodes, and what each gets of it.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use diecast_core_experiment::{Experiment, Mode, Node, SpeedPpm};
use diecast_core_vtime::Tdf;

use crate::model::{CpuLoad, Quota, QuotaPurpose};
use crate::options::{GRAIN_NS_DEFAULT, GRAIN_NS_WITH_DEBT, HostFacts, NODE_CORES_MAX, PlanOptions, Scale};
use crate::place::{Demand, place};
use crate::ratio::Ratio;
use crate::refusal::{Reason, Refusal};

/// Period of an allotment unless its quota would be below the kernel's minimum: what `docker --cpus` uses.
const PERIOD_US: u64 = 100_000;
/// Smallest quota that the kernel accepts (min_cfs_quota_period).
const QUOTA_US_MIN: u64 = 1_000;
/// Longest period that the kernel accepts (max_cfs_quota_period), and a ceiling's. The kernel takes it for CPU time when
/// the host lets a core stand still for 5 to 20 ms, which the ledger does not charge; four times a small node's share of
/// 100 ms is 4 ms, so that one such stall would throttle it.
const PERIOD_US_MAX: u64 = 1_000_000;
/// The ceiling in shares. Catch-up is bounded to twice the share, and half of what a node uses may be cold caches and the
/// meter, which it is not charged; so a healthy node stays below it.
const CEILING_SHARES: u128 = 4;

/// The mode's factors, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Factors {
    pub mode: Mode,
    pub tdf: Tdf,
    pub scale: Option<Scale>,
    /// What [`Factors::speed_of`] multiplies by.
    pub speed: SpeedPpm,
}

/// What a node gets of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Allotment {
    /// Of one real core, for each of the node's cores.
    pub share: Ratio,
    pub cpus: Vec<u32>,
    pub quota: Option<Quota>,
}

/// TDF and scale factor of a mode. A fault here is one of the command.
pub(crate) fn factors(options: &PlanOptions) -> Result<Factors, Refusal> {
    let mode = options.mode;
    if !(10_000..=10_000_000).contains(&options.grain_ns) {
        let reason = Reason::GrainOutOfRange { grain_ns: options.grain_ns };
        let hint = format!(
            "the default is {GRAIN_NS_WITH_DEBT}, or {GRAIN_NS_DEFAULT} where packets can't tell what their senders have used"
        );
        return Err(Refusal::elsewhere(reason, hint));
    }
    let given_tdf = options.tdf.filter(|_| mode != Mode::Diecast);
    if let Some(tdf) = given_tdf.filter(|t| *t != Tdf::ONE) {
        let hint = match mode {
            Mode::Naive => "leave --tdf out and give --scale",
            _ => "leave --tdf out, or use --mode diecast",
        };
        return Err(Refusal::elsewhere(Reason::TdfNotOne { mode, tdf }, hint));
    }
    let (tdf, scale) = match (mode, options.tdf, options.scale) {
        (Mode::Baseline | Mode::Native, _, Some(scale)) if scale.ratio() != Ratio::ONE => {
            let hint = "leave --scale out, or use --mode diecast or naive";
            return Err(Refusal::elsewhere(Reason::ScaleNotOne { mode, scale }, hint));
        }
        (Mode::Baseline | Mode::Native, ..) => (Tdf::ONE, None),
        (Mode::Naive, _, None) => return Err(Refusal::elsewhere(Reason::NoScale, "give --scale, such as --scale 10")),
        (Mode::Naive, _, scale) => (Tdf::ONE, scale),
        (Mode::Diecast, None, None) => {
            let hint = "give --scale 10 (the TDF is then 10 too) or --tdf 10";
            return Err(Refusal::elsewhere(Reason::NoFactor, hint));
        }
        (Mode::Diecast, Some(tdf), None) => (tdf, Some(Scale::from(tdf))),
        (Mode::Diecast, None, Some(scale)) => (scale.as_tdf(), Some(scale)),
        (Mode::Diecast, Some(tdf), Some(scale)) if ratio_of(tdf) < scale.ratio() => {
            let hint = format!("raise the TDF to {scale}, or lower the scale factor");
            return Err(Refusal::elsewhere(Reason::TdfBelowScale { tdf, scale }, hint));
        }
        (Mode::Diecast, Some(tdf), scale) => (tdf, scale),
    };
    Ok(Factors { mode, tdf, scale, speed: options.speed })
}

pub(crate) fn ratio_of(tdf: Tdf) -> Ratio {
    Ratio::new(u128::from(tdf.num()), u128::from(tdf.den()))
}

/// Speeds by a score that may be this host's own, at which mode native runs: a score is measured anew by each command.
const HOSTS_SCORE_PPM: RangeInclusive<u64> = 950_000..=1_050_000;

impl Factors {
    /// The speed of a node's cores: its machine type's, times `--speed` where it generates no load. To the nearest
    /// millionth, at least one; a type's speed and the factor are at most 1000 each, so that the product fits.
    pub fn speed_of(&self, experiment: &Experiment, node: &Node) -> SpeedPpm {
        let machine = experiment.machine_type_of(node);
        let speed = machine.speed_ppm;
        let may_be_hosts = machine.score_milli.is_some() && self.speed == SpeedPpm::ONE;
        if self.mode == Mode::Native && may_be_hosts && HOSTS_SCORE_PPM.contains(&speed.0) {
            return SpeedPpm::ONE;
        }
        if experiment.generates_load(&node.name) {
            return speed;
        }
        let times = u128::from(speed.0) * u128::from(self.speed.0);
        SpeedPpm(to_u64(times.saturating_add(500_000) / 1_000_000).max(1))
    }

    /// What a core of this speed gets of a real one.
    fn share(&self, speed: SpeedPpm, generates_load: bool) -> Ratio {
        let divisor = match (self.mode, self.scale) {
            (Mode::Naive, Some(scale)) if !generates_load => scale.ratio(),
            _ => ratio_of(self.tdf),
        };
        Ratio::new(u128::from(speed.0) * divisor.den(), 1_000_000 * divisor.num())
    }

    /// The quota of a node, and a note when it is not the usual one.
    fn quota(
        &self,
        node: &Node,
        cores: u32,
        share: Ratio,
        generates_load: bool,
    ) -> Result<(Option<Quota>, Option<String>), Box<Reason>> {
        let whole = share.times(u128::from(cores));
        match self.mode {
            Mode::Native => Ok((None, None)),
            Mode::Naive if generates_load => Ok((None, None)),
            Mode::Naive => allotment(node, whole).map(|(quota, note)| (Some(quota), note)),
            Mode::Baseline | Mode::Diecast => Ok((Some(ceiling(whole)), None)),
        }
    }
}

/// Four times the share, rounded up, at least the kernel's minimum.
///
/// Example: a share of 0.015 is 60000 us per second.
pub(crate) fn ceiling(whole: Ratio) -> Quota {
    let quota_us = to_u64(whole.times(CEILING_SHARES * u128::from(PERIOD_US_MAX)).ceil()).max(QUOTA_US_MIN);
    Quota { quota_us, period_us: PERIOD_US_MAX, purpose: QuotaPurpose::Ceiling }
}

/// The share as a quota, rounded down. Where that is below the kernel's minimum the period is stretched, which
/// keeps the share and makes the node's pauses longer; beyond the longest period there is no such quota.
///
/// Example: a share of 0.005 is 1000 us per 200 ms.
fn allotment(node: &Node, whole: Ratio) -> Result<(Quota, Option<String>), Box<Reason>> {
    let purpose = QuotaPurpose::Allotment;
    let quota_us = to_u64(whole.times(u128::from(PERIOD_US)).floor());
    if quota_us >= QUOTA_US_MIN {
        return Ok((Quota { quota_us, period_us: PERIOD_US, purpose }, None));
    }
    let per_us = Ratio::new(whole.den() * u128::from(QUOTA_US_MIN), whole.num());
    let period_us = to_u64(per_us.ceil());
    if period_us > PERIOD_US_MAX {
        let least = Ratio::new(u128::from(QUOTA_US_MIN), u128::from(PERIOD_US_MAX));
        return Err(Box::new(Reason::QuotaTooSmall { node: node.name.clone(), share: whole, least }));
    }
    let note = format!(
        "{}: the kernel's smallest quota is {QUOTA_US_MIN} us, so the period is {} ms instead of 100 ms",
        node.group,
        period_us.div_ceil(1000)
    );
    Ok((Quota { quota_us: QUOTA_US_MIN, period_us, purpose }, Some(note)))
}

fn to_u64(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// How the host is shared out.
pub(crate) struct Sharing {
    /// In the order of the experiment's nodes.
    pub allotments: Vec<Allotment>,
    pub cpus: Vec<CpuLoad>,
    pub notes: Vec<String>,
}

/// What each node gets and what each CPU carries, or why the host can't.
pub(crate) fn allot(
    experiment: &Experiment,
    host: &HostFacts,
    options: &PlanOptions,
    factors: &Factors,
) -> Result<Sharing, Refusal> {
    if host.cpus.is_empty() {
        return Err(Refusal::elsewhere(Reason::NoCpu, "look at the process's CPU affinity and cpuset"));
    }
    for node in &experiment.nodes {
        check_node(experiment, host, factors, node)?;
    }
    check_native(experiment, host, factors)?;
    let demands: Vec<Demand> = experiment
        .nodes
        .iter()
        .map(|n| Demand { cores: experiment.machine_type_of(n).cores, speed_ppm: factors.speed_of(experiment, n).0 })
        .collect();
    let mut notes = Vec::new();
    let mut allotments = Vec::new();
    for (node, cpus) in experiment.nodes.iter().zip(place(&demands, &host.cpus)) {
        let machine = experiment.machine_type_of(node);
        let generates_load = experiment.generates_load(&node.name);
        let share = factors.share(factors.speed_of(experiment, node), generates_load);
        let (quota, note) = factors.quota(node, machine.cores, share, generates_load).map_err(|reason| {
            Refusal::at(experiment, machine.speed_at, *reason, "raise the node's speed or lower the scale factor")
        })?;
        // Nodes of a group are equal, and so are their notes.
        notes.extend(note.filter(|n| !notes.contains(n)));
        allotments.push(Allotment { share, cpus, quota });
    }
    let cpus = cpu_loads(experiment, host, &allotments);
    if factors.mode != Mode::Native {
        check_cpu(experiment, host, options, factors, &cpus)?;
    }
    check_memory(experiment, host)?;
    Ok(Sharing { allotments, cpus, notes })
}

fn check_node(experiment: &Experiment, host: &HostFacts, factors: &Factors, node: &Node) -> Result<(), Refusal> {
    let machine = experiment.machine_type_of(node);
    let machine_type = machine.name.clone();
    let speed = factors.speed_of(experiment, node);
    if factors.mode.has_envelope() && machine.cores > NODE_CORES_MAX {
        let reason = Reason::MoreThanLedger { machine_type, cores: machine.cores };
        let hint = "lower 'cores', or use --mode native, which has no ledger";
        return Err(Refusal::at(experiment, machine.cores_at, reason, hint));
    }
    if factors.mode == Mode::Native && machine.cores as usize > host.cpus.len() {
        let reason = Reason::TooManyCores { machine_type, cores: machine.cores, cpus: host.cpus.len() };
        let hint = format!("lower 'cores', use --mode baseline or diecast, or a host with {} CPUs", machine.cores);
        return Err(Refusal::at(experiment, machine.cores_at, reason, hint));
    }
    if factors.mode == Mode::Native && speed != SpeedPpm::ONE {
        let reason = Reason::NativeSpeed { machine_type, speed };
        return Err(Refusal::at(experiment, machine.speed_at, reason, "use --mode baseline, or nodes of speed 1.0"));
    }
    let share = factors.share(speed, experiment.generates_load(&node.name));
    if share > Ratio::ONE {
        let tdf = factors.tdf;
        let needed = speed.0.div_ceil(1_000_000);
        let hint = match factors.mode {
            Mode::Diecast => format!("raise the TDF to {needed} (--tdf {needed})"),
            _ => format!("lower the speed, or use --mode diecast --tdf {needed}"),
        };
        let reason = Reason::SpeedAboveTdf { machine_type, speed, tdf, share };
        return Err(Refusal::at(experiment, machine.speed_at, reason, hint));
    }
    Ok(())
}

fn check_native(experiment: &Experiment, host: &HostFacts, factors: &Factors) -> Result<(), Refusal> {
    let cores: u64 = experiment.nodes.iter().map(|n| u64::from(experiment.machine_type_of(n).cores)).sum();
    if factors.mode != Mode::Native || cores <= host.cpus.len() as u64 {
        return Ok(());
    }
    let reason = Reason::NativeCores { cores, cpus: host.cpus.len() };
    let largest = experiment.groups.iter().max_by_key(|g| g.nodes.len());
    let at = largest.map_or(experiment.topology.at, |g| g.at);
    Err(Refusal::at(experiment, at, reason, "use --mode baseline or diecast, or fewer nodes"))
}

/// What a node brings to each of its CPUs, which are fewer than its cores where the host has no more. Rounded up to a
/// millionth then, so that sums keep the denominators that [`Ratio`] has room for.
pub(crate) fn on_each(share: Ratio, cores: u32, cpus: usize) -> Ratio {
    const PARTS: u128 = 1_000_000;
    if cores as usize <= cpus {
        return share;
    }
    // A share's terms are below 2^62, cores below 2^32 and parts below 2^20.
    let parts = (share.num() * u128::from(cores) * PARTS).div_ceil(share.den() * cpus.max(1) as u128);
    Ratio::new(parts, PARTS)
}

fn cpu_loads(experiment: &Experiment, host: &HostFacts, allotments: &[Allotment]) -> Vec<CpuLoad> {
    let on = |cpu: u32| {
        let here = experiment.nodes.iter().zip(allotments).filter(move |(_, a)| a.cpus.contains(&cpu));
        here.fold(CpuLoad { cpu, share: Ratio::ZERO, nodes: Vec::new() }, |mut load, (node, a)| {
            let cores = experiment.machine_type_of(node).cores;
            load.share = load.share.plus(on_each(a.share, cores, a.cpus.len()));
            load.nodes.push(node.name.clone());
            load
        })
    };
    host.cpus.iter().map(|&cpu| on(cpu)).collect()
}

fn check_cpu(
    experiment: &Experiment,
    host: &HostFacts,
    options: &PlanOptions,
    factors: &Factors,
    loads: &[CpuLoad],
) -> Result<(), Refusal> {
    let limit = options.core_limit;
    let over = loads.iter().filter(|l| l.share > limit);
    let Some(worst) = over.min_by_key(|l| Reverse(l.share)) else { return Ok(()) };
    let total = loads.iter().fold(Ratio::ZERO, |sum, l| sum.plus(l.share));
    // share = demand / TDF, so the TDF that fits is share * TDF / limit. A naive plan has no TDF to raise.
    let needed = Ratio::new(
        worst.share.num() * u128::from(factors.tdf.num()) * limit.den(),
        worst.share.den() * u128::from(factors.tdf.den()) * limit.num().max(1),
    )
    .ceil();
    let fewer = "use fewer or slower nodes, or a host with more cores";
    let hint = match factors.mode {
        Mode::Diecast if needed <= 1000 => format!("raise the TDF to {needed} (--tdf {needed})"),
        Mode::Baseline if needed <= 1000 => {
            format!("the baseline does not fit this host: {fewer}; --mode diecast --tdf {needed} would fit")
        }
        Mode::Naive => format!("nodes that generate load keep their full CPU in naive mode: {fewer}"),
        _ => fewer.to_owned(),
    };
    let reason = Reason::TooMuchCpu {
        cpu: worst.cpu,
        needed: worst.share,
        nodes: shortened(&worst.nodes),
        limit,
        total,
        cpus: host.cpus.len(),
    };
    // The group that asks for most is the first to look at.
    let demand = |nodes: &[String]| -> u64 {
        let nodes = nodes.iter().filter_map(|n| experiment.node(n));
        let demand = |n: &Node| u64::from(experiment.machine_type_of(n).cores) * factors.speed_of(experiment, n).0;
        nodes.map(demand).sum()
    };
    let at = experiment.groups.iter().max_by_key(|g| demand(&g.nodes)).map_or(experiment.topology.at, |g| g.at);
    Err(Refusal::at(experiment, at, reason, hint))
}

/// At most eight names.
pub(crate) fn shortened(nodes: &[String]) -> String {
    match nodes.len() {
        0..=8 => nodes.join(", "),
        n => format!("{} and {} more", nodes[..8].join(", "), n - 8),
    }
}

fn check_memory(experiment: &Experiment, host: &HostFacts) -> Result<(), Refusal> {
    let needed_bytes = memory_bytes(experiment);
    if needed_bytes <= host.memory_bytes {
        return Ok(());
    }
    let reason = Reason::TooMuchMemory { needed_bytes, there_bytes: host.memory_bytes };
    let of_group = |g: &&diecast_core_experiment::Group| {
        let machine = experiment.machine_types.iter().find(|m| m.name == g.machine_type);
        machine.map_or(0, |m| u128::from(m.memory_bytes) * g.nodes.len() as u128)
    };
    let largest = experiment.groups.iter().max_by_key(of_group);
    let machine = largest.and_then(|g| experiment.machine_types.iter().find(|m| m.name == g.machine_type));
    let at = machine.map_or(experiment.topology.at, |m| m.memory_at);
    Err(Refusal::at(experiment, at, reason, "lower 'memory' or 'count': memory is not scaled"))
}

/// Sum of the nodes' limits, saturating.
pub(crate) fn memory_bytes(experiment: &Experiment) -> u64 {
    let limits = experiment.nodes.iter().map(|n| experiment.machine_type_of(n).memory_bytes);
    limits.fold(0, u64::saturating_add)
}
