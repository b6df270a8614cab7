//! Whole labs from outside: a small service in every mode, bad input, a killed run. Needs root; skips with a reason.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use diecast_tests::{diecast, target_dir};

/// Labs use both cores: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

struct Bench {
    folder: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

const CATALOG: &str = r#"diecast: 1
name: small
machine_types:
  half: {cores: 1, speed: 0.4, memory: 128MiB}
nodes:
  client: {type: half}
  server: {type: half}
topology:
  switches: [s]
  links:
    - {from: [client, server], to: s, bandwidth: 100Mbit/s, delay: 5ms}
programs:
  - on: server
    run: [cpuserver, --listen, "0.0.0.0:80", --service, 500us]
    files: {/usr/local/bin/cpuserver: diecast-cpuserver}
    ready: {tcp: 80, within: 20s}
workload:
  parameters: {rate: 100/s, seed: 3}
  warm_up: 1s
  measure: 3s
  run:
    on: client
    command: [loadgen, "http://server/", "--rate=${rate}", "--seed=${seed}", "--warm-up=${warm_up}", "--measure=${measure}"]
    files: {/usr/local/bin/loadgen: diecast-loadgen}
metrics:
  throughput: {from: client, json: $.rate, unit: 1/s}
  latency: {from: client, samples: latency_ns.bin, unit: ns, show: [p50, p99]}
"#;

/// A folder with the catalog and its programs; None when this is not root.
fn bench(name: &str) -> Option<Bench> {
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: labs need root");
        return None;
    }
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = std::env::temp_dir().join(format!("diecast-system-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--package", "diecast-loadgen", "--target-dir"])
        .arg(target_dir())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(built.success());
    for program in ["diecast-cpuserver", "diecast-loadgen"] {
        std::fs::copy(target_dir().join("release").join(program), folder.join(program)).unwrap();
    }
    std::fs::write(folder.join("small.yaml"), CATALOG).unwrap();
    Some(Bench { folder, _alone: alone })
}

