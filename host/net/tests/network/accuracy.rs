//! Round trips and throughput across real namespaces against arithmetic, at TDF 1 and 10.
//!
//! Sockets here run in real time, so results are divided by the TDF.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use diecast_core_net::{Link, NetBuilder, NetSpec};
use diecast_core_vtime::{RealNs, VirtSpan};
use diecast_host_net::ReceiveLedger;

use crate::lab::{Lab, echo, echo_server, measure_at_priority, median, skip};

/// IPv4 and UDP headers plus 14 bytes of Ethernet: what the rate counts beside the payload.
const OVERHEAD: usize = 20 + 8 + 14;

fn mbit(n: u64, delay_us: u64) -> Link {
    Link { bandwidth_bps: Some(n * 1_000_000), delay_ns: delay_us * 1000, ..Link::default() }
}

/// a - 1 Gbit/s, 50 us - s - 100 Mbit/s, 20 ms - t - 1 Gbit/s, 50 us - b.
fn three_pipes() -> NetSpec {
    let mut b = NetBuilder::new(1, 77);
    let (s, t) = (b.switch("s"), b.switch("t"));
    let (_, va) = b.node("a");
    let (_, vb) = b.node("b");
    b.link(va, s, mbit(1000, 50));
    b.link(s, t, mbit(100, 20_000));
    b.link(t, vb, mbit(1000, 50));
    b.build().unwrap()
}

/// Virtual ms for a frame there and back over [`three_pipes`].
fn round_trip_ms(frame_bytes: usize) -> f64 {
    let bits = frame_bytes as f64 * 8.0;
    2.0 * (bits / 1e6 + bits / 1e5 + bits / 1e6 + 0.05 + 20.0 + 0.05)
}

/// Node 1 echoes while `work` has a socket of node 0, in a thread that goes before ordinary ones.
fn beside_echo(lab: &Lab, work: impl FnOnce(&UdpSocket) + Send) {
    let (client, server) = (lab.udp(0, 4000), lab.udp(1, 4000));
    thread::scope(|s| {
        s.spawn(|| echo_server(&server));
        s.spawn(|| {
            measure_at_priority();
            work(&client);
            client.send_to(&[0], lab.v4(1, 4000)).unwrap();
        });
    });
}

fn round_trip(tdf: &str, tolerance_ms: f64, rounds: u64) {
    let lab = Lab::start(three_pipes(), tdf);
    let begun = lab.emulator.stats().unwrap();
    beside_echo(&lab, |client| {
        for bytes in [64, 1472] {
            let mut payload = vec![0; bytes];
            echo(client, lab.v4(1, 4000), &mut payload, 0);
            let mut ms: Vec<f64> =
                (1..=rounds).map(|id| lab.virtual_ms(echo(client, lab.v4(1, 4000), &mut payload, id))).collect();
            let (middle, want) = (median(&mut ms), round_trip_ms(bytes + OVERHEAD));
            // A machine that is busy with other tests only adds to a round trip: the emulator is judged by the
            // shortest, the median is for the eye (and for the benchmark, which runs alone).
            let got = ms[0];
            println!(
                "TDF {tdf}, {bytes} bytes: round trip {got:.4} (median {middle:.4}) virtual ms, arithmetic {want:.4}"
            );
            assert!((got - want).abs() <= tolerance_ms, "round trip {got:.4} ms instead of {want:.4} at TDF {tdf}");
            // Virtual deadlines never fire early, so no round trip is shorter than arithmetic.
            assert!(ms[0] >= want - 1e-3, "a round trip of {:.4} ms is shorter than {want:.4}", ms[0]);
        }
    });
    let stats = lab.emulator.stop().unwrap();
    println!("TDF {tdf}: lateness {:?}, {:?}", stats.lateness(), stats.scheduling);
    let (late, counts) = (stats.lateness_since(&begun), stats.lateness_counts_since(&begun));
    assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), late.count, "{counts:?}");
    assert!(counts.is_sorted_by(|a, b| a.0 < b.0), "{counts:?}");
    let greatest = |quantile: u64| counts.iter().any(|(greatest, _)| *greatest == quantile);
    assert!([late.p50_ns, late.p99_ns, late.max_ns].into_iter().all(greatest), "{late:?}: {counts:?}");
    assert!(stats.packets_written >= 4 * rounds);
    assert_eq!((&stats.write_errors[..], &stats.taps_lost[..]), (&[0, 0][..], &[false, false][..]));
}

