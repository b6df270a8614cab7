//! Promises of the model, one test each: arithmetic, queues, loss, neighbours, bad frames, paths, debt.

use diecast_core_net::{Delivery, Link, LinkError, Mac, NetBuilder, NetError, NetSpec, Network, NodeIx, PipeIx};
use diecast_core_vtime::{VirtNs, VirtSpan};

const A: NodeIx = NodeIx(0);
const B: NodeIx = NodeIx(1);
const NO_DEBT: VirtSpan = VirtSpan(0);

/// Two nodes on one switch, both links alike.
fn pair(link: Link) -> NetSpec {
    let mut b = NetBuilder::new(1, 77);
    let s = b.switch("s");
    for name in ["a", "b"] {
        let (_, v) = b.node(name);
        b.link(v, s, link);
    }
    b.build().unwrap()
}

fn data(spec: &NetSpec, from: NodeIx, to: NodeIx, bytes: usize) -> Vec<u8> {
    let mut f = vec![0; bytes];
    f[..6].copy_from_slice(&spec.nodes[to.at()].mac.0);
    f[6..12].copy_from_slice(&spec.nodes[from.at()].mac.0);
    f[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    f
}

fn all(net: &mut Network) -> Vec<Delivery> {
    std::iter::from_fn(|| net.pop_due(VirtNs::NEVER)).collect()
}

#[test]
fn one_packet_pays_serialisation_and_delay_on_every_pipe() {
    let spec = pair(Link { bandwidth_bps: Some(100_000_000), delay_ns: 5_000_000, ..Link::default() });
    let mut net = Network::new(&spec).unwrap();
    net.ingress(VirtNs(1000), A, data(&spec, A, B, 1514), NO_DEBT);
    assert_eq!(net.next_due(), Some(VirtNs(1000 + 2 * 5_121_120)), "one call for the whole way");
    assert_eq!(net.pop_due(VirtNs(1000 + 2 * 5_121_120 - 1)), None, "never early");
    let d = net.pop_due(VirtNs(1000 + 2 * 5_121_120)).unwrap();
    // 1514 bytes at 100 Mbit/s are 121,120 ns, twice, and 5 ms of delay, twice.
    assert_eq!((d.to, d.due, d.frame.len()), (B, VirtNs(1000 + 2 * 5_121_120), 1514));
    assert_eq!(net.next_due(), None);
}

#[test]
fn a_busy_period_loses_no_fraction_of_a_nanosecond() {
    // 333,333,333 bit/s: 1000 bytes take 24,000.000024 ns.
    let link = Link { bandwidth_bps: Some(333_333_333), delay_ns: 0, queue_packets: 1_000_000, ..Link::default() };
    let mut spec = pair(link);
    spec.pipes[2].link.bandwidth_bps = None;
    spec.pipes[3].link.bandwidth_bps = None;
    let mut net = Network::new(&spec).unwrap();
    for _ in 0..100_000 {
        net.ingress(VirtNs(7), A, data(&spec, A, B, 1000), NO_DEBT);
    }
    for (k, d) in all(&mut net).iter().enumerate() {
        let exact = (k as u128 + 1) * 8_000_000_000_000;
        assert_eq!(u128::from(d.due.0 - 7), exact.div_ceil(333_333_333), "packet {k}");
    }
}

#[test]
fn departures_chain_in_virtual_time_however_late_the_host_is() {
    let link = Link { bandwidth_bps: Some(100_000_000), delay_ns: 1000, ..Link::default() };
    let spec = pair(link);
    let mut prompt = Network::new(&spec).unwrap();
    let mut late = Network::new(&spec).unwrap();
    let mut from_prompt = Vec::new();
    for k in 0..200u64 {
        let now = VirtNs(k * 50_000);
        for net in [&mut prompt, &mut late] {
            net.ingress(now, A, data(&spec, A, B, 1514), NO_DEBT);
        }
        from_prompt.extend(std::iter::from_fn(|| prompt.pop_due(now)));
    }
    from_prompt.extend(all(&mut prompt));
    assert_eq!(from_prompt, all(&mut late));
}

/// A caller that sleeps until `next_due` misses nothing and is not woken for every hop.
#[test]
fn next_due_is_never_after_a_delivery_and_seldom_before_one() {
    for bps in [Some(100_000_000), Some(333_333_333), Some(7_777), None] {
        let spec = pair(Link { bandwidth_bps: bps, delay_ns: 5_000_000, ..Link::default() });
        let mut net = Network::new(&spec).unwrap();
        let (mut calls, mut due) = (0, Vec::new());
        for k in 0..50u64 {
            net.ingress(VirtNs(k * 3_000), A, data(&spec, A, B, 100 + 20 * k as usize), NO_DEBT);
        }
        while let Some(now) = net.next_due() {
            calls += 1;
            assert!(calls < 1000, "no progress at {now:?}");
            while let Some(d) = net.pop_due(now) {
                assert_eq!(d.due, now, "the caller came too late");
                due.push(d.due);
            }
        }
        assert_eq!(due.len(), 50, "{bps:?}");
        // A packet is looked at when it may arrive, after the queue, and up to twice within the nanosecond before.
        assert!(calls <= 4 * 50, "{calls} calls for 50 deliveries at {bps:?}");
        let prompt = {
            let mut net = Network::new(&spec).unwrap();
            for k in 0..50u64 {
                net.ingress(VirtNs(k * 3_000), A, data(&spec, A, B, 100 + 20 * k as usize), NO_DEBT);
            }
            all(&mut net).into_iter().map(|d| d.due).collect::<Vec<_>>()
        };
        assert_eq!(due, prompt, "{bps:?}");
    }
}

#[test]
fn the_queue_limit_counts_waiting_packets_only() {
    let spec = pair(Link { bandwidth_bps: Some(1_000_000), delay_ns: 0, queue_packets: 3, ..Link::default() });
    let mut net = Network::new(&spec).unwrap();
    for _ in 0..10 {
        net.ingress(VirtNs(0), A, data(&spec, A, B, 1000), NO_DEBT);
    }
    assert_eq!(all(&mut net).len(), 4, "one on the wire and three waiting");
    let c = net.pipe_counters()[0];
    assert_eq!((c.packets_in, c.packets_sent, c.dropped_queue_full, c.queue_packets_max), (10, 4, 6, 3));
    // The first packet ends at 8 ms: then, not a nanosecond earlier, a place is free again.
    let mut net = Network::new(&spec).unwrap();
    for _ in 0..4 {
        net.ingress(VirtNs(0), A, data(&spec, A, B, 1000), NO_DEBT);
    }
    net.ingress(VirtNs(7_999_999), A, data(&spec, A, B, 1000), NO_DEBT);
    net.ingress(VirtNs(8_000_000), A, data(&spec, A, B, 1000), NO_DEBT);
    assert_eq!(all(&mut net).len(), 5);
}

#[test]
fn loss_hits_its_share_and_lost_packets_used_the_link() {
    let mut spec = pair(Link { bandwidth_bps: Some(1_000_000_000), queue_packets: u32::MAX, ..Link::default() });
    spec.pipes[0].link.loss = 0.03;
    let mut net = Network::new(&spec).unwrap();
    for k in 0..100_000u64 {
        net.ingress(VirtNs(k), A, data(&spec, A, B, 1000), NO_DEBT);
    }
    let out = all(&mut net);
    let c = net.pipe_counters()[0];
    // Binomial with n = 100,000 and p = 0.03: a standard deviation of 54; five of them.
    assert!((2730..=3270).contains(&c.dropped_loss), "lost {}", c.dropped_loss);
    assert_eq!(out.len() as u64, 100_000 - c.dropped_loss);
    assert_eq!(c.packets_sent, 100_000);
    assert!(out.last().unwrap().due.0 >= 99_990 * 8000, "lost packets took their time on the wire");
    for (loss, want) in [(0.0, 1000), (1.0, 0)] {
        spec.pipes[0].link.loss = loss;
        let mut net = Network::new(&spec).unwrap();
        for _ in 0..1000 {
            net.ingress(VirtNs(0), A, data(&spec, A, B, 100), NO_DEBT);
        }
        assert_eq!(all(&mut net).len(), want, "loss {loss}");
    }
}

#[test]
fn shortest_delay_wins_then_fewest_pipes_then_the_lowest_index() {
    let mut b = NetBuilder::new(1, 77);
    let (a, va) = b.node("a");
    let (z, vz) = b.node("z");
    let s: Vec<_> = (0..4).map(|i| b.switch(&format!("s{i}"))).collect();
    let ms = |n: u64| Link { delay_ns: n * 1_000_000, ..Link::default() };
    b.link(va, s[0], ms(1)); // pipes 0, 1
    b.link(s[0], s[1], ms(4)); // 2, 3
    b.link(s[0], s[2], ms(2)); // 4, 5
    b.link(s[2], s[1], ms(2)); // 6, 7: as long as pipe 2, with one more pipe
    b.link(s[0], s[1], ms(4)); // 8, 9: like pipe 2, later
    b.link(s[1], vz, ms(1)); // 10, 11
    let (_, vx) = b.node("x");
    b.link(s[0], vx, ms(1)); // 12, 13
    b.link(vx, s[1], ms(1)); // 14, 15: shorter, but through a node
    let spec = b.build().unwrap();
    let net = Network::new(&spec).unwrap();
    assert_eq!(net.path(a, z), [PipeIx(0), PipeIx(2), PipeIx(10)]);
    assert_eq!(net.path(z, a), [PipeIx(11), PipeIx(3), PipeIx(1)]);
    assert_eq!(net.path(a, a), []);
}

#[test]
fn arp_is_answered_at_once_to_the_asker_alone() {
    let spec = pair(Link { delay_ns: 1_000_000_000, ..Link::default() });
    let mut net = Network::new(&spec).unwrap();
    let (a, b) = (&spec.nodes[0], &spec.nodes[1]);
    let ask = |target: [u8; 4], sender: [u8; 4]| {
        let mut f = vec![0xff; 6];
        f.extend(a.mac.0);
        f.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        f.extend(a.mac.0);
        f.extend(sender);
        f.extend([0; 6]);
        f.extend(target);
        f
    };
    net.ingress(VirtNs(5), A, ask(b.ipv4.octets(), a.ipv4.octets()), NO_DEBT);
    let d = net.pop_due(VirtNs(5)).unwrap();
    assert_eq!((d.to, d.due), (A, VirtNs(5)));
    let mut want = Vec::new();
    want.extend(a.mac.0);
    want.extend(b.mac.0);
    want.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    want.extend(b.mac.0);
    want.extend(b.ipv4.octets());
    want.extend(a.mac.0);
    want.extend(a.ipv4.octets());
    assert_eq!(d.frame, want);
    net.ingress(VirtNs(6), A, ask([10, 77, 9, 9], a.ipv4.octets()), NO_DEBT);
    net.ingress(VirtNs(6), A, ask(a.ipv4.octets(), a.ipv4.octets()), NO_DEBT);
    net.ingress(VirtNs(6), A, ask(a.ipv4.octets(), [0; 4]), NO_DEBT);
    assert_eq!(all(&mut net), []);
    let c = net.node_counters()[0];
    assert_eq!((c.neighbours_answered, c.dropped_unknown_neighbour, c.ignored_control), (1, 1, 2));
}

/// A neighbour solicitation for `target`, without options.
fn solicitation(spec: &NetSpec, from: NodeIx, source: [u8; 16], target: [u8; 16]) -> Vec<u8> {
    let mut f = vec![0x33, 0x33, 0xff, target[13], target[14], target[15]];
    f.extend(spec.nodes[from.at()].mac.0);
    f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255]);
    f.extend(source);
    f.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, target[13], target[14], target[15]]);
    f.extend([135, 0, 0, 0, 0, 0, 0, 0]);
    f.extend(target);
    f
}

