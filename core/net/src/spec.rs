//! What a network is made of: plain data that a plan prints and a journal keeps.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::link::{Link, LinkError};

/// Bytes of an Ethernet header, which a rate counts; the FCS is not counted.
pub const ETHERNET_HEADER_BYTES: usize = 14;
/// Largest IP packet on the segment.
pub const MTU_DEFAULT: u32 = 1500;
/// Largest MTU that a segment can have: a jumbo frame.
pub const MTU_MAX: u32 = 9000;
/// Smallest MTU: what IPv6 needs.
pub const MTU_MIN: u32 = 1280;
/// Cost of a pipe when the catalog does not say.
pub const COST_DEFAULT: u32 = 1;

macro_rules! index_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);
        impl $name {
            /// The position in its table.
            pub const fn at(self) -> usize { self.0 as usize }
        }
    };
}

index_type!(/// Position in [`NetSpec::vertices`].
    VertexIx);
index_type!(/// Position in [`NetSpec::pipes`].
    PipeIx);
index_type!(/// Position in [`NetSpec::nodes`].
    NodeIx);

/// A whole network.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NetSpec {
    /// Seed of every random decision.
    pub seed: u64,
    /// Nodes and switches of the graph.
    pub vertices: Vec<Vertex>,
    /// One per direction of a link.
    pub pipes: Vec<PipeSpec>,
    /// The machines' NICs: a machine with several has several entries, which know nothing of each other.
    pub nodes: Vec<NodeSpec>,
    /// The flat subnet of segment 0; see [`Subnet::of_segment`].
    pub subnet: Subnet,
    /// Largest IP packet, bytes; longer frames are dropped and counted.
    pub mtu: u32,
    /// Nodes leave segmentation and checksums to their NICs. The model never sees it: what comes in is cut before.
    #[serde(default)]
    pub offload: bool,
    /// How paths are chosen.
    #[serde(default)]
    pub routing: Routing,
    /// Where several paths are equally short, destinations are spread over them; if not, all take the first.
    #[serde(default)]
    pub spread: bool,
    /// Ways that are given; they win over the search.
    #[serde(default)]
    pub routes: Vec<FixedRoute>,
}

impl NetSpec {
    /// Whether any pipe marks packets instead of dropping them, so that it matters whether nodes ask for marks.
    pub fn marks(&self) -> bool {
        self.pipes.iter().any(|pipe| pipe.link.discipline.marks())
    }

    /// A problem of a pipe with the names of its ends.
    pub(crate) fn bad_link(&self, pipe: &PipeSpec, problem: LinkError) -> NetError {
        let name = |v: VertexIx| self.vertices[v.at()].name.clone();
        NetError::BadLink { from: name(pipe.from), to: name(pipe.to), problem }
    }
}

/// A point of the graph.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Vertex {
    /// Name in the catalog.
    pub name: String,
    /// What it is.
    pub kind: VertexKind,
}

/// What a vertex is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VertexKind {
    /// Sends and receives, never forwards.
    Node,
    /// Forwards (a switch or a router; invisible to IP).
    Switch,
}

/// One direction of a link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PipeSpec {
    /// Where packets enter.
    pub from: VertexIx,
    /// Where they leave.
    pub to: VertexIx,
    /// What it costs to go this way, where paths are chosen by cost.
    #[serde(default = "cost_default")]
    pub cost: u32,
    /// What it does to packets.
    #[serde(flatten)]
    pub link: Link,
}

const fn cost_default() -> u32 {
    COST_DEFAULT
}

/// By what shortest paths are short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Routing {
    /// Least sum of delays.
    #[default]
    Delay,
    /// Least sum of costs.
    Cost,
}

/// A way that is given and not searched: at `at`, packets to `to` take `pipe`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FixedRoute {
    /// Where.
    pub at: VertexIx,
    /// Whose packets.
    pub to: NodeIx,
    /// The pipe, which begins at `at`.
    pub pipe: PipeIx,
}

/// A machine's place and addresses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Name in the catalog, `app-3`.
    pub name: String,
    /// Its vertex.
    pub vertex: VertexIx,
    /// Address of its NIC.
    pub mac: Mac,
    /// Address in [`Subnet::ipv4`].
    pub ipv4: Ipv4Addr,
    /// Address in [`Subnet::ipv6`].
    pub ipv6: Ipv6Addr,
    /// The part of the network that it hears: a node reaches, and asks for the addresses of, those of its own only.
    #[serde(default, skip_serializing_if = "is_first")]
    pub segment: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_first(segment: &u32) -> bool {
    *segment == 0
}

