//! Marks instead of drops: TCP of nodes asks for them where a link gives them.

use diecast_tests::target_dir;
use serde_json::Value;

use crate::bench::{Bench, LabRun, bench};

/// One bulk transfer over 20 Mbit/s, whose queue CoDel keeps.
const CATALOG: &str = r#"diecast: 1
name: marks
machine_types:
  box: {cores: 1, speed: 0.2, memory: 128MiB}
nodes:
  bulk: {type: box}
  sink: {type: box}
topology:
  links:
    - {from: bulk, to: sink, bandwidth: 20Mbit/s, delay: 5ms, discipline: {codel: {ecn: true}}}
programs:
  - on: sink
    run: [netprobe, serve]
    files: {/usr/local/bin/netprobe: netprobe}
    ready: {log: listening, within: 20s}
workload:
  warm_up: 1s
  measure: 3s
  run:
    on: bulk
    command: [netprobe, bulk, "--to=sink", "--warm-up=${warm_up}", "--measure=${measure}"]
    files: {/usr/local/bin/netprobe: netprobe}
metrics:
  bin: {from: bulk, json: $.bin_ns, unit: ns, combine: max}
"#;

/// The bottleneck in the measured time: packets sent, marked, dropped early.
fn bottleneck(b: &Bench, catalog: &str) -> (u64, u64, u64) {
    std::fs::write(b.folder.join("marks.yaml"), catalog).unwrap();
    let ended = LabRun::start(b, &["marks.yaml", "--mode", "baseline"]).end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    let run: Value = serde_json::from_slice(&std::fs::read(b.folder.join("out/run.json")).unwrap()).unwrap();
    let pipes = run["pipes"].as_array().unwrap();
    let pipe = pipes.iter().find(|p| p["from"] == "bulk" && p["to"] == "sink").unwrap_or_else(|| panic!("{run}"));
    println!("{pipe}");
    let of = |count: &Value| count.as_u64().unwrap();
    (of(&pipe["packets_sent"]), of(&pipe["marked"]), of(&pipe["dropped"]["early"]))
}

/// The same link with and without marks: CoDel tells TCP of its queue by one or the other, not by both.
#[test]
fn tcp_is_marked_where_a_link_marks_and_loses_packets_where_it_does_not() {
    let Some(b) = bench("marks") else { return };
    std::fs::copy(target_dir().join("release/diecast-netprobe"), b.folder.join("netprobe")).unwrap();
    let (sent, marked, dropped) = bottleneck(&b, CATALOG);
    assert!(sent > 2000 && marked > 0 && dropped == 0, "{sent} sent, {marked} marked, {dropped} dropped");
    let (sent, marked, dropped) = bottleneck(&b, &CATALOG.replace("ecn: true", "ecn: false"));
    assert!(sent > 2000 && marked == 0 && dropped > 0, "{sent} sent, {marked} marked, {dropped} dropped");
}
