//! Every frame of a node tells its sender's CPU time, and its checksums stay right.

use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use diecast_core_abi::{METER_SLEEP, packets_tell};
use diecast_core_cpu::Sent;
use diecast_core_net::{Link, NetBuilder, NetSpec, OFFLOAD_HEADER_BYTES, Segments};
use diecast_core_vtime::{FrameMap, RealNs, Tdf, VirtNs};
use diecast_host_egress::{Counted, Egress, WakeTimes};
use diecast_host_net::{
    EgressLedger, Emulator, EmulatorConfig, LARGE_KEY_BYTES, NicKind, SharedFrame, TRAILER_BYTES, create_netns,
    in_netns, monotonic_now, prepare_node_with,
};
use diecast_host_sys::{time, trap};
use diecast_host_tick::{Cadence, CoreTicks};

/// CPU time of the calling thread, ns.
fn thread_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn monotonic_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn spin(cpu: Duration) {
    let until = thread_cpu_ns() + cpu.as_nanos() as u64;
    while thread_cpu_ns() < until {}
}

/// One's complement sum of 16-bit words, as a checksum adds them.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn read_udp(tap: &OwnedFd, port: u16) -> Vec<u8> {
    let end = Instant::now() + Duration::from_secs(5);
    let mut buffer = [0u8; 2048];
    while Instant::now() < end {
        match rustix::io::read(tap, &mut buffer) {
            // IPv4, UDP, our port.
            Ok(n) if n > 42 && buffer[12..14] == [8, 0] && buffer[23] == 17 && buffer[36..38] == port.to_be_bytes() => {
                return buffer[..n].to_vec();
            }
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("no datagram within 5 s");
}

/// A process that ends with the test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn poll_ms(ms: i32) {
    // SAFETY: no file is asked about.
    unsafe { libc::poll(std::ptr::null_mut(), 0, ms) };
}

/// Sleeps as a meter does.
fn meter_sleep(length: Duration) {
    let end_ns = diecast_host_sys::time::monotonic_ns() + length.as_nanos() as u64;
    let (s, ns) = (end_ns / 1_000_000_000, end_ns % 1_000_000_000);
    let (word, t) = (0u32, libc::timespec { tv_sec: s as i64, tv_nsec: ns as i64 });
    let (op, any) = (libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG, u32::MAX);
    // SAFETY: a live word and timespec; the kernel does not look at the fifth argument.
    unsafe { libc::syscall(libc::SYS_futex, &raw const word, op, 0, &raw const t, METER_SLEEP, any) };
}

fn two_nodes() -> NetSpec {
    let mut net = NetBuilder::new(1, 9);
    let (_, a) = net.node("a");
    let (_, b) = net.node("b");
    net.link(a, b, Link::default());
    net.build().unwrap()
}

/// So many datagrams, and a wait after each.
fn send_and_wait(to: Ipv4Addr, count: u64) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    for _ in 0..count {
        socket.send_to(b"datagram", (to, 9)).unwrap();
        poll_ms(1);
    }
}

/// 200 datagrams, and a wait after each: the programs take some of the sender's time at each, and tell how much.
#[test]
fn what_the_programs_take_themselves_is_told() {
    look(own_time);
}

fn own_time() {
    let egress = Egress::load().unwrap();
    let spec = two_nodes();
    let (ns, _tap, cookie) = nic(&egress, &spec);
    let send = |count: u64| in_netns(ns.as_fd(), || send_and_wait(spec.nodes[1].ipv4, count)).unwrap();
    send(3);
    let before = egress.counted(cookie).unwrap();
    send(200);
    let after = egress.counted(cookie).unwrap();
    let own = after.own.since(&before.own);
    let packets = own.packets;
    // The sender of the first has not been switched to since it came to the node.
    assert!((199..300).contains(&packets), "{packets} packets");
    let switches: u64 = after.switches.iter().sum::<u64>() - before.switches.iter().sum::<u64>();
    assert!(switches >= 200, "{switches} switches");
    // 0.2 us where code is warm, up to 10 where it is cold.
    let each = [own.packets_ns / packets, own.threads_ns / switches];
    assert!(each.iter().all(|ns| (50..30_000).contains(ns)), "ns a packet and a switch: {each:?}");
}

/// A sender's packets wake a thread of this process on a busy core, which takes longer than nothing.
#[test]
fn waking_the_emulator_is_told() {
    look(wakes_own);
}

