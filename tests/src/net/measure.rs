//! The measurements.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use diecast_core_net::{Link, NetBuilder, NetSpec, QUEUE_PACKETS_DEFAULT};
use diecast_core_vtime::Tdf;
use diecast_host_sys::time::pin_to;

use super::Size;
use super::figure::{Figure, quantile, sorted};
use super::inject::{Counters, HEADERS_BYTES, Injector, arrived_ns, become_fifo, frame, raise_descriptors};
use super::link::{Nodes, cores, hogs, three_pipes};

/// Frames of a full MTU.
const MTU_FRAME: usize = 1514;
/// Share of a plain forwarder's throughput that the emulator must reach.
const THROUGHPUT_BAR: f64 = 0.7;
const RATE_BAR: f64 = 0.005;
const DELAY_BAR_US: f64 = 100.0;
/// Of the emulator's lateness beside busy threads on its core.
const LATENESS_BAR_US: f64 = 50.0;
const IDLE_BAR: f64 = 0.02;
const STAR_FRAME: usize = 128;
/// An ethertype that no stack answers.
const EXPERIMENTAL: [u8; 2] = 0x88b5u16.to_be_bytes();
/// Every node sends once in each.
const STAR_ROUND: Duration = Duration::from_millis(10);
/// Frames that fill a queue before the paced ones keep it full.
const HEAD_START: u64 = 500;
/// Windows of a rate, of which the median counts.
const WINDOWS: usize = 3;
/// What a queue holds at least, so that it does not run empty while the host keeps the generator from running: 2 to 3 ms
/// now and then, with nothing stolen.
const STALL_S: f64 = 0.01;

fn link(bandwidth_bps: u64, delay_ns: u64) -> Link {
    Link { bandwidth_bps: Some(bandwidth_bps), delay_ns, ..Link::default() }
}

fn tdf(text: &str) -> Tdf {
    text.parse().expect("a decimal TDF")
}

fn on_generator_core() {
    pin_to(&[cores()[0]]).expect("a core of this process");
}

/// Frames a second that arrive while as many as possible are sent.
fn blast(injector: &mut Injector, counters: &Counters, window_s: f64) -> f64 {
    let until = |end: Instant, injector: &mut Injector| {
        while Instant::now() < end {
            injector.send(64);
        }
    };
    until(Instant::now() + Duration::from_secs_f64(window_s / 4.0), injector);
    let (start, before) = (Instant::now(), counters.received());
    until(start + Duration::from_secs_f64(window_s), injector);
    (counters.received() - before) as f64 / start.elapsed().as_secs_f64()
}

/// The emulator's throughput over three pipes against a plain forwarder's, both on one core, in alternating blocks.
pub fn throughput(size: Size) -> Vec<Figure> {
    on_generator_core();
    let pipe = link(100_000_000_000, 50_000);
    let nodes = Nodes::new(three_pipes(pipe, pipe), Tdf::ONE).expect("root");
    let (mut injector, counters, _sink) = (nodes.injector(MTU_FRAME, true), nodes.counters(), nodes.socket(1));
    let (mut plain, mut ours, mut busy, mut shares) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut wakes = Vec::new();
    for _ in 0..size.blocks {
        let forwarder = nodes.forward();
        plain.push(blast(&mut injector, &counters, size.window_s));
        drop(forwarder);
        let emulator = nodes.emulate().expect("root");
        ours.push(blast(&mut injector, &counters, size.window_s));
        let stats = emulator.stop().expect("it runs");
        // What it would carry if it were never to pause: packets by its CPU time.
        busy.push(stats.packets_written as f64 / stats.cpu.as_secs_f64());
        wakes.push(stats.wakeups as f64 / stats.packets_written as f64);
        shares.push(ours[ours.len() - 1] / plain[plain.len() - 1]);
    }
    let share = Figure::median("3 pipes, MTU frames, one core: share of a plain forwarder's", "", &shares);
    let passes = share.value >= THROUGHPUT_BAR;
    vec![
        Figure::median("plain TAP forwarder, MTU frames", "packets/s", &plain),
        Figure::median("emulator, 3 pipes, MTU frames", "packets/s", &ours),
        Figure::median(
            "the same",
            "Gbit/s",
            &ours.iter().map(|n| n * (MTU_FRAME * 8) as f64 / 1e9).collect::<Vec<_>>(),
        ),
        Figure::median("emulator, 3 pipes, MTU frames, by second of its CPU time", "packets/s", &busy),
        Figure::median("emulator, 3 pipes, MTU frames, wake-ups a packet", "", &wakes),
        share.bar(format!("at least {THROUGHPUT_BAR}"), passes),
    ]
}

