//! Timers behind descriptors while the lab stands still, or gets another rate: the kernel's would run on.
//!
//! They are had from outside, since whoever shares a descriptor shares the timer: no process has to do anything.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use diecast_core_abi::NodePage;
use diecast_core_clock::NodeClock;
use diecast_core_vtime::{NS_PER_S, RealNs};
use diecast_host_sys::time;
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_gettime, timerfd_settime};

use crate::descriptors;
use crate::frame::NodeFrame;
use crate::stretch::Stretch;

/// A timer that is due in the moment in which it is looked at has been restarted by the kernel this much later, unless the
/// host keeps its core.
const DUE_LOOKS: usize = 20;
const DUE_PAUSE: Duration = Duration::from_micros(50);

/// Which timers to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    All,
    /// Those that are set to an instant of a wall clock.
    AtWallTime,
}

/// Timers of one node that are held.
#[derive(Debug, Default)]
pub struct TimerFds(Vec<Held>);

#[derive(Debug)]
struct Held {
    timer: OwnedFd,
    /// By the node's MONOTONIC. Zero: it has fired for good.
    due_mono_ns: u64,
    /// Real, at the lab's rate and the node's rates before.
    every_ns: u64,
    rates: NodeClock,
    /// Expirations that nobody has read yet.
    ticks: u64,
    wall: Option<Wall>,
}

/// What a timer that is set to an instant of a wall clock has besides.
#[derive(Clone, Copy, Debug)]
struct Wall {
    clock: i32,
    flags: TimerfdTimerFlags,
    /// How far the node's wall clock was ahead of its MONOTONIC when it was set, ns.
    ahead_ns: i64,
}

/// What a timer's fdinfo says.
struct Info {
    /// Unread expirations.
    ticks: u64,
    clock: i32,
    flags: TimerfdTimerFlags,
}

impl Info {
    fn of(timer: &OwnedFd) -> io::Result<Info> {
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", timer.as_raw_fd()))?;
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let ticks = value("ticks:").and_then(|v| v.parse().ok());
        let ticks = ticks.ok_or_else(|| io::Error::other("fdinfo of a timer has no ticks"))?;
        let clock = value("clockid:").and_then(|v| v.parse().ok()).unwrap_or(libc::CLOCK_MONOTONIC);
        let flags = value("settime flags:").and_then(|v| u32::from_str_radix(v, 8).ok()).unwrap_or(0);
        Ok(Info { ticks, clock, flags: TimerfdTimerFlags::from_bits_truncate(flags) })
    }

    /// What it has besides where steps of a node's clock move it.
    fn wall(&self, ahead_ns: i64) -> Option<Wall> {
        let is_wall = matches!(self.clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_ALARM);
        let moves = is_wall && self.flags.contains(TimerfdTimerFlags::ABSTIME);
        moves.then_some(Wall { clock: self.clock, flags: self.flags, ahead_ns })
    }
}

