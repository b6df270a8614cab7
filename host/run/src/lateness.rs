//! How late packets left and threads came back: from histograms of real and virtual time to the journal's record.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{LATE_BUCKETS, late_bucket, late_bucket_max_ns};
use diecast_core_journal::{Lateness, LatenessSource};
use diecast_core_vtime::{RealSpan, Tdf, VirtSpan};
use diecast_host_net::EmulatorStats;
use diecast_host_supervisor::NodeFrame;

/// A node's ledger counters at one instant.
#[derive(Clone)]
pub struct LedgerCounts {
    late_v: Vec<u64>,
    sleep_late: Vec<u64>,
    forgiven: u64,
    pub clamped: u64,
}

impl LedgerCounts {
    pub fn of(n: &NodeFrame) -> LedgerCounts {
        let c = &n.page().counters;
        let all = |b: &[std::sync::atomic::AtomicU64; LATE_BUCKETS]| b.iter().map(|x| x.load(Relaxed)).collect();
        LedgerCounts {
            late_v: all(&c.late_v),
            sleep_late: all(&c.sleep_late),
            forgiven: c.forgiven.load(Relaxed),
            clamped: c.clamped.load(Relaxed),
        }
    }
}

/// The greatest lateness of a bucket, virtual ns, to how many fell into it.
type Counts = BTreeMap<u64, u64>;

/// Lateness of a node's threads between two readings, virtual: hits that came after their work's virtual end,
/// and wake-ups from the meter's sleeps (measured in real time, so divided by the TDF).
pub fn of_ledger(tdf: Tdf, node: &str, before: &LedgerCounts, after: &LedgerCounts) -> Lateness {
    let mut counts = Counts::new();
    for i in 0..LATE_BUCKETS {
        // The bucket's upper edge: never less than what was measured.
        let upper = late_bucket_max_ns(i);
        *counts.entry(upper).or_default() += after.late_v[i] - before.late_v[i];
        *counts.entry(virt_ns(tdf, upper)).or_default() += after.sleep_late[i] - before.sleep_late[i];
    }
    let late_events = after.forgiven - before.forgiven;
    Lateness { node: Some(node.to_owned()), late_events, ..told(LatenessSource::Ledger, counts) }
}

/// Lateness of packets between two snapshots of the emulator, virtual.
pub fn of_emulator(tdf: Tdf, before: &EmulatorStats, after: &EmulatorStats) -> Lateness {
    of_packets(tdf, &after.lateness_counts_since(before))
}

fn of_packets(tdf: Tdf, real: &[(u64, u64)]) -> Lateness {
    let mut counts = Counts::new();
    for (upper, count) in real {
        *counts.entry(virt_ns(tdf, *upper)).or_default() += count;
    }
    told(LatenessSource::Emulator, counts)
}

fn virt_ns(tdf: Tdf, real_ns: u64) -> u64 {
    tdf.to_virt(RealSpan(real_ns)).ns()
}

