//! Segmentation and checksums left to the NIC: the wire looks as if the kernel had done it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use diecast_core_net::{Link, NetSpec, OFFLOAD_HEADER_BYTES, Segments};
use diecast_host_net::{
    CapturePoint, Direction, NODE_DEVICE, NicKind, create_netns, create_tap, in_netns, link_counters,
};

use crate::lab::{Lab, skip, two};

const PACKET_VNET_HDR: libc::c_int = 15;
/// No stack uses it by itself.
const PORTS: [u8; 4] = [0x1b, 0x58, 0x1b, 0x59];

/// A packet socket on the NIC of the calling thread's namespace, that takes a virtio header before each frame.
pub fn raw_socket() -> OwnedFd {
    socket_for(0)
}

/// The same, that hears frames of this kind.
fn socket_for(ethertype: u16) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
    let index = netdevice::name_to_index(&socket, NODE_DEVICE).unwrap();
    let on: libc::c_int = 1;
    // SAFETY: zeros are a valid sockaddr_ll; both calls read live values of the lengths given.
    unsafe {
        let mut at: libc::sockaddr_ll = std::mem::zeroed();
        at.sll_family = libc::AF_PACKET as u16;
        at.sll_ifindex = index as i32;
        at.sll_protocol = ethertype.to_be();
        assert_eq!(libc::bind(socket.as_raw_fd(), (&raw const at).cast(), size_of_val(&at) as u32), 0);
        let (option, length) = ((&raw const on).cast(), size_of_val(&on) as u32);
        assert_eq!(libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, option, length), 0);
    }
    socket
}

