//! An imported graph: its vertices become routers, its edges links, and nodes are attached to it.

use std::collections::{BTreeMap, BTreeSet};

use super::fields::{GraphFile, Reader};
use super::links::{PLAIN, Parameters};
use super::names::Names;
use super::shapes::nodes;
use super::topology::Builder;
use crate::diagnostic::{Diagnostic, Pos, nearest};
use crate::grammar_net::{ATTACH, GRAPH};
use crate::graph::{self, Edge, Graph, Vertex};
use crate::network::{Link, Pipe};
use crate::quantity::{BANDWIDTH, DURATION};
use crate::tree::Entry;

/// Longest name of a router that is made from a label.
const NAME_MAX: usize = 50;

/// Delay from a vertex to itself, which only matters between two nodes there.
pub(crate) struct SelfLoop {
    router: String,
    delay_ns: u64,
    loss_ppm: u32,
    file: String,
    at: Pos,
}

pub(crate) fn read(r: &mut Reader, entry: &Entry, names: &mut Names, b: &mut Builder) -> Option<()> {
    let f = r.open(&entry.value, &GRAPH)?;
    let file = f.get("file")?;
    let path = r.text(&file.value);
    let bandwidth_bps = f.get("bandwidth").map(|e| r.quantity_above_0(Some(e), &BANDWIDTH));
    let delay_ns = f.get("delay").and_then(|e| r.quantity(&e.value, &DURATION));
    let text = match std::mem::replace(&mut r.graph, GraphFile::NotRead) {
        GraphFile::Text(text) => text,
        GraphFile::Failed(why) => {
            r.faults.add(file.value.at, format!("'{path}' can't be read: {why}"));
            return None;
        }
        GraphFile::NotRead => {
            r.faults.add(file.value.at, format!("'{path}' was not read: this command takes catalogs without a graph"));
            return None;
        }
    };
    let in_file = |(at, message, hint): graph::Fault| {
        let Pos { line, column } = at;
        Diagnostic { file: path.clone(), line, column, message, hint }
    };
    let graph = match graph::read(&path, &text) {
        Ok(graph) => graph,
        Err(fault) => {
            r.faults.push_elsewhere(in_file(fault));
            return None;
        }
    };
    let routers = router_names(&graph.vertices);
    for name in &routers {
        b.router(r, names, name, entry.key_at);
    }
    for (edge, back) in match pairs(&graph) {
        Ok(pairs) => pairs,
        Err(fault) => {
            r.faults.push_elsewhere(in_file(fault));
            return None;
        }
    } {
        let (from, to) = (&routers[edge.ends.0], &routers[edge.ends.1]);
        if from == to {
            let (delay_ns, loss_ppm) = (edge.delay_ns.unwrap_or(0), edge.loss_ppm);
            if delay_ns > 0 || loss_ppm > 0 {
                b.loops.push(SelfLoop { router: from.clone(), delay_ns, loss_ppm, file: path.clone(), at: edge.at });
            }
            continue;
        }
        let pipe = |e: &Edge| match e.delay_ns.or(delay_ns) {
            Some(delay_ns) => {
                Ok(Pipe { bandwidth_bps: e.bandwidth_bps.or(bandwidth_bps), delay_ns, loss_ppm: e.loss_ppm, ..PLAIN })
            }
            None => {
                let message = format!("the edge from '{from}' to '{to}' states no latency and not where both ends are");
                Err((e.at, message, Some("give a 'delay' for such edges in the catalog's 'graph'".to_owned())))
            }
        };
        match (pipe(edge), pipe(back)) {
            (Ok(forward), Ok(back)) => b.link(from, to, &Parameters { forward, back, cost: 1 }, entry.key_at),
            (Err(fault), _) | (_, Err(fault)) => {
                r.faults.push_elsewhere(in_file(fault));
                return None;
            }
        }
    }
    attachments(r, f.get("attach"), names, b, &graph, &routers)
}

/// Each link as its two directions: the same edge twice in an undirected graph, the two opposite ones in a directed one.
fn pairs(graph: &Graph) -> Result<Vec<(&Edge, &Edge)>, graph::Fault> {
    if !graph.directed {
        return Ok(graph.edges.iter().map(|e| (e, e)).collect());
    }
    let mut waiting: BTreeMap<(usize, usize), Vec<&Edge>> = BTreeMap::new();
    let mut out = Vec::new();
    for edge in &graph.edges {
        let (from, to) = edge.ends;
        if from == to {
            out.push((edge, edge));
            continue;
        }
        match waiting.get_mut(&(to, from)).and_then(Vec::pop) {
            Some(opposite) => out.push((opposite, edge)),
            None => waiting.entry((from, to)).or_default().push(edge),
        }
    }
    match waiting.values().flatten().min_by_key(|e| e.at) {
        Some(edge) => Err((edge.at, "an edge in one direction only, which is not supported".to_owned(), None)),
        None => Ok(out),
    }
}

