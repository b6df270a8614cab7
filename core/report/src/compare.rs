//! Several runs side by side: every metric with its error against the reference, and what the bars say.
//!
//! Runs of one mode, TDF, scale and parameter set are blocks of one *column*: their samples are pooled, their numbers
//! averaged, and the spread between them is shown, because an error smaller than it says nothing. The first column is
//! the *reference*: the first baseline, without one the first native, without that the first run.
//!
//! Bars: rates (a unit per second) 5 %, medians 10 %, 99th percentiles 20 %; other figures have none and are only
//! shown. [`judge_error`] says when a figure passes. A figure of samples has a bootstrap interval. A number per run
//! has the range of the errors over all pairs of blocks; with one run on each side that is the point alone.
//!
//! A run that answered nothing has no value to be right or wrong: where the other side has some its figures miss their bars,
//! where it has none either nothing can be said.

use std::collections::{BTreeMap, BTreeSet};

use diecast_core_journal::{Header, MeterFacts, MetricData, Mode, Outcome, Verdict};
use serde::Serialize;

use crate::stats::{
    Bootstrap, Figure, Interval, Judged, Statistic, judge_error, ks_distance, paired_error_intervals, relative_error,
    relative_error_intervals,
};
use crate::summary::Run;
use crate::text::{duration, percent};

/// Rates may be off by this much.
pub const BAR_RATE: f64 = 0.05;
/// Medians may be off by this much.
pub const BAR_MEDIAN: f64 = 0.10;
/// 99th percentiles may be off by this much.
pub const BAR_P99: f64 = 0.20;
/// The host's speed under two modes may differ by this much, or there is no verdict.
pub const HOST_SPEED_DIFFERENCE_MAX: f64 = 0.05;

/// Several runs side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The catalog's name.
    pub catalog: String,
    /// How the intervals were made.
    pub bootstrap: Bootstrap,
    /// The modes, the reference first.
    pub columns: Vec<Column>,
    /// The figures, in the order of the reference's metrics.
    pub rows: Vec<Row>,
    /// What it all comes to.
    pub overall: Overall,
}

/// Runs that are blocks of one thing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    /// The mode, with the TDF where the mode is not enough.
    pub name: String,
    /// The mode.
    pub mode: Mode,
    /// TDF, as text.
    pub tdf: String,
    /// Scale factor.
    pub scale: f64,
    /// By what the speeds of nodes that generate no load were multiplied.
    pub speed: f64,
    /// The workload's parameters.
    pub parameters: BTreeMap<String, String>,
    /// The runs' labels.
    pub runs: Vec<String>,
    /// Host core to the median CPU time of its fixed-work probe over all blocks.
    pub host_probe_ns: BTreeMap<u32, u64>,
    /// The largest relative difference of a core's probe from the reference's.
    pub host_difference: Option<f64>,
    /// How its nodes were metered, if they were.
    pub meter: Option<MeterFacts>,
    /// Why no figure of this column supports a verdict; none when they do.
    pub no_verdict: Option<String>,
    /// What its runs that are not trustworthy say of themselves.
    pub distrusted: Vec<Distrusted>,
    /// What its runs did without on their host.
    pub without: BTreeSet<String>,
}

/// A run that is not trustworthy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distrusted {
    /// The run's label.
    pub run: String,
    /// Why, and what to do.
    pub verdict: Verdict,
}

/// One figure in every column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The metric.
    pub metric: String,
    /// `value` of a number, `mean`, `p50`… of samples, or `KS distance`.
    pub figure: String,
    /// The unit.
    pub unit: String,
    /// How far off it may be.
    pub bar: Option<f64>,
    /// One for each column.
    pub cells: Vec<Cell>,
}

/// One figure in one column.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cell {
    /// The pooled value.
    pub value: Option<f64>,
    /// How many of the runs have the metric and not one value of it.
    pub none: usize,
    /// Each block's own value.
    pub blocks: Vec<f64>,
    /// `(largest - smallest block) / value`, with two blocks or more.
    pub spread: Option<f64>,
    /// Relative error against the reference.
    pub error: Option<f64>,
    /// Its 95 % interval.
    pub interval: Option<Interval>,
    /// What the bar says.
    pub judged: Option<Judged>,
}

