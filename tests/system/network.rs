//! `benches/net.py` in its small form: links and a dumbbell as programs in nodes see them, and the emulator alone.
//!
//! Bars here are wider where other work on the machine only adds: a round trip is judged by its shortest. What no load
//! can change is as strict as in the benchmark: a link never gives more than its rate, and no round trip is too short.

use std::process::Command;

use diecast_quiet::Claims;
use diecast_tests::target_dir;
use serde_json::Value;

use crate::bench::{Bench, bench, small_bench};

/// Runs these parts; their figures.
fn figures(bench: &Bench, parts: &[&str]) -> Vec<Value> {
    let arguments: Vec<&str> = parts.iter().flat_map(|part| ["--part", part]).collect();
    small_bench(bench, "net", &arguments)
}

/// The one figure whose name has all of these words.
fn one<'a>(figures: &'a [Value], words: &[&str]) -> &'a Value {
    let named = |f: &&Value| words.iter().all(|w| f["name"].as_str().unwrap().contains(w));
    let mut found = figures.iter().filter(named);
    let first = found.next().unwrap_or_else(|| panic!("no {words:?} in {figures:?}"));
    assert!(found.next().is_none(), "several of {words:?}");
    first
}

fn value(figure: &Value) -> f64 {
    figure["value"].as_f64().unwrap()
}

#[test]
fn nodes_see_the_links_of_their_catalog() {
    let Some(b) = bench("links") else { return };
    diecast_quiet::look_at_each(|claims| links(&b, claims));
}

fn links(b: &Bench, claims: &Claims) {
    let found = figures(b, &["links-1", "links-10"]);
    for tdf in ["TDF 1:", "TDF 10:"] {
        let rate = value(one(&found, &[tdf, "throughput"]));
        claims.claim(&format!("{tdf} rate"), rate.abs() <= 3.0, format_args!("{rate} % off"));
        assert!(rate <= 3.0, "{tdf} a rate is {rate} % above its link's");
        let lost = one(&found, &[tdf, "lost of"]);
        claims.claim(&format!("{tdf} loss"), lost["passes"] == true, lost);
    }
    let shortest_ms = |tdf| one(&found, &[tdf, "round trip", "median"])["spread"][0].as_f64().unwrap();
    let [baseline_ms, dilated_ms] = ["TDF 1:", "TDF 10:"].map(shortest_ms);
    assert!(baseline_ms.min(dilated_ms) >= -0.001, "a round trip came early: {baseline_ms} and {dilated_ms} ms off");
    claims.claim("TDF 1: round trip", baseline_ms <= 0.4, format_args!("{baseline_ms} ms off"));
    // What the nodes' kernels and programs take of it they take at any TDF.
    let apart_ms = (dilated_ms - baseline_ms).abs();
    claims.claim("TDF 10: round trip", apart_ms <= 0.2, format_args!("{dilated_ms} ms off, {baseline_ms} at TDF 1"));
}

#[test]
fn equal_flows_share_the_bottleneck_of_a_dumbbell() {
    let Some(b) = bench("dumbbell") else { return };
    diecast_quiet::look(|| dumbbell(&b));
}

fn dumbbell(b: &Bench) {
    let found = figures(b, &["dumbbell-1"]);
    let sum = value(one(&found, &["TCP flows", "sum"]));
    // Over 3 s the queue's last packets count for 0.2 Mbit/s. Paths of their own would give up to 160 Mbit/s.
    assert!((30.0..=40.3).contains(&sum), "{sum} Mbit/s over 40");
    let jain = value(one(&found, &["TCP flows", "Jain"]));
    assert!(jain >= 0.75, "Jain index {jain}");
}

#[test]
fn the_emulator_alone_keeps_rates_and_delays() {
    let Some(b) = bench("emulator") else { return };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--package", "diecast-tests", "--bin", "net-cost", "--target-dir"])
        .arg(target_dir())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(built.success());
    diecast_quiet::look_at_each(|claims| alone(&b, claims));
}

fn alone(b: &Bench, claims: &Claims) {
    let found =
        figures(b, &["emulator-throughput", "emulator-rate", "emulator-delay", "emulator-idle", "emulator-star"]);
    for tdf in ["TDF 1:", "TDF 10:", "TDF 100:"] {
        let error = value(one(&found, &[tdf, "error of a rate"]));
        claims.claim(&format!("{tdf} rate"), error.abs() <= 2.0, format_args!("{error} %"));
    }
    for words in [&["TDF 10:", "added delay"], &["TDF 100:", "added delay"]] {
        let median_us = one(&found, words)["spread"][0].as_f64().unwrap();
        assert!(median_us >= 0.0, "{words:?}: {median_us} us early");
        // Late by what a busy machine does, far from the milliseconds of a clock that is not dilated.
        claims.claim(words[0], median_us <= 500.0, format_args!("{median_us} us late"));
    }
    let share = value(one(&found, &["share of a plain forwarder"]));
    claims.claim("throughput", (0.2..=1.3).contains(&share), format_args!("{share} of a plain forwarder's"));
    let offloaded = value(one(&found, &["offload", "MTU frames on the wire"]));
    claims.claim("offload", offloaded >= 0.1, format_args!("{offloaded} Gbit/s"));
    let idle = value(one(&found, &["idle NICs"]));
    claims.claim("idle NICs", idle <= 10.0, format_args!("{idle} % of a core"));
    let star = one(&found, &["a star of", "frames that arrive"]);
    claims.claim("star", star["passes"] == true, star);
}
