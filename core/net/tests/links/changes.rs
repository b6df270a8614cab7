//! Set, cut, heal, flap, partition, reroute: what they drop, and that they drop nothing else.

use diecast_core_net::{
    Change, Codel, Discipline, Distribution, FQ_QUEUE_PACKETS_DEFAULT, FqCodel, Jitter, Link, LinkPart, NetBuilder,
    NetError, Network, NodeIx, PipeIx, Red,
};
use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::common::{A, B, PIPE, Rng, all, balanced, frame, id_of, one_pipe};

const MS: u64 = 1_000_000;

fn slow() -> Link {
    Link { bandwidth_bps: Some(8_000_000), delay_ns: 10 * MS, queue_packets: 100, ..Link::default() }
}

fn set(link: Link) -> Change {
    Change::Set { pipe: PIPE, link: Box::new(link) }
}

/// Ten packets of 1000 bytes (1 ms each) at 0, the changes, then everything: (due, number).
fn ten(changes: &[(u64, Change)]) -> (Vec<(u64, u64)>, Network) {
    let spec = one_pipe(slow());
    let mut net = Network::new(&spec).unwrap();
    for id in 0..10 {
        net.ingress(VirtNs(0), A, frame(&spec, A, B, id, 1000), VirtSpan(0));
    }
    for (at, change) in changes {
        net.schedule(VirtNs(*at), change.clone()).unwrap();
    }
    let out = all(&mut net).iter().map(|d| (d.due.0, id_of(&d.frame))).collect();
    balanced(&net.pipe_counters()[PIPE.at()]);
    (out, net)
}

fn ms_and_id(out: &[(u64, u64)]) -> Vec<(f64, u64)> {
    out.iter().map(|(due, id)| (*due as f64 / 1e6, *id)).collect()
}

#[test]
fn a_new_bandwidth_counts_from_the_next_packet() {
    // Four times as fast from 2.5 ms on: the third packet ends at 3 ms, then a packet each 0.25 ms.
    let (out, _) = ten(&[(2_500_000, set(Link { bandwidth_bps: Some(32_000_000), ..slow() }))]);
    let want = [11.0, 12.0, 13.0, 13.25, 13.5, 13.75, 14.0, 14.25, 14.5, 14.75];
    assert_eq!(ms_and_id(&out), want.into_iter().zip(0..).collect::<Vec<_>>());
    let (out, _) = ten(&[(2_500_000, set(Link { bandwidth_bps: None, ..slow() }))]);
    assert_eq!(ms_and_id(&out)[2..], (2..10).map(|id| (13.0, id)).collect::<Vec<_>>());
}

#[test]
fn a_shorter_delay_overtakes_nothing_and_a_smaller_queue_drops_nothing() {
    let (out, net) = ten(&[(2_500_000, set(Link { delay_ns: MS, queue_packets: 1, ..slow() }))]);
    // Three have begun and arrive until 13 ms; those sent after the change wait behind them.
    let want = [11.0, 12.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0];
    assert_eq!(out.iter().map(|(due, _)| *due as f64 / 1e6).collect::<Vec<_>>(), want);
    assert!(out.windows(2).all(|w| w[0].1 < w[1].1));
    assert_eq!(net.pipe_counters()[PIPE.at()].dropped_queue_full, 0);
}

#[test]
fn a_cut_drops_what_waits_and_what_is_being_sent_and_nothing_else() {
    let (out, net) = ten(&[(2_500_000, Change::Cut(PIPE))]);
    assert_eq!(ms_and_id(&out), [(11.0, 0), (12.0, 1)]);
    let c = net.pipe_counters()[PIPE.at()];
    assert_eq!((c.packets_sent, c.dropped_cut, c.dropped_down, c.busy_ns), (3, 1, 7, 2_500_000));
    assert_eq!(net.in_flight(), 0);
    // At the instant at which a packet has been sent in full it is on the wire; the next one has begun.
    let (out, net) = ten(&[(2_000_000, Change::Cut(PIPE))]);
    assert_eq!((out.len(), net.pipe_counters()[PIPE.at()].dropped_cut), (2, 1));
}