#[test]
fn round_trip_at_tdf_1_is_arithmetic_within_0_4_ms() {
    if !skip() {
        diecast_quiet::look(|| round_trip("1", 0.4, 40));
    }
}

#[test]
fn round_trip_at_tdf_10_is_arithmetic_within_0_2_ms() {
    if !skip() {
        diecast_quiet::look(|| round_trip("10", 0.2, 8));
    }
}

/// Node 1's kernel would work 3 ms longer on a frame than ours, on a small one 5 ms; node 0's half a millisecond.
#[derive(Default)]
struct Slow {
    charged: [AtomicU64; 2],
}

impl ReceiveLedger for Slow {
    fn charge_receiver(&self, node: usize, _: usize, begun: RealNs, ended: RealNs) {
        assert!(begun < ended);
        self.charged[node].fetch_add(1, Relaxed);
    }

    fn hold(&self, node: usize, bytes: usize) -> VirtSpan {
        VirtSpan(match (node, bytes) {
            (0, _) => 500_000,
            (_, ..200) => 5_000_000,
            (_, _) => 3_000_000,
        })
    }

    fn least_hold(&self) -> VirtSpan {
        VirtSpan(500_000)
    }
}

#[test]
fn a_frame_is_handed_over_when_its_nodes_kernel_would_be_done_with_it() {
    if !skip() {
        diecast_quiet::look(held_frames);
    }
}

fn held_frames() {
    let ledger = Arc::new(Slow::default());
    let lab = Lab::start_receivers(three_pipes(), "10", ledger.clone());
    beside_echo(&lab, |client| {
        for (bytes, held_ms) in [(64, 5.5), (1472, 3.5)] {
            let mut payload = vec![0; bytes];
            let mut ms: Vec<f64> =
                (0..8).map(|id| lab.virtual_ms(echo(client, lab.v4(1, 4000), &mut payload, id))).collect();
            let (middle, want) = (median(&mut ms), round_trip_ms(bytes + OVERHEAD) + held_ms);
            println!("{bytes} bytes: round trip {:.4} (median {middle:.4}) virtual ms, arithmetic {want:.4}", ms[0]);
            assert!((want - 1e-3..want + 0.2).contains(&ms[0]), "{:.4} ms instead of {want:.4}", ms[0]);
        }
        // The first of these is held for 2 ms longer than those behind it, which don't pass it.
        let burst = [vec![1; 64], vec![2; 1000], vec![3; 1000]];
        burst.iter().for_each(|payload| _ = client.send_to(payload, lab.v4(1, 4000)).unwrap());
        let mut buffer = [0; 2048];
        for payload in burst {
            let (n, _) = client.recv_from(&mut buffer).unwrap();
            assert!(buffer[..n] == payload[..], "{n} bytes of {}", buffer[0]);
        }
    });
    let stats = lab.emulator.stop().unwrap();
    println!("lateness {:?}, {:?}", stats.lateness(), stats.scheduling);
    let [of_client, of_server] = [0, 1].map(|node| ledger.charged[node].load(Relaxed));
    assert!(of_client >= 19 && of_server >= 20, "{of_client} and {of_server} frames");
}

/// Sends `payload` bytes to `to` at `rate` times the bottleneck until `stop`; the count keeps pace with the clock.
fn blast(lab: &Lab, from: usize, to: std::net::SocketAddr, payload: usize, per_virtual_s: f64, stop: Instant) {
    let socket = lab.udp(from, 0);
    let data = vec![7; payload];
    let start = Instant::now();
    let mut sent = 0u64;
    while Instant::now() < stop {
        let due = (start.elapsed().as_secs_f64() / lab.tdf.as_f64() * per_virtual_s) as u64;
        while sent < due {
            // A full socket buffer is the sender's loss, like on a real machine.
            let _ = socket.send_to(&data, to);
            sent += 1;
        }
        thread::sleep(Duration::from_micros(500));
    }
}

/// Bits per virtual second, Ethernet header counted, that `node` received in the window, from the first to the last
/// datagram that came in it.
fn receive_rate(lab: &Lab, socket: &UdpSocket, from: Instant, until: Instant) -> f64 {
    measure_at_priority();
    let mut buffer = [0; 2048];
    let (mut bytes, mut first, mut last) = (0usize, None, None);
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    while Instant::now() < until {
        let Ok((n, _)) = socket.recv_from(&mut buffer) else { continue };
        let now = Instant::now();
        if now < from {
            continue;
        }
        if first.is_some() {
            bytes += n + OVERHEAD;
        }
        first.get_or_insert(now);
        last = Some(now);
    }
    let span = last.unwrap().duration_since(first.unwrap()).as_secs_f64() / lab.tdf.as_f64();
    bytes as f64 * 8.0 / span
}

