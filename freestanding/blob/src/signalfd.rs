//! A signalfd for SIGSYS and SIGTRAP, and SIGSEGV where rdtsc is trapped.
//!
//! The kernel never holds any of them back for a program, so its own signalfd would never show one. Where a program asks for
//! a signalfd of no other signals it gets a datagram socket that is its own peer: the blob writes into it what a
//! signalfd would be read from, and poll, epoll and reads that block are the kernel's affair. What lies in the socket
//! still counts as pending until somebody has read it, so each look at pending signals takes it out and puts it back.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use diecast_core_syscalls::nr;

use crate::signals;
use crate::sys::{self, Ret, as_is};
use crate::{process, user};

const AF_UNIX: u64 = 1;
const SOCK_DGRAM: u64 = 2;
/// SFD_NONBLOCK and SFD_CLOEXEC, which are SOCK_NONBLOCK and SOCK_CLOEXEC too.
const FLAGS: u64 = 0x8_0800;
const MSG_DONTWAIT: u64 = 0x40;
const MSG_NOSIGNAL: u64 = 0x4000;
/// `struct signalfd_siginfo`.
const RECORD: u64 = 128;

#[inline(never)]
pub fn signalfd(number: u32, a: [u64; 6]) -> Ret {
    let flags = if number == nr::SIGNALFD4 { a[3] as u32 as u64 } else { 0 };
    let mask = if a[2] == 8 { user::get::<u64>(a[1]).unwrap_or(0) } else { 0 };
    let others = signals::strip(mask) & !signals::NEVER_MASKED;
    if signals::pack(mask) == 0 || others != 0 || flags & !FLAGS != 0 {
        return as_is(number, a);
    }
    let bits = signals::pack(mask);
    let fd = if a[0] as i32 == -1 { made(flags, bits) } else { changed(a[0] as u32, bits) };
    if fd == sys::EINVAL {
        return as_is(number, a);
    }
    let _still_pending = Look::begin();
    fd
}

/// Another set for one of ours; EINVAL where it is none.
#[inline(never)]
fn changed(fd: u32, bits: u32) -> Ret {
    let _put_anew = Look::begin();
    for (slot, inode) in process().own.signalfds.iter().zip(&process().own.signalfd_inodes) {
        if slot.load(Acquire) as u32 == fd + 1 && inode_of(fd) == inode.load(Relaxed) {
            slot.store((fd + 1) as u64 | (bits as u64) << 32, Release);
            return fd as Ret;
        }
    }
    sys::EINVAL
}

/// A new one; EINVAL where the process has as many as there can be.
#[inline(never)]
fn made(flags: u64, bits: u32) -> Ret {
    let own = &process().own;
    let is_free = |at: usize| own.signalfds.get(at).is_some_and(|slot| live(at, slot.load(Acquire)).is_none());
    let Some(at) = (0..own.signalfds.len()).find(|at| is_free(*at)) else { return sys::EINVAL };
    let fd = sys::own(sys::SOCKET, [AF_UNIX, SOCK_DGRAM | flags, 0, 0, 0, 0]);
    if fd < 0 {
        return fd;
    }
    let connected = connect_to_itself(fd as u64);
    if connected < 0 {
        sys::own(sys::CLOSE, [fd as u64, 0, 0, 0, 0, 0]);
        return connected;
    }
    if let (Some(slot), Some(inode)) = (own.signalfds.get(at), own.signalfd_inodes.get(at)) {
        inode.store(inode_of(fd as u32), Relaxed);
        slot.store((fd as u64 + 1) | (bits as u64) << 32, Release);
    }
    fd
}