/// What comes out of a TAP with our ports: so many frames, and all that is there then.
fn read_ours(tap: &OwnedFd, header: usize, transport: usize, count: usize) -> Vec<Vec<u8>> {
    let (mut frames, begin) = (Vec::new(), Instant::now());
    let mut buffer = vec![0; 70_000];
    while begin.elapsed() < Duration::from_secs(10) {
        let Ok(n) = rustix::io::read(tap, &mut buffer[..]) else {
            if frames.len() >= count {
                break;
            }
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let at = header + transport;
        if buffer[..n].get(at..at + 4) == Some(&PORTS[..]) {
            frames.push(buffer[..n].to_vec());
        }
    }
    frames
}

/// A large frame with the sum of its pseudo header in place, as Linux leaves it, behind its virtio header.
fn large(spec: &NetSpec, tcp: bool, ipv4: bool, flags: u8, segment: u16, payload: usize) -> Vec<u8> {
    let (a, b) = (&spec.nodes[0], &spec.nodes[1]);
    let protocol = if tcp { 6 } else { 17 };
    let header = if tcp { 32 } else { 8 };
    let length = (header + payload) as u16;
    let mut f = [b.mac.0, a.mac.0].concat();
    let mut pseudo = u32::from(length) + protocol;
    let mut add = |bytes: &[u8]| bytes.chunks(2).for_each(|w| pseudo += u32::from(u16::from_be_bytes([w[0], w[1]])));
    if ipv4 {
        f.extend([8, 0, 0x45, 0]);
        f.extend((length + 20).to_be_bytes());
        f.extend([0xff, 0xf0, 0x40, 0, 64, protocol as u8, 0, 0]);
        f.extend([a.ipv4.octets(), b.ipv4.octets()].concat());
        add(&f[26..34]);
    } else {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        f.extend(length.to_be_bytes());
        f.extend([protocol as u8, 64]);
        f.extend([a.ipv6.octets(), b.ipv6.octets()].concat());
        add(&f[22..54]);
    }
    let at = f.len();
    f.extend(PORTS);
    if tcp {
        // Near the end of the sequence numbers, so that they wrap.
        f.extend([0xff, 0xff, 0xf0, 0, 1, 2, 3, 4, 0x80, flags, 1, 0, 0, 0, 0, 0, 1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    } else {
        f.extend(length.to_be_bytes());
        f.extend([0, 0]);
    }
    let offset = if tcp { 16u16 } else { 6 };
    while pseudo >> 16 != 0 {
        pseudo = (pseudo & 0xffff) + (pseudo >> 16);
    }
    f[at + usize::from(offset)..][..2].copy_from_slice(&(pseudo as u16).to_be_bytes());
    f.extend((0..payload).map(|i| (i * 7 + i / 251) as u8));
    let ecn = if flags & 0x80 != 0 { 0x80 } else { 0 };
    let kind = if !tcp {
        5
    } else if ipv4 {
        1 | ecn
    } else {
        4 | ecn
    };
    let mut out = vec![1, kind];
    for word in [at as u16 + header as u16, segment, at as u16, offset] {
        out.extend(word.to_ne_bytes());
    }
    out.extend(f);
    out
}

/// The same large frames through a NIC with offload, cut by us, and through one without, cut by Linux.
#[test]
fn large_frames_are_cut_as_linux_cuts_them() {
    if skip() {
        return;
    }
    let spec = two(Link::default(), true);
    let nic = |offload| {
        let ns = create_netns().unwrap();
        let kind = NicKind { mtu: spec.mtu, offload, ecn: false };
        let tap = create_tap(ns.as_fd(), NODE_DEVICE, &spec.nodes[0], &spec.subnet, kind).unwrap();
        let socket = in_netns(ns.as_fd(), raw_socket).unwrap();
        (tap, socket, ns)
    };
    let (with, without) = (nic(true), nic(false));
    for (tcp, ipv4, flags, segment, payload) in [
        // Acknowledgement and push; all of push, end and reduced window; several lengths of the last segment.
        (true, true, 0x18, 1448, 64_000),
        (true, true, 0x99, 1448, 2 * 1448),
        (true, true, 0x10, 536, 537),
        (true, false, 0x99, 1428, 20_001),
        (true, false, 0x18, 1000, 1001),
        (false, true, 0, 1200, 30_001),
        (false, false, 0, 1000, 10_000),
    ] {
        let context = format!("tcp {tcp} ipv4 {ipv4} flags {flags:x} {payload} bytes in segments of {segment}");
        let frame = large(&spec, tcp, ipv4, flags, segment, payload);
        for (_, socket, _) in [&with, &without] {
            assert_eq!(rustix::io::write(socket, &frame).unwrap(), frame.len(), "{context}");
        }
        let transport = if ipv4 { 34 } else { 54 };
        let count = payload.div_ceil(usize::from(segment));
        let linux = read_ours(&without.0, 0, transport, count);
        let read = read_ours(&with.0, OFFLOAD_HEADER_BYTES, transport, 1);
        let mut ours = Vec::new();
        for read in &read {
            let (header, frame) = read.split_first_chunk().unwrap();
            let mut segments = Segments::new(header, frame).unwrap();
            let mut buffer = Vec::new();
            while segments.next_into(&mut buffer, 1514) {
                ours.push(std::mem::take(&mut buffer));
            }
        }
        assert_eq!(linux.len(), count, "{context}");
        assert_eq!(read.len(), 1, "{context}: the NIC got it whole");
        assert!(ours == linux, "{context}: {:x?} {:x?}", &ours[0][..80.min(ours[0].len())], &linux[0][..80]);
    }
}

/// Whether the TCP checksum of a frame is right.
fn tcp_sum_holds(f: &[u8]) -> bool {
    let (addresses, at) = if f[12..14] == [8, 0] { (26..34, 34) } else { (22..54, 54) };
    let words = f[addresses].chunks(2).chain(f[at..].chunks(2));
    let sum: u32 = words.map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)]))).sum();
    let sum = sum + 6 + (f.len() - at) as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// What a capture inside a node sees of TCP from this MAC, until `done`: frames that are as on the wire, and all others.
