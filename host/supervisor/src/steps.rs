//! Changes of a node's clock, which the kernel knows nothing of. After a step waits for an instant of the wall clock, and
//! timers that are set to one, come when the stepped clock shows it, by whomever it was stepped. After another drift all
//! waits and timers end by the node's clock as it runs now.
//!
//! A thread that waits translates anew, as at a change of the rate. Timers behind descriptors are set again from outside.
//! A process that has set POSIX timers so is stopped, for its blob to do it.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use diecast_core_abi::{STEPPED_MAGIC, WALL_TIMERS_ADDR};
use diecast_core_vtime::Rate;
use diecast_host_sys::seccomp::Notification;
use diecast_host_sys::{GuestPtr, Tid, memory};

use crate::frame::NodeFrame;
use crate::stopped::{StoppedProcesses, Timers, timers_of};
use crate::stretch::Stretch;
use crate::timer_fds::{TimerFds, Which};

const SYS_EXECVE: i32 = 59;
/// A thread that runs may be about to wait by what it has translated before, some instructions away. Those that are on
/// their way then are looked for again after these times.
const LOOK_AGAIN: [Duration; 3] = [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100)];

/// Whether a notification says that the node's clock was stepped.
pub fn tells(n: &Notification) -> bool {
    n.nr == SYS_EXECVE && n.args[0] == STEPPED_MAGIC
}

impl NodeFrame {
    /// Has what waits for the node's wall clock follow its steps. Waits and timers behind descriptors have when this
    /// returns, unless the node is just being paused; the thread does the rest, and that of the steps that are made
    /// meanwhile. None where there is nothing to do, or one is at it.
    pub fn follow_steps(self: &Arc<NodeFrame>) -> io::Result<Option<JoinHandle<()>>> {
        if self.ahead_ns() == self.followed_ahead_ns.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.page().renew();
        let ran = self.kick_where(|_, _, _| false)?;
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
                for pause in LOOK_AGAIN.iter().take_while(|_| ran) {
                    std::thread::sleep(*pause);
                    let _ = node.kick_where(|_, _, _| false);
                }
                if node.steps_told.compare_exchange(told, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("steps".into()).spawn(work).map(Some)
    }

    pub(crate) fn ahead_ns(&self) -> i64 {
        self.page().clock.real_ahead_ns.load(Ordering::Relaxed)
    }

    /// Timers behind descriptors, unless they have followed. Where the node stands still they are moved when it goes on.
    fn move_timer_fds(&self) -> io::Result<()> {
        let ahead_ns = self.ahead_ns();
        if self.page().segment().rate == Rate::ZERO || ahead_ns == self.followed_ahead_ns.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut timers = TimerFds::default();
        let held = timers.hold(self, Which::AtWallTime);
        timers.set(self.page(), ahead_ns, Stretch::NONE);
        self.followed_ahead_ns.store(ahead_ns, Ordering::Relaxed);
        held
    }

    /// Makes a change of the clock's rates that the node's programs have no part in.
    pub(crate) fn change_rates(&self, change: impl FnOnce()) {
        {
            let _following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
            if self.page().segment().rate == Rate::ZERO {
                // What is held is held by the node's clock.
                return change();
            }
            let mut pids = (self.members)().unwrap_or_default();
            pids.retain(|pid| timers_of(*pid) != 0);
            let (mut stopped, mut fds) = (StoppedProcesses::default(), TimerFds::default());
            // What can't be held ends by the rates before, and what is not held is not set.
            let stops = stopped.stop(&pids).is_ok();
            if stops {
                let _ = stopped.timers(Timers::Hold);
            }
            let _ = fds.hold(self, Which::All);
            change();
            let ahead_ns = self.ahead_ns();
            fds.set(self.page(), ahead_ns, Stretch::NONE);
            self.followed_ahead_ns.store(ahead_ns, Ordering::Relaxed);
            if stops {
                let _ = stopped.timers(Timers::Set);
            }
            self.page().renew();
            let _ = self.kick_where(|_, _, _| false);
        }
        for pause in LOOK_AGAIN {
            std::thread::sleep(pause);
            if !matches!(self.kick_where(|_, _, _| false), Ok(true)) {
                return;
            }
        }
    }

    /// The processes' own timers, and those behind descriptors that have not followed yet.
    fn move_timers(&self) {
        let _following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        if self.page().segment().rate == Rate::ZERO {
            return;
        }
        let _ = self.move_timer_fds();
        let Ok(pids) = (self.members)() else { return };
        let pids: Vec<i32> = pids.into_iter().filter(|pid| sets_wall_timers(*pid)).collect();
        let mut stopped = StoppedProcesses::default();
        // One that another traces can't be stopped: its timers stay as they are.
        if stopped.stop(&pids).is_ok() {
            let _ = stopped.timers(Timers::Hold);
            let _ = stopped.timers(Timers::Set);
        }
        // Linux ends some waits where a thread is stopped: these are made again.
        self.page().renew();
        let _ = self.kick_where(|_, _, _| false);
    }
}

/// Whether a process has set POSIX timers to instants of a wall clock.
fn sets_wall_timers(pid: i32) -> bool {
    let mut word = [0u8; 4];
    memory::read(Tid(pid), GuestPtr(WALL_TIMERS_ADDR), &mut word).is_ok() && word != [0; 4]
}
