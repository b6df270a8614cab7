//! What right catalogs become.
#![expect(clippy::disallowed_methods, reason = "a test reads and writes the golden files beside it")]

use diecast_core_experiment::{
    Clock, Combine, Experiment, MetricSource, ParameterValue, QueueLimit, Ready, ReadyCheck, SpeedPpm, parse,
};

const WEB_TIER: &str = include_str!("good/web-tier.yaml");
const EVERYTHING: &str = include_str!("good/everything.yaml");

fn read(text: &str, overrides: &[(&str, &str)]) -> Experiment {
    let overrides: Vec<_> = overrides.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    parse("catalog.yaml", text, &overrides).unwrap_or_else(|faults| {
        panic!("{}", faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    })
}

fn words(templates: &[diecast_core_experiment::Template]) -> Vec<String> {
    templates.iter().map(ToString::to_string).collect()
}

#[test]
fn the_contract_example_has_eight_nodes() {
    let e = read(WEB_TIER, &[]);
    assert_eq!(e.name, "web-tier");
    let names: Vec<&str> = e.nodes.iter().map(|n| n.name.as_str()).collect();
    assert_eq!(names, ["load-1", "load-2", "lb", "app-1", "app-2", "app-3", "app-4", "db"]);
    let app = e.machine_type_of(e.node("app-3").unwrap());
    assert_eq!((app.cores, app.speed_ppm, app.memory_bytes), (1, SpeedPpm(150_000), 512 << 20));
    assert_eq!(app.speed_at.line, 9);
    assert!(e.generates_load("load-2") && !e.generates_load("lb"));
}

#[test]
fn clocks_have_signs() {
    let e = read(EVERYTHING, &[]);
    let clock = |node: &str| e.node(node).unwrap().clock;
    assert_eq!(clock("web"), Clock { offset_ns: -1_500_000_000, drift_ppb: 12_500 });
    assert_eq!(clock("web").to_string(), "-1500 ms, +12.5 ppm");
    assert!(clock("peer-1").is_right());
}

#[test]
fn a_list_of_groups_means_one_link_per_node() {
    let e = read(WEB_TIER, &[]);
    let ends: Vec<_> = e.topology.links.iter().map(|l| format!("{}-{}", l.from, l.to)).collect();
    assert_eq!(ends[..3], ["load-1-client-site", "load-2-client-site", "lb-server-site"]);
    assert_eq!(ends.len(), 9);
    let site = e.topology.links[8].forward;
    assert_eq!((site.bandwidth_bps, site.delay_ns, site.loss_ppm), (Some(100_000_000), 10_000_000, 0));
    assert_eq!((site.queue, e.topology.links[8].back), (QueueLimit::Packets(256), site));
    let edge = e.topology.links[0].forward;
    let expected = (Some(1_000_000_000), 50_000, QueueLimit::Packets(1000));
    assert_eq!((edge.bandwidth_bps, edge.delay_ns, edge.queue), expected);
}

#[test]
fn programs_workload_and_metrics_of_the_contract_example() {
    let e = read(WEB_TIER, &[]);
    let lb = &e.programs[0];
    assert_eq!(words(&lb.command.argv), ["haproxy", "-f", "/etc/lb.cfg"]);
    assert_eq!((lb.command.files[0].path.as_str(), lb.command.files[0].source.as_str()), ("/etc/lb.cfg", "lb.cfg"));
    assert_eq!(lb.ready, Some(Ready { check: ReadyCheck::Tcp { port: 80 }, within_ns: 20_000_000_000 }));
    assert_eq!(e.programs[1].on, ["app-1", "app-2", "app-3", "app-4"]);
    let health = ReadyCheck::Http { port: 8080, path: "/health".into() };
    assert_eq!(e.programs[1].ready.as_ref().unwrap().check, health);
    assert_eq!(e.programs[2].ready.as_ref().unwrap().check, ReadyCheck::Log { text: "Ready to accept".into() });
    assert_eq!((e.workload.warm_up_ns, e.workload.measure_ns), (5_000_000_000, 20_000_000_000));
    assert_eq!(words(&e.workload.command.argv), ["loadgen", "http://lb/", "--rate", "90/s", "--seed", "7"]);
    let (throughput, latency, errors) = (&e.metrics[0], &e.metrics[1], &e.metrics[2]);
    assert_eq!(throughput.source, MetricSource::Json("$.rate".into()));
    assert_eq!((throughput.combine, throughput.unit.as_str()), (Some(Combine::Sum), "1/s"));
    assert_eq!(latency.source, MetricSource::Samples("latency_ns.bin".into()));
    assert_eq!(latency.show, ["mean", "p50", "p99"]);
    assert_eq!(errors.source, MetricSource::Regex(r"errors=(\d+)".into()));
    assert_eq!(errors.from, ["load-1", "load-2"]);
}

#[test]
fn overrides_reach_the_command_and_the_last_one_wins() {
    let e = read(WEB_TIER, &[("rate", "5/s"), ("rate", "210/s"), ("seed", "8")]);
    assert_eq!(words(&e.workload.command.argv)[3..], ["210/s", "--seed", "8"]);
    let rate = e.parameter("rate").unwrap();
    assert_eq!((&rate.value, rate.overridden), (&ParameterValue::RatePerDay(210 * 86_400), true));
}

#[test]
fn every_key_of_the_grammar_is_read() {
    let e = read(EVERYTHING, &[]);
    assert_eq!(e.nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["web", "peer-1", "peer-2"]);
    assert_eq!(e.topology.routers, ["core"]);
    let pipe = e.topology.links[0].forward;
    assert_eq!((pipe.loss_ppm, pipe.queue), (5_000, QueueLimit::Packets(1)));
    let web = &e.programs[0];
    assert_eq!(web.command.cwd.as_deref(), Some("/srv"));
    assert_eq!(web.command.env[0].0, "SIZE");
    assert_eq!(web.command.env[0].1.to_string(), "1.5KiB of $5");
    assert_eq!(web.command.env[1].1.to_string(), "");
    assert_eq!(web.ready, None);
    let load = &e.workload.command;
    assert_eq!(words(&load.argv), ["load", "--as", "${node}#${index}", "--for", "250ms", "--after", "0s"]);
    assert_eq!(load.argv[2].for_node(e.node("peer-2").unwrap()), "peer-2#2");
    assert_eq!((load.cwd.as_deref(), load.files.len(), load.env.len()), (Some("/tmp"), 1, 1));
    assert_eq!(e.metrics[0].combine, None);
    assert_eq!(e.metrics[1].show, ["mean", "p50", "p99"]);
    assert_eq!(e.workload.on, ["peer-1", "peer-2"]);
}

#[test]
fn an_experiment_serialises_with_units_in_its_names() {
    let json = serde_json::to_value(read(WEB_TIER, &[])).unwrap();
    assert_eq!(json["machine_types"][0]["speed_ppm"], 100_000);
    assert_eq!(json["topology"]["links"][8]["delay_ns"], 10_000_000);
    assert_eq!(json["workload"]["command"]["argv"][3], "90/s");
    assert_eq!(json["programs"][1]["ready"]["check"]["http"]["port"], 8080);
    assert_eq!(json["metrics"][1]["source"]["samples"], "latency_ns.bin");
}

#[test]
fn every_example_of_the_tree_is_right() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let files = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let catalogs: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "yaml")).collect();
    assert!(!catalogs.is_empty());
    for path in catalogs {
        let faults = parse(&path.to_string_lossy(), &std::fs::read_to_string(&path).unwrap(), &[]).err();
        let faults: Vec<String> = faults.iter().flatten().map(ToString::to_string).collect();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}
