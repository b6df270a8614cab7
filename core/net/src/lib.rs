//! The emulated network: a pure model in virtual time.
//!
//! [`NetSpec`] is plain data: vertices, directed pipes, nodes with addresses. [`Network`] is the model: it is
//! fed frames with [`Network::ingress`] and gives them back with [`Network::pop_due`] when they have crossed
//! every pipe of the shortest path. Time is an argument, randomness comes from the spec's seed, so the same
//! calls give the same answers.
//!
//! Rules:
//! * A rate counts bits of the Ethernet frame without FCS: IP bytes plus 14.
//! * A pipe serves its packets in the order in which they reach it; departures chain from the previous
//!   departure in virtual time and lose no fraction of a nanosecond over a busy period.
//! * Only switches forward. A node with two links is no router.
//! * ARP and IPv6 neighbour discovery are answered here, at once, and never cross a pipe.
#![forbid(unsafe_code)]

mod build;
mod neighbour;
mod network;
mod pipe;
mod route;
mod spec;

pub use build::{Link, NetBuilder};
pub use network::{Delivery, Network, NodeCounters};
pub use pipe::PipeCounters;
pub use spec::{
    ETHERNET_HEADER_BYTES, MTU_DEFAULT, Mac, MacError, NetError, NetSpec, NodeIx, NodeSpec, PipeIx, PipeSpec,
    QUEUE_PACKETS_DEFAULT, Subnet, Vertex, VertexIx, VertexKind,
};
