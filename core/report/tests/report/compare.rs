//! Comparisons: grouping, errors, bars, and when there is no verdict. Golden files: UPDATE_EXPECT=1 rewrites them.

use crate::common::{Made, load};
use diecast_core_journal::{Drops, MeterFacts, MetricData, Mode, Outcome, PipeSample, PipesSample, Reason};
use diecast_core_report::stats::{Bootstrap, Judged};
use diecast_core_report::{Budgets, Comparison, Distrusted, LoadError, Overall, Run, RunSummary, html, text};
use diecast_core_vtime::VirtSpan;
use expect_test::expect_file;

const BOOTSTRAP: Bootstrap = Bootstrap { seed: 1, resamples: 60 };

/// Two blocks of three modes as `validate` makes them: diecast a little off, naive far off.
fn blocks() -> Vec<Run> {
    let diecast = |seed| Made { rate: 179.0, mean_ns: 2.1e6, ..Made::new(Mode::Diecast, seed) };
    let naive = |seed| Made { rate: 140.0, mean_ns: 60e6, ..Made::new(Mode::Naive, seed) };
    vec![
        naive(5).run("naive-1"),
        Made::new(Mode::Baseline, 1).run("baseline-1"),
        diecast(2).run("diecast-1"),
        Made { rate: 181.0, ..Made::new(Mode::Baseline, 3) }.run("baseline-2"),
        diecast(4).run("diecast-2"),
        naive(6).run("naive-2"),
    ]
}

fn compare(runs: &[Run]) -> Comparison {
    Comparison::new(runs, BOOTSTRAP).unwrap()
}

#[test]
fn tables_are_golden() {
    let runs = blocks();
    expect_file!["golden/run.txt"].assert_eq(&text::run(&runs[2].summary, &Budgets::default()));
    expect_file!["golden/compare.txt"].assert_eq(&text::comparison(&compare(&runs)));
}

#[test]
fn an_untrustworthy_run_says_so_first() {
    let mut run = Made { throttled_ns: 900_000_000, ..Made::new(Mode::Diecast, 1) }.run("x");
    run.summary.fidelity.host_speed.clear();
    run.summary.verdict = run.summary.fidelity.verdict(&Budgets::default());
    expect_file!["golden/run-not-trustworthy.txt"].assert_eq(&text::run(&run.summary, &Budgets::default()));
}

#[test]
fn the_first_baseline_is_the_reference_and_blocks_are_pooled() {
    let comparison = compare(&blocks());
    let names: Vec<&str> = comparison.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["baseline", "diecast", "naive"]);
    assert_eq!(comparison.columns[0].runs, ["baseline-1", "baseline-2"]);
    let rate = &comparison.rows[0];
    assert_eq!((rate.cells[0].value, rate.cells[0].spread), (Some(180.5), Some(1.0 / 180.5)));
    // The p50 is that of all 2000 samples, by an independent way: sort and count.
    let mut all = [Made::new(Mode::Baseline, 1).latencies(), Made::new(Mode::Baseline, 3).latencies()].concat();
    all.sort_unstable();
    let p50 = comparison.rows.iter().find(|row| row.figure == "p50").unwrap();
    assert_eq!(p50.cells[0].value, Some(all[999] as f64));
    assert_eq!(comparison.overall, Overall::Pass);
}

#[test]
fn naive_fails_its_bars_but_not_the_comparison() {
    let comparison = compare(&blocks());
    let judged =
        |column: usize| -> Vec<Judged> { comparison.rows.iter().filter_map(|row| row.cells[column].judged).collect() };
    assert_eq!(judged(1), [Judged::Pass; 3]);
    assert_eq!(judged(2), [Judged::Fail; 3]);
}

/// Two baselines, diecast and naive, of which some answer nothing.
fn silent(modes: &[Mode]) -> Vec<Run> {
    let made = |mode, seed| {
        let is_silent = modes.contains(&mode);
        let made = Made::new(mode, seed);
        Made { samples: if is_silent { 0 } else { 1000 }, rate: if is_silent { 0.0 } else { 180.0 }, ..made }
    };
    vec![
        made(Mode::Baseline, 1).run("baseline-1"),
        made(Mode::Diecast, 2).run("diecast-1"),
        made(Mode::Naive, 3).run("naive-1"),
        made(Mode::Baseline, 4).run("baseline-2"),
    ]
}