/// The record of these counts: quantiles as fine as they are, the histogram with eight buckets to a doubling.
fn told(source: LatenessSource, mut counts: Counts) -> Lateness {
    counts.retain(|_, count| *count > 0);
    let events: u64 = counts.values().sum();
    // The nearest rank; nothing is late where there are no events.
    let quantile = |ppm: u64| {
        let mut left = (events * ppm).div_ceil(1_000_000).max(1);
        let reached = |(upper, count): (&u64, &u64)| {
            let here = *count >= left;
            left = left.saturating_sub(*count);
            here.then_some(*upper)
        };
        VirtSpan(counts.iter().find_map(reached).unwrap_or(0))
    };
    let mut buckets = Counts::new();
    for (upper, count) in &counts {
        *buckets.entry(late_bucket_max_ns(late_bucket(*upper))).or_default() += count;
    }
    Lateness {
        source,
        node: None,
        events,
        late_events: 0,
        v_p50_ns: quantile(500_000),
        v_p99_ns: quantile(990_000),
        v_p999_ns: quantile(999_000),
        v_max_ns: VirtSpan(counts.keys().next_back().copied().unwrap_or(0)),
        v_buckets_ns: buckets.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the value of this rank is in the bucket that holds this quantile.
    fn holds(lateness: &Lateness, quantile: VirtSpan, ppm: u64) -> bool {
        let rank = (lateness.events * ppm).div_ceil(1_000_000).max(1);
        let (mut below, mut counted) = (None, 0);
        for (upper, count) in &lateness.v_buckets_ns {
            counted += count;
            if counted >= rank {
                return quantile.ns() <= *upper && below.is_none_or(|below| quantile.ns() > below);
            }
            below = Some(*upper);
        }
        false
    }

    fn assert_whole(lateness: &Lateness) {
        let counted: u64 = lateness.v_buckets_ns.iter().map(|(_, count)| count).sum();
        assert_eq!(counted, lateness.events, "{lateness:?}");
        assert!(lateness.v_buckets_ns.is_sorted_by(|a, b| a.0 < b.0), "{lateness:?}");
        assert!(lateness.v_buckets_ns.iter().all(|(_, count)| *count > 0), "{lateness:?}");
        let quantiles = [
            (lateness.v_p50_ns, 500_000),
            (lateness.v_p99_ns, 990_000),
            (lateness.v_p999_ns, 999_000),
            (lateness.v_max_ns, 1_000_000),
        ];
        for (quantile, ppm) in quantiles {
            assert!(holds(lateness, quantile, ppm), "{quantile:?} of {ppm} ppm: {lateness:?}");
        }
    }

    #[test]
    fn packets_are_counted_once_and_quantiles_lie_in_their_buckets() {
        // Fine buckets as of the emulator: a few hundred values with a long tail, real ns.
        let real: Vec<(u64, u64)> = (1..400).map(|i| (i * i * 37, 1 + 40_000 / (i * i))).collect();
        for tdf in ["1", "10", "3/2", "0.1"] {
            let lateness = of_packets(tdf.parse().unwrap(), &real);
            assert_eq!(lateness.events, real.iter().map(|(_, count)| count).sum::<u64>());
            assert_whole(&lateness);
        }
        let lateness = of_packets(Tdf::ONE, &[(200, 989), (3_000, 10), (70_000, 1)]);
        let quantiles = [lateness.v_p50_ns, lateness.v_p99_ns, lateness.v_p999_ns, lateness.v_max_ns];
        assert_eq!(quantiles.map(VirtSpan::ns), [200, 3_000, 3_000, 70_000]);
        assert_eq!(lateness.v_buckets_ns, [(207, 989), (3_071, 10), (73_727, 1)]);
    }

    #[test]
    fn nothing_late_is_no_bucket() {
        let lateness = of_packets(Tdf::ONE, &[]);
        assert_eq!((lateness.events, lateness.v_max_ns, lateness.v_buckets_ns), (0, VirtSpan(0), vec![]));
    }

    #[test]
    fn a_ledgers_hits_and_wakeups_are_in_one_histogram() {
        let none =
            LedgerCounts { late_v: vec![0; LATE_BUCKETS], sleep_late: vec![0; LATE_BUCKETS], forgiven: 4, clamped: 0 };
        let mut after = none.clone();
        after.late_v[late_bucket(40_000)] = 5;
        after.sleep_late[late_bucket(400_000)] = 1000;
        after.forgiven = 7;
        let lateness = of_ledger("10".parse().unwrap(), "db", &none, &after);
        assert_eq!((lateness.node.as_deref(), lateness.events, lateness.late_events), (Some("db"), 1005, 3));
        assert_whole(&lateness);
        // 400 µs of real time are 40 µs of virtual, told to an eighth.
        assert!((40_000..45_000).contains(&lateness.v_p50_ns.ns()), "{lateness:?}");
    }
}
