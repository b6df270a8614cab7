//! What plans hold: the web tier of the contract in every mode, as golden text and figure by figure.
#![expect(clippy::disallowed_methods, reason = "a test reads and writes the golden files beside it")]

use diecast_core_experiment::{Experiment, SpeedPpm, parse};
use diecast_core_plan::{HostFacts, Mode, Plan, PlanOptions, QuotaPurpose, Ratio, Role, plan};

const WEB_TIER: &str = include_str!("../../experiment/tests/good/web-tier.yaml");

fn web_tier() -> Experiment {
    parse("web-tier.yaml", WEB_TIER, &[]).unwrap()
}

fn host() -> HostFacts {
    HostFacts { cpus: vec![0, 1], memory_bytes: 23 << 30, score_milli: None, hit_cost_ns: None }
}

fn options(mode: Mode, tdf: Option<&str>, scale: Option<&str>) -> PlanOptions {
    let tdf = tdf.map(|t| t.parse().unwrap());
    let scale = scale.map(|s| s.parse().unwrap());
    PlanOptions { tdf, scale, ..PlanOptions::new(mode) }
}

fn make(mode: Mode, tdf: Option<&str>, scale: Option<&str>) -> Plan {
    plan(&web_tier(), &host(), &options(mode, tdf, scale)).unwrap_or_else(|r| panic!("{r}"))
}

fn two_full_nodes() -> Experiment {
    let text = WEB_TIER
        .replace("speed: 0.10", "speed: 1.0")
        .replace("speed: 0.15", "speed: 1")
        .replace("speed: 0.20", "speed: 1")
        .replace("count: 2}", "count: 1}")
        .replace("  lb:   {type: edge}\n  app:  {type: app, count: 4}\n  db:   {type: db}\n", "  app:  {type: app}\n")
        .replace("[lb, app, db]", "app")
        .lines()
        .filter(|l| !l.contains("on: lb") && !l.contains("on: db"))
        .collect::<Vec<_>>()
        .join("\n");
    parse("pair.yaml", &text, &[]).unwrap_or_else(|f| panic!("{f:?}"))
}

/// DIECAST_BLESS=1 rewrites the golden texts; read the difference before it is kept.
fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("DIECAST_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == text, "{name} is now:\n{text}\nDIECAST_BLESS=1 rewrites it");
}

#[test]
fn plans_as_people_read_them() {
    golden("web-tier-baseline", &make(Mode::Baseline, None, None).render());
    golden("web-tier-diecast", &make(Mode::Diecast, None, Some("10")).render());
    golden("web-tier-diecast-slower", &make(Mode::Diecast, Some("25/2"), Some("10")).render());
    golden("web-tier-naive", &make(Mode::Naive, None, Some("20")).render());
    let native = plan(&two_full_nodes(), &host(), &options(Mode::Native, None, None)).unwrap();
    golden("pair-native", &native.render());
}

fn times(speed_ppm: u64, options: PlanOptions) -> PlanOptions {
    PlanOptions { speed: SpeedPpm(speed_ppm), ..options }
}