#[test]
fn neighbour_solicitation_is_answered_for_global_and_link_local_addresses() {
    let spec = pair(Link { delay_ns: 1_000_000_000, ..Link::default() });
    let mut net = Network::new(&spec).unwrap();
    let (a, b) = (&spec.nodes[0], &spec.nodes[1]);
    for target in [b.ipv6, b.mac.link_local()] {
        net.ingress(VirtNs(5), A, solicitation(&spec, A, a.ipv6.octets(), target.octets()), NO_DEBT);
        let d = net.pop_due(VirtNs(5)).unwrap();
        assert_eq!(d.to, A);
        assert_eq!(d.frame[..12], [a.mac.0, b.mac.0].concat());
        assert_eq!(d.frame[54], 136, "advertisement");
        assert_eq!(d.frame[62..78], target.octets());
        assert_eq!(d.frame[78..86], [&[2, 1][..], &b.mac.0].concat());
    }
    // Duplicate address detection and unknown addresses get no answer.
    net.ingress(VirtNs(6), A, solicitation(&spec, A, [0; 16], b.ipv6.octets()), NO_DEBT);
    net.ingress(VirtNs(6), A, solicitation(&spec, A, a.ipv6.octets(), [0xfd; 16]), NO_DEBT);
    assert_eq!(all(&mut net), []);
    let c = net.node_counters()[0];
    assert_eq!((c.neighbours_answered, c.dropped_unknown_neighbour, c.ignored_control), (2, 1, 1));
}

