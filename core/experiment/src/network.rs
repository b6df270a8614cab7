//! The network of the original system, in original units.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::diagnostic::Pos;

/// The network: helpers and imported graphs have become switches, routers and links.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Topology {
    /// Largest IP packet.
    pub mtu_bytes: u32,
    /// Nodes leave segmentation and checksums to their NICs.
    pub offload: bool,
    /// What makes a path short.
    pub routing: Routing,
    /// Whether equally short paths share the destinations; if not, all take the first.
    pub spread: bool,
    /// Names of switches.
    pub switches: Vec<String>,
    /// Names of routers; both are invisible to IP and differ in name only.
    pub routers: Vec<String>,
    /// All links, one per attached node.
    pub links: Vec<Link>,
    /// Ways that are given, one per node.
    pub routes: Vec<Route>,
    /// Where the topology is in the text.
    pub at: Pos,
}

/// A node's end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nic {
    /// Position of the node among those asked for.
    pub node: usize,
    /// Which of the node's NICs, in the order of its links.
    pub nic: usize,
    /// Position of the link.
    pub link: usize,
    /// NICs that switches, routers and links join are in one segment, numbered from 0. Nodes join nothing.
    pub segment: usize,
}

impl Topology {
    /// The NICs of these nodes: the first of each in the order of the nodes, then all others.
    pub fn nics(&self, nodes: &[&str]) -> Vec<Nic> {
        let place: BTreeMap<&str, usize> = nodes.iter().enumerate().map(|(i, n)| (*n, i)).collect();
        let mut island: BTreeMap<&str, usize> = BTreeMap::new();
        let mut all: Vec<Nic> = Vec::new();
        let mut counts = vec![0; nodes.len()];
        // The links of one island have the number of one of them.
        let mut of_link: Vec<usize> = (0..self.links.len()).collect();
        let root = |of_link: &[usize], mut i: usize| {
            while of_link[i] != i {
                i = of_link[i];
            }
            i
        };
        for (i, link) in self.links.iter().enumerate() {
            for end in [link.from.as_str(), link.to.as_str()] {
                if let Some(&node) = place.get(end) {
                    all.push(Nic { node, nic: counts[node], link: i, segment: 0 });
                    counts[node] += 1;
                } else {
                    let other = *island.entry(end).or_insert(i);
                    let (a, b) = (root(&of_link, other), root(&of_link, i));
                    of_link[a.max(b)] = a.min(b);
                }
            }
        }
        all.sort_by_key(|n| (n.nic > 0, n.node, n.nic));
        let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
        for nic in &mut all {
            let next = numbers.len();
            nic.segment = *numbers.entry(root(&of_link, nic.link)).or_insert(next);
        }
        all
    }
}

/// What makes a path short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Routing {
    /// Least sum of delays.
    Delay,
    /// Least sum of costs.
    Cost,
}

/// A link: a pipe in each direction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Link {
    /// One end: a node, switch or router.
    pub from: String,
    /// The other end.
    pub to: String,
    /// From `from` to `to`.
    #[serde(flatten)]
    pub forward: Pipe,
    /// From `to` to `from`.
    pub back: Pipe,
    /// What it costs to go this way, in either direction.
    pub cost: u32,
    /// Where the link is in the text; the place of the graph for those of an imported one.
    pub at: Pos,
}

/// A way that is given and not searched.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Route {
    /// Where: a node, switch or router.
    pub at: String,
    /// The node whose packets go this way.
    pub to: String,
    /// The next node, switch or router.
    pub via: String,
    /// Where the route is in the text.
    pub place: Pos,
}

/// What one direction of a link does to packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Pipe {
    /// Bits per second; only an imported graph can have pipes without a limit.
    pub bandwidth_bps: Option<u64>,
    /// Which bytes the bandwidth counts.
    pub framing: Framing,
    /// One way.
    pub delay_ns: u64,
    /// How much the delay varies.
    pub jitter: Option<Jitter>,
    /// Random loss in millionths.
    pub loss_ppm: u32,
    /// The last of so many packets is lost.
    pub loss_every: Option<u32>,
    /// Loss in bursts.
    pub loss_burst: Option<Burst>,
    /// Packets that arrive twice, in millionths.
    pub duplicate_ppm: u32,
    /// Packets with a flipped bit, in millionths.
    pub corrupt_ppm: u32,
    /// Limit of what waits.
    pub queue: QueueLimit,
    /// How the queue is kept.
    pub discipline: Discipline,
}

/// Which bytes a bandwidth counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Framing {
    /// Those of the IP packet.
    Ip,
    /// And 14 of the Ethernet header.
    Frame,
    /// And all that Ethernet takes on the wire.
    Wire,
}

/// How much a delay varies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Jitter {
    /// Normal; if not, uniform.
    pub normal: bool,
    /// Largest deviation, or standard deviation.
    pub spread_ns: u64,
    /// Whether packets may overtake.
    pub reorder: bool,
}

/// Gilbert-Elliott loss, all in millionths per packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Burst {
    /// From good to bad.
    pub enter_ppm: u32,
    /// From bad to good.
    pub leave_ppm: u32,
    /// Loss in the bad state.
    pub loss_ppm: u32,
    /// Loss in the good state.
    pub between_ppm: u32,
}

/// Limit of what waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueLimit {
    /// Packets.
    Packets(u32),
    /// Bytes of frames.
    Bytes(u64),
    /// Time that the bytes before a packet take.
    DelayNs(u64),
}

/// How a queue is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Discipline {
    /// Drop-tail.
    DropTail,
    /// Random early detection.
    Red(Red),
    /// Controlled delay.
    Codel(Codel),
    /// A queue with CoDel for each flow.
    FqCodel(FqCodel),
}

/// Parameters of RED.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Red {
    /// Average from which packets are dropped.
    pub min_packets: u32,
    /// Average from which all are.
    pub max_packets: u32,
    /// Of a drop at `max_packets`, millionths.
    pub probability_ppm: u32,
    /// Of the present queue in the average, millionths.
    pub weight_ppm: u32,
    /// A soft end of the range.
    pub gentle: bool,
    /// Marks instead of drops.
    pub ecn: bool,
}

/// Parameters of CoDel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Codel {
    /// Acceptable time in the queue.
    pub target_ns: u64,
    /// Time above it before drops.
    pub interval_ns: u64,
    /// Marks instead of drops.
    pub ecn: bool,
}

/// Parameters of FQ-CoDel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct FqCodel {
    /// CoDel of each flow.
    pub codel: Codel,
    /// Queues that flows are hashed to.
    pub flows: u32,
    /// Bytes that a flow sends in its turn.
    pub quantum_bytes: u32,
}