fn run(bench: &Bench, arguments: &[&str]) -> Output {
    Command::new(diecast()).args(arguments).current_dir(&bench.folder).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Throughput and median of a finished run's journal.
fn figures(out: &Path) -> (f64, f64) {
    let metrics: serde_json::Value = serde_json::from_slice(&std::fs::read(out.join("metrics.json")).unwrap()).unwrap();
    let of = |name: &str| metrics.as_array().unwrap().iter().find(|m| m["name"] == name).unwrap()["data"].clone();
    (
        of("throughput")["scalar"]["value"].as_f64().unwrap(),
        of("latency")["samples"]["show"][0]["value"].as_f64().unwrap(),
    )
}

/// The same service as baseline and at TDF 4 gives the same numbers in its own time; naive at a quarter does not.
#[test]
fn a_dilated_run_predicts_the_baseline_and_naive_does_not() {
    let Some(b) = bench("modes") else { return };
    let mut seen = Vec::new();
    for (mode, factors) in [("baseline", vec![]), ("diecast", vec!["--tdf", "4"]), ("naive", vec!["--scale", "16"])] {
        let mut arguments = vec!["run", "small.yaml", "--mode", mode, "--out", mode];
        arguments.extend(factors);
        let begin = Instant::now();
        let o = run(&b, &arguments);
        // 4: the machine was too noisy for the run's own budgets; the numbers must hold all the same.
        assert!(matches!(o.status.code(), Some(0 | 4)), "{mode}: {}\n{}", text(&o.stdout), text(&o.stderr));
        let factor = if mode == "diecast" { 4 } else { 1 };
        assert!(begin.elapsed() >= Duration::from_secs(4 * factor), "{mode} took {:?}", begin.elapsed());
        let table = text(&o.stdout);
        assert!(table.contains("processes outside the frame") == (mode != "naive"), "{table}");
        seen.push(figures(&b.folder.join(mode)));
        println!("{mode}: {:?}", seen.last().unwrap());
    }
    let [(base_rate, base_p50), (cast_rate, cast_p50), (_, naive_p50)] = seen[..] else { unreachable!() };
    assert!((cast_rate / base_rate - 1.0).abs() < 0.15, "{cast_rate}/s instead of {base_rate}/s");
    // 20 ms of links and 1.25 ms of service: a clock or a link that is not dilated is off by a factor.
    assert!((cast_p50 / base_p50 - 1.0).abs() < 0.3, "median {cast_p50} ns instead of {base_p50} ns");
    assert!(base_p50 > 20e6, "a round trip of {base_p50} ns is shorter than its links");
    assert!(naive_p50 > base_p50 * 1.5, "naive at a sixteenth has a median of {naive_p50} ns, baseline {base_p50} ns");
    let compared = run(&b, &["compare", "baseline", "diecast", "naive", "--html", "page.html"]);
    assert_eq!(compared.status.code(), Some(0), "{}", text(&compared.stderr));
    assert!(text(&compared.stdout).contains("KS distance"), "{}", text(&compared.stdout));
    assert!(std::fs::metadata(b.folder.join("page.html")).unwrap().len() > 1000);
}

/// One clear message, the right status, nothing left behind.
#[test]
fn bad_input_is_refused_with_its_place() {
    let Some(b) = bench("bad") else { return };
    let with = |from: &str, to: &str| {
        assert!(CATALOG.contains(from));
        std::fs::write(b.folder.join("bad.yaml"), CATALOG.replace(from, to)).unwrap();
    };
    let expect = |arguments: &[&str], status: i32, words: &str| {
        let o = run(&b, arguments);
        let said = text(&o.stderr);
        assert_eq!(o.status.code(), Some(status), "{arguments:?}: {said}{}", text(&o.stdout));
        assert!(said.contains(words), "{arguments:?} said: {said}");
    };
    expect(&["run", "small.yaml"], 2, "needs a TDF or a scale factor");
    expect(&["run", "missing.yaml", "--tdf", "4"], 2, "missing.yaml");
    with("delay: 5ms", "delay: 5");
    expect(&["check", "bad.yaml"], 2, "bad.yaml:11:");
    with("speed: 0.4", "sped: 0.4");
    expect(&["check", "bad.yaml"], 2, "speed");
    with("speed: 0.4", "speed: 1.5");
    expect(&["plan", "bad.yaml", "--mode", "baseline"], 3, "");
    with("speed: 0.4", "speed: 0.9");
    expect(&["run", "bad.yaml", "--mode", "native"], 3, "");
    with("{/usr/local/bin/cpuserver: diecast-cpuserver}", "{/usr/local/bin/cpuserver: no-such-file}");
    expect(&["run", "bad.yaml", "--mode", "baseline"], 2, "no-such-file");
    with("run: [cpuserver,", "run: [no-such-program,");
    expect(&["run", "bad.yaml", "--mode", "baseline"], 3, "no-such-program");
    // A program that dies: which, how, and its last words.
    with("run: [cpuserver, --listen, \"0.0.0.0:80\", --service, 500us]", "run: [sh, -c, \"echo last words; exit 9\"]");
    let o = run(&b, &["run", "bad.yaml", "--mode", "baseline"]);
    assert_eq!(o.status.code(), Some(1), "{}", text(&o.stderr));
    let said = text(&o.stdout);
    assert!(said.contains("status 9") && said.contains("last words"), "{said}");
    assert!(text(&run(&b, &["ps"]).stdout).lines().count() <= 1, "a lab was left behind");
}

/// kill -9 in the middle leaves nothing that `diecast clean` does not remove, and the next run works.
#[test]
fn a_killed_run_is_cleaned_up() {
    let Some(b) = bench("killed") else { return };
    let mut child = Command::new(diecast())
        .args(["run", "small.yaml", "--mode", "baseline", "--out", "killed"])
        .current_dir(&b.folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let started =
        || std::fs::read_to_string(b.folder.join("killed/journal.jsonl")).is_ok_and(|j| j.contains("warm_up"));
    while !started() && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(started(), "the run never came to its load");
    child.kill().unwrap();
    child.wait().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let cleaned = run(&b, &["clean"]);
    assert_eq!(cleaned.status.code(), Some(0), "{}", text(&cleaned.stderr));
    let again = run(&b, &["clean"]);
    assert!(text(&again.stdout).contains("nothing to remove"), "{}", text(&again.stdout));
    let next = run(&b, &["run", "small.yaml", "--mode", "baseline", "--out", "next"]);
    assert!(matches!(next.status.code(), Some(0 | 4)), "{}", text(&next.stderr));
}
