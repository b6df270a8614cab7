//! Plain text: the table at the end of a run and the table of a comparison. The verdict always comes first.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use diecast_core_journal::{FindingKind, Lateness, MetricData, NicFaults, Outcome, Verdict};

use crate::compare::{Cell, Comparison, Overall, Row, speed_text};
use crate::fidelity::Budgets;
use crate::pipes::PipeUse;
use crate::stats::{Interval, Judged};
use crate::summary::{NodeUse, RunSummary};
use crate::waits::{CAUSES as WAIT_CAUSES, NodeWaits};

/// A time span in the unit in which it has one to three digits before the point, four significant digits.
pub fn duration(ns: f64) -> String {
    scaled(ns, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")])
}

/// A share as a percentage, at most three significant digits and two after the point: `0.5 %`, `12.3 %`.
pub fn percent(share: f64) -> String {
    let rounded = (share * 10_000.0).round() / 100.0;
    format!("{} %", significant(rounded, 3))
}

/// An error: a percentage with its sign.
pub fn signed_percent(share: f64) -> String {
    format!("{}{}", if share >= 0.0 { "+" } else { "" }, percent(share))
}

/// A number of bytes in binary units.
pub fn bytes(bytes: f64) -> String {
    scaled(bytes, &[((1u64 << 30) as f64, "GiB"), ((1u64 << 20) as f64, "MiB"), (1024.0, "KiB"), (1.0, "B")])
}

/// Both ends of an interval of errors.
pub fn interval(interval: Interval) -> String {
    let low = signed_percent(interval.low);
    format!("{} … {}", low.trim_end_matches(" %"), signed_percent(interval.high))
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fits = units.iter().find(|(factor, _)| value.abs() >= *factor).or(units.last());
    fits.map_or_else(String::new, |(factor, unit)| format!("{} {unit}", significant(value / factor, 4)))
}

/// At most `digits` significant digits, without trailing zeros after the point; whole digits are never dropped.
fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { value.to_string() };
    }
    let decimals = (digits - 1 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// What stands for the value of a metric of which there is none: programs answered nothing.
pub const NONE: &str = "none";

/// A cell's value in its metric's unit. Empty where the runs don't have the metric at all.
pub fn cell_value(cell: &Cell, unit: &str) -> String {
    match (cell.value, cell.none) {
        (None, 0) => String::new(),
        (None, _) => NONE.into(),
        (Some(number), 0) => value(number, unit),
        (Some(number), runs) => format!("{} ({NONE} in {runs})", value(number, unit)),
    }
}

/// A value in its metric's unit.
pub fn value(value: f64, unit: &str) -> String {
    match unit {
        "ns" => duration(value),
        "us" | "µs" => duration(value * 1e3),
        "ms" => duration(value * 1e6),
        "s" => duration(value * 1e9),
        "bytes" | "B" => bytes(value),
        "" => significant(value, 3),
        _ => format!("{} {unit}", significant(value, 4)),
    }
}

/// An aligned table without lines; the first `left` columns are words, the others are numbers.
fn table(header: &[&str], left: usize, rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        column.set_cell_alignment(if index < left { CellAlignment::Left } else { CellAlignment::Right });
    }
    format!("{}\n", table.trim_fmt())
}

/// The verdict's lines.
pub fn verdict(verdict: &Verdict) -> String {
    let mut without = String::new();
    if !verdict.without.is_empty() {
        without += "  without, on this host:\n";
        verdict.without.iter().for_each(|what| without += &format!("    {what}\n"));
    }
    if verdict.trustworthy {
        return format!("trustworthy: every fidelity budget was kept\n{without}");
    }
    let count = verdict.reasons.len();
    let mut text = format!("NOT TRUSTWORTHY: {count} {}", if count == 1 { "reason" } else { "reasons" });
    if let Some(tdf) = verdict.advised_tdf {
        let _ = write!(text, "; raise the TDF to {tdf}");
    }
    text.push('\n');
    for reason in &verdict.reasons {
        let _ = writeln!(text, "  {}: {}, expected {}", reason.what, reason.measured, reason.budget);
        let _ = writeln!(text, "    {}", reason.advice);
    }
    text + &without
}

