//! What a node was charged against what it used, and how far that can be wrong.

use diecast_core_journal::Conservation;
use diecast_core_vtime::VirtNs;
use serde::{Deserialize, Serialize};

/// Part of what is taken off by estimate (the meter's cost, cold code) that is taken to be wrong (PROMISES, "Why cold code is
/// hard": an eighth to two fifths of it, on a host that cools fast more).
const ESTIMATE_DOUBT: f64 = 0.5;
/// A node that is fuller counts as this full: its queue depends on how long it has been so, or on who waits for its answers.
const FULLEST: f64 = 0.9;
/// A node's conservation windows together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConservationTotal {
    /// The node.
    pub node: String,
    /// Every window's error. What was on its way when a window closed, and so shows in the next with the other sign, is none.
    pub errors: Vec<f64>,
    /// Sums over the windows.
    pub charged_ns: u64,
    /// Charged by the supervisor because no meter caught it, in the windows that closed while measuring.
    pub escaped_ns: u64,
    /// What the kernel counted in those windows.
    #[serde(default)]
    pub measured_used_ns: u64,
    /// What the kernel counted.
    pub used_ns: u64,
    /// What share of its machine's CPU time the node used while measuring.
    #[serde(default)]
    pub fullness: f64,
    /// The meter's own cost.
    pub meter_cost_ns: u64,
    /// Not charged because the work was colder than on the original machine.
    #[serde(default)]
    pub cold_ns: u64,
    /// Not charged because the host's cores were slow.
    #[serde(default)]
    pub slow_ns: u64,
    /// Charged for what the kernel did for the node when packets came.
    #[serde(default)]
    pub received_ns: u64,
    /// Not charged of that: colder or slower than on the original machine, or interrupted.
    #[serde(default)]
    pub received_cut_ns: u64,
}

/// A window in which less was used is one that was closed early, as measuring began: its error is judged with the next one's,
/// since what a look may be wrong by would be much of it.
pub(crate) const JUDGED_NS: u64 = 10_000_000;

/// The last conservation window that is judged, and where those end that are judged with the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Window {
    /// Charged too much (or, negative, too little), as far as the window before has not given it back, real ns.
    off_ns: i64,
    /// What should have been charged, real ns.
    due_ns: u64,
    /// The same two of those closed early since.
    early_off_ns: i64,
    early_due_ns: u64,
    /// Where the last of all ended.
    v_ns: VirtNs,
}

impl Window {
    fn error(self) -> f64 {
        Conservation {
            charged_ns: self.due_ns.saturating_add_signed(self.off_ns),
            used_ns: self.due_ns,
            ..Conservation::default()
        }
        .error()
    }
}

impl ConservationTotal {
    /// The worst window's error.
    pub fn worst(&self) -> f64 {
        self.errors.iter().copied().fold(0.0, f64::max)
    }

    /// The error of all windows as one.
    pub fn total_error(&self) -> f64 {
        let Self { charged_ns, used_ns, meter_cost_ns, cold_ns, slow_ns, .. } = *self;
        Conservation { charged_ns, used_ns, meter_cost_ns, cold_ns, slow_ns, ..Conservation::default() }.error()
    }

    /// Share of the CPU time used while measuring that no meter caught.
    pub fn escaped_fraction(&self) -> f64 {
        if self.measured_used_ns == 0 { 0.0 } else { self.escaped_ns as f64 / self.measured_used_ns as f64 }
    }

    /// Share of the program's CPU time that was not charged because it was colder than on the original machine.
    pub fn cold_fraction(&self) -> f64 {
        if self.cold_ns == 0 { 0.0 } else { self.cold_ns as f64 / (self.cold_ns + self.charged_ns) as f64 }
    }

    /// Share of the program's CPU time that was not charged because the host's cores were slow.
    pub fn slow_fraction(&self) -> f64 {
        if self.slow_ns == 0 {
            0.0
        } else {
            self.slow_ns as f64 / (self.slow_ns + self.cold_ns + self.charged_ns) as f64
        }
    }

    /// Share of the kernel's work for the node's packets that was not charged.
    pub fn received_cut_fraction(&self) -> f64 {
        self.received_cut_ns as f64 / (self.received_ns + self.received_cut_ns).max(1) as f64
    }

    /// By what share the node's latencies may be wrong because what was taken off was estimated: half of that, times how much
    /// longer a queue gets for each part that its work does, `u / (1 - u)` at a load of `u`.
    pub fn doubt(&self) -> f64 {
        let all_ns = self.used_ns + self.received_ns + self.received_cut_ns;
        let taken_off = (self.meter_cost_ns + self.cold_ns + self.received_cut_ns) as f64 / all_ns.max(1) as f64;
        let full = self.fullness.clamp(0.0, FULLEST);
        ESTIMATE_DOUBT * taken_off * full / (1.0 - full)
    }

    /// The meter's own CPU time, as a share of what it meters.
    pub fn meter_fraction(&self) -> f64 {
        let metered_ns = self.used_ns.saturating_sub(self.meter_cost_ns);
        if self.meter_cost_ns == 0 { 0.0 } else { self.meter_cost_ns as f64 / metered_ns.max(1) as f64 }
    }

