//! Time namespaces: refused, as by a kernel that is built without them.
//!
//! Their offsets lie under the clocks that the blob itself reads, so a child in one would be hours ahead of its node: of
//! the ledger, of the emulator, and of whoever pauses the lab. Those who may not make one get the kernel's own refusal.

use diecast_core_syscalls::nr;

use crate::sched::is_capable;
use crate::sys::{self, EINVAL, Ret, as_is};

pub const CLONE_NEWTIME: u64 = 0x80;
const CLONE_NEWUSER: u64 = 0x1000_0000;

/// Whether the kernel would make a namespace: in a user namespace of its own everyone may.
pub fn are_made_by(flags: u64) -> bool {
    const SYS_ADMIN: u32 = 21;
    flags & CLONE_NEWTIME != 0 && (flags & CLONE_NEWUSER != 0 || is_capable(SYS_ADMIN))
}

#[inline(never)]
pub fn unshare(a: [u64; 6]) -> Ret {
    if are_made_by(a[0]) { EINVAL } else { as_is(nr::UNSHARE, a) }
}

/// Into another's: by a descriptor of any namespace with type 0 too, which the kernel is asked about.
#[inline(never)]
pub fn setns(a: [u64; 6]) -> Ret {
    const NS_GET_NSTYPE: u64 = 0xb703;
    let named = a[1] as u32 as u64;
    let is_time = match named {
        0 => sys::own(nr::IOCTL, [a[0], NS_GET_NSTYPE, 0, 0, 0, 0]) as u64 == CLONE_NEWTIME,
        _ => named & CLONE_NEWTIME != 0,
    };
    if is_time && are_made_by(CLONE_NEWTIME) { EINVAL } else { as_is(nr::SETNS, a) }
}