fn watch(socket: &OwnedFd, from: [u8; 6], done: &AtomicBool) -> (u64, Vec<(usize, usize)>) {
    let (mut right, mut wrong) = (0, Vec::new());
    let mut buffer = vec![0; 70_000];
    loop {
        let last = done.load(Ordering::Acquire);
        while let Ok((n, length)) = rustix::net::recv(socket, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT) {
            let (header, f) = buffer[..n].split_first_chunk::<OFFLOAD_HEADER_BYTES>().unwrap();
            let (v4, v6) = (f[12..14] == [8, 0] && f[23] == 6, f[12..14] == [0x86, 0xdd] && f[20] == 6);
            if f[6..12] != from || !(v4 || v6) {
                continue;
            }
            if f.len() <= 1514 && header[..2] == [0, 0] && tcp_sum_holds(f) {
                right += 1;
            } else {
                wrong.push((f.len(), length));
            }
        }
        if last {
            return (right, wrong);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

const BYTES: usize = 4_000_000;

/// From the first node to the second, by IPv4 and by IPv6.
fn transfer(lab: &Lab) {
    for address in [lab.v4(1, 80), (lab.spec.nodes[1].ipv6, 80).into()] {
        let listener = lab.within(1, || TcpListener::bind(address).unwrap());
        let data: Vec<u8> = (0..BYTES).map(|i| (i ^ i >> 8) as u8).collect();
        thread::scope(|s| {
            s.spawn(|| {
                let mut got = Vec::new();
                listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
                assert!(got == data, "{} bytes of {BYTES}", got.len());
            });
            lab.within(0, || TcpStream::connect(address).unwrap()).write_all(&data).unwrap();
        });
    }
}

/// Nodes make large frames; pipes, counters, captures and the receiving node see those of the MTU, and nothing is wrong
/// with their checksums.
#[test]
fn a_transfer_with_offload_is_of_mtu_sized_frames_on_the_wire() {
    if skip() {
        return;
    }
    let spec = two(Link { bandwidth_bps: Some(400_000_000), delay_ns: 500_000, ..Link::default() }, true);
    let lab = Lab::start(spec, "1");
    let pipe = lab.spec.pipes.iter().position(|p| p.from == lab.spec.nodes[0].vertex).unwrap();
    let points = vec![CapturePoint::Nic(diecast_core_net::NodeIx(1))];
    let capture = lab.emulator.handle().capture(points).unwrap();
    let (inside, done, from) =
        (lab.within(1, || socket_for(libc::ETH_P_ALL as u16)), AtomicBool::new(false), lab.spec.nodes[0].mac.0);
    let (right, wrong) = thread::scope(|s| {
        let watching = s.spawn(|| watch(&inside, from, &done));
        transfer(&lab);
        done.store(true, Ordering::Release);
        watching.join().unwrap()
    });
    assert!(wrong.is_empty() && right > 100, "{right} frames are right, {} are not: {:?}", wrong.len(), wrong.first());
    let stats = lab.emulator.stats().unwrap();
    let (sender, receiver) = (0, 1);
    let of_nic = |node: usize| link_counters(lab.netns[node].as_fd(), NODE_DEVICE).unwrap();
    let n = stats.nodes[sender];
    let least = (2 * BYTES / 1448) as u64;
    println!("{n:?}\n{:?} {:?}", of_nic(sender), of_nic(receiver));
    assert_eq!((n.dropped_oversize, n.dropped_malformed, n.dropped_spoofed), (0, 0, 0));
    assert!(n.packets_sent >= least && stats.pipes[pipe].packets_in >= least, "{n:?}");
    assert!(of_nic(sender).sent_packets < n.packets_sent / 2, "the node left nothing to its NIC: {:?}", of_nic(sender));
    assert!(of_nic(receiver).received_packets >= least, "{:?}", of_nic(receiver));
    assert_eq!(stats.without_trailer, 0);
    let seen: Vec<_> = capture.frames.try_iter().filter(|f| f.direction == Direction::Received).collect();
    assert!(seen.len() as u64 + capture.dropped() >= least, "{} captured", seen.len());
    assert!(seen.iter().all(|f| f.frame.len() <= 1514));
    // Each is due when the link has sent it: 8 bits at 400 Mbit/s are 20 ns.
    let full: Vec<_> = seen.iter().filter(|f| f.frame.len() == 1514).collect();
    assert!(full.windows(2).all(|w| w[1].at.since(w[0].at).0 >= 1514 * 20 - 1), "closer than the link can send");
    assert_eq!(stats.packets_merged, 0, "where somebody looks");
    assert_eq!(wrong_sums(&lab), 0);
}

/// Segments whose checksum a node's TCP found wrong.
pub fn wrong_sums(lab: &Lab) -> u64 {
    let of = |node: usize| {
        let snmp = lab.within(node, || std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
        let mut tcp = snmp.lines().filter(|l| l.starts_with("Tcp:")).map(|l| l.split(' ').collect::<Vec<_>>());
        let (names, values) = (tcp.next().unwrap(), tcp.next().unwrap());
        let at = names.iter().position(|n| *n == "InCsumErrors").unwrap();
        values[at].parse::<u64>().unwrap()
    };
    of(0) + of(1)
}

/// Frames that are due together come merged, unless a packet socket of the node or a capture would show it.
#[test]
fn frames_are_merged_where_nobody_looks() {
    if !skip() {
        merged_where_nobody_looks(1);
    }
}

#[test]
fn frames_are_merged_by_several_threads_too() {
    if !skip() {
        merged_where_nobody_looks(2);
    }
}

fn merged_where_nobody_looks(threads: usize) {
    let lab = Lab::start_threads(two(Link { delay_ns: 500_000, ..Link::default() }, true), "1", threads);
    let (least, merged) = ((2 * BYTES / 1448) as u64, || lab.emulator.stats().unwrap().packets_merged);
    transfer(&lab);
    let stats = lab.emulator.stats().unwrap();
    let received = link_counters(lab.netns[1].as_fd(), NODE_DEVICE).unwrap().received_packets;
    let (n, all) = (stats.nodes[1], stats.packets_merged);
    println!("{} of {} frames merged, {received} written", stats.packets_merged, n.packets_received);
    assert!(n.packets_received >= least && all > least / 4, "{all} of {} merged", n.packets_received);
    assert!(
        received <= n.packets_received - all / 2,
        "{received} written for {} with {all} merged",
        n.packets_received
    );
    // A socket inside, then a capture outside.
    let (inside, done, from) =
        (lab.within(1, || socket_for(libc::ETH_P_ALL as u16)), AtomicBool::new(false), lab.spec.nodes[0].mac.0);
    let before = merged();
    let (right, wrong) = thread::scope(|s| {
        let watching = s.spawn(|| watch(&inside, from, &done));
        transfer(&lab);
        done.store(true, Ordering::Release);
        watching.join().unwrap()
    });
    assert!(wrong.is_empty() && right > 100, "{right} frames are right, {} are not: {:?}", wrong.len(), wrong.first());
    drop(inside);
    let points = vec![CapturePoint::Nic(diecast_core_net::NodeIx(1))];
    let capture = lab.emulator.handle().capture(points).unwrap();
    transfer(&lab);
    assert!(capture.frames.try_iter().all(|f| f.frame.len() <= 1514));
    // What a node's kernel sends by itself is none of it: only acknowledgements go to the sender.
    assert_eq!(merged(), before, "somebody looked");
    assert_eq!(wrong_sums(&lab), 0);
}

/// A program that knows nothing of it gets each datagram of a merged frame by itself.
#[test]
fn merged_datagrams_are_received_one_by_one() {
    if skip() {
        return;
    }
    const UDP_SEGMENT: libc::c_int = 103;
    let lab = Lab::start(two(Link { delay_ns: 500_000, ..Link::default() }, true), "1");
    let (from, to, segment) = (lab.udp(0, 7000), lab.udp(1, 7000), 1200 as libc::c_int);
    // SAFETY: a live value of that length.
    let set = unsafe {
        let (value, length) = ((&raw const segment).cast(), size_of_val(&segment) as u32);
        libc::setsockopt(from.as_raw_fd(), libc::SOL_UDP, UDP_SEGMENT, value, length)
    };
    assert_eq!(set, 0);
    let data: Vec<u8> = (0..20 * 1200 + 500).map(|i| (i / 7) as u8).collect();
    let mut buffer = [0; 2048];
    // The first of a pair of nodes asks for a MAC, and what waits for that is sent by other means.
    for _ in 0..3 {
        from.send_to(&data, lab.v4(1, 7000)).unwrap();
        for part in data.chunks(1200) {
            let (length, _) = to.recv_from(&mut buffer).unwrap();
            assert!(buffer[..length] == *part, "{length} bytes instead of {}", part.len());
        }
    }
    let stats = lab.emulator.stats().unwrap();
    assert!(stats.packets_merged >= 21, "{} merged of {}", stats.packets_merged, stats.packets_written);
}