/// What a comparison comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "overall", rename_all = "snake_case")]
pub enum Overall {
    /// Every figure with a bar passes.
    Pass,
    /// Some fail.
    Fail {
        /// Which.
        figures: Vec<String>,
    },
    /// None fails, some need more samples.
    Inconclusive {
        /// Which.
        figures: Vec<String>,
    },
    /// The runs don't support one.
    NoVerdict {
        /// Why.
        reasons: Vec<String>,
        /// Figures that miss their bars all the same.
        failed: Vec<String>,
    },
}

/// What tells the blocks of one column from those of another.
#[derive(PartialEq)]
struct Key<'a> {
    mode: Mode,
    tdf: String,
    scale: f64,
    speed: f64,
    parameters: &'a BTreeMap<String, String>,
}

fn key(run: &Run) -> Key<'_> {
    let header = &run.summary.header;
    // Scale means nothing where nothing is scaled, and must not keep two baselines apart.
    let scale = if matches!(header.mode, Mode::Baseline | Mode::Native) { 1.0 } else { header.scale };
    Key { mode: header.mode, tdf: header.tdf.to_string(), scale, speed: header.speed, parameters: &header.parameters }
}

/// A grain below what a host can keep is found anew by each command.
const GRAIN_DIFFERENCE_MAX: f64 = 0.05;

fn same_meter(run: &Run, other: &Run) -> bool {
    match (&run.summary.header.meter, &other.summary.header.meter) {
        (Some(meter), Some(other)) => {
            let error = relative_error(meter.grain_ns as f64, other.grain_ns as f64);
            error.is_some_and(|error| error.abs() <= GRAIN_DIFFERENCE_MAX)
                && *meter == MeterFacts { grain_ns: meter.grain_ns, ..other.clone() }
        }
        (meter, other) => meter == other,
    }
}

impl Comparison {
    /// Compares runs; none when there are none.
    pub fn new(runs: &[Run], bootstrap: Bootstrap) -> Option<Comparison> {
        let groups = group(runs);
        let reference = groups.first()?;
        let columns: Vec<Column> = groups.iter().map(|group| column(group, reference, &groups)).collect();
        let mut rows = Vec::new();
        for metric in &reference[0].summary.metrics {
            match &metric.data {
                MetricData::Scalar { .. } => rows.push(scalar_row(&metric.name, &metric.unit, &groups)),
                MetricData::Samples { .. } => {
                    let show = shown(&metric.name, &groups);
                    rows.extend(sample_rows(&metric.name, &metric.unit, &show, &groups, bootstrap));
                }
            }
        }
        let overall = overall(&columns, &rows);
        Some(Comparison { catalog: reference[0].summary.header.catalog.clone(), bootstrap, columns, rows, overall })
    }

    /// As JSON text.
    pub fn to_json(&self) -> String {
        crate::to_json(self)
    }
}

