//! From the tree of the text to an [`Experiment`].
//!
//! Every function reports what is wrong and goes on with a harmless stand-in, so that one run shows all
//! faults; the result is only used when there were none.

pub(crate) mod faults;
mod fields;
mod gateway;
mod graph;
mod links;
mod names;
mod programs;
mod shapes;
mod topology;
mod workload;

use std::collections::BTreeMap;

use crate::clock::{Clock, parse_drift, parse_offset};
use crate::diagnostic::{Diagnostic, Faults, Pos, meant};
use crate::fault::NetworkNames;
use crate::grammar::{CATALOG, CLOCK, CORES_MAX, GROUP, MACHINE_TYPE, NODES_MAX, VERSION};
use crate::model::{Experiment, Group, MachineType, Node, SpeedPpm};
use crate::network::Topology;
use crate::quantity::{DRIFT, DURATION, SIZE};
use crate::tree;
use fields::{GraphFile, Reader};
use names::Names;

/// Reads a file that a catalog names, by its path relative to the catalog.
pub(crate) type Load<'a> = &'a mut dyn FnMut(&str) -> Result<String, String>;

/// Reads a catalog; see [`crate::parse`].
pub(crate) fn parse(
    file: &str,
    text: &str,
    overrides: &[(String, String)],
    load: Option<Load<'_>>,
) -> Result<Experiment, Vec<Diagnostic>> {
    let mut r = Reader { faults: Faults::new(file), graph: GraphFile::NotRead };
    let experiment = tree::parse(text, &mut r.faults).and_then(|root| {
        if let (Some(load), Some(path)) = (load, graph_path(&root)) {
            r.graph = load(path).map_or_else(GraphFile::Failed, GraphFile::Text);
        }
        catalog(&mut r, file, &root, overrides)
    });
    match experiment {
        Some(experiment) if r.faults.is_empty() => Ok(experiment),
        _ => {
            let faults = r.faults.into_sorted();
            assert!(!faults.is_empty(), "a catalog was refused without a reason");
            Err(faults)
        }
    }
}

fn catalog(r: &mut Reader, file: &str, root: &tree::Node, overrides: &[(String, String)]) -> Option<Experiment> {
    version(r, root)?;
    let f = r.open(root, &CATALOG)?;
    let name = f.get("name").map(|e| r.host_name(&e.value)).unwrap_or_default();
    let machine_types = f.get("machine_types").map(|e| machine_types(r, &e.value)).unwrap_or_default();
    let mut names = Names::default();
    let (groups, nodes) = f.get("nodes").map(|e| nodes(r, &e.value, &machine_types, &mut names)).unwrap_or_default();
    let topology = topology::read(r, f.get("topology")?, &groups, &mut names);
    let parameters = workload::parameters(r, f.get("workload")?, overrides);
    let programs = f.get("programs").map(|e| programs::list(r, &e.value, &names, &parameters)).unwrap_or_default();
    let workload = workload::read(r, f.get("workload")?, &names, parameters)?;
    let metrics = workload::metrics(r, f.get("metrics")?, &names, &programs, &workload);
    let faults = f.get("faults").map(|e| {
        let end_ns = workload.warm_up_ns.saturating_add(workload.measure_ns);
        faults::list(r, &e.value, &network_names(&nodes, &topology), end_ns)
    });
    let gateway = f.get("gateway").map(|e| gateway::read(r, &e.value, &names)).unwrap_or_default();
    Some(Experiment {
        file: file.to_owned(),
        version: VERSION,
        name,
        machine_types,
        groups,
        nodes,
        topology,
        programs,
        workload,
        faults: faults.unwrap_or_default(),
        gateway,
        metrics,
    })
}

fn network_names(nodes: &[Node], topology: &Topology) -> NetworkNames {
    let pipes = topology.links.iter().flat_map(|l| {
        let (from, to) = (l.from.as_str(), l.to.as_str());
        [(from, to), (to, from)]
    });
    NetworkNames::new(nodes.iter().map(|n| (n.name.as_str(), n.group.as_str())), pipes)
}

