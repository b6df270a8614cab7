//! Our end of the socket to a node's init, and the handshake by which a child hands its seccomp listener over.

use crate::error::{NodeError, system};
use diecast_init_protocol::{HANDSHAKE_MAGIC, MESSAGE_BYTES_MAX, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair, sockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// What came from init.
#[derive(Debug)]
pub(crate) enum Received {
    Reply(Reply),
    /// Nothing yet.
    Empty,
    /// The other end is closed.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Channel {
    node: String,
    socket: OwnedFd,
}

pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), NodeError> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(system("create a socket pair"))
}

impl Channel {
    pub fn new(node: &str, socket: OwnedFd) -> Channel {
        Channel { node: node.to_owned(), socket }
    }

    pub fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), NodeError> {
        let packet = request.encode();
        if packet.len() > MESSAGE_BYTES_MAX {
            let (bytes, bytes_max) = (packet.len(), MESSAGE_BYTES_MAX);
            return Err(NodeError::RequestTooLong { node: self.node.clone(), bytes, bytes_max });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(NodeError::Init { node: self.node.clone(), detail: "too many descriptors".into() });
        }
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(&packet)], &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(NodeError::Gone { node: self.node.clone() }),
                Err(error) => return Err(system("send to the init of a node")(error)),
            }
        }
    }

    /// Next message, if one has arrived.
    pub fn try_receive(&self) -> Result<Received, NodeError> {
        let mut buffer = vec![0u8; MESSAGE_BYTES_MAX];
        loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Ok((length, _)) => {
                    let reply = Reply::decode(&buffer[..length]);
                    return reply
                        .map(Received::Reply)
                        .map_err(|source| NodeError::Protocol { node: self.node.clone(), source });
                }
                Err(Errno::AGAIN) => return Ok(Received::Empty),
                Err(Errno::INTR) => {}
                Err(error) => return Err(system("receive from the init of a node")(error)),
            }
        }
    }

    /// Next message within `timeout` (`None` for as long as it takes).
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Received, NodeError> {
        match wait_readable(self.socket.as_fd(), timeout)? {
            true => self.try_receive(),
            false => Ok(Received::Empty),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Is `fd` readable, or closed at its other end, within `timeout`? An interrupted wait starts again.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool, NodeError> {
    let timeout =
        timeout.map(|t| Timespec { tv_sec: t.as_secs().min(i64::MAX as u64) as i64, tv_nsec: t.subsec_nanos().into() });
    loop {
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(system("poll")(error)),
        }
    }
}

/// Our end of a handshake: a child that has installed its filter sends the listener and waits.
#[derive(Debug)]
pub struct Handshake {
    socket: OwnedFd,
}

/// A child that waits, its filter installed, for [`HandedOver::go`]. Dropped without that, the child ends with a
/// failure instead of running its program.
#[derive(Debug)]
pub struct HandedOver {
    /// The seccomp user notification listener.
    pub listener: OwnedFd,
    /// The child as this process sees it.
    pub pid: u32,
    /// The child in the node's pid namespace.
    pub pid_in_node: u32,
    socket: OwnedFd,
}

impl Handshake {
    /// Our end, and the one for [`crate::Envelope::handshake`].
    pub fn pair() -> Result<(Handshake, OwnedFd), NodeError> {
        let (ours, childs) = pair()?;
        // The kernel then tells the sender's pid, translated into our pid namespace.
        sockopt::set_socket_passcred(&ours, true).map_err(system("ask for credentials on a handshake socket"))?;
        Ok((Handshake { socket: ours }, childs))
    }

    /// Waits for the child. An error says that the child ended, or could not get so far.
    pub fn accept(self, timeout: Option<Duration>) -> Result<HandedOver, NodeError> {
        let wrong = |detail: &str| NodeError::Handshake { detail: detail.to_owned() };
        if !wait_readable(self.socket.as_fd(), timeout)? {
            return Err(wrong("no listener came in time"));
        }
        let mut text = [0u8; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
            .map_err(system("receive a seccomp listener"))?;
        let (mut listener, mut pid) = (None, None);
        for message in control.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(fds) => listener = fds.into_iter().next(),
                RecvAncillaryMessage::ScmCredentials(credentials) => pid = Some(credentials.pid),
                _ => {}
            }
        }
        if received.bytes == 0 {
            return Err(wrong("the child ended before it had a filter"));
        }
        let (Some(listener), Some(pid)) = (listener, pid) else {
            return Err(wrong("a message without listener or credentials"));
        };
        let Some(pid_in_node) = text.strip_prefix(&HANDSHAKE_MAGIC) else {
            return Err(wrong("a message that does not start as one"));
        };
        let pid_in_node = pid_in_node.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        Ok(HandedOver { listener, pid: pid.as_raw_nonzero().get() as u32, pid_in_node, socket: self.socket })
    }
}

impl HandedOver {
    /// Lets the child drop its rights and run the program; its execve is the first notification.
    pub fn go(self) -> Result<OwnedFd, NodeError> {
        send(&self.socket, &[1], SendFlags::NOSIGNAL).map_err(system("let a child go on"))?;
        Ok(self.listener)
    }
}

impl AsFd for Handshake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