/// The groups of runs, the reference first, then by mode; blocks keep their order.
pub(crate) fn group(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    for run in runs {
        match groups.iter_mut().find(|group| key(group[0]) == key(run) && same_meter(group[0], run)) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    let mode = |group: &Vec<&Run>| group[0].summary.header.mode;
    let has_reference = groups.iter().any(|group| matches!(mode(group), Mode::Baseline | Mode::Native));
    if has_reference {
        groups.sort_by_key(mode);
    } else if groups.len() > 1 {
        groups[1..].sort_by_key(mode);
    }
    groups
}

fn column(group: &[&Run], reference: &[&Run], groups: &[Vec<&Run>]) -> Column {
    let header = &group[0].summary.header;
    let same_mode = groups.iter().filter(|other| other[0].summary.header.mode == header.mode).count();
    let distinct = || {
        let parameters: Vec<String> = header.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let speed = speed_text(" ", header.speed);
        let meter = header.meter.as_ref().map_or(String::new(), |meter| {
            let kernel = if meter.counts_kernel { "" } else { " in user mode only" };
            let debt = if meter.packets_tell { "" } else { " without debt at egress" };
            format!(" grain {} hits from {}{kernel}{debt}", duration(meter.grain_ns as f64), meter.hits_from)
        });
        format!("{} TDF {} scale {}{speed}{meter} {}", header.mode, header.tdf, header.scale, parameters.join(" "))
    };
    let host_probe_ns = host_probe(group);
    let host_difference = host_difference(&host_probe_ns, &host_probe(reference));
    Column {
        name: if same_mode > 1 { distinct().trim_end().to_owned() } else { header.mode.to_string() },
        mode: header.mode,
        tdf: header.tdf.to_string(),
        scale: header.scale,
        speed: header.speed,
        parameters: header.parameters.clone(),
        runs: group.iter().map(|run| run.label.clone()).collect(),
        meter: header.meter.clone(),
        distrusted: group.iter().copied().filter_map(distrusted).collect(),
        without: group.iter().flat_map(|run| run.summary.verdict.without.iter().cloned()).collect(),
        no_verdict: no_verdict(group, reference, host_difference),
        host_probe_ns,
        host_difference,
    }
}

/// A speed factor with what comes before it; 1 is not worth a word.
pub(crate) fn speed_text(before: &str, speed: f64) -> String {
    if speed == 1.0 { String::new() } else { format!("{before}speed x {speed}") }
}

fn host_probe(group: &[&Run]) -> BTreeMap<u32, u64> {
    let mut turns: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for core in group.iter().flat_map(|run| &run.summary.fidelity.host_speed) {
        turns.entry(core.core).or_default().extend(&core.probe_ns);
    }
    let median = |turns: Vec<u64>| Statistic::P50.of(&turns).map_or(0, |median| median as u64);
    turns.into_iter().map(|(core, turns)| (core, median(turns))).collect()
}

/// The largest relative difference over the reference's cores; none where a core was not probed on both sides.
fn host_difference(measured: &BTreeMap<u32, u64>, reference: &BTreeMap<u32, u64>) -> Option<f64> {
    let differences = reference
        .iter()
        .map(|(core, &reference)| relative_error(*measured.get(core)? as f64, reference as f64).map(f64::abs));
    let differences: Vec<f64> = differences.collect::<Option<_>>()?;
    differences.into_iter().reduce(f64::max)
}

fn no_verdict(group: &[&Run], reference: &[&Run], host_difference: Option<f64>) -> Option<String> {
    let (first, other) = (&group[0].summary.header, &reference[0].summary.header);
    if group.iter().chain(reference).any(|run| run.summary.header.catalog_hash != other.catalog_hash) {
        return Some("the runs are of different catalogs".into());
    }
    if first.speed != other.speed {
        return Some(format!("its nodes have other speeds than the {}'s", other.mode));
    }
    if let Some(differs) = group.iter().find_map(|run| other_machines(&run.summary.header, other)) {
        return Some(differs);
    }
    if first.parameters != other.parameters {
        return Some(format!("its workload has other parameters than the {}'s", other.mode));
    }
    for run in group {
        match &run.summary.outcome {
            None => return Some(format!("{} was killed before its end", run.label)),
            Some(Outcome::Failed { reason }) => return Some(format!("{} failed: {}", run.label, first_line(reason))),
            Some(Outcome::Completed) if !run.summary.verdict.trustworthy => {
                return Some(not_trustworthy(&run.label, &run.summary.verdict));
            }
            Some(Outcome::Completed) => {}
        }
    }
    match host_difference {
        None => Some("the host's speed was not probed".into()),
        Some(difference) if difference > HOST_SPEED_DIFFERENCE_MAX => Some(format!(
            "the host's speed differs by {} from the reference's, at most {} allows a verdict",
            percent(difference),
            percent(HOST_SPEED_DIFFERENCE_MAX)
        )),
        Some(_) => None,
    }
}

fn distrusted(run: &Run) -> Option<Distrusted> {
    let verdict = &run.summary.verdict;
    (!verdict.trustworthy).then(|| Distrusted { run: run.label.clone(), verdict: verdict.clone() })
}

/// The first reason, and how many more there are.
fn not_trustworthy(label: &str, verdict: &Verdict) -> String {
    let Some(reason) = verdict.reasons.first() else { return format!("{label} is not trustworthy") };
    let more = match verdict.reasons.len() - 1 {
        0 => String::new(),
        1 => ", and 1 reason more".into(),
        n => format!(", and {n} reasons more"),
    };
    let (what, measured, budget, advice) = (&reason.what, &reason.measured, &reason.budget, &reason.advice);
    format!("{label} is not trustworthy: {what} {measured}, {budget} expected{more}; {advice}")
}

/// Speeds by score are measured anew by each command.
fn other_machines(header: &Header, reference: &Header) -> Option<String> {
    let (node, speed, expected) = header.nodes.iter().find_map(|node| {
        let other = reference.nodes.iter().find(|other| other.name == node.name)?;
        let error = relative_error(node.speed, other.speed)?.abs();
        (error > HOST_SPEED_DIFFERENCE_MAX).then_some((&node.name, node.speed, other.speed))
    })?;
    Some(format!("{node} has the speed {speed} here and {expected} in the {}", reference.mode))
}

/// A reason without what the program printed last.
fn first_line(reason: &str) -> &str {
    let line = reason.lines().next().unwrap_or_default();
    line.strip_suffix("; its last lines:").unwrap_or(line)
}

fn bar_of(figure: Option<Statistic>, unit: &str) -> Option<f64> {
    match figure {
        None if unit.ends_with("/s") => Some(BAR_RATE),
        Some(Statistic::P50) => Some(BAR_MEDIAN),
        Some(Statistic::P99) => Some(BAR_P99),
        _ => None,
    }
}

fn data<'a>(metric: &str, group: &[&'a Run]) -> impl Iterator<Item = &'a MetricData> {
    let metrics = group.iter().flat_map(|run| &run.summary.metrics);
    metrics.filter(move |value| value.name == metric).map(|value| &value.data)
}

