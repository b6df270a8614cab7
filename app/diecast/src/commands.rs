//! What each command does, and with which status it ends.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use diecast_core_experiment::{Experiment, SpeedPpm};
use diecast_core_journal::Outcome;
use diecast_core_plan::{Mode, Plan, PlanOptions};
use diecast_core_report::stats::Bootstrap;
use diecast_core_report::{Budgets, Comparison, Overall, Run, RunSummary, html, load_run, text};
use diecast_host_run::frame::{self, FrameError};
use diecast_host_run::{
    HitsFrom, Progress, RunError, RunOptions, default_grain_ns, hit_cost_ns, kept_grain_ns, plan_facts,
};

use crate::cli::{Catalog, Factors, FrameArgs, Meter, PlanArgs, Planned, RunArgs, ValidateArgs};

/// The experiment failed.
pub(crate) const FAILED: u8 = 1;
/// A fault in a command or a catalog.
pub(crate) const TEXT: u8 = 2;
/// The host can't.
pub(crate) const HOST: u8 = 3;
/// Success, but not trustworthy.
const DOUBTFUL: u8 = 4;

/// Seed and size of the bootstrap that comparisons use; printed with them.
const BOOTSTRAP: Bootstrap = Bootstrap { seed: 1, resamples: 1000 };

/// A message and an exit status.
pub struct Fault {
    pub text: String,
    pub status: u8,
}

pub(crate) fn fault(status: u8, text: impl std::fmt::Display) -> Fault {
    Fault { text: text.to_string(), status }
}

impl From<RunError> for Fault {
    fn from(e: RunError) -> Fault {
        match e {
            RunError::Text(t) => fault(TEXT, t),
            RunError::Host(t) if t.contains("hint:") => fault(HOST, t),
            RunError::Host(t) => fault(HOST, format!("{t}\n  hint: `diecast doctor` says what this host can't do")),
        }
    }
}

pub(crate) type Done = Result<u8, Fault>;

