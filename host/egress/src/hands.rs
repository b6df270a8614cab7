//! What threads hand on within their nodes, as the programs tell it (`hands.h`).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use diecast_core_cpu::{Sent, Then};
use diecast_core_vtime::RealNs;
use diecast_host_net::{TRAILER_BYTES, thread_of};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use rustix::event::{EventfdFlags, epoll, eventfd};

/// `struct handed` of the programs: a node's cookie, who was woken, whether the thread has ended, then a trailer.
const RECORD_BYTES: usize = 16 + TRAILER_BYTES;

/// A thread has woken another of its node, blocks, or has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handed {
    /// Of the node, as `add_node` gave it.
    pub cookie: u64,
    /// What the thread had used by then.
    pub by: Sent,
    /// What it did.
    pub then: Then,
}

/// What was read and is not taken yet, by node.
type Read = BTreeMap<u64, VecDeque<Handed>>;

/// The ring, and what was read of it.
pub(crate) struct Hands {
    /// An epoll set of the ring and of `left`.
    readable: OwnedFd,
    /// An eventfd: something was read and left. Whether that was told through it: no packet is to cost a system call.
    left: OwnedFd,
    left_told: AtomicBool,
    /// Watched by `readable`.
    _map: MapHandle,
    ring: Mutex<RingBuffer<'static>>,
    read: Arc<Mutex<Read>>,
}

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands").finish_non_exhaustive()
    }
}

impl Hands {
    pub fn new(map: MapHandle) -> libbpf_rs::Result<Hands> {
        let read = Arc::new(Mutex::new(Read::new()));
        let into = read.clone();
        let mut rings = RingBufferBuilder::new();
        rings.add(&map, move |record| {
            if let Some(handed) = parse(record) {
                let mut read = into.lock().unwrap_or_else(PoisonError::into_inner);
                read.entry(handed.cookie).or_default().push_back(handed);
            }
            0
        })?;
        let ring = rings.build()?;
        let (readable, left) = watched(&map).map_err(io::Error::from)?;
        Ok(Hands { readable, left, left_told: AtomicBool::new(false), _map: map, ring: Mutex::new(ring), read })
    }

    /// What came up to that instant, of one node or of all, in the order of each; whether there was anything, or may be: nothing is
    /// taken where somebody else is at it.
    pub fn take(&self, cookie: Option<u64>, until: RealNs, mut each: impl FnMut(&Handed)) -> bool {
        let ring = match self.ring.try_lock() {
            Ok(ring) => ring,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return true,
        };
        if self.left_told.swap(false, Relaxed) {
            let _ = rustix::io::read(&self.left, &mut [0; 8]);
        }
        // Whatever it could not read comes with the next.
        let _ = ring.consume_raw();
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let mut any = false;
        for (_, of_node) in read.iter_mut().filter(|(node, _)| cookie.is_none_or(|cookie| cookie == **node)) {
            while let Some(handed) = of_node.front().copied().filter(|handed| handed.by.at <= until) {
                of_node.pop_front();
                any = true;
                each(&handed);
            }
        }
        any
    }

    /// What is not taken yet of a node, in order.
    pub fn peek(&self, cookie: u64) -> Vec<Handed> {
        // Held to the end: who takes it has no time to wait.
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = ring.consume_raw();
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        // The ring says no more that there is some.
        if read.values().any(|of_node| !of_node.is_empty()) && !self.left_told.swap(true, Relaxed) {
            let _ = rustix::io::write(&self.left, &1u64.to_ne_bytes());
        }
        read.get(&cookie).into_iter().flatten().copied().collect()
    }

    /// Readable now and then while there is something to take.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

/// What is readable where the ring is or an eventfd, and that eventfd.
fn watched(map: &MapHandle) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let left = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let readable = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in [map.as_fd(), left.as_fd()] {
        epoll::add(&readable, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok((readable, left))
}

fn parse(record: &[u8]) -> Option<Handed> {
    let record: &[u8; RECORD_BYTES] = record.first_chunk()?;
    let (cookie, rest) = record.split_first_chunk()?;
    let (to, rest) = rest.split_first_chunk()?;
    let (ended, rest) = rest.split_first_chunk()?;
    let by = thread_of(rest.first_chunk()?)?;
    let then = match (u32::from_ne_bytes(*to), u32::from_ne_bytes(*ended)) {
        (0, 0) => Then::Blocks,
        (0, _) => Then::Ends,
        (to, _) => Then::Wakes(to),
    };
    Some(Handed { cookie: u64::from_ne_bytes(*cookie), by, then })
}
