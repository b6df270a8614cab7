//! Which of the host's cores a frame with fewer virtual ones runs on.
//!
//! Threads that share a core switch; on two cores they wake each other with interrupts, which takes up to four times as long
//! in a virtual machine. So what runs on as many cores as the frame has costs what it does on a machine with as many.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The cores of a frame, each its own while there are enough for all frames.
pub struct Cores {
    pub cpus: Vec<usize>,
    /// Names without a file, which nobody sends to: the kernel takes them back whatever ends this process.
    _held: Vec<UnixDatagram>,
}

impl Cores {
    /// `count` of the CPUs that this process may use: those that no other frame has first, from a place that differs from
    /// process to process. All, where it may use no more.
    pub fn take(count: usize, allowed: Vec<usize>) -> Cores {
        if count >= allowed.len() {
            return Cores { cpus: allowed, _held: Vec::new() };
        }
        let mut order = allowed;
        let first = std::process::id() as usize % order.len();
        order.rotate_left(first);
        let held: Vec<(usize, UnixDatagram)> =
            order.iter().filter_map(|cpu| Some((*cpu, hold(*cpu)?))).take(count).collect();
        order.sort_by_key(|cpu| !held.iter().any(|(h, _)| h == cpu));
        order.truncate(count);
        order.sort_unstable();
        Cores { cpus: order, _held: held.into_iter().map(|(_, socket)| socket).collect() }
    }
}

fn hold(cpu: usize) -> Option<UnixDatagram> {
    let name = SocketAddr::from_abstract_name(format!("diecast-core-{cpu}")).ok()?;
    UnixDatagram::bind_addr(&name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that no CPU here has: other tests' frames hold real ones.
    #[test]
    fn frames_side_by_side_have_cores_of_their_own() {
        let host = || vec![7001, 7002, 7003, 7004];
        let (a, b) = (Cores::take(2, host()), Cores::take(2, host()));
        let mut all = [a.cpus.clone(), b.cpus].concat();
        all.sort_unstable();
        assert_eq!(all, host());
        // One too many shares.
        assert_eq!(Cores::take(1, host()).cpus.len(), 1);
        let freed = a.cpus.clone();
        drop(a);
        assert_eq!(Cores::take(2, host()).cpus, freed);
        assert_eq!(Cores::take(4, host()).cpus, host());
        assert_eq!(Cores::take(9, host()).cpus, host());
    }
}
