//! Switches, routers and links: groups become one link per node, and every node must reach every other.

use std::collections::BTreeMap;

use super::fields::{Fields, Reader};
use super::names::Names;
use crate::diagnostic::Pos;
use crate::grammar::{LINK, QUEUE_PACKETS_DEFAULT, TOPOLOGY};
use crate::model::{Group, Link, Topology};
use crate::quantity::{BANDWIDTH, DURATION, PACKETS, SHARE};
use crate::tree::Entry;

/// Most packets in a queue.
const QUEUE_PACKETS_MAX: u64 = 1_000_000;

pub(crate) fn read(r: &mut Reader, entry: &Entry, groups: &[Group], names: &mut Names) -> Topology {
    let mut out = Topology { switches: Vec::new(), routers: Vec::new(), links: Vec::new(), at: entry.key_at };
    let Some(f) = r.open(&entry.value, &TOPOLOGY) else { return out };
    out.switches = devices(r, &f, "switches", names);
    out.routers = devices(r, &f, "routers", names);
    // Reachability is only worth talking about when every link's ends are understood.
    let mut understood = true;
    if let Some(links) = f.get("links") {
        for node in r.list(&links.value, "links") {
            let Some(link) = r.open(node, &LINK) else {
                understood = false;
                continue;
            };
            understood &= add_links(r, &link, names, &mut out.links);
        }
    }
    if understood && f.get("links").is_some() {
        check_graph(r, &out, groups, names);
    }
    out
}

fn devices(r: &mut Reader, f: &Fields<'_>, key: &str, names: &mut Names) -> Vec<String> {
    let mut out = Vec::new();
    let Some(entry) = f.get(key) else { return out };
    for node in r.list(&entry.value, "names") {
        let name = r.host_name(node);
        if !name.is_empty() {
            names.add_device(&mut r.faults, &name, node.at);
            out.push(name);
        }
    }
    out
}

/// Adds one link per node of `from`. False when an end is not understood.
fn add_links(r: &mut Reader, f: &Fields<'_>, names: &Names, links: &mut Vec<Link>) -> bool {
    let bandwidth_bps = r.quantity_above_0(f.get("bandwidth"), &BANDWIDTH);
    let delay_ns = f.get("delay").and_then(|e| r.quantity(&e.value, &DURATION)).unwrap_or(0);
    let queue_packets = f.get("queue").map_or(QUEUE_PACKETS_DEFAULT, |e| queue(r, e));
    let loss_ppm = f.get("loss").map_or(0, |e| loss(r, e));
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
            let to = to_name.clone();
            if end == to {
                r.faults.add(at, format!("a link from '{end}' to itself, expected two different ends"));
                understood = false;
                continue;
            }
            links.push(Link { from: end, to, bandwidth_bps, delay_ns, queue_packets, loss_ppm, at });
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

fn queue(r: &mut Reader, entry: &Entry) -> u32 {
    let packets = r.quantity_above_0(Some(entry), &PACKETS);
    if packets > QUEUE_PACKETS_MAX {
        r.faults.add(entry.value.at, format!("{packets} packets in a queue, expected at most {QUEUE_PACKETS_MAX}"));
    }
    u32::try_from(packets.min(QUEUE_PACKETS_MAX)).unwrap_or(QUEUE_PACKETS_DEFAULT)
}

fn loss(r: &mut Reader, entry: &Entry) -> u32 {
    match r.quantity(&entry.value, &SHARE) {
        // A pipe that loses everything is a missing link.
        Some(ppm) if ppm >= 1_000_000 => {
            r.faults.add(entry.value.at, format!("{}, expected a loss below 100%", entry.value.describe()));
            0
        }
        Some(ppm) => u32::try_from(ppm).unwrap_or(0),
        None => 0,
    }
}

/// One NIC per node, no link twice, nothing unattached, everything connected.
fn check_graph(r: &mut Reader, topology: &Topology, groups: &[Group], names: &Names) {
    let before = topology.links.len();
    let mut attached: BTreeMap<&str, Vec<&Link>> = BTreeMap::new();
    let mut pairs: BTreeMap<(&str, &str), Pos> = BTreeMap::new();
    for link in &topology.links[..before] {
        let (a, b) = (link.from.as_str(), link.to.as_str());
        let pair = (a.min(b), a.max(b));
        if let Some(first) = pairs.insert(pair, link.at) {
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
                [_] => {}
                [] => {
                    r.faults.add_with_hint(
                        group.at,
                        format!("node '{node}' has no link, expected one that attaches it"),
                        format!("add '{}' to the 'from' of a link in the topology", group.name),
                    );
                    whole = false;
                    break;
                }
                [first, second, ..] => {
                    r.faults.add_with_hint(
                        second.at,
                        format!("node '{node}' has {} links, expected one: a node has one NIC", links.len()),
                        format!("the first is in line {}, column {}", first.at.line, first.at.column),
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
