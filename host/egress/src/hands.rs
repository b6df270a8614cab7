//! What threads hand on within their nodes, as the programs tell it (`hands.h`).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use diecast_core_cpu::Sent;
use diecast_host_net::{TRAILER_BYTES, thread_of};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

/// `struct handed` of the programs: a node's cookie, who was woken, padding, then a trailer.
const RECORD_BYTES: usize = 16 + TRAILER_BYTES;

/// A thread has woken another of its node, or blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handed {
    /// Of the node, as `add_node` gave it.
    pub cookie: u64,
    /// What the thread had used by then.
    pub by: Sent,
    /// Who was woken, by its id in its innermost pid namespace; none where the thread blocks.
    pub to: Option<u32>,
}

/// The ring, and what was read of it.
pub(crate) struct Hands {
    map: MapHandle,
    ring: Mutex<RingBuffer<'static>>,
    read: Arc<Mutex<Vec<Handed>>>,
}

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands").finish_non_exhaustive()
    }
}

impl Hands {
    pub fn new(map: MapHandle) -> libbpf_rs::Result<Hands> {
        let read = Arc::new(Mutex::new(Vec::new()));
        let into = read.clone();
        let mut rings = RingBufferBuilder::new();
        rings.add(&map, move |record| {
            into.lock().unwrap_or_else(PoisonError::into_inner).extend(parse(record));
            0
        })?;
        let ring = rings.build()?;
        Ok(Hands { map, ring: Mutex::new(ring), read })
    }

    /// What came since, in order. Nothing where somebody else is at it.
    pub fn take(&self, mut each: impl FnMut(&Handed)) {
        let Ok(ring) = self.ring.try_lock() else { return };
        // Whatever it could not read comes with the next.
        let _ = ring.consume_raw();
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.drain(..).for_each(|handed| each(&handed));
    }

    /// Readable now and then while there is something to take.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

fn parse(record: &[u8]) -> Option<Handed> {
    let record: &[u8; RECORD_BYTES] = record.first_chunk()?;
    let (cookie, rest) = record.split_first_chunk()?;
    let (to, rest) = rest.split_first_chunk()?;
    let by = thread_of(rest.last_chunk()?)?;
    let to = Some(u32::from_ne_bytes(*to)).filter(|to| *to != 0);
    Some(Handed { cookie: u64::from_ne_bytes(*cookie), by, to })
}
