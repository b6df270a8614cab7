//! Catalogs with every kind of link and topology become networks that the emulator takes.
#![expect(clippy::disallowed_methods, reason = "a test reads the catalogs and golden files beside it")]

use std::collections::BTreeSet;

use diecast_core_experiment::{Experiment, Mode, parse, parse_with};
use diecast_core_net::{Network, NodeIx};
use diecast_core_plan::{HostFacts, Plan, PlanOptions, plan};

fn planned(e: &Experiment) -> Plan {
    let host = HostFacts { cpus: vec![0, 1], memory_bytes: 64 << 30, score_milli: None, hit_cost_ns: None };
    let options = PlanOptions { tdf: Some("100".parse().unwrap()), ..PlanOptions::new(Mode::Diecast) };
    plan(e, &host, &options).unwrap_or_else(|r| panic!("{r}"))
}

fn links() -> Plan {
    let e = parse("links.yaml", include_str!("../../experiment/tests/good/links.yaml"), &[]);
    planned(&e.unwrap_or_else(|f| panic!("{f:?}")))
}

/// DIECAST_BLESS=1 rewrites the golden text; read the difference before it is kept.
#[test]
fn a_plan_shows_what_its_links_do() {
    let text = links().render();
    let text = text.split("\n\n").find(|part| part.starts_with("links")).unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/links.txt");
    if std::env::var_os("DIECAST_BLESS").is_some() {
        std::fs::write(path, text).unwrap();
    }
    assert!(std::fs::read_to_string(path).unwrap_or_default() == text, "it is now:\n{text}");
}

#[test]
fn fixed_routes_and_costs_reach_the_emulator() {
    let p = links();
    let net = Network::new(&p.net).unwrap();
    let way = |from: u32, to: u32| -> Vec<&str> {
        let pipes = net.path(NodeIx(from), NodeIx(to));
        pipes.iter().map(|ix| p.net.vertices[p.net.pipes[ix.at()].to.at()].name.as_str()).collect()
    };
    // Nodes: a-1, a-2, b. Only the way to b is given.
    assert_eq!(way(0, 2), ["left", "detour", "right", "b"]);
    assert_eq!(way(2, 0), ["right", "left", "a-1"]);
    assert_eq!((p.net.mtu, p.net.pipes[0].cost, p.net.pipes[0].link.loss_every), (9000, 7, Some(100)));
    assert_eq!((p.net.pipes[0].link.queue_bytes, p.net.pipes[1].link.queue_delay_ns), (Some(65_536), Some(20_000_000)));
    // A plan's network is data that survives JSON.
    let json = serde_json::to_string(&p.net).unwrap();
    assert_eq!(serde_json::from_str::<diecast_core_net::NetSpec>(&json).unwrap(), p.net);
}

/// A node with two links has two NICs, each in its segment; names of changes and of nodes mean all of them.
#[test]
fn a_node_has_a_nic_for_each_link() {
    let text = "diecast: 1\nname: n\nmachine_types:\n  box: {cores: 1, speed: 0.1, memory: 1MiB}\nnodes:\n  \
                front: {type: box}\n  client: {type: box, count: 2}\n  back: {type: box}\ntopology:\n  \
                switches: [s, t]\n  links:\n    - {from: [client, front], to: s, bandwidth: 1Mbit/s, delay: 1ms}\n    \
                - {from: [back, front], to: t, bandwidth: 1Mbit/s, delay: 1ms}\nworkload:\n  measure: 1s\n  \
                run: {on: back, command: [x]}\nfaults:\n  - {at: 1ms, cut: front}\n  - {at: 2ms, partition: [front]}\n\
                metrics:\n  m: {from: back, json: $.m, unit: u}\n";
    let p = planned(&parse("n.yaml", text, &[]).unwrap_or_else(|f| panic!("{f:?}")));
    let nics: Vec<_> = p.net.nodes.iter().map(|n| format!("{} {} {}", n.name, n.ipv4, n.segment)).collect();
    let want = [
        "front 10.99.0.1 0",
        "client-1 10.99.0.2 0",
        "client-2 10.99.0.3 0",
        "back 10.100.0.4 1",
        "front.eth1 10.100.0.5 1",
    ];
    assert_eq!(nics, want);
    assert_eq!(p.node("front").unwrap().nics, [0, 4]);
    assert_eq!(p.node("back").unwrap().nics, [3]);
    assert!(p.render().contains("10.99.0.1, 10.100.0.5"), "{}", p.render());
    assert_eq!(p.faults[0].changes.len(), 4, "both links in both directions: {:?}", p.faults[0]);
    let sides = format!("{:?}", p.faults[1].changes);
    assert_eq!(sides, "[Partition([[NodeIx(0), NodeIx(4)]])]");
    Network::new(&p.net).unwrap();
}

