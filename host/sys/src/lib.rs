//! Linux as types: seccomp notifications, ptrace, perf events, shared memory, descriptors over sockets.
//!
//! Every unsafe block of the supervisor's side is in this crate. Above it nobody holds a raw address or a raw
//! thread id of another process: they hold a [`ptrace::Stopped`], a [`seccomp::Notification`], a [`GuestPtr`].

pub mod idle;
pub mod memory;
pub mod perf;
pub mod process;
pub mod ptrace;
pub mod seccomp;
pub mod socket;
pub mod time;
pub mod trap;
pub mod vdso;

use std::io;

/// An address in another process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GuestPtr(pub u64);

/// A thread id as this process sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tid(pub i32);

/// Turns the C convention (-1 and errno) into a result.
fn check(r: i64) -> io::Result<i64> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r) }
}