/// The table at the end of a run.
pub fn run(summary: &RunSummary, budgets: &Budgets) -> String {
    let header = &summary.header;
    let mut text = match &summary.outcome {
        Some(Outcome::Failed { reason }) => format!("FAILED: {reason}\n"),
        Some(Outcome::Completed) => String::new(),
        None => "KILLED: the run has no end\n".into(),
    };
    text += &verdict(&summary.verdict);
    let _ = writeln!(
        text,
        "\n{}: mode {}, TDF {}, scale {}{}, seed {}, lab {}",
        header.catalog,
        header.mode,
        header.tdf,
        header.scale,
        speed_text(", ", header.speed),
        header.seed,
        header.lab
    );
    let _ = writeln!(
        text,
        "measured {} virtual in {} real; the whole run took {} real\n",
        duration(summary.v_measured_ns as f64),
        duration(summary.r_measured_ns as f64),
        duration(summary.r_total_ns as f64)
    );
    text += &metrics(summary);
    text += &nodes(summary);
    text += &pipes(summary);
    let checks = summary.fidelity.checks(budgets);
    let rows = checks.into_iter().map(|check| {
        let mark = if check.exceeded { "exceeded" } else { "" };
        vec![check.what, check.measured, check.budget, mark.into()]
    });
    text.push('\n');
    text += &table(&["fidelity", "measured", "budget", ""], 1, rows.collect());
    text += &lateness(summary);
    text += &waits(summary);
    text += &notes(summary);
    text
}

/// How late packets left, and threads of the node where they were latest.
fn lateness(summary: &RunSummary) -> String {
    let fidelity = &summary.fidelity;
    let worst = fidelity.ledgers.iter().max_by_key(|ledger| ledger.v_p99_ns);
    let row = |late: &Lateness| {
        let who = late.node.as_ref().map_or("packets".to_owned(), |node| format!("threads of {node}"));
        let spans = [late.v_p50_ns, late.v_p99_ns, late.v_p999_ns, late.v_max_ns].map(|v| duration(v.ns() as f64));
        [vec![who, late.events.to_string()], spans.into()].concat()
    };
    let rows: Vec<Vec<String>> =
        fidelity.emulator.iter().chain(worst).filter(|late| late.events > 0).map(row).collect();
    let header = ["lateness, virtual", "events", "p50", "p99", "p99.9", "max"];
    if rows.is_empty() { String::new() } else { format!("\n{}", table(&header, 1, rows)) }
}

/// Shortest share of the measured time for which a node's threads must have waited to be shown.
const WAITED_SHOWN: f64 = 0.001;

/// What threads waited for when they wanted a core, where any node's waited.
fn waits(summary: &RunSummary) -> String {
    let all = &summary.fidelity.waits;
    let long = |node: &&NodeWaits| node.waited_ns as f64 > summary.r_measured_ns as f64 * WAITED_SHOWN;
    let shown: Vec<&NodeWaits> = all.iter().filter(long).collect();
    if shown.is_empty() {
        return String::new();
    }
    let row = |node: &&NodeWaits| {
        let mut cells = vec![node.node.clone(), duration(node.waited_ns as f64)];
        cells.extend(node.shares().map_or_else(Vec::new, |shares| shares.map(percent).into()));
        cells.resize(2 + WAIT_CAUSES.len(), String::new());
        cells
    };
    let mut header = vec!["threads that waited for a core", "real time"];
    header.extend(WAIT_CAUSES);
    let mut text = format!("\n{}", table(&header, 1, shown.iter().map(row).collect()));
    if shown.iter().any(|node| node.causes.is_none()) {
        text += "without causes: one sum from schedstat, since BPF programs can't tell on this host\n";
    }
    text
}

/// Findings without a budget: what a reader of the numbers must know all the same.
fn notes(summary: &RunSummary) -> String {
    let kinds = [FindingKind::ClampedSysctl, FindingKind::Warning];
    let told = summary.fidelity.findings.iter().filter(|total| kinds.contains(&total.kind));
    let lines: String = told.flat_map(|total| &total.details).map(|detail| format!("  {detail}\n")).collect();
    if lines.is_empty() { lines } else { format!("\nnotes\n{lines}") }
}

