//! A recorded run can be had again, byte for byte, whenever its caller looked.

use diecast_core_net::{
    Change, Delivered, Discipline, Distribution, FqCodel, GilbertElliott, Jitter, Link, NetBuilder, NetSpec, Network,
    NodeIx, PipeIx, RecordError, Recorded, replay, replay_until,
};
use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::common::{Rng, frame};

/// A star whose links do everything that a link can do.
fn star(g: &mut Rng) -> NetSpec {
    let mut b = NetBuilder::new(g.next(), 77);
    let s = b.switch("s");
    for i in 0..4 {
        let (_, v) = b.node(&format!("n{i}"));
        let jitter =
            Jitter { distribution: Distribution::Uniform, spread_ns: g.below(2_000_000), reorder: g.below(2) == 0 };
        let link = Link {
            bandwidth_bps: (g.below(5) > 0).then(|| 10_000_000 + g.below(1 << 28)),
            // Delays of zero and round ones, so that many things fall on one instant.
            delay_ns: g.below(3) * 1_000_000,
            jitter: (g.below(2) == 0).then_some(jitter),
            loss: 0.02,
            loss_burst: Some(GilbertElliott { enter: 0.02, leave: 0.3, loss_good: 0.0, loss_bad: 0.5 }),
            duplicate: 0.05,
            corrupt: 0.05,
            queue_packets: 5 + g.below(30) as u32,
            discipline: if g.below(2) == 0 { Discipline::DropTail } else { Discipline::FqCodel(FqCodel::default()) },
            ..Link::default()
        };
        b.link(v, s, link);
    }
    b.build().unwrap()
}

#[test]
fn a_run_is_had_again_whenever_its_caller_looked() {
    for seed in 0..30 {
        let mut g = Rng(seed);
        let spec = star(&mut g);
        let mut live = Network::new(&spec).unwrap();
        live.record();
        let (mut now, mut records, mut file) = (0u64, Vec::new(), Vec::new());
        let mut dues = Vec::new();
        for id in 0..600 {
            // Many at one instant; the clock of a late caller sometimes goes back behind what was processed.
            now = (now + g.below(3) * g.below(400_000)).saturating_sub(g.below(10) * 1000);
            let (from, to) = (g.below(4) as u32, g.below(4) as u32);
            let mut f = frame(&spec, NodeIx(from), NodeIx(to), id, 64 + g.below(1400) as usize);
            if g.below(20) == 0 {
                f[..6].fill(0xff);
            }
            live.ingress(VirtNs(now), NodeIx(from), f, VirtSpan(g.below(2) * g.below(300_000)));
            if g.below(40) == 0 {
                let pipe = PipeIx(g.below(8) as u32);
                let flap = Change::Flap { pipe, down_ns: g.below(1_000_000), up_ns: 1000, times: 2 };
                live.schedule(VirtNs(now + g.below(100_000)), flap).unwrap();
            }
            if g.below(3) == 0 {
                dues.extend(std::iter::from_fn(|| live.pop_due(VirtNs(now))).map(|d| (d.due.0, d.to.0)));
            }
            if g.below(50) == 0 {
                records.extend(live.take_recorded());
            }
        }
        dues.extend(std::iter::from_fn(|| live.pop_due(VirtNs::NEVER)).map(|d| (d.due.0, d.to.0)));
        records.extend(live.take_recorded());
        records.iter().for_each(|r| r.encode(&mut file));
        let read = Recorded::decode_all(&file).unwrap();
        assert_eq!(read, records, "seed {seed}");
        let again = replay(&spec, &read).unwrap();
        assert_eq!(again.deliveries.iter().map(|d| (d.due.0, d.to.0)).collect::<Vec<_>>(), dues, "seed {seed}");
        assert_eq!(again.pipes, live.pipe_counters(), "seed {seed}");
        assert_eq!(again.nodes, live.node_counters(), "seed {seed}");
        assert_eq!(again.parts_from(&read), None, "seed {seed}");
        assert!(again.pipes.iter().any(|c| c.dropped_loss > 0) && again.deliveries.len() > 100, "seed {seed}");
        let mut other = spec.clone();
        other.seed ^= 1;
        let third = replay(&other, &read).unwrap();
        assert_ne!(third.deliveries, again.deliveries, "seed {seed}");
        assert!(third.parts_from(&read).is_some(), "seed {seed}");
    }
}