fn wakes_own() {
    let egress = Egress::load().unwrap();
    let spec = two_nodes();
    let (ns, tap, cookie) = nic(&egress, &spec);
    let stop = AtomicBool::new(false);
    let each_ns = || {
        let before = egress.counted(cookie).unwrap().own;
        in_netns(ns.as_fd(), || {
            time::pin_to(&[0]).unwrap();
            send_and_wait(spec.nodes[1].ipv4, 200);
        })
        .unwrap();
        let own = egress.counted(cookie).unwrap().own.since(&before);
        own.packets_ns / own.packets.max(1)
    };
    let alone_ns = each_ns();
    let waking_ns = std::thread::scope(|s| {
        s.spawn(|| {
            time::pin_to(&[1]).unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        s.spawn(|| {
            time::pin_to(&[1]).unwrap();
            let mut frame = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                let mut ready = libc::pollfd { fd: tap.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one live pollfd.
                if unsafe { libc::poll(&raw mut ready, 1, 100) } > 0 {
                    let _ = rustix::io::read(&tap, &mut frame);
                }
            }
        });
        let waking_ns = each_ns();
        stop.store(true, Ordering::Relaxed);
        waking_ns
    });
    eprintln!("{alone_ns} ns a packet, and {waking_ns} with a wake-up");
    assert!(waking_ns > alone_ns + 400, "{alone_ns} ns a packet, and {waking_ns} with a wake-up");
}

#[test]
fn a_frame_tells_its_senders_cpu_time_and_keeps_its_checksum() {
    look(trailers);
}

#[test]
fn pieces_of_work_are_counted_by_their_hits() {
    look(hits);
}

/// A test that other work on this machine can disturb, where these programs can be loaded.
fn look(test: fn()) {
    if !skip() {
        diecast_quiet::look(test);
    }
}

/// True, and a printed reason, where these programs can't be loaded.
fn skip() -> bool {
    let (root, btf) = (rustix::process::geteuid().is_root(), std::path::Path::new("/sys/kernel/btf/vmlinux").exists());
    if !root {
        diecast_quiet::skipped("needs root for BPF and network namespaces");
    }
    if !btf {
        diecast_quiet::skipped("this kernel has no BTF");
    }
    !root || !btf
}

/// The TAP's part of a delivery ends where the stack begins; who asks twice, or not at once, is told nothing.
#[test]
fn a_frame_tells_when_it_reached_the_stack() {
    look(reached);
}

fn reached() {
    let egress = Egress::load().unwrap();
    let (_ns, tap, _) = nic(&egress, &two_nodes());
    diecast_host_sys::time::pin_to(&[diecast_host_sys::time::allowed_cpus()[0]]).unwrap();
    // To all, of a protocol that nobody has.
    let frame = [[0xff; 14].as_slice(), &[0; 60]].concat();
    let mut parts = Vec::new();
    for _ in 0..50 {
        let begun = monotonic_now();
        rustix::io::write(&tap, &frame).unwrap();
        let at = egress.reached_stack(begun).unwrap();
        let ended = monotonic_now();
        assert!(begun < at && at < ended, "{begun:?} {at:?} {ended:?}");
        assert_eq!(egress.reached_stack(begun), None, "that was another frame");
        parts.push(at.since(begun).0);
    }
    parts.sort_unstable();
    assert!((200..30_000).contains(&parts[25]), "ns in the TAP: {parts:?}");
    rustix::io::write(&tap, &frame).unwrap();
    assert_eq!(egress.reached_stack(monotonic_now()), None, "that was before");
}

/// Of a burst of many pieces of work those of its first millisecond are counted, whole, with what was received for them.
#[test]
fn bursts_are_counted_by_whole_pieces() {
    look(whole_pieces);
}

fn whole_pieces() {
    let egress = Egress::load().unwrap();
    let (ns, _tap, cookie) = nic(&egress, &two_nodes());
    let burst_of = |pieces: u32| {
        let before = egress.counted(cookie).unwrap().bursts;
        in_netns(ns.as_fd(), || {
            // Loopback is down in a new namespace: a pair of Unix sockets receives as well.
            let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
            for _ in 0..20 {
                poll_ms(3);
                for _ in 0..pieces {
                    a.send(&[0; 1024]).unwrap();
                    b.recv(&mut [0; 1024]).unwrap();
                    spin(Duration::from_micros(400));
                }
                poll_ms(3);
            }
        })
        .unwrap();
        let bursts = egress.counted(cookie).unwrap().bursts.since(&before);
        // Those of nothing but the next wait are far shorter than a piece.
        let sum = |cells: &[[f64; diecast_core_abi::GAP_BINS]]| cells.iter().flatten().sum::<f64>();
        [sum(&bursts.cpu_ns) / 20e3, sum(&bursts.data) / 20.0]
    };
    // A receive counts like a KiB more: 32 units of 64 bytes. One that comes when the millisecond is over begins what is not counted.
    for (pieces, counted) in [(1, 1.0), (2, 2.0), (3, 3.0), (6, 3.0)] {
        let [cpu_us, data] = burst_of(pieces);
        println!("{pieces} pieces: {cpu_us} us, {data} units");
        assert_eq!(data, 32.0 * counted, "{pieces} pieces");
        assert!((400.0 * counted..450.0 * counted + 200.0).contains(&cpu_us), "{pieces} pieces: {cpu_us} us");
    }
}

/// What lies between a thread's sleep and its first receive is counted, but where it had a hit; so is what lies between its last
/// packet and the next receive or sleep.
#[test]
fn wake_ups_are_counted_up_to_the_first_receive() {
    look(wakes);
}

fn wakes() {
    let egress = Egress::load().unwrap();
    let spec = two_nodes();
    let (ns, _tap, cookie) = nic(&egress, &spec);
    extern "C" fn handler(_: i32) {}
    let rounds = |count: u64| {
        in_netns(ns.as_fd(), || {
            // SAFETY: the handler does nothing.
            unsafe { libc::signal(libc::SIGTRAP, handler as extern "C" fn(i32) as libc::sighandler_t) };
            let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
            let out = UdpSocket::bind("0.0.0.0:0").unwrap();
            for round in 0..count {
                a.send(b"request").unwrap();
                a.send(b"request").unwrap();
                poll_ms(1);
                if round % 3 == 0 {
                    // SAFETY: has a handler.
                    assert_eq!(unsafe { libc::raise(libc::SIGTRAP) }, 0);
                }
                spin(Duration::from_micros(200));
                b.recv(&mut [0; 16]).unwrap();
                spin(Duration::from_micros(200));
                out.send_to(b"early", (spec.nodes[1].ipv4, 9)).unwrap();
                out.send_to(b"last", (spec.nodes[1].ipv4, 9)).unwrap();
                spin(Duration::from_micros(400));
                b.recv(&mut [0; 16]).unwrap();
                out.send_to(b"last", (spec.nodes[1].ipv4, 9)).unwrap();
                spin(Duration::from_micros(600));
                if round % 4 == 0 {
                    // SAFETY: has a handler.
                    assert_eq!(unsafe { libc::raise(libc::SIGTRAP) }, 0);
                }
                poll_ms(1);
            }
        })
        .unwrap();
    };
    rounds(3);
    let before = egress.counted(cookie).unwrap().wakes;
    rounds(60);
    let WakeTimes { begins, ends, turns, .. } = egress.counted(cookie).unwrap().wakes.since(&before);
    for (what, [count, ns], (least, most), (from_ns, to_ns)) in [
        ("begins", begins, (38, 41), (200_000, 300_000)),
        ("turns", turns, (58, 61), (400_000, 500_000)),
        ("ends", ends, (43, 46), (600_000, 700_000)),
    ] {
        println!("{count} {what} of {} ns", ns / count.max(1));
        assert!((least..=most).contains(&count), "{count} {what}");
        assert!((from_ns..to_ns).contains(&(ns / count)), "{what}: {} ns each", ns / count);
    }
}

/// A node's NIC with the program, and a neighbour that is known.
fn nic(egress: &Egress, spec: &NetSpec) -> (OwnedFd, OwnedFd, u64) {
    let ns = create_netns().unwrap();
    let cookie = egress.add_node(ns.as_fd()).unwrap();
    let up = |nic| egress.attach_here(nic);
    let kind = NicKind::of(spec);
    let prepared = prepare_node_with(ns.as_fd(), &spec.nodes[0], &spec.subnet, kind, Tdf::ONE, &up).unwrap();
    // No neighbour answers: a static entry lets datagrams out.
    in_netns(ns.as_fd(), || {
        let (to, mac) = (spec.nodes[1].ipv4.to_string(), spec.nodes[1].mac.to_string());
        let done = std::process::Command::new("ip").args(["neigh", "add", &to, "lladdr", &mac, "dev", "eth0"]).status();
        assert!(done.unwrap().success());
    })
    .unwrap();
    (ns, prepared.tap, cookie)
}

/// Counts what senders are charged for.
struct Ledger {
    egress: Egress,
    charged: AtomicU64,
    large: AtomicU64,
}

impl EgressLedger for Ledger {
    fn charge_sender(&self, _: usize, _: &Sent, _: RealNs) -> VirtNs {
        self.charged.fetch_add(1, Ordering::Relaxed);
        VirtNs(0)
    }

    fn trailer_of(&self, key: &[u8; LARGE_KEY_BYTES]) -> Option<[u8; TRAILER_BYTES]> {
        self.large.fetch_add(1, Ordering::Relaxed);
        self.egress.trailer_of(key)
    }
}

/// Over TCP every frame has its trailer: whole ones carry it, of those with several segments the NIC's program knows, as
/// long as the emulator asks in time.
#[test]
fn no_frame_of_a_transfer_with_offload_is_without_its_trailer() {
    look(transfer_with_offload);
}

fn transfer_with_offload() {
    const BYTES: u64 = 3_000_000;
    let ledger = Ledger { egress: Egress::load().unwrap(), charged: 0.into(), large: 0.into() };
    let spec = NetSpec { offload: true, ..two_nodes() };
    let (mut netns, mut taps) = (Vec::new(), Vec::new());
    for node in &spec.nodes {
        let ns = create_netns().unwrap();
        ledger.egress.add_node(ns.as_fd()).unwrap();
        let up = |nic| ledger.egress.attach_here(nic);
        let kind = NicKind::of(&spec);
        taps.push(prepare_node_with(ns.as_fd(), node, &spec.subnet, kind, Tdf::ONE, &up).unwrap().tap);
        netns.push(ns);
    }
    let ledger = Arc::new(ledger);
    let to = (spec.nodes[1].ipv4, 80);
    let emulator = Emulator::start(EmulatorConfig {
        spec,
        taps,
        clock: Arc::new(SharedFrame::new(FrameMap::start(monotonic_now(), Tdf::ONE))),
        ledger: Some(ledger.clone()),
        receivers: None,
        delays_acks: false,
        priority: Some(50),
        cpu: None,
        threads: 1,
        record: None,
    })
    .unwrap();
    let listener = in_netns(netns[1].as_fd(), || TcpListener::bind(to).unwrap()).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            assert_eq!(std::io::copy(&mut stream, &mut std::io::sink()).unwrap(), BYTES);
        });
        // The sender is a thread of the node from its first burst on.
        in_netns(netns[0].as_fd(), || {
            let mut stream = TcpStream::connect(to).unwrap();
            for _ in 0..BYTES / 30_000 {
                std::io::Write::write_all(&mut stream, &[1; 30_000]).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .unwrap();
    });
    let stats = emulator.stop().unwrap();
    let (charged, large) = (ledger.charged.load(Ordering::Relaxed), ledger.large.load(Ordering::Relaxed));
    println!("{charged} charged, {large} of several segments, {} read", stats.packets_read);
    assert_eq!(stats.without_trailer, 0);
    assert!(large > 10 && charged > 10, "{charged} charged, {large} of several segments");
}

/// What a program sends as one for its NIC to cut stays one, and its sender is known by what the frame shows.
#[test]
fn a_frame_of_several_segments_tells_its_sender_apart_from_it() {
    if skip() {
        return;
    }
    let egress = Egress::load().unwrap();
    let spec = NetSpec { offload: true, ..two_nodes() };
    let (ns, tap, _) = nic(&egress, &spec);
    let (tid, before, after) = in_netns(ns.as_fd(), || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let segment: libc::c_int = 1000;
        let (option, length) = ((&raw const segment).cast(), size_of_val(&segment) as u32);
        // SAFETY: a live value of that length.
        let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, option, length) };
        assert_eq!(set, 0);
        poll_ms(1);
        spin(Duration::from_millis(2));
        let before = thread_cpu_ns();
        socket.send_to(&[7; 9500], (spec.nodes[1].ipv4, 7000)).unwrap();
        (rustix::thread::gettid().as_raw_pid() as u32, before, thread_cpu_ns())
    })
    .unwrap();
    let mut buffer = [0; 20_000];
    let end = Instant::now() + Duration::from_secs(5);
    let read = loop {
        let n = rustix::io::read(&tap, &mut buffer).unwrap_or(0);
        let (header, frame) = buffer[..n].split_first_chunk::<OFFLOAD_HEADER_BYTES>().unwrap_or((&[0; 10], &[]));
        if header[1] == 5 && frame[36..38] == 7000u16.to_be_bytes() {
            break (header, frame);
        }
        assert!(Instant::now() < end, "no datagram within 5 s");
    };
    let segments = Segments::new(read.0, read.1).unwrap();
    assert_eq!((segments.count(), read.1.len()), (10, 42 + 9500), "no trailer is on it");
    let at = segments.transport().unwrap();
    let mut key: [u8; LARGE_KEY_BYTES] = [&read.1[..12], &read.1[at..at + 8]].concat().try_into().unwrap();
    let trailer = egress.trailer_of(&key).expect("a trailer of it");
    assert_eq!(u32::from_ne_bytes(trailer[4..8].try_into().unwrap()), tid);
    let cpu = u64::from_ne_bytes(trailer[16..24].try_into().unwrap());
    assert!(before <= cpu + 50_000 && cpu <= after + 10_050_000, "{before} {cpu} {after}");
    key[19] ^= 1;
    assert_eq!(egress.trailer_of(&key), None, "not of another");
}