/// The file of the topology's graph.
fn graph_path(root: &tree::Node) -> Option<&str> {
    let file = root.child("topology")?.child("graph")?.child("file")?;
    match &file.kind {
        tree::Kind::Scalar { text, .. } if !text.is_empty() => Some(text),
        _ => None,
    }
}

/// Another version may have another grammar, so nothing else is read from it.
fn version(r: &mut Reader, root: &tree::Node) -> Option<()> {
    let tree::Kind::Map(entries) = &root.kind else { return Some(()) };
    // A missing version is reported with the other missing keys.
    let Some(entry) = entries.iter().find(|e| e.key == "diecast") else { return Some(()) };
    match &entry.value.kind {
        tree::Kind::Scalar { text, .. } if *text == VERSION.to_string() => Some(()),
        _ => {
            let message = format!("{} is no version of the catalog's grammar, expected 1", entry.value.describe());
            r.faults.add(entry.value.at, message);
            None
        }
    }
}

fn machine_types(r: &mut Reader, node: &tree::Node) -> Vec<MachineType> {
    let mut out = Vec::new();
    for entry in r.map(node, "machine types") {
        r.check_name(&entry.key, entry.key_at);
        let Some(f) = r.open(&entry.value, &MACHINE_TYPE) else { continue };
        let at = |key: &str| f.get(key).map_or(entry.key_at, |e| e.value.at);
        out.push(MachineType {
            name: entry.key.clone(),
            cores: r.count(f.get("cores"), CORES_MAX),
            speed_ppm: SpeedPpm(f.get("speed").map_or(1, |e| r.speed(&e.value))),
            score_milli: f.get("score").map(|e| r.score(&e.value)),
            memory_bytes: r.quantity_above_0(f.get("memory"), &SIZE),
            at: entry.key_at,
            speed_at: at(if f.get("score").is_some() { "score" } else { "speed" }),
            cores_at: at("cores"),
            memory_at: at("memory"),
        });
    }
    out
}

fn nodes(r: &mut Reader, node: &tree::Node, types: &[MachineType], names: &mut Names) -> (Vec<Group>, Vec<Node>) {
    let (mut groups, mut nodes) = (Vec::new(), Vec::new());
    let known: Vec<&str> = types.iter().map(|t| t.name.as_str()).collect();
    for entry in r.map(node, "node groups") {
        r.check_host_name(&entry.key, entry.key_at);
        let Some(f) = r.open(&entry.value, &GROUP) else { continue };
        let machine_type = f.get("type").map(|e| r.text(&e.value)).unwrap_or_default();
        if let Some(e) = f.get("type")
            && !known.contains(&machine_type.as_str())
            && !known.is_empty()
        {
            r.faults.add_with_hint(
                e.value.at,
                format!("no machine type '{machine_type}'"),
                meant(&machine_type, &known),
            );
        }
        let count = r.count(f.get("count"), NODES_MAX);
        if nodes.len() + count as usize > NODES_MAX as usize {
            r.faults.add(entry.key_at, format!("more than {NODES_MAX} nodes, the most that one subnet carries here"));
            break;
        }
        let clock = f.get("clock").map(|e| clock(r, &e.value)).unwrap_or_default();
        let members: Vec<Node> = (1..=count)
            .map(|index| Node {
                name: if count == 1 { entry.key.clone() } else { format!("{}-{index}", entry.key) },
                group: entry.key.clone(),
                index,
                machine_type: machine_type.clone(),
                clock,
            })
            .collect();
        let member_names: Vec<String> = members.iter().map(|n| n.name.clone()).collect();
        names.add_group(&mut r.faults, &entry.key, &member_names, entry.key_at);
        groups.push(Group { name: entry.key.clone(), machine_type, nodes: member_names, at: entry.key_at });
        nodes.extend(members);
    }
    (groups, nodes)
}

fn clock(r: &mut Reader, node: &tree::Node) -> Clock {
    let Some(f) = r.open(node, &CLOCK) else { return Clock::default() };
    Clock {
        offset_ns: r.signed(f.get("offset"), &DURATION, parse_offset),
        drift_ppb: r.signed(f.get("drift"), &DRIFT, parse_drift),
    }
}

/// Where each name was first seen.
type Places = BTreeMap<String, Pos>;
