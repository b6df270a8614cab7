//! Large frames that go through the pipes piece by piece and come out merged, against the same frames one at a time.

use std::collections::{BTreeMap, VecDeque};

use diecast_core_net::{
    Change, Codel, Discipline, Distribution, Due, Jitter, Link, NetBuilder, NetSpec, Network, NodeIx,
    OFFLOAD_HEADER_BYTES, PipeIx, Red, Segments,
};
use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::common::{A, B, Rng, frame, fuzz};
use crate::offload::large;

/// Every frame that a large one behind its virtio header stands for.
fn cut(read: &[u8]) -> Vec<Vec<u8>> {
    let (header, frame) = read.split_first_chunk::<OFFLOAD_HEADER_BYTES>().unwrap();
    let mut segments = Segments::new(header, frame).unwrap();
    let next = || {
        let mut buffer = Vec::new();
        segments.next_into(&mut buffer, usize::MAX).then_some(buffer)
    };
    std::iter::from_fn(next).collect()
}

fn chance(g: &mut Rng, value: f64) -> f64 {
    if g.below(4) == 0 { value } else { 0.0 }
}

fn random_link(g: &mut Rng) -> Link {
    let discipline = match g.below(4) {
        0 => Discipline::Codel(Codel { target_ns: 50_000, interval_ns: 500_000, ecn: g.below(2) == 0 }),
        1 => Discipline::Red(Red { ecn: g.below(2) == 0, weight: 0.1, ..Red::new(10, 60) }),
        _ => Discipline::DropTail,
    };
    let jitter = Jitter { spread_ns: 20_000, distribution: Distribution::Uniform, reorder: g.below(2) == 0 };
    Link {
        bandwidth_bps: (g.below(8) > 0).then(|| [1_000_000_000, 10_000_000_000, 77_777_777_777][g.below(3) as usize]),
        delay_ns: [0, 1_000, 50_000][g.below(3) as usize],
        jitter: (g.below(4) == 0).then_some(jitter),
        loss: chance(g, 0.02),
        loss_every: (g.below(5) == 0).then_some(29),
        duplicate: chance(g, 0.02),
        corrupt: chance(g, 0.02),
        queue_packets: if g.below(2) == 0 { 60 } else { 1000 },
        discipline,
        ..Link::default()
    }
}

/// One that only sends, so that large frames go through it in one step where nothing else happens.
fn clean_link(g: &mut Rng) -> Link {
    Link {
        bandwidth_bps: Some([5_000_000_000, 33_333_333_333, 77_777_777_777, 100_000_000_000][g.below(4) as usize]),
        delay_ns: [0, 500, 20_000, 50_000][g.below(4) as usize],
        queue_packets: if g.below(4) == 0 { 60 } else { 1000 },
        ..Link::default()
    }
}

/// Two senders and a receiver behind two switches.
fn spec(g: &mut Rng) -> NetSpec {
    let random_link = if g.below(2) == 0 { random_link } else { clean_link };
    let mut b = NetBuilder::new(g.next(), 77);
    let (s, t) = (b.switch("s"), b.switch("t"));
    let (_, va) = b.node("a");
    let (_, vb) = b.node("b");
    let (_, vc) = b.node("c");
    b.link(va, s, random_link(g));
    b.link(vc, s, random_link(g));
    b.link(s, t, random_link(g));
    b.link(t, vb, random_link(g));
    b.set_mtu(9000);
    b.build().unwrap()
}

/// What came, and how many of it merged.
#[derive(Default)]
struct Got {
    frames: Vec<(NodeIx, Vec<u8>)>,
    runs: u64,
    merged: u64,
}

/// What comes to each node one at a time.
type Single = BTreeMap<NodeIx, VecDeque<(Vec<u8>, VirtNs)>>;

fn come(net: &mut Network, now: VirtNs, single: &mut Single) {
    while let Some(d) = net.pop_due(now) {
        single.entry(d.to).or_default().push_back((d.frame, d.due));
    }
}

/// Takes all that is due, each of which has to be what comes next to its node one at a time, and due by `now`.
fn take(net: &mut Network, now: VirtNs, single: &mut Single, got: &mut Got, (patience, seed): (VirtSpan, u64)) {
    let mut head = Vec::new();
    while let Some(due) = net.pop_due_merged(now, patience, |to, _| to == B) {
        let (to, at, frames) = match due {
            Due::Frame(d) => (d.to, d.due, vec![d.frame]),
            Due::Run(run) => {
                let rest = net.merged(&run, &mut head);
                let frames = cut(&[&head[..], rest].concat());
                assert_eq!(frames.len(), run.count(), "seed {seed}");
                assert!(run.count() > 1 && run.to == B, "seed {seed}");
                net.release_run(run);
                got.runs += 1;
                got.merged += frames.len() as u64;
                (run.to, run.due, frames)
            }
        };
        for (i, frame) in frames.into_iter().enumerate() {
            let next = single.get_mut(&to).and_then(VecDeque::pop_front);
            let (want, due) = next.expect("one at a time it arrives too");
            assert!(frame == want, "seed {seed}, frame {}", got.frames.len());
            assert!(due <= now && (i > 0 || due == at), "seed {seed}: {due:?} in a run of {at:?} at {now:?}");
            got.frames.push((to, frame));
        }
    }
}