#[test]
fn bad_frames_are_dropped_and_counted_by_cause() {
    let spec = pair(Link::default());
    let mut net = Network::new(&spec).unwrap();
    let good = data(&spec, A, B, 100);
    let mut spoofed = good.clone();
    spoofed[11] ^= 1;
    let mut unknown = good.clone();
    unknown[5] = 0x77;
    let to_self = data(&spec, A, A, 100);
    let mut short_ipv4 = good.clone();
    short_ipv4[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 200]);
    let mut bad_version = good.clone();
    bad_version[12..15].copy_from_slice(&[0x86, 0xdd, 0x45]);
    let mut cut_arp = good[..40].to_vec();
    cut_arp[12..14].copy_from_slice(&[8, 6]);
    for f in
        [&good[..13], &[], &spoofed, &unknown, &to_self, &short_ipv4, &bad_version, &cut_arp, &data(&spec, A, B, 1515)]
    {
        net.ingress(VirtNs(0), A, f.to_vec(), NO_DEBT);
    }
    assert_eq!(all(&mut net), []);
    let c = net.node_counters()[0];
    assert_eq!(c.packets_sent, 9);
    assert_eq!(
        (c.dropped_malformed, c.dropped_spoofed, c.dropped_unknown_destination, c.dropped_oversize),
        (5, 1, 2, 1)
    );
}

