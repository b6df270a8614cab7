//! Helpers for common networks: star, dumbbell, sites on a WAN, fat tree. Each becomes switches, routers and links.

use super::fields::{Fields, Reader};
use super::links::{Parameters, described};
use super::names::Names;
use super::topology::Builder;
use crate::diagnostic::Pos;
use crate::grammar_net::{DUMBBELL, FAT_TREE, FAT_TREE_PORTS_MAX, PARAMETERS, SITE, STAR};
use crate::tree::{Entry, Node};

/// The router between sites.
const WAN: &str = "wan";

pub(crate) fn star(r: &mut Reader, entry: &Entry, names: &mut Names, b: &mut Builder) -> Option<()> {
    let f = r.open(&entry.value, &STAR)?;
    let hub = f.get("switch").map_or_else(|| "hub".to_owned(), |e| r.host_name(&e.value));
    let at = f.get("switch").map_or(entry.key_at, |e| e.value.at);
    b.switch(r, names, &hub, at);
    let link = described(r, f.get("link"), &PARAMETERS)?;
    attach(r, &f, "nodes", names, b, &[hub], &link)
}

pub(crate) fn dumbbell(r: &mut Reader, entry: &Entry, names: &mut Names, b: &mut Builder) -> Option<()> {
    let f = r.open(&entry.value, &DUMBBELL)?;
    let ends = ["left-switch", "right-switch"].map(str::to_owned);
    for end in &ends {
        b.switch(r, names, end, entry.key_at);
    }
    let access = described(r, f.get("access"), &PARAMETERS);
    let bottleneck = described(r, f.get("bottleneck"), &PARAMETERS);
    let (access, bottleneck) = (access?, bottleneck?);
    let left = attach(r, &f, "left", names, b, &ends[..1], &access);
    let right = attach(r, &f, "right", names, b, &ends[1..], &access);
    b.link(&ends[0], &ends[1], &bottleneck, f.get("bottleneck").map_or(entry.key_at, |e| e.value.at));
    left.and(right)
}

pub(crate) fn sites(r: &mut Reader, entry: &Entry, names: &mut Names, b: &mut Builder) -> Option<()> {
    let items = r.list(&entry.value, "sites");
    if items.is_empty() {
        r.faults.add(entry.value.at, "no site, expected at least one");
        return None;
    }
    b.router(r, names, WAN, entry.key_at);
    let mut understood = Some(());
    for item in items {
        understood = site(r, item, names, b).and(understood);
    }
    understood
}

fn site(r: &mut Reader, item: &Node, names: &mut Names, b: &mut Builder) -> Option<()> {
    let f = r.open(item, &SITE)?;
    let name = r.host_name(&f.get("name")?.value);
    b.switch(r, names, &name, f.get("name")?.value.at);
    let link = described(r, f.get("link"), &PARAMETERS);
    let wan = described(r, f.get("wan"), &PARAMETERS);
    let (link, wan) = (link?, wan?);
    b.link(&name, WAN, &wan, f.get("wan")?.value.at);
    attach(r, &f, "nodes", names, b, &[name], &link)
}

/// A three-layer fat tree (Al-Fares 2008): `ports` pods of `ports/2` edge and `ports/2` aggregation switches,
/// `(ports/2)^2` core switches. Switches are named edge-P-E, agg-P-A and core-C, from 1.
pub(crate) fn fat_tree(r: &mut Reader, entry: &Entry, names: &mut Names, b: &mut Builder) -> Option<()> {
    let f = r.open(&entry.value, &FAT_TREE)?;
    let ports_entry = f.get("ports")?;
    let ports = r.whole(&ports_entry.value, 2, FAT_TREE_PORTS_MAX)? as usize;
    if !ports.is_multiple_of(2) {
        r.faults.add(ports_entry.value.at, format!("{ports} ports, expected an even number"));
        return None;
    }
    let link = described(r, f.get("link"), &PARAMETERS)?;
    let (half, at) = (ports / 2, f.get("link")?.value.at);
    let core = |c: usize| format!("core-{}", c + 1);
    for c in 0..half * half {
        b.switch(r, names, &core(c), entry.key_at);
    }
    let mut edges = Vec::new();
    for pod in 1..=ports {
        let aggregation: Vec<String> = (1..=half).map(|a| format!("agg-{pod}-{a}")).collect();
        for (a, name) in aggregation.iter().enumerate() {
            b.switch(r, names, name, entry.key_at);
            (0..half).for_each(|c| b.link(name, &core(a * half + c), &link, at));
        }
        for e in 1..=half {
            let name = format!("edge-{pod}-{e}");
            b.switch(r, names, &name, entry.key_at);
            aggregation.iter().for_each(|a| b.link(&name, a, &link, at));
            edges.push(name);
        }
    }
    b.spread_by_default = true;
    let before = b.topology.links.len();
    attach(r, &f, "nodes", names, b, &edges, &link)?;
    let (placed, room) = (b.topology.links.len() - before, ports * ports * ports / 4);
    if placed > room {
        let message = format!("{placed} nodes in a fat tree of {ports}-port switches, which has room for {room}");
        r.faults.add(f.get("nodes")?.value.at, message);
    }
    Some(())
}

/// One link for each node under a key, to the switches in turn.
fn attach(
    r: &mut Reader,
    f: &Fields<'_>,
    key: &str,
    names: &Names,
    b: &mut Builder,
    switches: &[String],
    link: &Parameters,
) -> Option<()> {
    let nodes = nodes(r, f, key, names)?;
    for ((node, at), switch) in nodes.iter().zip(switches.iter().cycle()) {
        b.link(node, switch, link, *at);
    }
    Some(())
}

/// The nodes under a key, groups taken apart.
pub(crate) fn nodes(r: &mut Reader, f: &Fields<'_>, key: &str, names: &Names) -> Option<Vec<(String, Pos)>> {
    let entry = f.get(key)?;
    let mut out = Vec::new();
    let mut understood = names.has_nodes();
    for (name, at) in r.one_or_more(&entry.value, "a node group") {
        match names.nodes_of(&name) {
            Some(members) => out.extend(members.iter().map(|m| (m.clone(), at))),
            None if !names.has_nodes() => {}
            None => {
                r.faults.add_with_hint(at, format!("no node group or node '{name}'"), names.meant(&name, false));
                understood = false;
            }
        }
    }
    understood.then_some(out)
}
