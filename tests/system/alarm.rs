//! `benches/alarm.py` in its small form: disturbed runs are flagged, each for what was done to it.

use std::process::{Command, Stdio};

use diecast_tests::{diecast, target_dir};
use serde_json::Value;

use crate::bench::{bench, text};

#[test]
fn a_disturbed_run_says_so() {
    let Some(b) = bench("alarm") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/alarm.py");
    let mut command = Command::new("python3");
    command.arg(script).args(["--small", "--out", "alarm"]).current_dir(&b.folder).stdin(Stdio::null());
    let o = command.env("CARGO_TARGET_DIR", target_dir()).env("DIECAST_BIN", diecast()).output().unwrap();
    println!("{}", text(&o.stdout));
    // 1: the undisturbed run was flagged too, for which a busy machine is reason enough.
    assert!(matches!(o.status.code(), Some(0 | 1)), "{}\n{}", text(&o.stdout), text(&o.stderr));
    let found = std::fs::read(b.folder.join("alarm/bench-alarm.json")).unwrap();
    let found: Value = serde_json::from_slice(&found).unwrap();
    let figures = found["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 4, "{figures:?}");
    for f in figures.iter().filter(|f| f["case"] != "quiet") {
        assert_eq!((f["runs"].as_u64(), f["flagged"].as_u64()), (Some(1), Some(1)), "{f}");
    }
}
