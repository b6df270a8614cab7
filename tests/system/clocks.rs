//! Clocks of nodes: wrong from the start, set by a program, changed by a command.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use diecast_tests::real_ahead_ns;
use serde_json::Value;

use crate::bench::{Bench, CATALOG, LabRun, bench, run, text};

/// Prints now and then how far REALTIME is ahead of MONOTONIC; the client sets its own clock once.
const WATCH: &str = "import sys, time\n\
for i in range(60):\n\
\x20   print('ahead', time.clock_gettime_ns(0) - time.clock_gettime_ns(1), flush=True)\n\
\x20   if sys.argv[1] == 'client' and i == 10:\n\
\x20       time.clock_settime(time.CLOCK_REALTIME, time.time() + 3600)\n\
\x20   time.sleep(0.1)\n";

fn with_clocks(b: &Bench) {
    let program =
        "  - {on: [client, server], run: [python3, /watch.py, \"${node}\"], files: {/watch.py: watch.py}}\nworkload:\n";
    let text = CATALOG
        .replace("  server: {type: half}", "  server: {type: half, clock: {offset: 90s, drift: -200ppm}}")
        .replace("workload:\n", program);
    std::fs::write(b.folder.join("clocks.yaml"), text).unwrap();
    std::fs::write(b.folder.join("watch.py"), WATCH).unwrap();
}

/// What the programs of a node saw, in seconds beyond `base_ns`.
fn ahead(out: &Path, node: &str, base_ns: i64) -> Vec<f64> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(out.join("logs")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with(node) {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let numbers = text.lines().filter_map(|l| l.strip_prefix("ahead ")?.parse::<i64>().ok());
            all.extend(numbers.map(|ns| (ns - base_ns) as f64 / 1e9));
        }
    }
    all
}

fn clocks(b: &Bench, words: &[&str]) -> BTreeMap<String, Value> {
    let o = run(b, &[&["clock"], words, &["--json"]].concat());
    assert_eq!(o.status.code(), Some(0), "{words:?}: {}", text(&o.stderr));
    let list: Vec<Value> = serde_json::from_slice(&o.stdout).unwrap();
    list.into_iter().map(|c| (c["node"].as_str().unwrap().to_owned(), c)).collect()
}

fn seconds(clock: &Value) -> f64 {
    clock["offset_ns"].as_i64().unwrap() as f64 / 1e9
}

fn once_the_client_has_set_its_own(b: &Bench, lab: &str) -> BTreeMap<String, Value> {
    let began = Instant::now();
    loop {
        let all = clocks(b, &[lab]);
        if seconds(&all["client"]) != 0.0 || began.elapsed() > Duration::from_secs(30) {
            return all;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn each_node_has_a_clock_of_its_own() {
    let Some(b) = bench("clocks") else { return };
    with_clocks(&b);
    diecast_quiet::look(|| own_clocks(&b));
}

fn own_clocks(b: &Bench) {
    let base = real_ahead_ns();
    let lab = LabRun::start(b, &["clocks.yaml", "--tdf", "2"]);
    lab.until("warm_up");
    let id = lab.lab();
    let first = once_the_client_has_set_its_own(b, &id);
    let server = &first["server"];
    assert!((seconds(server) - 90.0).abs() < 0.05, "{server}");
    assert_eq!(server["drift_ppb"], -200_000);
    assert!((seconds(&first["client"]) - 3600.0).abs() < 0.01, "its own program set it: {first:?}");
    assert_eq!(first["client"]["synchronised"], false);
    clocks(b, &[&id, "server", "--drift", "100000ppm"]);
    let changed = clocks(b, &[&id, "server", "--step=-100s"]);
    assert!((seconds(&changed["server"]) + 10.0).abs() < 0.3, "{changed:?}");
    for (words, expected) in [
        (&["nobody", "--step", "1s"][..], "no node or group 'nobody'"),
        (&["server", "--drift", "100001ppm"], "expected at most 100000 ppm"),
        (&["server", "--step", "1"], "has no unit"),
        (&["server", "--step=-100000h"], "expected at most ten years"),
    ] {
        let o = run(b, &[&["clock", id.as_str()], words].concat());
        assert_eq!(o.status.code(), Some(2), "{words:?}: {}{}", text(&o.stdout), text(&o.stderr));
        assert!(text(&o.stderr).contains(expected), "{words:?}: {}", text(&o.stderr));
    }
    let line = text(&run(b, &["clock", &id, "server"]).stdout);
    assert!(line.contains("drift +100000.000 ppm"), "{line}");
    std::thread::sleep(Duration::from_secs(2));
    // A tenth of one virtual second and what the commands took.
    let gained = seconds(&clocks(b, &[&id, "server"])["server"]) - seconds(&changed["server"]);
    assert!((0.09..0.4).contains(&gained), "{gained}");
    let ended = lab.end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    for words in ["clock of server: drift +100000 ppm", "clock of server: step -100000 ms"] {
        assert!(ended.table.contains(words), "no '{words}' in {}", ended.table);
    }
    let out = b.folder.join("out");
    // REALTIME and MONOTONIC drift alike: their difference is steps only.
    for (node, expected) in [("client", [0.0, 3600.0]), ("server", [90.0, -10.0])] {
        let mut seen = ahead(&out, node, base);
        assert!(seen.len() > 20, "{node}: {seen:?}");
        for e in expected {
            let at = seen.iter().take_while(|s| (**s - e).abs() < 0.05).count();
            assert!(at > 3, "{node}, expected {e}: {seen:?}");
            seen.drain(..at);
        }
        assert!(seen.is_empty(), "{node}: {seen:?}");
    }
    assert!((real_ahead_ns() - base).abs() < 50_000_000, "the host's clock moved");
}