#[test]
fn a_naive_that_answers_nothing_is_a_column_of_misses() {
    let runs = silent(&[Mode::Naive]);
    let comparison = compare(&runs);
    assert_eq!(comparison.overall, Overall::Pass);
    let judged: Vec<_> = comparison.rows.iter().filter_map(|row| row.cells[2].judged).collect();
    assert_eq!(judged, [Judged::Fail; 3]);
    expect_file!["golden/compare-none.txt"].assert_eq(&text::comparison(&comparison));
    let run = text::run(&runs[2].summary, &Budgets::default());
    let latency = run.lines().find(|line| line.starts_with("latency")).unwrap();
    assert_eq!(latency.split_whitespace().collect::<Vec<_>>(), ["latency", "none", "0"]);
    let json: serde_json::Value = serde_json::from_str(&comparison.to_json()).unwrap();
    let p50 = &json["rows"].as_array().unwrap().iter().find(|row| row["figure"] == "p50").unwrap()["cells"][2];
    assert_eq!((&p50["value"], &p50["none"], &p50["judged"]), (&serde_json::Value::Null, &1.into(), &"fail".into()));
    let page = html::comparison(&comparison, &runs);
    assert_eq!(page.matches("<td>none</td>").count(), 3, "mean, median and 99th percentile of naive");
    let back: RunSummary = serde_json::from_str(&runs[2].summary.to_json()).unwrap();
    assert_eq!(back, runs[2].summary);
}

#[test]
fn a_naive_that_fails_is_a_column_that_says_why() {
    let mut runs = silent(&[]);
    let reason = "the load ended with status 1; its last lines:\n    | errors=9\n    | no answer";
    runs[2].summary.outcome = Some(Outcome::Failed { reason: reason.into() });
    runs[2].summary.metrics.clear();
    runs[2].samples.clear();
    let comparison = compare(&runs);
    assert_eq!(comparison.overall, Overall::Pass);
    assert_eq!(comparison.columns[2].no_verdict.as_deref(), Some("naive-1 failed: the load ended with status 1"));
    for row in &comparison.rows {
        assert_eq!(row.cells[2], Default::default(), "{} {}", row.metric, row.figure);
    }
    assert!(text::comparison(&comparison).contains("(no verdict: naive-1 failed: the load ended with status 1)"));
    html::comparison(&comparison, &runs);
}

#[test]
fn a_diecast_that_answers_nothing_fails() {
    let Overall::Fail { figures } = compare(&silent(&[Mode::Diecast, Mode::Naive])).overall else { panic!("passed") };
    assert_eq!(figures, ["throughput value (diecast)", "latency p50 (diecast)", "latency p99 (diecast)"]);
    // One block of two: what the other says is no pass.
    let mut runs = silent(&[Mode::Naive]);
    runs.push(Made { samples: 0, ..Made::new(Mode::Diecast, 5) }.run("diecast-2"));
    let comparison = compare(&runs);
    let Overall::Fail { figures } = &comparison.overall else { panic!("passed") };
    assert_eq!(*figures, ["latency p50 (diecast)", "latency p99 (diecast)"]);
    assert!(text::comparison(&comparison).contains("(none in 1)"));
}

#[test]
fn a_baseline_that_answers_nothing_allows_no_pass() {
    let Overall::Fail { figures } = compare(&silent(&[Mode::Baseline])).overall else { panic!("passed") };
    assert_eq!(figures, ["latency p50 (diecast)", "latency p99 (diecast)"]);
    let none = compare(&silent(&[Mode::Baseline, Mode::Diecast, Mode::Naive]));
    assert_eq!(none.overall, Overall::Inconclusive { figures: vec!["latency p50 (diecast)".into()] });
    assert!(text::comparison(&none).contains("none"));
}

#[test]
fn a_number_that_no_program_printed_is_none_too() {
    let without = |mode, seed, value: Option<f64>| {
        let mut run = Made::new(mode, seed).run(&format!("{mode}"));
        run.summary.metrics.retain(|metric| metric.name == "throughput");
        let MetricData::Scalar { value: number, .. } = &mut run.summary.metrics[0].data else { panic!() };
        *number = value;
        run
    };
    let comparison = compare(&[without(Mode::Baseline, 1, Some(180.0)), without(Mode::Diecast, 2, None)]);
    assert_eq!(comparison.overall, Overall::Fail { figures: vec!["throughput value (diecast)".into()] });
    assert!(text::run(&without(Mode::Diecast, 2, None).summary, &Budgets::default()).contains("none"));
}

