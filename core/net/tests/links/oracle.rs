//! One pipe against a plain simulation of the same arrivals: explicit lists, the RFCs' pseudocode, whole time scans.

use std::collections::{BTreeMap, VecDeque};

use diecast_core_net::{Codel, Discipline, FQ_FLOWS_MAX, FqCodel, Link, NetSpec, Network, PipeCounters, Red};
use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::common::{A, PIPE, Rng, all, balanced, id_of, one_pipe, udp};

#[derive(Clone, Copy)]
struct Packet {
    id: u64,
    at: u64,
    bytes: u64,
    flow: u16,
}

/// A queue of RFC 8289 with its own names and integer times; `target` of `None` is drop-tail.
#[derive(Default)]
struct Codelled {
    codel: Option<(u64, u64)>,
    queue: VecDeque<Packet>,
    first_above_time: u64,
    drop_next: u64,
    count: u32,
    lastcount: u32,
    dropping: bool,
    early: Vec<u64>,
}

impl Codelled {
    fn bytes(&self) -> u64 {
        self.queue.iter().map(|p| p.bytes).sum()
    }

    fn dodequeue(&mut self, now: u64) -> (Option<Packet>, bool) {
        let (target, interval) = self.codel.unwrap();
        let Some(p) = self.queue.pop_front() else {
            self.first_above_time = 0;
            return (None, false);
        };
        let mut ok_to_drop = false;
        if now - p.at < target || self.bytes() <= 1514 {
            self.first_above_time = 0;
        } else if self.first_above_time == 0 {
            self.first_above_time = now + interval;
        } else if now >= self.first_above_time {
            ok_to_drop = true;
        }
        (Some(p), ok_to_drop)
    }

    fn control_law(&self, t: u64) -> u64 {
        t + (self.codel.unwrap().1 as f64 / f64::from(self.count).sqrt()) as u64
    }

    fn deque(&mut self, now: u64) -> Option<Packet> {
        if self.codel.is_none() {
            return self.queue.pop_front();
        }
        let interval = self.codel.unwrap().1;
        let mut r = self.dodequeue(now);
        if self.dropping {
            if !r.1 {
                self.dropping = false;
            }
            while now >= self.drop_next && self.dropping {
                self.early.extend(r.0.map(|p| p.id));
                self.count += 1;
                r = self.dodequeue(now);
                if !r.1 {
                    self.dropping = false;
                } else {
                    self.drop_next = self.control_law(self.drop_next);
                }
            }
        } else if r.1 {
            self.early.extend(r.0.map(|p| p.id));
            r = self.dodequeue(now);
            self.dropping = true;
            let delta = self.count.wrapping_sub(self.lastcount);
            self.count = 1;
            if delta > 1 && now - self.drop_next < 16 * interval {
                self.count = delta;
            }
            self.drop_next = self.control_law(now);
            self.lastcount = self.count;
        }
        r.0
    }
}

/// What a transmitter takes packets from.
trait Qdisc {
    /// A packet has come; the transmitter is or was free from `free` on.
    fn enqueue(&mut self, p: Packet, free: u64, idle: bool);
    /// The next packet; asked whenever the transmitter is free, so also for one that has just come.
    fn dequeue(&mut self, now: u64) -> Option<Packet>;
}

struct Single {
    bps: u128,
    limit_packets: usize,
    limit_bytes: u64,
    limit_ns: u64,
    queue: Codelled,
    full: Vec<u64>,
}

impl Qdisc for Single {
    fn enqueue(&mut self, p: Packet, free: u64, idle: bool) {
        let waiting = self.queue.bytes();
        let wait = free.saturating_sub(p.at) + (u128::from(waiting) * 8_000_000_000 / self.bps) as u64;
        let full = self.queue.queue.len() >= self.limit_packets
            || waiting + p.bytes > self.limit_bytes
            || wait > self.limit_ns;
        // Who finds the transmitter free never waits.
        if full && !idle { self.full.push(p.id) } else { self.queue.queue.push_back(p) }
    }

    fn dequeue(&mut self, now: u64) -> Option<Packet> {
        self.queue.deque(now)
    }
}

/// RFC 8290, sections 4.1 and 4.2, a queue for each flow; an emptied new queue where no old one waits is removed, as in
/// Linux.
struct FlowQueues {
    codel: (u64, u64),
    quantum: i64,
    limit_packets: usize,
    queues: BTreeMap<u16, (Codelled, i64)>,
    new: VecDeque<u16>,
    old: VecDeque<u16>,
    full: Vec<u64>,
}