/// DIECAST_FUZZ=N: N times as many random cases, from seed N (`make fuzz`).
#[expect(clippy::disallowed_methods, reason = "a test takes its size from whoever runs it")]
fn fuzz() -> Option<u64> {
    std::env::var("DIECAST_FUZZ").ok()?.parse().ok()
}

#[test]
fn no_frame_of_random_bytes_upsets_the_model() {
    let spec = pair(Link::default());
    let mut net = Network::new(&spec).unwrap();
    let (times, mut x) = fuzz().map_or((1, 1), |n| (n, n));
    println!("seed {x}");
    let mut next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) as u32
    };
    for _ in 0..200_000 * times {
        let len = next() as usize % 100;
        let mut f: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        if len >= 14 {
            f[6..12].copy_from_slice(&spec.nodes[0].mac.0);
            let types: [[u8; 2]; 3] = [[8, 0], [8, 6], [0x86, 0xdd]];
            f[12..14].copy_from_slice(&types[next() as usize % 3]);
            if len > 20 {
                f[14] = [0x45, 0x60, 0, 0x4f][next() as usize % 4];
                f[20] = [0, 58, 6][next() as usize % 3];
                f[18..20].fill(0);
            }
        }
        net.ingress(VirtNs(0), A, f, VirtSpan(u64::from(next() % 3)));
        all(&mut net);
    }
    let c = net.node_counters()[0];
    assert!(c.dropped_malformed > 10_000 && c.ignored_control > 0, "{c:?}");
}

