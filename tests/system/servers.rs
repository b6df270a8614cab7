//! `benches/servers.py` with one server for a second: a frame's rate is of the native kind, and its log has no error more.

use crate::bench::{Bench, bench, faultless};

#[test]
fn redis_is_as_well_in_a_frame() {
    let Some(b) = bench("servers") else { return };
    diecast_quiet::look(|| well(&b));
}

fn well(b: &Bench) {
    let Some(found) = faultless(b, "servers", &["--server", "redis", "--seconds", "1"], "servers/bench-servers.json")
    else {
        return;
    };
    let redis = &found[0];
    for run in ["native", "framed"] {
        assert!(redis[run]["rate"].as_f64() > Some(1_000.0), "{redis}");
    }
    // Ten seconds for one of its own.
    assert!(redis["framed"]["took_s"].as_f64() > redis["native"]["took_s"].as_f64().map(|s| 3.0 * s), "{redis}");
}
