//! An NTP daemon in a node steers the node's clock: it finds how wrong the catalog made it, steps it, and learns its drift.

use std::process::{Command, Stdio};

use diecast_quiet::{look, skipped};

use crate::bench::{Bench, LabRun, bench, results};

const CATALOG: &str = r#"diecast: 1
name: ntp
machine_types:
  node: {cores: 1, speed: 0.3, memory: 256MiB}
nodes:
  client: {type: node, clock: {offset: 90s, drift: 200ppm}}
  server: {type: node}
topology:
  switches: [s]
  links:
    - {from: [client, server], to: s, bandwidth: 100Mbit/s, delay: 2ms}
programs:
  - {on: server, run: [chronyd, -d, -u, root, -f, /server.conf], files: {/server.conf: server.conf}}
  - {on: client, run: [chronyd, -d, -u, root, -f, /client.conf], files: {/client.conf: client.conf}}
workload:
  warm_up: 1s
  measure: 24s
  run:
    on: client
    command: [sh, -c, "sleep 22; chronyc -n -c tracking"]
metrics:
  drift: {from: client, regex: '^(?:[^,]*,){7}(-?[0-9.]+)', unit: ppm}
  error: {from: client, regex: '^(?:[^,]*,){4}(-?[0-9.]+)', unit: s}
"#;
const SERVER: &str = "local stratum 1\nallow all\ncmdport 0\n";
const CLIENT: &str = "server server iburst minpoll 0 maxpoll 1 xleave\nmakestep 0.1 3\n";

#[test]
fn an_ntp_daemon_steers_its_nodes_clock() {
    let Some(b) = bench("ntp") else { return };
    if !Command::new("chronyd").arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success()) {
        skipped("chrony is not installed");
        return;
    }
    for (name, text) in [("ntp.yaml", CATALOG), ("server.conf", SERVER), ("client.conf", CLIENT)] {
        std::fs::write(b.folder.join(name), text).unwrap();
    }
    look(|| steered(&b));
}

fn steered(b: &Bench) {
    let ended = LabRun::start(b, &["ntp.yaml", "--tdf", "2"]).end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    let said = std::fs::read_to_string(b.folder.join("out/logs/client.chronyd.err")).unwrap();
    assert!(
        said.contains("System clock wrong by -90.0") && said.contains("System clock was stepped by -90.0"),
        "{said}"
    );
    let metrics = results(b, "out/metrics.json");
    let [drift_ppm, error_s] =
        [0, 1].map(|i| metrics[i]["data"]["scalar"]["value"].as_f64().unwrap_or_else(|| panic!("{metrics}")));
    println!("the client's clock is {drift_ppm} ppm fast, and {error_s} s off");
    assert!((150.0..250.0).contains(&drift_ppm) && error_s.abs() < 0.002, "{drift_ppm} ppm, {error_s} s\n{said}");
}