fn metrics(summary: &RunSummary) -> String {
    let mut rows = Vec::new();
    for metric in &summary.metrics {
        match &metric.data {
            MetricData::Scalar { value: number, .. } => {
                let figure = number.map_or(NONE.into(), |number| value(number, &metric.unit));
                rows.push(vec![metric.name.clone(), String::new(), figure, String::new()]);
            }
            MetricData::Samples { count: 0, .. } => {
                rows.push(vec![metric.name.clone(), String::new(), NONE.into(), "0".into()]);
            }
            MetricData::Samples { count, show, .. } => {
                for shown in show {
                    let figure = value(shown.value, &metric.unit);
                    rows.push(vec![metric.name.clone(), shown.statistic.to_string(), figure, count.to_string()]);
                }
            }
        }
    }
    table(&["metric", "figure", "value", "samples"], 2, rows)
}

fn nodes(summary: &RunSummary) -> String {
    let mut rows = Vec::new();
    for node in &summary.nodes {
        let per_s = |amount: u64| amount as f64 * 1e9 / node.v_span_ns.max(1) as f64;
        rows.push(vec![
            node.node.clone(),
            percent(node.cpu_share),
            bytes(node.memory_max_bytes as f64),
            format!("{}/s", bytes(per_s(node.sent_bytes))),
            format!("{}/s", bytes(per_s(node.received_bytes))),
            format!("{} packets/s", significant(per_s(node.sent_packets + node.received_packets), 4)),
            node.dropped_packets.to_string(),
        ]);
    }
    let header = ["node", "CPU of its machine", "memory", "sent", "received", "both ways", "dropped"];
    format!("\n{}{}", table(&header, 1, rows), nics(summary))
}

/// NICs at which frames were lost, by cause; nothing when there is none.
fn nics(summary: &RunSummary) -> String {
    let faults = summary.nodes.iter().flat_map(|node| node.nic_faults.iter().map(move |nic| (node, nic)));
    let row = |(node, nic): (&NodeUse, &NicFaults)| {
        let away = nic.gone.then(|| "the device went away".to_owned());
        let causes: Vec<String> = counted(&nic.causes()).into_iter().chain(away).collect();
        vec![format!("{} {}", node.node, nic.nic), nic.total().to_string(), causes.join(", ")]
    };
    let rows: Vec<Vec<String>> = faults.map(row).collect();
    if rows.is_empty() { String::new() } else { format!("\n{}", table(&["NIC", "dropped", ""], 1, rows)) }
}

/// Those causes that occurred, with their numbers.
fn counted(causes: &[(u64, &str)]) -> Vec<String> {
    causes.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{n} {why}")).collect()
}

/// Pipes that dropped packets or were more than half used; one line when there is none.
fn pipes(summary: &RunSummary) -> String {
    let notable: Vec<&PipeUse> = summary.pipes.iter().filter(|pipe| pipe.is_notable()).collect();
    let mut text = String::from("\n");
    if notable.is_empty() {
        let _ = writeln!(text, "{} pipes in use: none dropped a packet, none was used over 50 %", summary.pipes.len());
    } else {
        let rows = notable.iter().map(|pipe| pipe_row(pipe)).collect();
        text += &table(&["pipe", "used", "packets", "longest queue", "dropped", ""], 1, rows);
    }
    for change in &summary.network_changes {
        let after = change.v_ns.since(summary.header.v_start_ns).as_secs_f64();
        let _ = writeln!(text, "changed {after:.6} s after the lab's start: {}", change.change);
    }
    text
}

fn pipe_row(pipe: &PipeUse) -> Vec<String> {
    let d = &pipe.dropped;
    let causes = [
        (d.queue_full, "full queue"),
        (d.early, "early"),
        (d.loss, "loss"),
        (d.down, "cut off"),
        (d.cut, "cut while sent"),
    ];
    vec![
        format!("{}:{}", pipe.from, pipe.to),
        percent(pipe.utilisation),
        pipe.packets_sent.to_string(),
        format!("{} packets", pipe.queue_packets_max),
        d.total().to_string(),
        counted(&causes).join(", "),
    ]
}

/// The verdict line of a comparison.
pub fn overall(overall: &Overall) -> String {
    match overall {
        Overall::Pass => "PASS: every figure with a bar is inside it\n".into(),
        Overall::Fail { figures } => format!("FAIL: {}\n", figures.join(", ")),
        Overall::Inconclusive { figures } => format!("INCONCLUSIVE: {}\n", figures.join(", ")),
        Overall::NoVerdict { reasons, failed } if failed.is_empty() => format!("NO VERDICT: {}\n", reasons.join("; ")),
        Overall::NoVerdict { reasons, failed } => {
            format!("NO VERDICT: {}\nFAIL all the same: {}\n", reasons.join("; "), failed.join(", "))
        }
    }
}

