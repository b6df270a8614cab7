//! What a run of the load generator says at the end: one JSON object over the requests of the measure window.

use crate::client::{ClientReport, Outcome};
use crate::schedule::Arrival;

/// The measure window, nanoseconds after the start of the schedule.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from_ns: u64,
    pub length_ns: u64,
}

/// Counts are of requests whose *intended* send time lies in the measure window, wherever their answers fall; only
/// `rate` counts answers by the time at which they came.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Summary {
    /// Requests answered with 2xx within the measure window, per second of it.
    pub rate: f64,
    /// Requests meant to be sent in the window, per second of it.
    pub offered: f64,
    pub sent: u64,
    pub completed: u64,
    /// `sent - completed`: the three kinds below.
    pub errors: u64,
    pub timeouts: u64,
    pub refused: u64,
    pub broken: u64,
    pub mean_ns: Option<u64>,
    pub p50_ns: Option<u64>,
    pub p90_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    pub max_ns: Option<u64>,
    /// How late this generator took up its own requests: 99th percentile and worst.
    pub dispatch_late_p99_ns: Option<u64>,
    pub dispatch_late_max_ns: Option<u64>,
    pub connections: u64,
}

impl Summary {
    pub fn of(arrivals: &[Arrival], report: &ClientReport, window: Window) -> Self {
        let end_ns = window.from_ns + window.length_ns;
        let seconds = window.length_ns as f64 / 1e9;
        let (mut sent, mut timeouts, mut refused, mut broken, mut answered_within) = (0, 0, 0, 0, 0_u64);
        let mut late_ns = Vec::new();
        for (request, arrival) in arrivals.iter().enumerate() {
            let outcome = report.outcomes[request];
            if let Outcome::Completed { latency_ns } = outcome {
                let answered_ns = arrival.at_ns + latency_ns;
                answered_within += u64::from((window.from_ns..end_ns).contains(&answered_ns));
            }
            if !(window.from_ns..end_ns).contains(&arrival.at_ns) {
                continue;
            }
            sent += 1;
            late_ns.push(report.dispatch_late_ns[request]);
            match outcome {
                Outcome::Completed { .. } => {}
                Outcome::TimedOut => timeouts += 1,
                Outcome::Refused { .. } => refused += 1,
                Outcome::Broken => broken += 1,
            }
        }
        let mut sorted_ns = samples_ns(arrivals, report, window);
        sorted_ns.sort_unstable();
        late_ns.sort_unstable();
        let completed = sorted_ns.len() as u64;
        let total_ns: u128 = sorted_ns.iter().map(|ns| u128::from(*ns)).sum();
        Summary {
            rate: answered_within as f64 / seconds,
            offered: sent as f64 / seconds,
            sent,
            completed,
            errors: sent - completed,
            timeouts,
            refused,
            broken,
            mean_ns: total_ns.checked_div(u128::from(completed)).map(|ns| ns as u64),
            p50_ns: quantile(&sorted_ns, 50),
            p90_ns: quantile(&sorted_ns, 90),
            p99_ns: quantile(&sorted_ns, 99),
            max_ns: sorted_ns.last().copied(),
            dispatch_late_p99_ns: quantile(&late_ns, 99),
            dispatch_late_max_ns: late_ns.last().copied(),
            connections: report.connections_opened,
        }
    }
}

/// Latencies of the completed requests of the window, in order of intended send time.
pub fn samples_ns(arrivals: &[Arrival], report: &ClientReport, window: Window) -> Vec<u64> {
    completed(arrivals, report, window).map(|(_, latency_ns)| latency_ns).collect()
}

/// Their intended send times, CLOCK_MONOTONIC.
pub fn sent_ns(arrivals: &[Arrival], report: &ClientReport, window: Window) -> Vec<u64> {
    completed(arrivals, report, window).map(|(arrival, _)| report.start_ns + arrival.at_ns).collect()
}

fn completed<'a>(
    arrivals: &'a [Arrival],
    report: &'a ClientReport,
    window: Window,
) -> impl Iterator<Item = (&'a Arrival, u64)> {
    let within = move |arrival: &Arrival| (window.from_ns..window.from_ns + window.length_ns).contains(&arrival.at_ns);
    let of_window = arrivals.iter().zip(&report.outcomes).filter(move |(arrival, _)| within(arrival));
    of_window.filter_map(|(arrival, outcome)| match outcome {
        Outcome::Completed { latency_ns } => Some((arrival, *latency_ns)),
        _ => None,
    })
}

/// Nearest rank: the smallest sample that at least `percent` of all samples do not exceed.
fn quantile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(quantile(&hundred, 50), Some(50));
        assert_eq!(quantile(&hundred, 99), Some(99));
        assert_eq!(quantile(&[7], 99), Some(7));
        assert_eq!(quantile(&[1, 2], 50), Some(1));
        assert_eq!(quantile(&[], 50), None);
    }

    #[test]
    fn the_window_is_by_intended_time_and_the_rate_by_answers() {
        let at = |at_ns| Arrival { at_ns, path: String::new() };
        // Window 100..200: the first is warm-up but answered within, the last but one is answered after the end.
        let arrivals = [at(50), at(100), at(150), at(160), at(199), at(200)];
        let report = ClientReport {
            start_ns: 1_000,
            outcomes: vec![
                Outcome::Completed { latency_ns: 60 },
                Outcome::Completed { latency_ns: 30 },
                Outcome::TimedOut,
                Outcome::Refused { status: 503 },
                Outcome::Completed { latency_ns: 10 },
                Outcome::Completed { latency_ns: 1 },
            ],
            dispatch_late_ns: vec![90, 1, 2, 3, 4, 80],
            connections_opened: 2,
            first_fault: None,
        };
        let window = Window { from_ns: 100, length_ns: 100 };
        let summary = Summary::of(&arrivals, &report, window);
        assert_eq!(samples_ns(&arrivals, &report, window), [30, 10]);
        assert_eq!(sent_ns(&arrivals, &report, window), [1_100, 1_199]);
        assert_eq!((summary.sent, summary.completed, summary.errors), (4, 2, 2));
        assert_eq!((summary.timeouts, summary.refused, summary.broken), (1, 1, 0));
        assert_eq!(summary.rate, 2.0 / 100e-9);
        assert_eq!(summary.offered, 4.0 / 100e-9);
        assert_eq!((summary.mean_ns, summary.p50_ns, summary.p99_ns), (Some(20), Some(10), Some(30)));
        assert_eq!(summary.dispatch_late_max_ns, Some(4));
    }
}
