//! `benches/cpu.py` in its small form: a request of 500 µs of CPU time, native, in frames and under a quota.

use std::process::{Command, Stdio};

use diecast_tests::{diecast, target_dir};
use serde_json::Value;

use crate::bench::{bench, text};

#[test]
fn requests_take_their_cpu_time_in_virtual_time() {
    let Some(b) = bench("cpu") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/cpu.py");
    let mut command = Command::new("python3");
    command.arg(script).args(["--small", "--out", "cpu"]).current_dir(&b.folder).stdin(Stdio::null());
    let o = command.env("CARGO_TARGET_DIR", target_dir()).env("DIECAST_BIN", diecast()).output().unwrap();
    println!("{}", text(&o.stdout));
    // 1: a bar was missed, as it may be with this few samples beside other tests.
    assert!(matches!(o.status.code(), Some(0 | 1)), "{}\n{}", text(&o.stdout), text(&o.stderr));
    let found = std::fs::read(b.folder.join("cpu/bench-cpu.json")).unwrap();
    let found: Value = serde_json::from_slice(&found).unwrap();
    let figures = found["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 5, "{figures:?}");
    let median_us = |mode: &str| {
        let f = figures.iter().find(|f| f["mode"] == mode).unwrap_or_else(|| panic!("no {mode}"));
        assert!(f["n"].as_u64().unwrap() > 20, "{f}");
        f["figures"]["p50"]["us"].as_f64().unwrap()
    };
    // The service, the links and what else a request costs; a quota lets each finish ten times too early.
    for mode in ["native", "diecast-1", "diecast-8", "diecast-16"] {
        assert!(median_us(mode) >= 880.0, "{mode}: {} us", median_us(mode));
    }
    assert!(median_us("cfs") < 750.0, "{} us", median_us("cfs"));
}
