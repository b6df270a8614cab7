//! What can go wrong between this crate and Linux.

use std::io;

use diecast_core_vtime::VirtNs;

/// A failure with what was tried.
#[derive(Debug, thiserror::Error)]
pub enum HostNetError {
    /// A thread could not be started.
    #[error("can't start thread '{name}': {error}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// Why.
        error: io::Error,
    },
    /// A network namespace could not be made, opened or entered.
    #[error("can't {action} network namespace: {error}")]
    Netns {
        /// What was tried.
        action: &'static str,
        /// Why.
        error: io::Error,
    },
    /// The work in another namespace panicked.
    #[error("the work inside a network namespace panicked")]
    Panicked,
    /// A TAP device could not be made or set up.
    #[error("can't {action} TAP device '{device}': {error}")]
    Tap {
        /// What was tried.
        action: &'static str,
        /// Device name.
        device: String,
        /// Why.
        error: io::Error,
    },
    /// The kernel refused a routing netlink request.
    #[error("can't {action}: {error}")]
    Netlink {
        /// What was tried.
        action: String,
        /// Why.
        error: io::Error,
    },
    /// A file of the kernel could not be read.
    #[error("can't read {path}: {error}")]
    Read {
        /// Which.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// A NIC's packets could not be steered to cores.
    #[error("can't choose the cores that receive for '{device}': {error}")]
    Steering {
        /// Device name.
        device: String,
        /// Why.
        error: io::Error,
    },
    /// The network description is wrong.
    #[error(transparent)]
    Spec(#[from] diecast_core_net::NetError),
    /// Not one TAP per node.
    #[error("the network has {nodes} nodes but {taps} TAP descriptors were given")]
    Taps {
        /// Nodes of the spec.
        nodes: usize,
        /// Descriptors.
        taps: usize,
    },
    /// The emulator could not set up its event loop.
    #[error("the emulator can't {action}: {error}")]
    Emulator {
        /// What was tried.
        action: &'static str,
        /// Why.
        error: io::Error,
    },
    /// A change was asked for at an instant that has passed.
    #[error("the virtual instant {} ns has passed: it is {} ns", .at.0, .now.0)]
    Past {
        /// Asked for.
        at: VirtNs,
        /// When it was asked.
        now: VirtNs,
    },
    /// A way of the gateway could not be opened.
    #[error("can't listen at {address}: {error}")]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The emulator thread has ended.
    #[error("the emulator thread has ended")]
    Ended,
}