/// Gbit/s that arrive while as many large frames as possible are sent.
fn blast_large(injector: &mut Injector, counters: &Counters, window_s: f64) -> f64 {
    let until = |end: Instant, injector: &mut Injector| {
        while Instant::now() < end {
            injector.send(1);
        }
    };
    until(Instant::now() + Duration::from_secs_f64(window_s / 4.0), injector);
    let (start, before) = (Instant::now(), counters.received_bytes());
    until(start + Duration::from_secs_f64(window_s), injector);
    (counters.received_bytes() - before) as f64 * 8e-9 / start.elapsed().as_secs_f64()
}

/// The same with segmentation offload: the forwarder hands large frames on as they are, the emulator cuts them into
/// frames of the MTU, which cross the pipes and reach the other NIC one by one.
pub fn throughput_with_offload(size: Size) -> Vec<Figure> {
    on_generator_core();
    let pipe = link(100_000_000_000, 50_000);
    let spec = NetSpec { offload: true, ..three_pipes(pipe, pipe) };
    let nodes = Nodes::new(spec, Tdf::ONE).expect("root");
    let (mut injector, counters, _sink) = (nodes.large_injector(), nodes.counters(), nodes.socket(1));
    let (mut plain, mut ours, mut busy, mut shares) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..size.blocks {
        let forwarder = nodes.forward();
        plain.push(blast_large(&mut injector, &counters, size.window_s));
        drop(forwarder);
        let emulator = nodes.emulate().expect("root");
        ours.push(blast_large(&mut injector, &counters, size.window_s));
        let stats = emulator.stop().expect("it runs");
        busy.push((stats.packets_written as usize * MTU_FRAME * 8) as f64 / stats.cpu.0 as f64);
        shares.push(ours[ours.len() - 1] / plain[plain.len() - 1]);
    }
    let share = Figure::median("3 pipes, offload, one core: share of what a plain forwarder reaches", "", &shares);
    let passes = share.value >= THROUGHPUT_BAR;
    vec![
        Figure::median("plain TAP forwarder, offload, frames of 64 KiB", "Gbit/s", &plain),
        Figure::median("emulator, 3 pipes, offload, MTU frames on the wire", "Gbit/s", &ours),
        Figure::median("emulator, 3 pipes, offload, by second of its CPU time", "Gbit/s", &busy),
        share.bar(format!("at least {THROUGHPUT_BAR}"), passes),
    ]
}

/// Bits a second at which frames arrive, in several windows, each between two arrivals half of `window_s` apart, while
/// frames are sent at `send_bps`; sorted.
fn arrival_rates(
    injector: &mut Injector,
    counters: &Counters,
    bytes: usize,
    send_bps: f64,
    window_s: f64,
) -> [f64; WINDOWS] {
    let per_s = send_bps / (8.0 * bytes as f64);
    let start = Instant::now();
    injector.send(HEAD_START);
    let mut sent = 0u64;
    let mut keep_up = || {
        let due = (start.elapsed().as_secs_f64() * per_s) as u64;
        // At most a few hundred at a time: a generator that fell behind does not make up for it in one burst.
        injector.send((due - sent).min(512));
        sent = due;
    };
    let mut next_arrival = |after_s: f64| {
        let begin = Instant::now();
        let mut seen = counters.received();
        loop {
            keep_up();
            let (now, count) = (Instant::now(), counters.received());
            if count != seen && now.duration_since(begin).as_secs_f64() >= after_s {
                return (now, count);
            }
            seen = count;
        }
    };
    let mut last = next_arrival(window_s / 4.0);
    let mut rates = [0.0; WINDOWS];
    for rate in &mut rates {
        let (t0, n0) = last;
        last = next_arrival(window_s / 2.0);
        *rate = (last.1 - n0) as f64 * bytes as f64 * 8.0 / last.0.duration_since(t0).as_secs_f64();
    }
    rates.sort_by(f64::total_cmp);
    rates
}

