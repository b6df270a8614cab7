//! Switches, routers, links and routes: groups become one link per node, helpers and graphs their parts, and every
//! node must reach every other.

use std::collections::BTreeMap;

use super::fields::{Fields, Reader};
use super::graph::{self, SelfLoop};
use super::links::{Parameters, parameters};
use super::names::Names;
use super::shapes;
use crate::diagnostic::Pos;
use crate::grammar_net::{LINK, ROUTE, TOPOLOGY};
use crate::model::Group;
use crate::network::{Link, Route, Routing, Topology};
use crate::quantity::SIZE;
use crate::tree::{Entry, Node};

const MTU_DEFAULT: u32 = 1500;
/// From what IPv6 needs to a jumbo frame.
const MTU_RANGE: std::ops::RangeInclusive<u64> = 1280..=9000;

/// Most segments; each has a subnet.
const SEGMENTS_MAX: usize = 100;
/// Most NICs of a node.
const NICS_MAX: usize = 32;

/// A topology in the making.
pub(crate) struct Builder {
    pub topology: Topology,
    /// Where a part of it wants equally short paths to be shared.
    pub spread_by_default: bool,
    pub loops: Vec<SelfLoop>,
}

impl Builder {
    pub(crate) fn switch(&mut self, r: &mut Reader, names: &mut Names, name: &str, at: Pos) {
        names.add_device(&mut r.faults, name, at);
        self.topology.switches.push(name.to_owned());
    }

    pub(crate) fn router(&mut self, r: &mut Reader, names: &mut Names, name: &str, at: Pos) {
        names.add_device(&mut r.faults, name, at);
        self.topology.routers.push(name.to_owned());
    }

    pub(crate) fn link(&mut self, from: &str, to: &str, p: &Parameters, at: Pos) {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.topology.links.push(Link { from, to, forward: p.forward, back: p.back, cost: p.cost, at });
    }
}

/// Reads one of the helpers.
type Helper = fn(&mut Reader, &Entry, &mut Names, &mut Builder) -> Option<()>;

const HELPERS: [(&str, Helper); 5] = [
    ("star", shapes::star),
    ("dumbbell", shapes::dumbbell),
    ("sites", shapes::sites),
    ("fat_tree", shapes::fat_tree),
    ("graph", graph::read),
];

pub(crate) fn read(r: &mut Reader, entry: &Entry, groups: &[Group], names: &mut Names) -> Topology {
    let topology = Topology {
        mtu_bytes: MTU_DEFAULT,
        offload: false,
        routing: Routing::Delay,
        spread: false,
        switches: Vec::new(),
        routers: Vec::new(),
        links: Vec::new(),
        routes: Vec::new(),
        at: entry.key_at,
    };
    let mut b = Builder { topology, spread_by_default: false, loops: Vec::new() };
    let Some(f) = r.open(&entry.value, &TOPOLOGY) else { return b.topology };
    b.topology.mtu_bytes = f.get("mtu").map_or(MTU_DEFAULT, |e| mtu(r, e));
    b.topology.offload = r.flag(f.get("offload"));
    b.topology.routing = [Routing::Delay, Routing::Cost][r.choice(f.get("routing"), &["delay", "cost"])];
    for name in devices(r, &f, "switches") {
        b.switch(r, names, &name.0, name.1);
    }
    for name in devices(r, &f, "routers") {
        b.router(r, names, &name.0, name.1);
    }
    // Reachability is only worth talking about when every link's ends are understood.
    let mut understood = true;
    for (key, helper) in HELPERS {
        if let Some(e) = f.get(key) {
            understood &= helper(r, e, names, &mut b).is_some();
        }
    }
    if let Some(links) = f.get("links") {
        for node in r.list(&links.value, "links") {
            let Some(link) = r.open(node, &LINK) else {
                understood = false;
                continue;
            };
            understood &= add_links(r, &link, names, &mut b);
        }
    }
    b.topology.spread = match f.get("ties") {
        Some(e) => r.choice(Some(e), &["first", "spread"]) == 1,
        None => b.spread_by_default,
    };
    if understood && names.has_nodes() && TOPOLOGY.any_of.iter().any(|key| f.get(key).is_some()) {
        check_graph(r, &b.topology, groups, names);
        graph::spread_loops(r, &mut b, |name| names.nodes_of(name).is_some());
        if let Some(e) = f.get("routes") {
            routes(r, &e.value, names, &mut b.topology);
        }
    }
    b.topology
}

