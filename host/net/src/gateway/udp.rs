//! UDP ways: a flow is what one address sends and is answered, through a socket of its own at the other end.
//!
//! One thread carries all flows of a way.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::{THREAD, TRY_AGAIN, WayCounts, WayEnd};
use crate::error::HostNetError;

/// Flows of one way at one time; datagrams that would begin more are not carried.
const FLOWS_MAX: usize = 256;
/// Datagrams of one socket in a row, so that none keeps the others from their turn.
const IN_A_ROW: usize = 64;
/// More than any datagram.
const BUFFER_BYTES: usize = 64 << 10;

/// An open UDP way. Dropping it ends its flows.
#[derive(Debug)]
pub(super) struct UdpWay {
    counts: Arc<Counts>,
    address: SocketAddr,
    /// Readable when the way is over.
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    flows: AtomicU64,
    datagrams: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
}

impl Counts {
    fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// What came of handing a datagram on.
    fn sent(&self, sent: &io::Result<usize>) {
        match sent {
            Ok(bytes) => {
                self.datagrams.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(*bytes as u64, Ordering::Relaxed);
            }
            Err(_) => self.refused(),
        }
    }
}

#[derive(Debug)]
struct Flow {
    socket: UdpSocket,
    used: Instant,
}

impl UdpWay {
    /// Receives at `from`; what comes is sent to `to`. A flow ends when nothing of it came for `idle`.
    pub(super) fn open(from: &WayEnd, to: WayEnd, idle: Duration) -> Result<UdpWay, HostNetError> {
        let refused = |error| HostNetError::Listen { address: from.address, error };
        let socket = from.within(UdpSocket::bind).map_err(refused)?;
        socket.set_nonblocking(true).map_err(refused)?;
        let address = socket.local_addr().map_err(refused)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| refused(e.into()))?;
        let (counts, end) = (Arc::new(Counts::default()), Arc::new(end));
        let carrier = Carrier { socket, to, idle, counts: counts.clone(), end: end.clone(), flows: BTreeMap::new() };
        let thread = thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || carrier.carry())
            .map_err(|error| HostNetError::Thread { name: THREAD, error })?;
        Ok(UdpWay { counts, address, end, thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn counts(&self) -> WayCounts {
        let c = &self.counts;
        WayCounts {
            connections: c.flows.load(Ordering::Relaxed),
            datagrams: c.datagrams.load(Ordering::Relaxed),
            refused: c.refused.load(Ordering::Relaxed),
            bytes: c.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for UdpWay {
    fn drop(&mut self) {
        // An eventfd of 0 takes a 1.
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread of a way owns.
struct Carrier {
    socket: UdpSocket,
    to: WayEnd,
    idle: Duration,
    counts: Arc<Counts>,
    end: Arc<OwnedFd>,
    /// By the address that began each.
    flows: BTreeMap<SocketAddr, Flow>,
}

impl Carrier {
    fn carry(mut self) {
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Some(ready) = self.wait() {
            for peer in ready.flows {
                self.answer(peer, &mut buffer);
            }
            if ready.listener {
                self.ask(&mut buffer);
            }
            let now = Instant::now();
            self.flows.retain(|_, flow| now.duration_since(flow.used) < self.idle);
        }
    }

    /// Until something can be read or a flow has been idle; `None` when the way is over.
    fn wait(&self) -> Option<Ready> {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let own = [self.end.as_fd(), self.socket.as_fd()];
        let sockets = self.flows.values().map(|flow| flow.socket.as_fd());
        let mut fds: Vec<PollFd<'_>> = own.into_iter().chain(sockets).map(readable).collect();
        let oldest = self.flows.values().map(|flow| flow.used).min();
        let left = oldest.map(|used| (used + self.idle).saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| left.try_into().ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Nothing that this set of sockets meets is helped by trying at once.
            Err(_) => thread::sleep(TRY_AGAIN),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if is_ready(&fds[0]) {
            return None;
        }
        let flows = self.flows.keys().zip(&fds[2..]).filter(|(_, fd)| is_ready(fd)).map(|(peer, _)| *peer);
        Some(Ready { listener: is_ready(&fds[1]), flows: flows.collect() })
    }

    /// Datagrams of whoever asks.
    fn ask(&mut self, buffer: &mut [u8]) {
        for _ in 0..IN_A_ROW {
            let (size, peer) = match self.socket.recv_from(buffer) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // What an answer met on its way.
                Err(_) => {
                    self.counts.refused();
                    continue;
                }
            };
            match self.flow_of(peer) {
                Some(flow) => {
                    flow.used = Instant::now();
                    let sent = flow.socket.send(&buffer[..size]);
                    self.counts.sent(&sent);
                }
                None => self.counts.refused(),
            }
        }
    }

    fn flow_of(&mut self, peer: SocketAddr) -> Option<&mut Flow> {
        if !self.flows.contains_key(&peer) {
            if self.flows.len() >= FLOWS_MAX {
                return None;
            }
            let socket = self.to.within(connected).ok()?;
            self.counts.flows.fetch_add(1, Ordering::Relaxed);
            self.flows.insert(peer, Flow { socket, used: Instant::now() });
        }
        self.flows.get_mut(&peer)
    }

    /// Datagrams of the other end, to whoever began the flow.
    fn answer(&mut self, peer: SocketAddr, buffer: &mut [u8]) {
        let Some(flow) = self.flows.get_mut(&peer) else { return };
        for _ in 0..IN_A_ROW {
            match flow.socket.recv(buffer) {
                Ok(size) => {
                    flow.used = Instant::now();
                    self.counts.sent(&self.socket.send_to(&buffer[..size], peer));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Nobody listens there: the datagram before was counted as carried, this is its answer.
                Err(_) => self.counts.refused(),
            }
        }
    }
}

struct Ready {
    listener: bool,
    flows: Vec<SocketAddr>,
}

/// A socket at any port that hears this address only.
fn connected(address: SocketAddr) -> io::Result<UdpSocket> {
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);
    const WAIT: Duration = Duration::from_secs(10);

    fn socket() -> UdpSocket {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(WAIT)).unwrap();
        socket
    }

    fn way_to(address: SocketAddr, idle: Duration) -> UdpWay {
        let end = |address| WayEnd { netns: None, address };
        UdpWay::open(&end((Ipv4Addr::LOCALHOST, 0).into()), end(address), idle).unwrap()
    }

    fn until(counted: impl Fn() -> bool) {
        let begin = Instant::now();
        while !counted() {
            assert!(begin.elapsed() < WAIT);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Two askers at once: each gets its own answers, of every size that a datagram may have.
    #[test]
    fn datagrams_go_both_ways_whole_and_are_counted() {
        let service = socket();
        let way = way_to(service.local_addr().unwrap(), IDLE);
        let askers = [socket(), socket()];
        let mut bytes = 0;
        for size in [0, 1, 1473, 65_507] {
            for (i, asker) in askers.iter().enumerate() {
                asker.send_to(&vec![i as u8; size], way.address()).unwrap();
            }
            for _ in &askers {
                let mut buffer = vec![9; 70_000];
                let (got, from) = service.recv_from(&mut buffer).unwrap();
                assert_eq!(got, size);
                service.send_to(&buffer[..got], from).unwrap();
            }
            for (i, asker) in askers.iter().enumerate() {
                let mut buffer = vec![9; 70_000];
                let (got, from) = asker.recv_from(&mut buffer).unwrap();
                assert_eq!((got, from), (size, way.address()));
                assert!(buffer[..got].iter().all(|b| *b == i as u8));
            }
            bytes += 4 * size as u64;
        }
        until(|| way.counts().datagrams == 16);
        assert_eq!(way.counts(), WayCounts { connections: 2, datagrams: 16, refused: 0, bytes });
    }

    #[test]
    fn nobody_at_the_other_end_is_counted() {
        // Its port stays taken, but what others send is refused: it hears one only.
        let gone = socket();
        gone.connect("127.0.0.1:9").unwrap();
        let way = way_to(gone.local_addr().unwrap(), IDLE);
        socket().send_to(b"hello", way.address()).unwrap();
        until(|| way.counts().refused == 1);
        assert_eq!(way.counts().connections, 1);
    }

    /// A flow that was idle makes room; until then what would begin one too many is not carried.
    #[test]
    fn the_table_of_flows_is_bounded_and_forgets() {
        let service = socket();
        let idle = Duration::from_secs(2);
        let way = way_to(service.local_addr().unwrap(), idle);
        let askers: Vec<UdpSocket> = (0..=FLOWS_MAX).map(|_| socket()).collect();
        let last = askers.last().unwrap();
        for asker in &askers[..FLOWS_MAX] {
            asker.send_to(b"x", way.address()).unwrap();
            service.recv(&mut [0; 8]).unwrap();
        }
        last.send_to(b"x", way.address()).unwrap();
        until(|| way.counts().refused == 1);
        assert_eq!(way.counts().connections, FLOWS_MAX as u64);
        // The first goes on being used, the others do not.
        let begin = Instant::now();
        while begin.elapsed() < idle + idle / 4 {
            askers[0].send_to(b"x", way.address()).unwrap();
            service.recv(&mut [0; 8]).unwrap();
            thread::sleep(idle / 20);
        }
        last.send_to(b"late", way.address()).unwrap();
        let mut got = [0; 8];
        assert_eq!(service.recv(&mut got).unwrap(), 4);
        until(|| way.counts().connections == FLOWS_MAX as u64 + 1);
        assert_eq!(way.counts().refused, 1);
    }

    #[test]
    fn a_dropped_way_frees_its_port() {
        let way = way_to(socket().local_addr().unwrap(), IDLE);
        let at = way.address();
        assert!(UdpSocket::bind(at).is_err());
        drop(way);
        UdpSocket::bind(at).unwrap();
    }
}
