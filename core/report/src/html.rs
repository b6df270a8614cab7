//! A comparison as one self-contained HTML page: no script, no font, no picture from elsewhere.

use diecast_core_journal::{MetricData, NodeSample};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::compare::{Comparison, Overall, group, pooled};
use crate::pipes::{self, PipeSeries};
use crate::plot::{self, Bar, Line};
use crate::stats::Judged;
use crate::summary::Run;
use crate::text;

const STYLE: &str = "
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.verdict { padding: .7rem 1rem; border-left: .4rem solid #888; background: #f4f4f4; white-space: pre-wrap; }
.pass { border-color: #2a7f3f; } .fail { border-color: #c0392b; } .open { border-color: #c98a00; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { font-weight: 600; } td.word, th.word { text-align: left; }
td.fail { color: #c0392b; font-weight: 600; } td.pass { color: #2a7f3f; }
.scroll { overflow-x: auto; } svg { width: 100%; height: auto; } .note { color: #666; font-size: .9rem; }
";

/// The page. `runs` are those that the comparison was made of.
pub fn comparison(comparison: &Comparison, runs: &[Run]) -> String {
    let class = match comparison.overall {
        Overall::Pass => "pass",
        Overall::Fail { .. } => "fail",
        Overall::Inconclusive { .. } | Overall::NoVerdict { .. } => "open",
    };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (comparison.catalog) ": comparison" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (comparison.catalog) }
                p.note { "errors against " (comparison.columns[0].name) }
                p class={ "verdict " (class) } { (text::overall(&comparison.overall).trim_end()) }
                (table(comparison))
                (errors(comparison))
                (distributions(runs))
                (cpu(runs))
                (network(runs))
                (lateness(runs))
                (host(comparison))
                (provenance(comparison, runs))
            }
        }
    };
    page.into_string()
}

fn table(comparison: &Comparison) -> Markup {
    html! {
        h2 { "Figures" }
        div.scroll { table {
            tr {
                th.word { "metric" } th.word { "figure" }
                @for (index, column) in comparison.columns.iter().enumerate() {
                    th { (column.name) }
                    @if column.runs.len() > 1 { th { "spread" } }
                    @if index > 0 { th { "error" } th { "95 % interval" } th { "" } }
                }
                th { "bar" }
            }
            @for row in &comparison.rows {
                tr {
                    td.word { (row.metric) } td.word { (row.figure) }
                    @for (index, (column, cell)) in comparison.columns.iter().zip(&row.cells).enumerate() {
                        td { (text::cell_value(cell, &row.unit)) }
                        @if column.runs.len() > 1 {
                            td { @if let Some(spread) = cell.spread { (text::percent(spread)) } }
                        }
                        @if index > 0 {
                            td { @if let Some(error) = cell.error { (text::signed_percent(error)) } }
                            td { @if let Some(interval) = cell.interval { (text::interval(interval)) } }
                            td class=(judged_class(cell.judged)) { (cell.judged.map_or("", Judged::name)) }
                        }
                    }
                    td { @if let Some(bar) = row.bar { (text::percent(bar)) } }
                }
            }
        } }
    }
}

fn judged_class(judged: Option<Judged>) -> &'static str {
    match judged {
        Some(Judged::Pass) => "pass",
        Some(Judged::Fail) => "fail",
        Some(Judged::Inconclusive) | None => "",
    }
}

fn figure(svg: Option<String>) -> Markup {
    match svg {
        Some(svg) => html! { (PreEscaped(svg)) },
        None => html! { p.note { "nothing to draw" } },
    }
}

fn errors(comparison: &Comparison) -> Markup {
    let mut bars = Vec::new();
    for row in &comparison.rows {
        for (column, cell) in comparison.columns.iter().zip(&row.cells) {
            let Some(error) = cell.error else { continue };
            bars.push(Bar {
                name: format!("{} {}, {}", row.metric, row.figure, column.name),
                colour: plot::mode_colour(column.mode),
                error: error * 100.0,
                interval: cell.interval.map(|interval| (interval.low * 100.0, interval.high * 100.0)),
                bar: row.bar.map(|bar| bar * 100.0),
            });
        }
    }
    html! {
        h2 { "Relative errors" }
        p.note { "Black line: 95 % interval. Grey band: the bar." }
        (figure(plot::errors(&bars)))
    }
}

fn distributions(runs: &[Run]) -> Markup {
    let groups = group(runs);
    let metrics = groups.first().map_or(&[][..], |reference| &reference[0].summary.metrics);
    html! {
        @for metric in metrics.iter().filter(|metric| matches!(metric.data, MetricData::Samples { .. })) {
            h2 { "Distribution of " (metric.name) }
            @let lines: Vec<Line> = groups.iter().map(|group| Line {
                name: group[0].summary.header.mode.to_string(),
                colour: plot::mode_colour(group[0].summary.header.mode),
                points: plot::distribution(&pooled(&metric.name, group)),
            }).collect();
            (figure(plot::distributions(&lines, &metric.name, "requests", |value| text::value(value, &metric.unit))))
        }
    }
}

