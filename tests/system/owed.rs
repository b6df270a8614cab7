//! Who looks for more to do has done what it did before: a program that answers, and then looks.

use std::process::Command;

use diecast_tests::{World, c, judge, musl};

use crate::bench::{Bench, bench, run, text};

const CATALOG: &str = r#"diecast: 1
name: owed
machine_types:
  whole: {cores: 1, speed: 1, memory: 128MiB}
nodes:
  worker: {type: whole}
  peer: {type: whole}
topology:
  switches: [s]
  links:
    - {from: [worker, peer], to: s, bandwidth: 100Mbit/s, delay: 1ms}
workload:
  warm_up: 0s
  measure: 1s
  run:
    on: worker
    command: [/owed, peer, "9"]
    files: {/owed: owed}
metrics:
  signals: {from: worker, regex: '= signal.left (\d+)', unit: signals}
"#;

#[test]
fn who_looks_for_more_has_done_what_its_packets_told() {
    let Some(b) = bench("owed") else { return };
    std::fs::write(b.folder.join("owed.yaml"), CATALOG).unwrap();
    holds(&b, &c("owed", false));
    match musl("owed") {
        Some(guest) => holds(&b, &guest),
        None => diecast_quiet::skipped("musl-gcc is not installed"),
    }
}

fn holds(b: &Bench, guest: &str) {
    std::fs::copy(guest, b.folder.join("owed")).unwrap();
    let natively = Command::new(guest).output().unwrap();
    let results =
        |said: &str| -> Vec<String> { said.lines().filter(|l| l.starts_with("= ")).map(Into::into).collect() };
    diecast_quiet::look(|| {
        let o = run(b, &["run", "owed.yaml", "--tdf", "10", "--out", "run"]);
        // 4: a machine that is too busy to be trusted.
        assert!(matches!(o.status.code(), Some(0 | 4)), "{}", text(&o.stderr));
        let said = std::fs::read_to_string(b.folder.join("run/logs/worker.owed.out")).unwrap();
        println!("{said}");
        assert_eq!(results(&said), results(&text(&natively.stdout)));
        let lines: Vec<_> = said.lines().map(|l| (0, l.to_owned())).collect();
        let found = judge(World::Frame("10"), &lines, |_, _| false);
        assert!(found.is_empty(), "{found:?}");
    });
}