/// Prints a line. A reader that has left early (`| head`) is no fault of the command.
macro_rules! say {
    ($($text:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

pub fn frame(a: FrameArgs) -> Done {
    let o = frame::Options {
        tdf: a.tdf,
        speed_ppm: a.speed,
        cores: a.cores,
        grain_ns: a.meter.grain.map(|g| kept_grain(g, a.meter.hits)),
        hits_from: a.meter.hits,
        tsc: a.meter.tsc,
        call_sites: a.meter.call_sites,
        command: a.command,
        stats: a.stats,
    };
    let ended = frame::run(&o).map_err(|e| match &e {
        // As a shell does: 127 not found, 126 not executable.
        FrameError::Program { source, .. } if source.kind() == std::io::ErrorKind::NotFound => fault(127, e),
        FrameError::Program { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => fault(126, e),
        _ => fault(HOST, e),
    })?;
    for d in &ended.doubts {
        eprintln!("diecast: not trustworthy: {d}");
    }
    let status = ended.status as u8;
    Ok(if status == 0 && !ended.doubts.is_empty() { DOUBTFUL } else { status })
}

/// The grain that was asked for, or the least that this host can keep, which is said.
fn kept_grain(asked_ns: u64, hits_from: HitsFrom) -> u64 {
    let kept_ns = kept_grain_ns(asked_ns, hits_from);
    if kept_ns > asked_ns {
        let us = |ns: u64| ns as f64 / 1e3;
        let (asked, kept) = (us(asked_ns), us(kept_ns));
        eprintln!(
            "diecast: the grain is {kept} us, not {asked}: a hit of the meter costs {} us on this host",
            kept / 2.0
        );
    }
    kept_ns
}

fn read_catalog(c: &Catalog) -> Result<(Experiment, String), Fault> {
    let name = c.catalog.display().to_string();
    let text = std::fs::read_to_string(&c.catalog).map_err(|e| fault(TEXT, format!("cannot read {name}: {e}")))?;
    let folder = c.catalog.parent().unwrap_or(Path::new("")).to_owned();
    let mut load = |path: &str| std::fs::read_to_string(folder.join(path)).map_err(|e| e.to_string());
    let experiment = diecast_core_experiment::parse_with(&name, &text, &c.parameters, &mut load).map_err(|all| {
        let lines: Vec<String> = all.iter().map(ToString::to_string).collect();
        let (count, s) = (all.len(), if all.len() == 1 { "" } else { "s" });
        fault(TEXT, format!("{count} fault{s} in the catalog\n{}", lines.join("\n")))
    })?;
    Ok((experiment, text))
}

fn make_plan(e: &Experiment, p: &Planned) -> Result<Plan, Fault> {
    plan_of(e, p.mode, &p.factors, &p.meter)
}

fn plan_of(e: &Experiment, mode: Mode, f: &Factors, m: &Meter) -> Result<Plan, Fault> {
    let grain_ns = m.grain.map_or_else(default_grain_ns, |g| kept_grain(g, m.hits));
    let o = PlanOptions {
        tdf: f.tdf,
        scale: f.scale,
        speed: SpeedPpm(f.speed.into()),
        grain_ns,
        tsc: m.tsc,
        call_sites: m.call_sites,
        ..PlanOptions::new(mode)
    };
    let scores = e.machine_types.iter().any(|m| m.score_milli.is_some());
    let facts = plan_facts(scores).map_err(|e| fault(HOST, format!("measuring this host's score: {e}")))?;
    diecast_core_plan::plan(e, &facts, &o).map_err(|r| fault(r.exit_status(), r))
}

fn base_of(catalog: &Path) -> PathBuf {
    catalog.parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

fn out_directory(asked: Option<&PathBuf>, name: &str, what: &str) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    asked.cloned().unwrap_or_else(|| PathBuf::from(format!("out/{name}-{what}-{now}")))
}

fn status_of(s: &RunSummary) -> u8 {
    match &s.outcome {
        Some(Outcome::Completed) if s.verdict.trustworthy => 0,
        Some(Outcome::Completed) => DOUBTFUL,
        _ => FAILED,
    }
}

/// Naive's figures are there to miss their bars and are no part of it.
fn status_of_comparison(overall: &Overall) -> u8 {
    match overall {
        Overall::Pass => 0,
        Overall::Fail { .. } => FAILED,
        Overall::NoVerdict { failed, .. } if !failed.is_empty() => FAILED,
        Overall::Inconclusive { .. } | Overall::NoVerdict { .. } => DOUBTFUL,
    }
}

/// The status of two things that were both done: what failed outweighs what is not trustworthy.
fn both(one: u8, other: u8) -> u8 {
    if [one, other].contains(&FAILED) { FAILED } else { one.max(other) }
}

/// How a run is carried out, besides its plan.
#[derive(Clone, Copy)]
struct How {
    /// No progress on the terminal.
    quiet: bool,
    record_arrivals: bool,
    emulator_threads: usize,
    hits_from: HitsFrom,
    probe: bool,
}

fn carry_out(
    plan: &Plan,
    catalog: &Catalog,
    text: &str,
    out: &Path,
    label: &str,
    how: How,
) -> Result<RunSummary, Fault> {
    let How { quiet, record_arrivals, emulator_threads, hits_from, probe } = how;
    let progress = Progress::new(label, quiet);
    let base = base_of(&catalog.catalog);
    let o = RunOptions {
        out,
        base: &base,
        catalog_text: text,
        progress: &progress,
        record_arrivals,
        emulator_threads,
        hits_from,
        probe,
    };
    let ran = diecast_host_run::run(plan, &o)?;
    Ok(ran.summary)
}

/// What an earlier killed run left would be in the way; nothing of a living one is touched.
fn clean_first() -> Result<(), Fault> {
    let removed =
        diecast_host_node::clean().map_err(|e| fault(HOST, format!("cleaning up after an earlier run: {e}")))?;
    if !removed.is_empty() {
        eprintln!("diecast: removed what a killed run had left: {}", removed.join(", "));
    }
    Ok(())
}

pub fn run(a: &RunArgs) -> Done {
    let p = &a.planned;
    let (experiment, catalog_text) = read_catalog(&p.catalog)?;
    let plan = make_plan(&experiment, p)?;
    clean_first()?;
    let out = out_directory(a.out.as_ref(), &experiment.name, p.mode.name());
    let emulator_threads = usize::from(a.emulator.emulator_threads);
    let how = How {
        quiet: a.json,
        record_arrivals: a.record_arrivals,
        emulator_threads,
        hits_from: p.meter.hits,
        probe: !a.probe.no_probe,
    };
    let summary = carry_out(&plan, &p.catalog, &catalog_text, &out, p.mode.name(), how)?;
    if a.json {
        say!("{}", summary.to_json());
    } else {
        say!("{}\nresults are in {}", text::run(&summary, &Budgets::default()), out.display());
    }
    Ok(status_of(&summary))
}

/// The runs of a validation: blocks of one of each mode, and a baseline more at the end, so that its own spread is known.
fn in_turn<T: Copy>(blocks: usize, baseline: T, diecast: T, naive: Option<T>) -> Vec<T> {
    let block: Vec<T> = [baseline, diecast].into_iter().chain(naive).collect();
    let mut order = block.repeat(blocks);
    order.push(baseline);
    order
}

pub fn validate(a: &ValidateArgs) -> Done {
    let (experiment, catalog_text) = read_catalog(&a.catalog)?;
    let full = Factors { tdf: None, scale: None, speed: a.factors.speed };
    let scale = a.factors.scale.or(a.factors.tdf.map(Into::into));
    let scaled = Factors { scale, ..full };
    // All plans before the first run: a refusal must not come after half an hour.
    let baseline = plan_of(&experiment, Mode::Baseline, &full, &a.meter)?;
    let diecast = plan_of(&experiment, Mode::Diecast, &a.factors, &a.meter)?;
    let naive = plan_of(&experiment, Mode::Naive, &scaled, &a.meter)?;
    clean_first()?;
    let out = out_directory(a.out.as_ref(), &experiment.name, "validate");
    let order = in_turn(a.blocks as usize, &baseline, &diecast, (!a.without_naive).then_some(&naive));
    let emulator_threads = usize::from(a.emulator.emulator_threads);
    let how = How {
        quiet: a.json,
        record_arrivals: false,
        emulator_threads,
        hits_from: a.meter.hits,
        probe: !a.probe.no_probe,
    };
    let mut directories = Vec::new();
    let mut worst = 0;
    for (i, plan) in order.iter().enumerate() {
        let dir = out.join(format!("{:02}-{}", i + 1, plan.mode));
        let label = format!("{} of {}, {}", i + 1, order.len(), plan.mode);
        let mut summary = carry_out(plan, &a.catalog, &catalog_text, &dir, &label, how)?;
        for turn in 1..=a.repeat {
            let spoiled = summary.fidelity.spoiled_by_others(&Budgets::default());
            if spoiled.is_empty() {
                break;
            }
            let kept = out.join(format!("{:02}-{}-spoiled-{turn}", i + 1, plan.mode));
            std::fs::rename(&dir, &kept)
                .map_err(|e| fault(HOST, format!("renaming {} to {}: {e}", dir.display(), kept.display())))?;
            eprintln!("{label}: {}: run again; its results are in {}", spoiled.join(", "), kept.display());
            summary = carry_out(plan, &a.catalog, &catalog_text, &dir, &label, how)?;
        }
        if let Some(Outcome::Failed { reason }) = &summary.outcome {
            // Naive fails by its nature when a tenth of the CPU is too little: that is a result, and a column.
            if plan.mode != Mode::Naive {
                return Err(fault(FAILED, format!("{label}: {reason}")));
            }
            eprintln!("{label}: failed: {reason}");
        }
        if plan.mode != Mode::Naive {
            worst = both(worst, status_of(&summary));
        }
        directories.push(dir);
    }
    let page = out.join("compare.html");
    let compared = compare(&directories, Some(&page), a.json)?;
    if !a.json {
        say!("results are in {}, plots in {}", out.display(), page.display());
    }
    Ok(both(worst, compared))
}

pub fn compare(directories: &[PathBuf], page: Option<&Path>, json: bool) -> Done {
    let mut runs: Vec<Run> = Vec::new();
    for d in directories {
        let label = d.file_name().map_or_else(|| d.display().to_string(), |n| n.to_string_lossy().into_owned());
        let run = load_run(&label, &Budgets::default(), |name| std::fs::read(d.join(name)));
        runs.push(run.map_err(|e| fault(TEXT, format!("{} is no directory of results: {e}", d.display())))?);
    }
    let Some(comparison) = Comparison::new(&runs, BOOTSTRAP) else {
        return Err(fault(TEXT, "nothing to compare"));
    };
    if let Some(page) = page {
        std::fs::write(page, html::comparison(&comparison, &runs))
            .map_err(|e| fault(HOST, format!("writing {}: {e}", page.display())))?;
    }
    if json {
        say!("{}", comparison.to_json());
    } else {
        say!("{}", text::comparison(&comparison));
    }
    Ok(status_of_comparison(&comparison.overall))
}

pub fn check(c: &Catalog) -> Done {
    let (e, _) = read_catalog(c)?;
    say!(
        "{}: {} nodes, {} links, {} programs, {} metrics: no faults",
        e.file,
        e.nodes.len(),
        e.topology.links.len(),
        e.programs.len(),
        e.metrics.len()
    );
    Ok(0)
}

pub fn plan(a: &PlanArgs) -> Done {
    let (experiment, _) = read_catalog(&a.planned.catalog)?;
    let mut plan = make_plan(&experiment, &a.planned)?;
    if plan.nodes.iter().any(|n| n.envelope && n.metered) {
        plan.host.hit_cost_ns = hit_cost_ns(a.planned.meter.hits);
    }
    say!("{}", if a.json { diecast_core_report::to_json(&plan) } else { plan.render() });
    Ok(0)
}

pub fn doctor(json: bool) -> Done {
    let report = diecast_host_doctor::examine();
    say!("{}", if json { diecast_core_report::to_json(&report) } else { diecast_host_doctor::render(&report) });
    Ok(if report.can_run_labs() { 0 } else { HOST })
}

/// This machine as a machine type.
pub fn catalog_host(folder: &Path, json: bool) -> Done {
    let machine = diecast_host_doctor::machine(folder)
        .map_err(|e| fault(HOST, format!("measuring this machine, its disk in {}: {e}", folder.display())))?;
    if json {
        say!("{}", diecast_core_report::to_json(&machine));
    } else {
        say!("{}", diecast_host_doctor::render_machine(&machine));
    }
    Ok(0)
}

pub fn clean() -> Done {
    let removed = diecast_host_node::clean().map_err(|e| fault(HOST, e))?;
    if removed.is_empty() {
        say!("nothing to remove");
    }
    for r in removed {
        say!("removed {r}");
    }
    Ok(0)
}

pub fn ps(json: bool) -> Done {
    let labs = diecast_host_node::labs().map_err(|e| fault(HOST, e))?;
    if json {
        let rows: Vec<_> = labs
            .iter()
            .map(|l| {
                let pace = l.alive.then(|| crate::live::pace_of(&l.id)).flatten();
                let (paused, tdf) = (pace.as_ref().is_some_and(|p| p.paused), pace.map(|p| p.tdf));
                serde_json::json!({"id": l.id, "pid": l.pid, "alive": l.alive, "paused": paused, "tdf": tdf})
            })
            .collect();
        say!("{}", serde_json::Value::from(rows));
        return Ok(0);
    }
    say!("{:<24} {:>8}  state", "lab", "pid");
    for l in labs {
        let state = match (l.alive, l.alive.then(|| crate::live::pace_of(&l.id)).flatten()) {
            (true, Some(p)) if p.paused => format!("paused; TDF {} once it goes on", p.tdf),
            (true, Some(p)) => format!("runs at TDF {}", p.tdf),
            (true, None) => "runs".to_owned(),
            (false, _) => "dead: diecast clean removes it".to_owned(),
        };
        say!("{:<24} {:>8}  {state}", l.id, l.pid);
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_validation_alternate() {
        assert_eq!(in_turn(2, 'b', 'd', Some('n')).iter().collect::<String>(), "bdnbdnb");
        assert_eq!(in_turn(1, 'b', 'd', None).iter().collect::<String>(), "bdb");
    }

    #[test]
    fn a_comparison_ends_with_what_its_figures_say() {
        let some = || vec!["latency p50 (diecast)".to_owned()];
        for (overall, status) in [
            (Overall::Pass, 0),
            (Overall::Fail { figures: some() }, 1),
            (Overall::Inconclusive { figures: some() }, 4),
            (Overall::NoVerdict { reasons: some(), failed: vec![] }, 4),
            (Overall::NoVerdict { reasons: some(), failed: some() }, 1),
        ] {
            assert_eq!(status_of_comparison(&overall), status, "{overall:?}");
        }
    }

    #[test]
    fn a_miss_outweighs_a_run_that_is_not_trustworthy() {
        assert_eq!([both(4, 1), both(1, 4), both(4, 0), both(0, 4), both(0, 0)], [1, 1, 4, 4, 0]);
    }
}
