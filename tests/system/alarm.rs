//! `benches/alarm.py` in its small form: disturbed runs are flagged, each for what was done to it.

use crate::bench::{bench, small_bench};

#[test]
fn a_disturbed_run_says_so() {
    let Some(b) = bench("alarm") else { return };
    let figures = small_bench(&b, "alarm", &[]);
    assert_eq!(figures.len(), 4, "{figures:?}");
    for f in figures.iter().filter(|f| f["case"] != "quiet") {
        assert_eq!((f["runs"].as_u64(), f["flagged"].as_u64()), (Some(1), Some(1)), "{f}");
    }
}
