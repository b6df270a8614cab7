//! `benches/cpu.py` in its small form: a request of 500 µs of CPU time, native, in frames and under a quota.

use crate::bench::{bench, small_bench};

#[test]
fn requests_take_their_cpu_time_in_virtual_time() {
    let Some(b) = bench("cpu") else { return };
    let figures = small_bench(&b, "cpu", &[]);
    assert_eq!(figures.len(), 5, "{figures:?}");
    let median_us = |mode: &str| {
        let f = figures.iter().find(|f| f["mode"] == mode).unwrap_or_else(|| panic!("no {mode}"));
        assert!(f["n"].as_u64().unwrap() > 20, "{f}");
        f["figures"]["p50"]["us"].as_f64().unwrap()
    };
    // The service, the links and what else a request costs; a quota lets each finish ten times too early.
    for mode in ["native", "diecast-1", "diecast-8", "diecast-16"] {
        assert!(median_us(mode) >= 880.0, "{mode}: {} us", median_us(mode));
    }
    assert!(median_us("cfs") < 750.0, "{} us", median_us("cfs"));
}