/// TCP of nodes asks for marks where a pipe gives them, be it later.
#[test]
fn a_plan_knows_whether_any_pipe_marks() {
    let marks = |discipline: &str, fault: &str| {
        let text = format!(
            "diecast: 1\nname: n\nmachine_types:\n  box: {{cores: 1, speed: 0.1, memory: 1MiB}}\nnodes:\n  \
             a: {{type: box}}\n  b: {{type: box}}\ntopology:\n  links:\n    \
             - {{from: a, to: b, bandwidth: 1Mbit/s, delay: 1ms, back: {{discipline: {discipline}}}}}\n\
             workload:\n  measure: 1s\n  run: {{on: a, command: [x]}}\nfaults:\n  - {{at: 1ms, {fault}}}\n\
             metrics:\n  m: {{from: a, json: $.m, unit: u}}\n"
        );
        planned(&parse("n.yaml", &text, &[]).unwrap_or_else(|f| panic!("{f:?}"))).marks()
    };
    assert!(!marks("drop-tail", "cut: \"a:b\""));
    for discipline in
        ["codel: {ecn: true}", "fq-codel: {ecn: true}", "red: {min: 5 packets, max: 9 packets, ecn: true}"]
    {
        assert!(marks(&format!("{{{discipline}}}"), "cut: \"a:b\""), "{discipline}");
        let without = discipline.replace("ecn: true", "ecn: false");
        assert!(!marks(&format!("{{{without}}}"), "cut: \"a:b\""), "{without}");
    }
    assert!(marks("drop-tail", "set: {link: \"a:b\", discipline: {codel: {ecn: true}}}"));
    assert!(!marks("drop-tail", "set: {link: \"a:b\", delay: 2ms}"));
}

/// Each way of the gateway is planned for its node, and told as what it is.
#[test]
fn a_plan_shows_its_gateway() {
    let text = include_str!("../../experiment/tests/good/everything.yaml");
    let p = planned(&parse("everything.yaml", text, &[]).unwrap_or_else(|f| panic!("{f:?}")));
    let text = p.render();
    let text = text.split("\n\n").find(|part| part.starts_with("gateway")).unwrap();
    let want = [
        "gateway: outside the frame, in real time, past all links",
        "  node web's port 6379 published at 127.0.0.1:16379",
        "  node peer-2's port 80 published at [::1]:8080",
        "  node peer-2's UDP port 53 published at [::1]:8080",
        "  192.0.2.7:5432 reached from node peer-1 as host.diecast:5432",
        "  192.0.2.7:5432 reached from node peer-2 as host.diecast:5432",
        "  192.0.2.7:5432 reached from node web as host.diecast:5432",
        "  192.0.2.7:53 reached from node web as UDP host.diecast:5432",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), want);
    let ends: Vec<_> = p.gateway.iter().map(|w| w.in_node.to_string()).collect();
    assert_eq!(ends[0], format!("{}:6379", p.node("web").unwrap().ipv4));
    assert_eq!(ends[3], "127.0.0.99:5432");
    assert!(!links().render().contains("gateway"));
}

fn example(name: &str) -> Plan {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/topologies");
    let text = std::fs::read_to_string(format!("{folder}/{name}.yaml")).unwrap();
    let mut load = |path: &str| std::fs::read_to_string(format!("{folder}/{path}")).map_err(|e| e.to_string());
    let e = parse_with(name, &text, &[], &mut load);
    planned(&e.unwrap_or_else(|faults| panic!("{}", faults.iter().map(ToString::to_string).collect::<String>())))
}

