//! `benches/cost.py` in its small form: what a lab adds to its programs' CPU time is counted.

use crate::bench::{bench, small_bench};

#[test]
fn what_a_lab_adds_is_counted() {
    let Some(b) = bench("cost") else { return };
    let figures = small_bench(&b, "cost", &[]);
    assert_eq!(figures.len(), 1, "{figures:?}");
    let f = &figures[0];
    let ns = |part: &str| f["ns"][part].as_f64().unwrap();
    // A request is 500 µs of work, which the host's slow moments make more.
    let requests = f["requests"].as_f64().unwrap();
    assert!(requests > 20.0 && ns("nodes") > 0.3 * 500e3 * requests, "{f}");
    assert!(ns("meter") > 0.001 * ns("nodes") && ns("meter") < 0.8 * ns("nodes"), "{f}");
    assert!(ns("emulator") > 0.0 && ns("supervisor") > 0.0, "{f}");
}