/// Of each node but the load's, also where both have one machine type.
#[test]
fn faster_and_slower_machines_of_the_service() {
    let faster = plan(&web_tier(), &host(), &times(2_500_000, options(Mode::Diecast, Some("20"), None))).unwrap();
    golden("web-tier-faster", &faster.render());
    assert_eq!(
        (faster.node("db").unwrap().speed_ppm, faster.node("db").unwrap().share),
        (SpeedPpm(500_000), Ratio::new(1, 40))
    );
    let slower = plan(&web_tier(), &host(), &times(1, options(Mode::Baseline, None, None))).unwrap();
    assert_eq!(slower.node("app-1").unwrap().speed_ppm, SpeedPpm(1), "a node has some speed");
    for plan in [&faster, &slower] {
        let load = plan.nodes.iter().filter(|n| n.role == Role::Load).map(|n| n.speed_ppm);
        assert!(
            load.eq(make(Mode::Baseline, None, None)
                .nodes
                .iter()
                .filter(|n| n.role == Role::Load)
                .map(|n| n.speed_ppm))
        );
    }
    let half = plan(&web_tier(), &host(), &times(500_000, options(Mode::Naive, None, Some("10")))).unwrap();
    assert_eq!(half.node("db").unwrap().share, Ratio::new(1, 100));
    let refused = |options| plan(&web_tier(), &host(), &options).unwrap_err().to_string();
    let above = refused(times(6_000_000, options(Mode::Baseline, None, None)));
    assert!(above.contains("machine type 'db' has speed 1.20: at TDF 1"), "{above}");
    let native = plan(&two_full_nodes(), &host(), &times(500_000, options(Mode::Native, None, None))).unwrap_err();
    assert!(native.to_string().contains("mode native runs at speed 1.00 only"), "{native}");
}

#[test]
fn the_baseline_of_the_web_tier_fits_two_cores() {
    let p = make(Mode::Baseline, None, None);
    assert!(p.cpus.iter().all(|c| c.share == Ratio::new(55, 100)), "{:?}", p.cpus);
    assert_eq!((p.tdf.to_string().as_str(), p.scale), ("1", None));
    assert_eq!(p.node("db").unwrap().share, Ratio::new(1, 5));
    assert_eq!(p.expected_real_ns.0, 25_000_000_000);
    assert_eq!(p.seed, 7);
}

#[test]
fn diecast_gives_each_core_speed_over_tdf() {
    let p = make(Mode::Diecast, None, Some("10"));
    let app = p.node("app-2").unwrap();
    assert_eq!(app.share, Ratio::new(15, 1000));
    assert!(app.envelope && app.metered);
    assert_eq!(p.expected_real_ns.0, 250_000_000_000);
    let slower = make(Mode::Diecast, Some("25/2"), Some("10"));
    assert_eq!(slower.node("app-2").unwrap().share, Ratio::new(12, 1000));
    assert_eq!((slower.tdf.to_string(), slower.scale.unwrap().to_string()), ("25/2".into(), "10".into()));
    let only_tdf = make(Mode::Diecast, Some("10"), None);
    assert_eq!(only_tdf.scale, p.scale);
}

/// Where the host has room for it, with as much left.
#[test]
fn a_lab_is_probed_at_a_quarter_or_half_of_its_tdf() {
    // 1.1 cores at speed 1 on two CPUs.
    let of = |tdf: &str, times_ppm: u64| {
        let o = times(times_ppm, options(Mode::Diecast, Some(tdf), None));
        plan(&web_tier(), &host(), &o).unwrap().probing().map(|p| p.tdf.to_string())
    };
    assert_eq!(of("10", 1_000_000).as_deref(), Some("5/2"));
    assert_eq!(of("4", 1_000_000).as_deref(), Some("2"), "at 1 it would need more than half of what it may");
    assert_eq!(of("7/2", 1_000_000), None, "hardly colder");
    assert_eq!(of("10", 5_000_000).as_deref(), None);
    assert_eq!(of("10", 3_000_000).as_deref(), Some("5"));
    assert_eq!(make(Mode::Baseline, None, None).probing(), None);
    assert_eq!(make(Mode::Naive, None, Some("20")).probing(), None);
}