/// A node's thread that clocks of cores meter and that sends datagrams.
struct Sender {
    ticks: CoreTicks,
    spec: NetSpec,
    ns: OwnedFd,
    tap: OwnedFd,
    _egress: Egress,
}

impl Sender {
    /// None, and a printed reason, where these programs can't be loaded.
    fn new(cadence: Cadence) -> Option<Sender> {
        if skip() {
            return None;
        }
        let egress = Egress::load().unwrap();
        let ticks = match CoreTicks::start(&[], cadence, Some(egress.metered())) {
            Ok(ticks) => ticks,
            Err(e) => {
                diecast_quiet::skipped(e.to_string());
                return None;
            }
        };
        let spec = two_nodes();
        let (ns, tap, _) = nic(&egress, &spec);
        Some(Sender { ticks, spec, ns, tap, _egress: egress })
    }

    /// On one core, whose clock ticks so far apart, with a handler for hits; `f` gets what sends a datagram.
    fn run<T: Send>(&self, period_ns: u64, f: impl FnOnce(&dyn Fn()) -> T + Send) -> T {
        in_netns(self.ns.as_fd(), || {
            let core = time::allowed_cpus()[0];
            time::pin_to(&[core]).unwrap();
            trap::install_handler();
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            poll_ms(1);
            let _ticking = self.ticks.tick_here(core, period_ns).unwrap();
            f(&|| {
                socket.send_to(&[7; 100], (self.spec.nodes[1].ipv4, 7000)).unwrap();
            })
        })
        .unwrap()
    }
}

