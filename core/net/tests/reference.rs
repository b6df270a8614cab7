//! The model against an independent simulation: explicit queues, a transmitter that is told when to finish,
//! exact fractions, one sorted list of happenings.

use std::collections::{BTreeMap, VecDeque};

use diecast_core_net::{Link, NetBuilder, NetSpec, Network, NodeIx};
use diecast_core_vtime::{VirtNs, VirtSpan};

/// SplitMix64; the seed is in every failure message.
struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    id: u64,
    at: u64,
    from: usize,
    to: usize,
    bytes: usize,
}

/// What happens in the reference, ordered by (instant, order of causes).
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A packet reaches the start of hop `hop` of its path.
    Reach { packet: Packet, hop: usize },
}

struct RefPipe {
    bps: Option<u64>,
    delay: u64,
    limit: usize,
    /// Exact end of the packet being sent, in units of 1/bps nanoseconds.
    busy_until: u128,
    waiting: VecDeque<(Packet, usize)>,
    current: Option<(Packet, usize)>,
}

/// Runs the packets to the end; returns (due, id) of the delivered in order, and drops per pipe.
fn reference(
    spec: &NetSpec,
    paths: &BTreeMap<(usize, usize), Vec<usize>>,
    packets: &[Packet],
) -> (Vec<(u64, u64)>, Vec<u64>) {
    let mut pipes: Vec<RefPipe> = spec
        .pipes
        .iter()
        .map(|p| RefPipe {
            bps: p.link.bandwidth_bps,
            delay: p.link.delay_ns,
            limit: p.link.queue_packets as usize,
            busy_until: 0,
            waiting: VecDeque::new(),
            current: None,
        })
        .collect();
    let mut drops = vec![0; pipes.len()];
    let mut done = Vec::new();
    let mut order = 0u64;
    let mut agenda: BTreeMap<(u64, u64), Happening> = BTreeMap::new();
    for p in packets {
        agenda.insert((p.at, order), Happening::Reach { packet: *p, hop: 0 });
        order += 1;
    }
    loop {
        // A transmitter that ends at an instant ends before anything else of that instant.
        let end = pipes
            .iter()
            .enumerate()
            .filter(|(_, p)| p.current.is_some())
            .map(|(i, p)| (p.busy_until.div_ceil(u128::from(p.bps.unwrap())) as u64, i))
            .min();
        let next = agenda.keys().next().copied();
        match (end, next) {
            (None, None) => return (done, drops),
            (Some((t, i)), n) if n.is_none_or(|n| t <= n.0) => {
                let bps = u128::from(pipes[i].bps.unwrap());
                pipes[i].current = None;
                if let Some((packet, hop)) = pipes[i].waiting.pop_front() {
                    pipes[i].busy_until += packet.bytes as u128 * 8_000_000_000;
                    pipes[i].current = Some((packet, hop));
                    let at = pipes[i].busy_until.div_ceil(bps) as u64 + pipes[i].delay;
                    agenda.insert((at, order), Happening::Reach { packet, hop: hop + 1 });
                    order += 1;
                }
            }
            (_, Some(key)) => {
                let Happening::Reach { packet, hop } = agenda.remove(&key).unwrap();
                let path = &paths[&(packet.from, packet.to)];
                if hop == path.len() {
                    done.push((key.0, packet.id));
                    continue;
                }
                let i = path[hop];
                let pipe = &mut pipes[i];
                let Some(bps) = pipe.bps else {
                    agenda.insert((key.0 + pipe.delay, order), Happening::Reach { packet, hop: hop + 1 });
                    order += 1;
                    continue;
                };
                if pipe.current.is_some() {
                    if pipe.waiting.len() >= pipe.limit { drops[i] += 1 } else { pipe.waiting.push_back((packet, hop)) }
                } else {
                    pipe.busy_until = u128::from(key.0) * u128::from(bps) + packet.bytes as u128 * 8_000_000_000;
                    pipe.current = Some((packet, hop));
                    let at = pipe.busy_until.div_ceil(u128::from(bps)) as u64 + pipe.delay;
                    agenda.insert((at, order), Happening::Reach { packet, hop: hop + 1 });
                    order += 1;
                }
            }
            (Some(_), None) => unreachable!("the guard above takes this case"),
        }
    }
}

/// A random tree of switches with random leaves, so that paths have one to six pipes.
fn random_net(g: &mut Rng) -> NetSpec {
    let mut b = NetBuilder::new(g.next(), 77);
    let link = |g: &mut Rng| {
        let (rate_bits, delay_bits) = (20 + g.below(11), g.below(24));
        Link {
            bandwidth_bps: if g.below(6) == 0 { None } else { Some(1_000_000 + g.below(1 << rate_bits)) },
            delay_ns: g.below(1 << delay_bits),
            queue_packets: g.below(12) as u32,
            ..Link::default()
        }
    };
    let mut switches = vec![b.switch("s0")];
    for i in 1..1 + g.below(4) {
        let s = b.switch(&format!("s{i}"));
        let up = switches[g.below(switches.len() as u64) as usize];
        let l = link(g);
        b.link(up, s, l);
        switches.push(s);
    }
    for i in 0..2 + g.below(5) {
        let (_, v) = b.node(&format!("n{i}"));
        let up = switches[g.below(switches.len() as u64) as usize];
        let l = link(g);
        b.link(v, up, l);
    }
    b.build().unwrap()
}

