//! RED, CoDel and FQ-CoDel as their users know them, and ECN.

use std::collections::BTreeMap;

use diecast_core_net::{Codel, Discipline, FqCodel, Link, Network, PipeCounters, Red};
use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::common::{A, PIPE, balanced, one_pipe, udp};

const MS: u64 = 1_000_000;
/// 1000 bytes take 1 ms.
const BPS: u64 = 8_000_000;

/// What arrived: when, source port, and whether it bears a mark.
type Got = Vec<(u64, u16, bool)>;

/// Flows of (source port, ECN bits, interval in ns), 1000-byte packets for `ns`.
fn flows(link: Link, flows: &[(u16, u8, u64)], ns: u64) -> (Got, PipeCounters) {
    let spec = one_pipe(link);
    let mut net = Network::new(&spec).unwrap();
    let mut sends: BTreeMap<(u64, u16), u8> = BTreeMap::new();
    for (port, tos, every) in flows {
        (0..ns / every).for_each(|k| {
            sends.insert((k * every, *port), *tos);
        });
    }
    let mut out = Got::new();
    let mut take = |net: &mut Network, now: VirtNs| {
        while let Some(d) = net.pop_due(now) {
            let port = u16::from_be_bytes([d.frame[34], d.frame[35]]);
            out.push((d.due.0, port, d.frame[15] & 3 == 3));
            net.recycle(d.frame);
        }
    };
    for (id, ((at, port), tos)) in sends.iter().enumerate() {
        net.ingress(VirtNs(*at), A, udp(&spec, *tos, *port, id as u64, 1000), VirtSpan(0));
        take(&mut net, VirtNs(*at));
    }
    take(&mut net, VirtNs::NEVER);
    let c = net.pipe_counters()[PIPE.at()];
    balanced(&c);
    (out, c)
}

fn link(discipline: Discipline) -> Link {
    Link { bandwidth_bps: Some(BPS), queue_packets: 1000, discipline, ..Link::default() }
}

#[test]
fn codel_drops_its_first_packet_after_an_interval_above_the_target_then_faster() {
    // 10 % too much: the queue grows by 0.1 ms per ms.
    let (out, c) = flows(link(Discipline::Codel(Codel::default())), &[(1, 0, 909_091)], 5_000 * MS);
    assert!(c.dropped_early > 20 && c.dropped_queue_full == 0, "{c:?}");
    // Above 5 ms after some 55 ms, so nothing is dropped before 155 ms: all packets sent until then arrive in a row.
    let early = out.iter().filter(|(due, ..)| *due < 155 * MS).count();
    assert_eq!(early, 154);
    let tail = flows(link(Discipline::DropTail), &[(1, 0, 909_091)], 5_000 * MS).1;
    assert!(c.queue_packets_max < tail.queue_packets_max / 2, "{} {}", c.queue_packets_max, tail.queue_packets_max);
}

#[test]
fn codel_and_red_mark_what_understands_marks_and_drop_the_rest() {
    let red = Red { ecn: true, max_probability: 0.5, weight: 0.2, ..Red::new(5, 500) };
    for discipline in [Discipline::Codel(Codel { ecn: true, ..Codel::default() }), Discipline::Red(red)] {
        let (out, c) = flows(link(discipline), &[(1, 2, 900_000)], 3_000 * MS);
        let marked = out.iter().filter(|(.., marked)| *marked).count() as u64;
        assert!(c.marked > 10 && c.dropped_early == 0, "{discipline:?} {c:?}");
        assert_eq!(marked, c.marked);
        assert_eq!(c.packets_in, out.len() as u64, "a marked packet is not dropped");
        let (out, c) = flows(link(discipline), &[(1, 0, 900_000)], 3_000 * MS);
        assert!(c.marked == 0 && c.dropped_early > 10, "{discipline:?} {c:?}");
        assert!(out.iter().all(|(.., marked)| !marked));
    }
    let (_, c) = flows(link(Discipline::Codel(Codel::default())), &[(1, 2, 900_000)], 3_000 * MS);
    assert!(c.marked == 0 && c.dropped_early > 10, "marks were not asked for: {c:?}");
}

#[test]
fn red_holds_its_average_between_its_thresholds() {
    let red = Red { max_probability: 0.2, weight: 0.02, gentle: true, ..Red::new(20, 60) };
    // 10 % too much, for 20 s: drops of a tenth need an average of 20 + 40 * about 0.05 / 0.2 (gaps are uniform).
    let (_, c) = flows(link(Discipline::Red(red)), &[(1, 0, 909_091)], 20_000 * MS);
    let share = c.dropped_early as f64 / c.packets_in as f64;
    assert!((share - 1.0 / 11.0).abs() < 0.01, "{share}");
    assert!(c.dropped_queue_full == 0 && c.queue_packets_max < 80, "{c:?}");
}

#[test]
fn fq_codel_shares_equally_and_a_sparse_flow_does_not_wait() {
    let fq = Discipline::FqCodel(FqCodel::default());
    // Port 1 sends twice what fits, port 2 as much as fits, port 3 one packet in 20 ms.
    let mix = [(1, 0, 500_000), (2, 0, 1_000_000), (3, 0, 20 * MS)];
    let (out, c) = flows(link(fq), &mix, 10_000 * MS);
    let count = |port| out.iter().filter(|(due, p, _)| *p == port && *due < 10_000 * MS).count() as f64;
    assert!((count(1) / count(2) - 1.0).abs() < 0.02, "{} {}", count(1), count(2));
    // In drop-tail the same mix is shared by who sends more.
    let tail = flows(link(Discipline::DropTail), &mix, 10_000 * MS).0;
    let tail_count = |port| tail.iter().filter(|(_, p, _)| *p == port).count() as f64;
    assert!(tail_count(1) / tail_count(2) > 1.7);
    // The sparse flow's packet waits for the one being sent, and for one of the other new flow at most.
    let waits: Vec<u64> = out.iter().filter(|(_, p, _)| *p == 3).map(|(due, ..)| due % (20 * MS)).collect();
    assert_eq!(waits.len(), 500, "{c:?}");
    // At the very beginning all three flows are new.
    assert!(waits[1..].iter().all(|w| *w <= 3 * MS), "{:?}", waits.iter().max());
    assert!(tail.iter().filter(|(_, p, _)| *p == 3).any(|(due, ..)| due % (20 * MS) > 10 * MS));
}

#[test]
fn a_full_fq_codel_queue_drops_from_the_largest_flow() {
    let patient = Codel { target_ns: 1_000_000 * MS, ..Codel::default() };
    let fq = Discipline::FqCodel(FqCodel { codel: patient, ..FqCodel::default() });
    let (out, c) = flows(Link { queue_packets: 100, ..link(fq) }, &[(1, 0, 100_000), (2, 0, 2_100_000)], 1_000 * MS);
    assert!(c.dropped_queue_full > 1000, "{c:?}");
    assert_eq!(out.iter().filter(|(_, p, _)| *p == 2).count(), 476, "the small flow lost something");
}
