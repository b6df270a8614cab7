//! Work that threads and processes of a node hand on to each other takes its time.

use std::process::Command;

use diecast_tests::{c, value_in};

use crate::bench::{bench, run, text};

const CATALOG: &str = r#"diecast: 1
name: handed
machine_types:
  whole: {cores: 1, speed: 1, memory: 128MiB}
nodes:
  server: {type: whole}
  client: {type: whole}
topology:
  switches: [s]
  links:
    - {from: [server, client], to: s, bandwidth: 1Gbit/s, delay: 50us}
programs:
  - on: server
    run: [/handed, serve]
    files: {/handed: handed}
workload:
  warm_up: 0s
  measure: 1s
  run:
    on: client
    command: [/handed, ask, server]
    files: {/handed: handed}
metrics:
  alone: {from: client, regex: 'value alone (\d+)', unit: ns}
"#;

/// Median or lower decile of a kind of request, ns.
fn found(said: &str, name: &str) -> f64 {
    value_in(said, name) as f64
}

/// Beyond what one thread takes for as much work, each kind of hand-over takes what it takes natively, give or take.
#[test]
fn a_request_takes_as_long_as_all_who_work_on_it() {
    let Some(b) = bench("handed") else { return };
    std::fs::write(b.folder.join("handed.yaml"), CATALOG).unwrap();
    let guest = c("handed", false);
    std::fs::copy(&guest, b.folder.join("handed")).unwrap();
    diecast_quiet::look(|| {
        let alone = Command::new("unshare")
            .args(["-n", "sh", "-c", "ip link set lo up; exec taskset -c 0 \"$0\"", &guest])
            .output()
            .unwrap();
        let natively = text(&alone.stdout);
        let o = run(&b, &["run", "handed.yaml", "--tdf", "10", "--out", "run"]);
        // 4: a machine that is too busy to be trusted.
        assert!(matches!(o.status.code(), Some(0 | 4)), "{}", text(&o.stderr));
        let here = std::fs::read_to_string(b.folder.join("run/logs/client.handed.out")).unwrap();
        println!("natively\n{natively}in a lab\n{here}");
        for kind in ["pipes", "condition", "loopback", "children"] {
            let expected = found(&here, "alone") + found(&natively, kind) - found(&natively, "alone");
            let ratios = [format!("{kind}-p10"), kind.to_owned()].map(|name| found(&here, &name) / expected);
            assert!(ratios[0] > 0.75 && ratios[1] < 1.5, "{kind}: {ratios:?} of the expected {expected} ns");
        }
    });
}
