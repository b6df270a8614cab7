//! Installing the filter, and the supervisor's side of its user notifications.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::{Tid, check, process};

const SET_MODE_FILTER: libc::c_ulong = 1;
const FLAG_NEW_LISTENER: libc::c_ulong = 1 << 3;
const FLAG_WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;
const IOCTL_RECV: libc::c_ulong = 0xc050_2100;
const IOCTL_SEND: libc::c_ulong = 0xc018_2101;
const IOCTL_ADDFD: libc::c_ulong = 0x4018_2103;
const FLAG_CONTINUE: u32 = 1;

/// Installs a filter (bytes of an array of `struct sock_filter`) on the calling thread and returns the
/// listener of its notifications. Only plain system calls, so that it can be used between fork and exec.
pub fn install(filter: &[u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Fprog {
        len: u16,
        filter: *const u8,
    }
    let prog = Fprog { len: (filter.len() / 8) as u16, filter: filter.as_ptr() };
    for flags in [FLAG_NEW_LISTENER | FLAG_WAIT_KILLABLE_RECV, FLAG_NEW_LISTENER] {
        // SAFETY: `prog` points at `len` instructions that live during the call.
        let r = unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const prog) };
        match check(r) {
            // SAFETY: the kernel returned a new descriptor that nobody else owns.
            Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && flags & FLAG_WAIT_KILLABLE_RECV != 0 => continue,
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EINVAL))
}

/// As [`install`]. Who lacks CAP_SYS_ADMIN, root or not, gives up new privileges for it: the kernel demands one of the
/// two (EACCES), so that no program with more privileges than its caller runs under a caller's filter.
pub fn install_with_or_without_privilege(filter: &[u8]) -> io::Result<OwnedFd> {
    match install(filter) {
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => {
            process::set_no_new_privs()?;
            install(filter)
        }
        done => done,
    }
}

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    pub nr: i32,
    pub arch: u32,
    pub ip: u64,
    pub args: [u64; 6],
}

/// Length of the `syscall` instruction: the call is made again from so far before [`Notification::ip`].
pub const SYSCALL_LEN: u64 = 2;

impl Notification {
    /// The thread that waits.
    pub fn tid(&self) -> Tid {
        Tid(self.pid as i32)
    }
}

#[repr(C)]
struct Response {
    id: u64,
    val: i64,
    error: i32,
    flags: u32,
}

#[repr(C)]
struct AddFd {
    id: u64,
    flags: u32,
    srcfd: u32,
    newfd: u32,
    newfd_flags: u32,
}

/// The next notification. ENOENT: the caller died meanwhile.
pub fn receive(listener: &OwnedFd) -> io::Result<Notification> {
    let mut n = Notification::default();
    // SAFETY: the kernel fills one `struct seccomp_notif`, 80 bytes, all zero before as it demands.
    check(i64::from(unsafe { libc::ioctl(listener.as_raw_fd(), IOCTL_RECV, &raw mut n) }))?;
    Ok(n)
}

fn respond(listener: &OwnedFd, r: &Response) -> io::Result<()> {
    // SAFETY: the kernel reads one `struct seccomp_notif_resp`, 24 bytes.
    check(i64::from(unsafe { libc::ioctl(listener.as_raw_fd(), IOCTL_SEND, std::ptr::from_ref(r)) })).map(|_| ())
}

/// Lets the call go on as if there were no filter.
pub fn let_continue(listener: &OwnedFd, n: &Notification) -> io::Result<()> {
    respond(listener, &Response { id: n.id, val: 0, error: 0, flags: FLAG_CONTINUE })
}

/// Makes the call fail with this errno.
pub fn fail(listener: &OwnedFd, n: &Notification, errno: i32) -> io::Result<()> {
    respond(listener, &Response { id: n.id, val: 0, error: -errno, flags: 0 })
}

/// Has the call made again, after what waits for the thread on its way back has been delivered.
pub fn make_again(listener: &OwnedFd, n: &Notification) -> io::Result<()> {
    const ERESTARTSYS: i32 = 512;
    fail(listener, n, ERESTARTSYS)
}

/// Makes the call return this value, without being made.
pub fn answer(listener: &OwnedFd, n: &Notification, value: i64) -> io::Result<()> {
    respond(listener, &Response { id: n.id, val: value, error: 0, flags: 0 })
}

/// Puts a copy of `fd` into the waiting process, not close-on-exec, and returns its number there.
pub fn add_fd(listener: &OwnedFd, n: &Notification, fd: &OwnedFd) -> io::Result<i32> {
    let a = AddFd { id: n.id, flags: 0, srcfd: fd.as_raw_fd() as u32, newfd: 0, newfd_flags: 0 };
    // SAFETY: the kernel reads one `struct seccomp_notif_addfd`, 24 bytes.
    check(i64::from(unsafe { libc::ioctl(listener.as_raw_fd(), IOCTL_ADDFD, &raw const a) })).map(|r| r as i32)
}
