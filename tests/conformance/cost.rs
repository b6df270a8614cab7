//! What a frame costs, in a small form; `benches/frame.sh` measures it properly.

use std::process::Command;

use diecast_tests::{alone, cost, diecast, target_dir};

/// The bars of issue 2 are 20 ns for a clock read and 50 ns for a call without time, on a quiet machine; the small
/// run on a busy one gets as much again before it fails.
#[test]
fn clock_reads_and_other_calls_cost_little() {
    diecast_quiet::look(costs);
}

fn costs() {
    let _turn = alone();
    let c = cost::measure(3, "1");
    println!("{}", c.json());
    assert!(c.clock_added_ns() <= 40.0, "a clock read: {}", c.json());
    assert!(c.trap_added_ns() <= cost::TRAP_BAR_NS, "a trapped wait: {}", c.json());
    assert!(c.call_added_ns() <= 100.0, "a call without time: {}", c.json());
}

/// `make bench-performance` in its small form: it runs, and has every figure. Whether bars are met is not for a busy
/// machine to say.
#[test]
fn the_table_of_costs_is_made() {
    let _turn = alone();
    let out = target_dir().join("performance-small.json");
    let done = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/performance.py"))
        .args(["--small", "--out"])
        .arg(&out)
        .env("FRAME_COST_BIN", env!("CARGO_BIN_EXE_frame-cost"))
        .env("DIECAST_BIN", diecast())
        .output()
        .expect("python3");
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(matches!(done.status.code(), Some(0 | 1)), "{text}");
    let table: serde_json::Value = serde_json::from_slice(&std::fs::read(&out).expect("a table")).expect("JSON");
    for row in ["clock", "call", "trap", "thread", "fork", "exec"] {
        for world in ["native", "frame-1", "frame-10"] {
            let ns = table["rows_ns"][row][world]["median"].as_f64();
            assert!(ns.is_some_and(|ns| ns > 1.0), "{row} in {world}: {text}");
        }
    }
    assert!(table["rows_ns"]["sigsys"]["native"]["median"].as_f64().is_some_and(|ns| ns > 100.0), "{text}");
    assert!(table["bars"].as_array().is_some_and(|bars| bars.len() >= 8), "{text}");
}
