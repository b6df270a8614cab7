//! Whether somebody in a node could see that the emulator has merged frames.
//!
//! A packet socket sees what the NIC gives to the stack: with one open in the node's namespace (tcpdump, an AF_PACKET
//! reader), frames come as on the wire. The kernel lists these sockets in `/proc/net/packet`, whose file stays that of the
//! namespace in which it was opened; a look costs less than a microsecond, so there is one before each merge.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use crate::netns::in_netns;
use crate::sys;

const PATH: &str = "/proc/thread-self/net/packet";

/// Looks into one namespace.
#[derive(Debug)]
pub(crate) struct Lookout {
    sockets: File,
    /// What the file has when there is no socket: its heading.
    heading_bytes: usize,
    was_clear: Cell<bool>,
}

impl Lookout {
    /// For the namespace of a TAP device.
    pub(crate) fn new(tap: BorrowedFd<'_>) -> io::Result<Lookout> {
        let netns = sys::tap_netns(tap)?;
        let sockets = in_netns(netns.as_fd(), || File::open(PATH)).map_err(io::Error::other)??;
        let mut text = [0; 256];
        let bytes = sockets.read_at(&mut text, 0)?;
        let heading_bytes = text[..bytes].iter().position(|b| *b == b'\n').map_or(bytes, |at| at + 1);
        Ok(Lookout { sockets, heading_bytes, was_clear: Cell::new(true) })
    }

    /// Whether there is no packet socket now. A namespace that can't be looked into is not clear.
    pub(crate) fn is_clear(&self) -> bool {
        let mut text = [0; 256];
        let found = self.sockets.read_at(&mut text[..=self.heading_bytes], 0);
        self.was_clear.set(found.is_ok_and(|bytes| bytes == self.heading_bytes));
        self.was_clear.get()
    }

    /// Whether there was none at the last look; a new look where there was.
    pub(crate) fn was_clear(&self) -> bool {
        self.was_clear.get() || self.is_clear()
    }
}
