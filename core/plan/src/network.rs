//! The catalog's network as the emulator takes it.

use std::collections::BTreeMap;

use diecast_core_experiment as text;
use diecast_core_experiment::{Experiment, NetworkChange, PipeName};
use diecast_core_net::{
    Change, Codel, Discipline, Distribution, FqCodel, Framing, GilbertElliott, Jitter, Link, LinkPart, NetBuilder,
    NetError, NetSpec, NodeIx, PipeIx, PipeSpec, Red, Routing, VertexIx,
};

/// Nodes are in 10.99.0.0/16.
const SUBNET_OCTET: u8 = 99;

/// The network in the catalog's units: the emulator works in virtual time, so no mode changes them.
pub(crate) fn net(experiment: &Experiment, seed: u64) -> Result<NetSpec, NetError> {
    let topology = &experiment.topology;
    let mut builder = NetBuilder::new(seed, SUBNET_OCTET);
    builder.set_mtu(topology.mtu_bytes);
    builder.set_offload(topology.offload);
    builder.set_spread(topology.spread);
    builder.set_routing(match topology.routing {
        text::Routing::Delay => Routing::Delay,
        text::Routing::Cost => Routing::Cost,
    });
    let mut vertices: BTreeMap<&str, VertexIx> = BTreeMap::new();
    // By node and link, since a node has a vertex for each NIC.
    let mut ends: BTreeMap<(&str, usize), VertexIx> = BTreeMap::new();
    let mut addressed: BTreeMap<&str, Vec<NodeIx>> = BTreeMap::new();
    let names: Vec<&str> = experiment.nodes.iter().map(|n| n.name.as_str()).collect();
    for nic in topology.nics(&names) {
        let node = names[nic.node];
        let segment = u32::try_from(nic.segment).unwrap_or(u32::MAX);
        let (ix, vertex) = builder.nic(&nic_name(node, nic.nic), node, segment);
        ends.insert((node, nic.link), vertex);
        addressed.entry(node).or_default().push(ix);
    }
    for device in topology.switches.iter().chain(&topology.routers) {
        vertices.insert(device, builder.switch(device));
    }
    // Of parallel links a fixed route takes the one with the shortest delay, then the first.
    let mut between: BTreeMap<(&str, &str), (u64, PipeIx, VertexIx)> = BTreeMap::new();
    for (i, link) in topology.links.iter().enumerate() {
        let end = |name: &str| ends.get(&(name, i)).copied().unwrap_or_else(|| vertices[name]);
        for (from, to, pipe) in [(&link.from, &link.to, &link.forward), (&link.to, &link.from, &link.back)] {
            let start = end(from);
            let ix = builder.pipe(start, end(to), parameters(pipe));
            builder.set_cost(ix, link.cost);
            let best = between.entry((from, to)).or_insert((pipe.delay_ns, ix, start));
            *best = (*best).min((pipe.delay_ns, ix, start));
        }
    }
    for route in &topology.routes {
        // Whatever is no way to a NIC, because it is in another segment, is never taken.
        let (_, pipe, at) = between[&(route.at.as_str(), route.via.as_str())];
        for &to in &addressed[route.to.as_str()] {
            builder.route(at, to, pipe);
        }
    }
    builder.build()
}

/// `server`, then `server.eth1`: no host name has a dot.
fn nic_name(node: &str, nic: usize) -> String {
    if nic == 0 { node.to_owned() } else { format!("{node}.eth{nic}") }
}

/// The node of a NIC.
pub(crate) fn node_of(nic: &str) -> &str {
    nic.split_once('.').map_or(nic, |(node, _)| node)
}

/// The NICs of all nodes whose names are wanted.
pub fn nics_of(net: &NetSpec, wanted: impl Fn(&str) -> bool) -> Vec<NodeIx> {
    let nics = net.nodes.iter().enumerate().filter(|(_, n)| wanted(node_of(&n.name)));
    nics.map(|(ix, _)| NodeIx(ix as u32)).collect()
}