impl Qdisc for FlowQueues {
    fn enqueue(&mut self, p: Packet, _: u64, _: bool) {
        let fresh = || (Codelled { codel: Some(self.codel), ..Codelled::default() }, 0);
        let (queue, credits) = self.queues.entry(p.flow).or_insert_with(fresh);
        queue.queue.push_back(p);
        if !self.new.contains(&p.flow) && !self.old.contains(&p.flow) {
            *credits = self.quantum;
            self.new.push_back(p.flow);
        }
        if self.queues.values().map(|q| q.0.queue.len()).sum::<usize>() > self.limit_packets {
            let most = self.queues.values().map(|q| q.0.bytes()).max().unwrap();
            let mut largest = self.queues.values_mut().filter(|q| q.0.bytes() == most);
            let (queue, _) = largest.next().unwrap();
            assert!(largest.next().is_none(), "which is the largest is not said");
            let half = queue.queue.len().div_ceil(2).min(64);
            self.full.extend(queue.queue.drain(..half).map(|p| p.id));
        }
    }

    fn dequeue(&mut self, now: u64) -> Option<Packet> {
        loop {
            let was_new = !self.new.is_empty();
            let flow = if was_new { self.new.pop_front() } else { self.old.pop_front() }?;
            let (queue, credits) = self.queues.get_mut(&flow).unwrap();
            if *credits <= 0 {
                *credits += self.quantum;
                self.old.push_back(flow);
                continue;
            }
            match queue.deque(now) {
                Some(p) => {
                    *credits -= p.bytes as i64;
                    let list = if was_new { &mut self.new } else { &mut self.old };
                    list.push_front(flow);
                    return Some(p);
                }
                None if was_new && !self.old.is_empty() => self.old.push_back(flow),
                None => {}
            }
        }
    }
}

/// Figure 2 of the RED paper with its names.
struct RedQueue {
    params: Red,
    bps: f64,
    rng: Rng,
    queue: VecDeque<Packet>,
    avg: f64,
    count: i64,
    dropped: u64,
}

impl Qdisc for RedQueue {
    fn enqueue(&mut self, p: Packet, free: u64, idle: bool) {
        let Red { min_packets, max_packets, max_probability: maxp, weight: wq, gentle, .. } = self.params;
        let (minth, maxth) = (f64::from(min_packets), f64::from(max_packets));
        if idle {
            let m = ((p.at - free) as f64 * 1e-9 * self.bps / (500.0 * 8.0)).floor();
            self.avg *= (1.0 - wq).powf(m);
        } else {
            self.avg = (1.0 - wq) * self.avg + wq * self.queue.len() as f64;
        }
        let pb = match self.avg {
            avg if avg < minth => {
                self.count = -1;
                return self.queue.push_back(p);
            }
            avg if avg < maxth => maxp * (avg - minth) / (maxth - minth),
            avg if gentle && avg < 2.0 * maxth => maxp + (1.0 - maxp) * (avg - maxth) / maxth,
            _ => {
                self.count = 0;
                self.dropped += 1;
                return;
            }
        };
        self.count += 1;
        let pa = if self.count as f64 * pb < 1.0 { pb / (1.0 - self.count as f64 * pb) } else { 1.0 };
        if ((self.rng.next() >> 11) as f64) < pa * (1u64 << 53) as f64 {
            self.count = 0;
            self.dropped += 1;
        } else {
            self.queue.push_back(p);
        }
    }

    fn dequeue(&mut self, _: u64) -> Option<Packet> {
        self.queue.pop_front()
    }
}

/// (end of transmission, number) of everything that is sent.
fn send(queue: &mut impl Qdisc, bps: u128, arrivals: &[Packet]) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    // Exact end of the busy period in units of 1/bps ns.
    let mut busy = 0u128;
    let mut idle = true;
    let mut next = 0;
    loop {
        let free = busy.div_ceil(bps) as u64;
        let arrival = arrivals.get(next).map(|p| p.at);
        if !idle && arrival.is_none_or(|at| free <= at) {
            match queue.dequeue(free) {
                Some(p) => {
                    busy += u128::from(p.bytes) * 8_000_000_000;
                    out.push((busy.div_ceil(bps) as u64, p.id));
                }
                None => idle = true,
            }
            continue;
        }
        let Some(at) = arrival else { return out };
        queue.enqueue(arrivals[next], free, idle);
        next += 1;
        if idle && let Some(p) = queue.dequeue(at) {
            idle = false;
            busy = u128::from(at) * bps + u128::from(p.bytes) * 8_000_000_000;
            out.push((busy.div_ceil(bps) as u64, p.id));
        }
    }
}