fn frame(spec: &NetSpec, p: &Packet) -> Vec<u8> {
    let mut f = vec![0; p.bytes];
    f[..6].copy_from_slice(&spec.nodes[p.to].mac.0);
    f[6..12].copy_from_slice(&spec.nodes[p.from].mac.0);
    // An experimental ethertype: carried like any other payload.
    f[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    f[14..22].copy_from_slice(&p.id.to_be_bytes());
    f
}

fn id_of(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame[14..22].try_into().unwrap())
}

#[test]
fn equals_the_reference_on_random_trees() {
    let mut dropped = 0;
    let mut delivered = 0;
    for seed in 0..400 {
        let mut g = Rng(seed);
        let spec = random_net(&mut g);
        let mut net = Network::new(&spec).unwrap();
        let nodes = spec.nodes.len();
        let mut paths = BTreeMap::new();
        for a in 0..nodes {
            for b in 0..nodes {
                let p = net.path(NodeIx(a as u32), NodeIx(b as u32)).iter().map(|p| p.0 as usize).collect::<Vec<_>>();
                paths.insert((a, b), p);
            }
        }
        let mut at = 0;
        let packets: Vec<Packet> = (0..300)
            .map(|id| {
                // Bursts at one instant, back-to-back trains and pauses.
                at += if g.below(3) == 0 { g.below(1 << 21) } else { g.below(2) * g.below(20_000) };
                let from = g.below(nodes as u64) as usize;
                let to = (from + 1 + g.below(nodes as u64 - 1) as usize) % nodes;
                Packet { id, at, from, to, bytes: 22 + g.below(1493) as usize }
            })
            .collect();
        let (want, want_drops) = reference(&spec, &paths, &packets);

        // The caller wakes at random instants, late ones included: results must not depend on it.
        let mut got = Vec::new();
        let mut waiting = packets.iter().peekable();
        while let Some(p) = waiting.next() {
            net.ingress(VirtNs(p.at), NodeIx(p.from as u32), frame(&spec, p), VirtSpan(0));
            // Looking up to the next ingress is allowed, never beyond.
            if let Some(n) = waiting.peek().filter(|_| g.below(2) == 0) {
                let now = p.at + g.below(n.at - p.at + 1);
                while let Some(d) = net.pop_due(VirtNs(now.min(n.at.saturating_sub(1)))) {
                    got.push((d.due.0, id_of(&d.frame)));
                    net.recycle(d.frame);
                }
            }
        }
        while let Some(d) = net.pop_due(VirtNs::NEVER) {
            got.push((d.due.0, id_of(&d.frame)));
        }
        let drops: Vec<u64> = net.pipe_counters().iter().map(|c| c.dropped_queue_full).collect();
        // Packets of one instant may leave in another order than the reference's, the set is the same.
        let sorted = |mut v: Vec<(u64, u64)>| {
            v.sort_unstable();
            v
        };
        assert!(got.windows(2).all(|w| w[0].0 <= w[1].0), "deliveries out of order: seed {seed}");
        assert_eq!(sorted(got.clone()), sorted(want), "seed {seed}");
        assert_eq!(drops, want_drops, "seed {seed}");
        dropped += drops.iter().sum::<u64>();
        delivered += got.len();
    }
    assert!(dropped > 1000 && delivered > 10_000, "the cases are too tame: {dropped} dropped, {delivered} delivered");
}

#[test]
fn the_same_calls_give_the_same_answers_and_another_seed_does_not() {
    let run = |seed: u64, net_seed: u64| {
        let mut g = Rng(seed);
        let mut spec = random_net(&mut g);
        spec.seed = net_seed;
        for p in &mut spec.pipes {
            p.link.loss = 0.1;
            p.link.queue_packets = 100;
        }
        let mut net = Network::new(&spec).unwrap();
        for id in 0..500 {
            let p = Packet { id, at: id * 1000, from: 0, to: 1, bytes: 22 + g.below(1400) as usize };
            net.ingress(VirtNs(p.at), NodeIx(0), frame(&spec, &p), VirtSpan(0));
        }
        let mut out = Vec::new();
        while let Some(d) = net.pop_due(VirtNs::NEVER) {
            out.push((d.due, id_of(&d.frame)));
        }
        (out, net.pipe_counters())
    };
    for seed in 0..20 {
        assert_eq!(run(seed, 5), run(seed, 5), "seed {seed}");
        assert_ne!(run(seed, 5).0, run(seed, 6).0, "seed {seed}");
    }
}
