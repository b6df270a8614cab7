//! The unsafe call of this crate, behind a safe function.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

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
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}
