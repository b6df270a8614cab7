//! Links, helpers and imported graphs: what they become, what is refused and where, and that no text upsets a reader.

use std::collections::BTreeSet;

use diecast_core_experiment::{
    Burst, ChangeWords, Codel, Discipline, Experiment, FqCodel, Framing, Jitter, NetworkChange, NetworkNames, Part,
    Pipe, QueueLimit, Red, Routing, parse, parse_change, parse_with,
};

const LINKS: &str = include_str!("good/links.yaml");
const ZOO: &str = include_str!("graphs/zoo.graphml");
const SHADOW: &str = include_str!("graphs/shadow.gml");

/// A catalog of nodes a-1 … a-4, b and c with this topology, and the text of the file that it imports.
fn read(topology: &str, graph: &str) -> Result<Experiment, String> {
    let text = format!(
        "diecast: 1\nname: n\nmachine_types:\n  box: {{cores: 1, speed: 0.1, memory: 1MiB}}\nnodes:\n  \
         a: {{type: box, count: 4}}\n  b: {{type: box}}\n  c: {{type: box}}\ntopology:\n{topology}\nworkload:\n  \
         measure: 1s\n  run: {{on: b, command: [x]}}\nmetrics:\n  m: {{from: b, json: $.m, unit: u}}\n"
    );
    let mut load = |_: &str| Ok(graph.to_owned());
    let faults = |all: Vec<diecast_core_experiment::Diagnostic>| {
        all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    parse_with("n.yaml", &text, &[], &mut load).map_err(faults)
}

fn good(topology: &str, graph: &str) -> Experiment {
    read(topology, graph).unwrap_or_else(|faults| panic!("{faults}"))
}

/// Ends and delay in microseconds of every link.
fn ends(e: &Experiment) -> Vec<String> {
    e.topology.links.iter().map(|l| format!("{} {} {}", l.from, l.to, l.forward.delay_ns / 1000)).collect()
}

#[test]
fn every_key_of_a_link_is_read() {
    let e = parse("links.yaml", LINKS, &[]).unwrap_or_else(|f| panic!("{f:?}"));
    let t = &e.topology;
    assert_eq!((t.mtu_bytes, t.offload, t.routing, t.spread), (9000, true, Routing::Cost, true));
    let routes: Vec<_> = t.routes.iter().map(|r| format!("{} {} {}", r.at, r.to, r.via)).collect();
    assert_eq!(routes, ["left b detour", "right a-1 left", "right a-2 left"]);
    let red =
        Red { min_packets: 20, max_packets: 60, probability_ppm: 100_000, weight_ppm: 3000, gentle: true, ecn: true };
    let forward = Pipe {
        bandwidth_bps: Some(100_000_000),
        framing: Framing::Wire,
        delay_ns: 5_000_000,
        jitter: Some(Jitter { normal: true, spread_ns: 1_000_000, reorder: true }),
        loss_ppm: 1000,
        loss_every: Some(100),
        loss_burst: Some(Burst { enter_ppm: 10_000, leave_ppm: 250_000, loss_ppm: 900_000, between_ppm: 5000 }),
        duplicate_ppm: 2000,
        corrupt_ppm: 100,
        queue: QueueLimit::Bytes(65_536),
        discipline: Discipline::Red(red),
    };
    assert_eq!((t.links[0].forward, t.links[0].cost), (forward, 7));
    // What the way back does not say is as on the way there.
    let codel = Codel { target_ns: 10_000_000, interval_ns: 200_000_000, ecn: true };
    let back = Pipe {
        bandwidth_bps: Some(10_000_000),
        queue: QueueLimit::DelayNs(20_000_000),
        discipline: Discipline::Codel(codel),
        ..forward
    };
    assert_eq!(t.links[0].back, back);
    let plain = Codel { target_ns: 5_000_000, interval_ns: 100_000_000, ecn: false };
    let fq = |flows, quantum_bytes| Discipline::FqCodel(FqCodel { codel: plain, flows, quantum_bytes });
    assert_eq!(
        (t.links[2].forward.discipline, t.links[2].forward.queue),
        (fq(1024, 1514), QueueLimit::Packets(10_240))
    );
    assert_eq!(t.links[2].forward.jitter, Some(Jitter { normal: false, spread_ns: 100_000, reorder: false }));
    assert_eq!(t.links[3].forward.discipline, fq(8, 300));
    let (there, back) = (t.links[4].forward, t.links[4].back);
    assert_eq!((there.discipline, back.discipline), (Discipline::DropTail, Discipline::Codel(plain)));
    assert_eq!((there.queue, back.queue, t.links[4].cost), (QueueLimit::Packets(50), QueueLimit::Packets(50), 1));
    assert_eq!(t.links[5].forward.framing, Framing::Ip);
}

#[test]
fn helpers_become_switches_and_links() {
    let link = "{bandwidth: 1Gbit/s, delay: 10us}";
    let wide = "{bandwidth: 10Mbit/s, delay: 20ms, back: {bandwidth: 1Mbit/s}}";
    let e = good(&format!("  star: {{nodes: [a, b, c], link: {link}}}"), "");
    assert_eq!(e.topology.switches, ["hub"]);
    assert_eq!(ends(&e), ["a-1 hub 10", "a-2 hub 10", "a-3 hub 10", "a-4 hub 10", "b hub 10", "c hub 10"]);
    let e = good(&format!("  dumbbell: {{left: a, right: [b, c], access: {link}, bottleneck: {wide}}}"), "");
    assert_eq!(
        ends(&e)[3..],
        ["a-4 left-switch 10", "b right-switch 10", "c right-switch 10", "left-switch right-switch 20000"]
    );
    let bottleneck = &e.topology.links[6];
    assert_eq!((bottleneck.forward.bandwidth_bps, bottleneck.back.bandwidth_bps), (Some(10_000_000), Some(1_000_000)));
    let site = |name: &str, nodes: &str| format!("    - {{name: {name}, nodes: {nodes}, link: {link}, wan: {wide}}}");
    let e = good(&format!("  sites:\n{}\n{}", site("bonn", "a"), site("rome", "[b, c]")), "");
    assert_eq!((e.topology.switches.join(" "), e.topology.routers.join(" ")), ("bonn rome".into(), "wan".into()));
    assert_eq!(ends(&e)[0], "bonn wan 20000");
    assert_eq!(e.topology.links.len(), 8);
    // Helpers and links go together.
    let e = good(
        &format!(
            "  star: {{nodes: [a, b], switch: mid, link: {link}}}\n  links:\n    - {{from: c, to: mid, bandwidth: 1bit/s, delay: 1s}}"
        ),
        "",
    );
    assert_eq!(ends(&e)[5], "c mid 1000000");
}

#[test]
fn a_fat_tree_has_its_layers() {
    let e = good("  fat_tree: {ports: 4, nodes: [a, b, c], link: {bandwidth: 1Gbit/s, delay: 5us}}", "");
    let t = &e.topology;
    // 4 core, 8 aggregation, 8 edge switches; 16 links up from aggregation, 16 from edge, 6 nodes.
    assert_eq!((t.switches.len(), t.links.len(), t.spread), (20, 38, true));
    let count = |name: &str| t.links.iter().filter(|l| l.from == name || l.to == name).count();
    assert!((1..=4).all(|c| count(&format!("core-{c}")) == 4));
    assert!((1..=4).all(|p| count(&format!("agg-{p}-2")) == 4));
    let edges: BTreeSet<&str> = t
        .links
        .iter()
        .filter(|l| l.from.starts_with(['a', 'b', 'c']))
        .map(|l| l.to.as_str())
        .filter(|to| to.starts_with("edge"))
        .collect();
    assert_eq!(edges.len(), 6, "nodes are spread over edge switches");
}

#[test]
fn a_graph_of_the_topology_zoo_becomes_routers_and_links() {
    let e = good(
        "  graph: {file: zoo.graphml, bandwidth: 1Gbit/s}\n  links:\n    - {from: a, to: new-york, bandwidth: 1Gbit/s, delay: 1ms}\n    \
         - {from: [b, c], to: washington-dc, bandwidth: 1Gbit/s, delay: 1ms}",
        ZOO,
    );
    assert_eq!(e.topology.routers, ["new-york", "chicago", "washington-dc"]);
    // 1144 km, 328 km and 956 km at 5 us each.
    let delays: Vec<u64> = e.topology.links[..3].iter().map(|l| l.forward.delay_ns / 1000).collect();
    assert!(
        (5700..5740).contains(&delays[0]) && (1630..1650).contains(&delays[1]) && (4760..4800).contains(&delays[2]),
        "{delays:?}"
    );
    let rates: Vec<_> = e.topology.links[..4].iter().map(|l| l.forward.bandwidth_bps.unwrap()).collect();
    assert_eq!(rates, [9_953_280_000, 9_953_280_000, 1_000_000_000, 1_000_000_000]);
}

#[test]
fn a_graph_of_shadow_attaches_hosts_with_their_bandwidths() {
    let attach = "  graph:\n    file: shadow.gml\n    attach:\n      - {nodes: b, at: client & co}\n      - {nodes: [a, c], at: '1'}";
    let e = good(attach, SHADOW);
    assert_eq!(e.topology.routers, ["client-co", "router-1"]);
    assert_eq!(ends(&e)[..3], ["client-co router-1 50000", "b client-co 0", "a-1 router-1 0"]);
    let wide = e.topology.links[0].forward;
    assert_eq!((wide.bandwidth_bps, wide.loss_ppm, wide.delay_ns), (None, 10_000, 50_000_000));
    let access = &e.topology.links[1];
    assert_eq!((access.forward.bandwidth_bps, access.back.bandwidth_bps), (Some(20_000_000), Some(100_000_000)));
    // Two nodes at the vertex with a latency of its own: 5 ms between them, 50 to others.
    let two = attach.replace("nodes: b", "nodes: [b, c]").replace("[a, c]", "a");
    let e = good(&two, SHADOW);
    assert_eq!(ends(&e)[..3], ["client-co router-1 47500", "b client-co 2500", "c client-co 2500"]);
    let (middle, b) = (&e.topology.links[0], &e.topology.links[1]);
    assert_eq!([middle.back.delay_ns, b.forward.delay_ns, b.back.delay_ns], [47_500_000, 2_500_000, 2_500_000]);
    // Odd: the whole is shared all the same.
    let e = good(&two, &SHADOW.replace("\"5 ms\"", "\"5000001 ns\""));
    let (middle, b) = (&e.topology.links[0], &e.topology.links[1]);
    assert_eq!([b.forward.delay_ns, b.back.delay_ns], [2_500_000, 2_500_001]);
    assert_eq!([middle.forward.delay_ns, middle.back.delay_ns], [47_500_000, 47_499_999]);
    let refused = |text: &str, why: &str| {
        let expected = format!(
            "shadow.gml:11:3: an edge from 'client-co' to itself {why}, which is not supported where 2 nodes are attached\n  \
             hint: attach one node there, or take the edge out: nodes there then have their links alone"
        );
        assert_eq!(read(&two, text).unwrap_err(), expected);
    };
    refused(&SHADOW.replace("\"5 ms\"", "\"5 ms\" packet_loss 0.1"), "with a loss");
    refused(&SHADOW.replace("\"5 ms\"", "\"101 ms\""), "with a latency more than twice that of another of its edges");
    let third = SHADOW
        .replace("directed 0\n", "directed 0\n  node [ id 2 ]\n")
        .replace("]\n]", "]\n  edge [ source 0 target 2 latency \"9 ms\" ]\n]");
    assert!(read(&two, &third).unwrap_err().contains("with a latency, and to several others"));
    // The graph that Shadow calls 1_gbit_switch.
    let switch = "graph [\n directed 0\n node [ id 0 host_bandwidth_up \"1 Gbit\" host_bandwidth_down \"1 Gbit\" ]\n \
                  edge [ source 0 target 0 latency \"1 ms\" packet_loss 0.0 ]\n]";
    let e = good("  graph:\n    file: shadow.gml\n    attach:\n      - {nodes: [a, b, c], at: '0'}", switch);
    assert_eq!(ends(&e)[..2], ["a-1 router-0 500", "a-2 router-0 500"]);
}

#[test]
fn directed_graphs_have_each_edge_in_both_directions() {
    let gml = |edges: &str| format!("graph [ directed 1\n node [ id 0 ]\n node [ id 1 ]\n{edges} ]");
    let topology = "  graph: {file: g.gml}\n  links:\n    - {from: [a, b], to: router-0, bandwidth: 1Gbit/s, delay: 1ms}\n    \
                    - {from: c, to: router-1, bandwidth: 1Gbit/s, delay: 1ms}";
    let both = gml(" edge [ source 0 target 1 latency \"3 ms\" ]\n edge [ source 1 target 0 latency \"9 ms\" ]");
    let e = good(topology, &both);
    assert_eq!((e.topology.links[0].forward.delay_ns, e.topology.links[0].back.delay_ns), (3_000_000, 9_000_000));
    let one = gml(" edge [ source 0 target 1 latency \"3 ms\" ]");
    assert_eq!(read(topology, &one).unwrap_err(), "g.gml:4:2: an edge in one direction only, which is not supported");
}

#[test]
fn faults_of_a_graph_have_its_file_line_and_column() {
    let gml = |text: &str| read("  graph: {file: sub/g.gml}", text).unwrap_err();
    let cases = [
        ("graph [\n  node [ id 0", "2:3: a list without an end, expected ']'"),
        ("graph [ ] ]", "1:11: ']' without a '['"),
        ("graph [\n node [ id 0 ]\n node [ id 0 ] ]", "3:12: a second node with the id '0'"),
        ("graph [ node [ label \"x\" ] ]", "1:9: a node without 'id'"),
        ("graph [ node [ id 0 ]\n edge [ source 0 target 7 ] ]", "2:25: an edge to a node '7' that does not exist"),
        ("graph [ node [ id 0 ]\n edge [ source 0 ] ]", "2:2: an edge without 'target'"),
        (
            "graph [ node [ id 0 ] edge [ source 0 target 0 packet_loss 1.5 ] ]",
            "1:60: '1.5' for 'packet_loss', expected a number from 0 to 1",
        ),
        (
            "graph [ node [ id 0 ] edge [ source 0 target 0\n  latency \"ten\" ] ]",
            "2:11: 'ten' for 'latency', expected a duration such as '10 ms' (ns, us, ms, s, min or h)",
        ),
        (
            "graph [ node [ id 0 host_bandwidth_up \"9\" ] ]",
            "1:39: '9' for 'host_bandwidth_up', expected a bandwidth such as '100 Mbit' (bit, Kbit, Mbit, Gbit, Tbit or Kibit to Tibit)",
        ),
        ("graph [ 7 ]", "1:9: '7', expected a key"),
        ("graph [ label \"x ]", "1:15: a text without an end, expected '\"'"),
        ("Creator \"me\"", "1:1: no 'graph [' in the file"),
        ("graph [ ]", "1:1: a graph without nodes"),
    ];
    for (text, expected) in cases {
        assert_eq!(gml(text), format!("sub/g.gml:{expected}"), "{text}");
    }
    let missing = gml("graph [ node [ id 0 ] node [ id 1 ]\n edge [ source 0 target 1 ] ]");
    assert_eq!(
        missing,
        "sub/g.gml:2:2: the edge from 'router-0' to 'router-1' states no latency and not where both ends are\n  hint: give a 'delay' for such edges in the catalog's 'graph'"
    );
    let xml = |text: &str| read("  graph: {file: g.graphml}", text).unwrap_err();
    assert_eq!(
        xml("<graphml>\n  <graph>\n  </grap>"),
        "g.graphml:3:3: not XML: expected 'graph' tag, not 'grap' at 3:3"
    );
    assert_eq!(xml("<html/>"), "g.graphml:1:1: the element 'html', expected 'graphml'");
    assert_eq!(
        xml(&ZOO.replace("<edge source=\"1\" target=\"2\" />", "<hyperedge/>")),
        "g.graphml:14:5: a hyperedge, which is not supported"
    );
    assert_eq!(
        xml(&ZOO.replace("41.85003", "141.85")),
        "g.graphml:10:18: '141.85' for 'Latitude', expected a number from -90 to 90"
    );
    assert_eq!(
        xml(&ZOO.replace("<data key=\"d36\">", "<data key=\"d99\">")),
        "g.graphml:12:33: data for a key 'd99' that is not declared"
    );
    assert_eq!(
        read("  graph: {file: g.dot}", "").unwrap_err(),
        "g.dot:1:1: expected a file named .gml, .graphml or .xml"
    );
}

#[test]
fn a_graph_that_was_not_read_is_a_fault_of_the_catalog() {
    let text = LINKS.replace("  routers: [detour]", "  routers: [detour]\n  graph: {file: nowhere.gml}");
    let message = |faults: Vec<diecast_core_experiment::Diagnostic>| faults[0].to_string();
    let expected = "l.yaml:16:17: 'nowhere.gml' can't be read: no such file";
    assert_eq!(message(parse_with("l.yaml", &text, &[], &mut |_| Err("no such file".into())).unwrap_err()), expected);
    assert!(
        message(parse("l.yaml", &text, &[]).unwrap_err())
            .ends_with("was not read: this command takes catalogs without a graph")
    );
}

/// DIECAST_FUZZ=N: N times as many random cases, from seed N (`make fuzz`).
#[expect(clippy::disallowed_methods, reason = "a test takes its size from whoever runs it")]
fn fuzz() -> Option<u64> {
    std::env::var("DIECAST_FUZZ").ok()?.parse().ok()
}

/// Files with anything cut, doubled, swapped or put in are read or refused with a place in the file, never worse.
#[test]
fn no_damaged_graph_upsets_the_reader() {
    let (times, seed) = fuzz().map_or((1, 20), |n| (n, n));
    println!("seed {seed}");
    let mut state = seed;
    let mut below = |n: usize| {
        state = u64::wrapping_mul(state, 6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n.max(1)
    };
    let pieces = [
        "[",
        "]",
        "\"",
        "<",
        ">",
        "&",
        "&#x0;",
        "&#1114112;",
        "<!--",
        "]]>",
        "<![CDATA[",
        "id",
        " 9e999 ",
        "-1",
        "\u{0}",
        "ä",
        "node [",
        "<node id='0'>",
        "<!DOCTYPE x [<!ENTITY a 'b'>]>",
    ];
    let mut refused = 0;
    for round in 0..6000 * times {
        let (file, original) = if round % 2 == 0 { ("g.gml", SHADOW) } else { ("g.graphml", ZOO) };
        let mut text: Vec<char> = original.chars().collect();
        for _ in 0..=below(4) {
            let (at, length) = (below(text.len()), below(40));
            match below(4) {
                0 => drop(text.drain(at..(at + length).min(text.len()))),
                1 => text.truncate(at),
                2 => {
                    let again: Vec<char> = text[at..(at + length).min(text.len())].to_vec();
                    text.splice(at..at, again);
                }
                _ => drop(text.splice(at..at, pieces[below(pieces.len())].chars())),
            }
        }
        let text: String = text.into_iter().collect();
        let topology = format!(
            "  graph: {{file: {file}, delay: 1ms}}\n  links:\n    - {{from: [a, b, c], to: new-york, bandwidth: 1bit/s, delay: 0s}}"
        );
        let Err(faults) = read(&topology, &text) else { continue };
        refused += 1;
        if let Some(place) = faults.strip_prefix(&format!("{file}:")) {
            let mut numbers = place.split(':').map(|n| n.parse::<usize>().unwrap_or(0));
            let (line, column) = (numbers.next().unwrap(), numbers.next().unwrap());
            let found = text.split('\n').nth(line.saturating_sub(1)).map_or(0, |l| l.chars().count());
            assert!(line > 0 && column > 0 && column <= found + 2, "round {round}: {faults}\n{text}");
        }
    }
    assert!(refused > 3000, "{refused}");
    // Deep nesting neither overflows a stack nor takes for ever.
    for (file, text) in [("g.gml", format!("graph {}", "[ a ".repeat(100_000))), ("g.graphml", "<a>".repeat(100_000))] {
        assert!(read(&format!("  graph: {{file: {file}}}"), &text).is_err());
    }
}

#[test]
fn faults_are_read_in_the_order_of_time() {
    let e = parse("faults.yaml", include_str!("good/faults.yaml"), &[]).unwrap_or_else(|f| panic!("{f:?}"));
    let said: Vec<String> = e.faults.iter().map(|f| format!("{} {}", f.at_ns / 1_000_000_000, f.change)).collect();
    assert_eq!(
        said,
        [
            "2 set bandwidth, loss of load:site",
            "2 cut site:srv-1, site:srv-2, srv-1:site, srv-2:site",
            "3 heal site:srv-1, srv-1:site, site:srv-2, srv-2:site",
            "4 flap site:srv-1, srv-1:site: 3 times 100 ms down, 1000 ms up",
            "9 partition load | srv-1,srv-2",
            "10 join",
            "21 reroute",
        ]
    );
    let NetworkChange::Set { parts, values, .. } = &e.faults[0].change else { panic!("{:?}", e.faults[0]) };
    assert_eq!(parts[..], [Part::Bandwidth, Part::Loss]);
    assert_eq!((values.bandwidth_bps, values.loss_every), (Some(1_000_000), Some(10)));
}

#[test]
fn words_of_a_command_are_read_as_a_catalog_is_and_faults_name_the_word() {
    let names = NetworkNames::new([("a-1", "a"), ("a-2", "a"), ("b", "b")], [("a-1", "s"), ("s", "a-1"), ("a-2", "s")]);
    let words = |link: &str, settings: &[&str]| ChangeWords::Set {
        links: vec![link.to_owned()],
        settings: settings.iter().map(|s| (*s).to_owned()).collect(),
        one_way: true,
    };
    let change = parse_change(&words("a:s", &["loss={every: 3 packets}", "delay=2ms"]), &names).unwrap();
    let NetworkChange::Set { pipes, parts, values } = change else { panic!("{change:?}") };
    assert_eq!(pipes, [("a-1".to_owned(), "s".to_owned()), ("a-2".to_owned(), "s".to_owned())]);
    assert_eq!((&parts[..], values.loss_every, values.delay_ns), (&[Part::Loss, Part::Delay][..], Some(3), 2_000_000));
    let faults = parse_change(&words("a:q", &["delay=2", "=", "loss", "loss={every: 0 packets}"]), &names).unwrap_err();
    let places: Vec<String> = faults.iter().map(|f| format!("{}:{}:{}", f.file, f.line, f.column)).collect();
    assert_eq!(places[..2], ["a:q:1:1", "delay=2:1:7"], "{faults:?}");
    assert_eq!(places.last().unwrap(), "loss={every: 0 packets}:1:14", "{faults:?}");
}
