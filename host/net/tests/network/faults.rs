//! NICs that go and nodes that misbehave, on real devices: counted, and nobody else notices.

use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use diecast_core_net::{Link, NetBuilder, NetSpec, OFFLOAD_HEADER_BYTES};
use diecast_host_net::{EmulatorStats, NODE_DEVICE};

use crate::lab::{Lab, echo, echo_server, skip};
use crate::offload::raw_socket;

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

fn star(offload: bool) -> NetSpec {
    let mut b = NetBuilder::new(1, 77);
    let s = b.switch("s");
    for name in ["a", "b", "c", "d"] {
        let (_, v) = b.node(name);
        b.link(v, s, Link { bandwidth_bps: Some(100_000_000), delay_ns: 100_000, ..Link::default() });
    }
    b.set_offload(offload);
    b.build().unwrap()
}

fn ip(lab: &Lab, node: usize, arguments: &[&str]) {
    let done = lab.within(node, || Command::new("ip").args(arguments).status().unwrap());
    assert!(done.success(), "ip {arguments:?}");
}

/// A snapshot for which this holds, within five seconds.
fn stats_when(lab: &Lab, what: &str, holds: impl Fn(&EmulatorStats) -> bool) -> EmulatorStats {
    let begin = Instant::now();
    loop {
        let stats = lab.emulator.stats().unwrap();
        if holds(&stats) {
            return stats;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(5),
            "{what}: {:?}, {:?} lost, {:?} refused",
            stats.nodes,
            stats.taps_lost,
            stats.write_errors
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// A and b talk while `meanwhile` does something; every question is answered.
fn talk(lab: &Lab, meanwhile: impl FnOnce(&AtomicBool) + Send) {
    let (client, server, done) = (lab.udp(A, 6000), lab.udp(B, 6000), AtomicBool::new(false));
    thread::scope(|s| {
        s.spawn(|| echo_server(&server));
        s.spawn(|| meanwhile(&done));
        let mut payload = [0; 64];
        for id in 0..20 {
            // Panics when none comes.
            echo(&client, lab.v4(B, 6000), &mut payload, id);
            thread::sleep(Duration::from_millis(2));
        }
        done.store(true, Ordering::Relaxed);
        client.send_to(&[0], lab.v4(B, 6000)).unwrap();
    });
}

#[test]
fn a_nic_that_goes_down_or_away_costs_only_its_own_node() {
    if skip() {
        return;
    }
    let lab = Lab::start(star(false), "1");
    let (to_c, at_c) = (lab.udp(A, 6001), lab.v4(C, 6001));
    // Its address is asked for, and found, while it is down: neighbours are the emulator's to tell.
    ip(&lab, C, &["link", "set", NODE_DEVICE, "down"]);
    talk(&lab, |done| {
        while !done.load(Ordering::Relaxed) {
            to_c.send_to(b"lost", at_c).unwrap();
            thread::sleep(Duration::from_millis(2));
        }
    });
    let down = stats_when(&lab, "refused by a NIC that is down", |s| s.write_errors[C] >= 3);
    assert_eq!((&down.taps_lost[..], down.nodes[A].dropped_unknown_destination), (&[false; 4][..], 0));
    assert_eq!(down.write_errors.iter().sum::<u64>(), down.write_errors[C], "nobody else's: {:?}", down.write_errors);
    ip(&lab, C, &["link", "set", NODE_DEVICE, "up"]);
    let back = lab.udp(C, 6001);
    to_c.send_to(b"back", at_c).unwrap();
    let mut buffer = [0; 16];
    assert_eq!(back.recv(&mut buffer).unwrap(), 4);
    assert_eq!(&buffer[..4], b"back", "nothing of what was lost comes later");
    ip(&lab, C, &["link", "delete", NODE_DEVICE]);
    stats_when(&lab, "a device is gone", |s| s.taps_lost == [false, false, true, false]);
    let refused = lab.emulator.stats().unwrap().write_errors[C];
    to_c.send_to(b"gone", at_c).unwrap();
    stats_when(&lab, "nothing can be written to it", |s| s.write_errors[C] > refused);
    talk(&lab, |_| {});
}

/// Frames that c may not send, each so often, behind an empty virtio header.
const LIES: u64 = 50;

fn lies(lab: &Lab) -> [Vec<u8>; 3] {
    let (a, c, d) = (&lab.spec.nodes[A], &lab.spec.nodes[C], &lab.spec.nodes[3]);
    let frame = |from: &[u8; 6], total: u16, bytes: usize| {
        let mut f = vec![0; OFFLOAD_HEADER_BYTES];
        f.extend(d.mac.0);
        f.extend(from);
        f.extend([8, 0, 0x45, 0]);
        f.extend(total.to_be_bytes());
        f.extend([0, 1, 0, 0, 64, 17, 0, 0]);
        f.extend([c.ipv4.octets(), d.ipv4.octets()].concat());
        f.resize(OFFLOAD_HEADER_BYTES + bytes, 0);
        f
    };
    // A source that is another's, a length that is not there, more than the MTU.
    [frame(&a.mac.0, 86, 100), frame(&c.mac.0, 4000, 100), frame(&c.mac.0, 4986, 5000)]
}

fn misbehaviour(offload: bool) {
    let lab = Lab::start(star(offload), "1");
    // Whoever owns a node may say that its NIC takes more.
    ip(&lab, C, &["link", "set", NODE_DEVICE, "mtu", "9000"]);
    let socket: OwnedFd = lab.within(C, raw_socket);
    let begun = lab.emulator.stats().unwrap().nodes[C];
    for lie in lies(&lab) {
        for _ in 0..LIES {
            assert_eq!(rustix::io::write(&socket, &lie).unwrap(), lie.len());
        }
    }
    let told = stats_when(&lab, "every lie is counted", |s| {
        let n = &s.nodes[C];
        n.dropped_spoofed >= LIES && n.dropped_malformed >= LIES && n.dropped_oversize >= LIES
    });
    let n = &told.nodes[C];
    assert_eq!((n.dropped_spoofed, n.dropped_malformed, n.dropped_oversize), (LIES, LIES, LIES), "{begun:?} {n:?}");
    assert_eq!(told.pipes.iter().map(|p| p.dropped_queue_full).sum::<u64>(), 0);
    if offload {
        flood(&lab);
    }
}

/// As much as c can send, which is more than its link carries.
fn flood(lab: &Lab) {
    let flooder = lab.udp(C, 6002);
    let to = lab.v4(3, 6002);
    let is_full = || lab.emulator.stats().unwrap().pipes.iter().any(|p| p.dropped_queue_full > 0);
    let patience = Instant::now() + Duration::from_secs(20);
    talk(lab, |done| {
        // On a slow machine the others may be done before the link is full.
        while !done.load(Ordering::Relaxed) || !is_full() && Instant::now() < patience {
            for _ in 0..100 {
                // Its own ring may be full: that is its own loss.
                let _ = flooder.send_to(&[0; 1400], to);
            }
        }
    });
    let stats = lab.emulator.stats().unwrap();
    for (spec, pipe) in lab.spec.pipes.iter().zip(&stats.pipes) {
        let floods = spec.from == lab.spec.nodes[C].vertex;
        assert_eq!(pipe.dropped_queue_full > 0, floods, "only c's own link is full: {pipe:?}");
    }
}

#[test]
fn a_node_that_lies_and_floods_harms_nobody_else() {
    if !skip() {
        misbehaviour(false);
        misbehaviour(true);
    }
}
