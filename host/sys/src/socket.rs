//! Descriptors over Unix sockets, and options of sockets as bytes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::check;

/// A connected pair of SOCK_SEQPACKET sockets, close-on-exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    check(i64::from(unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr())
    }))?;
    // SAFETY: two new descriptors that nobody else owns.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends a short message with one descriptor. No allocation: usable between fork and exec.
pub fn send_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>, message: &[u8]) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let mut control = Control([0; 64]);
    // SAFETY: zero is a valid msghdr.
    let mut m: libc::msghdr = unsafe { std::mem::zeroed() };
    m.msg_iov = &raw mut iov;
    m.msg_iovlen = 1;
    m.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the control buffer is aligned and larger than CMSG_SPACE(4).
    unsafe {
        m.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let c = libc::CMSG_FIRSTHDR(&raw const m);
        (*c).cmsg_level = libc::SOL_SOCKET;
        (*c).cmsg_type = libc::SCM_RIGHTS;
        (*c).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(c).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        check(libc::sendmsg(socket.as_raw_fd(), &raw const m, libc::MSG_NOSIGNAL) as i64)?;
    }
    Ok(())
}

/// Receives a message and the descriptor it carries, if any. An empty message is the other end closed.
pub fn recv_fd(socket: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut control = Control([0; 64]);
    // SAFETY: zero is a valid msghdr.
    let mut m: libc::msghdr = unsafe { std::mem::zeroed() };
    m.msg_iov = &raw mut iov;
    m.msg_iovlen = 1;
    m.msg_control = control.0.as_mut_ptr().cast();
    m.msg_controllen = 64;
    // SAFETY: all buffers are live; a received descriptor is new and ours.
    unsafe {
        let n = check(libc::recvmsg(socket.as_raw_fd(), &raw mut m, libc::MSG_CMSG_CLOEXEC) as i64)?;
        let c = libc::CMSG_FIRSTHDR(&raw const m);
        let fd = if !c.is_null() && (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
            Some(OwnedFd::from_raw_fd(libc::CMSG_DATA(c).cast::<RawFd>().read_unaligned()))
        } else {
            None
        };
        Ok((n as usize, fd))
    }
}

/// Sends a short message.
pub fn send(socket: BorrowedFd<'_>, message: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer is live.
    check(unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL) } as i64)
        .map(|_| ())
}

/// Reads an option of N bytes; an error where it has fewer.
pub fn option<const N: usize>(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<[u8; N]> {
    let mut value = [0u8; N];
    let mut len = N as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes.
    let done = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut len) };
    check(i64::from(done))?;
    if len as usize == N { Ok(value) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Sets an option.
pub fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: the kernel reads so many bytes of a live slice.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    check(i64::from(done)).map(|_| ())
}
