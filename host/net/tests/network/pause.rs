//! A pause is no round trip: what a node's kernel retransmits while the lab stands still does not spoil its estimate.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use diecast_core_net::{Link, Recorded, replay_until};
use diecast_host_net::monotonic_now;

use crate::lab::{Lab, skip, two};
use crate::offload::wrong_sums;

const QUESTION_BYTES: usize = 100;
/// Several segments: one large frame where the NIC takes those.
const ANSWER_BYTES: usize = 8000;
/// Retransmissions after 0.2, 0.6, 1.4 s and more.
const PAUSE: Duration = Duration::from_millis(2500);
/// Where the smoothed round trip lies in `struct tcp_info`, µs.
const TCPI_RTT: usize = 68;

/// A round trip of 40 ms.
fn far() -> Link {
    Link { delay_ns: 20_000_000, ..Link::default() }
}

fn rtt_us(stream: &TcpStream) -> u32 {
    let mut info = [0u32; 64];
    let mut length = size_of_val(&info) as libc::socklen_t;
    let place = info.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `length` bytes to a live array.
    let got = unsafe { libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place, &mut length) };
    assert!(got == 0 && length as usize > TCPI_RTT);
    info[TCPI_RTT / 4]
}

fn answers(listener: &TcpListener) {
    let mut stream = listener.accept().unwrap().0;
    stream.set_nodelay(true).unwrap();
    let mut question = [0; QUESTION_BYTES];
    while stream.read_exact(&mut question).is_ok() {
        stream.write_all(&[7; ANSWER_BYTES]).unwrap();
    }
}

/// Asks, and pauses the lab while the question is on its way; the round trip as estimated before, and after each of the
/// answers from then on.
fn through_a_pause(lab: &Lab, address: SocketAddr) -> (u32, Vec<u32>) {
    let listener = lab.within(1, || TcpListener::bind(address).unwrap());
    thread::scope(|s| {
        s.spawn(|| answers(&listener));
        let mut stream = lab.within(0, || TcpStream::connect(address).unwrap());
        stream.set_nodelay(true).unwrap();
        let ask = |stream: &mut TcpStream| stream.write_all(&[1; QUESTION_BYTES]).unwrap();
        let hear = |stream: &mut TcpStream| {
            stream.read_exact(&mut [0; ANSWER_BYTES]).unwrap();
            rtt_us(stream)
        };
        let exchange = |stream: &mut TcpStream| {
            ask(stream);
            hear(stream)
        };
        let before = (0..20).map(|_| exchange(&mut stream)).last().unwrap();
        ask(&mut stream);
        thread::sleep(Duration::from_millis(5));
        lab.frame.update(|f| f.pause(monotonic_now())).unwrap();
        lab.emulator.kick();
        thread::sleep(PAUSE);
        lab.frame.update(|f| f.retime(monotonic_now(), lab.tdf)).unwrap();
        lab.emulator.kick();
        let mut after = vec![hear(&mut stream)];
        after.extend((0..10).map(|_| exchange(&mut stream)));
        (before, after)
    })
}

fn check(lab: &Lab, address: SocketAddr) {
    let (before, after) = through_a_pause(lab, address);
    println!("{before} us, then {after:?}");
    // With the pause as a sample it would be 350 ms and more.
    assert!(after.iter().all(|us| *us < before * 3 / 2), "{before} us, then {after:?}");
    assert_eq!(wrong_sums(lab), 0);
}

/// What the emulator takes out of frames is none of the network's: a replay of the record is the same.
#[test]
fn a_pause_is_no_round_trip_and_a_replay_does_not_know_of_it() {
    if !skip() {
        diecast_quiet::look(recorded);
    }
}

fn recorded() {
    let (record, batches) = channel();
    let lab = Lab::start_with(two(far(), false), "1", Some(record), 1);
    check(&lab, lab.v4(1, 80));
    let spec = lab.spec.clone();
    let Lab { emulator, .. } = lab;
    let last = emulator.stop().unwrap();
    let records: Vec<Recorded> = batches.iter().flatten().collect();
    // Something may be on its way at the end.
    let again = replay_until(&spec, &records, last.v_at).unwrap();
    assert_eq!(again.parts_from(&records), None);
    assert_eq!(again.nodes, last.nodes);
}

#[test]
fn a_pause_is_no_round_trip_with_merged_frames() {
    if !skip() {
        [1, 2].into_iter().for_each(|threads| diecast_quiet::look(|| merged(threads)));
    }
}

fn merged(threads: usize) {
    let lab = Lab::start_threads(two(far(), true), "1", threads);
    for address in [lab.v4(1, 80), (lab.spec.nodes[1].ipv6, 80).into()] {
        check(&lab, address);
    }
    assert!(lab.emulator.stats().unwrap().packets_merged > 100);
}