/// What the model sends of the same arrivals, looked at now and then, and the pipe's counters.
fn sent_by_model(spec: &NetSpec, g: &mut Rng, arrivals: &[Packet]) -> (Vec<(u64, u64)>, PipeCounters) {
    let mut net = Network::new(spec).unwrap();
    let mut got = Vec::new();
    for p in arrivals {
        if g.below(3) == 0 {
            let due = VirtNs(p.at.saturating_sub(1));
            got.extend(std::iter::from_fn(|| net.pop_due(due)).map(|d| (d.due.0, id_of(&d.frame))));
        }
        net.ingress(VirtNs(p.at), A, udp(spec, 0, 1000 + p.flow, p.id, p.bytes as usize), VirtSpan(0));
    }
    got.extend(all(&mut net).iter().map(|d| (d.due.0, id_of(&d.frame))));
    let c = net.pipe_counters()[PIPE.at()];
    balanced(&c);
    (got, c)
}

#[test]
fn drops_and_times_equal_the_reference_for_drop_tail_limits_and_codel() {
    let (mut early, mut full) = (0, 0);
    for seed in 0..60 {
        let mut g = Rng(seed);
        let bps = 1_000_000 + g.below(50_000_000);
        let codel = (g.below(3) > 0).then(|| (500_000 + g.below(10_000_000), 10_000_000 + g.below(100_000_000)));
        let limit_packets = if g.below(2) == 0 { 20 + g.below(200) as usize } else { 1_000_000 };
        let limit_bytes = if g.below(3) == 0 { 3000 + g.below(100_000) } else { u64::MAX };
        let limit_ns = if g.below(3) == 0 { 1_000_000 + g.below(60_000_000) } else { u64::MAX };
        let discipline = codel.map_or(Discipline::DropTail, |(target_ns, interval_ns)| {
            Discipline::Codel(Codel { target_ns, interval_ns, ecn: false })
        });
        let link = Link {
            bandwidth_bps: Some(bps),
            queue_packets: limit_packets as u32,
            queue_bytes: (limit_bytes < u64::MAX).then_some(limit_bytes),
            queue_delay_ns: (limit_ns < u64::MAX).then_some(limit_ns),
            discipline,
            ..Link::default()
        };
        // Phases of overload and of rest around the pipe's rate of packets.
        let mut at = 0;
        let mut load = 100;
        let arrivals: Vec<Packet> = (0..3000)
            .map(|id| {
                if g.below(200) == 0 {
                    load = 30 + g.below(170);
                }
                let bytes = 60 + g.below(1455);
                at += g.below(2 * 760 * 8_000_000_000 / bps * 100 / load);
                Packet { id, at, bytes, flow: 0 }
            })
            .collect();
        let queue = Codelled { codel, ..Codelled::default() };
        let bps = u128::from(bps);
        let mut reference = Single { bps, limit_packets, limit_bytes, limit_ns, queue, full: Vec::new() };
        let want = send(&mut reference, bps, &arrivals);
        let (got, c) = sent_by_model(&one_pipe(link), &mut g, &arrivals);
        assert_eq!(got, want, "seed {seed}");
        let want_drops = (reference.full.len() as u64, reference.queue.early.len() as u64);
        assert_eq!((c.dropped_queue_full, c.dropped_early), want_drops, "seed {seed}");
        early += want_drops.1;
        full += want_drops.0;
    }
    assert!(early > 1_000 && full > 1_000, "the cases are too tame: {early} early, {full} full");
}

