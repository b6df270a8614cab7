//! The emulated network: a pure model in virtual time.
//!
//! [`NetSpec`] is plain data: vertices, directed pipes, nodes with addresses. [`Network`] is the model: it is
//! fed frames with [`Network::ingress`] and gives them back with [`Network::pop_due`] when they have crossed
//! every pipe of the shortest path. Time is an argument, randomness comes from the spec's seed, so the same
//! calls give the same answers.
//!
//! Rules:
//! * A rate counts bits of the Ethernet frame without FCS, IP bytes plus 14, unless the pipe says otherwise.
//! * A pipe serves its packets in the order of its discipline; departures chain from the previous departure in virtual
//!   time and lose no fraction of a nanosecond over a busy period.
//! * A pipe does not reorder unless its jitter says so.
//! * Only switches forward. A node with two links is no router.
//! * ARP and IPv6 neighbour discovery are answered here, at once, and never cross a pipe: a cut or a partition shows as
//!   loss of packets, not as a neighbour that is not there.
//! * A broadcast or multicast reaches every node of the segment, once through each pipe on the way.
//! * A change of the network takes place at its instant; see [`Change`] for what becomes of packets on their way.
#![forbid(unsafe_code)]

mod agenda;
mod build;
mod change;
mod convoy;
mod delayed;
mod hold;
mod large;
mod link;
mod mark;
mod merge;
mod neighbour;
mod network;
mod offload;
mod packets;
mod pipe;
mod queue;
mod record;
mod rng;
mod route;
mod spec;
mod stale;
mod tcp;
mod train;

pub use build::NetBuilder;
pub use change::Change;
pub use delayed::{DelayedAcks, Departure};
pub use hold::Holding;
pub use large::LARGE_BYTES;
pub use link::{
    Codel, Discipline, Distribution, FQ_FLOWS_MAX, FQ_QUEUE_PACKETS_DEFAULT, FqCodel, Framing, GilbertElliott, Jitter,
    Link, LinkError, LinkPart, QUEUE_PACKETS_DEFAULT, Red,
};
pub use merge::{Due, Run};
pub use network::{Delivery, Network, NodeCounters};
pub use offload::{OFFLOAD_HEADER_BYTES, OffloadError, SEGMENTS_MAX, Segments};
pub use packets::{BUFFER_ROOM_BYTES, Seen};
pub use pipe::PipeCounters;
pub use record::{Delivered, Parting, RecordError, Recorded, Replay, replay, replay_until};
pub use spec::{
    COST_DEFAULT, ETHERNET_HEADER_BYTES, FixedRoute, MTU_DEFAULT, MTU_MAX, MTU_MIN, Mac, MacError, NetError, NetSpec,
    NodeIx, NodeSpec, PipeIx, PipeSpec, Routing, Subnet, Vertex, VertexIx, VertexKind,
};
pub use stale::{Checksum, StaleEcho, StaleEchoes};
