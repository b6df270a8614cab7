//! Timers behind descriptors while the lab stands still, or gets another rate: the kernel's would run on.
//!
//! They are had from outside, since whoever shares a descriptor shares the timer: no process has to do anything.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use diecast_core_vtime::{NS_PER_S, RealNs, VirtNs};
use diecast_host_sys::time;
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_gettime, timerfd_settime};

use crate::descriptors;
use crate::frame::LabFrame;
use crate::stretch::Stretch;

/// A timer that is due in the moment in which it is looked at has been restarted by the kernel this much later, unless the
/// host keeps its core.
const DUE_LOOKS: usize = 20;
const DUE_PAUSE: Duration = Duration::from_micros(50);

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

/// The timer's setting. Reading it starts a periodic timer again that has fired, its expirations counted. Nothing left of
/// one with a period: it is due in this very moment, or stopped with its period kept.
fn look(timer: &OwnedFd) -> io::Result<Itimerspec> {
    let mut seen = timerfd_gettime(timer)?;
    for _ in 0..DUE_LOOKS {
        if ns(seen.it_value) > 0 || ns(seen.it_interval) == 0 {
            break;
        }
        std::thread::sleep(DUE_PAUSE);
        seen = timerfd_gettime(timer)?;
    }
    Ok(seen)
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
        // What is left and what nobody has read, with no expiration between the two.
        let (mut before, mut unread) = (look(&timer)?, ticks(&timer)?);
        let every_ns = ns(before.it_interval);
        let left_ns = loop {
            let again = look(&timer)?;
            let (was_ns, left_ns) = (ns(before.it_value), ns(again.it_value));
            if left_ns == 0 {
                // It has fired for good, or is stopped.
                return Ok(());
            }
            if left_ns <= was_ns {
                break left_ns;
            }
            (before, unread) = (again, ticks(&timer)?);
        };
        let expiry_ns = time::monotonic_ns().saturating_add(left_ns);
        let never = Itimerspec { it_interval: timespec(0), it_value: timespec(0) };
        let old = timerfd_settime(&timer, TimerfdTimerFlags::empty(), &never)?;
        let now = RealNs(time::monotonic_ns());
        let last_ns = ns(old.it_value);
        // More is left than before, or nothing: it fired in between, or was just about to.
        let fired = last_ns > left_ns || last_ns == 0;
        let due = match (last_ns, every_ns) {
            (0, 0) => VirtNs(0),
            (0, _) => lab.v_of(RealNs(expiry_ns.saturating_add(every_ns))),
            _ => lab.v_of(RealNs(now.0.saturating_add(last_ns))),
        };
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

#[cfg(test)]
mod tests {
    use diecast_core_vtime::Tdf;
    use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

    use super::*;

    /// It is held in the very moment in which it is due once in some hundred times.
    #[test]
    fn a_periodic_timer_goes_on_whenever_it_is_held() {
        let lab = LabFrame::start(Tdf::ONE);
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).unwrap();
        let every = timespec(200_000);
        let armed = Itimerspec { it_interval: every, it_value: every };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &armed).unwrap();
        let began = time::monotonic_ns();
        let mut ticks = 0;
        let mut word = [0; 8];
        for round in 0..3_000 {
            let mut held = TimerFds::default();
            held.hold_one(timer.try_clone().unwrap(), &lab).unwrap();
            assert_eq!(held.0.len(), 1, "round {round}");
            held.set(&lab, Stretch::NONE);
            let now = timerfd_gettime(&timer).unwrap();
            assert!(ns(now.it_value) > 0, "round {round}: it is stopped");
            if rustix::io::read(&timer, &mut word) == Ok(8) {
                ticks += u64::from_ne_bytes(word);
            }
            std::thread::sleep(Duration::from_nanos(round % 97 * 1_000));
        }
        let due = (time::monotonic_ns() - began) / 200_000;
        println!("{ticks} ticks of {due}");
        assert!((due - due / 50..=due + due / 50).contains(&ticks), "{ticks} ticks of {due}");
    }

    /// Its period is no reason to hold it.
    #[test]
    fn a_stopped_timer_is_left_alone() {
        let lab = LabFrame::start(Tdf::ONE);
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).unwrap();
        let stopped = Itimerspec { it_interval: timespec(1_000_000), it_value: timespec(0) };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &stopped).unwrap();
        let mut held = TimerFds::default();
        held.hold_one(timer, &lab).unwrap();
        assert!(held.0.is_empty());
    }
}
