//! The example of the README, as it is but for its times.

use std::path::Path;

use crate::bench::{bench, run, text};

#[test]
fn the_web_tier_answers_all_requests() {
    for program in ["haproxy", "redis-server", "uwsgi"] {
        if diecast_tests::tool(program).is_none() {
            return diecast_quiet::skipped(format_args!("{program} is not installed"));
        }
    }
    let Some(b) = bench("web-tier") else { return };
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").canonicalize().unwrap();
    let catalog = std::fs::read_to_string(examples.join("web-tier.yaml")).unwrap();
    assert!(catalog.contains("warm_up: 3s") && catalog.contains("measure: 20s"), "other times: {catalog}");
    let short = catalog.replace("warm_up: 3s", "warm_up: 1s").replace("measure: 20s", "measure: 3s");
    // Beside its files, whose paths are relative to it.
    let (here, release) = (b.folder.join("examples"), b.folder.join("target/release"));
    std::fs::create_dir_all(&here).unwrap();
    std::fs::create_dir_all(&release).unwrap();
    std::os::unix::fs::symlink(examples.join("web-tier"), here.join("web-tier")).unwrap();
    std::fs::copy(b.folder.join("diecast-loadgen"), release.join("diecast-loadgen")).unwrap();
    std::fs::write(here.join("web-tier.yaml"), short).unwrap();

    let o = run(&b, &["run", "examples/web-tier.yaml", "--mode", "baseline", "--json", "--out", "out"]);
    assert!(matches!(o.status.code(), Some(0 | 4)), "{}\n{}", text(&o.stdout), text(&o.stderr));
    let found: serde_json::Value = serde_json::from_slice(&o.stdout).unwrap();
    let metrics = found["metrics"].as_array().unwrap();
    let scalar = |name: &str| {
        let metric = metrics.iter().find(|m| m["name"] == name).unwrap();
        metric["data"]["scalar"]["value"].as_f64().unwrap()
    };
    println!("{} requests/s, {} errors", scalar("throughput"), scalar("errors"));
    assert_eq!(scalar("errors"), 0.0, "{found}");
    // 200 are asked for, at random instants.
    assert!((140.0..260.0).contains(&scalar("throughput")), "{found}");
}