#[test]
fn a_healed_pipe_starts_afresh_and_a_flap_comes_and_goes() {
    let spec = one_pipe(slow());
    let mut net = Network::new(&spec).unwrap();
    // Down from 10 to 15, from 35 to 40, from 60 to 65 ms.
    net.schedule(VirtNs(10 * MS), Change::Flap { pipe: PIPE, down_ns: 5 * MS, up_ns: 20 * MS, times: 3 }).unwrap();
    let mut got = Vec::new();
    for k in 0..100 {
        let now = VirtNs(k * MS + MS / 2);
        got.extend(std::iter::from_fn(|| net.pop_due(now)).map(|d| id_of(&d.frame)));
        let down = [10..15, 35..40, 60..65].iter().any(|r| r.contains(&k));
        assert_eq!(net.is_up(PIPE), !down, "{k} ms");
        net.ingress(now, A, frame(&spec, A, B, k, 500), VirtSpan(0));
    }
    got.extend(all(&mut net).iter().map(|d| id_of(&d.frame)));
    // A packet takes half a millisecond: the one sent at 9.5 ends just as the cut comes.
    let lost: Vec<u64> = (0..100).filter(|id| !got.contains(id)).collect();
    assert_eq!(lost, (10..15).chain(35..40).chain(60..65).collect::<Vec<_>>());
    assert_eq!(net.pipe_counters()[PIPE.at()].dropped_down, 15);
}

#[test]
fn a_change_takes_place_at_its_instant_however_late_the_caller_is() {
    let change = || (4_200_000, set(Link { bandwidth_bps: Some(80_000_000), delay_ns: MS, ..slow() }));
    let (want, _) = ten(&[change()]);
    let spec = one_pipe(slow());
    let mut net = Network::new(&spec).unwrap();
    net.schedule(VirtNs(change().0), change().1).unwrap();
    for id in 0..10 {
        net.ingress(VirtNs(0), A, frame(&spec, A, B, id, 1000), VirtSpan(0));
    }
    let mut got = Vec::new();
    while let Some(now) = net.next_due() {
        while let Some(d) = net.pop_due(now) {
            assert!(d.due == now, "the caller came too late: {} for {}", now.0, d.due.0);
            got.push((d.due.0, id_of(&d.frame)));
        }
    }
    assert_eq!(got, want);
}

