//! When cores were kept from a lab in which nobody is metered, as the programs tell it (`stalls.h`).

use std::sync::{Arc, Mutex, PoisonError};

use diecast_core_vtime::RealNs;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

/// `struct stall` of the programs: from, to, core, padding, name.
const RECORD_BYTES: usize = 24 + NAME_BYTES;
const NAME_BYTES: usize = 16;

/// For so long a core was somebody else's: at least 100 µs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stall {
    /// Which.
    pub core: u32,
    /// Since when. Where nothing was seen to have the core, that may be up to 4 ms earlier (a tick of the kernel), or more where
    /// the core had nothing to do.
    pub from: RealNs,
    /// Until when.
    pub to: RealNs,
    /// Name of the thread that had it, neither the lab's nor ours; none where the core stood still, as one that a hypervisor takes.
    pub by: Option<String>,
}

/// The ring, and what was read of it.
pub(crate) struct Stalls {
    ring: Mutex<RingBuffer<'static>>,
    read: Arc<Mutex<Vec<Stall>>>,
}

impl std::fmt::Debug for Stalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stalls").finish_non_exhaustive()
    }
}

impl Stalls {
    pub fn new(map: &MapHandle) -> libbpf_rs::Result<Stalls> {
        let read = Arc::new(Mutex::new(Vec::new()));
        let into = read.clone();
        let mut rings = RingBufferBuilder::new();
        rings.add(map, move |record| {
            into.lock().unwrap_or_else(PoisonError::into_inner).extend(parse(record));
            0
        })?;
        Ok(Stalls { ring: Mutex::new(rings.build()?), read })
    }

    /// What came since this was last asked, in order of its end on each core.
    pub fn take(&self) -> Vec<Stall> {
        // Whatever it could not read comes with the next.
        let _ = self.ring.lock().unwrap_or_else(PoisonError::into_inner).consume_raw();
        std::mem::take(&mut *self.read.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn parse(record: &[u8]) -> Option<Stall> {
    let record: &[u8; RECORD_BYTES] = record.first_chunk()?;
    let word = |at: usize| Some(u64::from_ne_bytes(*record[at..].first_chunk()?));
    let core = u32::from_ne_bytes(*record[16..].first_chunk()?);
    let name: Vec<u8> = record[24..].iter().copied().take_while(|byte| *byte != 0).collect();
    let by = Some(String::from_utf8_lossy(&name).into_owned()).filter(|name| !name.is_empty());
    Some(Stall { core, from: RealNs(word(0)?), to: RealNs(word(8)?), by })
}