#[test]
fn a_delivery_that_is_not_as_in_the_run_is_found() {
    let mut g = Rng(3);
    let spec = star(&mut g);
    let mut live = Network::new(&spec).unwrap();
    live.record();
    for id in 0..50 {
        live.ingress(VirtNs(id * 1_000_000), NodeIx(0), frame(&spec, NodeIx(0), NodeIx(1), id, 200), VirtSpan(0));
    }
    // Looked at when some have arrived, while others are on their way.
    let end = VirtNs(20_000_000);
    while live.pop_due(end).is_some() {}
    live.looked(end);
    let records = live.take_recorded();
    let deliveries: Vec<usize> = (0..records.len()).filter(|i| matches!(records[*i], Recorded::Delivery(_))).collect();
    assert!(deliveries.len() > 5 && deliveries.len() < 50, "{}", deliveries.len());
    assert_eq!(records.last(), Some(&Recorded::Look { at: end }));
    let parting = |records: &[Recorded]| replay_until(&spec, records, end).unwrap().parts_from(records);
    assert_eq!(parting(&records), None);
    let changed = |act: fn(&mut Delivered)| {
        let mut records = records.clone();
        if let Recorded::Delivery(d) = &mut records[deliveries[4]] {
            act(d);
        }
        parting(&records).unwrap().same
    };
    assert_eq!(changed(|d| d.due.0 += 1), 4);
    assert_eq!(changed(|d| d.to.0 = 2), 4);
    assert_eq!(changed(|d| d.bytes -= 1), 4);
    assert_eq!(changed(|d| d.hash ^= 1), 4);
    let mut swapped = records.clone();
    swapped.swap(deliveries[2], deliveries[3]);
    assert_eq!(parting(&swapped).unwrap().same, 2);
    let mut short = records.clone();
    short.remove(deliveries[deliveries.len() - 1]);
    let last = parting(&short).unwrap();
    assert_eq!((last.same, last.run), (deliveries.len() - 1, None));
}

#[test]
fn files_that_are_cut_off_or_garbled_are_refused_with_their_place() {
    let mut file = Vec::new();
    let frame = Recorded::Frame { at: VirtNs(5), from: NodeIx(1), debt: VirtSpan(7), frame: vec![1, 2, 3] };
    frame.encode(&mut file);
    let first = file.len();
    Recorded::Change { at: VirtNs(6), change: Change::Cut(PipeIx(3)) }.encode(&mut file);
    let second = file.len();
    let at = VirtNs(7);
    Recorded::Delivery(Delivered { due: at, to: NodeIx(2), bytes: 3, hash: 1 << 60 }).encode(&mut file);
    let third = file.len();
    Recorded::Look { at }.encode(&mut file);
    assert_eq!(Recorded::decode_all(&file).unwrap().len(), 4);
    for end in 1..file.len() {
        let cut = Recorded::decode_all(&file[..end]);
        match end {
            n if n == first => assert_eq!(cut.unwrap(), std::slice::from_ref(&frame)),
            n if [second, third].contains(&n) => assert!(cut.is_ok()),
            n => {
                let begin = [third, second, first].into_iter().find(|begin| *begin < n).unwrap_or(0);
                assert_eq!(cut.unwrap_err(), RecordError::CutOff(begin));
            }
        }
    }
    file[0] = 9;
    assert_eq!(Recorded::decode_all(&file).unwrap_err().to_string(), "no record begins with 9 (byte 0)");
    let mut g = Rng(1);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..g.below(60)).map(|_| g.below(6) as u8).collect();
        // Only a panic would be wrong.
        let _ = Recorded::decode_all(&bytes);
    }
    let far = Recorded::Frame { at: VirtNs(0), from: NodeIx(99), debt: VirtSpan(0), frame: Vec::new() };
    assert!(replay(&star(&mut g), &[far]).unwrap_err().to_string().contains("node 99 does not exist"));
}
