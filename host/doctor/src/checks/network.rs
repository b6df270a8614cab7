//! Can nodes have a network of their own, with TCP's constants stretched?

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use diecast_core_net::{Mac, NodeSpec, Subnet, VertexIx};
use diecast_core_vtime::Tdf;
use diecast_host_egress::{Egress, EgressError};
use diecast_host_net::{
    NODE_DEVICE, NicKind, SysctlOutcome, SysctlRow, Way, WayEnd, create_netns, in_netns, prepare_node,
    prepare_node_with, receive_on,
};
use diecast_host_supervisor::{INTERRUPTS_NEED, interrupt_cost_ns};
use diecast_host_tcp::InitialRto;

use super::{refused, root_or};
use crate::report::{Check, Need, Part, Subject};

/// TDF that the trial namespace is stretched for.
const TRIAL_TDF: &str = "10";
const KIND: NicKind = NicKind { mtu: 1500, offload: true, ecn: false };
const RTO_MIN: &str = "net.ipv4.tcp_rto_min_us";
const CONGESTION: &str = "net.ipv4.tcp_congestion_control";

const fn subject(name: &'static str, need: Need) -> Subject {
    Subject { name, part: Part::Network, need }
}

pub(super) fn all() -> Vec<Check> {
    let namespaces = subject("network namespaces", Need::Labs);
    let netns = match create_netns() {
        Ok(netns) => netns,
        Err(e) => {
            let lost = "nodes can't have a network of their own: no labs, only frames";
            return vec![namespaces.missing(refused(&e), lost, root_or("use a kernel with CONFIG_NET_NS")), types()];
        }
    };
    let mut checks = vec![namespaces.ok("one was made, and removed")];
    checks.extend(node(&netns));
    checks.extend([initial_rto(&netns), debt_at_egress(), gateway(netns), types()]);
    checks
}

/// Addresses from the ranges for documentation; the namespace has no other interface.
fn trial_node() -> (NodeSpec, Subnet) {
    let node = NodeSpec {
        name: "doctor".to_owned(),
        vertex: VertexIx(0),
        mac: Mac([2, 0xdc, 0, 0, 0, 1]),
        ipv4: Ipv4Addr::new(192, 0, 2, 1),
        ipv6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
        segment: 0,
    };
    let subnet = Subnet {
        ipv4: Ipv4Addr::new(192, 0, 2, 0),
        ipv4_prefix: 24,
        ipv6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0),
        ipv6_prefix: 64,
    };
    (node, subnet)
}

fn node(netns: &OwnedFd) -> Vec<Check> {
    let s = subject("TAP devices", Need::Labs);
    let (node, subnet) = trial_node();
    let Ok(tdf) = TRIAL_TDF.parse::<Tdf>() else { return Vec::new() };
    match prepare_node(netns.as_fd(), &node, &subnet, KIND, tdf) {
        Ok(prepared) => {
            let mut checks = vec![s.ok("one was made in a namespace, with addresses, and removed")];
            checks.extend(judge_sysctls(&prepared.sysctls));
            checks.push(receiving(netns));
            checks.push(interrupts());
            checks
        }
        Err(e) => vec![s.missing(
            refused(&e),
            "nodes' packets can't reach the emulator: no labs, only frames",
            root_or("load the module tun (CONFIG_TUN); in a container, pass /dev/net/tun in"),
        )],
    }
}

fn receiving(netns: &OwnedFd) -> Check {
    let s = subject("receiving cores", Need::Accuracy);
    match receive_on(netns.as_fd(), NODE_DEVICE, &[0]) {
        Ok(()) => s.ok("nodes without a meter receive on cores of their own (Receive Packet Steering)"),
        Err(e) => s.degraded(
            refused(&e),
            "in modes native and naive the emulator's core does the receive work of nodes, which have more CPU time than \
             their originals",
            root_or("use Linux 5.2 or later with CONFIG_RPS"),
        ),
    }
}

/// What a node at work is charged for each interrupt by its packets.
fn interrupts() -> Check {
    let s = subject("interrupts", Need::Accuracy);
    let why = match interrupt_cost_ns() {
        Ok(Some(ns)) => {
            return s.ok(format!("one takes {:.1} us of a busy core, which packets are charged", ns as f64 / 1e3));
        }
        Ok(None) => format!("what one takes can't be seen: {INTERRUPTS_NEED}"),
        Err(e) => refused(&e),
    };
    s.degraded(
        why,
        "nodes at work are not charged for being interrupted by packets, and take more of them than their originals",
        "give it two cores, and use Linux 4.14 or later with CONFIG_MEMBARRIER",
    )
}