#[test]
fn merged_frames_are_those_that_come_one_at_a_time() {
    let (times, seed) = fuzz().map_or((1, 40), |n| (n, n));
    println!("from seed {seed}");
    let (mut runs, mut merged, mut frames, mut lost, mut waited) = (0, 0, 0, 0, 0);
    for seed in seed * 1000..seed * 1000 + 30 * times {
        let mut g = Rng(seed);
        let spec = spec(&mut g);
        let wait = VirtSpan([0, 10_000][g.below(2) as usize]);
        let (mut ours, mut plain) = (Network::new(&spec).unwrap(), Network::new(&spec).unwrap());
        plain.set_strict(true);
        let (mut now, mut single, mut got) = (0, Single::new(), Got::default());
        for _ in 0..40 {
            now += g.below(60_000);
            if g.below(8) == 0 {
                let pipe = PipeIx(g.below(spec.pipes.len() as u64) as u32);
                let change = match g.below(4) {
                    0 => Change::Set { pipe, link: Box::new(random_link(&mut g)) },
                    1 => Change::Set { pipe, link: Box::new(clean_link(&mut g)) },
                    2 => Change::Flap { pipe, down_ns: 20_000, up_ns: 10_000, times: 1 },
                    _ => Change::Reroute,
                };
                // While what is sent now is on its way.
                let at = VirtNs(now + g.below(150_000));
                ours.schedule(at, change.clone()).unwrap();
                plain.schedule(at, change).unwrap();
            }
            let from = NodeIx(2 * g.below(2) as u32);
            let mut l = large(&mut g, 60_000);
            let to = if g.below(10) == 0 { A } else { B };
            l.frame[..6].copy_from_slice(&spec.nodes[to.at()].mac.0);
            l.frame[6..12].copy_from_slice(&spec.nodes[from.at()].mac.0);
            let debt = VirtSpan(if g.below(3) == 0 { g.below(10_000) } else { 0 });
            let read = [&l.header[..], &l.frame].concat();
            let pieces = cut(&read);
            if let Err(read) = ours.ingress_large(VirtNs(now), from, read, debt) {
                cut(&read).into_iter().for_each(|f| ours.ingress(VirtNs(now), from, f, debt));
            }
            pieces.into_iter().for_each(|f| plain.ingress(VirtNs(now), from, f, debt));
            for _ in 0..g.below(2) * g.below(30) {
                let from = NodeIx(g.below(3) as u32);
                let to = NodeIx((from.0 + 1 + g.below(2) as u32) % 3);
                let small = frame(&spec, from, to, 9, 60 + g.below(1400) as usize);
                now += g.below(3_000);
                ours.ingress(VirtNs(now), from, small.clone(), VirtSpan(0));
                plain.ingress(VirtNs(now), from, small, VirtSpan(0));
            }
            let patience = [60_000, 600_000][g.below(2) as usize];
            let soon = ours.next_due().filter(|due| due.0 > now && g.below(2) == 0);
            let look = soon.map_or(VirtNs(now + g.below(patience)), |due| due.plus(VirtSpan(g.below(4_000))));
            now = look.0;
            come(&mut plain, look, &mut single);
            take(&mut ours, look, &mut single, &mut got, (wait, seed));
            let missing: usize = single.values().map(VecDeque::len).sum();
            let longest = single.values().filter_map(VecDeque::front).map(|(_, due)| look.since(*due)).max();
            assert!(longest.is_none_or(|waits| waits < wait), "seed {seed}: {missing} have not come: {longest:?}");
            waited += missing;
            assert_eq!(ours.next_due().is_some(), plain.next_due().is_some() || missing > 0, "seed {seed}");
            assert_eq!(ours.in_flight(), plain.in_flight() + missing, "seed {seed}");
        }
        come(&mut plain, VirtNs::NEVER, &mut single);
        take(&mut ours, VirtNs::NEVER, &mut single, &mut got, (wait, seed));
        assert!(single.values().all(VecDeque::is_empty), "seed {seed}");
        assert_eq!(ours.pipe_counters(), plain.pipe_counters(), "seed {seed}");
        assert_eq!(ours.node_counters(), plain.node_counters(), "seed {seed}");
        assert_eq!(ours.in_flight(), 0, "seed {seed}");
        runs += got.runs;
        merged += got.merged;
        frames += got.frames.len() as u64;
        lost += ours.pipe_counters().iter().map(|c| c.dropped_loss + c.dropped_queue_full + c.corrupted).sum::<u64>();
    }
    println!("{frames} frames, {merged} of them in {runs} runs, {waited} waited for others, {lost} lost or damaged");
    assert!(
        runs > 300 && merged > frames / 20 && frames > merged && lost > 1000 && waited > 0,
        "the cases are too tame"
    );
}

