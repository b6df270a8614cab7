//! The unsafe calls of this crate, each behind a safe function.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `struct ifreq` as TUNSETIFF reads it.
#[repr(C)]
struct IfReq {
    name: [u8; libc::IFNAMSIZ],
    flags: i16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<IfReq>() == size_of::<libc::ifreq>());

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes `tun`, an open /dev/net/tun, the TAP device `name` of the caller's network namespace: no packet
/// information, a virtio header before each frame or none.
pub(crate) fn tap_attach(tun: BorrowedFd<'_>, name: &str, header: bool) -> io::Result<()> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let header = if header { libc::IFF_VNET_HDR } else { 0 };
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI | header) as i16;
    let mut request = IfReq { name: [0; libc::IFNAMSIZ], flags, rest: [0; 22] };
    request.name[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: TUNSETIFF reads and writes one ifreq; `request` has that size (asserted above) and outlives the call.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as libc::Ioctl, &raw mut request) })
}

/// Switches every offload off: frames read are at most MTU-sized and carry valid checksums.
pub(crate) fn tap_no_offload(tun: BorrowedFd<'_>) -> io::Result<()> {
    set_offload(tun, 0)
}

/// Has frames come with checksums to fill in and segments to cut: of TCP, and of UDP from Linux 6.2 on.
pub(crate) fn tap_offload(tun: BorrowedFd<'_>) -> io::Result<()> {
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    set_offload(tun, tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6).or_else(|_| set_offload(tun, tcp))
}

fn set_offload(tun: BorrowedFd<'_>, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD as libc::Ioctl, libc::c_ulong::from(flags)) })
}

/// Whether frames of this TAP device come with a virtio header.
pub(crate) fn tap_has_header(tap: BorrowedFd<'_>) -> io::Result<bool> {
    let mut request = IfReq { name: [0; libc::IFNAMSIZ], flags: 0, rest: [0; 22] };
    // SAFETY: TUNGETIFF writes one ifreq; `request` has that size (asserted above) and outlives the call.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNGETIFF as libc::Ioctl, &raw mut request) })?;
    Ok(libc::c_int::from(request.flags) & libc::IFF_VNET_HDR != 0)
}

/// From `linux/if_tun.h`: a descriptor of the namespace that a TAP device is in.
const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;

/// The network namespace that a TAP device is in.
pub(crate) fn tap_netns(tap: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: TUNGETDEVNETNS takes no argument.
    let fd = unsafe { libc::ioctl(tap.as_raw_fd(), TUNGETDEVNETNS) };
    check(fd)?;
    // SAFETY: the call has made this descriptor for its caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Moves the calling thread into a new network namespace. Call it on a thread of its own.
pub(crate) fn unshare_net() -> io::Result<()> {
    // SAFETY: CLONE_NEWNET changes nothing but the calling thread's network namespace; no memory, file
    // descriptor or signal state is unshared.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// SCHED_FIFO for the calling thread; threads it starts begin at normal priority.
pub(crate) fn set_fifo(priority: i32) -> io::Result<()> {
    set_policy(0, libc::SCHED_FIFO, priority)
}

/// A scheduling policy for a thread by its kernel id, 0 for the calling one; threads it starts begin at normal priority.
pub(crate) fn set_policy(thread: i32, policy: libc::c_int, priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: `param` is a valid sched_param that outlives the call; a thread that is gone is an error.
    check(unsafe { libc::sched_setscheduler(thread, policy | libc::SCHED_RESET_ON_FORK, &raw const param) })
}

/// Blocks every signal in the calling thread, so that the process's handlers run elsewhere.
pub(crate) fn block_signals() {
    // SAFETY: sigfillset initialises the set before pthread_sigmask reads it; a null old set is allowed.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

/// The cookie of the network namespace that a socket belongs to: never 0, never used again while the host is up.
pub(crate) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: SO_NETNS_COOKIE writes at most `length` bytes to `cookie`, which has that size; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    check(result).map(|()| cookie)
}