#[test]
fn drops_times_and_order_equal_the_reference_for_fq_codel() {
    let (mut early, mut full, mut turns) = (0, 0, 0);
    for seed in 0..60 {
        let mut g = Rng(seed);
        let bps = 1_000_000 + g.below(50_000_000);
        let codel = Codel {
            target_ns: 500_000 + g.below(10_000_000),
            interval_ns: 10_000_000 + g.below(100_000_000),
            ecn: false,
        };
        let quantum_bytes = 300 + g.below(3000) as u32;
        // With as many queues each flow has one of its own.
        let fq = FqCodel { codel, quantum_bytes, flows: FQ_FLOWS_MAX };
        let limit_packets = if g.below(2) == 0 { 20 + g.below(300) as usize } else { 1_000_000 };
        let link = Link {
            bandwidth_bps: Some(bps),
            queue_packets: limit_packets as u32,
            discipline: Discipline::FqCodel(fq),
            ..Link::default()
        };
        // Flows of different rates and sizes, some of which pause.
        let flows = 1 + g.below(8) as u16;
        let sizes: Vec<u64> = (0..flows).map(|_| 60 + g.below(1400)).collect();
        let mut at = 0;
        let (mut load, mut active) = (100, flows);
        let arrivals: Vec<Packet> = (0..3000)
            .map(|id| {
                if g.below(100) == 0 {
                    load = 30 + g.below(170);
                    active = 1 + g.below(u64::from(flows)) as u16;
                }
                let flow = g.below(u64::from(active)) as u16;
                let bytes = sizes[usize::from(flow)] + g.below(55);
                at += g.below(2 * 760 * 8_000_000_000 / bps * 100 / load);
                Packet { id, at, bytes, flow }
            })
            .collect();
        let mut reference = FlowQueues {
            codel: (codel.target_ns, codel.interval_ns),
            quantum: i64::from(quantum_bytes),
            limit_packets,
            queues: BTreeMap::new(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            full: Vec::new(),
        };
        let want = send(&mut reference, u128::from(bps), &arrivals);
        let (got, c) = sent_by_model(&one_pipe(link), &mut g, &arrivals);
        let differ = got.iter().zip(&want).position(|(g, w)| g != w);
        let at = differ.map(|i| (i, got[i], want[i]));
        assert!(at.is_none() && got.len() == want.len(), "seed {seed}: {at:?}, {} and {}", got.len(), want.len());
        let want_early: usize = reference.queues.values().map(|q| q.0.early.len()).sum();
        let want_drops = (reference.full.len() as u64, want_early as u64);
        assert_eq!((c.dropped_queue_full, c.dropped_early), want_drops, "seed {seed}");
        early += want_drops.1;
        full += want_drops.0;
        turns += want.windows(2).filter(|w| w[0].1 > w[1].1).count();
    }
    println!("{early} early, {full} full, {turns} overtook");
    assert!(early > 1_000 && full > 1_000 && turns > 10_000, "too tame: {early} early, {full} full, {turns} overtook");
}

/// The same arrivals with other draws: as many drops and as long waits, in the sum over many runs.
#[test]
fn drops_and_waits_are_those_of_the_reference_for_red() {
    for (max_probability, weight, gentle, load) in
        [(0.02, 0.002, false, 105), (0.1, 0.02, true, 115), (0.5, 0.2, true, 180), (1.0, 0.01, false, 130)]
    {
        let red = Red { max_probability, weight, gentle, ..Red::new(5, 15) };
        let (mut drops, mut want_drops, mut waits, mut want_waits, mut count) = (0.0, 0.0, 0.0, 0.0, 0);
        for seed in 0..40 {
            let mut g = Rng(seed);
            let bps = 10_000_000;
            let link = Link {
                bandwidth_bps: Some(bps),
                queue_packets: 1_000_000,
                discipline: Discipline::Red(red),
                ..Link::default()
            };
            let mut at = 0;
            let arrivals: Vec<Packet> = (0..3000)
                .map(|id| {
                    // A rest of 50 packets' time now and then, in which the average falls.
                    let rest = if g.below(300) == 0 { 50 * 608_000 } else { 0 };
                    at += rest + g.below(2 * 608_000 * 100 / load);
                    Packet { id, at, bytes: 60 + g.below(1400), flow: 0 }
                })
                .collect();
            let rng = Rng(seed ^ 0xfeed);
            let mut reference =
                RedQueue { params: red, bps: bps as f64, rng, queue: VecDeque::new(), avg: 0.0, count: -1, dropped: 0 };
            let wait_of = |sent: &[(u64, u64)]| {
                sent.iter().map(|(end, id)| (end - arrivals[*id as usize].at) as f64).sum::<f64>() / sent.len() as f64
            };
            want_waits += wait_of(&send(&mut reference, u128::from(bps), &arrivals));
            want_drops += reference.dropped as f64;
            let mut spec = one_pipe(link);
            spec.seed = seed;
            let (got, c) = sent_by_model(&spec, &mut g, &arrivals);
            waits += wait_of(&got);
            drops += c.dropped_early as f64;
            count += 1;
        }
        let (drop_error, wait_error) = (drops / want_drops - 1.0, waits / want_waits - 1.0);
        println!("{red:?}: {drops} and {want_drops} drops; waits {:.3} and {:.3} ms", waits / 4e7, want_waits / 4e7);
        assert!(want_drops > 500.0 * 4.0 && count == 40, "too tame: {want_drops}");
        assert!(drop_error.abs() < 0.02 && wait_error.abs() < 0.02, "{red:?}: {drop_error} {wait_error}");
    }
}