/// It ends before measuring begins, lasts for a second of real time, and a plan without it says why.
#[test]
fn a_lab_that_is_not_probed_says_why() {
    let of = |tdf: &str, warm_up_ms: u64| {
        let mut lab = web_tier();
        lab.workload.warm_up_ns = warm_up_ms * 1_000_000;
        plan(&lab, &host(), &options(Mode::Diecast, Some(tdf), None)).unwrap()
    };
    let said = |p: &Plan| p.notes.iter().filter(|n| n.contains("what cold code adds")).cloned().collect::<Vec<_>>();
    let p = of("10", 1_400);
    let probing = p.probing().unwrap();
    assert_eq!((probing.begin.0, probing.end.0), (840_000_000, 1_260_000_000));
    assert!(said(&p).is_empty());
    let short = of("10", 1_300);
    assert_eq!(short.probing(), None);
    assert!(said(&short)[0].ends_with("TDF 5/2 for a moment; with 1.4 s it does"), "{:?}", said(&short));
    assert!(said(&of("2", 1_300)).is_empty(), "hardly colder");
    let full = plan(&web_tier(), &host(), &times(5_000_000, options(Mode::Diecast, Some("10"), None))).unwrap();
    assert!(said(&full)[0].ends_with("the host has no room to run at a lower TDF for a moment"), "{:?}", said(&full));
}

#[test]
fn the_ceiling_is_four_times_the_share_and_what_the_kernel_takes() {
    for tdf in ["1", "10", "7/3", "100", "1000"] {
        let p = make(Mode::Diecast, Some(tdf), None);
        for n in &p.nodes {
            let q = n.quota.unwrap();
            let ceiling = Ratio::new(u128::from(q.quota_us), u128::from(q.period_us));
            assert_eq!(q.purpose, QuotaPurpose::Ceiling);
            assert!(ceiling >= n.share.times(4 * u128::from(n.cores)) && q.quota_us >= 1000, "{tdf} {q:?}");
        }
    }
    let app = make(Mode::Diecast, None, Some("10")).node("app-1").unwrap().quota.unwrap();
    assert_eq!((app.quota_us, app.period_us, app.cpu_max().as_str()), (60_000, 1_000_000, "60000 1000000"));
}

#[test]
fn naive_keeps_the_generators_whole_and_cuts_the_servers() {
    let p = make(Mode::Naive, None, Some("10"));
    let quota = |name: &str| p.node(name).unwrap().quota.map(|q| (q.quota_us, q.period_us, q.purpose));
    assert_eq!(quota("load-1"), None);
    assert_eq!(p.node("load-1").unwrap().share, Ratio::new(1, 10));
    assert_eq!(quota("lb"), Some((1000, 100_000, QuotaPurpose::Allotment)));
    assert_eq!(quota("app-1"), Some((1500, 100_000, QuotaPurpose::Allotment)));
    assert_eq!(quota("db"), Some((2000, 100_000, QuotaPurpose::Allotment)));
    assert!(p.nodes.iter().all(|n| !n.envelope && !n.metered));
    assert_eq!(p.tdf.to_string(), "1");
    // Below the kernel's smallest quota the period is stretched, and the plan says so.
    let p = make(Mode::Naive, None, Some("20"));
    let lb = p.node("lb").unwrap().quota.unwrap();
    assert_eq!((lb.quota_us, lb.period_us), (1000, 200_000));
    assert!(p.notes.iter().any(|n| n.starts_with("lb:") && n.contains("200 ms")), "{:?}", p.notes);
}

#[test]
fn placement_and_network_are_the_same_in_every_mode() {
    let base = make(Mode::Baseline, None, None);
    for other in [make(Mode::Diecast, None, Some("10")), make(Mode::Naive, None, Some("10"))] {
        for (a, b) in base.nodes.iter().zip(&other.nodes) {
            assert_eq!((&a.cpus, a.ipv4, a.mac), (&b.cpus, b.ipv4, b.mac), "{}", a.name);
        }
        assert_eq!(base.net, other.net);
    }
    let pair = two_full_nodes();
    let native = plan(&pair, &host(), &options(Mode::Native, None, None)).unwrap();
    let dilated = plan(&pair, &host(), &options(Mode::Diecast, Some("10"), None)).unwrap();
    let cpus = |p: &Plan| p.nodes.iter().map(|n| n.cpus.clone()).collect::<Vec<_>>();
    assert_eq!(cpus(&native), cpus(&dilated));
    assert_eq!(cpus(&native), [[0], [1]]);
    assert!(native.nodes.iter().all(|n| n.quota.is_none() && !n.envelope && n.share == Ratio::ONE));
}