/// The figures that a metric of samples is shown in: those of the first run that has samples of it. Where none has, the
/// median, so that a row says so.
fn shown(metric: &str, groups: &[Vec<&Run>]) -> Vec<Statistic> {
    let shows = groups.iter().flat_map(|group| data(metric, group)).filter_map(|data| match data {
        MetricData::Samples { show, .. } => Some(show),
        MetricData::Scalar { .. } => None,
    });
    let first = shows.into_iter().find(|show| !show.is_empty());
    first.map_or_else(|| vec![Statistic::P50], |show| show.iter().map(|shown| shown.statistic).collect())
}

/// The runs' numbers; none for a run whose programs had none.
fn scalars(metric: &str, group: &[&Run]) -> Vec<Option<f64>> {
    let numbers = data(metric, group).filter_map(|data| match data {
        MetricData::Scalar { value, .. } => Some(*value),
        MetricData::Samples { .. } => None,
    });
    numbers.collect()
}

fn scalar_row(metric: &str, unit: &str, groups: &[Vec<&Run>]) -> Row {
    let bar = bar_of(None, unit);
    let mean = |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let mut cells: Vec<Cell> = Vec::new();
    for group in groups {
        let numbers = scalars(metric, group);
        let blocks: Vec<f64> = numbers.iter().copied().flatten().collect();
        let none = numbers.len() - blocks.len();
        let cell = Cell { none, ..cell_of(mean(&blocks), blocks) };
        let Some(reference) = cells.first() else {
            cells.push(cell);
            continue;
        };
        let pairs = reference.blocks.iter().flat_map(|&r| cell.blocks.iter().map(move |&m| relative_error(m, r)));
        let interval = pairs.collect::<Option<Vec<f64>>>().filter(|errors| !errors.is_empty()).map(|errors| Interval {
            low: errors.iter().copied().fold(f64::INFINITY, f64::min),
            high: errors.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        });
        let cell = against(cell, reference, interval, bar);
        cells.push(cell);
    }
    Row { metric: metric.into(), figure: "value".into(), unit: unit.into(), bar, cells }
}

/// The parts of a metric's samples in a run or in a group of runs.
fn parts<'a>(metric: &str, group: &[&'a Run]) -> Vec<&'a [u64]> {
    group.iter().filter_map(|run| run.samples.get(metric)).flatten().map(Vec::as_slice).collect()
}

/// The same, each run by itself.
fn parts_by_run<'a>(metric: &str, group: &[&'a Run]) -> Vec<Vec<&'a [u64]>> {
    group.iter().map(|run| parts(metric, &[*run])).collect()
}

/// All samples of a group, ascending.
pub(crate) fn pooled(metric: &str, group: &[&Run]) -> Vec<u64> {
    let mut pooled = parts(metric, group).concat();
    pooled.sort_unstable();
    pooled
}

