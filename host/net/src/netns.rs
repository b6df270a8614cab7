//! Network namespaces, held by descriptors: nothing is mounted, so a killed lab leaves nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::HostNetError;
use crate::sys;

const THREAD: &str = "diecast-netns";

/// A new, empty network namespace. It lives until the last descriptor, process and mount of it are gone.
pub fn create_netns() -> Result<OwnedFd, HostNetError> {
    on_thread(|| {
        sys::unshare_net().map_err(|error| HostNetError::Netns { action: "create a", error })?;
        // The name of the calling thread's own namespace; /proc/self would be the main thread's.
        match std::fs::File::open("/proc/thread-self/ns/net") {
            Ok(file) => Ok(OwnedFd::from(file)),
            Err(error) => Err(HostNetError::Netns { action: "open the new", error }),
        }
    })?
}

/// Runs `work` on a thread inside the namespace and waits for it. Sockets and devices that it opens stay there.
pub fn in_netns<T: Send>(netns: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> Result<T, HostNetError> {
    on_thread(|| {
        move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))
            .map_err(|e| HostNetError::Netns { action: "enter a", error: io::Error::from(e) })?;
        Ok(work())
    })?
}

/// The cookie of a network namespace: never 0, never used again while the host is up. Linux 5.14 or later.
pub fn netns_cookie(netns: BorrowedFd<'_>) -> Result<u64, HostNetError> {
    let found = in_netns(netns, || {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        sys::netns_cookie(socket.as_fd())
    })?;
    found.map_err(|error| HostNetError::Netns { action: "get the cookie of a", error })
}

fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, HostNetError> {
    thread::scope(|scope| {
        let handle = thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn_scoped(scope, work)
            .map_err(|error| HostNetError::Thread { name: THREAD, error })?;
        handle.join().map_err(|_| HostNetError::Panicked)
    })
}