/// The kernel gives it a name of its own choice, in the abstract space; nobody but itself may send to it then.
#[inline(never)]
fn connect_to_itself(fd: u64) -> Ret {
    let mut name = [AF_UNIX, 0, 0, 0];
    let mut len = 2u64;
    let mut r = sys::own(sys::BIND, [fd, &raw const name as u64, len, 0, 0, 0]);
    if r == 0 {
        len = size_of_val(&name) as u64;
        r = sys::own(sys::GETSOCKNAME, [fd, &raw mut name as u64, &raw mut len as u64, 0, 0, 0]);
    }
    if r == 0 {
        r = sys::own(sys::CONNECT, [fd, &raw const name as u64, len as u32 as u64, 0, 0, 0]);
    }
    r
}

#[inline(never)]
fn inode_of(fd: u32) -> u64 {
    // A `struct stat`. Not zeroed: for so much of it a function would be called that the image does not have.
    let mut stat = MaybeUninit::<[u64; 18]>::uninit();
    if sys::own(nr::FSTAT, [fd as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) != 0 {
        return 0;
    }
    // SAFETY: the kernel filled it; the inode is its second word.
    unsafe { stat.as_ptr().cast::<u64>().add(1).read() }
}

/// The descriptor of a slot and which signals it shows, where it is still the one that was made.
fn live(at: usize, slot: u64) -> Option<(u64, u32)> {
    let fd = (slot as u32).checked_sub(1)?;
    let inode = process().own.signalfd_inodes.get(at)?.load(Relaxed);
    (inode != 0 && inode_of(fd) == inode).then_some((fd as u64, (slot >> 32) as u32))
}

/// While it lives what lay in signalfds is pending and nowhere else, and no handler runs.
pub struct Look(Option<u64>);

impl Look {
    #[inline(never)]
    pub fn begin() -> Look {
        if process().own.signalfds.iter().all(|slot| slot.load(Relaxed) == 0) {
            return Look(None);
        }
        let mask = signals::set_kernel_mask(!0);
        take_back();
        Look(Some(mask))
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        if let Some(mask) = self.0 {
            post();
            signals::set_kernel_mask(mask);
        }
    }
}

/// What was read is pending no more.
#[inline(never)]
fn take_back() {
    let own = &process().own;
    let posted = own.posted.swap(0, AcqRel);
    let mut found = 0;
    for (at, slot) in own.signalfds.iter().enumerate() {
        let Some((fd, _)) = live(at, slot.load(Acquire)) else { continue };
        let mut record = [0u64; 16];
        while sys::own(sys::RECVFROM, [fd, &raw mut record as u64, RECORD, MSG_DONTWAIT, 0, 0]) == RECORD as Ret {
            found |= signals::pack(1 << ((record[0] as u32 & 63).max(1) - 1));
        }
    }
    own.pending.fetch_and(!(posted & !found), AcqRel);
}

#[inline(never)]
fn post() {
    let own = &process().own;
    for (at, slot) in own.signalfds.iter().enumerate() {
        let slot = slot.load(Acquire);
        let waiting = own.pending.load(Acquire) & !own.posted.load(Acquire) & (slot >> 32) as u32;
        if waiting == 0 {
            continue;
        }
        let Some((fd, _)) = live(at, slot) else { continue };
        for (i, info) in own.pending_info.iter().enumerate() {
            let bit = 1u32 << i;
            if waiting & bit != 0 && send(fd, info) {
                own.posted.fetch_or(bit, AcqRel);
            }
        }
    }
}

/// A `siginfo_t` as `struct signalfd_siginfo`: number and error, code and pid, uid, and the value of a queued signal.
#[inline(never)]
fn send(fd: u64, info: &[AtomicU64; 16]) -> bool {
    let [first, code, sender, value, ..] = info;
    let (code, sender) = (code.load(Relaxed), sender.load(Relaxed));
    let value = if (code as i32) < 0 { value.load(Relaxed) } else { 0 };
    let mut record = [0u64; 16];
    record[0] = first.load(Relaxed);
    record[1] = code as u32 as u64 | sender << 32;
    record[2] = sender >> 32;
    record[5] = value << 32;
    record[6] = value;
    let call = [fd, &raw const record as u64, RECORD, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0];
    sys::own(sys::SENDTO, call) == RECORD as Ret
}