#[test]
fn every_example_of_a_topology_is_a_network() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/topologies");
    let files = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = files.filter_map(|f| f.strip_suffix(".yaml").map(str::to_owned)).collect();
    assert!(names.len() >= 4);
    for name in names {
        let p = example(&name);
        Network::new(&p.net).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn a_fat_tree_shares_its_core_and_a_backbone_its_distances() {
    let p = example("fat-tree");
    let net = Network::new(&p.net).unwrap();
    let mut cores = BTreeSet::new();
    for from in 0..9 {
        for to in (0..9).filter(|to| *to != from) {
            let path = net.path(NodeIx(from), NodeIx(to));
            assert!([2, 4, 6].contains(&path.len()), "{from} to {to}: {} pipes", path.len());
            let ends = path.iter().map(|ix| p.net.vertices[p.net.pipes[ix.at()].to.at()].name.clone());
            cores.extend(ends.filter(|name| name.starts_with("core-")));
        }
    }
    assert_eq!(cores.len(), 4, "{cores:?}");
    let p = example("backbone");
    let net = Network::new(&p.net).unwrap();
    let delay: u64 = net.path(NodeIx(0), NodeIx(2)).iter().map(|ix| p.net.pipes[ix.at()].link.delay_ns).sum();
    // Seattle to New York over Denver, Kansas City, Indianapolis and Chicago: some 4400 km, and 2.1 ms of access.
    assert!((23_500_000..25_500_000).contains(&delay), "{delay}");
}

/// DIECAST_FUZZ=N: N times as many random cases, from seed N (`make fuzz`).
fn fuzz() -> Option<u64> {
    std::env::var("DIECAST_FUZZ").ok()?.parse().ok()
}

/// A graph with other numbers and lines than it had, if it is read at all, is planned or refused, and what is planned the
/// emulator takes.
#[test]
fn no_graph_that_is_read_upsets_the_plan() {
    let graphs = [
        ("g.gml", include_str!("../../experiment/tests/graphs/shadow.gml"), ("client & co", "'1'")),
        ("g.graphml", include_str!("../../experiment/tests/graphs/zoo.graphml"), ("new-york", "new-york")),
    ];
    let (times, seed) = fuzz().map_or((1, 21), |n| (n, n));
    println!("seed {seed}");
    let mut state = seed;
    let mut below = |n: usize| {
        state = u64::wrapping_mul(state, 6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n.max(1)
    };
    let (mut refused, mut made) = (0, 0);
    for round in 0..2000 * times {
        let (file, original, (a, b)) = graphs[round as usize % 2];
        let mut lines: Vec<String> = original.lines().map(str::to_owned).collect();
        for _ in 0..=below(3) {
            let at = below(lines.len());
            match below(4) {
                0 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[at].clone()),
                _ => {
                    let digit = |c: char| {
                        if c.is_ascii_digit() {
                            ["0", "1", "7", "99", "-", "."][below(6)].to_owned()
                        } else {
                            c.to_string()
                        }
                    };
                    lines[at] = lines[at].chars().map(digit).collect();
                }
            }
        }
        let graph = lines.join("\n");
        let text = format!(
            "diecast: 1\nname: n\nmachine_types:\n  box: {{cores: 1, speed: 0.1, memory: 1MiB}}\nnodes:\n  \
             a: {{type: box}}\n  b: {{type: box}}\ntopology:\n  graph:\n    file: {file}\n    \
             delay: 1ms\n    attach:\n      - {{nodes: a, at: {a}}}\n      - {{nodes: b, at: {b}}}\nworkload:\n  measure: 1s\n  \
             run: {{on: b, command: [x]}}\nmetrics:\n  m: {{from: b, json: $.m, unit: u}}\n"
        );
        let Ok(e) = parse_with("n.yaml", &text, &[], &mut |_: &str| Ok(graph.clone())) else { continue };
        let host = HostFacts { cpus: vec![0, 1], memory_bytes: 64 << 30, score_milli: None, hit_cost_ns: None };
        let options = PlanOptions { tdf: Some("100".parse().unwrap()), ..PlanOptions::new(Mode::Diecast) };
        match plan(&e, &host, &options) {
            Ok(p) => {
                made += 1;
                Network::new(&p.net).unwrap_or_else(|e| panic!("round {round}: {e}\n{graph}"));
                assert!(!p.render().is_empty());
            }
            Err(refusal) => {
                refused += 1;
                assert!(!refusal.to_string().is_empty());
            }
        }
    }
    println!("{made} planned, {refused} refused");
    assert!(made > 100 * times, "{made} planned, {refused} refused");
}
