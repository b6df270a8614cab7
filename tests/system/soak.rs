//! `benches/soak.py` with one short lab: paused, re-timed, its servers killed, and nothing early, hung, wrong or left.

use crate::bench::{Bench, bench, faultless};

#[test]
fn a_lab_that_is_disturbed_at_random_is_right_and_leaves_nothing() {
    let Some(b) = bench("soak") else { return };
    diecast_quiet::look(|| soaked(&b));
}

fn soaked(b: &Bench) {
    let Some(found) = faultless(b, "soak", &["--minutes", "0.01", "--measure", "6"], "soak/soak.json") else { return };
    let labs = found["labs"].as_array().unwrap();
    assert_eq!(labs.len(), 1, "{found}");
    // It did see what it says was not left behind, and something did happen to the lab.
    assert!(
        labs[0]["seen"]["cgroups"].as_u64() > Some(0) && labs[0]["seen"]["namespaces"].as_u64() > Some(0),
        "{found}"
    );
    assert!(!labs[0]["done"].as_array().unwrap().is_empty(), "{found}");
    assert!(labs[0]["answers"]["answered"].as_u64() > Some(100), "{found}");
}
