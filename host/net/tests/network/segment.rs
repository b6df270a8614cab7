//! The segment as nodes see it: ping, neighbour discovery, broadcast, valid checksums, sysctls, pause, clean-up.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use diecast_core_net::{Codel, Discipline, Link, NetBuilder, NetSpec};
use diecast_core_vtime::Tdf;
use diecast_host_net::{
    EmulatorStats, NODE_DEVICE, SysctlOutcome, create_netns, link_counters, monotonic_now, set_namespace_sysctls,
};

use crate::lab::{Lab, echo, echo_server, skip};

fn segment(nodes: usize, link: Link) -> NetSpec {
    let mut b = NetBuilder::new(1, 77);
    let s = b.switch("s");
    for i in 0..nodes {
        let (_, v) = b.node(&format!("n{i}"));
        b.link(v, s, link);
    }
    b.build().unwrap()
}

fn ping(lab: &Lab, from: usize, address: &str) -> String {
    let args = ["-c", "3", "-i", "0.05", "-W", "3", address];
    let out = lab.within(from, || Command::new("ping").args(args).output().unwrap());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "ping {address}: {text} {}", String::from_utf8_lossy(&out.stderr));
    text
}

#[test]
fn ping_works_over_ipv4_ipv6_and_link_local() {
    if skip() {
        return;
    }
    let lab = Lab::start(segment(3, Link { delay_ns: 1_000_000, ..Link::default() }), "1");
    let peer = &lab.spec.nodes[2];
    assert!(ping(&lab, 0, &peer.ipv4.to_string()).contains(" 0% packet loss"));
    assert!(ping(&lab, 0, &peer.ipv6.to_string()).contains(" 0% packet loss"));
    ping(&lab, 0, &format!("{}%{NODE_DEVICE}", peer.mac.link_local()));
    let n = lab.emulator.stats().unwrap().nodes[0];
    assert!(n.neighbours_answered >= 3, "ARP and two solicitations: {n:?}");
    // An address that nobody has stays unanswered.
    let out = lab.within(0, || Command::new("ping").args(["-c", "1", "-W", "1", "10.77.200.200"]).output().unwrap());
    assert!(!out.status.success());
    assert!(lab.emulator.stop().unwrap().nodes[0].dropped_unknown_neighbour >= 1);
}

#[test]
fn a_broadcast_reaches_every_other_node() {
    if skip() {
        return;
    }
    let lab = Lab::start(segment(4, Link::default()), "1");
    let receivers: Vec<_> = (1..4).map(|n| lab.udp(n, 5000)).collect();
    let sender = lab.udp(0, 5000);
    sender.set_broadcast(true).unwrap();
    for to in ["10.77.255.255:5000", "255.255.255.255:5000"] {
        sender.send_to(to.as_bytes(), to).unwrap();
        for r in &receivers {
            let mut buffer = [0; 32];
            let (n, from) = r.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..n], from), (to.as_bytes(), lab.v4(0, 5000)));
        }
    }
}

/// Who joined a group hears it, and nobody else; by IPv4 and IPv6.
#[test]
fn a_multicast_group_is_heard_by_those_who_joined() {
    if skip() {
        return;
    }
    let lab = Lab::start(segment(4, Link::default()), "1");
    let (v4, v6) = (Ipv4Addr::new(239, 1, 2, 3), "ff02::77:1".parse::<Ipv6Addr>().unwrap());
    let bind6 = |n: usize| {
        let s = lab.within(n, || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 5001)).unwrap());
        s.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        s
    };
    // The NIC's number in each namespace.
    let index = |n: usize| {
        let text = lab.within(n, || std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap());
        let line = text.lines().find(|l| l.ends_with(NODE_DEVICE)).expect("an address");
        u32::from_str_radix(line.split(' ').nth(1).unwrap(), 16).unwrap()
    };
    let (receivers, receivers6): (Vec<_>, Vec<_>) = (1..4).map(|n| (lab.udp(n, 5000), bind6(n))).unzip();
    for (n, (r, r6)) in receivers.iter().zip(&receivers6).enumerate().take(2) {
        lab.within(n + 1, || r.join_multicast_v4(&v4, &lab.spec.nodes[n + 1].ipv4).unwrap());
        r6.join_multicast_v6(&v6, index(n + 1)).unwrap();
    }
    let (sender, sender6) = (lab.udp(0, 5000), bind6(0));
    let mut heard = [[false; 2]; 3];
    // Addresses may still be under duplicate address detection.
    for _ in 0..20 {
        sender.send_to(b"group", (v4, 5000)).unwrap();
        let _ = sender6.send_to(b"group", SocketAddrV6::new(v6, 5001, 0, index(0)));
        for (n, (r, r6)) in receivers.iter().zip(&receivers6).enumerate() {
            for (kind, socket) in [r, r6].into_iter().enumerate() {
                socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                let mut buffer = [0; 16];
                heard[n][kind] |= socket.recv(&mut buffer).is_ok_and(|got| &buffer[..got] == b"group");
            }
        }
        if heard[..2] == [[true; 2]; 2] {
            break;
        }
    }
    assert_eq!(heard, [[true, true], [true, true], [false, false]]);
}