/// Short enough that some hundred frames come in a window, at most a full MTU.
fn frame_bytes(real_bps: f64) -> usize {
    ((real_bps / 8.0 / 1000.0) as usize).clamp(60, MTU_FRAME)
}

/// Packets a second that the emulator carries over three pipes when as many as possible come.
pub fn carried(size: Size) -> f64 {
    on_generator_core();
    let pipe = link(100_000_000_000, 50_000);
    let nodes = Nodes::new(three_pipes(pipe, pipe), Tdf::ONE).expect("root");
    let (mut injector, counters, _sink) = (nodes.injector(MTU_FRAME, true), nodes.counters(), nodes.socket(1));
    let _emulator = nodes.emulate().expect("root");
    blast(&mut injector, &counters, size.window_s)
}

/// How exactly a pipe keeps its rate, in virtual time. Judged while it needs no more than the `limit` of packets a
/// second of real time.
pub fn rate(at_tdf: &str, bps: u64, limit: f64, size: Size) -> Figure {
    on_generator_core();
    let tdf = tdf(at_tdf);
    let real_bps = bps as f64 / tdf.as_f64();
    let bytes = frame_bytes(real_bps);
    let access = Link { delay_ns: 50_000, ..Link::default() };
    let queue_packets = (real_bps / (8.0 * bytes as f64) * STALL_S) as u32;
    let middle = Link { queue_packets: queue_packets.max(QUEUE_PACKETS_DEFAULT), ..link(bps, 1_000_000) };
    let nodes = Nodes::new(three_pipes(access, middle), tdf).expect("root");
    let (mut injector, counters, _sink) = (nodes.injector(bytes, true), nodes.counters(), nodes.socket(1));
    let emulator = nodes.emulate().expect("root");
    let rates = arrival_rates(&mut injector, &counters, bytes, 1.2 * real_bps, size.window_s);
    let stats = emulator.stop().expect("it runs");
    let [least, error, most] = rates.map(|rate| rate / real_bps - 1.0);
    let name = format!("TDF {at_tdf}: error of a rate of {} Mbit/s, frames of {bytes} bytes", bps / 1_000_000);
    let per_packet_us = stats.cpu.0 as f64 / 1e3 / stats.packets_written.max(1) as f64;
    let spread_is = format!("range of {WINDOWS} windows; {per_packet_us:.1} us of CPU a packet");
    let figure = Figure::new(name, "%", 100.0 * error).spread((100.0 * least, 100.0 * most), spread_is);
    if real_bps / (8.0 * bytes as f64) > limit {
        return Figure { bar: "beyond its throughput".to_owned(), ..figure };
    }
    figure.bar(format!("within {} %", 100.0 * RATE_BAR), error.abs() <= RATE_BAR)
}

/// Puts one of the kernel's shapers, tbf or htb, on the first node's NIC; None where the kernel has none.
fn shape(nodes: &Nodes, qdisc: &str, bps: u64, bytes: usize) -> Option<()> {
    // A burst of two frames or of 4 ms, whichever is more: what its manual asks for at a tick of 250 Hz.
    let burst = (2 * bytes).max((bps / 8 / 250) as usize);
    let limits = format!("rate {bps}bit burst {burst}");
    let commands = match qdisc {
        "tbf" => vec![format!("qdisc add dev eth0 root tbf {limits} limit 1500000")],
        _ => vec![
            "qdisc add dev eth0 root handle 1: htb default 1".to_owned(),
            format!("class add dev eth0 parent 1: classid 1:1 htb {limits} cburst {burst}"),
        ],
    };
    for command in commands {
        let set = nodes.within(0, || Command::new("tc").args(command.split(' ')).output());
        if !set.is_ok_and(|done| done.status.success()) {
            return None;
        }
    }
    Some(())
}