fn outcome<'a>(rows: &'a [SysctlRow], name: &str) -> Option<&'a SysctlRow> {
    rows.iter().find(|row| row.name == name)
}

/// TCP's minimum RTO, the congestion control, and all other constants together.
fn judge_sysctls(rows: &[SysctlRow]) -> Vec<Check> {
    let rto = subject("minimum RTO", Need::Accuracy);
    let rto = match outcome(rows, RTO_MIN).map(|row| &row.outcome) {
        Some(SysctlOutcome::Set) => rto.ok("tcp_rto_min_us can be set in a namespace"),
        other => rto.missing(
            format!("tcp_rto_min_us: {}", words(other)),
            "TCP's retransmission timer ends after 200 ms of real time, 20 ms of virtual time at TDF 10: connections \
             with a longer round trip retransmit for nothing",
            "use Linux 6.11 or later",
        ),
    };
    let reno = subject("Reno", Need::Accuracy);
    let reno = match outcome(rows, CONGESTION).map(|row| &row.outcome) {
        Some(SysctlOutcome::Set) => reno.ok("can be chosen in a namespace"),
        other => reno.missing(
            format!("tcp_congestion_control: {}", words(other)),
            "connections use the host's default, whose window grows in real time: too slowly by the TDF",
            "sysctl net.ipv4.tcp_allowed_congestion_control='reno cubic', or use a kernel with Reno",
        ),
    };
    let rest = subject("TCP constants", Need::Accuracy);
    let others: Vec<&SysctlRow> = rows.iter().filter(|row| row.name != RTO_MIN && row.name != CONGESTION).collect();
    let is_wrong = |row: &&&SysctlRow| matches!(row.outcome, SysctlOutcome::Missing | SysctlOutcome::Refused(_));
    let wrong: Vec<&SysctlRow> = others.iter().filter(is_wrong).copied().collect();
    let found = format!("{} of {} others set for TDF {TRIAL_TDF}", others.len() - wrong.len(), others.len());
    let rest = if wrong.is_empty() {
        rest.ok(found)
    } else {
        let names: Vec<String> =
            wrong.iter().map(|row| format!("{} {}", row.name, words(Some(&row.outcome)))).collect();
        rest.degraded(
            format!("{found}; {}", names.join(", ")),
            "these keep real time: what depends on them happens too early by the TDF",
            "use a newer kernel",
        )
    };
    vec![rto, reno, rest]
}

fn words(outcome: Option<&SysctlOutcome>) -> String {
    match outcome {
        Some(SysctlOutcome::Set) => "set".to_owned(),
        Some(SysctlOutcome::Clamped) => "limited by the kernel".to_owned(),
        Some(SysctlOutcome::Missing) => "not in this kernel".to_owned(),
        Some(SysctlOutcome::Refused(why)) => format!("refused ({why})"),
        None => "not tried".to_owned(),
    }
}

/// Loads, attaches, configures the trial's namespace, and detaches.
fn attach(netns: &OwnedFd) -> Result<String, (String, &'static str)> {
    let failed = |e: diecast_host_tcp::InitialRtoError| (refused(&e), e.hint());
    let tdf: Tdf = TRIAL_TDF.parse().map_err(|_| ("no TDF".to_owned(), ""))?;
    let program = InitialRto::attach().map_err(failed)?;
    let applied = program.set(netns.as_fd(), tdf).map_err(failed)?;
    program.unset(netns.as_fd()).map_err(failed)?;
    Ok(format!("BPF program attached to the cgroup v2 root, {} ms at TDF {TRIAL_TDF}, detached", applied.in_force_ms))
}

fn initial_rto(netns: &OwnedFd) -> Check {
    let s = subject("initial RTO", Need::Accuracy);
    // What libbpf has to say is in its error; on the terminal it would only disturb.
    let printer = libbpf_rs::set_print(None);
    let tried = attach(netns);
    libbpf_rs::set_print(printer);
    match tried {
        Ok(found) => s.ok(found),
        Err((why, hint)) => s.missing(
            why,
            "a connection's first packet is sent again after a second of real time, 100 ms of virtual time at TDF 10: \
             connecting over slow links or to busy nodes costs spurious packets",
            root_or(hint),
        ),
    }
}

/// Loads and attaches the programs, on a NIC of a namespace of their own, and drops all of it.
fn attach_egress() -> Result<(), (String, &'static str)> {
    let failed = |e: EgressError| (refused(&e), e.hint());
    let egress = Egress::load().map_err(failed)?;
    let refused_by_host = |e: diecast_host_net::HostNetError| (refused(&e), "the programs load but no NIC takes them");
    let netns = create_netns().map_err(refused_by_host)?;
    egress.add_node(netns.as_fd()).map_err(failed)?;
    let (node, subnet) = trial_node();
    prepare_node_with(netns.as_fd(), &node, &subnet, KIND, Tdf::ONE, &|nic| egress.attach_here(nic))
        .map(drop)
        .map_err(refused_by_host)
}

