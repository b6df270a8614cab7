//! One pipe against a plain simulation of the same arrivals: explicit list, the RFC's pseudocode, whole time scans.

use std::collections::VecDeque;

use diecast_core_net::{Codel, Discipline, Link, Network};
use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::common::{A, B, PIPE, Rng, all, balanced, frame, id_of, one_pipe};

#[derive(Clone, Copy)]
struct Packet {
    id: u64,
    at: u64,
    bytes: u64,
}

/// RFC 8289 with its own names and integer times; `target` of `None` is drop-tail.
struct Reference {
    bps: u128,
    limit_packets: usize,
    limit_bytes: u64,
    limit_ns: u64,
    codel: Option<(u64, u64)>,
    queue: VecDeque<Packet>,
    first_above_time: u64,
    drop_next: u64,
    count: u32,
    lastcount: u32,
    dropping: bool,
    early: Vec<u64>,
    full: Vec<u64>,
}

impl Reference {
    fn dodequeue(&mut self, now: u64) -> (Option<Packet>, bool) {
        let (target, interval) = self.codel.unwrap();
        let Some(p) = self.queue.pop_front() else {
            self.first_above_time = 0;
            return (None, false);
        };
        let mut ok_to_drop = false;
        if now - p.at < target || self.queue.iter().map(|p| p.bytes).sum::<u64>() <= 1514 {
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

    /// (end of transmission, number) of everything that is sent.
    fn run(&mut self, arrivals: &[Packet]) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        // Exact end of the busy period in units of 1/bps ns.
        let mut busy = 0u128;
        let mut next = 0;
        loop {
            let free = busy.div_ceil(self.bps) as u64;
            let arrival = arrivals.get(next).map(|p| p.at);
            if !self.queue.is_empty() && arrival.is_none_or(|at| free <= at) {
                if let Some(p) = self.deque(free) {
                    busy += u128::from(p.bytes) * 8_000_000_000;
                    out.push((busy.div_ceil(self.bps) as u64, p.id));
                }
                continue;
            }
            let Some(at) = arrival else { return out };
            let p = arrivals[next];
            next += 1;
            if free <= at {
                // The transmitter asks for the packet at once; the queue was empty until now.
                self.queue.push_back(p);
                busy = u128::from(at) * self.bps;
                let p = self.deque(at).unwrap();
                busy += u128::from(p.bytes) * 8_000_000_000;
                out.push((busy.div_ceil(self.bps) as u64, p.id));
                continue;
            }
            let waiting: u64 = self.queue.iter().map(|p| p.bytes).sum();
            let wait = free - at + (u128::from(waiting) * 8_000_000_000 / self.bps) as u64;
            let full =
                self.queue.len() >= self.limit_packets || waiting + p.bytes > self.limit_bytes || wait > self.limit_ns;
            if full { self.full.push(p.id) } else { self.queue.push_back(p) }
        }
    }
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
                Packet { id, at, bytes }
            })
            .collect();
        let mut reference = Reference {
            bps: u128::from(bps),
            limit_packets,
            limit_bytes,
            limit_ns,
            codel,
            queue: VecDeque::new(),
            first_above_time: 0,
            drop_next: 0,
            count: 0,
            lastcount: 0,
            dropping: false,
            early: Vec::new(),
            full: Vec::new(),
        };
        let want = reference.run(&arrivals);
        let spec = one_pipe(link);
        let mut net = Network::new(&spec).unwrap();
        let mut got = Vec::new();
        for p in &arrivals {
            if g.below(3) == 0 {
                let due = VirtNs(p.at.saturating_sub(1));
                got.extend(std::iter::from_fn(|| net.pop_due(due)).map(|d| (d.due.0, id_of(&d.frame))));
            }
            net.ingress(VirtNs(p.at), A, frame(&spec, A, B, p.id, p.bytes as usize), VirtSpan(0));
        }
        got.extend(all(&mut net).iter().map(|d| (d.due.0, id_of(&d.frame))));
        let c = net.pipe_counters()[PIPE.at()];
        balanced(&c);
        assert_eq!(got, want, "seed {seed}");
        let want_drops = (reference.full.len() as u64, reference.early.len() as u64);
        assert_eq!((c.dropped_queue_full, c.dropped_early), want_drops, "seed {seed}");
        early += want_drops.1;
        full += want_drops.0;
    }
    assert!(early > 1_000 && full > 1_000, "the cases are too tame: {early} early, {full} full");
}