fn sample_rows(metric: &str, unit: &str, show: &[Statistic], groups: &[Vec<&Run>], bootstrap: Bootstrap) -> Vec<Row> {
    let figures: Vec<Figure> = show.iter().map(|&statistic| Figure::Of(statistic)).collect();
    let row =
        |figure: String, unit: &str, bar| Row { metric: metric.into(), figure, unit: unit.into(), bar, cells: vec![] };
    let mut rows: Vec<Row> = show.iter().map(|s| row(s.to_string(), unit, bar_of(Some(*s), unit))).collect();
    let mut distances = row("KS distance".into(), "", None);
    let reference = pooled(metric, &groups[0]);
    for (index, group) in groups.iter().enumerate() {
        let all = pooled(metric, group);
        let blocks: Vec<Vec<u64>> = group.iter().map(|run| pooled(metric, &[run])).collect();
        let none =
            group.iter().zip(&blocks).filter(|(run, all)| run.samples.contains_key(metric) && all.is_empty()).count();
        let intervals = if index == 0 {
            vec![None; figures.len()]
        } else {
            let (references, measured) = (parts_by_run(metric, &groups[0]), parts_by_run(metric, group));
            paired_error_intervals(&references, &measured, &figures, bootstrap).unwrap_or_else(|| {
                relative_error_intervals(&parts(metric, &groups[0]), &parts(metric, group), &figures, bootstrap)
            })
        };
        for ((row, &statistic), interval) in rows.iter_mut().zip(show).zip(intervals) {
            let values = blocks.iter().filter_map(|block| statistic.of_sorted(block).ok()).collect();
            let cell = Cell { none, ..cell_of(statistic.of_sorted(&all).ok(), values) };
            let cell = if index == 0 { cell } else { against(cell, &row.cells[0], interval, row.bar) };
            row.cells.push(cell);
        }
        // Between the blocks of one column the largest distance of a pair is the spread.
        let pairs = (0..blocks.len()).flat_map(|i| (i + 1..blocks.len()).map(move |j| (i, j)));
        distances.cells.push(Cell {
            value: if index == 0 { None } else { ks_distance(&reference, &all) },
            spread: pairs.filter_map(|(i, j)| ks_distance(&blocks[i], &blocks[j])).reduce(f64::max),
            ..Cell::default()
        });
    }
    rows.push(distances);
    rows
}

fn cell_of(value: Option<f64>, blocks: Vec<f64>) -> Cell {
    let extremes = blocks.iter().copied().reduce(f64::max).zip(blocks.iter().copied().reduce(f64::min));
    let spread = extremes.zip(value).filter(|_| blocks.len() > 1).and_then(|((most, least), value)| {
        // The distance of the extremes as a share of the pooled value.
        relative_error(value.abs() + (most - least), value.abs())
    });
    Cell { value, spread, blocks, ..Cell::default() }
}

fn against(cell: Cell, reference: &Cell, interval: Option<Interval>, bar: Option<f64>) -> Cell {
    let error = cell.value.zip(reference.value).and_then(|(value, reference)| relative_error(value, reference));
    let lacks = |cell: &Cell| cell.value.is_none() && cell.none == 0;
    let judged = match (cell.none > 0, reference.none > 0) {
        _ if lacks(&cell) || lacks(reference) => None,
        (false, false) => {
            error.zip(interval).zip(bar).map(|((error, interval), bar)| judge_error(error, interval, bar))
        }
        (true, true) => bar.map(|_| Judged::Inconclusive),
        _ => bar.map(|_| Judged::Fail),
    };
    Cell { error, interval, judged, ..cell }
}

/// Naive is shown, never judged as a whole: it is expected to be wrong.
fn overall(columns: &[Column], rows: &[Row]) -> Overall {
    let counted: Vec<usize> = (0..columns.len()).filter(|&i| i == 0 || columns[i].mode != Mode::Naive).collect();
    let reasons: BTreeSet<String> = counted
        .iter()
        .filter_map(|&i| columns[i].no_verdict.as_ref().map(|why| format!("{}: {why}", columns[i].name)))
        .collect();
    let with = |wanted: Judged| -> Vec<String> {
        let judged = rows.iter().flat_map(|row| counted.iter().map(move |&i| (row, i)));
        judged
            .filter(|(row, i)| row.cells[*i].judged == Some(wanted))
            .map(|(row, i)| format!("{} {} ({})", row.metric, row.figure, columns[i].name))
            .collect()
    };
    let (failed, open, passed) = (with(Judged::Fail), with(Judged::Inconclusive), with(Judged::Pass));
    if !reasons.is_empty() {
        Overall::NoVerdict { reasons: reasons.into_iter().collect(), failed }
    } else if !failed.is_empty() {
        Overall::Fail { figures: failed }
    } else if !open.is_empty() {
        Overall::Inconclusive { figures: open }
    } else if passed.is_empty() {
        Overall::NoVerdict { reasons: vec!["no figure with a bar in a mode to judge".into()], failed }
    } else {
        Overall::Pass
    }
}
