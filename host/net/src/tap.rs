//! A node's NIC: a TAP device inside its namespace, the other end held by the emulator.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use diecast_core_net::{NetSpec, NodeSpec, Subnet};
use diecast_core_vtime::Tdf;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use crate::error::HostNetError;
use crate::netlink::RouteSocket;
use crate::netns::in_netns;
use crate::sys;
use crate::sysctl::{self, SysctlRow};

/// Name of the first NIC in every node.
pub const NODE_DEVICE: &str = "eth0";

/// Name of a node's NIC: eth0, eth1, …
pub fn nic_device(nic: usize) -> String {
    format!("eth{nic}")
}
/// The loopback device is the first of every namespace.
const LOOPBACK_INDEX: u32 = 1;
/// Frames that may wait for the emulator to read them. TUN drops what finds this ring full, before any pipe could
/// count it, so it is larger than any burst that a node sends while the emulator is late.
const TAP_QUEUE_PACKETS: u32 = 8192;
/// Of a node's first routes; those of later changes of its TDF come before them.
const ROUTE_PRIORITY: u32 = 1000;

/// What all NICs of a network have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicKind {
    /// Largest IP packet.
    pub mtu: u32,
    /// The node's kernel leaves segmentation and checksums to the NIC. Frames then come, and go, with a virtio header.
    pub offload: bool,
    /// Pipes mark packets: the node's TCP asks for that.
    pub ecn: bool,
}

impl NicKind {
    /// The NICs of this network.
    pub fn of(spec: &NetSpec) -> NicKind {
        NicKind { mtu: spec.mtu, offload: spec.offload, ecn: spec.marks() }
    }
}

/// A namespace that is ready for a node.
#[derive(Debug)]
pub struct PreparedNode {
    /// The emulator's end of the NIC, non-blocking.
    pub tap: OwnedFd,
    /// What became of every sysctl, namespace first, then device.
    pub sysctls: Vec<SysctlRow>,
}

/// Everything a fresh namespace needs before the node's first process: sysctls, loopback, NIC, addresses.
pub fn prepare_node(
    netns: BorrowedFd<'_>,
    node: &NodeSpec,
    subnet: &Subnet,
    kind: NicKind,
    tdf: Tdf,
) -> Result<PreparedNode, HostNetError> {
    prepare_node_with(netns, node, subnet, kind, tdf, &|_| Ok(()))
}

/// As [`prepare_node`]; `before_up` gets the index of the NIC before it is switched on, on a thread in the namespace.
pub fn prepare_node_with(
    netns: BorrowedFd<'_>,
    node: &NodeSpec,
    subnet: &Subnet,
    kind: NicKind,
    tdf: Tdf,
    before_up: &(dyn Fn(u32) -> io::Result<()> + Sync),
) -> Result<PreparedNode, HostNetError> {
    in_netns(netns, || {
        let mut sysctls = sysctl::set_namespace_here(tdf);
        sysctls.extend(kind.ecn.then(sysctl::ask_for_marks_here));
        let nic = nic_here(NODE_DEVICE, node, subnet, kind, tdf, before_up)?;
        sysctls.extend(nic.sysctls);
        Ok(PreparedNode { tap: nic.tap, sysctls })
    })?
}

/// One NIC more for a namespace that [`prepare_node_with`] has prepared.
pub fn add_nic(
    netns: BorrowedFd<'_>,
    device: &str,
    node: &NodeSpec,
    subnet: &Subnet,
    kind: NicKind,
    tdf: Tdf,
    before_up: &(dyn Fn(u32) -> io::Result<()> + Sync),
) -> Result<PreparedNode, HostNetError> {
    in_netns(netns, || nic_here(device, node, subnet, kind, tdf, before_up))?
}

/// A NIC in the calling thread's namespace, up, with its own sysctls.
fn nic_here(
    device: &str,
    node: &NodeSpec,
    subnet: &Subnet,
    kind: NicKind,
    tdf: Tdf,
    before_up: &(dyn Fn(u32) -> io::Result<()> + Sync),
) -> Result<PreparedNode, HostNetError> {
    let tap = open_tap(device, kind.offload)?;
    let sysctls = sysctl::set_device_here(device, tdf);
    configure(device, node, subnet, kind, before_up)?;
    Ok(PreparedNode { tap, sysctls })
}

/// Makes a TAP device with MAC, addresses and MTU in the namespace, up, with loopback up; sets no sysctl.
pub fn create_tap(
    netns: BorrowedFd<'_>,
    device: &str,
    node: &NodeSpec,
    subnet: &Subnet,
    kind: NicKind,
) -> Result<OwnedFd, HostNetError> {
    in_netns(netns, || {
        let tap = open_tap(device, kind.offload)?;
        configure(device, node, subnet, kind, &|_| Ok(()))?;
        Ok(tap)
    })?
}

fn open_tap(device: &str, offload: bool) -> Result<OwnedFd, HostNetError> {
    let failed =
        |action: &'static str| move |error: io::Error| HostNetError::Tap { action, device: device.to_owned(), error };
    // A TAP belongs to the namespace in which /dev/net/tun was opened.
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let tun = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
        .map_err(|e| failed("open /dev/net/tun for")(io::Error::from(e)))?;
    sys::tap_attach(tun.as_fd(), device, offload).map_err(failed("create"))?;
    match offload {
        true => sys::tap_offload(tun.as_fd()).map_err(failed("switch offloads on for"))?,
        false => sys::tap_no_offload(tun.as_fd()).map_err(failed("switch offloads off on"))?,
    }
    Ok(tun)
}

