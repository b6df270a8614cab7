//! From names to a [`NetSpec`]: indices, addresses and both directions of each link.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::link::Link;
use crate::spec::{
    COST_DEFAULT, FixedRoute, MTU_DEFAULT, Mac, NetError, NetSpec, NodeIx, NodeSpec, PipeIx, PipeSpec, Routing, Subnet,
    Vertex, VertexIx, VertexKind,
};

/// Hosts of a /16 without the network and the broadcast address.
const HOSTS_MAX: usize = 65_534;

/// Collects vertices and links and gives nodes their addresses, in the order in which they are added.
///
/// Node `i` (from 0) gets host number `i + 1` in 10.`octet`.0.0/16 and fd00:dc::/64 and the MAC
/// 02:dc:(host number in four bytes).
#[derive(Clone, Debug)]
pub struct NetBuilder {
    spec: NetSpec,
}

impl NetBuilder {
    /// An empty network whose subnet is 10.`octet`.0.0/16.
    pub fn new(seed: u64, octet: u8) -> NetBuilder {
        NetBuilder {
            spec: NetSpec {
                seed,
                vertices: Vec::new(),
                pipes: Vec::new(),
                nodes: Vec::new(),
                subnet: Subnet {
                    ipv4: Ipv4Addr::new(10, octet, 0, 0),
                    ipv4_prefix: 16,
                    ipv6: Ipv6Addr::new(0xfd00, 0xdc, 0, 0, 0, 0, 0, 0),
                    ipv6_prefix: 64,
                },
                mtu: MTU_DEFAULT,
                offload: false,
                routing: Routing::Delay,
                spread: false,
                routes: Vec::new(),
            },
        }
    }

    fn vertex(&mut self, name: &str, kind: VertexKind) -> VertexIx {
        self.spec.vertices.push(Vertex { name: name.to_owned(), kind });
        VertexIx(self.spec.vertices.len() as u32 - 1)
    }

    /// Adds a switch.
    pub fn switch(&mut self, name: &str) -> VertexIx {
        self.vertex(name, VertexKind::Switch)
    }

    /// Adds a node with the next free addresses.
    pub fn node(&mut self, name: &str) -> (NodeIx, VertexIx) {
        self.nic(name, name, 0)
    }

    /// Adds a NIC of a machine in a segment; its vertex has the machine's name.
    pub fn nic(&mut self, name: &str, machine: &str, segment: u32) -> (NodeIx, VertexIx) {
        let vertex = self.vertex(machine, VertexKind::Node);
        let ix = NodeIx(self.spec.nodes.len() as u32);
        let host = ix.0 + 1;
        let [a, b, c, d] = host.to_be_bytes();
        let subnet = self.spec.subnet.of_segment(segment);
        let net4 = subnet.ipv4.octets();
        let mut ipv6 = subnet.ipv6.octets();
        ipv6[12..].copy_from_slice(&host.to_be_bytes());
        self.spec.nodes.push(NodeSpec {
            name: name.to_owned(),
            vertex,
            mac: Mac([0x02, 0xdc, a, b, c, d]),
            ipv4: Ipv4Addr::new(net4[0], net4[1], c, d),
            ipv6: Ipv6Addr::from(ipv6),
            segment,
        });
        (ix, vertex)
    }

    /// Adds one direction.
    pub fn pipe(&mut self, from: VertexIx, to: VertexIx, link: Link) -> PipeIx {
        self.spec.pipes.push(PipeSpec { from, to, cost: COST_DEFAULT, link });
        PipeIx(self.spec.pipes.len() as u32 - 1)
    }

    /// Adds both directions: from `a` to `b`, then back.
    pub fn link(&mut self, a: VertexIx, b: VertexIx, link: Link) -> (PipeIx, PipeIx) {
        (self.pipe(a, b, link), self.pipe(b, a, link))
    }

    /// Sets the largest IP packet.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.spec.mtu = mtu;
    }

    /// Sets whether nodes leave segmentation and checksums to their NICs.
    pub fn set_offload(&mut self, offload: bool) {
        self.spec.offload = offload;
    }

    /// Sets how paths are chosen.
    pub fn set_routing(&mut self, routing: Routing) {
        self.spec.routing = routing;
    }

    /// Has equally short paths share the destinations, as switches of a data centre do.
    pub fn set_spread(&mut self, spread: bool) {
        self.spec.spread = spread;
    }

    /// Sets what it costs to go through a pipe.
    pub fn set_cost(&mut self, pipe: PipeIx, cost: u32) {
        self.spec.pipes[pipe.at()].cost = cost;
    }

    /// Gives a way instead of searching it: at `at`, packets to `to` take `pipe`.
    pub fn route(&mut self, at: VertexIx, to: NodeIx, pipe: PipeIx) {
        self.spec.routes.push(FixedRoute { at, to, pipe });
    }

    /// The finished spec. Whether every node reaches every other is checked by [`crate::Network::new`].
    pub fn build(self) -> Result<NetSpec, NetError> {
        let nodes = self.spec.nodes.len();
        if nodes > HOSTS_MAX {
            return Err(NetError::TooManyNodes { nodes, room: HOSTS_MAX });
        }
        Ok(self.spec)
    }
}
