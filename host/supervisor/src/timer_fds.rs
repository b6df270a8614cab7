//! Timers behind descriptors while the lab stands still, or gets another rate: the kernel's would run on.
//!
//! They are had from outside, since whoever shares a descriptor shares the timer: no process has to do anything.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use diecast_core_vtime::{NS_PER_S, RealNs, VirtNs};
use diecast_host_sys::time;
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_gettime, timerfd_settime};

use crate::descriptors;
use crate::frame::LabFrame;
use crate::stretch::Stretch;

/// Timers that are held.
#[derive(Debug, Default)]
pub struct TimerFds(Vec<Held>);

#[derive(Debug)]
struct Held {
    timer: OwnedFd,
    /// Zero: it has fired for good.
    due: VirtNs,
    /// Real, at the rate before.
    every_ns: u64,
    /// Expirations that nobody has read yet.
    ticks: u64,
}

fn ns(t: Timespec) -> u64 {
    (t.tv_sec as u64).saturating_mul(NS_PER_S).saturating_add(t.tv_nsec as u64)
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / NS_PER_S) as i64, tv_nsec: (ns % NS_PER_S) as _ }
}

/// Unread expirations, by fdinfo.
fn ticks(timer: &OwnedFd) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", timer.as_raw_fd()))?;
    let value = text.lines().find_map(|line| line.strip_prefix("ticks: ")?.trim().parse().ok());
    value.ok_or_else(|| io::Error::other("fdinfo of a timer has no ticks"))
}

impl TimerFds {
    /// Stops the timers of these processes, which must stand still. Those that are held already are left alone: their
    /// timers are not set.
    pub fn hold(pids: &[i32], lab: &LabFrame) -> io::Result<TimerFds> {
        let mut all = TimerFds::default();
        match pids.iter().try_for_each(|pid| all.hold_all_of(*pid, lab)) {
            Ok(()) => Ok(all),
            Err(e) => {
                all.set(lab, Stretch::NONE);
                Err(e)
            }
        }
    }

    fn hold_all_of(&mut self, pid: i32, lab: &LabFrame) -> io::Result<()> {
        descriptors::of_process(pid, |link| link == "anon_inode:[timerfd]", |_, timer| self.hold_one(timer, lab))
    }

    fn hold_one(&mut self, timer: OwnedFd, lab: &LabFrame) -> io::Result<()> {
        // Starts a periodic timer again that has fired, its expirations counted.
        let before = timerfd_gettime(&timer)?;
        let (left_ns, every_ns) = (ns(before.it_value), ns(before.it_interval));
        if left_ns == 0 && every_ns == 0 {
            return Ok(());
        }
        let unread = ticks(&timer)?;
        let never = Itimerspec { it_interval: timespec(0), it_value: timespec(0) };
        let old = timerfd_settime(&timer, TimerfdTimerFlags::empty(), &never)?;
        let now = RealNs(time::monotonic_ns());
        let last_ns = ns(old.it_value);
        // More is left than before, or nothing: it fired in between.
        let fired = last_ns > left_ns || last_ns == 0;
        let due = if last_ns == 0 { VirtNs(0) } else { lab.v_of(RealNs(now.0.saturating_add(last_ns))) };
        let held = Held { timer, due, every_ns, ticks: unread + u64::from(fired) };
        // Whether the kernel takes them back is better known now.
        let kept = if held.ticks > 0 { time::set_ticks(&held.timer, held.ticks) } else { Ok(()) };
        self.0.push(held);
        kept
    }

    /// Sets them again by the lab's map as it is now.
    pub fn set(self, lab: &LabFrame, stretch: Stretch) {
        for held in self.0 {
            let left = lab.r_of(held.due).0.saturating_sub(time::monotonic_ns()).max(1);
            let value = timespec(if held.due.0 == 0 { 0 } else { left });
            let new = Itimerspec { it_interval: timespec(stretch.of(held.every_ns)), it_value: value };
            // Nothing that a frozen process could have done makes this fail.
            let _ = timerfd_settime(&held.timer, TimerfdTimerFlags::empty(), &new);
            if held.ticks > 0 {
                let _ = time::set_ticks(&held.timer, held.ticks);
            }
        }
    }
}