#[test]
fn a_broadcast_crosses_each_pipe_once_and_reaches_every_other_node() {
    let mut b = NetBuilder::new(1, 77);
    let (left, right) = (b.switch("left"), b.switch("right"));
    let link = Link { bandwidth_bps: Some(100_000_000), delay_ns: 1_000_000, ..Link::default() };
    for i in 0..6 {
        let (_, v) = b.node(&format!("n{i}"));
        b.link(v, if i < 3 { left } else { right }, link);
    }
    let (over, _) = b.link(left, right, link);
    let spec = b.build().unwrap();
    let mut net = Network::new(&spec).unwrap();
    let mut f = data(&spec, A, B, 100);
    f[..6].copy_from_slice(&Mac::BROADCAST.0);
    net.ingress(VirtNs(0), A, f, NO_DEBT);
    let mut got: Vec<_> = all(&mut net).into_iter().map(|d| (d.to.0, d.due.0)).collect();
    got.sort_unstable();
    // 100 bytes at 100 Mbit/s are 8 us per pipe; two pipes to the near nodes, three to the far ones.
    let (near, far) = (2 * 1_008_000, 3 * 1_008_000);
    assert_eq!(got, [(1, near), (2, near), (3, far), (4, far), (5, far)]);
    assert_eq!(net.pipe_counters()[over.at()].packets_in, 1);
    assert_eq!(net.pipe_counters()[0].packets_in, 1);
    assert_eq!(net.in_flight(), 0);
}

/// A machine with a NIC in each of two segments joins nothing: groups, addresses and ways end at the segment.
#[test]
fn segments_hear_nothing_of_each_other() {
    let mut b = NetBuilder::new(1, 77);
    let (left, right) = (b.switch("left"), b.switch("right"));
    let nics = [("a", "a", 0, left), ("b", "b", 0, left), ("c", "c", 1, right), ("b.eth1", "b", 1, right)];
    for (name, machine, segment, switch) in nics {
        let (_, v) = b.nic(name, machine, segment);
        b.link(v, switch, Link::default());
    }
    let spec = b.build().unwrap();
    assert_eq!(spec.nodes[3].ipv4.octets(), [10, 78, 0, 4]);
    assert_eq!(spec.nodes[3].ipv6.to_string(), "fd00:dc:1::4");
    assert_eq!(spec.subnet.of_segment(1).ipv4.octets(), [10, 78, 0, 0]);
    let mut net = Network::new(&spec).unwrap();
    let (c, second) = (NodeIx(2), NodeIx(3));
    for group in [Mac::BROADCAST, Mac([0x01, 0x00, 0x5e, 0, 0, 5]), Mac([0x33, 0x33, 0, 0, 0, 5])] {
        for (from, other) in [(A, B), (c, second)] {
            let mut f = data(&spec, from, other, 100);
            f[..6].copy_from_slice(&group.0);
            net.ingress(VirtNs(0), from, f, NO_DEBT);
            let got: Vec<NodeIx> = all(&mut net).into_iter().map(|d| d.to).collect();
            assert_eq!(got, [other], "{group}");
        }
    }
    net.ingress(VirtNs(0), A, data(&spec, A, c, 100), NO_DEBT);
    net.ingress(VirtNs(0), A, data(&spec, A, second, 100), NO_DEBT);
    net.ingress(
        VirtNs(0),
        A,
        solicitation(&spec, A, spec.nodes[0].ipv6.octets(), spec.nodes[2].ipv6.octets()),
        NO_DEBT,
    );
    assert_eq!(all(&mut net), []);
    let counted = net.node_counters()[0];
    assert_eq!((counted.dropped_unknown_destination, counted.dropped_unknown_neighbour), (2, 1));
    // Who is said to be in one segment must have a way.
    let mut torn = spec;
    torn.nodes[2].segment = 0;
    let e = Network::new(&torn).unwrap_err();
    assert!(matches!(e, NetError::Unreachable { .. }), "{e}");
}

