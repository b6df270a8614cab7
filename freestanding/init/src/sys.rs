//! System calls of init itself, as functions on owned descriptors.

use diecast_init_protocol::MESSAGE_BYTES_MAX;
use std::io::{Error, Result};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;

/// Descriptors below belong to the children: 0-2 stdio, 3 and 4 between fork and exec.
pub const FIRST_FREE_FD: RawFd = 5;

/// More descriptors than a start request carries.
const FDS_MAX: usize = 8;

/// How a process ended.
pub enum End {
    Code(i32),
    Signal(i32),
}

fn check(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// Moves `fd` out of the range that children use, close-on-exec.
pub fn move_up(fd: OwnedFd) -> Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes an integer and gives a new descriptor that nobody else owns.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST_FREE_FD))?)) }
}

/// Takes the socket that is our stdin and puts /dev/null in its place.
pub fn take_stdin() -> Result<OwnedFd> {
    // SAFETY: plain calls on integers and a constant path; fd 0 is ours alone, and its duplicate
    // becomes owned by the result.
    unsafe {
        let socket = OwnedFd::from_raw_fd(check(libc::fcntl(0, libc::F_DUPFD_CLOEXEC, FIRST_FREE_FD))?);
        let null = check(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC))?;
        check(libc::dup2(null, 0))?;
        libc::close(null);
        Ok(socket)
    }
}

/// Blocks every signal and gives a descriptor that becomes readable when a child ends.
pub fn block_signals_and_watch_children() -> Result<OwnedFd> {
    // SAFETY: the sets live on this stack and are initialised by sigfillset and sigemptyset.
    let fd = unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigfillset(&mut set);
        check(libc::sigprocmask(libc::SIG_SETMASK, &set, null_mut()))?;
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        OwnedFd::from_raw_fd(check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?)
    };
    move_up(fd)
}

/// The name that `ps` shows.
pub fn set_name(name: &std::ffi::CStr) {
    // SAFETY: PR_SET_NAME reads a terminated string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Sets IFF_UP on `lo`; a namespace where it is up already stays as it is.
pub fn loopback_up() -> Result<()> {
    // SAFETY: the request structure lives on this stack, its name is terminated by the zeroes.
    unsafe {
        let socket =
            OwnedFd::from_raw_fd(check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?);
        let mut request: libc::ifreq = zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request))?;
    }
    Ok(())
}

/// Waits, without a timeout, until one of `fds` is readable or closed; the result is parallel to `fds`.
pub fn wait_readable(fds: &[RawFd]) -> Result<Vec<bool>> {
    let mut polls: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    loop {
        // SAFETY: pointer and count describe one vector that outlives the call.
        match check(unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, -1) }) {
            Ok(_) => return Ok(polls.iter().map(|p| p.revents != 0).collect()),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads whatever a non-blocking descriptor holds and forgets it.
pub fn drain(fd: &OwnedFd) {
    let mut buffer = [0u8; 4096];
    // SAFETY: the buffer's own pointer and length.
    while unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) } > 0 {}
}

/// Next packet with its descriptors, all above [`FIRST_FREE_FD`]; `None` when the other end is closed.
pub fn receive(socket: &OwnedFd) -> Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut packet = vec![0u8; MESSAGE_BYTES_MAX];
    let mut control = [0u64; 64];
    let mut fds = Vec::new();
    // SAFETY: `iov` and `control` (aligned for cmsghdr) outlive the call; the CMSG macros walk what the
    // kernel has written there; each descriptor that it passes is new and becomes owned once.
    unsafe {
        let mut iov = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let length = loop {
            match libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) {
                -1 if Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
                -1 if Error::last_os_error().raw_os_error() == Some(libc::ECONNRESET) => return Ok(None),
                -1 => return Err(Error::last_os_error()),
                length => break length as usize,
            }
        };
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..(bytes / size_of::<RawFd>()).min(FDS_MAX) {
                    fds.push(move_up(OwnedFd::from_raw_fd(data.add(index).read_unaligned()))?);
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
        if length == 0 {
            return Ok(None);
        }
        if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Err(Error::other("packet longer than any message"));
        }
        packet.truncate(length);
    }
    Ok(Some((packet, fds)))
}

/// Sends one packet.
pub fn send(socket: &OwnedFd, packet: &[u8]) -> Result<()> {
    loop {
        // SAFETY: pointer and length of one slice.
        let sent = unsafe { libc::send(socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), libc::MSG_NOSIGNAL) };
        match sent {
            -1 if Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            -1 => return Err(Error::last_os_error()),
            _ => return Ok(()),
        }
    }
}

/// kill(2); a process that is gone already is what the caller wanted.
pub fn kill(pid: i32, signo: i32) {
    // SAFETY: integers only.
    unsafe { libc::kill(pid, signo) };
}

/// One ended child, if there is any.
pub fn reap_one() -> Option<(i32, End)> {
    let mut status = 0;
    // SAFETY: the status lives on this stack.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    (pid > 0).then(|| {
        let end = if libc::WIFSIGNALED(status) {
            End::Signal(libc::WTERMSIG(status))
        } else {
            End::Code(libc::WEXITSTATUS(status))
        };
        (pid, end)
    })
}

/// Ends every process of the pid namespace, ourselves last; the kernel kills whatever is forked meanwhile.
pub fn kill_all_and_exit(code: i32) -> ! {
    kill(-1, libc::SIGKILL);
    std::process::exit(code)
}