/// What goes through the same NICs as fast as it can behind one of the kernel's shapers at 100 Gbit/s.
pub fn shaper_speed(qdisc: &str, size: Size) -> Option<Figure> {
    on_generator_core();
    let nodes = Nodes::new(three_pipes(Link::default(), Link::default()), Tdf::ONE).expect("root");
    shape(&nodes, qdisc, 100_000_000_000, MTU_FRAME)?;
    let (mut injector, counters, _sink) = (nodes.injector(MTU_FRAME, false), nodes.counters(), nodes.socket(1));
    let _forwarder = nodes.forward();
    let speeds: Vec<f64> = (0..size.blocks).map(|_| blast(&mut injector, &counters, size.window_s)).collect();
    Some(Figure::median(format!("plain TAP forwarder behind the kernel's {qdisc}, MTU frames"), "packets/s", &speeds))
}

/// One of the kernel's shapers, tbf or htb, at the same rate, real time, between the same NICs; None where the kernel has
/// none.
pub fn shaper(qdisc: &str, bps: u64, size: Size) -> Option<Figure> {
    on_generator_core();
    let bytes = frame_bytes(bps as f64);
    let nodes = Nodes::new(three_pipes(Link::default(), Link::default()), Tdf::ONE).expect("root");
    shape(&nodes, qdisc, bps, bytes)?;
    let (mut injector, counters, _sink) = (nodes.injector(bytes, false), nodes.counters(), nodes.socket(1));
    let _forwarder = nodes.forward();
    let rates = arrival_rates(&mut injector, &counters, bytes, 1.2 * bps as f64, size.window_s);
    let errors = rates.map(|rate| 100.0 * (rate / bps as f64 - 1.0));
    Some(Figure::median(format!("the kernel's {qdisc}: error of a rate of {} Mbit/s", bps / 1_000_000), "%", &errors))
}

/// What is added to the delay of three pipes, from the call that sends to the arrival at the other node's stack.
pub fn delay(at_tdf: &str, busy: usize, size: Size) -> Vec<Figure> {
    on_generator_core();
    const PAYLOAD: usize = 64;
    let tdf = tdf(at_tdf);
    let nodes = Nodes::new(three_pipes(link(1_000_000_000, 50_000), link(100_000_000, 20_000_000)), tdf).expect("root");
    let (from, to) = (nodes.socket(0), nodes.socket(1));
    from.connect((nodes.spec.nodes[1].ipv4, super::inject::PORT)).expect("a route");
    to.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
    // The kernel stamps what comes after the first question, which nothing answers yet.
    let _ = arrived_ns(&to);
    let (began, emulator) = (Instant::now(), nodes.emulate().expect("root"));
    let _hogs = hogs(busy);
    let count = (size.window_s * 500.0) as usize;
    let bits = ((PAYLOAD + HEADERS_BYTES) * 8) as f64;
    let want_ns = (2.0 * (bits + 50_000.0) + bits * 10.0 + 20_000_000.0) * tdf.as_f64();
    let errors_us: Vec<f64> = std::thread::scope(|scope| {
        scope.spawn(|| {
            become_fifo(40).expect("root");
            for _ in 0..count {
                let mut data = [0; PAYLOAD];
                data[..8].copy_from_slice(&realtime_ns().to_le_bytes());
                from.send(&data).expect("a socket with room");
                std::thread::sleep(Duration::from_micros(2000));
            }
        });
        let read = || {
            let mut data = [0; PAYLOAD];
            to.recv(&mut data).expect("a datagram within 10 s");
            let sent = u64::from_le_bytes(data[..8].try_into().expect("eight bytes"));
            ((arrived_ns(&to).expect("a stamp") - sent) as f64 - want_ns) / 1e3
        };
        (0..count).map(|_| read()).collect()
    });
    let stats = emulator.stop().expect("it runs");
    let late = stats.lateness();
    let cpu = 100.0 * stats.cpu.0 as f64 / began.elapsed().as_nanos() as f64;
    let errors = sorted(&errors_us);
    let (p50, p99, max) = (quantile(&errors, 0.5), quantile(&errors, 0.99), errors[errors.len() - 1]);
    let beside = if busy > 0 { format!(", {busy} busy threads on its core") } else { String::new() };
    let late_p99_us = late.p99_ns as f64 / 1e3;
    let lateness = Figure::new(format!("TDF {at_tdf}: emulator's lateness p99{beside}"), "us real", late_p99_us)
        .spread((late.p50_ns as f64 / 1e3, late.max_ns as f64 / 1e3), "median, largest");
    let lateness = match busy {
        0 => lateness,
        _ => lateness.bar(format!("at most {LATENESS_BAR_US} us"), late_p99_us <= LATENESS_BAR_US),
    };
    vec![
        Figure::new(format!("TDF {at_tdf}: added delay p99{beside}"), "us real", p99)
            .spread((p50, max), "median, largest")
            .bar(format!("at most {DELAY_BAR_US} us"), p99 <= DELAY_BAR_US && errors[0] >= -1.0),
        lateness,
        Figure::new(format!("TDF {at_tdf}: emulator's CPU for these 500 packets/s{beside}"), "% of a core", cpu),
    ]
}

