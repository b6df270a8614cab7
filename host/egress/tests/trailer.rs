//! Every frame of a node tells its sender's CPU time, and its checksums stay right.

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use common::{Ended, meter_sleep, nic, poll_ms, skip, spin, thread_cpu_ns, two_nodes};
use diecast_core_abi::{GAP_BINS, METER_PAYS, METER_SLEEP};
use diecast_core_cpu::Sent;
use diecast_core_net::{NetSpec, OFFLOAD_HEADER_BYTES, Segments};
use diecast_core_vtime::{FrameMap, RealNs, Tdf, VirtNs};
use diecast_host_egress::{Counted, Egress, HitCost, WakeTimes};
use diecast_host_net::{
    EgressLedger, Emulator, EmulatorConfig, LARGE_KEY_BYTES, NicKind, SharedFrame, TRAILER_BYTES, create_netns,
    in_netns, monotonic_now, prepare_node_with,
};
use diecast_host_sys::time;

fn monotonic_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
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
    // The third begins well before the millisecond is over, the fourth no sooner.
    const PIECE_US: u64 = 340;
    let egress = Egress::load().unwrap();
    let (ns, _tap, cookie) = nic(&egress, &two_nodes());
    let asked = Asked::new(&ns, move || {
        // Loopback is down in a new namespace: a pair of Unix sockets receives as well.
        let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
        move |pieces| {
            poll_ms(3);
            for _ in 0..pieces {
                a.send(&[0; 1024]).unwrap();
                b.recv(&mut [0; 1024]).unwrap();
                spin(Duration::from_micros(PIECE_US));
            }
            poll_ms(3);
        }
    });
    let burst_of = |pieces: u32| {
        let before = egress.counted(cookie).unwrap().bursts;
        asked.does(pieces);
        let bursts = egress.counted(cookie).unwrap().bursts.since(&before);
        // Those of nothing but the next wait are far shorter than a piece.
        (sum_of(&bursts.cpu_ns) / 1e3, sum_of(&bursts.data))
    };
    burst_of(1);
    // A receive counts like a KiB more: 32 units of 64 bytes. One that comes when the millisecond is over begins what is not counted.
    for (pieces, counted) in [(1, 1.0), (2, 2.0), (3, 3.0), (6, 3.0)] {
        let seen: Vec<(f64, f64)> = (0..20).map(|_| burst_of(pieces)).collect();
        let most = 32.0 * counted;
        let (whole, others): (Vec<_>, Vec<_>) = seen.iter().partition(|(_, data)| *data == most);
        // Those that the host held up have fewer pieces in their first millisecond; those in which it slowed a core down none.
        assert!(whole.len() >= 15 && others.iter().all(|(_, data)| *data < most), "{pieces} pieces: {seen:?}");
        let (each_us, at_least_us) = (median(whole.iter().map(|(cpu_us, _)| *cpu_us)), PIECE_US as f64 * counted);
        println!("{pieces} pieces: {} bursts, {each_us} us", whole.len());
        assert!(
            (at_least_us..at_least_us + 50.0 * counted + 200.0).contains(&each_us),
            "{pieces} pieces: {each_us} us"
        );
    }
    asked.ends();
}

/// A thread in a network namespace that does as often as it is asked: what a new one does first is cold.
struct Asked {
    go: mpsc::Sender<u32>,
    done: mpsc::Receiver<()>,
    running: std::thread::JoinHandle<()>,
}

impl Asked {
    /// `prepare` gives, in that thread, what it does with each number.
    fn new<W: FnMut(u32)>(ns: &OwnedFd, prepare: impl FnOnce() -> W + Send + 'static) -> Asked {
        let ((go, asked), (tell, done)) = (mpsc::channel(), mpsc::channel());
        let node = ns.try_clone().unwrap();
        let work = move || {
            let mut work = prepare();
            for number in asked {
                work(number);
                tell.send(()).unwrap();
            }
        };
        let running = std::thread::spawn(move || in_netns(node.as_fd(), work).unwrap());
        Asked { go, done, running }
    }

    fn does(&self, number: u32) {
        self.go.send(number).unwrap();
        self.done.recv().unwrap();
    }

    fn ends(self) {
        drop(self.go);
        self.running.join().unwrap();
    }
}