/// The table of a comparison.
pub fn comparison(comparison: &Comparison) -> String {
    let mut text = overall(&comparison.overall);
    let _ = writeln!(text, "\n{}, errors against {}", comparison.catalog, comparison.columns[0].name);
    for column in &comparison.columns {
        let why = column.no_verdict.as_ref().map_or(String::new(), |why| format!(" (no verdict: {why})"));
        let runs = column.runs.join(" ");
        let (tdf, scale, speed) = (&column.tdf, column.scale, speed_text(", ", column.speed));
        let _ = writeln!(text, "  {}: TDF {tdf}, scale {scale}{speed}, runs {runs}{why}", column.name);
        for run in &column.distrusted {
            for reason in &run.verdict.reasons {
                let (what, measured, budget, advice) = (&reason.what, &reason.measured, &reason.budget, &reason.advice);
                let _ = writeln!(text, "    {}: {what}: {measured}, expected {budget}; {advice}", run.run);
            }
        }
        column.without.iter().for_each(|what| text += &format!("    without, on its host: {what}\n"));
    }
    let mut header = vec!["metric".to_owned(), "figure".to_owned()];
    for (index, column) in comparison.columns.iter().enumerate() {
        header.push(column.name.clone());
        if column.runs.len() > 1 {
            header.push("spread".into());
        }
        if index > 0 {
            header.extend(["error".into(), "95 % interval".into()]);
        }
    }
    header.push("bar".into());
    header.extend(judged_columns(comparison).map(|index| comparison.columns[index].name.clone()));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let rows = comparison.rows.iter().map(|row| comparison_row(comparison, row)).collect();
    text.push('\n');
    text += &table(&header, 2, rows);
    text.push('\n');
    text += &host(comparison);
    let bootstrap = comparison.bootstrap;
    let _ = writeln!(
        text,
        "\nintervals: moving-block bootstrap, {} resamples, seed {}, of the same requests on both sides where runs have as \
         many; of a number per run the range over all pairs of runs\npercentiles: nearest rank over pooled raw samples",
        bootstrap.resamples, bootstrap.seed
    );
    text
}

fn judged_columns(comparison: &Comparison) -> impl Iterator<Item = usize> {
    1..comparison.columns.len()
}

fn comparison_row(comparison: &Comparison, row: &Row) -> Vec<String> {
    let some = |text: Option<String>| text.unwrap_or_default();
    let mut cells = vec![row.metric.clone(), row.figure.clone()];
    for (index, (column, cell)) in comparison.columns.iter().zip(&row.cells).enumerate() {
        cells.push(cell_value(cell, &row.unit));
        if column.runs.len() > 1 {
            let is_distance = row.figure == "KS distance";
            cells.push(some(cell.spread.map(|s| if is_distance { significant(s, 3) } else { percent(s) })));
        }
        if index > 0 {
            cells.push(some(cell.error.map(signed_percent)));
            cells.push(some(cell.interval.map(interval)));
        }
    }
    cells.push(some(row.bar.map(percent)));
    cells.extend(judged_columns(comparison).map(|index| judged(&row.cells[index])));
    cells
}

fn judged(cell: &Cell) -> String {
    cell.judged.map_or("", Judged::name).to_owned()
}

fn host(comparison: &Comparison) -> String {
    let cores: Vec<u32> = comparison.columns.iter().flat_map(|column| column.host_probe_ns.keys().copied()).collect();
    let cores: std::collections::BTreeSet<u32> = cores.into_iter().collect();
    let mut header = vec!["host speed (probe, median)".to_owned()];
    header.extend(cores.iter().map(|core| format!("core {core}")));
    header.push("difference".into());
    let rows = comparison.columns.iter().map(|column| {
        let mut cells = vec![column.name.clone()];
        let probe = |core| column.host_probe_ns.get(core).map_or("not probed".into(), |&ns| duration(ns as f64));
        cells.extend(cores.iter().map(probe));
        cells.push(column.host_difference.map_or("unknown".into(), percent));
        cells
    });
    table(&header.iter().map(String::as_str).collect::<Vec<_>>(), 1, rows.collect())
}