fn throughput(tdf: &str, virtual_s: f64) {
    let lab = Lab::start(three_pipes(), tdf);
    let server = lab.udp(1, 4001);
    let start = Instant::now();
    let warm = start + lab.real(200.0);
    let stop = warm + lab.real(virtual_s * 1e3);
    let rate = thread::scope(|s| {
        // 1.3 times the bottleneck in full frames: 100 Mbit/s are 8256 of them a second.
        s.spawn(|| blast(&lab, 0, lab.v4(1, 4001), 1472, 1.3 * 8256.0, stop));
        s.spawn(|| receive_rate(&lab, &server, warm, stop)).join().unwrap()
    });
    let stats = lab.emulator.stop().unwrap();
    println!("TDF {tdf}: {:.3} Mbit/s of 100; lateness {:?}; yields {}", rate / 1e6, stats.lateness(), stats.yields);
    let packets = (stats.packets_read + stats.packets_written) as f64;
    println!(
        "TDF {tdf}: {:.2} us of CPU and {:.2} wake-ups per packet read or written",
        stats.cpu.0 as f64 / 1e3 / packets,
        stats.wakeups as f64 / packets
    );
    assert!((rate / 1e8 - 1.0).abs() <= 0.01, "{:.3} Mbit/s instead of 100 at TDF {tdf}", rate / 1e6);
    assert!(stats.pipes[2].dropped_queue_full > 0, "the bottleneck was never full");
    assert_eq!(stats.pipes[2].queue_packets_max, 1000);
}

#[test]
fn udp_throughput_at_tdf_1_is_the_bottleneck_within_1_percent() {
    if !skip() {
        diecast_quiet::look(|| throughput("1", 2.0));
    }
}

#[test]
fn udp_throughput_at_tdf_10_is_the_bottleneck_within_1_percent() {
    if !skip() {
        diecast_quiet::look(|| throughput("10", 1.0));
    }
}

/// Two senders and two receivers over one bottleneck in the middle: together they get the bottleneck, not twice it.
#[test]
fn a_dumbbell_shares_its_bottleneck() {
    if !skip() {
        diecast_quiet::look(dumbbell);
    }
}

fn dumbbell() {
    let mut b = NetBuilder::new(1, 77);
    let (left, right) = (b.switch("left"), b.switch("right"));
    for i in 0..4 {
        let (_, v) = b.node(&format!("n{i}"));
        b.link(v, if i < 2 { left } else { right }, mbit(100, 100));
    }
    b.link(left, right, Link { queue_packets: 50, ..mbit(20, 5000) });
    let lab = Lab::start(b.build().unwrap(), "2");
    let servers = [lab.udp(2, 4002), lab.udp(3, 4002)];
    let warm = Instant::now() + lab.real(500.0);
    let stop = warm + lab.real(2000.0);
    let rates = thread::scope(|s| {
        let lab = &lab;
        for i in 0..2 {
            // Each wants 15 of 20 Mbit/s; sizes differ a little so that the two do not move in lockstep.
            s.spawn(move || {
                blast(lab, i, lab.v4(i + 2, 4002), 1000 + 7 * i, 15e6 / (8.0 * (1042.0 + 7.0 * i as f64)), stop)
            });
        }
        let readers = servers.each_ref().map(|server| s.spawn(move || receive_rate(lab, server, warm, stop) / 1e6));
        readers.map(|r| r.join().unwrap())
    });
    println!("dumbbell: {:.3} + {:.3} Mbit/s of 20", rates[0], rates[1]);
    assert!((rates[0] + rates[1] - 20.0).abs() <= 0.4, "together {:.3} Mbit/s", rates[0] + rates[1]);
    for rate in rates {
        assert!((rate - 10.0).abs() <= 2.0, "shares {rates:?} are not equal");
    }
}

/// Long, because every virtual second lasts 100 real ones.
#[test]
#[ignore = "takes 75 s; run with --ignored"]
fn tdf_100_is_arithmetic_too() {
    if !skip() {
        diecast_quiet::look(|| round_trip("100", 0.2, 1));
        diecast_quiet::look(|| throughput("100", 0.3));
    }
}
