//! Changes, captures and records of a running emulator.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use diecast_core_net::{Change, Link, NetBuilder, NetSpec, NodeIx, PipeIx, Recorded, replay};
use diecast_core_vtime::VirtSpan;
use diecast_host_net::{CapturePoint, Direction, HostNetError};

use crate::lab::{Lab, skip};

/// Payload of each datagram: 1000 bytes on a rate's account.
const PAYLOAD: usize = 1000 - 42;

/// a - s - b; a pipe sends a frame of 1000 bytes in 1 ms, 10 may wait.
fn narrow() -> NetSpec {
    let mut b = NetBuilder::new(3, 78);
    let s = b.switch("s");
    let (_, va) = b.node("a");
    let (_, vb) = b.node("b");
    let link = Link { bandwidth_bps: Some(8_000_000), delay_ns: 5_000_000, queue_packets: 10, ..Link::default() };
    b.link(va, s, link);
    b.link(s, vb, Link { loss_every: Some(4), ..link });
    b.build().unwrap()
}

fn pipe(lab: &Lab, from: &str, to: &str) -> PipeIx {
    let name = |v: diecast_core_net::VertexIx| lab.spec.vertices[v.at()].name.as_str();
    let found = lab.spec.pipes.iter().position(|p| name(p.from) == from && name(p.to) == to);
    PipeIx(found.unwrap() as u32)
}

/// Waits until nothing is on its way.
fn drain(lab: &Lab) {
    let begin = Instant::now();
    std::thread::sleep(Duration::from_millis(20));
    while lab.emulator.stats().unwrap().in_flight > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "packets never arrive");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_live_run_is_had_again_with_the_same_drops() {
    if !skip() {
        diecast_quiet::look(live_run);
    }
}

fn live_run() {
    let (sender, batches) = channel();
    let lab = Lab::start_with(narrow(), "2", Some(sender), 1);
    let (a, _b) = (lab.udp(0, 4000), lab.udp(1, 4000));
    let handle = lab.emulator.handle();
    for burst in 0..4 {
        for _ in 0..30 {
            a.send_to(&[burst; PAYLOAD], lab.v4(1, 4000)).unwrap();
        }
        if burst == 1 {
            handle.change(None, vec![Change::Cut(pipe(&lab, "s", "b"))]).unwrap();
        }
        if burst == 2 {
            handle.change(None, vec![Change::Heal(pipe(&lab, "s", "b"))]).unwrap();
        }
        std::thread::sleep(lab.real(8.0));
    }
    drain(&lab);
    let spec = lab.spec.clone();
    let (last, written) = {
        let Lab { emulator, .. } = lab;
        let last = emulator.stop().unwrap();
        let written = last.packets_written;
        (last, written)
    };
    // As a file would have it.
    let mut bytes = Vec::new();
    batches.iter().flatten().for_each(|recorded: Recorded| recorded.encode(&mut bytes));
    let records = Recorded::decode_all(&bytes).unwrap();
    let again = replay(&spec, &records).unwrap();
    assert_eq!(again.parts_from(&records), None);
    assert_eq!(again.pipes, last.pipes);
    assert_eq!(again.nodes, last.nodes);
    assert_eq!(again.deliveries.len() as u64, written);
    let all = |of: fn(&diecast_core_net::PipeCounters) -> u64| last.pipes.iter().map(of).sum::<u64>();
    println!(
        "{} frames, dropped: {} full queue, {} loss, {} cut off",
        last.packets_read,
        all(|p| p.dropped_queue_full),
        all(|p| p.dropped_loss),
        all(|p| p.dropped_down)
    );
    assert!(all(|p| p.dropped_queue_full) > 20 && all(|p| p.dropped_loss) > 3 && all(|p| p.dropped_down) > 3);
}

#[test]
fn a_change_takes_place_at_its_virtual_instant_and_not_in_the_past() {
    if !skip() {
        diecast_quiet::look(change_in_time);
    }
}

fn change_in_time() {
    let lab = Lab::start(narrow(), "4");
    let handle = lab.emulator.handle();
    let to_s = pipe(&lab, "a", "s");
    let now = handle.change(None, vec![Change::Cut(to_s)]).unwrap();
    let heal_at = now.plus(VirtSpan(30_000_000));
    assert_eq!(handle.change(Some(heal_at), vec![Change::Heal(to_s)]).unwrap(), heal_at);
    let (a, _b) = (lab.udp(0, 4000), lab.udp(1, 4000));
    a.send_to(&[1; PAYLOAD], lab.v4(1, 4000)).unwrap();
    std::thread::sleep(lab.real(40.0));
    a.send_to(&[2; PAYLOAD], lab.v4(1, 4000)).unwrap();
    drain(&lab);
    let counters = lab.emulator.stats().unwrap().pipes[to_s.at()];
    assert_eq!((counters.dropped_down, counters.packets_sent), (1, 1));
    // All or nothing: the second of these is no pipe.
    let refused = handle.change(None, vec![Change::Cut(to_s), Change::Cut(PipeIx(99))]);
    assert!(matches!(refused, Err(HostNetError::Spec(_))), "{refused:?}");
    let late = handle.change(Some(now), vec![Change::Cut(to_s)]);
    assert!(matches!(late, Err(HostNetError::Past { at, .. }) if at == now), "{late:?}");
    a.send_to(&[3; PAYLOAD], lab.v4(1, 4000)).unwrap();
    drain(&lab);
    assert_eq!(lab.emulator.stats().unwrap().pipes[to_s.at()].dropped_down, 1);
}

#[test]
fn a_capture_sees_each_place_at_its_virtual_instant() {
    if !skip() {
        diecast_quiet::look(capture_in_time);
    }
}

fn capture_in_time() {
    let lab = Lab::start(narrow(), "4");
    let (a, b) = (lab.udp(0, 4000), lab.udp(1, 4000));
    let (to_s, to_b) = (pipe(&lab, "a", "s"), pipe(&lab, "s", "b"));
    let points = vec![
        CapturePoint::Nic(NodeIx(0)),
        CapturePoint::Pipe(to_s),
        CapturePoint::Pipe(to_b),
        CapturePoint::Nic(NodeIx(1)),
    ];
    // The first makes the neighbours known.
    a.send_to(&[0; PAYLOAD], lab.v4(1, 4000)).unwrap();
    b.recv(&mut [0; 2000]).unwrap();
    let capture = lab.emulator.handle().capture(points).unwrap();
    a.send_to(&[1; PAYLOAD], lab.v4(1, 4000)).unwrap();
    b.recv(&mut [0; 2000]).unwrap();
    drain(&lab);
    let seen: Vec<_> = capture.frames.try_iter().filter(|f| f.frame.len() == 1000).collect();
    let sent = seen[0].at;
    let places: Vec<_> = seen.iter().map(|f| (f.point, f.direction, f.at.since(sent).ns())).collect();
    // 1 ms to send and 5 ms on the way, twice.
    let mut expected = vec![
        (0, Direction::Sent, 0),
        (1, Direction::Sent, 0),
        (2, Direction::Sent, 6_000_000),
        (3, Direction::Received, 12_000_000),
    ];
    let mut sorted = places.clone();
    sorted.sort_by_key(|p| p.0);
    expected.sort_by_key(|p| p.0);
    assert_eq!(sorted, expected, "{places:?}");
    assert_eq!(capture.dropped(), 0);
}
