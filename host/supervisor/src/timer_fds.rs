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

/// What a timer was set to.
struct Seen {
    /// Zero: it has fired for good, or is stopped.
    left_ns: u64,
    every_ns: u64,
    /// By the monotonic clock, late by what the reading took.
    due_ns: u64,
}

/// Reading a timer starts a periodic one again that has fired, its expirations counted. Nothing left of one with a period:
/// it is due in this very moment, or stopped with its period kept.
fn look(timer: &OwnedFd) -> io::Result<Seen> {
    let mut looks = 0;
    loop {
        let from_ns = time::monotonic_ns();
        let seen = timerfd_gettime(timer)?;
        let to_ns = time::monotonic_ns();
        let (left_ns, every_ns) = (ns(seen.it_value), ns(seen.it_interval));
        let due_now = left_ns == 0 && every_ns > 0;
        let unsure = left_ns > 0 && every_ns > 0 && to_ns - from_ns > every_ns / 4;
        looks += 1;
        if looks > DUE_LOOKS || !due_now && !unsure {
            return Ok(Seen { left_ns, every_ns, due_ns: to_ns.saturating_add(left_ns) });
        }
        if due_now {
            std::thread::sleep(DUE_PAUSE);
        }
    }
}

/// How often a timer has fired that was due at `first_ns` and is now due at `next_ns`. To the nearest: what is between the
/// two is whole periods and what the readings took.
fn fired(first_ns: u64, next_ns: u64, every_ns: u64) -> u64 {
    (next_ns.saturating_sub(first_ns).saturating_add(every_ns / 2)).checked_div(every_ns).unwrap_or(0)
}

/// Sets a timer, and says when it is due by the monotonic clock: early by at most a quarter of its period, unless the host
/// keeps the core again and again. A timer's own clock is not known here, so it is set by what is left.
fn start(timer: &OwnedFd, due_ns: Option<u64>, every_ns: u64) -> u64 {
    let mut first_ns = 0;
    for _ in 0..DUE_LOOKS {
        let from_ns = time::monotonic_ns();
        let left_ns = due_ns.map_or(0, |due| due.saturating_sub(from_ns).max(1));
        let new = Itimerspec { it_interval: timespec(every_ns), it_value: timespec(left_ns) };
        let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &new);
        first_ns = from_ns.saturating_add(left_ns);
        if time::monotonic_ns() - from_ns <= every_ns / 4 || every_ns == 0 {
            break;
        }
    }
    first_ns
}

/// Gives a periodic timer back the expirations that nobody has read. The kernel forgets those of its own that come before
/// it is told: they are known by what is due next.
fn put_ticks(timer: &OwnedFd, unread: u64, first_ns: u64) -> io::Result<()> {
    let mut own = None;
    for _ in 0..DUE_LOOKS {
        let seen = look(timer)?;
        let now = fired(first_ns, seen.due_ns, seen.every_ns);
        if own == Some(now) {
            break;
        }
        time::set_ticks(timer, unread.saturating_add(now))?;
        own = Some(now);
    }
    Ok(())
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
        // What is due and what nobody has read, with no expiration between the two.
        let (mut before, mut unread) = (look(&timer)?, ticks(&timer)?);
        let seen = loop {
            let again = look(&timer)?;
            if again.left_ns == 0 {
                // It has fired for good, or is stopped.
                return Ok(());
            }
            if fired(before.due_ns, again.due_ns, again.every_ns) == 0 {
                break again;
            }
            (before, unread) = (again, ticks(&timer)?);
        };
        let every_ns = seen.every_ns;
        let now_ns = time::monotonic_ns();
        let never = Itimerspec { it_interval: timespec(0), it_value: timespec(0) };
        let old = timerfd_settime(&timer, TimerfdTimerFlags::empty(), &never)?;
        // It may have fired in between. A periodic one keeps to its instants, whatever the two calls took.
        let more = match now_ns.checked_sub(seen.due_ns) {
            Some(past_ns) if every_ns > 0 => 1 + past_ns / every_ns,
            _ => u64::from(every_ns == 0 && ns(old.it_value) == 0),
        };
        let due = match (every_ns, more) {
            (0, 1) => VirtNs(0),
            _ => lab.v_of(RealNs(seen.due_ns.saturating_add(more.saturating_mul(every_ns)))),
        };
        let held = Held { timer, due, every_ns, ticks: unread.saturating_add(more) };
        // Whether the kernel takes them back is better known now.
        let kept = if held.ticks > 0 { time::set_ticks(&held.timer, held.ticks) } else { Ok(()) };
        self.0.push(held);
        kept
    }

    /// Sets them again by the lab's map as it is now.
    pub fn set(self, lab: &LabFrame, stretch: Stretch) {
        for held in self.0 {
            let every_ns = stretch.of(held.every_ns);
            let due_ns = if held.due.0 == 0 { None } else { Some(lab.r_of(held.due).0) };
            // Nothing that a frozen process could have done makes these fail.
            let first_ns = start(&held.timer, due_ns, every_ns);
            if held.ticks > 0 {
                let _ = put_ticks(&held.timer, held.ticks, first_ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use diecast_core_vtime::Tdf;
    use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

    use super::*;

    /// Every, real.
    const EVERY_NS: u64 = 200_000;

    /// Expirations read so far, and the two instants between which the next one after them is due.
    fn next_due(timer: &OwnedFd, ticks: &mut u64, round: u64) -> (u64, u64) {
        let mut word = [0; 8];
        loop {
            let from = time::monotonic_ns();
            let left = look(timer).unwrap().left_ns;
            let to = time::monotonic_ns();
            assert!(left > 0, "round {round}: it is stopped");
            if rustix::io::read(timer, &mut word) != Ok(8) {
                return (from + left, to + left);
            }
            *ticks += u64::from_ne_bytes(word);
        }
    }

    /// It is held in the very moment in which it is due once in some hundred times. No hold makes it early, or later than
    /// the hold takes, and no expiration is lost or told twice.
    #[test]
    fn a_periodic_timer_goes_on_whenever_it_is_held() {
        let lab = LabFrame::start(Tdf::ONE);
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).unwrap();
        let every = timespec(EVERY_NS);
        let armed = Itimerspec { it_interval: every, it_value: every };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &armed).unwrap();
        let mut ticks = 0;
        let mut was = next_due(&timer, &mut ticks, 0);
        for round in 0..3_000 {
            let before = ticks;
            let began = time::monotonic_ns();
            let mut held = TimerFds::default();
            held.hold_one(timer.try_clone().unwrap(), &lab).unwrap();
            assert_eq!(held.0.len(), 1, "round {round}");
            held.set(&lab, Stretch::NONE);
            let took = time::monotonic_ns() - began;
            let is = next_due(&timer, &mut ticks, round);
            let passed = (ticks - before) * EVERY_NS;
            assert!(is.1 >= was.0 + passed, "round {round}: early by {} ns", was.0 + passed - is.1);
            let late = is.0.saturating_sub(was.1 + passed);
            assert!(late <= took, "round {round}: {late} ns late by a hold of {took} ns");
            was = is;
            std::thread::sleep(Duration::from_nanos(round % 97 * 1_000));
        }
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