fn configure(
    device: &str,
    node: &NodeSpec,
    subnet: &Subnet,
    kind: NicKind,
    before_up: &(dyn Fn(u32) -> io::Result<()> + Sync),
) -> Result<(), HostNetError> {
    let failed = |action: &str| {
        let action = format!("{action} of node '{}'", node.name);
        move |error: io::Error| HostNetError::Netlink { action, error }
    };
    let index = index_of(device).map_err(failed("find the NIC"))?;
    let mut route = RouteSocket::open().map_err(failed("open a routing socket in the namespace"))?;
    route.link_up(LOOPBACK_INDEX).map_err(failed("switch on the loopback device"))?;
    route.set_link(index, node.mac.0, kind.mtu, TAP_QUEUE_PACKETS, !kind.offload).map_err(failed("set MAC and MTU"))?;
    before_up(index).map_err(failed("attach a program to the NIC"))?;
    route.link_up(index).map_err(failed("switch on the NIC"))?;
    route.add_address(index, IpAddr::V4(node.ipv4), subnet.ipv4_prefix).map_err(failed("add the IPv4 address"))?;
    if sysctl::has_ipv6() {
        route.add_address(index, IpAddr::V6(node.ipv6), subnet.ipv6_prefix).map_err(failed("add the IPv6 address"))?;
    }
    // A machine sends these by its default route, which a node does not have: there is nothing outside.
    if device == NODE_DEVICE {
        for (to, prefix) in [(Ipv4Addr::new(224, 0, 0, 0), 4), (Ipv4Addr::BROADCAST, 32)] {
            route.add_route(index, node.ipv4.into(), (to.into(), prefix)).map_err(failed("add a route for groups"))?;
        }
    }
    Ok(())
}

/// Moves a namespace, whose NICs these are, from one TDF to another: sysctls, and what its open connections go by.
/// `change` counts the changes of its life, from 1.
pub fn retime_node(
    netns: BorrowedFd<'_>,
    nics: &[(&NodeSpec, Subnet)],
    from: Tdf,
    to: Tdf,
    change: u32,
) -> Result<Vec<SysctlRow>, HostNetError> {
    in_netns(netns, || {
        let devices: Vec<String> = (0..nics.len()).map(nic_device).collect();
        let rows = sysctl::retime_here(&devices, from, to);
        for (device, (node, subnet)) in devices.iter().zip(nics) {
            add_rto_min(device, node, subnet, ROUTE_PRIORITY.saturating_sub(change), sysctl::rto_min_ms(to)).map_err(
                |error| {
                    let action = format!("set the shortest retransmission timeout of node '{}'", node.name);
                    HostNetError::Netlink { action, error }
                },
            )?;
        }
        Ok(rows)
    })?
}

/// Both halves of the subnet get a route beside the device's own and those of changes before, which stay. To replace one
/// would leave open connections without a device, and with the smallest MSS, until their next packet.
fn add_rto_min(device: &str, node: &NodeSpec, subnet: &Subnet, priority: u32, ms: u32) -> io::Result<()> {
    let index = index_of(device)?;
    let mut route = RouteSocket::open()?;
    let (prefix, first) = (subnet.ipv4_prefix + 1, u32::from(subnet.ipv4));
    for half in [first, first | 1u32 << (32 - prefix)] {
        route.add_rto_min(index, node.ipv4.into(), (Ipv4Addr::from(half).into(), prefix), priority, ms)?;
    }
    if sysctl::has_ipv6() {
        let (prefix, first) = (subnet.ipv6_prefix + 1, u128::from(subnet.ipv6));
        for half in [first, first | 1u128 << (128 - prefix)] {
            route.add_rto_min(index, node.ipv6.into(), (Ipv6Addr::from(half).into(), prefix), priority, ms)?;
        }
    }
    Ok(())
}

/// Index of an interface of the calling thread's namespace.
fn index_of(device: &str) -> io::Result<u32> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    Ok(rustix::net::netdevice::name_to_index(&socket, device)?)
}

/// What the kernel counts at a device, seen from the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct LinkCounters {
    /// Frames delivered to the node.
    pub received_packets: u64,
    /// Frames that the node's stack refused.
    pub received_dropped: u64,
    /// Frames that the node sent.
    pub sent_packets: u64,
    /// Frames that never reached the emulator because it did not read in time: every one is an error of the run.
    pub sent_dropped: u64,
}

/// Reads the kernel's counters of `device` in the namespace.
pub fn link_counters(netns: BorrowedFd<'_>, device: &str) -> Result<LinkCounters, HostNetError> {
    const PATH: &str = "/proc/thread-self/net/dev";
    let text = in_netns(netns, || fs::read_to_string(PATH))?
        .map_err(|error| HostNetError::Read { path: PATH.to_owned(), error })?;
    parse_counters(&text, device).ok_or_else(|| HostNetError::Read {
        path: PATH.to_owned(),
        error: io::Error::new(io::ErrorKind::NotFound, format!("no device '{device}'")),
    })
}

/// One line per device: name, eight receive columns (bytes, packets, errs, drop, ...), eight transmit columns.
fn parse_counters(text: &str, device: &str) -> Option<LinkCounters> {
    let line = text.lines().find_map(|l| l.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    let column: Vec<u64> = line.split_whitespace().map_while(|w| w.parse().ok()).collect();
    Some(LinkCounters {
        received_packets: *column.get(1)?,
        received_dropped: *column.get(3)?,
        sent_packets: *column.get(9)?,
        sent_dropped: *column.get(11)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_whole_device_name() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n\
                    eth01: 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n  \
                    eth0: 1 2 3 4 5 6 7 8 11 12 13 14 15 16 17 18\n";
        let want = LinkCounters { received_packets: 2, received_dropped: 4, sent_packets: 12, sent_dropped: 14 };
        assert_eq!(parse_counters(text, "eth0"), Some(want));
        assert_eq!(parse_counters(text, "eth1"), None);
    }
}
