//! What a node may send and must not: counted, dropped, and nobody else notices.

use diecast_core_net::{Codel, Discipline, FqCodel, Link, NetBuilder, NetSpec, Network, NodeIx, Red};
use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::common::{A, B, Rng, balanced, frame, fuzz, id_of};

const C: NodeIx = NodeIx(2);

/// a talks to b; c is hostile. Access links of 100 Mbit/s.
fn three(discipline: Discipline) -> NetSpec {
    let mut b = NetBuilder::new(3, 77);
    let s = b.switch("s");
    for name in ["a", "b", "c", "d"] {
        let (_, v) = b.node(name);
        let link = Link { bandwidth_bps: Some(100_000_000), delay_ns: 50_000, discipline, ..Link::default() };
        b.link(v, s, link);
    }
    b.build().unwrap()
}

/// A frame that is wrong in some way, or at least unwelcome, but never a right one for a or b.
fn hostile(spec: &NetSpec, g: &mut Rng) -> Vec<u8> {
    let mut f: Vec<u8> = (0..g.below(200)).map(|_| g.next() as u8).collect();
    match g.below(8) {
        // Noise; its source is not c's.
        0 | 1 => {}
        // A jumbo over the MTU, a spoofed source, an unknown destination.
        2 => f = frame(spec, C, B, 0, 1515 + g.below(8000) as usize),
        3 => f = frame(spec, A, B, 0, 64 + g.below(1400) as usize),
        4 => {
            f = frame(spec, C, B, 0, 64);
            f[5] = 0x77;
        }
        // Lengths that contradict one another in IPv4, IPv6 and ARP.
        5 => {
            f = frame(spec, C, B, 0, 14 + g.below(60) as usize + 8);
            f[12..15].copy_from_slice(&[8, 0, 0x40 | g.below(16) as u8]);
            f[16..18].copy_from_slice(&[0xff, g.next() as u8]);
        }
        6 => {
            f = frame(spec, C, B, 0, 22 + g.below(50) as usize);
            f[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
            f[18..20].copy_from_slice(&[0xff, 0xff]);
        }
        // A flood of right frames to a node that is not looked at.
        _ => f = frame(spec, C, NodeIx(3), 0, 1514),
    }
    f
}

#[test]
fn a_hostile_node_changes_nothing_for_the_others() {
    for (seed, discipline) in [
        Discipline::DropTail,
        Discipline::Red(Red::new(5, 15)),
        Discipline::Codel(Codel::default()),
        Discipline::FqCodel(FqCodel::default()),
    ]
    .into_iter()
    .enumerate()
    {
        let spec = three(discipline);
        let run = |noise: bool| {
            let mut g = Rng(seed as u64);
            let mut net = Network::new(&spec).unwrap();
            let mut got = Vec::new();
            for id in 0..3000u64 {
                let now = VirtNs(id * 100_000);
                net.ingress(now, A, frame(&spec, A, B, id, 64 + (id as usize * 31) % 1400), VirtSpan(0));
                for _ in 0..if noise { 20 } else { 0 } {
                    // Debts are the node's claim too.
                    let debt = VirtSpan(if g.below(4) == 0 { g.next() >> 44 } else { 0 });
                    net.ingress(now, C, hostile(&spec, &mut g), debt);
                }
                while let Some(d) = net.pop_due(now) {
                    if d.to == B {
                        got.push((d.due.0, id_of(&d.frame)));
                    }
                    net.recycle(d.frame);
                }
            }
            (got, net)
        };
        let ((quiet, _), (noisy, net)) = (run(false), run(true));
        assert!(quiet.len() > 2900);
        assert_eq!(quiet, noisy, "{discipline:?}");
        net.pipe_counters().iter().for_each(balanced);
        let c = net.node_counters()[2];
        let causes = [c.dropped_malformed, c.dropped_spoofed, c.dropped_oversize, c.dropped_unknown_destination];
        assert!(causes.iter().all(|n| *n > 3000), "{c:?}");
        assert_eq!(c.packets_sent, 60_000);
        // The flood fills c's own queue and no more of memory.
        assert!(net.in_flight() < 12_000, "{} in flight", net.in_flight());
    }
}

/// Frames of random bytes behind a right header, with every discipline, marks and bit errors on the way.
#[test]
fn no_frame_upsets_a_pipe() {
    let (times, seed) = fuzz().map_or((1, 11), |n| (n, n));
    println!("seed {seed}");
    let mut g = Rng(seed);
    for discipline in [
        Discipline::Red(Red { ecn: true, weight: 1.0, max_probability: 1.0, ..Red::new(0, 1000) }),
        Discipline::Codel(Codel { target_ns: 0, interval_ns: 1, ecn: true }),
        Discipline::FqCodel(FqCodel {
            codel: Codel { target_ns: 0, interval_ns: 1, ecn: true },
            flows: 3,
            quantum_bytes: 1,
        }),
    ] {
        let mut spec = three(discipline);
        for p in &mut spec.pipes {
            (p.link.corrupt, p.link.duplicate, p.link.bandwidth_bps) = (0.5, 0.2, Some(3_500_000));
        }
        let mut net = Network::new(&spec).unwrap();
        for k in 0..60_000 * times {
            let mut f: Vec<u8> = (0..14 + g.below(90)).map(|_| g.next() as u8).collect();
            let to = [B, NodeIx(3)][g.below(2) as usize];
            f[..6].copy_from_slice(&spec.nodes[to.at()].mac.0);
            f[6..12].copy_from_slice(&spec.nodes[2].mac.0);
            let types: [[u8; 2]; 4] = [[8, 0], [0x86, 0xdd], [8, 6], [0x88, 0xb5]];
            f[12..14].copy_from_slice(&types[g.below(4) as usize]);
            if f.len() > 20 {
                f[14] = [0x45, 0x60, 0x4f, 0x46][g.below(4) as usize];
                let room = (f.len() - 14) as u64;
                // Lengths that are right, too short and too long.
                let length = g.below(room + 10) as u16;
                f[16..18].copy_from_slice(&length.to_be_bytes());
                f[18..20].copy_from_slice(&(length.saturating_sub(40)).to_be_bytes());
            }
            net.ingress(VirtNs(k * 40_000), C, f, VirtSpan(g.below(1000)));
            while let Some(d) = net.pop_due(VirtNs(k * 40_000)) {
                net.recycle(d.frame);
            }
        }
        net.pipe_counters().iter().for_each(balanced);
        let c = &net.pipe_counters()[4];
        assert!(c.corrupted > 1000 && c.duplicated > 500 && c.marked > 100, "{discipline:?} {c:?}");
    }
}

/// The release table must not cost more for each flow that a node invents.
#[test]
fn a_flood_of_indebted_flows_stays_cheap() {
    let spec = three(Discipline::DropTail);
    let mut net = Network::new(&spec).unwrap();
    for k in 0..100_000u64 {
        let mut f = frame(&spec, C, NodeIx(3), 0, 64);
        f[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 50]);
        f[23] = 17;
        f[26..34].copy_from_slice(&k.to_be_bytes());
        net.ingress(VirtNs(k), C, f, VirtSpan(1_000_000_000));
    }
    assert_eq!(net.in_flight(), 100_000);
}
