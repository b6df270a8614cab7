//! Instants that the kernel stamped with its own REALTIME: on objects of System V IPC and on packets.
//!
//! Registers do not show whether a received message carries a stamp. A process that asks for stamps gets a second
//! filter, which from then on sends its recvmsg and recvmmsg here; all others pay nothing.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{BLOB_ADDR, BLOB_LEN_MAX, TRAP_MAGIC};
use diecast_core_syscalls::nr;
use diecast_core_vtime::NS_PER_S;

use crate::filter::{ABOVE, ALLOW, AT_LEAST, EQUAL, IP_HIGH, IP_LOW, LOAD, NUMBER, RETURN, SET_MODE_FILTER, TRAP, op};
use crate::sys::{self, Ret, as_is};
use crate::user::{self, Timespec, Timeval};
use crate::{clock, process, waits};

/// Seconds of REALTIME at these offsets of a structure that the kernel has just filled; zero is never.
#[inline(always)]
fn seconds(number: u32, a: [u64; 6], out: u64, offsets: &[u64]) -> Ret {
    let r = as_is(number, a);
    if r < 0 {
        return r;
    }
    for at in offsets.iter().copied() {
        if let Ok(s) = user::get::<u64>(out.wrapping_add(at))
            && s != 0
        {
            let _ = user::put(out.wrapping_add(at), clock::then(s.saturating_mul(NS_PER_S)) / NS_PER_S);
        }
    }
    r
}

/// Last send, last receive, last change.
#[inline(never)]
pub fn msgctl(a: [u64; 6]) -> Ret {
    seconds(nr::MSGCTL, a, a[2], &[48, 56, 64])
}

/// Last operation, last change.
#[inline(never)]
pub fn semctl(a: [u64; 6]) -> Ret {
    seconds(nr::SEMCTL, a, a[3], &[48, 64])
}

/// Last attach, last detach, last change.
#[inline(never)]
pub fn shmctl(a: [u64; 6]) -> Ret {
    seconds(nr::SHMCTL, a, a[2], &[56, 64, 72])
}

fn timespec_then(addr: u64) {
    if let Ok(t) = user::get::<Timespec>(addr)
        && (t.sec != 0 || t.nsec != 0)
    {
        let _ = user::put(addr, clock::timespec(clock::then(clock::ns_of(t))));
    }
}

fn timeval_then(addr: u64) {
    if let Ok(t) = user::get::<Timeval>(addr)
        && (t.sec != 0 || t.usec != 0)
    {
        let ns = clock::then(clock::ns_of(Timespec { sec: t.sec, nsec: t.usec * 1000 }));
        let _ = user::put(addr, Timeval { sec: (ns / NS_PER_S) as i64, usec: (ns % NS_PER_S / 1000) as i64 });
    }
}

/// SIOCGSTAMP and SIOCGSTAMPNS, each in its old and its new number.
#[inline(never)]
pub fn ioctl(a: [u64; 6]) -> Ret {
    let r = as_is(nr::IOCTL, a);
    if r == 0 {
        if a[1] as u32 & 0xff == 6 { timeval_then(a[2]) } else { timespec_then(a[2]) }
    }
    r
}

/// The control messages of a received `struct msghdr`.
fn control(header: u64) {
    const SOL_SOCKET: u64 = 1;
    let (Ok(mut at), Ok(len)) = (user::get::<u64>(header.wrapping_add(32)), user::get::<u64>(header.wrapping_add(40)))
    else {
        return;
    };
    if at == 0 {
        return;
    }
    let end = at.saturating_add(len);
    while at.saturating_add(16) <= end {
        let (Ok(len), Ok(kind)) = (user::get::<u64>(at), user::get::<u64>(at + 8)) else { return };
        if len < 16 || len > end - at {
            return;
        }
        // Level in the lower half, type in the upper one. A stamp that was cut is left alone.
        match (kind as u32 as u64, kind >> 32, len - 16) {
            (SOL_SOCKET, 29 | 63, 16..) => timeval_then(at + 16),
            (SOL_SOCKET, 35 | 64, 16..) => timespec_then(at + 16),
            // Software, nothing, the device's own clock.
            (SOL_SOCKET, 37 | 65, 48..) => timespec_then(at + 16),
            _ => {}
        }
        at = at.saturating_add((len + 7) & !7);
    }
}

#[inline(never)]
pub fn recvmsg(a: [u64; 6]) -> Ret {
    let r = as_is(sys::RECVMSG, a);
    if r >= 0 {
        control(a[1]);
    }
    r
}

#[inline(never)]
pub fn recvmmsg(a: [u64; 6]) -> Ret {
    const HEADER_LEN: u64 = 64;
    let r = waits::recvmmsg(a);
    for i in 0..r.max(0) as u64 {
        control(a[1].wrapping_add(i * HEADER_LEN));
    }
    r
}

/// The options that make received messages carry stamps.
pub fn is_asking(option: u32) -> bool {
    matches!(option, 29 | 35 | 37 | 63..=65)
}

/// A packet may be stamped from the moment the option is set, so the filter comes first.
#[inline(never)]
pub fn ask(a: [u64; 6]) -> Ret {
    if user::get::<u32>(a[3]).is_ok_and(|on| on != 0) {
        watch();
    }
    as_is(nr::SETSOCKOPT, a)
}

/// Sends recvmsg and recvmmsg of all threads here.
fn watch() {
    const ALL_THREADS: u64 = 1;
    const EACCES: Ret = -13;
    const PR_SET_NO_NEW_PRIVS: u64 = 38;
    if process().inherited.stamped.swap(1, Relaxed) != 0 {
        return;
    }
    let low = BLOB_ADDR & 0xffff_ffff;
    let code = [
        op(LOAD, 0, 0, NUMBER),
        op(EQUAL, 1, 0, sys::RECVMSG as u64),
        op(EQUAL, 0, 5, nr::RECVMMSG as u64),
        // From inside the blob: allowed.
        op(LOAD, 0, 0, IP_HIGH),
        op(EQUAL, 0, 4, BLOB_ADDR >> 32),
        op(LOAD, 0, 0, IP_LOW),
        op(AT_LEAST, 0, 2, low),
        op(ABOVE, 1, 0, low + BLOB_LEN_MAX - 1),
        op(RETURN, 0, 0, ALLOW),
        op(RETURN, 0, 0, TRAP | TRAP_MAGIC as u64),
    ];
    let program = [code.len() as u64, &raw const code as u64];
    let install = |flags| sys::own(nr::SECCOMP, [SET_MODE_FILTER as u64, flags, &raw const program as u64, 0, 0, 0]);
    let mut r = install(ALL_THREADS);
    if r == EACCES {
        // What the kernel asks for without CAP_SYS_ADMIN.
        sys::own(nr::PRCTL, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0]);
        r = install(ALL_THREADS);
    }
    // Another thread has filters of its own: at least this one.
    if r != 0 {
        install(0);
    }
    core::hint::black_box(&code);
}