fn realtime_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// So many nodes on one switch.
fn star_of(nodes: usize) -> NetSpec {
    let mut b = NetBuilder::new(1, 78);
    let s = b.switch("s");
    for i in 0..nodes {
        let (_, v) = b.node(&format!("n{i}"));
        b.link(v, s, link(1_000_000_000, 50_000));
    }
    b.build().expect("one subnet")
}

/// Every node of a star sends to every other.
pub fn star(size: Size) -> Vec<Figure> {
    on_generator_core();
    raise_descriptors().expect("a limit of this process's own");
    let count = size.star;
    let nodes = Nodes::new(star_of(count), Tdf::ONE).expect("root");
    let mut injectors: Vec<Injector> =
        (0..count).map(|i| nodes.within(i, || Injector::new(Vec::new(), true)).expect("root")).collect();
    let emulator = nodes.emulate().expect("root");
    let received = || emulator.stats().expect("it runs").nodes.iter().map(|n| n.packets_received).sum::<u64>();
    let (before, begin) = (received(), Instant::now());
    let mut taken = 0;
    for distance in 1..count {
        for (from, injector) in injectors.iter_mut().enumerate() {
            let (from, to) = (&nodes.spec.nodes[from], &nodes.spec.nodes[(from + distance) % count]);
            let mut of_nobody = frame(from, to, STAR_FRAME);
            of_nobody[12..14].copy_from_slice(&EXPERIMENTAL);
            injector.load(of_nobody);
            taken += injector.send(1);
        }
        std::thread::sleep((begin + STAR_ROUND * distance as u32).saturating_duration_since(Instant::now()));
    }
    std::thread::sleep(10 * STAR_ROUND);
    let arrived = received() - before;
    let late = emulator.stop().expect("it runs").lateness();
    let pairs = (count * (count - 1)) as u64;
    let name = format!("a star of {count}, each of {pairs} pairs talks: frames that arrive");
    vec![
        Figure::new(name, "", arrived as f64).bar(format!("all {pairs}"), taken == pairs && arrived == pairs),
        Figure::new(format!("a star of {count}: emulator's lateness p99"), "us real", late.p99_ns as f64 / 1e3)
            .spread((late.p50_ns as f64 / 1e3, late.max_ns as f64 / 1e3), "median, largest"),
    ]
}

/// What a network of idle NICs costs, and how long it took to make.
pub fn idle(size: Size) -> Vec<Figure> {
    on_generator_core();
    raise_descriptors().expect("a limit of this process's own");
    let begin = Instant::now();
    let nodes = Nodes::new(star_of(size.nics), Tdf::ONE).expect("root");
    let made_s = begin.elapsed().as_secs_f64();
    let emulator = nodes.emulate().expect("root");
    // Group membership of fresh interfaces is said and repeated within two seconds or so.
    std::thread::sleep(Duration::from_secs_f64(2.0 * size.window_s));
    let shares: Vec<f64> = (0..3)
        .map(|_| {
            let before = emulator.stats().expect("it runs");
            std::thread::sleep(Duration::from_secs_f64(size.window_s));
            let after = emulator.stats().expect("it runs");
            100.0 * (after.cpu.0 - before.cpu.0) as f64 / after.at.since(before.at).0 as f64
        })
        .collect();
    let figure = Figure::median(format!("{} idle NICs: share of a core", size.nics), "%", &shares);
    let passes = figure.value <= 100.0 * IDLE_BAR;
    vec![
        figure.bar(format!("at most {} %", 100.0 * IDLE_BAR), passes),
        Figure::new(format!("{} NICs: time to make them", size.nics), "s", made_s),
    ]
}
