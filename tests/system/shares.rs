//! `benches/shares.py` in its small form: what a fork storm, a sender in the kernel and 500 threads use is charged.

use crate::bench::{Bench, bench, small_bench};

#[test]
fn what_escapes_the_meter_is_charged() {
    let Some(b) = bench("shares") else { return };
    diecast_quiet::look(|| conserved(&b));
}

fn conserved(b: &Bench) {
    let figures = small_bench(b, "shares", &["--part", "conservation"]);
    let nodes: Vec<&str> = figures.iter().map(|f| f["what"].as_str().unwrap().split(':').next().unwrap()).collect();
    assert_eq!(nodes, ["forks", "sender", "threads"]);
    for f in &figures {
        // The bar is 1 %, which the benchmark judges.
        assert!(f["used_ns"].as_f64().unwrap() > 30e6 && f["error"].as_f64().unwrap().abs() < 0.03, "{f}");
    }
}
