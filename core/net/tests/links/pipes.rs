//! Rate, delay, jitter, loss, duplication, corruption and queue limits of one pipe.

use diecast_core_net::{Distribution, Framing, GilbertElliott, Jitter, Link};

use crate::common::train;

const MS: u64 = 1_000_000;

#[test]
fn the_rate_is_exact_from_a_megabit_to_a_hundred_gigabits() {
    for bps in [1_000_000u64, 56_000_000, 999_999_937, 10_000_000_000, 100_000_000_000] {
        for (framing, counted) in [(Framing::Ip, 1500u128), (Framing::Frame, 1514), (Framing::Wire, 1538)] {
            let link = Link { bandwidth_bps: Some(bps), framing, queue_packets: u32::MAX, ..Link::default() };
            let (out, c) = train(link, 5000, 1514, 0);
            for (k, (due, _)) in out.iter().enumerate() {
                let exact = (k as u128 + 1) * counted * 8_000_000_000;
                assert_eq!(u128::from(*due), exact.div_ceil(u128::from(bps)), "{bps} bit/s, {framing:?}, packet {k}");
            }
            assert_eq!(c.busy_ns, out.last().unwrap().0, "busy without a pause");
        }
    }
    // The wire pads a short frame: 64 bytes and 20 of preamble and gap, the FCS among the 64.
    let link = Link { bandwidth_bps: Some(8_000_000_000), framing: Framing::Wire, ..Link::default() };
    assert_eq!(train(link, 1, 42, 0).0, [(84, 0)]);
}

#[test]
fn uniform_jitter_keeps_its_bounds_and_the_order_unless_told_otherwise() {
    let jitter = |reorder| Jitter { distribution: Distribution::Uniform, spread_ns: 2 * MS, reorder };
    let link = |reorder| Link { delay_ns: 10 * MS, jitter: Some(jitter(reorder)), ..Link::default() };
    // 100 us apart: neighbours would often overtake one another.
    let (free, _) = train(link(true), 20_000, 200, MS / 10);
    let delays: Vec<i64> = free.iter().map(|(due, id)| (*due - id * MS / 10) as i64).collect();
    assert!(delays.iter().all(|d| (8_000_000..=12_000_000).contains(d)));
    let mean = delays.iter().sum::<i64>() / delays.len() as i64;
    // Standard deviation of the mean: 2 ms / sqrt(3) / sqrt(20,000), four of them.
    assert!((mean - 10_000_000).abs() < 33_000, "mean {mean}");
    for tenth in 0..10 {
        let from = 8_000_000 + tenth * 400_000;
        let n = delays.iter().filter(|d| (from..from + 400_000).contains(*d)).count();
        assert!((1800..=2200).contains(&n), "{n} of 2000 in tenth {tenth}");
    }
    assert!(free.windows(2).filter(|w| w[0].1 > w[1].1).count() > 1000, "nothing was overtaken");
    let (kept, _) = train(link(false), 20_000, 200, MS / 10);
    assert!(kept.windows(2).all(|w| w[0].1 < w[1].1), "something was overtaken");
    assert!(kept.iter().all(|(due, id)| (8 * MS..=12 * MS).contains(&(due - id * MS / 10))));
}

#[test]
fn normal_jitter_has_its_deviation_and_no_delay_is_negative() {
    let jitter = Jitter { distribution: Distribution::Normal, spread_ns: MS, reorder: true };
    let (out, _) = train(Link { delay_ns: 10 * MS, jitter: Some(jitter), ..Link::default() }, 20_000, 200, 20 * MS);
    let d: Vec<f64> = out.iter().map(|(due, id)| (*due - id * 20 * MS) as f64 - 10e6).collect();
    let mean = d.iter().sum::<f64>() / d.len() as f64;
    let deviation = (d.iter().map(|x| x * x).sum::<f64>() / d.len() as f64).sqrt();
    assert!(mean.abs() < 30_000.0 && (deviation - 1e6).abs() < 25_000.0, "{mean} {deviation}");
    assert!(d.iter().all(|x| x.abs() <= 4e6));
    // A delay shorter than its jitter ends at zero.
    let (out, _) = train(Link { delay_ns: 0, jitter: Some(jitter), ..Link::default() }, 2000, 200, 20 * MS);
    let now = out.iter().filter(|(due, id)| *due == id * 20 * MS).count();
    assert!((900..=1100).contains(&now), "{now} of 2000 without delay");
}