#[test]
fn a_figure_that_fails_is_named_beside_no_verdict() {
    let mut runs = silent(&[Mode::Diecast]);
    runs[1].summary.verdict.trustworthy = false;
    let Overall::NoVerdict { failed, .. } = compare(&runs).overall else { panic!("a verdict") };
    assert_eq!(failed, ["throughput value (diecast)", "latency p50 (diecast)", "latency p99 (diecast)"]);
    let first = text::comparison(&compare(&runs));
    assert!(
        first.starts_with("NO VERDICT: diecast: diecast-1 is not trustworthy\nFAIL all the same: throughput"),
        "{first}"
    );
}

#[test]
fn a_wrong_diecast_fails() {
    let mut runs = blocks();
    runs[2] = Made { mean_ns: 30e6, ..Made::new(Mode::Diecast, 2) }.run("diecast-1");
    runs[4] = Made { mean_ns: 30e6, ..Made::new(Mode::Diecast, 4) }.run("diecast-2");
    let Overall::Fail { figures } = compare(&runs).overall else { panic!("passed") };
    assert!(figures.contains(&"latency p50 (diecast)".to_owned()), "{figures:?}");
}

#[test]
fn few_samples_are_inconclusive_not_passed() {
    let few = |mode, seed| Made { samples: 30, mean_ns: 60e6, ..Made::new(mode, seed) }.run(&format!("{mode}"));
    let Overall::Inconclusive { figures } = compare(&[few(Mode::Baseline, 1), few(Mode::Diecast, 2)]).overall else {
        panic!("30 samples were enough")
    };
    assert!(figures.contains(&"latency p99 (diecast)".to_owned()), "{figures:?}");
}