#[test]
fn the_network_is_one_that_the_emulator_takes() {
    let p = make(Mode::Diecast, None, Some("10"));
    assert_eq!((p.net.pipes.len(), p.net.nodes.len(), p.net.seed), (18, 8, 7));
    diecast_core_net::Network::new(&p.net).unwrap();
    let site = &p.net.pipes[16].link;
    assert_eq!((site.bandwidth_bps, site.delay_ns, site.queue_packets), (Some(100_000_000), 10_000_000, 256));
    for (node, spec) in p.nodes.iter().zip(&p.net.nodes) {
        assert_eq!((&node.name, node.ipv4), (&spec.name, spec.ipv4));
    }
}

#[test]
fn programs_and_load_are_resolved_per_node() {
    let text = WEB_TIER.replace(r#""${seed}"]"#, r#""${seed}", "--me=${node}/${index}"]"#);
    let e = parse("web-tier.yaml", &text, &[("rate".into(), "210/s".into())]).unwrap();
    let p = plan(&e, &host(), &options(Mode::Baseline, None, None)).unwrap();
    let load = p.node("load-2").unwrap();
    assert_eq!(load.role, Role::Load);
    assert_eq!(load.load.as_ref().unwrap().argv.join(" "), "loadgen http://lb/ --rate 210/s --seed 7 --me=load-2/2");
    let order: Vec<_> = p.programs_in_start_order().iter().map(|(n, _)| n.name.clone()).collect();
    assert_eq!(order, ["lb", "app-1", "app-2", "app-3", "app-4", "db"]);
    let lb = &p.node("lb").unwrap().programs[0];
    assert_eq!((lb.files[0].path.as_str(), lb.files[0].source.as_str()), ("/etc/lb.cfg", "lb.cfg"));
    assert!(lb.ready.is_some() && p.node("lb").unwrap().load.is_none());
    assert_eq!(p.workload.parameters["rate"], "210/s");
}

#[test]
fn the_start_order_is_the_catalogs_over_all_nodes() {
    // The catalog's order is not the nodes' order: the database comes first, the generators serve a file last.
    let text = WEB_TIER
        .replace("programs:\n", "programs:\n  - {on: [db, app], run: [first]}\n")
        .replace("workload:\n", "  - {on: load, run: [last]}\n\nworkload:\n");
    let e = parse("web-tier.yaml", &text, &[]).unwrap_or_else(|f| panic!("{f:?}"));
    let p = plan(&e, &host(), &options(Mode::Baseline, None, None)).unwrap();
    let order: Vec<_> =
        p.programs_in_start_order().iter().map(|(n, p)| format!("{} {} {}", p.order, n.name, p.argv[0])).collect();
    assert_eq!(order[..5], ["0 app-1 first", "0 app-2 first", "0 app-3 first", "0 app-4 first", "0 db first"]);
    assert_eq!(order[5], "1 lb haproxy");
    assert_eq!(order[10..], ["3 db redis-server", "4 load-1 last", "4 load-2 last"]);
}

#[test]
fn loss_becomes_a_probability() {
    let e = parse("web-tier.yaml", &WEB_TIER.replace("loss: 0%", "loss: 0.25%"), &[]).unwrap();
    let p = plan(&e, &host(), &options(Mode::Diecast, Some("10"), None)).unwrap();
    assert_eq!(
        (p.net.pipes[15].link.loss, p.net.pipes[16].link.loss, p.net.pipes[17].link.loss),
        (0.0, 0.0025, 0.0025)
    );
    assert!(p.render().contains("256 packets  0.25 %"), "{}", p.render());
}

#[test]
fn a_plan_is_data() {
    let json = serde_json::to_value(make(Mode::Diecast, Some("3/2"), None)).unwrap();
    assert_eq!(json["tdf"], "3/2");
    assert_eq!(json["scale"], "3/2");
    assert_eq!(json["nodes"][3]["share"], serde_json::json!({"num": 1, "den": 10}));
    assert_eq!(json["nodes"][3]["quota"]["quota_us"], 400_000);
    assert_eq!(json["expected_real_ns"], 37_500_000_000u64);
    assert_eq!(json["metrics"][1]["source"]["samples"], "latency_ns.bin");
    assert_eq!(json["net"]["nodes"].as_array().unwrap().len(), 8);
}

/// The demo's catalog must fit the smallest machine that it is made for: two CPUs.
#[test]
fn the_example_of_the_tree_fits_two_cores_in_every_mode_that_it_is_validated_in() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web-tier.yaml");
    let e = parse("web-tier.yaml", &std::fs::read_to_string(path).unwrap(), &[]).unwrap();
    for o in [
        options(Mode::Baseline, None, None),
        options(Mode::Diecast, None, Some("10")),
        options(Mode::Naive, None, Some("10")),
    ] {
        let p = plan(&e, &host(), &o).unwrap_or_else(|r| panic!("{r}"));
        assert!(p.nodes.len() >= 8 && p.nodes.iter().any(|n| n.load.is_some()));
    }
}

