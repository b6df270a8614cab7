//! Ways between a node's namespace and the host, past the emulator: nothing here is in virtual time.
//!
//! A way listens at one end and connects to the other for every connection that comes, or for every address that
//! sends datagrams. Threads at normal priority carry what comes, outside every node's share.

mod tcp;
mod udp;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::error::HostNetError;
use crate::netns::in_netns;
use tcp::TcpWay;
use udp::UdpWay;

const THREAD: &str = "diecast-gateway";
/// After a failed call: nothing that a listener of ours meets is helped by trying at once.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// One end of a way.
#[derive(Clone, Debug)]
pub struct WayEnd {
    /// The node's namespace; none for the host's own.
    pub netns: Option<Arc<OwnedFd>>,
    /// Where in it.
    pub address: SocketAddr,
}

impl WayEnd {
    fn within<T: Send>(&self, work: impl FnOnce(SocketAddr) -> io::Result<T> + Send) -> io::Result<T> {
        match &self.netns {
            None => work(self.address),
            Some(netns) => in_netns(netns.as_fd(), || work(self.address)).map_err(io::Error::other)?,
        }
    }
}

/// What went through a way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WayCounts {
    /// Connections that were carried, or flows of datagrams.
    pub connections: u64,
    /// Datagrams that were handed on, in both directions.
    pub datagrams: u64,
    /// Connections or datagrams that were not: nobody was at the other end, or there were too many.
    pub refused: u64,
    /// Bytes in both directions.
    pub bytes: u64,
}

/// An open way. Dropping it ends its connections.
#[derive(Debug)]
pub struct Way(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpWay),
    Udp(UdpWay),
}

impl Way {
    /// Listens at `from`; connections go to `to`.
    pub fn tcp(from: &WayEnd, to: WayEnd) -> Result<Way, HostNetError> {
        TcpWay::open(from, to).map(|way| Way(Kind::Tcp(way)))
    }

    /// Receives datagrams at `from` for `to`. A flow ends when nothing of it came for the real time `idle`.
    pub fn udp(from: &WayEnd, to: WayEnd, idle: Duration) -> Result<Way, HostNetError> {
        UdpWay::open(from, to, idle).map(|way| Way(Kind::Udp(way)))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        match &self.0 {
            Kind::Tcp(way) => way.address(),
            Kind::Udp(way) => way.address(),
        }
    }

    /// What went through it so far.
    pub fn counts(&self) -> WayCounts {
        match &self.0 {
            Kind::Tcp(way) => way.counts(),
            Kind::Udp(way) => way.counts(),
        }
    }
}