/// A packet that leaves between a late tick of its core's clock and the hit tells for how long the core stood still.
#[test]
fn a_frame_tells_that_its_senders_core_stood_still() {
    let cadence = Cadence::of_grain(1_000_000);
    let Some(sender) = Sender::new(cadence) else { return };
    // Of four ticks three are missing: three periods are told, less where others had the core meanwhile.
    let expected_ns = 3 * cadence.period_ns - 600_000..3 * cadence.period_ns + 100_000;
    let paused_ns = sender.run(4 * cadence.period_ns, |send| {
        let (end, mut buffer, mut most) = (Instant::now() + Duration::from_secs(20), [0; 2048], 0);
        while !expected_ns.contains(&most) && Instant::now() < end {
            send();
            let n = rustix::io::read(&sender.tap, &mut buffer).unwrap_or(0);
            let tid =
                buffer[..n].last_chunk::<TRAILER_BYTES>().map_or(0, |t| u32::from_ne_bytes([t[4], t[5], t[6], t[7]]));
            most = most.max(u64::from(tid >> 22) << 18);
        }
        most
    });
    assert!(expected_ns.contains(&paused_ns), "{paused_ns}");
}

/// A thread that gives the core up before each tick is hit as it gets it again, after each grain; not where packets have told
/// meanwhile what it used.
#[test]
fn a_thread_whose_packets_tell_what_it_used_is_not_overdue() {
    let Some(sender) = Sender::new(Cadence::of_grain(1_000_000)) else { return };
    let hits = |packets: bool| {
        // Of a period in which no tick comes while the test lasts.
        sender.run(3_600_000_000_000, |send| {
            let before = trap::hits();
            for _ in 0..100 {
                spin(Duration::from_micros(500));
                if packets {
                    send();
                }
                poll_ms(1);
            }
            trap::hits() - before
        })
    };
    let (without, with) = (hits(false), hits(true));
    // Of 50 ms one after each grain and up to a burst more; with packets only where others took the core for as long.
    assert!((30..=50).contains(&without) && with <= without / 5, "{without} without packets, {with} with");
}