/// One plot for each mode's first run: every node's share of its machine's CPU between successive samples.
fn cpu(runs: &[Run]) -> Markup {
    html! {
        h2 { "CPU over virtual time" }
        @for group in group(runs) {
            h3 { (group[0].summary.header.mode) ", run " (group[0].label) }
            (figure(plot::over_time(&cpu_lines(group[0]), "CPU of its machine, %")))
        }
    }
}

/// How late the emulator was in each mode's first run.
fn lateness(runs: &[Run]) -> Markup {
    let groups = group(runs);
    let late = groups.iter().filter_map(|group| {
        let mode = group[0].summary.header.mode;
        let points = plot::distribution_of_buckets(&group[0].summary.fidelity.emulator.as_ref()?.v_buckets_ns);
        Some(Line { name: mode.to_string(), colour: plot::mode_colour(mode), points })
    });
    let lines: Vec<Line> = late.collect();
    html! {
        h2 { "Lateness of packets" }
        p.note { "How much later than the model says they reached their node, in virtual time: the host's error." }
        (figure(plot::distributions(&lines, "lateness", "packets", text::duration)))
    }
}

/// Samples nearer to each other than this are taken for one: at the ends of the measured phase there is one more.
const PLOT_STEP_V_NS: u64 = 100_000_000;

fn cpu_lines(run: &Run) -> Vec<Line> {
    let header = &run.summary.header;
    let lines = header.nodes.iter().enumerate().map(|(index, node)| {
        let mut samples: Vec<&NodeSample> = Vec::new();
        for sample in run.node_samples.iter().filter(|sample| sample.node == node.name) {
            if samples.last().is_none_or(|last| sample.v_ns.since(last.v_ns).ns() >= PLOT_STEP_V_NS) {
                samples.push(sample);
            }
        }
        let points = samples.windows(2).map(|pair| {
            let v_ns = pair[1].v_ns.since(pair[0].v_ns).ns().max(1) as f64;
            let used_ns = pair[1].cpu_used_ns.saturating_sub(pair[0].cpu_used_ns) as f64;
            let capacity_ns = (f64::from(node.cores) * node.speed * v_ns).max(1.0);
            (pair[1].v_ns.since(header.v_start_ns).as_secs_f64(), 100.0 * used_ns / capacity_ns)
        });
        Line { name: node.name.clone(), colour: plot::line_colour(index), points: points.collect() }
    });
    lines.collect()
}

/// Plots for each mode's first run: the pipes that had most to do, between successive samples.
fn network(runs: &[Run]) -> Markup {
    html! {
        @for group in group(runs) {
            @let series = pipes::series(&group[0].pipe_samples, group[0].summary.header.v_start_ns);
            @if series.iter().any(|s| !s.utilisation.is_empty()) {
                h2 { "Network over virtual time: " (group[0].summary.header.mode) ", run " (group[0].label) }
                (figure(plot::over_time(&pipe_lines(&series, |s| &s.utilisation), "utilisation, %")))
                (figure(plot::over_time(&pipe_lines(&series, |s| &s.queue_packets), "packets that wait")))
                @if series.iter().any(|s| s.drops.iter().any(|(_, n)| *n > 0.0)) {
                    (figure(plot::over_time(&pipe_lines(&series, |s| &s.drops), "drops a virtual second")))
                }
            }
        }
    }
}

fn pipe_lines(series: &[PipeSeries], of: fn(&PipeSeries) -> &Vec<(f64, f64)>) -> Vec<Line> {
    let line = |(index, s): (usize, &PipeSeries)| Line {
        name: s.name.clone(),
        colour: plot::line_colour(index),
        points: of(s).clone(),
    };
    series.iter().enumerate().map(line).collect()
}

fn host(comparison: &Comparison) -> Markup {
    html! {
        h2 { "The host's speed" }
        p.note { "CPU time of a fixed piece of work, median; no verdict beyond 5 % difference." }
        table {
            tr { th.word { "mode" } th.word { "cores" } th { "difference" } }
            @for column in &comparison.columns {
                tr {
                    td.word { (column.name) }
                    td.word { @for (core, &ns) in &column.host_probe_ns {
                        "core " (core) ": " (text::duration(ns as f64)) "  "
                    } }
                    td { (column.host_difference.map_or("unknown".into(), text::percent)) }
                }
            }
        }
    }
}

fn provenance(comparison: &Comparison, runs: &[Run]) -> Markup {
    html! {
        h2 { "Runs" }
        @for run in runs {
            @let header = &run.summary.header;
            details {
                summary {
                    (run.label) ": " (header.mode) ", TDF " (header.tdf) ", seed " (header.seed) ", "
                    @if run.summary.verdict.trustworthy { "trustworthy" } @else { "not trustworthy" }
                }
                pre { (text::run(&run.summary, &crate::Budgets::default())) }
            }
        }
        p.note {
            "Intervals by moving-block bootstrap, " (comparison.bootstrap.resamples) " resamples, seed "
            (comparison.bootstrap.seed) ", of the same requests on both sides where runs have as many. Percentiles are nearest rank over pooled raw samples."
        }
    }
}
