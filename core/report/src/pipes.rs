//! The network of a run: what each pipe did in the measured phase.

use std::collections::BTreeMap;

use diecast_core_journal::{Drops, NetworkChange, PipeSample, PipesSample, Record};
use diecast_core_vtime::VirtNs;
use serde::{Deserialize, Serialize};

/// A pipe that is used more than this is worth a line in the table.
const BUSY_SHARE: f64 = 0.5;

/// What a pipe did in the measured phase. Pipes without a packet since the start of the lab are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipeUse {
    /// Its place in the plan's list of pipes.
    pub pipe: u32,
    /// Where packets enter.
    pub from: String,
    /// Where they leave.
    pub to: String,
    /// Virtual time between the samples that this was taken from.
    pub v_span_ns: u64,
    /// Packets that reached it.
    pub packets_in: u64,
    /// Their bytes, Ethernet header included.
    pub bytes_in: u64,
    /// Packets that it sent, lost ones included.
    pub packets_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Share of the time for which its transmitter was busy; 0 for a pipe without a bandwidth.
    pub utilisation: f64,
    /// Packets that it dropped.
    pub dropped: Drops,
    /// Packets marked instead of dropped.
    pub marked: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Most packets that waited, since the start of the lab.
    pub queue_packets_max: u32,
    /// Most bytes that waited, since the start of the lab.
    pub queue_bytes_max: u64,
}

impl PipeUse {
    /// Whether a reader should look at it: it dropped packets, or was close to its bandwidth.
    pub fn is_notable(&self) -> bool {
        self.dropped.total() > 0 || self.utilisation > BUSY_SHARE
    }
}

/// Use of the pipes between the first and the last sample in the window.
pub(crate) fn pipe_uses(records: &[Record], window: (VirtNs, VirtNs)) -> Vec<PipeUse> {
    let samples = records.iter().filter_map(|record| match record {
        Record::Pipes(sample) if sample.v_ns <= window.1 => Some(sample),
        _ => None,
    });
    let mut now: BTreeMap<u32, &PipeSample> = BTreeMap::new();
    let mut first: Option<(VirtNs, BTreeMap<u32, &PipeSample>)> = None;
    let mut last = window.0;
    for PipesSample { v_ns, pipes } in samples {
        now.extend(pipes.iter().map(|p| (p.pipe, p)));
        if *v_ns >= window.0 {
            first.get_or_insert_with(|| (*v_ns, now.clone()));
            last = *v_ns;
        }
    }
    let Some((begin, before)) = first else { return Vec::new() };
    let v_span_ns = last.since(begin).ns();
    let unused = PipeSample::default();
    now.values().map(|after| pipe_use(before.get(&after.pipe).copied().unwrap_or(&unused), after, v_span_ns)).collect()
}

fn pipe_use(before: &PipeSample, after: &PipeSample, v_span_ns: u64) -> PipeUse {
    let busy_ns = after.v_busy_ns.ns().saturating_sub(before.v_busy_ns.ns());
    PipeUse {
        pipe: after.pipe,
        from: after.from.clone(),
        to: after.to.clone(),
        v_span_ns,
        packets_in: after.packets_in.saturating_sub(before.packets_in),
        bytes_in: after.bytes_in.saturating_sub(before.bytes_in),
        packets_sent: after.packets_sent.saturating_sub(before.packets_sent),
        bytes_sent: after.bytes_sent.saturating_sub(before.bytes_sent),
        // A packet counts as a whole when its transmission begins, so a window can hold a little more than itself.
        utilisation: if v_span_ns > 0 { (busy_ns as f64 / v_span_ns as f64).min(1.0) } else { 0.0 },
        dropped: after.dropped.since(&before.dropped),
        marked: after.marked.saturating_sub(before.marked),
        duplicated: after.duplicated.saturating_sub(before.duplicated),
        corrupted: after.corrupted.saturating_sub(before.corrupted),
        queue_packets_max: after.queue_packets_max,
        queue_bytes_max: after.queue_bytes_max,
    }
}

/// Most pipes that are drawn: more colours can't be told apart.
const DRAWN_MAX: usize = 6;

/// One pipe over virtual time, each point at the end of the interval between two samples, in virtual seconds after a start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PipeSeries {
    pub name: String,
    /// Percent of the interval for which its transmitter was busy.
    pub utilisation: Vec<(f64, f64)>,
    /// Packets that waited at the end.
    pub queue_packets: Vec<(f64, f64)>,
    /// Drops a virtual second, whatever their cause.
    pub drops: Vec<(f64, f64)>,
}