/// A thread whose bursts end with a packet is hit less often, and its hits say that packets tell what it uses. One whose packets
/// come as a burst begins is hit as any other.
#[test]
fn a_hit_tells_whether_packets_tell_what_its_thread_uses() {
    let cadence = Cadence::of_grain(500_000);
    let Some(sender) = Sender::new(cadence) else { return };
    // Hits that say so, and all, in bursts of 500 us of which a part comes before the packet.
    let hits = |before_us: u64| {
        sender.run(cadence.period_ns, |send| {
            let (mut say, mut all) = (0, 0);
            for burst in 0..320 {
                let mut had = trap::hits();
                for (part_us, packet) in [(before_us, true), (500 - before_us, false)] {
                    let end_ns = thread_cpu_ns() + part_us * 1_000;
                    while thread_cpu_ns() < end_ns {
                        // The first bursts teach what the thread does.
                        if trap::hits() > had && burst >= 20 {
                            all += 1;
                            say += u32::from(packets_tell(trap::told()));
                        }
                        had = trap::hits();
                    }
                    if packet {
                        send();
                    }
                }
                // Of no even length, or ticks come at certain places of the bursts.
                std::thread::sleep(Duration::from_micros(500 + burst * 617 % 1_400));
            }
            (say, all)
        })
    };
    diecast_quiet::look(|| {
        let ((none, often), (each, seldom)) = (hits(50), hits(480));
        // 150 ms: a tick in 927 us without, and half of that before the next with.
        assert!(none == 0 && (110..=240).contains(&often), "{none} of {often}");
        assert!(each == seldom && (60..=often * 17 / 20).contains(&seldom), "{each} of {seldom}, {often} without");
    });
}

