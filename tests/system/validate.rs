//! `diecast validate` from outside: its order, its columns, and what it and `compare` end with. `benches/validate.py` in its
//! small form.

use serde_json::Value;

use crate::bench::{Bench, bench, run, small_bench, text};

const CATALOG: &str = include_str!("overload.yaml");

/// What `--help` says of the status, from what the comparison says of itself.
fn status_of(comparison: &Value) -> i32 {
    let overall = &comparison["overall"];
    let missed = |list: &str| overall[list].as_array().is_some_and(|figures| !figures.is_empty());
    match overall["overall"].as_str().unwrap() {
        "pass" => 0,
        "fail" => 1,
        "no_verdict" if missed("failed") => 1,
        _ => 4,
    }
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|e| panic!("{e}: {}", text(bytes)))
}

fn cell<'a>(comparison: &'a Value, metric: &str, figure: &str, column: usize) -> &'a Value {
    let rows = comparison["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["metric"] == metric && row["figure"] == figure);
    &row.unwrap_or_else(|| panic!("no {metric} {figure}: {comparison:#}"))["cells"][column]
}

#[test]
fn validate_has_a_naive_column_though_naive_answers_nothing() {
    let Some(b) = bench("validate") else { return };
    std::fs::write(b.folder.join("overload.yaml"), CATALOG).unwrap();
    let o = run(&b, &["validate", "overload.yaml", "--scale", "4", "--json", "--out", "out"]);
    println!("{}{}", text(&o.stdout), text(&o.stderr));
    let comparison = json(&o.stdout);
    assert_eq!(o.status.code(), Some(status_of(&comparison)), "{:#}", comparison["overall"]);

    // The baselines are the outer ones.
    let order = ["01-baseline", "02-diecast", "03-naive", "04-baseline"];
    let summaries = order.map(|name| json(&std::fs::read(b.folder.join(format!("out/{name}/run.json"))).unwrap()));
    let starts = summaries.each_ref().map(|s| s["header"]["unix_start_ns"].as_u64().unwrap());
    assert!(starts.is_sorted(), "{starts:?}");
    let columns: Vec<&Value> = comparison["columns"].as_array().unwrap().iter().collect();
    let runs: Vec<String> = columns.iter().map(|c| format!("{} {} {}", c["mode"], c["tdf"], c["runs"])).collect();
    let expected = [
        r#""baseline" "1" ["01-baseline","04-baseline"]"#,
        r#""diecast" "4" ["02-diecast"]"#,
        r#""naive" "1" ["03-naive"]"#,
    ];
    assert_eq!(runs, expected);
    for (name, summary) in order.iter().zip(&summaries) {
        assert_eq!(summary["outcome"], "completed", "{name}");
    }

    for (metric, figure) in [("latency", "p50"), ("latency", "p99"), ("middle", "value")] {
        for (column, expected) in [(0, false), (1, false), (2, true)] {
            let cell = cell(&comparison, metric, figure, column);
            assert_eq!((cell["value"].is_null(), cell["none"] == 1), (expected, expected), "{metric} {figure}: {cell}");
        }
    }
    assert_eq!(cell(&comparison, "latency", "p50", 2)["judged"], "fail");
    let throughput =
        [0, 1, 2].map(|column| cell(&comparison, "throughput", "value", column)["value"].as_f64().unwrap());
    assert!(throughput[0] > 0.0 && throughput[1] > 0.0 && throughput[2] == 0.0, "{throughput:?}");
    compares(&b);
}

/// A run whose samples are ten times too long fails; what can't be judged is neither right nor wrong.
fn compares(b: &Bench) {
    let table = run(b, &["compare", "out/01-baseline", "out/02-diecast", "out/03-naive"]);
    assert!(text(&table.stdout).contains(" none "), "{}", text(&table.stdout));
    let alone = run(b, &["compare", "out/01-baseline", "out/03-naive"]);
    assert_eq!(alone.status.code(), Some(4), "{}", text(&alone.stdout));
    let file = b.folder.join("out/02-diecast/samples/latency.client.bin");
    let longer = |bytes: &[u8]| (u64::from_le_bytes(bytes.try_into().unwrap()) * 10).to_le_bytes();
    let samples: Vec<u8> = std::fs::read(&file).unwrap().chunks(8).flat_map(longer).collect();
    std::fs::write(&file, samples).unwrap();
    let wrong = run(b, &["compare", "out/01-baseline", "out/02-diecast", "out/03-naive"]);
    assert_eq!(wrong.status.code(), Some(1), "{}", text(&wrong.stdout));
}

#[test]
fn the_benchmark_judges_each_bar_and_naive() {
    let Some(b) = bench("bench-validate") else { return };
    diecast_quiet::look(|| judges(&b));
}

fn judges(b: &Bench) {
    let figures = small_bench(b, "validate", &[]);
    let names: Vec<&str> = figures.iter().map(|f| f["name"].as_str().unwrap()).collect();
    let expected = [
        "TDF 1, speed 0.5, grain 500 us",
        "TDF 10, speed 1.0, grain 500 us",
        "latency p50",
        "latency p99",
        "throughput value",
        "naive is off by more than 50%",
    ];
    assert_eq!(names, expected);
    assert_eq!(
        (&figures[5]["passes"], &figures[5]["answered_nothing"]),
        (&true.into(), &true.into()),
        "{}",
        figures[5]
    );
    for f in &figures[..2] {
        // The bar is 3 %, which the benchmark judges; a clock that is not dilated is off by a factor of 2 or 10.
        assert!((0.7..1.5).contains(&f["median"].as_f64().unwrap()), "{f}");
    }
}