/// The pipes that had most to do, over time. A sample names the pipes that did something since the one before.
pub(crate) fn series(samples: &[PipesSample], v_start: VirtNs) -> Vec<PipeSeries> {
    let mut last: BTreeMap<u32, &PipeSample> = BTreeMap::new();
    samples.iter().for_each(|sample| last.extend(sample.pipes.iter().map(|p| (p.pipe, p))));
    let mut busiest: Vec<&PipeSample> = last.into_values().collect();
    busiest.sort_by_key(|p| std::cmp::Reverse((p.v_busy_ns.ns(), p.bytes_sent)));
    busiest.truncate(DRAWN_MAX);
    let of_pipe = |drawn: &PipeSample| {
        let mut series = PipeSeries { name: format!("{} to {}", drawn.from, drawn.to), ..PipeSeries::default() };
        let unused = PipeSample::default();
        let mut before = &unused;
        for pair in samples.windows(2) {
            before = pair[0].pipes.iter().find(|p| p.pipe == drawn.pipe).unwrap_or(before);
            let after = pair[1].pipes.iter().find(|p| p.pipe == drawn.pipe).unwrap_or(before);
            let span_ns = pair[1].v_ns.since(pair[0].v_ns).ns();
            let (at_s, used) = (pair[1].v_ns.since(v_start).as_secs_f64(), pipe_use(before, after, span_ns));
            series.utilisation.push((at_s, 100.0 * used.utilisation));
            series.queue_packets.push((at_s, f64::from(after.queue_packets)));
            series.drops.push((at_s, used.dropped.total() as f64 * 1e9 / span_ns.max(1) as f64));
        }
        series
    };
    busiest.into_iter().map(of_pipe).collect()
}

/// Every change of the network, in the order of their instants.
pub(crate) fn network_changes(records: &[Record]) -> Vec<NetworkChange> {
    let changes = records.iter().filter_map(|record| match record {
        Record::NetworkChange(change) => Some(change.clone()),
        _ => None,
    });
    let mut changes: Vec<NetworkChange> = changes.collect();
    changes.sort_by_key(|change| change.v_ns);
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use diecast_core_vtime::VirtSpan;

    fn sample(v_ns: u64, pipe: u32, sent: u64, busy_ns: u64, full: u64) -> Record {
        let dropped = Drops { queue_full: full, ..Drops::default() };
        let pipe = PipeSample {
            pipe,
            packets_sent: sent,
            v_busy_ns: VirtSpan(busy_ns),
            dropped,
            queue_packets_max: 9,
            ..PipeSample::default()
        };
        Record::Pipes(PipesSample { v_ns: VirtNs(v_ns), pipes: vec![pipe] })
    }

    #[test]
    fn a_window_holds_what_happened_between_its_first_and_last_sample() {
        let quiet = Record::Pipes(PipesSample { v_ns: VirtNs(2_000), pipes: Vec::new() });
        let records = [
            sample(500, 0, 10, 100, 1),
            sample(1_000, 1, 4, 40, 0),
            quiet,
            sample(3_000, 0, 30, 1_300, 6),
            sample(3_500, 2, 7, 70, 0),
            sample(9_000, 0, 99, 9_000, 99),
        ];
        let uses = pipe_uses(&records, (VirtNs(1_000), VirtNs(4_000)));
        let figures: Vec<_> = uses.iter().map(|u| (u.pipe, u.v_span_ns, u.packets_sent, u.dropped.total())).collect();
        assert_eq!(figures, [(0, 2_500, 20, 5), (1, 2_500, 0, 0), (2, 2_500, 7, 0)]);
        assert!((uses[0].utilisation - 0.48).abs() < 1e-9, "{}", uses[0].utilisation);
        assert_eq!(uses.iter().map(PipeUse::is_notable).collect::<Vec<_>>(), [true, false, false]);
        assert!(pipe_uses(&records, (VirtNs(9_500), VirtNs(9_600))).is_empty(), "no sample in the window");
    }

    #[test]
    fn a_series_goes_on_where_a_sample_is_silent() {
        let records = [
            sample(1_000_000_000, 0, 10, 100_000_000, 1),
            sample(2_000_000_000, 1, 4, 40, 0),
            sample(3_000_000_000, 0, 30, 600_000_000, 6),
        ];
        let samples: Vec<PipesSample> = records
            .into_iter()
            .filter_map(|record| if let Record::Pipes(sample) = record { Some(sample) } else { None })
            .collect();
        let drawn = series(&samples, VirtNs(500_000_000));
        assert_eq!(drawn.len(), 2);
        assert_eq!(drawn[0].utilisation, [(1.5, 0.0), (2.5, 50.0)]);
        assert_eq!(drawn[0].drops, [(1.5, 0.0), (2.5, 5.0)]);
        assert_eq!(drawn[1].drops, [(1.5, 0.0), (2.5, 0.0)]);
    }
}