#[test]
fn debt_delays_a_frame_and_the_rest_of_its_flow_only() {
    let spec = pair(Link::default());
    let mut net = Network::new(&spec).unwrap();
    let flow = |port: u8, id: u8| {
        let mut f = data(&spec, A, B, 64);
        f[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 50]);
        f[23] = 17;
        f[35] = port;
        f[40] = id;
        f
    };
    net.ingress(VirtNs(100), A, flow(1, 0), VirtSpan(500));
    net.ingress(VirtNs(110), A, flow(1, 1), NO_DEBT);
    net.ingress(VirtNs(120), A, flow(2, 2), NO_DEBT);
    net.ingress(VirtNs(700), A, flow(1, 3), NO_DEBT);
    let got: Vec<_> = all(&mut net).into_iter().map(|d| (d.due.0, d.frame[40])).collect();
    assert_eq!(got, [(120, 2), (600, 0), (600, 1), (700, 3)]);
}

#[test]
fn an_ingress_in_the_past_counts_as_the_last_instant() {
    let spec = pair(Link::default());
    let mut net = Network::new(&spec).unwrap();
    net.ingress(VirtNs(1000), A, data(&spec, A, B, 64), NO_DEBT);
    assert!(net.pop_due(VirtNs(1000)).is_some());
    net.ingress(VirtNs(10), A, data(&spec, A, B, 64), NO_DEBT);
    assert_eq!(net.pop_due(VirtNs(1000)).unwrap().due, VirtNs(1000));
}

#[test]
fn specs_that_cannot_run_are_refused_with_names() {
    let mut b = NetBuilder::new(1, 77);
    b.node("a");
    b.node("b");
    let island = b.build().unwrap();
    assert_eq!(Network::new(&island).unwrap_err().to_string(), "node 'a' can't be reached from node 'b'");
    let good = pair(Link::default());
    let broken = |change: fn(&mut NetSpec)| {
        let mut s = good.clone();
        change(&mut s);
        Network::new(&s).unwrap_err()
    };
    assert!(matches!(
        broken(|s| s.pipes[0].link.bandwidth_bps = Some(0)),
        NetError::BadLink { problem: LinkError::NoBandwidth, .. }
    ));
    assert!(matches!(
        broken(|s| s.pipes[0].link.loss = 1.5),
        NetError::BadLink { problem: LinkError::BadShare { what: "loss", .. }, .. }
    ));
    assert!(matches!(
        broken(|s| s.pipes[0].link.loss = f64::NAN),
        NetError::BadLink { problem: LinkError::BadShare { what: "loss", .. }, .. }
    ));
    assert!(matches!(broken(|s| s.pipes[0].to = s.pipes[0].from), NetError::Loop(_)));
    assert!(matches!(broken(|s| s.pipes[0].to.0 = 99), NetError::NoSuch { index: 99, .. }));
    assert!(matches!(broken(|s| s.nodes[1].vertex = s.nodes[0].vertex), NetError::BadVertex(_)));
    assert!(matches!(broken(|s| s.nodes[1].mac = s.nodes[0].mac), NetError::SameAddress(..)));
    assert!(matches!(broken(|s| s.nodes[1].ipv4 = s.nodes[0].ipv4), NetError::SameAddress(..)));
    assert!(matches!(broken(|s| s.nodes[1].ipv6 = s.nodes[0].ipv6), NetError::SameAddress(..)));
    assert!(matches!(broken(|s| s.nodes[1].mac = Mac::BROADCAST), NetError::GroupMac(..)));
}

#[test]
fn addresses_are_deterministic_unicast_and_a_spec_survives_json() {
    let spec = pair(Link { bandwidth_bps: Some(1_000), loss: 0.25, ..Link::default() });
    let b = &spec.nodes[1];
    assert_eq!((b.mac.to_string().as_str(), b.ipv4.to_string().as_str()), ("02:dc:00:00:00:02", "10.77.0.2"));
    assert_eq!(b.ipv6.to_string(), "fd00:dc::2");
    assert_eq!(b.mac.link_local().to_string(), "fe80::dc:ff:fe00:2");
    assert!(!b.mac.is_group());
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<NetSpec>(&text).unwrap(), spec);
    for bad in ["", "02:dc", "02:dc:00:00:00:0g", "2:dc:00:00:00:02", "02:dc:00:00:00:02:03"] {
        assert!(bad.parse::<Mac>().is_err(), "{bad}");
    }
}