/// The flat subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Subnet {
    /// Network address.
    pub ipv4: Ipv4Addr,
    /// Its prefix length.
    pub ipv4_prefix: u8,
    /// Network address.
    pub ipv6: Ipv6Addr,
    /// Its prefix length.
    pub ipv6_prefix: u8,
}

impl Subnet {
    /// The subnet of a segment: 10.99.0.0/16 is followed by 10.100.0.0/16, fd00:dc::/64 by fd00:dc:1::/64.
    pub const fn of_segment(self, segment: u32) -> Subnet {
        let ipv4 = Ipv4Addr::from_bits(self.ipv4.to_bits().wrapping_add(segment << 16));
        let ipv6 = Ipv6Addr::from_bits(self.ipv6.to_bits() | (segment as u128) << 80);
        Subnet { ipv4, ipv6, ..self }
    }
}

/// An Ethernet address, written `02:dc:00:00:00:01`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Broadcast or multicast.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The IPv6 link-local address that Linux derives from this MAC (modified EUI-64).
    pub const fn link_local(self) -> Ipv6Addr {
        let m = self.0;
        Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.0;
        write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", m[0], m[1], m[2], m[3], m[4], m[5])
    }
}

impl From<Mac> for String {
    fn from(m: Mac) -> String {
        m.to_string()
    }
}

/// A text that is no Ethernet address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is not an Ethernet address, expected six hexadecimal bytes such as 02:dc:00:00:00:01")]
pub struct MacError(String);

impl FromStr for Mac {
    type Err = MacError;
    fn from_str(s: &str) -> Result<Mac, MacError> {
        let bad = || MacError(s.to_owned());
        let mut out = [0; 6];
        let mut parts = s.split(':');
        for byte in &mut out {
            let p = parts.next().ok_or_else(bad)?;
            if p.len() != 2 || !p.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad());
            }
            *byte = u8::from_str_radix(p, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Mac(out)) }
    }
}

impl TryFrom<String> for Mac {
    type Error = MacError;
    fn try_from(s: String) -> Result<Mac, MacError> {
        s.parse()
    }
}

/// Why a spec describes no network that can be run.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum NetError {
    /// An index points outside its table.
    #[error("{what} {index} does not exist, there are {count}")]
    NoSuch {
        /// Table.
        what: &'static str,
        /// Index found.
        index: u32,
        /// Length of the table.
        count: usize,
    },
    /// A node's vertex is a switch, or belongs to two nodes.
    #[error("node '{0}' needs a vertex of its own that is no switch")]
    BadVertex(String),
    /// Two nodes have the same address.
    #[error("nodes '{0}' and '{1}' have the same address {2}")]
    SameAddress(String, String, String),
    /// A group address on a NIC.
    #[error("node '{0}' has the group address {1}, expected a unicast one")]
    GroupMac(String, Mac),
    /// A pipe that goes nowhere.
    #[error("a pipe leads from '{0}' to itself")]
    Loop(String),
    /// Parameters that no pipe can have.
    #[error("the pipe from '{from}' to '{to}' has {problem}")]
    BadLink {
        /// Start.
        from: String,
        /// End.
        to: String,
        /// What is wrong.
        problem: LinkError,
    },
    /// A node on two sides of a partition.
    #[error("node '{0}' is on two sides of the partition")]
    TwoSides(String),
    /// Outside of what Ethernet and IPv6 allow.
    #[error("an MTU of {0} bytes, expected {MTU_MIN} to {MTU_MAX}")]
    BadMtu(u32),
    /// A fixed route through a pipe that does not begin there.
    #[error("the route at '{at}' to '{to}' goes through a pipe that begins at '{begins}'")]
    BadRoute {
        /// Where the route is.
        at: String,
        /// Its destination.
        to: String,
        /// Where the pipe begins.
        begins: String,
    },
    /// Two fixed routes at one place for one destination.
    #[error("two routes at '{at}' to '{to}'")]
    SecondRoute {
        /// Where they are.
        at: String,
        /// Their destination.
        to: String,
    },
    /// Fixed routes lead in a circle.
    #[error("packets from '{from}' to '{to}' go in a circle at '{at}'")]
    RouteLoop {
        /// Start.
        from: String,
        /// End.
        to: String,
        /// A vertex that they reach twice.
        at: String,
    },
    /// Some pair of nodes has no path.
    #[error("node '{to}' can't be reached from node '{from}'")]
    Unreachable {
        /// Start.
        from: String,
        /// End.
        to: String,
    },
    /// More nodes than the subnet has addresses.
    #[error("{nodes} nodes do not fit the subnet, which has room for {room}")]
    TooManyNodes {
        /// Wanted.
        nodes: usize,
        /// Possible.
        room: usize,
    },
}
