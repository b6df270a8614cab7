//! Ways between nodes and the host, past the network: real time, no link, no share of a machine.

use core::net::SocketAddr;

use serde::Serialize;

use crate::diagnostic::Pos;

/// All of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Gateway {
    /// Ports of nodes that the host reaches.
    pub publish: Vec<Publish>,
    /// Services of the host that nodes reach.
    pub reach: Vec<Reach>,
}

/// What a way carries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Connections.
    #[default]
    Tcp,
    /// Datagrams.
    Udp,
}

/// A node's port on the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Publish {
    /// The node that serves.
    pub node: String,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its port.
    pub port: u16,
    /// Where the host listens for it.
    pub host: SocketAddr,
    /// Where it is in the text.
    pub at: Pos,
}

/// A service of the host in nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Reach {
    /// The nodes that may use it.
    pub on: Vec<String>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its port there.
    pub port: u16,
    /// Where it serves on the host.
    pub host: SocketAddr,
    /// Where it is in the text.
    pub at: Pos,
}
