//! SIGTRAP that one thread of a process sends to another by name, in a metered node.
//!
//! Of two SIGTRAPs that wait for one thread Linux keeps the first: what is sent while a hit of the meter is on its way, a
//! microsecond of each grain, would be lost. So the sender notes it at the receiver's slot, the receiver forgets it when a
//! SIGTRAP comes that is no hit, and a hit that finds a note and no SIGTRAP waiting sends it once more.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use diecast_core_abi::ThreadSlot;
use diecast_core_syscalls::nr;

use crate::signals::{SIGTRAP, SIGTRAP_BIT};
use crate::sys::{self, as_is};
use crate::{node, process};

/// What a slot holds: the sender's process, since numbers of threads are used again, and in its last two bits one of these.
const NONE: u64 = 0;
const SENDING: u64 = 1;
const SENT: u64 = 2;

fn note(state: u64) -> u64 {
    process().lineage.load(Relaxed) << 2 | state
}

fn cell(tid: u64) -> Option<&'static AtomicU64> {
    node().slot(tid as u32).map(|s| &s.trap)
}

/// tkill and tgkill of SIGTRAP.
#[inline(never)]
pub fn send(nr: u32, a: [u64; 6]) -> sys::Ret {
    let pid = sys::own(sys::GETPID, [0; 6]) as u64;
    let tid = if nr == nr::TKILL { a[0] } else { a[1] } as i32 as u64;
    let is_other = tid != sys::gettid() as u64 && sys::own(nr::TGKILL, [pid, tid, 0, 0, 0, 0]) == 0;
    let Some(cell) = cell(tid).filter(|_| is_other && node().metered.load(Relaxed) != 0) else {
        return as_is(nr, a);
    };
    cell.store(note(SENDING), SeqCst);
    let r = as_is(nr, a);
    // A receiver that got it meanwhile has forgotten it.
    let then = if r == 0 { note(SENT) } else { NONE };
    let _ = cell.compare_exchange(note(SENDING), then, SeqCst, SeqCst);
    r
}

/// A SIGTRAP that is no hit has come, or was taken.
pub fn came() {
    if let Some(cell) = cell(sys::gettid() as u64)
        && cell.load(Relaxed) != NONE
    {
        cell.store(NONE, SeqCst);
    }
}

/// At the end of a hit of the thread whose slot this is, which blocks SIGTRAP: was one lost?
pub fn look(slot: &ThreadSlot) {
    let cell = &slot.trap;
    // The note stays until it has come: a hit that is raised right now would take its place.
    if cell.load(Relaxed) == note(SENT) && sys::pending() & SIGTRAP_BIT == 0 {
        again();
    }
}

#[inline(never)]
fn again() {
    const SI_TKILL: u64 = -6i32 as u32 as u64;
    let (pid, uid) = (sys::own(sys::GETPID, [0; 6]) as u64, sys::own(sys::GETUID, [0; 6]) as u64);
    let info = [SIGTRAP, SI_TKILL, pid | uid << 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    sys::queue_here(&info);
}
