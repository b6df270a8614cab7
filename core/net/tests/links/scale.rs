//! A thousand nodes: what building, routing and queueing take. Figures are printed with `--nocapture`; only counts and
//! bytes are asserted, as a core crate has no clock to hold against.

use diecast_core_net::{Change, Link, NetBuilder, NetSpec, Network, NodeIx};
use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::common::{Rng, frame};

fn star(nodes: usize, link: Link) -> NetSpec {
    let mut b = NetBuilder::new(1, 77);
    let s = b.switch("s");
    for i in 0..nodes {
        let (_, v) = b.node(&format!("n{i}"));
        b.link(v, s, link);
    }
    b.build().unwrap()
}

/// A ring of switches with chords, nodes spread over it.
fn mesh(nodes: usize, switches: usize) -> NetSpec {
    let mut g = Rng(5);
    let mut b = NetBuilder::new(1, 77);
    let s: Vec<_> = (0..switches).map(|i| b.switch(&format!("s{i}"))).collect();
    let mut link = || Link { bandwidth_bps: Some(1_000_000_000), delay_ns: 1 + g.below(1_000_000), ..Link::default() };
    for i in 0..switches {
        b.link(s[i], s[(i + 1) % switches], link());
        b.link(s[i], s[(i * 7 + 13) % switches], link());
    }
    for i in 0..nodes {
        let (_, v) = b.node(&format!("n{i}"));
        b.link(v, s[i % switches], link());
    }
    b.build().unwrap()
}

#[test]
fn a_thousand_nodes_are_routed_and_talk() {
    for spec in [star(1000, Link::default()), mesh(1000, 60)] {
        let mut net = Network::new(&spec).unwrap();
        let n = |i: u64| NodeIx((i % 1000) as u32);
        for i in 0..20_000u64 {
            net.ingress(VirtNs(i), n(i), frame(&spec, n(i), n(i * 7 + 3), i, 64), VirtSpan(0));
        }
        let mut got = 0;
        while let Some(d) = net.pop_due(VirtNs::NEVER) {
            net.recycle(d.frame);
            got += 1;
        }
        let to_self = (0..20_000u64).filter(|i| n(*i) == n(i * 7 + 3)).count();
        assert_eq!(got, 20_000 - to_self);
        let link = Link { delay_ns: 1, ..spec.pipes[0].link };
        net.schedule(VirtNs(1 << 40), Change::Set { pipe: diecast_core_net::PipeIx(0), link: Box::new(link) }).unwrap();
        net.schedule(VirtNs(1 << 40), Change::Reroute).unwrap();
        assert!(net.pop_due(VirtNs(1 << 41)).is_none());
    }
}

#[test]
fn a_waiting_packet_takes_little_more_memory_than_its_bytes() {
    for (bytes, most) in [(60usize, 250.0), (590, 800.0), (1514, 1850.0)] {
        let spec = star(2, Link { bandwidth_bps: Some(1000), queue_packets: u32::MAX, ..Link::default() });
        let mut net = Network::new(&spec).unwrap();
        let packets = 40_000;
        for id in 0..packets {
            // As the emulator does it: into a buffer that takes every frame.
            let mut buffer = net.buffer();
            buffer.extend_from_slice(&frame(&spec, NodeIx(0), NodeIx(1), id, bytes));
            net.ingress(VirtNs(id), NodeIx(0), buffer, VirtSpan(0));
            assert!(net.pop_due(VirtNs(id)).is_none());
        }
        let each = net.memory_bytes() as f64 / packets as f64;
        println!("{bytes} bytes: {each:.0} bytes of memory each");
        assert!(each < most, "{bytes} bytes: {each}");
    }
}
