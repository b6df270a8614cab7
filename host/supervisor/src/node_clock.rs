//! A node's own clock, as seen and changed from outside of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use diecast_core_clock::{DRIFT_MAX_PPB, STA_UNSYNC, parts_of_ppb, ppb_of_parts, real_fits};

use crate::frame::{LabFrame, NodeFrame};

/// A change of a node's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockChange {
    /// CLOCK_REALTIME is so far ahead of the lab's from now on, ns.
    Offset(i64),
    /// CLOCK_REALTIME jumps by this, ns.
    Step(i64),
    /// The oscillator is so much too fast from now on, parts per billion.
    Drift(i64),
}

/// How a node's clock differs from the lab's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockState {
    /// CLOCK_REALTIME ahead of the lab's, ns.
    pub offset_ns: i64,
    /// The oscillator too fast, parts per billion.
    pub drift_ppb: i64,
    /// What the node's own discipline adds to that, parts per billion: frequency and tick.
    pub frequency_ppb: i64,
    /// What its slews still have to gain, ns.
    pub slew_ns: i64,
    /// Whether the node's kernel says that somebody keeps the clock right.
    pub synchronised: bool,
}

/// Why a clock can't be changed so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClockError {
    #[error("a drift of {0} ppb, expected at most {DRIFT_MAX_PPB} either way")]
    Drift(i64),
    #[error("the clock would show a time before 1970 at the machine's start, or one too far off")]
    Time,
}

impl NodeFrame {
    /// How the node's clock differs now.
    pub fn clock(&self, lab: &LabFrame) -> ClockState {
        let c = &self.page().clock;
        let v = lab.now().0;
        let rates = c.at(v);
        let ahead = (rates.mono_of(v) as i64).wrapping_sub(v as i64);
        let real = c.real_ahead_ns.load(Ordering::Relaxed);
        let latest = c.latest();
        ClockState {
            offset_ns: real.wrapping_add(ahead).wrapping_sub(lab.realtime_offset_ns()),
            drift_ppb: ppb_of_parts(latest.drift),
            frequency_ppb: ppb_of_parts(latest.frequency),
            slew_ns: latest.adjust_left(v).wrapping_add(latest.phase_left(v)),
            synchronised: c.discipline().status & STA_UNSYNC == 0,
        }
    }

    /// Changes the node's clock. What the node's kernel knows about it stays: a fault of the machine is not announced.
    pub fn change_clock(self: &Arc<NodeFrame>, lab: &LabFrame, change: ClockChange) -> Result<(), ClockError> {
        let c = &self.page().clock;
        let v = lab.now().0;
        match change {
            ClockChange::Drift(ppb) if ppb.abs() > DRIFT_MAX_PPB => return Err(ClockError::Drift(ppb)),
            ClockChange::Drift(ppb) => {
                self.change_rates(|| c.change(|| lab.now().0, |rates| rates.drift = parts_of_ppb(ppb)));
            }
            ClockChange::Offset(ns) => {
                let real = i128::from(v) + i128::from(lab.realtime_offset_ns()) + i128::from(ns);
                let mono = c.at(v).mono_of(v);
                self.step(real - i128::from(mono), mono)?;
            }
            ClockChange::Step(ns) => {
                let ahead = c.real_ahead_ns.load(Ordering::Relaxed);
                self.step(i128::from(ahead) + i128::from(ns), c.at(v).mono_of(v))?;
            }
        }
        Ok(())
    }

    fn step(self: &Arc<NodeFrame>, ahead_ns: i128, mono_ns: u64) -> Result<(), ClockError> {
        if !real_fits(ahead_ns, mono_ns) {
            return Err(ClockError::Time);
        }
        self.page().clock.step(ahead_ns as i64);
        // What can't be done stays as before the step.
        if let Ok(Some(rest)) = self.follow_steps() {
            let _ = rest.join();
        }
        Ok(())
    }
}