    /// What starts the programs (shells, short helpers, each exec) is nobody's measurement: escapes count in windows that lie
    /// in the measured phase as a whole. `last` is the window before.
    pub(crate) fn add(&mut self, window: &Conservation, v_measured: (VirtNs, VirtNs), last: &mut Window) {
        // Both are far below 2^63: a window is milliseconds.
        let due_ns = window.due_ns();
        let off_ns = window.charged_ns as i64 - due_ns as i64;
        if last.v_ns >= v_measured.0 && window.v_ns <= v_measured.1 {
            self.escaped_ns += window.escaped_ns;
            self.measured_used_ns += window.used_ns;
        }
        last.v_ns = window.v_ns;
        if window.used_ns < JUDGED_NS {
            (last.early_off_ns, last.early_due_ns) = (last.early_off_ns + off_ns, last.early_due_ns + due_ns);
        } else {
            let (off_ns, due_ns) = (last.early_off_ns + off_ns, last.early_due_ns + due_ns);
            let mut new = Window { off_ns, due_ns, v_ns: window.v_ns, ..Window::default() };
            if last.off_ns.signum() * new.off_ns.signum() < 0 {
                let back_ns = last.off_ns.abs().min(new.off_ns.abs()) * new.off_ns.signum();
                last.off_ns += back_ns;
                new.off_ns -= back_ns;
                if let Some(error) = self.errors.last_mut() {
                    *error = last.error();
                }
            }
            self.errors.push(new.error());
            *last = new;
        }
        self.charged_ns += window.charged_ns;
        self.used_ns += window.used_ns;
        self.meter_cost_ns += window.meter_cost_ns;
        self.cold_ns += window.cold_ns;
        self.slow_ns += window.slow_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors of windows of 20 ms in which so much too much was charged, in parts of 10 µs.
    fn errors(off: &[i64]) -> Vec<i64> {
        let (mut total, mut last) = (ConservationTotal::default(), Window::default());
        for off in off {
            let charged_ns = 20_000_000u64.saturating_add_signed(off * 10_000);
            let window = Conservation { charged_ns, used_ns: 20_000_000, ..Conservation::default() };
            total.add(&window, (VirtNs(0), VirtNs(0)), &mut last);
        }
        total.errors.iter().map(|e| (e * 2_000.0).round() as i64).collect()
    }

    #[test]
    fn what_the_next_window_gives_back_was_on_its_way() {
        assert_eq!(errors(&[0, 40, -40, 0]), [0, 0, 0, 0]);
        assert_eq!(errors(&[-40, 30, 10]), [10, 0, 10]);
        assert_eq!(errors(&[50, -20, -20, 7]), [30, 0, 13, 0]);
        assert_eq!(errors(&[40, 0, -40]), [40, 0, 40], "not two windows later");
        assert_eq!(errors(&[40, 40, 40]), [40, 40, 40]);
        assert_eq!(errors(&[-40, -40, 40]), [40, 0, 0]);
    }

    /// Escapes that count of windows that end at 3, 5, 7, 9 and 11 s with so many ms each, measuring from 4 s to 10 s.
    fn escapes(ms: [u64; 5]) -> (u64, u64) {
        let (mut total, mut last) = (ConservationTotal::default(), Window::default());
        for (escaped, v_s) in ms.into_iter().zip([3, 5, 7, 9, 11]) {
            let (v_ns, used_ns) = (VirtNs(v_s * 1_000_000_000), 20_000_000);
            let window = Conservation { escaped_ns: escaped * 1_000_000, used_ns, v_ns, ..Conservation::default() };
            total.add(&window, (VirtNs(4_000_000_000), VirtNs(10_000_000_000)), &mut last);
        }
        (total.escaped_ns / 1_000_000, total.measured_used_ns / 1_000_000)
    }

    #[test]
    fn escapes_count_in_windows_of_the_measured_phase() {
        assert_eq!(escapes([7, 5, 1, 2, 9]), (3, 40), "one that began before it tells of an exec before it");
    }

    #[test]
    fn a_window_that_was_closed_early_is_judged_with_the_next() {
        let errors = |windows: &[(i64, u64)]| {
            let (mut total, mut last) = (ConservationTotal::default(), Window::default());
            for (off_us, used_ms) in windows {
                let used_ns = used_ms * 1_000_000;
                let charged_ns = used_ns.saturating_add_signed(off_us * 1_000);
                total.add(
                    &Conservation { charged_ns, used_ns, ..Conservation::default() },
                    (VirtNs(0), VirtNs(0)),
                    &mut last,
                );
            }
            total.errors.iter().map(|e| (e * 10_000.0).round() as i64).collect::<Vec<_>>()
        };
        assert_eq!(errors(&[(100, 20), (100, 2), (120, 20)]), [50, 100]);
        assert_eq!(errors(&[(100, 20), (-60, 2), (0, 20)]), [20, 0], "it gives back what the one before it took");
        assert_eq!(errors(&[(100, 20), (100, 2), (-100, 20)]), [50, 0]);
        assert_eq!(errors(&[(250, 20), (0, 1), (-250, 20)]), [0, 0], "what the next gives back it still does");
        assert_eq!(errors(&[(100, 2)]), [0; 0], "nothing is known of what one look may be wrong by");
        assert_eq!(errors(&[(0, 0), (200, 20)]), [100]);
    }
}