fn ns(t: Timespec) -> u64 {
    (t.tv_sec as u64).saturating_mul(NS_PER_S).saturating_add(t.tv_nsec as u64)
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / NS_PER_S) as i64, tv_nsec: (ns % NS_PER_S) as _ }
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
/// keeps the core again and again. One of a wall clock is set to an instant again, so that it is known as such; others by
/// what is left.
fn start(timer: &OwnedFd, due_ns: Option<u64>, every_ns: u64, wall: Option<Wall>) -> u64 {
    let mut first_ns = 0;
    for _ in 0..DUE_LOOKS {
        let from_ns = time::monotonic_ns();
        let left_ns = due_ns.map_or(0, |due| due.saturating_sub(from_ns).max(1));
        let (flags, value_ns) = match wall {
            // Of two readings, so that it is not early by what is between them.
            Some(wall) if left_ns > 0 => (wall.flags, time::clock_ns(wall.clock).saturating_add(left_ns)),
            _ => (TimerfdTimerFlags::empty(), left_ns),
        };
        let new = Itimerspec { it_interval: timespec(every_ns), it_value: timespec(value_ns) };
        let _ = timerfd_settime(timer, flags, &new);
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

/// A real period from now on, of one by other rates of its node's clock. Rounded up: no period gets shorter.
fn re_rated(every_ns: u64, was: &NodeClock, page: &NodePage) -> u64 {
    let is = page.clock.latest();
    if every_ns == 0 || (was.drift, was.frequency) == (is.drift, is.frequency) {
        return every_ns;
    }
    let segment = page.running();
    let mono_ns = was.span_out(segment.rate.mul_up(every_ns)).saturating_add(1);
    segment.inverse.mul_up(is.span_in(mono_ns)).max(1)
}

impl TimerFds {
    /// Stops timers of this node's processes, as far as it can. Those that are held already are left alone: their timers are
    /// not set. Where a process runs, what it sets in this moment may be set otherwise, and one that ends is an error.
    pub fn hold(&mut self, node: &NodeFrame, which: Which) -> io::Result<()> {
        let ahead_ns = node.followed_ahead_ns.load(Relaxed);
        let mut all = Ok(());
        for pid in (node.members)()? {
            let held = descriptors::of_process(
                pid,
                |link| link == "anon_inode:[timerfd]",
                |_, timer| self.hold_one(timer, node.page(), ahead_ns, which),
            );
            all = all.and(held);
        }
        all
    }

    fn hold_one(&mut self, timer: OwnedFd, page: &NodePage, ahead_ns: i64, which: Which) -> io::Result<()> {
        let ticks = |timer| Info::of(timer).map(|info| info.ticks);
        let wall = Info::of(&timer)?.wall(ahead_ns);
        if which == Which::AtWallTime && wall.is_none() {
            return Ok(());
        }
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
        let due_mono_ns = match (every_ns, more) {
            (0, 1) => 0,
            _ => page.mono_at(RealNs(seen.due_ns.saturating_add(more.saturating_mul(every_ns)))),
        };
        let ticks = unread.saturating_add(more);
        let held = Held { timer, due_mono_ns, every_ns, rates: page.clock.latest(), ticks, wall };
        // Whether the kernel takes them back is better known now.
        let kept = if held.ticks > 0 { time::set_ticks(&held.timer, held.ticks) } else { Ok(()) };
        self.0.push(held);
        kept
    }

    /// Sets them again by the map and the clock of their node as they are now, the wall clock so far ahead of MONOTONIC.
    pub fn set(self, page: &NodePage, ahead_ns: i64, stretch: Stretch) {
        for held in self.0 {
            let every_ns = stretch.of(re_rated(held.every_ns, &held.rates, page));
            let jump_ns = held.wall.map_or(0, |w| ahead_ns.wrapping_sub(w.ahead_ns));
            let due_mono_ns = held.due_mono_ns.saturating_add_signed(jump_ns.saturating_neg());
            let due_ns = if held.due_mono_ns == 0 { None } else { Some(page.r_of_mono(due_mono_ns).0) };
            // Nothing that a frozen process could have done makes these fail.
            let first_ns = start(&held.timer, due_ns, every_ns, held.wall);
            if held.ticks > 0 {
                let _ = put_ticks(&held.timer, held.ticks, first_ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use diecast_core_vtime::Tdf;
    use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

    use super::*;
    use crate::frame::{CpuConfig, LabFrame};

    /// One without processes, by the host's clocks.
    fn node() -> Arc<NodeFrame> {
        let lab = LabFrame::start(Tdf::ONE);
        NodeFrame::create(&lab, "n", CpuConfig::PLAIN, Box::new(|| Ok(Vec::new())), None).unwrap()
    }

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
        let node = node();
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
            held.hold_one(timer.try_clone().unwrap(), node.page(), 0, Which::All).unwrap();
            assert_eq!(held.0.len(), 1, "round {round}");
            held.set(node.page(), 0, Stretch::NONE);
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

    /// It is set again to an instant of its clock, which is known of it from then on too.
    #[test]
    fn a_timer_at_wall_time_stays_one_and_moves_with_its_clock() {
        let node = node();
        let ahead = node.page().clock.real_ahead_ns.load(Relaxed);
        let timer = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::NONBLOCK).unwrap();
        let in_ns = |s: u64| time::clock_ns(libc::CLOCK_REALTIME) + s * NS_PER_S;
        let at = Itimerspec { it_interval: timespec(0), it_value: timespec(in_ns(100)) };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &at).unwrap();
        for (jump_s, left_s) in [(0, 100), (40, 60), (-50, 110), (200, 0)] {
            let mut held = TimerFds::default();
            let was = node.page().clock.real_ahead_ns.load(Relaxed);
            held.hold_one(timer.try_clone().unwrap(), node.page(), was, Which::AtWallTime).unwrap();
            assert_eq!(held.0.len(), 1);
            node.page().clock.step(was + jump_s * NS_PER_S as i64);
            held.set(node.page(), was + jump_s * NS_PER_S as i64, Stretch::NONE);
            let left_ns = ns(timerfd_gettime(&timer).unwrap().it_value);
            let slow_ns = 5 * NS_PER_S;
            assert!((left_s * NS_PER_S).saturating_sub(slow_ns) <= left_ns, "{jump_s} s: {left_ns} ns left");
            assert!(left_ns <= left_s * NS_PER_S, "{jump_s} s: {left_ns} ns left");
            assert!(Info::of(&timer).unwrap().wall(0).is_some() || left_s == 0, "{jump_s} s: it is known as such");
        }
        assert!(node.page().clock.real_ahead_ns.load(Relaxed) > ahead);
    }

    /// Its period is no reason to hold it.
    #[test]
    fn a_stopped_timer_is_left_alone() {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).unwrap();
        let stopped = Itimerspec { it_interval: timespec(1_000_000), it_value: timespec(0) };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &stopped).unwrap();
        let mut held = TimerFds::default();
        held.hold_one(timer, node().page(), 0, Which::All).unwrap();
        assert!(held.0.is_empty());
    }
}