#[test]
fn loss_of_every_nth_packet_is_exact_and_random_loss_within_its_bound() {
    let (out, c) = train(Link { loss_every: Some(7), ..Link::default() }, 700, 100, 10);
    let lost: Vec<u64> = (0..700).filter(|id| !out.iter().any(|(_, got)| got == id)).collect();
    assert_eq!(lost, (1..=100).map(|k| k * 7 - 1).collect::<Vec<_>>());
    assert_eq!(c.dropped_loss, 100);
    for p in [0.0001, 0.01, 0.3] {
        let n = 50_000;
        let (_, c) = train(Link { loss: p, ..Link::default() }, n, 100, 10);
        let (mean, sd) = (n as f64 * p, (n as f64 * p * (1.0 - p)).sqrt());
        assert!((c.dropped_loss as f64 - mean).abs() <= 4.0 * sd, "{} of {mean} +- {sd}", c.dropped_loss);
    }
}

#[test]
fn burst_loss_has_the_share_and_the_burst_length_of_its_chain() {
    let burst = GilbertElliott { enter: 0.01, leave: 0.25, loss_good: 0.0, loss_bad: 1.0 };
    let n = 150_000;
    let (out, c) = train(Link { loss_burst: Some(burst), ..Link::default() }, n, 60, 10);
    // Long-run share: enter / (enter + leave) = 1/26. A burst is geometric with a mean of 1/leave = 4 packets.
    let share = c.dropped_loss as f64 / n as f64;
    assert!((share - 1.0 / 26.0).abs() < 0.004, "{share}");
    let bursts = out.windows(2).filter(|w| w[1].1 - w[0].1 > 1).count();
    let length = c.dropped_loss as f64 / bursts as f64;
    assert!((length - 4.0).abs() < 0.2, "mean burst {length}");
    let partly = GilbertElliott { enter: 0.5, leave: 0.5, loss_good: 0.1, loss_bad: 0.5 };
    let (_, c) = train(Link { loss_burst: Some(partly), ..Link::default() }, n, 60, 10);
    assert!((c.dropped_loss as f64 / n as f64 - 0.3).abs() < 0.005, "{}", c.dropped_loss);
}

#[test]
fn duplicates_arrive_with_their_original_and_are_counted() {
    let (out, c) = train(Link { duplicate: 0.2, delay_ns: MS, ..Link::default() }, 10_000, 100, 10);
    // Binomial: 2000 with a deviation of 40.
    assert!((1840..=2160).contains(&c.duplicated), "{}", c.duplicated);
    assert_eq!(out.len() as u64, 10_000 + c.duplicated);
    assert_eq!(out.windows(2).filter(|w| w[0] == w[1]).count() as u64, c.duplicated);
}

#[test]
fn corrupted_packets_differ_in_one_bit_and_are_counted() {
    let (out, c) = train(Link { corrupt: 0.1, ..Link::default() }, 10_000, 22, 10);
    assert!((880..=1120).contains(&c.corrupted), "{}", c.corrupted);
    // The number is all that the frame has behind its header.
    let bad = out.iter().enumerate().filter(|(k, (_, id))| *k as u64 != *id);
    assert!(bad.clone().all(|(k, (_, id))| (k as u64 ^ id).count_ones() == 1));
    assert_eq!(bad.count() as u64, c.corrupted);
}

#[test]
fn queues_are_limited_in_bytes_and_in_time_too() {
    // 1000 bytes at 8 Mbit/s: 1 ms each. One is sent, the others wait.
    let base = Link { bandwidth_bps: Some(8_000_000), queue_packets: u32::MAX, ..Link::default() };
    let (out, c) = train(Link { queue_bytes: Some(3999), ..base }, 10, 1000, 0);
    assert_eq!((out.len(), c.dropped_queue_full, c.queue_packets_max, c.queue_bytes_max), (4, 6, 3, 3000));
    let (out, _) = train(Link { queue_bytes: Some(4000), ..base }, 10, 1000, 0);
    assert_eq!(out.len(), 5);
    // A packet may wait 3 ms: behind the one being sent and two others, not behind three.
    let (out, c) = train(Link { queue_delay_ns: Some(3 * MS), ..base }, 10, 1000, 0);
    assert_eq!((out.len(), c.dropped_queue_full), (4, 6));
    let (out, _) = train(Link { queue_delay_ns: Some(3 * MS - 1), ..base }, 10, 1000, 0);
    assert_eq!(out.len(), 3);
}

#[test]
fn what_one_effect_decides_does_not_depend_on_the_others() {
    let base = Link { bandwidth_bps: Some(80_000_000), loss: 0.05, queue_packets: u32::MAX, ..Link::default() };
    let jitter = Jitter { distribution: Distribution::Normal, spread_ns: MS, reorder: true };
    let ids = |link: Link| {
        let mut ids: Vec<u64> = train(link, 5000, 200, 30_000).0.into_iter().map(|(_, id)| id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let plain = ids(base);
    assert!(plain.len() < 4900);
    assert_eq!(plain, ids(Link { jitter: Some(jitter), duplicate: 0.3, ..base }));
}