/// As many bytes as an MTU of 9000 has room for, in one frame, and one more in two fragments.
#[test]
fn jumbo_frames_cross_links_of_mtu_9000() {
    if skip() {
        return;
    }
    let lab = Lab::start(NetSpec { mtu: 9000, ..segment(2, Link::default()) }, "1");
    let (sender, receiver) = (lab.udp(0, 5000), lab.udp(1, 5000));
    let mut buffer = vec![0; 10_000];
    // The address is known from here on.
    sender.send_to(b"?", lab.v4(1, 5000)).unwrap();
    receiver.recv(&mut buffer).unwrap();
    // Of the sending namespace.
    let fragments = || {
        let snmp = lab.within(0, || std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
        let lines: Vec<Vec<&str>> = snmp.lines().take(2).map(|l| l.split(' ').collect()).collect();
        let at = lines[0].iter().position(|name| *name == "FragCreates").unwrap();
        lines[1][at].parse::<u32>().unwrap()
    };
    for (bytes, expected) in [(8972, 0), (8973, 2)] {
        let payload = vec![bytes as u8; bytes];
        sender.send_to(&payload, lab.v4(1, 5000)).unwrap();
        let got = receiver.recv(&mut buffer).unwrap();
        assert!(buffer[..got] == payload, "{got} of {bytes} bytes");
        assert_eq!(fragments(), expected, "{bytes} bytes");
    }
}

/// With threads that write beside the one of the model: nothing is lost, and what goes to a node stays in order.
#[test]
fn several_threads_hand_over_in_order() {
    if skip() {
        return;
    }
    const EACH: u32 = 6_000;
    const BURST: u32 = 50;
    for threads in [2, 3] {
        let lab = Lab::start_threads(segment(4, Link { delay_ns: 2_000_000, ..Link::default() }), "1", threads);
        let sender = lab.udp(0, 5000);
        let receivers: Vec<_> = (1..4).map(|n| lab.udp(n, 5000)).collect();
        let to: Vec<_> = (1..4).map(|n| lab.v4(n, 5000)).collect();
        // Addresses are known from here on.
        for (r, to) in receivers.iter().zip(&to) {
            sender.send_to(&0u32.to_le_bytes(), to).unwrap();
            r.recv_from(&mut [0; 4]).unwrap();
        }
        let got = [const { AtomicU32::new(0) }; 3];
        thread::scope(|s| {
            for (r, got) in receivers.iter().zip(&got) {
                s.spawn(|| {
                    for expected in 1..=EACH {
                        let mut word = [0; 4];
                        r.recv_from(&mut word).unwrap();
                        assert_eq!(u32::from_le_bytes(word), expected);
                        got.store(expected, Ordering::Relaxed);
                    }
                });
            }
            // In bursts that come together at the end of their links. No more are on their way than a TAP's queue and
            // a socket hold, whoever of sender, emulator and receivers the host stops for a while.
            for n in 1..=EACH {
                to.iter().for_each(|to| _ = sender.send_to(&n.to_le_bytes(), to).unwrap());
                if n % BURST == 0 {
                    thread::sleep(Duration::from_millis(4));
                    let wait_end = Instant::now() + Duration::from_secs(20);
                    while got.iter().any(|got| got.load(Ordering::Relaxed) + BURST < n) {
                        assert!(Instant::now() < wait_end, "of {n} sent, {got:?} came");
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        });
        let stats = lab.emulator.stats().unwrap();
        assert!(stats.packets_written >= u64::from(3 * EACH), "{}", stats.packets_written);
        assert_eq!((stats.write_errors.iter().sum::<u64>(), stats.lateness().count >= u64::from(3 * EACH)), (0, true));
        let names = std::fs::read_dir("/proc/self/task").unwrap();
        let names = names.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
        assert_eq!(names.filter(|n| n.trim() == "diecast-net-w").count(), threads - 1);
        assert!(lab.emulator.stop().unwrap().packets_written >= stats.packets_written);
    }
}

/// A bulk TCP transfer would send super-packets if an offload were on, and the model drops those.
#[test]
fn tcp_frames_are_at_most_mtu_sized_and_use_reno() {
    if skip() {
        return;
    }
    const BYTES: usize = 4_000_000;
    let lab =
        Lab::start(segment(2, Link { bandwidth_bps: Some(200_000_000), delay_ns: 500_000, ..Link::default() }), "1");
    let listener = lab.within(1, || TcpListener::bind(("0.0.0.0", 80)).unwrap());
    let to = lab.v4(1, 80);
    thread::scope(|s| {
        s.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            assert_eq!(std::io::copy(&mut stream, &mut std::io::sink()).unwrap(), BYTES as u64);
        });
        let mut stream = lab.within(0, || TcpStream::connect(to).unwrap());
        let name = rustix::net::sockopt::tcp_congestion(&stream).unwrap();
        assert_eq!(name, "reno");
        std::io::Write::write_all(&mut stream, &vec![1; BYTES]).unwrap();
    });
    // The end of the connection is still on its way, and the kernel sends frames of its own at any time: both sides are
    // read until they agree, for at most two seconds.
    let (mut stats, mut counters);
    let mut readings = 0;
    loop {
        stats = lab.emulator.stats().unwrap();
        counters = link_counters(lab.netns[0].as_fd(), NODE_DEVICE).unwrap();
        readings += 1;
        if stats.nodes[0].packets_sent == counters.sent_packets || readings == 200 {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(counters.sent_dropped, 0, "the TAP's queue overflowed");
    let n = stats.nodes[0];
    assert_eq!((n.dropped_oversize, n.dropped_malformed, n.dropped_spoofed), (0, 0, 0));
    assert!(n.packets_sent as usize >= BYTES / 1448, "{n:?}");
    assert_eq!(counters.sent_packets, n.packets_sent);
    assert!(stats.receive_work[1].0 > 0 && stats.cpu.0 > 0);
}

#[test]
fn sysctls_are_stretched_and_read_back() {
    if skip() {
        return;
    }
    let lab = Lab::start(segment(2, Link::default()), "10");
    let row = |name: &str| lab.sysctls.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no row {name}"));
    for (name, value) in [
        ("net.ipv4.tcp_congestion_control", "reno"),
        ("net.ipv4.tcp_rto_min_us", "2000000"),
        ("net.ipv4.tcp_retries2", "84"),
        ("net.ipv4.tcp_keepalive_time", "72000"),
        ("net.ipv4.tcp_no_metrics_save", "1"),
        ("net.ipv4.neigh.eth0.base_reachable_time_ms", "300000"),
        ("net.ipv6.conf.eth0.dad_transmits", "0"),
    ] {
        assert_eq!(row(name).got.as_deref(), Some(value), "{:?}", row(name));
        assert_eq!(row(name).outcome, SysctlOutcome::Set);
    }
    for r in &lab.sysctls {
        println!("{r:?}");
        assert!(!matches!(r.outcome, SysctlOutcome::Refused(_)), "{r:?}");
        assert_ne!(r.outcome, SysctlOutcome::Clamped, "nothing is out of range at TDF 10: {r:?}");
    }
    // What the kernel can't hold is said, and the end of its range is in force.
    let ns = create_netns().unwrap();
    let rows = set_namespace_sysctls(ns.as_fd(), "100".parse::<Tdf>().unwrap()).unwrap();
    let reuse = rows.iter().find(|r| r.name == "net.ipv4.tcp_tw_reuse_delay").unwrap();
    let clamped = SysctlOutcome::Clamped;
    assert_eq!((reuse.wanted.as_str(), reuse.got.as_deref(), &reuse.outcome), ("100000", Some("60000"), &clamped));
    // The first namespace keeps its own.
    assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rto_min_us").unwrap().trim(), "200000");
}

#[test]
fn tcp_asks_for_marks_where_a_pipe_gives_them() {
    if skip() {
        return;
    }
    for ecn in [false, true] {
        let codel = Discipline::Codel(Codel { ecn, ..Codel::default() });
        let lab = Lab::start(segment(2, Link { discipline: codel, ..Link::default() }), "10");
        let row = lab.sysctls.iter().find(|r| r.name == "net.ipv4.tcp_ecn");
        assert_eq!(row.map(|r| &r.outcome), ecn.then_some(&SysctlOutcome::Set));
        let own = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_ecn").unwrap();
        let nodes = lab.within(0, || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_ecn"));
        let want = if ecn { "1\n" } else { "2\n" };
        assert_eq!(nodes.unwrap(), want, "the host has {own}");
    }
}

#[test]
fn a_paused_network_delivers_nothing_and_goes_on_after_resume() {
    if !skip() {
        diecast_quiet::look(pause_and_resume);
    }
}

/// How long an echo took during which, 30 ms after it was sent, this happened to the lab's time.
fn echo_during(lab: &Lab, change: impl FnOnce() + Send) -> Duration {
    let (client, server) = (lab.udp(0, 6000), lab.udp(1, 6000));
    thread::scope(|s| {
        s.spawn(|| echo_server(&server));
        let mut payload = [0; 32];
        echo(&client, lab.v4(1, 6000), &mut payload, 1);
        s.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            change();
        });
        let took = echo(&client, lab.v4(1, 6000), &mut payload, 2);
        client.send_to(&[0], lab.v4(1, 6000)).unwrap();
        took
    })
}

fn retime(lab: &Lab, to: &str) {
    lab.frame.update(|f| f.retime(monotonic_now(), to.parse().unwrap())).unwrap();
    lab.emulator.kick();
}

fn pause_and_resume() {
    let lab = Lab::start(segment(2, Link { delay_ns: 20_000_000, ..Link::default() }), "1");
    let took = echo_during(&lab, || {
        lab.frame.update(|f| f.pause(monotonic_now())).unwrap();
        lab.emulator.kick();
        thread::sleep(Duration::from_millis(500));
        retime(&lab, "1");
    });
    println!("80 ms with a pause of 500 ms took {took:?}");
    assert!((Duration::from_millis(578)..Duration::from_millis(700)).contains(&took), "{took:?}");
}

#[test]
fn packets_on_their_way_follow_a_new_rate() {
    if !skip() {
        // Of 80 virtual ms 30 at the one rate, the rest at the other; or 7.5 of them, and the rest.
        diecast_quiet::look(|| retime_in_flight("1", "4", 30 + 200));
        diecast_quiet::look(|| retime_in_flight("4", "1", 30 + 72));
    }
}

fn retime_in_flight(from: &str, to: &str, expected_ms: u64) {
    let lab = Lab::start(segment(2, Link { delay_ns: 20_000_000, ..Link::default() }), from);
    let took = echo_during(&lab, || retime(&lab, to));
    println!("80 virtual ms from TDF {from} to {to} took {took:?}");
    let expected = Duration::from_millis(expected_ms);
    assert!((expected - Duration::from_millis(2)..expected + Duration::from_millis(60)).contains(&took), "{took:?}");
}

#[test]
fn an_idle_emulator_sleeps_and_a_stopped_one_says_so() {
    if !skip() {
        diecast_quiet::look(idle_and_stopped);
    }
}

fn idle_and_stopped() {
    let lab = Lab::start(segment(2, Link::default()), "1");
    thread::sleep(Duration::from_millis(300));
    let before = lab.emulator.stats().unwrap();
    thread::sleep(Duration::from_secs(1));
    let after = lab.emulator.stats().unwrap();
    // A query wakes it once. The kernel's own frames (router solicitations, multicast reports) come when they like: each
    // wakes it when it is sent and when it is due, and three looks follow either, then one each 40 ms for a while.
    let frames = after.packets_read - before.packets_read;
    let (wakeups, most) = (after.wakeups - before.wakeups, 2 + 25 + 8 * frames);
    assert!(wakeups <= most, "{wakeups} wake-ups in an idle second with {frames} frames: {most} would do");
    // 5 ms for its 25 looks (this is no release build), and as much for each that a frame of the kernel's asks for.
    let (cpu_ns, most_ns) = (after.cpu.0 - before.cpu.0, 200_000 * wakeups);
    println!("{cpu_ns} ns of CPU, {wakeups} wake-ups, {frames} frames");
    assert!(cpu_ns < most_ns, "{cpu_ns} ns of CPU in an idle second, {wakeups} wake-ups, {frames} frames");
    // Besides deliveries only late looks count.
    let done = |s: &EmulatorStats| s.packets_written + s.write_errors.iter().sum::<u64>();
    let delivered = done(&after) - done(&before);
    let events = after.lateness_since(&before).count;
    assert!((delivered..=delivered + wakeups).contains(&events), "{events} events, {delivered} deliveries");
    let tid = lab.emulator.thread_id();
    lab.emulator.stop().unwrap();
    assert!(!std::path::Path::new(&format!("/proc/self/task/{tid}")).exists(), "the thread is gone");
}