fn mtu(r: &mut Reader, e: &Entry) -> u32 {
    match r.quantity(&e.value, &SIZE) {
        Some(bytes) if MTU_RANGE.contains(&bytes) => bytes as u32,
        Some(_) => {
            r.faults.add(e.value.at, format!("{}, expected an MTU from 1280B to 9000B", e.value.describe()));
            MTU_DEFAULT
        }
        None => MTU_DEFAULT,
    }
}

fn devices(r: &mut Reader, f: &Fields<'_>, key: &str) -> Vec<(String, Pos)> {
    let Some(entry) = f.get(key) else { return Vec::new() };
    let names = r.list(&entry.value, "names").iter().map(|node| (r.host_name(node), node.at));
    names.filter(|(name, _)| !name.is_empty()).collect()
}

/// Adds one link per node of `from`. False when an end is not understood.
fn add_links(r: &mut Reader, f: &Fields<'_>, names: &Names, b: &mut Builder) -> bool {
    let parameters = parameters(r, f);
    let (Some(from), Some(to)) = (f.get("from"), f.get("to")) else { return false };
    if !names.has_nodes() {
        return false;
    }
    let starts = r.one_or_more(&from.value, "a node group, switch or router");
    let Some(to_name) = the_other_end(r, to, names) else { return false };
    let mut understood = !starts.is_empty();
    for (name, at) in starts {
        let ends: Vec<String> = match names.nodes_of(&name) {
            Some(nodes) => nodes.to_vec(),
            None if names.is_device(&name) => vec![name.clone()],
            None => {
                let message = format!("no node group, node, switch or router '{name}'");
                r.faults.add_with_hint(at, message, names.meant(&name, true));
                understood = false;
                continue;
            }
        };
        for end in ends {
            if end == to_name {
                r.faults.add(at, format!("a link from '{end}' to itself, expected two different ends"));
                understood = false;
                continue;
            }
            b.link(&end, &to_name, &parameters, at);
        }
    }
    understood
}

fn the_other_end(r: &mut Reader, entry: &Entry, names: &Names) -> Option<String> {
    let name = r.text(&entry.value);
    if name.is_empty() {
        return None;
    }
    match names.nodes_of(&name) {
        Some([one]) => Some(one.clone()),
        Some(many) => {
            let message =
                format!("'{name}' is {} nodes, expected one switch, router or node where the links end", many.len());
            r.faults.add_with_hint(entry.value.at, message, "write the group under 'from' and the switch under 'to'");
            None
        }
        None if names.is_device(&name) => Some(name),
        None => {
            let message = format!("no switch, router or node '{name}'");
            r.faults.add_with_hint(entry.value.at, message, names.meant(&name, true));
            None
        }
    }
}

/// Ways that are given: each must go along a link.
fn routes(r: &mut Reader, list: &Node, names: &Names, topology: &mut Topology) {
    for item in r.list(list, "routes") {
        let Some(f) = r.open(item, &ROUTE) else { continue };
        let (Some(at), Some(via)) = (f.get("at"), f.get("via")) else { continue };
        let ends = [at, via].map(|e| the_other_end(r, e, names));
        let [Some(from), Some(next)] = ends else { continue };
        let along = |l: &&Link| (l.from == from && l.to == next) || (l.to == from && l.from == next);
        if !topology.links.iter().any(|l| along(&l)) {
            r.faults.add(via.value.at, format!("no link between '{from}' and '{next}'"));
            continue;
        }
        for (to, place) in shapes::nodes(r, &f, "to", names).unwrap_or_default() {
            if to == from {
                r.faults.add(place, format!("a route at '{to}' to itself"));
            } else if topology.routes.iter().any(|o| o.at == from && o.to == to) {
                r.faults.add(place, format!("a second route at '{from}' to '{to}'"));
            } else {
                topology.routes.push(Route { at: from.clone(), to, via: next.clone(), place });
            }
        }
    }
}

