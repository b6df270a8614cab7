//! What is refused, with which exit status, place and words.

use diecast_core_experiment::{Experiment, parse};
use diecast_core_plan::{HostFacts, Mode, PlanOptions, Reason, Refusal, plan};

const WEB_TIER: &str = include_str!("../../experiment/tests/good/web-tier.yaml");

fn experiment(changes: &[(&str, &str)]) -> Experiment {
    let text = changes.iter().fold(WEB_TIER.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    parse("web-tier.yaml", &text, &[]).unwrap_or_else(|f| panic!("{f:?}"))
}

fn host(cpus: u32, memory_gib: u64) -> HostFacts {
    HostFacts { cpus: (0..cpus).collect(), memory_bytes: memory_gib << 30, score_milli: None, hit_cost_ns: None }
}

fn options(mode: Mode, tdf: &str, scale: &str) -> PlanOptions {
    let tdf = (!tdf.is_empty()).then(|| tdf.parse().unwrap());
    let scale = (!scale.is_empty()).then(|| scale.parse().unwrap());
    PlanOptions { tdf, scale, ..PlanOptions::new(mode) }
}

fn refused(changes: &[(&str, &str)], host: &HostFacts, options: &PlanOptions) -> Refusal {
    plan(&experiment(changes), host, options).expect_err("this plan should be refused")
}

#[track_caller]
fn check(refusal: &Refusal, exit_status: u8, text: &str) {
    assert_eq!(refusal.to_string(), text);
    assert_eq!(refusal.exit_status(), exit_status);
}

#[test]
fn a_score_needs_the_score_of_the_host() {
    let r = refused(&[("speed: 0.15", "score: 150")], &host(2, 23), &options(Mode::Baseline, "", ""));
    assert_eq!(r.exit_status(), 3);
    let text = r.to_string();
    assert!(text.contains("machine type 'app' has a score, and the score of this host is not known"), "{text}");
    assert!(text.starts_with("web-tier.yaml:"), "{text}");
}

#[test]
fn commands_without_what_their_mode_needs() {
    let h = host(2, 23);
    check(
        &refused(&[], &h, &options(Mode::Diecast, "", "")),
        2,
        "mode diecast needs a TDF or a scale factor, found neither\n  \
         hint: give --scale 10 (the TDF is then 10 too) or --tdf 10",
    );
    check(
        &refused(&[], &h, &options(Mode::Naive, "", "")),
        2,
        "mode naive needs a scale factor\n  hint: give --scale, such as --scale 10",
    );
    check(
        &refused(&[], &h, &options(Mode::Naive, "10", "10")),
        2,
        "mode naive runs at TDF 1, found --tdf 10\n  hint: leave --tdf out and give --scale",
    );
    check(
        &refused(&[], &h, &options(Mode::Baseline, "10", "")),
        2,
        "mode baseline runs at TDF 1, found --tdf 10\n  hint: leave --tdf out, or use --mode diecast",
    );
    check(
        &refused(&[], &h, &options(Mode::Native, "", "5/2")),
        2,
        "mode native runs at full size, found --scale 5/2\n  \
         hint: leave --scale out, or use --mode diecast or naive",
    );
    check(
        &refused(&[], &h, &options(Mode::Diecast, "5", "10")),
        2,
        "TDF 5 is below the scale factor 10: the nodes would use more than 1/10 of the baseline\n  \
         hint: raise the TDF to 10, or lower the scale factor",
    );
    let coarse = PlanOptions { grain_ns: 1, ..options(Mode::Baseline, "", "") };
    check(
        &refused(&[], &h, &coarse),
        2,
        "a grain of 1 ns is out of range, expected 10000 to 10000000 ns\n  hint: the default is 500000, or 100000 where packets can't tell what their senders have used",
    );
}

#[test]
fn too_little_cpu_names_the_cpu_and_the_tdf_that_would_fit() {
    check(
        &refused(&[("count: 4", "count: 12")], &host(2, 23), &options(Mode::Baseline, "", "")),
        3,
        "web-tier.yaml:15:3: CPU 0 would carry 1.15 of a core for load-1, load-2, app-3, app-5, app-7, app-9, app-11, db, \
         where at most 0.85 is for nodes; all nodes together need 2.30 of the host's 2 cores\n  \
         hint: the baseline does not fit this host: use fewer or slower nodes, or a host with more cores; \
         --mode diecast --tdf 2 would fit",
    );
    let many = [("count: 4", "count: 400"), ("512MiB", "1MiB")];
    let refusal = refused(&many, &host(2, 23), &options(Mode::Diecast, "10", ""));
    assert!(refusal.to_string().ends_with("hint: raise the TDF to 36 (--tdf 36)"), "{refusal}");
    assert!(plan(&experiment(&many), &host(2, 23), &options(Mode::Diecast, "36", "")).is_ok());
    assert!(plan(&experiment(&many), &host(2, 23), &options(Mode::Diecast, "35", "")).is_err());
    let loaders = [("count: 2", "count: 20")];
    let refusal = refused(&loaders, &host(2, 23), &options(Mode::Naive, "", "10"));
    assert!(refusal.to_string().contains("nodes that generate load keep their full CPU"), "{refusal}");
}

#[test]
fn the_limit_itself_fits() {
    // Five nodes of 0.17 on one CPU are exactly 0.85; a millionth more is too much.
    let exactly = [("count: 4", "count: 1"), ("speed: 0.10", "speed: 0.17"), ("0.15", "0.17"), ("0.20", "0.17")];
    let baseline = options(Mode::Baseline, "", "");
    assert!(plan(&experiment(&exactly), &host(1, 23), &baseline).is_ok());
    let more = [exactly[0], exactly[1], exactly[2], ("0.20", "0.170001")];
    assert!(matches!(*refused(&more, &host(1, 23), &baseline).reason, Reason::TooMuchCpu { .. }));
}

#[test]
fn a_speed_above_the_tdf_is_refused_where_it_stands() {
    check(
        &refused(&[("speed: 0.20", "speed: 2.5")], &host(8, 23), &options(Mode::Diecast, "2", "")),
        3,
        "web-tier.yaml:10:27: machine type 'db' has speed 2.50: at TDF 2 each core would need 1.25 real cores\n  \
         hint: raise the TDF to 3 (--tdf 3)",
    );
    let changes = [("speed: 0.20", "speed: 2.5")];
    assert!(plan(&experiment(&changes), &host(8, 23), &options(Mode::Diecast, "3", "")).is_ok());
    check(
        &refused(&changes, &host(8, 23), &options(Mode::Baseline, "", "")),
        3,
        "web-tier.yaml:10:27: machine type 'db' has speed 2.50: at TDF 1 each core would need 2.50 real cores\n  \
         hint: lower the speed, or use --mode diecast --tdf 3",
    );
}

/// All machines have whole cores.
const FULL: [(&str, &str); 3] =
    [("speed: 0.10", "speed: 1"), ("speed: 0.15", "speed: 1"), ("speed: 0.20", "speed: 1.000")];

#[test]
fn native_needs_speed_one_and_a_cpu_per_core() {
    check(
        &refused(&[], &host(8, 23), &options(Mode::Native, "", "")),
        3,
        "web-tier.yaml:8:27: machine type 'edge' has speed 0.10, and mode native runs at speed 1.00 only\n  \
         hint: use --mode baseline, or nodes of speed 1.0",
    );
    check(
        &refused(&FULL, &host(7, 23), &options(Mode::Native, "", "")),
        3,
        "web-tier.yaml:15:3: mode native gives each core a CPU of its own: 8 are needed, the host has 7 to use\n  \
         hint: use --mode baseline or diecast, or fewer nodes",
    );
    assert!(plan(&experiment(&FULL), &host(8, 23), &options(Mode::Native, "", "")).is_ok());
    // By score: as near as two measurements of this host are.
    let scored = [("speed: 0.10", "score: 1000"), ("speed: 0.15", "score: 1000"), ("speed: 0.20", "score: 1000")];
    for (milli, fits) in [(952_400, true), (1_050_000, true), (951_000, false), (1_060_000, false)] {
        let host = HostFacts { score_milli: Some(milli), ..host(8, 23) };
        let planned = plan(&experiment(&scored), &host, &options(Mode::Native, "", ""));
        assert_eq!(planned.is_ok(), fits, "{milli}");
    }
}

#[test]
fn too_many_cores_too_little_memory_no_cpu() {
    let h = host(2, 23);
    let wide = [FULL.as_slice(), &[("db:   {cores: 1", "db:   {cores: 4")]].concat();
    check(
        &refused(&wide, &h, &options(Mode::Native, "", "")),
        3,
        "web-tier.yaml:10:17: machine type 'db' has 4 cores, each needs a CPU of its own and the host has 2 to use\n  \
         hint: lower 'cores', use --mode baseline or diecast, or a host with 4 CPUs",
    );
    let many = [("db:   {cores: 1", "db:   {cores: 65")];
    check(
        &refused(&many, &host(96, 230), &options(Mode::Diecast, "10", "")),
        3,
        "web-tier.yaml:10:17: machine type 'db' has 65 cores, and a node's ledger has room for 64\n  \
         hint: lower 'cores', or use --mode native, which has no ledger",
    );
    check(
        &refused(&[], &host(2, 3), &options(Mode::Diecast, "10", "")),
        3,
        "web-tier.yaml:9:41: the nodes need 3.75 GiB of memory, the host has 3 GiB for them\n  \
         hint: lower 'memory' or 'count': memory is not scaled",
    );
    check(
        &refused(&[], &host(0, 23), &options(Mode::Baseline, "", "")),
        3,
        "the host has no usable CPU\n  hint: look at the process's CPU affinity and cpuset",
    );
}

#[test]
fn a_running_lab_at_another_tdf() {
    let small = plan(&experiment(&[]), &host(2, 23), &options(Mode::Diecast, "10", "")).unwrap();
    let quota_us = |tdf: &str| small.retimed(tdf.parse().unwrap()).map(|all| all[0].quota_us);
    // The edge's speed is 0.1: four times a hundredth of a second at TDF 10, and half of that at 20.
    assert_eq!((quota_us("10"), quota_us("20"), quota_us("4")), (Ok(40_000), Ok(20_000), Ok(100_000)));
    let at_ten: Vec<u64> = small.nodes.iter().map(|n| n.quota.unwrap().quota_us).collect();
    let again: Vec<u64> = small.retimed(small.tdf).unwrap().iter().map(|q| q.quota_us).collect();
    assert_eq!(again, at_ten, "what the plan says");
    check(
        &small.retimed("1/2".parse().unwrap()).unwrap_err(),
        3,
        "CPU 0 would carry 1.10 of a core for load-1, load-2, app-3, db, where at most 0.85 is for nodes; \
         all nodes together need 2.20 of the host's 2 cores\n  hint: at least --tdf 1",
    );
    let big =
        plan(&experiment(&[("speed: 0.20", "speed: 2.5")]), &host(8, 23), &options(Mode::Diecast, "3", "")).unwrap();
    check(
        &big.retimed("2".parse().unwrap()).unwrap_err(),
        3,
        "machine type 'db' has speed 2.50: at TDF 2 each core would need 1.25 real cores\n  hint: at least --tdf 3",
    );
    let baseline = plan(&experiment(&[]), &host(8, 23), &options(Mode::Baseline, "", "")).unwrap();
    check(
        &baseline.retimed("2".parse().unwrap()).unwrap_err(),
        2,
        "mode baseline runs at TDF 1, found --tdf 2\n  \
         hint: start the lab with --mode diecast, if need be at --tdf 1",
    );
}

#[test]
fn a_quota_that_the_kernel_cannot_enforce() {
    check(
        &refused(&[], &host(2, 23), &options(Mode::Naive, "", "200")),
        3,
        "web-tier.yaml:8:27: node 'lb' would get 0.0005 of a CPU, below the 0.001 that a CFS quota can enforce\n  \
         hint: raise the node's speed or lower the scale factor",
    );
}
