//! `benches/soak.py` with one short lab: paused, re-timed, its servers killed, and nothing early, hung, wrong or left.

use serde_json::Value;

use crate::bench::{Bench, bench, benchmark, text};

#[test]
fn a_lab_that_is_disturbed_at_random_is_right_and_leaves_nothing() {
    let Some(b) = bench("soak") else { return };
    diecast_quiet::look(|| soaked(&b));
}

fn soaked(b: &Bench) {
    let o = benchmark(b, "soak").args(["--minutes", "0.01", "--measure", "6"]).output().unwrap();
    println!("{}", text(&o.stdout));
    if o.status.code() == Some(3) {
        diecast_quiet::skipped(text(&o.stdout));
        return;
    }
    assert_eq!(o.status.code(), Some(0), "{}\n{}", text(&o.stdout), text(&o.stderr));
    let found: Value = serde_json::from_slice(&std::fs::read(b.folder.join("soak/soak.json")).unwrap()).unwrap();
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