/// Each NIC of a node in a segment of its own, no link twice, nothing unattached, everything connected.
fn check_graph(r: &mut Reader, topology: &Topology, groups: &[Group], names: &Names) {
    let before = topology.links.len();
    let mut attached: BTreeMap<&str, Vec<&Link>> = BTreeMap::new();
    let mut pairs: BTreeMap<(&str, &str), Pos> = BTreeMap::new();
    for link in &topology.links[..before] {
        let (a, b) = (link.from.as_str(), link.to.as_str());
        let pair = (a.min(b), a.max(b));
        // Links of one place come from one graph, which may have parallel edges.
        if let Some(first) = pairs.insert(pair, link.at).filter(|first| *first != link.at) {
            let message = format!("a second link between '{a}' and '{b}', expected at most one");
            r.faults.add_with_hint(
                link.at,
                message,
                format!("the first is in line {}, column {}", first.line, first.column),
            );
            return;
        }
        for end in [a, b] {
            attached.entry(end).or_default().push(link);
        }
    }
    let mut whole = true;
    for group in groups {
        for node in &group.nodes {
            let links = attached.get(node.as_str()).map_or(&[][..], Vec::as_slice);
            match links {
                [_, ..] => {}
                [] => {
                    r.faults.add_with_hint(
                        group.at,
                        format!("node '{node}' has no link, expected one that attaches it"),
                        format!("add '{}' to the 'from' of a link in the topology", group.name),
                    );
                    whole = false;
                    break;
                }
            }
        }
    }
    for (device, at) in names.devices().iter().filter(|(d, _)| !attached.contains_key(d.as_str())) {
        r.faults.add(*at, format!("'{device}' has no link, expected at least one"));
        whole = false;
    }
    if whole {
        check_reachable(r, topology, groups);
        check_segments(r, topology, groups);
    }
}

/// A node has one address in a segment, so one NIC.
fn check_segments(r: &mut Reader, topology: &Topology, groups: &[Group]) {
    let nodes: Vec<&str> = groups.iter().flat_map(|g| g.nodes.iter().map(String::as_str)).collect();
    let nics = topology.nics(&nodes);
    let mut first: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for nic in &nics {
        let at = topology.links[nic.link].at;
        if let Some(other) = first.insert((nic.node, nic.segment), nic.link) {
            let message = format!(
                "node '{}' has two links into one segment, expected each of its NICs in a segment of its own",
                nodes[nic.node]
            );
            let other = topology.links[other].at;
            r.faults.add_with_hint(
                at,
                message,
                format!("the other is in line {}, column {}", other.line, other.column),
            );
            return;
        }
        if nic.segment >= SEGMENTS_MAX || nic.nic >= NICS_MAX {
            let message = format!("more than {SEGMENTS_MAX} segments, or {NICS_MAX} NICs of one node");
            return r.faults.add(at, message);
        }
    }
}

/// Names the first pair of nodes without a path, and the devices on either side.
fn check_reachable(r: &mut Reader, topology: &Topology, groups: &[Group]) {
    let mut island: BTreeMap<&str, usize> = BTreeMap::new();
    let ends = topology.links.iter().flat_map(|l| [l.from.as_str(), l.to.as_str()]);
    for (i, end) in ends.enumerate() {
        island.entry(end).or_insert(i);
    }
    // Each link gives both ends the smaller number until nothing changes: as many rounds as the longest path.
    loop {
        let mut changed = false;
        for link in &topology.links {
            let smaller = island[link.from.as_str()].min(island[link.to.as_str()]);
            for end in [link.from.as_str(), link.to.as_str()] {
                changed |= island.insert(end, smaller) != Some(smaller);
            }
        }
        if !changed {
            break;
        }
    }
    let mut nodes = groups.iter().flat_map(|g| &g.nodes);
    let Some(first) = nodes.next() else { return };
    let Some(other) = nodes.find(|n| island[n.as_str()] != island[first.as_str()]) else {
        // A switch that no node reaches does no harm, but it is no part of the system either.
        let stray = island.iter().find(|(_, i)| **i != island[first.as_str()]);
        if let Some((device, _)) = stray {
            r.faults
                .add(topology.at, format!("'{device}' can't be reached from any node, expected one connected network"));
        }
        return;
    };
    let side = |node: &str| {
        let devices = topology.switches.iter().chain(&topology.routers);
        let list: Vec<&str> = devices.filter(|d| island[d.as_str()] == island[node]).map(String::as_str).collect();
        if list.is_empty() { "nothing".to_owned() } else { list.join(", ") }
    };
    r.faults.add_with_hint(
        topology.at,
        format!("node '{other}' can't be reached from node '{first}', expected a path between every two nodes"),
        format!(
            "add a link between what '{first}' reaches ({}) and what '{other}' reaches ({})",
            side(first),
            side(other)
        ),
    );
}