fn debt_at_egress() -> Check {
    let s = subject("debt at egress", Need::Accuracy);
    match attach_egress() {
        Ok(()) => s.ok("BPF programs attached to wake-ups, context switches and a NIC, and detached"),
        Err((why, hint)) => s.missing(
            why,
            "packets leave before the original machine would have finished their sender's work: latencies below the \
             grain are not emulated, and labs fall back to a grain of 100 us, which costs five times as many hits",
            root_or(hint),
        ),
    }
}

/// How long the host's own loopback device may take.
const GATEWAY_WAIT: Duration = Duration::from_secs(2);

/// One word by TCP and one by UDP, from the trial's namespace to the host.
fn through_ways(netns: OwnedFd) -> Result<(), Box<dyn std::error::Error>> {
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let (listener, receiver) = (TcpListener::bind(any)?, UdpSocket::bind(any)?);
    receiver.set_read_timeout(Some(GATEWAY_WAIT))?;
    let node = WayEnd { netns: Some(Arc::new(netns)), address: any };
    let host = |address| WayEnd { netns: None, address };
    let tcp = Way::tcp(&node, host(listener.local_addr()?))?;
    let udp = Way::udp(&node, host(receiver.local_addr()?), GATEWAY_WAIT)?;
    let netns = node.netns.as_ref().map(|n| n.as_fd()).ok_or("no namespace")?;
    in_netns(netns, || -> io::Result<()> {
        UdpSocket::bind(any)?.send_to(b"x", udp.address())?;
        TcpStream::connect_timeout(&tcp.address(), GATEWAY_WAIT)?.write_all(b"x")
    })??;
    receiver.recv(&mut [0; 8])?;
    let mut socket = accepted(&listener)?;
    socket.set_read_timeout(Some(GATEWAY_WAIT))?;
    Ok(socket.read_exact(&mut [0; 1])?)
}

fn accepted(listener: &TcpListener) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let begin = Instant::now();
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false)?;
                return Ok(socket);
            }
            Err(e) if e.kind() != io::ErrorKind::WouldBlock || begin.elapsed() > GATEWAY_WAIT => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn gateway(netns: OwnedFd) -> Check {
    let s = subject("gateway", Need::Accuracy);
    match through_ways(netns) {
        Ok(()) => s.ok("TCP and UDP from a namespace to the host went through"),
        Err(e) => s.missing(
            e.to_string(),
            "catalogs with a gateway don't run: no port of a node on the host, no service of the host in nodes",
            root_or("bring the host's loopback device up: ip link set lo up"),
        ),
    }
}

fn types() -> Check {
    let s = subject("BTF", Need::Information);
    const FILE: &str = "/sys/kernel/btf/vmlinux";
    if Path::new(FILE).exists() {
        return s.ok(FILE);
    }
    s.missing(
        format!("no {FILE}"),
        "debt at egress and dilated congestion controls need it: their BPF programs will not load",
        "use a kernel with CONFIG_DEBUG_INFO_BTF",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;

    fn row(name: &str, outcome: SysctlOutcome) -> SysctlRow {
        SysctlRow { name: name.to_owned(), wanted: "1".to_owned(), got: None, outcome }
    }

    #[test]
    fn each_kind_of_sysctl_has_its_own_line() {
        let rows = [
            row(RTO_MIN, SysctlOutcome::Missing),
            row(CONGESTION, SysctlOutcome::Refused("no".to_owned())),
            row("net.ipv4.tcp_fin_timeout", SysctlOutcome::Set),
            row("net.ipv4.tcp_tw_reuse_delay", SysctlOutcome::Missing),
            row("net.ipv4.tcp_retries2", SysctlOutcome::Clamped),
        ];
        let checks = judge_sysctls(&rows);
        let seen: Vec<_> = checks.iter().map(|c| (c.name, c.status, c.found.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("minimum RTO", Status::Missing, "tcp_rto_min_us: not in this kernel"),
                ("Reno", Status::Missing, "tcp_congestion_control: refused (no)"),
                (
                    "TCP constants",
                    Status::Degraded,
                    "2 of 3 others set for TDF 10; net.ipv4.tcp_tw_reuse_delay not in this kernel"
                ),
            ]
        );
        let rows = [row(RTO_MIN, SysctlOutcome::Set), row(CONGESTION, SysctlOutcome::Set)];
        assert!(judge_sysctls(&rows).iter().all(|c| c.status == Status::Ok));
    }
}