/// While much is held by single pieces, frames are cut at once: memory stays in proportion.
#[test]
fn few_pieces_do_not_hold_many_large_frames() {
    let mut g = Rng(2);
    let slow = Link { bandwidth_bps: Some(1_000_000), queue_packets: 1_000_000, loss: 0.9, ..Link::default() };
    let spec = crate::common::one_pipe(Link { delay_ns: 1_000_000_000_000, bandwidth_bps: None, ..slow });
    let mut net = Network::new(&spec).unwrap();
    let mut refused = 0;
    for k in 0..3_000 {
        let mut l = std::iter::repeat_with(|| large(&mut g, 64_000))
            .find(|l| l.frame.len() > 20_000 && l.frame[12] != 0x81)
            .unwrap();
        l.frame[..6].copy_from_slice(&spec.nodes[1].mac.0);
        l.frame[6..12].copy_from_slice(&spec.nodes[0].mac.0);
        l.header[4..6].copy_from_slice(&1400u16.to_ne_bytes());
        if let Err(read) = net.ingress_large(VirtNs(k), A, [&l.header[..], &l.frame].concat(), VirtSpan(0)) {
            refused += 1;
            for f in cut(&read) {
                net.ingress(VirtNs(k), A, f, VirtSpan(0));
            }
        }
        assert!(net.pop_due(VirtNs(k)).is_none());
    }
    assert!(refused > 1500, "{refused}");
    assert!(net.memory_bytes() < 100 << 20, "{} bytes for {} packets", net.memory_bytes(), net.in_flight());
}

/// A pipe that is cut while it sends a large frame, at any instant: the piece that is being sent does not arrive, those
/// before it do. Announced or not.
#[test]
fn a_cut_takes_the_piece_that_is_being_sent() {
    let fast = Link { bandwidth_bps: Some(100_000_000_000), delay_ns: 50_000, ..Link::default() };
    let spec = {
        let mut b = NetBuilder::new(1, 77);
        let s = b.switch("s");
        let (_, va) = b.node("a");
        let (_, vb) = b.node("b");
        b.link(va, s, fast);
        b.link(s, vb, fast);
        b.build().unwrap()
    };
    let mut g = Rng(5);
    let one = || {
        let mut l = large(&mut g, 64_000);
        l.frame[..6].copy_from_slice(&spec.nodes[1].mac.0);
        l.frame[6..12].copy_from_slice(&spec.nodes[0].mac.0);
        let read = [&l.header[..], &l.frame].concat();
        let taken = Network::new(&spec).unwrap().ingress_large(VirtNs(0), A, read.clone(), VirtSpan(0));
        taken.is_ok_and(|count| count > 30).then_some(read)
    };
    let read = std::iter::repeat_with(one).find_map(|read| read).unwrap();
    let mut cuts = 0;
    for at in (0..8_000).step_by(31) {
        // In the first pipe, or in the second.
        for (pipe, at, announced) in [(0, at, true), (0, at, false), (2, at + 50_000, true), (2, at + 50_000, false)] {
            let (mut ours, mut plain) = (Network::new(&spec).unwrap(), Network::new(&spec).unwrap());
            assert!(ours.ingress_large(VirtNs(0), A, read.clone(), VirtSpan(0)).is_ok());
            cut(&read).into_iter().for_each(|f| plain.ingress(VirtNs(0), A, f, VirtSpan(0)));
            let (mut single, mut got) = (Single::new(), Got::default());
            for net in [&mut ours, &mut plain] {
                if !announced {
                    assert!(net.pop_due(VirtNs(at)).is_none());
                }
                net.schedule(VirtNs(at), Change::Cut(PipeIx(pipe))).unwrap();
            }
            come(&mut plain, VirtNs::NEVER, &mut single);
            take(&mut ours, VirtNs::NEVER, &mut single, &mut got, (VirtSpan(0), at));
            assert!(single.values().all(VecDeque::is_empty), "cut at {at}");
            assert_eq!(ours.pipe_counters(), plain.pipe_counters(), "cut at {at}");
            cuts += ours.pipe_counters()[pipe as usize].dropped_cut;
        }
    }
    assert!(cuts > 200, "{cuts}");
}