/// Eight cores of a tenth of a CPU each are 0.4 of each of two.
#[test]
fn a_node_has_more_cores_than_the_host() {
    let text = WEB_TIER.replace("db:   {cores: 1, speed: 0.20", "db:   {cores: 8, speed: 1");
    let experiment = parse("web-tier.yaml", &text, &[]).unwrap();
    let p = plan(&experiment, &host(), &options(Mode::Diecast, Some("10"), None)).unwrap();
    let db = p.nodes.iter().find(|n| n.name == "db").unwrap();
    assert_eq!((db.cores, db.cpus.as_slice(), db.share), (8, [0, 1].as_slice(), Ratio::new(1, 10)));
    // What it brings is on both, and the others are spread over what is left.
    let sums: Vec<f64> = p.cpus.iter().map(|c| c.share.num() as f64 / c.share.den() as f64).collect();
    let alone: f64 =
        p.nodes.iter().filter(|n| n.name != "db").map(|n| n.share.num() as f64 / n.share.den() as f64).sum();
    assert!(
        (sums.iter().sum::<f64>() - alone - 0.8).abs() < 1e-9 && (sums[0] - sums[1]).abs() < 0.02,
        "{sums:?} {alone}"
    );
    assert!(p.notes.contains(&"machine type 'db' has 8 cores on 2 CPUs, on which they wait for each other".to_owned()));
    // At half the TDF they would take 0.8 of each.
    let refusal = plan(&experiment, &host(), &options(Mode::Diecast, Some("5"), None)).unwrap_err().to_string();
    assert!(refusal.contains("raise the TDF to 6"), "{refusal}");
}

/// 500 points are half a core of a host of 1000 and a quarter of one of 2000.
#[test]
fn scores_become_speeds_of_this_host() {
    let text = WEB_TIER.replace("speed: 0.10", "score: 100").replace("speed: 0.20", "score: 200.5");
    let experiment = parse("web-tier.yaml", &text, &[]).unwrap();
    let speeds = |milli: u64| {
        let host = HostFacts { score_milli: Some(milli), ..host() };
        let p = plan(&experiment, &host, &options(Mode::Baseline, None, None)).unwrap();
        let of = |name: &str| p.nodes.iter().find(|n| n.name == name).unwrap().speed_ppm.0;
        ([of("lb"), of("app-1"), of("db")], p.notes)
    };
    let (ppm, notes) = speeds(1_000_000);
    assert_eq!(ppm, [100_000, 150_000, 200_500]);
    assert!(
        notes.iter().any(|n| n.starts_with("machine type db: score 200 is speed 0.2005 on this host")),
        "{notes:?}"
    );
    assert_eq!(speeds(2_000_000).0, [50_000, 150_000, 100_250]);
}
