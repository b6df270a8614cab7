//! Upstream test suites: a small part of what `make conformance` runs.

use std::path::Path;
use std::process::Command;

use diecast_tests::{alone, diecast, target_dir};

fn conformance(arguments: &[&str], out: &Path) -> (Option<i32>, String) {
    let script = format!("{}/../benches/conformance.py", env!("CARGO_MANIFEST_DIR"));
    let done = Command::new("python3")
        .arg(script)
        .args(arguments)
        .args(["--runs", "1", "--jobs", "2", "--out"])
        .arg(out)
        .env("DIECAST_BIN", diecast())
        .output()
        .expect("python3");
    (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr))
}

/// Fast modules of CPython's, one package of Go's, two stressors of stress-ng: the same tests pass natively and in frames.
#[test]
fn a_part_of_upstream_suites_passes_as_natively() {
    let _turn = alone();
    let out = target_dir().join("conformance-small.json");
    for (suite, passes) in [("python:test_epoll,test_resource", 6), ("go:context", 6), ("stress:timer,sigtrap", 1)] {
        let (status, text) = conformance(&["--suite", suite], &out);
        if status == Some(3) {
            diecast_quiet::skipped(format_args!("{text}"));
            continue;
        }
        assert_eq!(status, Some(0), "{suite}\n{text}");
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&out).expect("a report")).expect("JSON");
        for row in report["rows"].as_array().expect("rows") {
            assert!(row["passes_natively"].as_u64() >= Some(passes), "{row}");
        }
    }
}