/// A receive, 300 us of work, and what a hit may be: a SIGTRAP whose handler takes 100 us. One in five comes right after the
/// receive, as one that was overdue does.
fn hits() {
    let egress = Egress::load().unwrap();
    let (ns, _tap, cookie) = nic(&egress, &two_nodes());
    extern "C" fn handler(_: i32) {
        spin(Duration::from_micros(100));
    }
    // SAFETY: has a handler, below.
    let hit = || assert_eq!(unsafe { libc::raise(libc::SIGTRAP) }, 0);
    // One thread for all: what a new one does first is cold.
    let (go, asked) = mpsc::channel::<u32>();
    let (tell, done) = mpsc::channel();
    let worker = move || {
        // SAFETY: the handler only reads a clock.
        unsafe { libc::signal(libc::SIGTRAP, handler as extern "C" fn(i32) as libc::sighandler_t) };
        // Loopback is down in a new namespace: a pair of Unix sockets receives as well.
        let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
        for rounds in asked {
            poll_ms(1);
            for round in 0..rounds {
                a.send(b"request").unwrap();
                b.recv(&mut [0; 16]).unwrap();
                if round % 5 == 4 {
                    hit();
                }
                spin(Duration::from_micros(150));
                if round % 5 < 2 {
                    hit();
                }
                spin(Duration::from_micros(150));
                poll_ms(1);
            }
            tell.send(()).unwrap();
        }
    };
    let node = ns.try_clone().unwrap();
    let running = std::thread::spawn(move || in_netns(node.as_fd(), worker).unwrap());
    let pieces = |rounds: u32| {
        go.send(rounds).unwrap();
        done.recv().unwrap();
    };
    let total = |counted: &Counted| {
        let mut sums = [0.0; diecast_core_cpu::HIT_SUMS];
        counted.hits.0.iter().flatten().enumerate().for_each(|(i, v)| sums[i % sums.len()] += v);
        sums
    };
    pieces(5);
    let none = egress.counted(cookie).unwrap();
    assert_eq!(total(&none)[0], 0.0, "before anybody has asked for it");
    // Bursts and their CPU time, ns, with what hits add and without, in turns: a host has dear seconds.
    let (mut with_hits, mut without) = ([0.0; 2], [0.0; 2]);
    let add = |sums: &mut [f64; 2], now: &Counted, before: &Counted| {
        let new = now.bursts.since(&before.bursts);
        sums.iter_mut()
            .zip([&new.count, &new.cpu_ns])
            .for_each(|(sum, cells)| *sum += cells.iter().flatten().sum::<f64>());
    };
    let mut before = none;
    for _ in 0..5 {
        egress.set_hit_cost(cookie, 0, 900_000).unwrap();
        pieces(20);
        let seen = egress.counted(cookie).unwrap();
        add(&mut with_hits, &seen, &before);
        // A piece that is longer than what lies between two hits is left out; what they add, three in five, is no part of bursts.
        egress.set_hit_cost(cookie, 100_000, 200_000).unwrap();
        pieces(20);
        before = egress.counted(cookie).unwrap();
        assert_eq!(total(&before)[0], total(&seen)[0]);
        add(&mut without, &before, &seen);
    }
    let [pieces_seen, cpu_us, with, hits, ..] = total(&before);
    // What the host delays beyond 900 us is left out.
    assert!((60.0..=80.0).contains(&pieces_seen), "{pieces_seen} pieces");
    assert!(with == hits && (30.0..=40.0).contains(&hits), "{hits} hits in {with} of them");
    let mean_us = cpu_us / pieces_seen;
    assert!((345.0..450.0).contains(&mean_us), "300 us and half a hit: {mean_us}");
    assert!(with_hits[0] >= 100.0 && without[0] >= 100.0, "{with_hits:?} {without:?}");
    let less_us = (with_hits[1] / with_hits[0] - without[1] / without[0]) / 1e3;
    assert!((40.0..80.0).contains(&less_us), "{less_us} us, {with_hits:?} {without:?}");
    drop(go);
    running.join().unwrap();
}

