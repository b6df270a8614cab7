//! `benches/servers.py` with one server for a second: a frame's rate is of the native kind, and its log has no error more.

use serde_json::Value;

use crate::bench::{Bench, bench, benchmark, text};

#[test]
fn redis_is_as_well_in_a_frame() {
    let Some(b) = bench("servers") else { return };
    diecast_quiet::look(|| well(&b));
}

fn well(b: &Bench) {
    let o = benchmark(b, "servers").args(["--server", "redis", "--seconds", "1"]).output().unwrap();
    println!("{}", text(&o.stdout));
    if o.status.code() == Some(3) {
        diecast_quiet::skipped(text(&o.stdout));
        return;
    }
    assert_eq!(o.status.code(), Some(0), "{}\n{}", text(&o.stdout), text(&o.stderr));
    let found: Value =
        serde_json::from_slice(&std::fs::read(b.folder.join("servers/bench-servers.json")).unwrap()).unwrap();
    let redis = &found[0];
    for run in ["native", "framed"] {
        assert!(redis[run]["rate"].as_f64() > Some(1_000.0), "{redis}");
    }
    // Ten seconds for one of its own.
    assert!(redis["framed"]["took_s"].as_f64() > redis["native"]["took_s"].as_f64().map(|s| 3.0 * s), "{redis}");
}
