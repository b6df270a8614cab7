//! Changes of a node's clock, which the kernel knows nothing of. After a step waits for an instant of the wall clock, and
//! timers that are set to one, come when the stepped clock shows it, by whomever it was stepped. After another drift all
//! waits and timers end by the node's clock as it runs now.
//!
//! A thread that waits translates anew, as at a change of the rate. Timers behind descriptors are set again from outside.
//! A process that has set POSIX timers so is stopped, for its blob to do it.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use diecast_core_abi::STEPPED_MAGIC;
use diecast_core_vtime::Rate;
use diecast_host_sys::seccomp::Notification;

use crate::exec;
use crate::frame::NodeFrame;
use crate::stopped::{StoppedProcesses, Timers, sets_wall_timers, timers_of};
use crate::stretch::Stretch;
use crate::timer_fds::{TimerFds, Which};

/// A thread that runs may be about to wait by what it has translated before, some instructions away. Those that are on
/// their way then are looked for again after these times.
const LOOK_AGAIN: [Duration; 3] = [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100)];

/// Whether a notification says that the node's clock was stepped.
pub fn tells(n: &Notification) -> bool {
    exec::says(n, STEPPED_MAGIC)
}

impl NodeFrame {
    /// Has what waits for the node's wall clock follow its steps. Waits and timers behind descriptors have when this
    /// returns, unless the node is just being paused; the thread does the rest, and that of the steps that are made
    /// meanwhile. None where there is nothing to do, or one is at it.
    pub fn follow_steps(self: &Arc<NodeFrame>) -> io::Result<Option<JoinHandle<()>>> {
        if self.has_followed() {
            return Ok(None);
        }
        let ran = self.translate_anew()?;
        if let Ok(_following) = self.following.try_lock() {
            let _ = self.move_timer_fds();
        }
        if self.steps_told.fetch_add(1, Ordering::AcqRel) > 0 {
            return Ok(None);
        }
        let node = self.clone();
        let work = move || {
            loop {
                let told = node.steps_told.load(Ordering::Acquire);
                node.move_timers();
                if ran {
                    node.look_again();
                }
                if node.steps_told.compare_exchange(told, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("steps".into()).spawn(work).map(Some)
    }

    /// Makes a change of the clock's rates that the node's programs have no part in.
    pub(crate) fn change_rates(&self, change: impl FnOnce()) {
        {
            let _following = self.alone();
            if self.stands_still() {
                // What is held is held by the node's clock.
                return change();
            }
            self.around(
                |pid| timers_of(pid) != 0,
                || {
                    let mut fds = TimerFds::default();
                    // What can't be held ends by the rates before.
                    let _ = fds.hold(self, Which::All);
                    change();
                    self.set_timer_fds(fds, Stretch::NONE);
                },
            );
        }
        self.look_again();
    }

    /// Nobody else has this node's timers follow anything.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets timers again that were held, and notes that they have followed all steps until now.
    pub(crate) fn set_timer_fds(&self, timers: TimerFds, stretch: Stretch) {
        let ahead_ns = self.ahead_ns();
        timers.set(self.page(), ahead_ns, stretch);
        self.followed_ahead_ns.store(ahead_ns, Ordering::Relaxed);
    }

    fn ahead_ns(&self) -> i64 {
        self.page().clock.real_ahead_ns.load(Ordering::Relaxed)
    }

    fn has_followed(&self) -> bool {
        self.ahead_ns() == self.followed_ahead_ns.load(Ordering::Relaxed)
    }

    fn stands_still(&self) -> bool {
        self.page().segment().rate == Rate::ZERO
    }

    /// Timers behind descriptors, unless they have followed. Where the node stands still they are moved when it goes on.
    fn move_timer_fds(&self) -> io::Result<()> {
        if self.stands_still() || self.has_followed() {
            return Ok(());
        }
        let mut timers = TimerFds::default();
        let held = timers.hold(self, Which::AtWallTime);
        self.set_timer_fds(timers, Stretch::NONE);
        held
    }

    /// The processes' own timers, and those behind descriptors that have not followed yet.
    fn move_timers(&self) {
        let _following = self.alone();
        if self.stands_still() {
            return;
        }
        let _ = self.move_timer_fds();
        self.around(sets_wall_timers, || ());
    }

    /// Does this while the own timers of the processes that are `chosen` are held.
    fn around(&self, chosen: impl Fn(i32) -> bool, change: impl FnOnce()) {
        let mut pids = (self.members)().unwrap_or_default();
        pids.retain(|pid| chosen(*pid));
        let mut stopped = StoppedProcesses::default();
        // Where another process traces one they can't be stopped: their timers stay as they are.
        let stops = stopped.stop(&pids).is_ok();
        if stops {
            let _ = stopped.timers(Timers::Hold);
        }
        change();
        if stops {
            let _ = stopped.timers(Timers::Set);
        }
        // Linux ends some waits where a thread is stopped: these are made again too.
        let _ = self.translate_anew();
    }

    /// Has all waits translated anew but those of threads that run: whether there are such.
    fn translate_anew(&self) -> io::Result<bool> {
        self.page().renew();
        self.kick_waits(false)
    }

    /// Until no thread runs at a look.
    fn look_again(&self) {
        for pause in LOOK_AGAIN {
            std::thread::sleep(pause);
            if !matches!(self.kick_waits(false), Ok(true)) {
                return;
            }
        }
    }
}