/// Random changes of parameters that drop nothing themselves: every packet arrives, in order, and the caller that
/// follows `next_due` is never late.
#[test]
fn no_change_of_parameters_loses_or_reorders_a_packet() {
    for seed in 0..200 {
        let mut g = Rng(seed);
        let mut random = |bandwidth: bool| Link {
            bandwidth_bps: bandwidth.then(|| 1_000_000 + g.below(1 << 27)),
            delay_ns: g.below(30 * MS),
            queue_packets: u32::MAX,
            discipline: match g.below(3) {
                0 => Discipline::DropTail,
                1 => Discipline::Codel(Codel { target_ns: u64::MAX, ..Codel::default() }),
                _ => Discipline::Red(Red::new(u32::MAX - 2, u32::MAX - 1)),
            },
            ..Link::default()
        };
        let spec = one_pipe(random(true));
        let mut net = Network::new(&spec).unwrap();
        for k in 0..20u64 {
            net.schedule(VirtNs(k * 7 * MS + 13), set(random(k % 5 != 4))).unwrap();
        }
        let mut got = Vec::new();
        for id in 0..500 {
            let at = id * MS / 4;
            while let Some(now) = net.next_due().filter(|n| n.0 < at) {
                while let Some(d) = net.pop_due(now) {
                    assert_eq!(d.due, now, "late: seed {seed}");
                    got.push(id_of(&d.frame));
                }
            }
            net.ingress(VirtNs(at), A, frame(&spec, A, B, id, 100 + (id as usize * 37) % 1400), VirtSpan(0));
        }
        got.extend(all(&mut net).iter().map(|d| id_of(&d.frame)));
        assert_eq!(got, (0..500).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn waiting_packets_move_to_a_new_discipline() {
    let fq = Discipline::FqCodel(FqCodel::default());
    let (out, _) = ten(&[(2_500_000, set(Link { discipline: fq, ..slow() }))]);
    assert_eq!(out.iter().map(|(_, id)| *id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert_eq!(out.last().unwrap().0, 20 * MS);
}

#[test]
fn a_partition_stops_frames_between_its_sides_and_no_others() {
    let mut b = NetBuilder::new(1, 77);
    let s = b.switch("s");
    for i in 0..5 {
        let (_, v) = b.node(&format!("n{i}"));
        b.link(v, s, Link { delay_ns: MS, ..Link::default() });
    }
    let spec = b.build().unwrap();
    let mut net = Network::new(&spec).unwrap();
    let n = NodeIx;
    let pairs = |net: &mut Network, at: u64| {
        for from in 0..5 {
            for to in (0..5).filter(|to| *to != from) {
                net.ingress(VirtNs(at), n(from), frame(&spec, n(from), n(to), u64::from(from), 64), VirtSpan(0));
            }
        }
        let mut broadcast = frame(&spec, n(0), n(1), 9, 64);
        broadcast[..6].fill(0xff);
        net.ingress(VirtNs(at), n(0), broadcast, VirtSpan(0));
    };
    pairs(&mut net, 0);
    // 0 and 1 against 2; 3 and 4 are the rest. What left at 0 is on its way and arrives.
    net.schedule(VirtNs(MS / 2), Change::Partition(vec![vec![n(0), n(1)], vec![n(2)]])).unwrap();
    assert_eq!(std::iter::from_fn(|| net.pop_due(VirtNs(10 * MS))).count(), 24);
    pairs(&mut net, 20 * MS);
    let mut got: Vec<(u64, u32)> = all(&mut net).iter().map(|d| (id_of(&d.frame), d.to.0)).collect();
    // All arrive at once.
    got.sort_unstable();
    assert_eq!(got, [(0, 1), (1, 0), (3, 4), (4, 3), (9, 1)]);
    let dropped: Vec<u64> = net.node_counters().iter().map(|c| c.dropped_partition).collect();
    assert_eq!(dropped, [3 + 3, 3, 4, 3, 3]);
    net.schedule(VirtNs(30 * MS), Change::Join).unwrap();
    assert!(net.pop_due(VirtNs(30 * MS)).is_none());
    pairs(&mut net, 40 * MS);
    assert_eq!(all(&mut net).len(), 24);
    let twice = net.schedule(VirtNs(0), Change::Partition(vec![vec![n(0)], vec![n(1), n(0)]]));
    assert_eq!(twice.unwrap_err().to_string(), "node 'n0' is on two sides of the partition");
}

#[test]
fn routes_stay_after_a_cut_until_they_are_searched_anew() {
    let mut b = NetBuilder::new(1, 77);
    let (_, va) = b.node("a");
    let (_, vb) = b.node("b");
    let (near, far, hub) = (b.switch("near"), b.switch("far"), b.switch("hub"));
    b.link(va, hub, Link::default());
    let (fast, _) = b.link(hub, near, Link { delay_ns: MS, ..Link::default() });
    b.link(near, vb, Link::default());
    b.link(hub, far, Link { delay_ns: 5 * MS, ..Link::default() });
    b.link(far, vb, Link::default());
    let spec = b.build().unwrap();
    let mut net = Network::new(&spec).unwrap();
    assert_eq!(net.pipes_between("hub", "near"), [fast]);
    let send = |net: &mut Network, at: u64, change: Option<Change>| {
        if let Some(change) = change {
            net.schedule(VirtNs(at), change).unwrap();
        }
        net.ingress(VirtNs(at), A, frame(&spec, A, B, at, 64), VirtSpan(0));
        all(net).first().map(|d| (d.due.0 - at) / MS)
    };
    assert_eq!(send(&mut net, 0, None), Some(1));
    assert_eq!(send(&mut net, 10 * MS, Some(Change::Cut(fast))), None);
    assert_eq!(send(&mut net, 20 * MS, Some(Change::Reroute)), Some(5));
    assert_eq!(send(&mut net, 30 * MS, Some(Change::Heal(fast))), Some(5));
    assert_eq!(send(&mut net, 40 * MS, Some(Change::Reroute)), Some(1));
    // Without any path packets are dropped and counted at their sender.
    for pipe in [net.pipes_between("hub", "near")[0], net.pipes_between("hub", "far")[0]] {
        net.schedule(VirtNs(50 * MS), Change::Cut(pipe)).unwrap();
    }
    assert_eq!(send(&mut net, 50 * MS, Some(Change::Reroute)), None);
    assert_eq!(net.node_counters()[0].dropped_no_route, 1);
}

#[test]
fn changes_that_cannot_be_are_refused_when_they_are_asked_for() {
    let mut net = Network::new(&one_pipe(slow())).unwrap();
    let mut refused = |change| net.schedule(VirtNs(0), change).unwrap_err();
    assert!(matches!(refused(Change::Cut(PipeIx(9))), NetError::NoSuch { what: "pipe", index: 9, count: 4 }));
    assert_eq!(
        refused(set(Link { loss: 2.0, ..slow() })).to_string(),
        "the pipe from 'a' to 's' has a loss of 2, expected 0 to 1"
    );
    assert!(matches!(refused(Change::Partition(vec![vec![NodeIx(2)]])), NetError::NoSuch { what: "node", .. }));
}

/// What falls on one instant has one order, whether the caller looked before it or not: a change comes last.
#[test]
fn a_change_of_an_instant_comes_after_its_packets() {
    for looked in [false, true] {
        let spec = one_pipe(Link { delay_ns: MS, ..Link::default() });
        let mut net = Network::new(&spec).unwrap();
        let onward = net.pipes_between("s", "b")[0];
        let cut = |net: &mut Network| net.schedule(VirtNs(MS), Change::Cut(onward)).unwrap();
        if !looked {
            cut(&mut net);
        }
        net.ingress(VirtNs(0), A, frame(&spec, A, B, 1, 64), VirtSpan(0));
        if looked {
            assert!(net.pop_due(VirtNs(MS / 2)).is_none());
            cut(&mut net);
        }
        net.ingress(VirtNs(1), A, frame(&spec, A, B, 2, 64), VirtSpan(0));
        // The first reaches the switch at the instant of the cut, the second after it.
        assert_eq!(all(&mut net).iter().map(|d| id_of(&d.frame)).collect::<Vec<_>>(), [1], "looked: {looked}");
    }
}

#[test]
fn the_caller_is_called_in_time_after_a_delay_became_shorter() {
    let spec = one_pipe(slow());
    let mut net = Network::new(&spec).unwrap();
    net.schedule(VirtNs(MS), set(Link { delay_ns: 2 * MS, ..slow() })).unwrap();
    assert_eq!(net.next_due(), Some(VirtNs(MS)));
    assert!(net.pop_due(VirtNs(MS)).is_none());
    for id in 0..3 {
        net.ingress(VirtNs(5 * MS), A, frame(&spec, A, B, id, 1000), VirtSpan(0));
    }
    let mut dues = Vec::new();
    while let Some(now) = net.next_due() {
        while let Some(d) = net.pop_due(now) {
            assert_eq!(d.due, now, "the caller came too late");
            dues.push(d.due.0 / MS);
        }
    }
    assert_eq!(dues, [8, 9, 10]);
    // Back at the old delay the bound is exact again: one call for the whole way.
    net.schedule(VirtNs(20 * MS), set(slow())).unwrap();
    assert!(net.pop_due(VirtNs(20 * MS)).is_none());
    net.ingress(VirtNs(30 * MS), A, frame(&spec, A, B, 9, 1000), VirtSpan(0));
    assert_eq!(net.next_due(), Some(VirtNs(41 * MS)));
}

#[test]
fn an_adjustment_keeps_what_it_does_not_name() {
    // Two in the future that would undo each other if they replaced everything.
    let adjust =
        |parts: &[LinkPart], link: Link| Change::Adjust { pipe: PIPE, parts: parts.to_vec(), link: Box::new(link) };
    let faster = adjust(&[LinkPart::Bandwidth], Link { bandwidth_bps: Some(32_000_000), ..Link::default() });
    let longer = adjust(&[LinkPart::Delay], Link { delay_ns: 20 * MS, ..Link::default() });
    let (out, net) = ten(&[(2_500_000, faster), (3_400_000, longer)]);
    // The third packet ends at 3 ms; two of 0.25 ms begin before the delay grows.
    let want = [11.0, 12.0, 13.0, 13.25, 13.5, 23.75, 24.0, 24.25, 24.5, 24.75];
    assert_eq!(out.iter().map(|(due, _)| *due as f64 / 1e6).collect::<Vec<_>>(), want);
    let link = net.link(PIPE).unwrap();
    assert_eq!(link, Link { bandwidth_bps: Some(32_000_000), delay_ns: 20 * MS, ..slow() });
}

#[test]
fn a_new_discipline_brings_its_own_queue_limit_unless_one_was_named() {
    let fq = Link { discipline: Discipline::FqCodel(FqCodel::default()), ..Link::default() };
    let default = Link { bandwidth_bps: Some(1), ..Link::default() };
    assert_eq!(default.with(&[LinkPart::Discipline], &fq).queue_packets, FQ_QUEUE_PACKETS_DEFAULT);
    assert_eq!(slow().with(&[LinkPart::Discipline], &fq).queue_packets, 100);
    assert_eq!(default.with(&[LinkPart::Discipline, LinkPart::Queue], &fq).queue_packets, fq.queue_packets);
}

#[test]
fn a_watched_pipe_shows_what_it_sends_when_it_begins() {
    let spec = one_pipe(Link { queue_packets: 2, loss_every: Some(2), ..slow() });
    let mut net = Network::new(&spec).unwrap();
    net.watch(PIPE, true);
    for id in 0..5 {
        net.ingress(VirtNs(0), A, frame(&spec, A, B, id, 1000), VirtSpan(0));
    }
    let delivered = all(&mut net).len();
    let seen: Vec<(u64, u64)> = net.take_seen().iter().map(|s| (s.at.0 / MS, id_of(&s.frame))).collect();
    // One is sent at once, two wait, two find the queue full; the second is lost after it was sent.
    assert_eq!((seen, delivered), (vec![(0, 0), (1, 1), (2, 2)], 2));
    net.watch(PIPE, false);
    net.ingress(VirtNs(9 * MS), A, frame(&spec, A, B, 9, 1000), VirtSpan(0));
    all(&mut net);
    assert!(net.take_seen().is_empty());
}

/// No frame is on its way for less, by any way: over a first and a last link, or one that joins two nodes.
#[test]
fn the_least_way_follows_the_links_as_they_are() {
    let link = |delay_ns| Link { delay_ns, ..Link::default() };
    let mut b = NetBuilder::new(1, 77);
    let (_, left) = b.node("left");
    let (_, right) = b.node("right");
    let (hub, far) = (b.switch("hub"), b.switch("far"));
    let (up, _) = b.link(left, hub, link(300));
    b.link(right, far, link(200));
    b.link(hub, far, link(10));
    let mut net = Network::new(&b.build().unwrap()).unwrap();
    assert_eq!(net.least_way(), VirtSpan(400), "right to right is none, but its two links are the shortest");
    let jitter = Jitter { distribution: Distribution::Uniform, spread_ns: 50, reorder: false };
    let shorter = Link { jitter: Some(jitter), ..link(100) };
    net.schedule(VirtNs(5), Change::Set { pipe: up, link: Box::new(shorter) }).unwrap();
    assert_eq!(net.least_way(), VirtSpan(400), "it is due later");
    assert_eq!(net.pop_due(VirtNs(5)), None);
    assert_eq!(net.least_way(), VirtSpan(250));

    let mut b = NetBuilder::new(1, 77);
    let (_, left) = b.node("left");
    let (_, right) = b.node("right");
    b.link(left, right, link(70));
    assert_eq!(Network::new(&b.build().unwrap()).unwrap().least_way(), VirtSpan(70));
}