fn trailers() {
    let egress = Egress::load().unwrap();
    let spec = two_nodes();
    let (ns, tap, cookie) = nic(&egress, &spec);
    let to = spec.nodes[1].ipv4;
    // Another process of the node runs all the time: what it does keeps nothing of this one's warm.
    let _ticker = in_netns(ns.as_fd(), || {
        let ticking = "import time\nwhile True: time.sleep(0.003)";
        Ended(std::process::Command::new("python3").args(["-c", ticking]).spawn().unwrap())
    })
    .unwrap();
    // Its start is over.
    std::thread::sleep(Duration::from_millis(500));
    // Start-up, of which no ages are counted.
    in_netns(ns.as_fd(), || (0..320).for_each(|_| std::thread::sleep(Duration::from_micros(200)))).unwrap();
    let Counted { bursts: before, ages: before_ages, .. } = egress.counted(cookie).unwrap();
    // Odd and even lengths: the trailer begins at either parity.
    let payloads = [&b"even"[..], &b"odd"[..], &[7; 999][..]];
    let mut exact = 0;
    for (round, payload) in payloads.into_iter().cycle().take(9).enumerate() {
        let port = 7000 + round as u16;
        let (tid, slept, burst, before, after, woke, sent) = in_netns(ns.as_fd(), || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            // The thread came from another namespace: what it waits for is known from its second sleep on.
            std::thread::sleep(Duration::from_millis(1));
            let slept = monotonic_ns();
            poll_ms(20);
            let (burst, woke) = (thread_cpu_ns(), monotonic_ns());
            spin(Duration::from_millis(2));
            let before = thread_cpu_ns();
            let sent = monotonic_ns();
            socket.send_to(payload, (to, port)).unwrap();
            // Ends the burst.
            std::thread::sleep(Duration::from_millis(5));
            (rustix::thread::gettid().as_raw_pid() as u32, slept, burst, before, thread_cpu_ns(), woke, sent)
        })
        .unwrap();
        let frame = read_udp(&tap, port);
        let (packet, trailer) = frame.split_at(frame.len() - TRAILER_BYTES);
        assert_eq!(packet.len(), 42 + payload.len());
        assert_eq!(sum(trailer), 0xffff, "neutral in any checksum");
        // The pseudo header: both addresses, the protocol, the length.
        let mut whole = packet[26..34].to_vec();
        whole.extend([0, 17]);
        whole.extend(&packet[38..40]);
        whole.extend(&packet[34..]);
        assert_eq!(sum(&whole), 0xffff, "UDP checksum of {} bytes", payload.len());
        let u64_at = |at: usize| u64::from_ne_bytes(trailer[at..at + 8].try_into().unwrap());
        assert_eq!(u32::from_ne_bytes(trailer[4..8].try_into().unwrap()), tid);
        // The two clocks of a thread's CPU time agree to a few microseconds, but for what the host stole of the last tick.
        let (slack, tick) = (50_000, 10_000_000);
        let cpu = u64_at(16);
        assert!(before <= cpu + slack && cpu <= after + tick + slack, "{before} {cpu} {after}");
        exact += u32::from(cpu <= after + slack);
        assert!(u64_at(24) <= burst + slack && u64_at(24) + 2_000_000 <= cpu + slack, "burst {burst} {}", u64_at(24));
        // Woken when the sleep was over, running when a core was free.
        assert!((slept + 20_000_000..=woke).contains(&u64_at(32)), "{slept} {} {woke}", u64_at(32));
        let gap_us = u32::from_ne_bytes(trailer[48..52].try_into().unwrap());
        assert!(
            u64::from(gap_us) >= 15_000 && u64::from(gap_us) <= (woke - slept) / 1000,
            "the node had slept 20 ms: {gap_us} us"
        );
        assert!(u64_at(8) >= sent && u64_at(8) < sent + 1_000_000_000, "sent {sent} {}", u64_at(8));
    }
    assert!(exact >= 3, "CPU time as the thread's own clock has it in {exact} of 9 frames");
    // Nine bursts of 2 ms after 20 ms in poll; one counts for 1 ms at most. The other sleeps and blockings, four a round, are
    // shorter unless the host keeps the cores: with two thirds of them stolen there were 18 to 32 long ones.
    let from = diecast_core_cpu::gap_bin(15_000_000);
    let long = || {
        let bursts = egress.counted(cookie).unwrap().bursts.since(&before);
        let sum = |cells: &[[f64; diecast_core_abi::GAP_BINS]]| cells.iter().flat_map(|k| &k[from..]).sum::<f64>();
        (sum(&bursts.count), sum(&bursts.cpu_ns))
    };
    let (n, cpu_ns) = long();
    assert!((9.0..=45.0).contains(&n) && cpu_ns >= 8.5e6, "{n} bursts of {cpu_ns} ns");
    // The eighth last burst began before another sleep of 20 ms than the one before the burst. Only this process has its name.
    let ages = egress.counted(cookie).unwrap().ages.since(&before_ages);
    let (own, others) = ages.0.split_at(diecast_core_cpu::AGE_CELLS / 2);
    let sum = |cells: &[[f64; diecast_core_cpu::AGE_SUMS]], at: usize| cells.iter().map(|c| c[at]).sum::<f64>();
    let past = sum(own, 4) / sum(own, 0) / 16.0;
    assert!(sum(own, 0) >= 6.0 && sum(others, 0) == 0.0, "{} and {} bursts", sum(own, 0), sum(others, 0));
    assert!((14.2..18.5).contains(&past), "the past is 2^{past} us old");
    // The meter's sleep is in the middle of a burst, however long.
    in_netns(ns.as_fd(), || {
        poll_ms(1);
        poll_ms(20);
        spin(Duration::from_micros(300));
        meter_sleep(Duration::from_millis(25));
        spin(Duration::from_micros(300));
        poll_ms(1);
    })
    .unwrap();
    let (more, more_ns) = (long().0 - n, long().1 - cpu_ns);
    assert!(more == 1.0 && (600e3..1e6).contains(&more_ns), "{more} bursts of {more_ns} ns");
    // While the host's cores are slow none is counted; a poll of a ms ends each.
    for slow in [true, false] {
        egress.set_slow(slow).unwrap();
        in_netns(ns.as_fd(), || {
            poll_ms(20);
            spin(Duration::from_micros(300));
            poll_ms(1);
        })
        .unwrap();
        assert_eq!(long().0 - n, if slow { 1.0 } else { 2.0 }, "slow: {slow}");
    }
}
