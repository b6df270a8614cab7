//! TCP ways. Bytes of a connection are copied by two threads, one for each direction.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{THREAD, TRY_AGAIN, WayCounts, WayEnd};
use crate::error::HostNetError;

/// Connections of one way at one time; more are refused.
const CONNECTIONS_MAX: usize = 256;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const COPY_BYTES: usize = 64 << 10;

/// An open TCP way. Dropping it ends its connections.
#[derive(Debug)]
pub(super) struct TcpWay {
    shared: Arc<Shared>,
    listener: TcpListener,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    to: WayEnd,
    ended: AtomicBool,
    connections: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
    open: Mutex<Open>,
}

/// Both sockets of each connection, for ending it, and its thread.
#[derive(Debug, Default)]
struct Open {
    next: u64,
    sockets: BTreeMap<u64, Vec<TcpStream>>,
    threads: Vec<JoinHandle<()>>,
}

impl TcpWay {
    /// Listens at `from`; connections go to `to`.
    pub(super) fn open(from: &WayEnd, to: WayEnd) -> Result<TcpWay, HostNetError> {
        let listener =
            from.within(TcpListener::bind).map_err(|error| HostNetError::Listen { address: from.address, error })?;
        let address = listener.local_addr().map_err(|error| HostNetError::Listen { address: from.address, error })?;
        let shared = Arc::new(Shared {
            to,
            ended: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            open: Mutex::default(),
        });
        let accepting = listener.try_clone().map_err(|error| HostNetError::Listen { address: from.address, error })?;
        let for_thread = shared.clone();
        let thread = thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || accept(&accepting, &for_thread))
            .map_err(|error| HostNetError::Thread { name: THREAD, error })?;
        Ok(TcpWay { shared, listener, address, thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn counts(&self) -> WayCounts {
        let s = &self.shared;
        WayCounts {
            connections: s.connections.load(Ordering::Relaxed),
            datagrams: 0,
            refused: s.refused.load(Ordering::Relaxed),
            bytes: s.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for TcpWay {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts; it can't fail on a listening socket.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let threads = {
            let mut open = self.shared.open();
            open.sockets.values().flatten().for_each(end);
            std::mem::take(&mut open.threads)
        };
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// A connection that has ended by itself is ended all the same.
fn end(socket: &TcpStream) {
    let _ = socket.shutdown(Shutdown::Both);
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let accepted = listener.accept();
        if shared.ended.load(Ordering::Relaxed) {
            return;
        }
        match accepted {
            Ok((socket, _)) => {
                let for_thread = shared.clone();
                let mut open = shared.open();
                open.threads.retain(|t| !t.is_finished());
                let spawned = (open.threads.len() < CONNECTIONS_MAX)
                    .then(|| thread::Builder::new().name(THREAD.to_owned()).spawn(move || for_thread.serve(&socket)));
                match spawned {
                    Some(Ok(thread)) => open.threads.push(thread),
                    // The socket is closed, which the other side sees.
                    Some(Err(_)) | None => shared.count_refused(),
                }
            }
            Err(_) => thread::sleep(TRY_AGAIN),
        }
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Carries one connection to its end.
    fn serve(&self, socket: &TcpStream) {
        let connected = self.to.within(|address| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT));
        let Ok(other) = connected else { return self.count_refused() };
        let Some(ticket) = self.enter([socket, &other]) else { return };
        self.connections.fetch_add(1, Ordering::Relaxed);
        // A reply must not wait for the next one; the sockets work without it too.
        let _ = (socket.set_nodelay(true), other.set_nodelay(true));
        thread::scope(|s| {
            let back = thread::Builder::new().name(THREAD.to_owned()).spawn_scoped(s, || self.copy(&other, socket));
            match back {
                Ok(_) => self.copy(socket, &other),
                Err(_) => [socket, &other].into_iter().for_each(end),
            }
        });
        self.open().sockets.remove(&ticket);
    }

    /// Makes a connection known to whoever ends the way; `None` when it has ended.
    fn enter(&self, sockets: [&TcpStream; 2]) -> Option<u64> {
        let copies: io::Result<Vec<TcpStream>> = sockets.into_iter().map(TcpStream::try_clone).collect();
        let copies = copies.ok()?;
        let mut open = self.open();
        if self.ended.load(Ordering::Relaxed) {
            return None;
        }
        open.next += 1;
        let ticket = open.next;
        open.sockets.insert(ticket, copies);
        Some(ticket)
    }

    /// One direction, until its sender has no more. A side that breaks ends the other.
    fn copy(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) => {
                    // It may still answer.
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return [from, to].into_iter().for_each(end),
            };
            if to.write_all(&buffer[..count]).is_err() {
                return [from, to].into_iter().for_each(end);
            }
            self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_host(address: SocketAddr) -> WayEnd {
        WayEnd { netns: None, address }
    }

    fn any_port() -> SocketAddr {
        ([127, 0, 0, 1], 0).into()
    }

    /// A service that answers each connection with what it was sent, once its sender has no more.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind(any_port()).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                let mut all = Vec::new();
                if socket.read_to_end(&mut all).is_ok() {
                    let _ = socket.write_all(&all);
                }
            }
        });
        address
    }

    fn way_to(address: SocketAddr) -> (TcpWay, SocketAddr) {
        let way = TcpWay::open(&on_host(any_port()), on_host(address)).unwrap();
        let at = way.address();
        (way, at)
    }

    #[test]
    fn bytes_go_both_ways_and_are_counted() {
        let (way, at) = way_to(echo());
        let sent = vec![7; 300_000];
        for _ in 0..3 {
            let mut socket = TcpStream::connect(at).unwrap();
            socket.write_all(&sent).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
            let mut back = Vec::new();
            socket.read_to_end(&mut back).unwrap();
            assert_eq!(back, sent);
        }
        assert_eq!(way.counts(), WayCounts { connections: 3, datagrams: 0, refused: 0, bytes: 3 * 2 * 300_000 });
    }

    #[test]
    fn nobody_at_the_other_end_is_a_closed_connection() {
        let gone = TcpListener::bind(any_port()).unwrap().local_addr().unwrap();
        let (way, at) = way_to(gone);
        let mut socket = TcpStream::connect(at).unwrap();
        assert!(matches!(socket.read(&mut [0; 8]), Ok(0) | Err(_)));
        assert_eq!((way.counts().connections, way.counts().refused), (0, 1));
    }

    #[test]
    fn a_dropped_way_ends_its_connections_and_frees_its_port() {
        let (way, at) = way_to(echo());
        let mut socket = TcpStream::connect(at).unwrap();
        socket.write_all(b"half a question").unwrap();
        while way.counts().bytes == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        drop(way);
        assert!(matches!(socket.read(&mut [0; 8]), Ok(0) | Err(_)));
        TcpListener::bind(at).unwrap();
    }
}