/// A change of the catalog or of a command as the emulator takes it. Names that the network does not have stand for
/// nothing: whoever read the text has checked them.
pub fn changes(net: &NetSpec, change: &NetworkChange) -> Vec<Change> {
    let pipes = |names: &[PipeName]| -> Vec<PipeIx> {
        let name = |v: VertexIx| net.vertices[v.at()].name.as_str();
        let named = |p: &PipeSpec| names.iter().any(|(a, b)| name(p.from) == a && name(p.to) == b);
        net.pipes.iter().enumerate().filter(|(_, p)| named(p)).map(|(ix, _)| PipeIx(ix as u32)).collect()
    };
    match change {
        NetworkChange::Set { pipes: names, parts, values } => {
            let (link, parts) = (parameters(values), parts.iter().map(|p| part(*p)).collect::<Vec<_>>());
            let adjust = |pipe| Change::Adjust { pipe, parts: parts.clone(), link: Box::new(link) };
            pipes(names).into_iter().map(adjust).collect()
        }
        NetworkChange::Cut(names) => pipes(names).into_iter().map(Change::Cut).collect(),
        NetworkChange::Heal(names) => pipes(names).into_iter().map(Change::Heal).collect(),
        NetworkChange::Flap { pipes: names, down_ns, up_ns, times } => {
            let flap = |pipe| Change::Flap { pipe, down_ns: *down_ns, up_ns: *up_ns, times: *times };
            pipes(names).into_iter().map(flap).collect()
        }
        NetworkChange::Partition(sides) => {
            let nics = |side: &Vec<String>| nics_of(net, |name| side.iter().any(|n| n == name));
            vec![Change::Partition(sides.iter().map(nics).collect())]
        }
        NetworkChange::Join => vec![Change::Join],
        NetworkChange::Reroute => vec![Change::Reroute],
    }
}

fn part(part: text::Part) -> LinkPart {
    match part {
        text::Part::Bandwidth => LinkPart::Bandwidth,
        text::Part::Framing => LinkPart::Framing,
        text::Part::Delay => LinkPart::Delay,
        text::Part::Jitter => LinkPart::Jitter,
        text::Part::Loss => LinkPart::Loss,
        text::Part::Duplicate => LinkPart::Duplicate,
        text::Part::Corrupt => LinkPart::Corrupt,
        text::Part::Queue => LinkPart::Queue,
        text::Part::Discipline => LinkPart::Discipline,
    }
}

fn share(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}

fn parameters(pipe: &text::Pipe) -> Link {
    let (queue_packets, queue_bytes, queue_delay_ns) = match pipe.queue {
        text::QueueLimit::Packets(packets) => (packets, None, None),
        text::QueueLimit::Bytes(bytes) => (u32::MAX, Some(bytes), None),
        text::QueueLimit::DelayNs(ns) => (u32::MAX, None, Some(ns)),
    };
    Link {
        bandwidth_bps: pipe.bandwidth_bps,
        framing: match pipe.framing {
            text::Framing::Ip => Framing::Ip,
            text::Framing::Frame => Framing::Frame,
            text::Framing::Wire => Framing::Wire,
        },
        delay_ns: pipe.delay_ns,
        jitter: pipe.jitter.map(|j| Jitter {
            distribution: if j.normal { Distribution::Normal } else { Distribution::Uniform },
            spread_ns: j.spread_ns,
            reorder: j.reorder,
        }),
        loss: share(pipe.loss_ppm),
        loss_every: pipe.loss_every,
        loss_burst: pipe.loss_burst.map(|b| GilbertElliott {
            enter: share(b.enter_ppm),
            leave: share(b.leave_ppm),
            loss_good: share(b.between_ppm),
            loss_bad: share(b.loss_ppm),
        }),
        duplicate: share(pipe.duplicate_ppm),
        corrupt: share(pipe.corrupt_ppm),
        queue_packets,
        queue_bytes,
        queue_delay_ns,
        discipline: discipline(&pipe.discipline),
    }
}

fn discipline(d: &text::Discipline) -> Discipline {
    let codel = |c: &text::Codel| Codel { target_ns: c.target_ns, interval_ns: c.interval_ns, ecn: c.ecn };
    match d {
        text::Discipline::DropTail => Discipline::DropTail,
        text::Discipline::Red(r) => Discipline::Red(Red {
            min_packets: r.min_packets,
            max_packets: r.max_packets,
            max_probability: share(r.probability_ppm),
            weight: share(r.weight_ppm),
            gentle: r.gentle,
            ecn: r.ecn,
        }),
        text::Discipline::Codel(c) => Discipline::Codel(codel(c)),
        text::Discipline::FqCodel(f) => {
            Discipline::FqCodel(FqCodel { codel: codel(&f.codel), flows: f.flows, quantum_bytes: f.quantum_bytes })
        }
    }
}
