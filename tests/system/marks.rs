//! Marks instead of drops: TCP of nodes asks for them where a link gives them.

use diecast_tests::target_dir;
use serde_json::Value;

use crate::bench::{Bench, LabRun, bench, run, text};

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
    of_bottleneck(b, LabRun::start(b, &["marks.yaml", "--mode", "baseline"]))
}

fn of_bottleneck(b: &Bench, lab: LabRun) -> (u64, u64, u64) {
    let ended = lab.end();
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

/// A connection that is made after a link has come to mark asks for marks.
#[test]
fn tcp_is_marked_where_a_command_has_a_link_mark() {
    let Some(b) = bench("marks-live") else { return };
    std::fs::copy(target_dir().join("release/diecast-netprobe"), b.folder.join("netprobe")).unwrap();
    let later = r#"[sh, -c, "sleep 1.5; exec netprobe bulk --to=sink --warm-up=0s --measure=2s"]"#;
    let command = CATALOG.lines().find(|line| line.contains("command:")).unwrap();
    let catalog = CATALOG.replace(command, &format!("    command: {later}")).replace("ecn: true", "ecn: false");
    std::fs::write(b.folder.join("marks.yaml"), catalog).unwrap();
    let lab = LabRun::start(&b, &["marks.yaml", "--tdf", "2"]);
    lab.until("warm_up");
    let set = run(&b, &["link", &lab.lab(), "set", "bulk:sink", "discipline={codel: {ecn: true}}"]);
    assert_eq!(set.status.code(), Some(0), "{}{}", text(&set.stdout), text(&set.stderr));
    let (sent, marked, dropped) = of_bottleneck(&b, lab);
    assert!(sent > 1000 && marked > 0 && dropped == 0, "{sent} sent, {marked} marked, {dropped} dropped");
}