/// The sum over all kinds and bins.
fn sum_of(cells: &[[f64; GAP_BINS]]) -> f64 {
    cells.iter().flatten().sum()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// What lies between a thread's sleep and its first receive is counted, but where it had a hit or took long; so is what lies between its last
/// packet and the next receive or sleep.
#[test]
fn wake_ups_are_counted_up_to_the_first_receive() {
    look(wakes);
}

/// What takes longer from a wait to a receive is work (bpf-egress's WAKE_MAX_NS).
const WAKE_MAX_NS: u64 = 100_000;

fn wakes() {
    let egress = Egress::load().unwrap();
    let spec = two_nodes();
    let (ns, _tap, cookie) = nic(&egress, &spec);
    extern "C" fn handler(_: i32) {}
    // What passes of its CPU clock between a wait without a hit and the first receive, ns: on a slow host more than the work.
    let rounds = |count: u64| {
        in_netns(ns.as_fd(), || {
            let mut own_ns = Vec::new();
            // SAFETY: the handler does nothing.
            unsafe { libc::signal(libc::SIGTRAP, handler as extern "C" fn(i32) as libc::sighandler_t) };
            let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
            let out = UdpSocket::bind("0.0.0.0:0").unwrap();
            for round in 0..count {
                a.send(b"request").unwrap();
                a.send(b"request").unwrap();
                let before_ns = thread_cpu_ns();
                poll_ms(1);
                if round % 3 == 0 {
                    // SAFETY: has a handler.
                    assert_eq!(unsafe { libc::raise(libc::SIGTRAP) }, 0);
                }
                // Longer than any way, so work: that counts for none.
                spin(Duration::from_micros(if round % 5 == 1 { 200 } else { 40 }));
                b.recv(&mut [0; 16]).unwrap();
                if round % 3 != 0 {
                    own_ns.push(thread_cpu_ns() - before_ns);
                }
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
            own_ns
        })
        .unwrap()
    };
    rounds(3);
    let before = egress.counted(cookie).unwrap().wakes;
    let own_ns = rounds(60);
    let shorter = |than_ns: u64| own_ns.iter().copied().filter(|&ns| ns < than_ns).collect::<Vec<u64>>();
    // Going to sleep is in it, which is not counted.
    let (surely, perhaps) = (shorter(WAKE_MAX_NS - 5_000), shorter(WAKE_MAX_NS + 30_000));
    let own_mean_ns = perhaps.iter().sum::<u64>() / perhaps.len().max(1) as u64;
    let WakeTimes { begins, ends, turns, .. } = egress.counted(cookie).unwrap().wakes.since(&before);
    for (what, [count, ns], (least, most), (from_ns, to_ns)) in [
        ("begins", begins, (surely.len() as u64, perhaps.len() as u64), (40_000, own_mean_ns)),
        ("turns", turns, (58, 61), (400_000, 500_000)),
        ("ends", ends, (43, 46), (600_000, 700_000)),
    ] {
        println!("{count} {what} of {} ns", ns / count.max(1));
        assert!((least..=most).contains(&count), "{count} {what}");
        assert!((from_ns..to_ns).contains(&(ns / count)), "{what}: {} ns each", ns / count);
    }
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

/// A receive, 300 us of work, and what a hit may be: a SIGTRAP whose handler takes 100 us. One in five comes right after the
/// receive, as one that was overdue does.
fn hits() {
    let egress = Egress::load().unwrap();
    let (ns, _tap, cookie) = nic(&egress, &two_nodes());
    extern "C" fn handler(_: i32) {
        spin(Duration::from_micros(100));
    }
    // An overdue one that the host held up for as long as tells an overdue one (30 us) may be taken for one that was due.
    const TOLD_APART: Duration = Duration::from_micros(30);
    let held_up = Arc::new(AtomicU32::new(0));
    let told = held_up.clone();
    // SAFETY: has a handler, below.
    let hit = || assert_eq!(unsafe { libc::raise(libc::SIGTRAP) }, 0);
    let asked = Asked::new(&ns, move || {
        // SAFETY: the handler only reads a clock.
        unsafe { libc::signal(libc::SIGTRAP, handler as extern "C" fn(i32) as libc::sighandler_t) };
        // Loopback is down in a new namespace: a pair of Unix sockets receives as well.
        let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
        move |rounds| {
            poll_ms(1);
            for round in 0..rounds {
                a.send(b"request").unwrap();
                let received_after = Instant::now();
                b.recv(&mut [0; 16]).unwrap();
                if round % 5 == 4 {
                    hit();
                    // The handler's own 100 us lie in it.
                    let held = received_after.elapsed() >= TOLD_APART + Duration::from_micros(100);
                    told.fetch_add(held.into(), Ordering::Relaxed);
                }
                spin(Duration::from_micros(150));
                if round % 5 < 2 {
                    hit();
                }
                spin(Duration::from_micros(150));
                poll_ms(1);
            }
        }
    });
    let total = |counted: &Counted| {
        let mut sums = [0.0; diecast_core_cpu::HIT_SUMS];
        counted.hits.0.iter().flatten().enumerate().for_each(|(i, v)| sums[i % sums.len()] += v);
        sums
    };
    asked.does(5);
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
    let (mut before, mut held) = (none, 0.0);
    for _ in 0..5 {
        egress.set_hit_cost(cookie, HitCost { period_ns: 900_000, ..HitCost::default() }).unwrap();
        held_up.store(0, Ordering::Relaxed);
        asked.does(20);
        held += f64::from(held_up.load(Ordering::Relaxed));
        let seen = egress.counted(cookie).unwrap();
        add(&mut with_hits, &seen, &before);
        // A piece that is longer than what lies between two hits is left out; what they add, three in five, is no part of bursts.
        egress.set_hit_cost(cookie, HitCost { added_ns: 100_000, period_ns: 200_000, ..HitCost::default() }).unwrap();
        asked.does(20);
        before = egress.counted(cookie).unwrap();
        assert_eq!(total(&before)[0], total(&seen)[0]);
        add(&mut without, &before, &seen);
    }
    let [pieces_seen, cpu_us, with, hits, ..] = total(&before);
    // What the host delays beyond 900 us is left out.
    assert!((60.0..=80.0 + held).contains(&pieces_seen), "{pieces_seen} pieces, {held} overdue hits held up");
    assert!(with == hits && (30.0..=40.0 + held).contains(&hits), "{hits} hits in {with} of them, {held} held up");
    assert!(held < 10.0, "{held} of 20 overdue hits were held up");
    let mean_us = cpu_us / pieces_seen;
    assert!((345.0..450.0).contains(&mean_us), "300 us and half a hit: {mean_us}");
    assert!(with_hits[0] >= 100.0 && without[0] >= 100.0, "{with_hits:?} {without:?}");
    let less_us = (with_hits[1] / with_hits[0] - without[1] / without[0]) / 1e3;
    assert!((40.0..80.0).contains(&less_us), "{less_us} us, {with_hits:?} {without:?}");
    asked.ends();
}

/// A sleep in which a thread pays before a wait ends its piece of work, and what it takes is no part of bursts.
#[test]
fn what_a_thread_pays_is_no_part_of_its_work() {
    look(pays);
}

fn pays() {
    let egress = Egress::load().unwrap();
    let (ns, _tap, cookie) = nic(&egress, &two_nodes());
    // Mean bursts and pieces of 300 us of work, and 100 us to pay, µs; what that is thought to take, in turns.
    let (mut bursts, mut pieces) = ([[0.0; 2]; 2], [0.0; 2]);
    for turn in 0..6 {
        let pays_ns = [0, 100_000][turn % 2];
        egress.set_hit_cost(cookie, HitCost { period_ns: 900_000, pays_ns, ..HitCost::default() }).unwrap();
        let before = egress.counted(cookie).unwrap();
        in_netns(ns.as_fd(), || {
            // Loopback is down in a new namespace: a pair of Unix sockets receives as well.
            let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
            poll_ms(1);
            for _ in 0..40 {
                a.send(b"request").unwrap();
                b.recv(&mut [0; 16]).unwrap();
                spin(Duration::from_micros(300));
                meter_sleep(Duration::from_micros(500), METER_PAYS);
                spin(Duration::from_micros(100));
                poll_ms(1);
            }
        })
        .unwrap();
        let after = egress.counted(cookie).unwrap();
        let new = after.bursts.since(&before.bursts);
        bursts[turn % 2][0] += sum_of(&new.count);
        bursts[turn % 2][1] += sum_of(&new.cpu_ns) / 1e3;
        after.hits.since(&before.hits).0.iter().for_each(|of_kind| {
            pieces[0] += of_kind[0];
            pieces[1] += of_kind[1];
        });
    }
    let [with_us, without_us] = bursts.map(|[n, us]| us / n);
    assert!(bursts.iter().all(|b| b[0] >= 100.0) && (200.0..=240.0).contains(&pieces[0]), "{bursts:?} {pieces:?}");
    assert!((80.0..120.0).contains(&(with_us - without_us)), "{with_us} and {without_us} us");
    let piece_us = pieces[1] / pieces[0];
    assert!((300.0..370.0).contains(&piece_us), "{piece_us} us a piece");
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
        let sum = |cells: &[[f64; GAP_BINS]]| cells.iter().flat_map(|k| &k[from..]).sum::<f64>();
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
        meter_sleep(Duration::from_millis(25), METER_SLEEP);
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