fn no_verdict(runs: &[Run]) -> String {
    match compare(runs).overall {
        Overall::NoVerdict { reasons, .. } => reasons.join("; "),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_host_that_changed_its_speed_allows_no_verdict() {
    let mut runs = blocks();
    for (slow, at_most) in [(418_000, true), (424_000, false)] {
        for index in [2, 4] {
            let made = Made { probe_ns: slow, rate: 179.0, mean_ns: 2.1e6, ..Made::new(Mode::Diecast, index as u64) };
            runs[index] = made.run("diecast");
        }
        if at_most {
            assert_eq!(compare(&runs).overall, Overall::Pass);
        } else {
            let why = "diecast: the host's speed differs by 6 % from the reference's, at most 5 % allows a verdict";
            assert_eq!(no_verdict(&runs), why);
        }
    }
    // Under naive it only takes naive's own verdict.
    let mut runs = blocks();
    runs[0] = Made { probe_ns: 800_000, ..Made::new(Mode::Naive, 5) }.run("naive-1");
    runs.pop();
    let comparison = compare(&runs);
    assert_eq!(comparison.overall, Overall::Pass);
    assert!(comparison.columns[2].no_verdict.is_some());
}

#[test]
fn runs_that_do_not_compare_allow_no_verdict() {
    type Change = fn(&mut RunSummary);
    let changes: [(Change, &str); 4] = [
        (|s| s.header.catalog_hash = "0".into(), "the runs are of different catalogs"),
        (|s| s.verdict.trustworthy = false, "x is not trustworthy"),
        (|s| s.outcome = None, "x was killed before its end"),
        (|s| s.fidelity.host_speed.clear(), "the host's speed was not probed"),
    ];
    for (change, expected) in changes {
        let mut runs = vec![Made::new(Mode::Baseline, 1).run("b"), Made::new(Mode::Diecast, 2).run("x")];
        change(&mut runs[1].summary);
        assert_eq!(no_verdict(&runs), format!("diecast: {expected}"));
    }
    let mut runs = blocks();
    runs[3].summary.header.parameters.insert("rate".into(), "210/s".into());
    assert_eq!(compare(&runs).columns.len(), 4, "other parameters are another column");
    assert!(no_verdict(&runs).contains("its workload has other parameters"));
    let mut runs = blocks();
    runs.push(Made::new(Mode::Diecast, 9).run("faster"));
    runs.last_mut().unwrap().summary.header.speed = 2.0;
    let names: Vec<_> = compare(&runs).columns.into_iter().map(|column| column.name).collect();
    assert!(names.iter().any(|name| name.starts_with("diecast TDF 10 scale 10 speed x 2 ")), "{names:?}");
    assert!(no_verdict(&runs).contains("its nodes have other speeds than the baseline's"));
    assert_eq!(no_verdict(&[Made::new(Mode::Baseline, 1).run("b")]), "no figure with a bar in a mode to judge");
}

#[test]
fn without_a_baseline_native_is_the_reference() {
    let runs = [Made::new(Mode::Diecast, 1).run("d"), Made::new(Mode::Native, 2).run("n")];
    assert_eq!(compare(&runs).columns[0].name, "native");
    let runs = [Made::new(Mode::Naive, 1).run("v"), Made::new(Mode::Diecast, 2).run("d")];
    assert_eq!(compare(&runs).columns[0].name, "naive");
}

#[test]
fn a_summary_survives_its_json() {
    let summary = Made::new(Mode::Diecast, 1).run("x").summary;
    let back: RunSummary = serde_json::from_str(&summary.to_json()).unwrap();
    assert_eq!(back, summary);
    assert_eq!((summary.v_measured_ns, summary.r_measured_ns), (20_000_000_000, 200_000_000_000));
    // 30 % plus the wave's end: 20 s · 0.15 · 0.3 of CPU.
    assert!((summary.nodes[1].cpu_share - 0.3).abs() < 0.01, "{}", summary.nodes[1].cpu_share);
    let json: serde_json::Value = serde_json::from_str(&compare(&blocks()).to_json()).unwrap();
    assert_eq!(json["overall"]["overall"], "pass");
    assert_eq!(json["rows"][0]["metric"], "throughput");
}

#[test]
fn a_killed_run_loads_and_is_not_trustworthy() {
    let mut directory = Made::new(Mode::Diecast, 1).directory();
    let journal = directory.get_mut("journal.jsonl").unwrap();
    journal.truncate(journal.len() - 30);
    let run = load("x", &directory).unwrap();
    assert_eq!(run.summary.outcome, None);
    assert!(!run.summary.verdict.trustworthy);
    assert!(text::run(&run.summary, &Budgets::default()).starts_with("KILLED"));
}

#[test]
fn a_missing_or_broken_file_is_named() {
    let directory = Made::new(Mode::Diecast, 1).directory();
    let mut without = directory.clone();
    without.remove("samples/latency.load-1.bin");
    let error = load("runs/a", &without).unwrap_err();
    assert_eq!(error.to_string(), "runs/a: samples/latency.load-1.bin: no such file");
    let mut broken = directory.clone();
    broken.get_mut("samples/latency.load-1.bin").unwrap().pop();
    assert!(matches!(load("a", &broken), Err(LoadError::Samples { .. })));
    let mut broken = directory;
    broken.insert("journal.jsonl".into(), b"{}\n".to_vec());
    assert!(matches!(load("a", &broken), Err(LoadError::Journal { .. })));
}

#[test]
fn the_page_is_self_contained_and_escaped() {
    let mut runs = blocks();
    runs[0].label = "<script>alert(1)</script>".into();
    let page = html::comparison(&compare(&runs), &runs);
    assert!(!page.contains("<script"), "a label got through");
    for outside in ["http://", "https://", "src=", "url(", "@import"] {
        let page = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!page.contains(outside), "{outside} in the page");
    }
    // Errors, one distribution, CPU of three modes, lateness.
    assert_eq!(page.matches("<svg").count(), 6);
    assert!(page.contains("PASS: every figure"));
}

#[test]
fn the_page_shows_the_network_where_a_run_had_one() {
    let mut runs = blocks();
    let start = runs[0].summary.header.v_start_ns;
    let sample = |s: u64, packets: u32, full: u64| PipesSample {
        v_ns: start.plus(VirtSpan(s * 1_000_000_000)),
        pipes: vec![PipeSample {
            from: "a".into(),
            to: "s".into(),
            queue_packets: packets,
            dropped: Drops { queue_full: full, ..Drops::default() },
            ..PipeSample::default()
        }],
    };
    let pictures = |runs: &[Run]| html::comparison(&compare(runs), runs).matches("<svg").count();
    let without = pictures(&runs);
    runs[0].pipe_samples = vec![sample(1, 0, 0), sample(2, 7, 0)];
    let page = html::comparison(&compare(&runs), &runs);
    assert_eq!(page.matches("Network over virtual time").count(), 1, "of one mode");
    assert_eq!(pictures(&runs), without + 2);
    assert!(page.contains("a to s") && !page.contains("drops a virtual second"));
    runs[0].pipe_samples.push(sample(3, 7, 5));
    assert_eq!(pictures(&runs), without + 3, "drops have their own");
}

#[test]
fn a_metric_that_a_run_lacks_leaves_a_gap_not_a_zero() {
    let mut runs = vec![Made::new(Mode::Baseline, 1).run("b"), Made::new(Mode::Diecast, 2).run("d")];
    runs[1].summary.metrics.retain(|metric| matches!(metric.data, MetricData::Samples { .. }));
    let comparison = compare(&runs);
    assert_eq!(comparison.rows[0].cells[1], Default::default());
    text::comparison(&comparison);
    html::comparison(&comparison, &runs);
}

#[test]
fn a_run_that_is_not_trustworthy_says_why() {
    let mut runs = blocks();
    let reason = |what: &str| Reason {
        what: what.into(),
        measured: "240 µs".into(),
        budget: "at most 100 µs".into(),
        advice: "raise the TDF to 30".into(),
    };
    let Run { label, summary, .. } = &mut runs[2];
    let verdict = &mut summary.verdict;
    (verdict.trustworthy, verdict.reasons) = (false, vec![reason("emulator lateness p99"), reason("another")]);
    verdict.without = vec!["the initial RTO is not dilated".into()];
    let (label, verdict) = (label.clone(), verdict.clone());
    let comparison = compare(&runs);
    let column = comparison.columns.iter().find(|column| column.mode == Mode::Diecast).unwrap();
    assert_eq!(column.distrusted, [Distrusted { run: label.clone(), verdict }]);
    let why = format!(
        "{label} is not trustworthy: emulator lateness p99 240 µs, at most 100 µs expected, and 1 reason more; raise the TDF to 30"
    );
    assert_eq!(column.no_verdict.as_ref(), Some(&why));
    let said = text::comparison(&comparison);
    for line in [
        format!("NO VERDICT: diecast: {why}\n"),
        format!("    {label}: another: 240 µs, expected at most 100 µs; raise the TDF to 30\n"),
        "    without, on its host: the initial RTO is not dilated\n".into(),
    ] {
        assert!(said.contains(&line), "{line}in {said}");
    }
}

#[test]
fn other_machines_and_other_meters_are_not_the_same_thing() {
    for (times, why) in [(1.04, None), (1.06, Some("app-1 has the speed 0.159 here and 0.15 in the baseline"))] {
        let mut runs = blocks();
        for run in runs.iter_mut().filter(|run| run.summary.header.mode == Mode::Diecast) {
            run.summary.header.nodes[1].speed *= times;
        }
        let columns = compare(&runs).columns;
        let column = columns.iter().find(|column| column.mode == Mode::Diecast).unwrap();
        assert_eq!(column.no_verdict.as_deref(), why);
    }
    let names = |meters: [(u64, bool); 2]| -> Vec<String> {
        let mut runs = blocks();
        let diecast = runs.iter_mut().filter(|run| run.summary.header.mode == Mode::Diecast);
        for (run, (grain_ns, packets_tell)) in diecast.zip(meters) {
            let meter = MeterFacts { hits_from: "cores".into(), grain_ns, counts_kernel: true, packets_tell };
            run.summary.header.meter = Some(meter);
        }
        let columns = compare(&runs).columns.into_iter();
        columns.filter(|column| column.mode == Mode::Diecast).map(|column| column.name).collect()
    };
    let of = |meter: &str| format!("diecast TDF 10 scale 10 grain {meter} rate=90/s");
    let whole = "500 µs hits from cores";
    assert_eq!(names([(100_000, true), (500_000, true)]), [of("100 µs hits from cores"), of(whole)]);
    assert_eq!(names([(500_000, true), (500_000, false)]), [of(whole), of(&format!("{whole} without debt at egress"))]);
    // As near as a host's least grain is found twice.
    assert_eq!(names([(58_000, true), (60_000, true)]), ["diecast"]);
}