/// Labels as host names: `New York, NY` is `new-york-ny`; a name that is taken or empty gets the vertex's id.
fn router_names(vertices: &[Vertex]) -> Vec<String> {
    let mut taken = std::collections::BTreeSet::new();
    let mut out = Vec::new();
    for (i, v) in vertices.iter().enumerate() {
        let label = slug(v.label.as_deref().unwrap_or(""));
        let id = slug(&v.id);
        let candidates = [label.clone(), format!("{label}-{id}"), format!("router-{id}"), format!("router-n{i}")];
        let good = |name: &&String| !name.is_empty() && !name.starts_with('-') && !name.ends_with('-');
        let name = candidates.iter().filter(good).find(|n| !taken.contains(*n)).cloned();
        let name = name.unwrap_or_else(|| format!("router-x{i}"));
        taken.insert(name.clone());
        out.push(name);
    }
    out
}

fn slug(label: &str) -> String {
    let mut out = String::new();
    for c in label.chars().take(NAME_MAX) {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !out.ends_with('-') && !out.is_empty() {
            out.push('-');
        }
    }
    let name = out.trim_end_matches('-').to_owned();
    if name == "localhost" { String::new() } else { name }
}

/// Nodes at vertices that say what bandwidth their hosts have.
fn attachments(
    r: &mut Reader,
    entry: Option<&Entry>,
    names: &Names,
    b: &mut Builder,
    graph: &Graph,
    routers: &[String],
) -> Option<()> {
    let Some(entry) = entry else { return Some(()) };
    let mut understood = Some(());
    for item in r.list(&entry.value, "attachments") {
        let f = r.open(item, &ATTACH)?;
        let members = nodes(r, &f, "nodes", names)?;
        let at = f.get("at")?;
        let wanted = r.text(&at.value);
        let mut vertices = graph.vertices.iter().zip(routers);
        let named =
            |v: &Vertex, router: &str| v.label.as_deref() == Some(&wanted) || v.id == wanted || router == wanted;
        let Some((vertex, router)) = vertices.find(|(v, router)| named(v, router)) else {
            let near = nearest(&wanted, routers.iter().map(String::as_str));
            let hint = near.map(|n| format!("did you mean '{n}'?"));
            r.faults.push(at.value.at, format!("the graph has no vertex '{wanted}'"), hint);
            understood = None;
            continue;
        };
        let (Some(up), Some(down)) = (vertex.up_bps, vertex.down_bps) else {
            let message = format!("the vertex '{wanted}' does not state its hosts' bandwidth");
            let hint = format!("write a link from the nodes to '{router}' under 'links'");
            r.faults.add_with_hint(at.value.at, message, hint);
            understood = None;
            continue;
        };
        let pipe = |bps| Pipe { bandwidth_bps: Some(bps), ..PLAIN };
        for (node, at) in members {
            b.link(&node, router, &Parameters { forward: pipe(up), back: pipe(down), cost: 1 }, at);
        }
    }
    understood
}

/// A latency of a vertex to itself is that between two nodes there. Half of it goes to each of their links, and is taken from
/// the vertex's link to its neighbour: exact where it has one at most, whose delay is no less, and loses nothing itself.
pub(crate) fn spread_loops(r: &mut Reader, b: &mut Builder, is_node: impl Fn(&str) -> bool) {
    for own in std::mem::take(&mut b.loops) {
        let here = b.topology.links.iter_mut().filter(|l| l.from == own.router || l.to == own.router);
        let (of_nodes, others): (Vec<&mut Link>, Vec<&mut Link>) =
            here.partition(|l| is_node(&l.from) || is_node(&l.to));
        let count = of_nodes.len();
        if count < 2 {
            continue;
        }
        if let Err(why) = spread(&own, of_nodes, others) {
            let router = &own.router;
            let message = format!(
                "an edge from '{router}' to itself {why}, which is not supported where {count} nodes are attached"
            );
            let hint = "attach one node there, or take the edge out: nodes there then have their links alone";
            let Pos { line, column } = own.at;
            r.faults.push_elsewhere(Diagnostic { file: own.file, line, column, message, hint: Some(hint.into()) });
            return;
        }
    }
}

/// Changes all links of a vertex, or none and says why it can't be exact.
fn spread(own: &SelfLoop, of_nodes: Vec<&mut Link>, others: Vec<&mut Link>) -> Result<(), &'static str> {
    // Delays away from the vertex, and towards it.
    fn delays<'a>(l: &'a mut Link, router: &str) -> (&'a mut u64, &'a mut u64) {
        let (forward, back) = (&mut l.forward.delay_ns, &mut l.back.delay_ns);
        if l.from == router { (forward, back) } else { (back, forward) }
    }
    let far_end = |l: &Link| if l.from == own.router { l.to.clone() } else { l.from.clone() };
    let neighbours: BTreeSet<String> = others.iter().map(|l| far_end(l)).collect();
    // Towards the vertex, and from it: together the whole.
    let (up_ns, down_ns) = (own.delay_ns / 2, own.delay_ns - own.delay_ns / 2);
    if own.loss_ppm > 0 {
        return Err("with a loss");
    }
    if neighbours.len() > 1 {
        return Err("with a latency, and to several others");
    }
    let mut others: Vec<_> = others.into_iter().map(|l| delays(l, &own.router)).collect();
    if others.iter().any(|(away, towards)| **away < up_ns || **towards < down_ns) {
        return Err("with a latency more than twice that of another of its edges");
    }
    for (away, towards) in &mut others {
        **away -= up_ns;
        **towards -= down_ns;
    }
    for (away, towards) in of_nodes.into_iter().map(|l| delays(l, &own.router)) {
        *away += down_ns;
        *towards += up_ns;
    }
    Ok(())
}
