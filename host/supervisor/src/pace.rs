//! Changes of a running lab's rate: pause, resume, another TDF.
//!
//! ```text
//! timers of processes ── freeze ── timers behind descriptors ── map stands still ··· map goes on ── kick
//!                                                     ··· timers behind descriptors ── thaw ── timers of processes
//! ```
//!
//! No thread runs while the map stands still. Timers are held before it does and set again after, each by its virtual
//! instant. Each thread that is in a wait with a translated time is kicked: it finds the kick when it is thawed, and
//! translates anew.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use diecast_core_abi::{BLOB_ADDR, KICK_MAGIC, SEGMENTS_MAX};
use diecast_core_vtime::{Rate, RealNs, Tdf, VirtNs};
use diecast_host_sys::{Tid, process, time};

use crate::frame::{LabFrame, MACHINE_SLACK_NS, NodeFrame};
use crate::image;
use crate::socket_times::waits_by_socket;
use crate::stopped::{StopError, StoppedProcesses, Timers, timers_of};
use crate::stretch::Stretch;
use crate::timer_fds::{TimerFds, Which};

/// Why a lab's rate can't be changed.
#[derive(Debug, thiserror::Error)]
pub enum PaceError {
    #[error("node {node}: process {pid} has made more than 1024 timers (timer_create), which can't be held")]
    TooManyTimers { node: String, pid: i32 },
    #[error("holding timers: {0}")]
    Stop(#[from] StopError),
    #[error("processes kept setting timers while the lab was to be stopped")]
    Restless,
    #[error("stopping the nodes: {0}")]
    Freeze(String),
    #[error("listing processes and their timers: {0}")]
    Io(#[from] io::Error),
    #[error("the lab has had {SEGMENTS_MAX} rates, and can't have more")]
    TooManyRates,
}

/// A lab's nodes that stand still: what has to be set again.
#[derive(Debug)]
pub struct Standing {
    /// By node.
    timer_fds: Vec<TimerFds>,
    /// Processes whose own timers are held.
    holding: Vec<i32>,
    since: RealNs,
}

/// Tries to stop processes that start setting timers just then.
const TRIES: u32 = 5;

impl LabFrame {
    /// Whether the map can have so many changes more.
    pub fn has_room_for(&self, changes: usize) -> Result<(), PaceError> {
        if self.map().segments().len() + changes > SEGMENTS_MAX { Err(PaceError::TooManyRates) } else { Ok(()) }
    }

    /// From now on the rate is 1/TDF, or no time passes; the instant.
    fn change_pace(&self, tdf: Option<Tdf>) -> (RealNs, VirtNs) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let at = RealNs(time::monotonic_ns().max(map.current().r0_ns));
        // It can't be refused: it does not begin before the last one.
        let _ = match tdf {
            Some(tdf) => map.retime(at, tdf),
            None => map.pause(at),
        };
        (at, map.v_of(at))
    }

    /// Stops the nodes and holds their timers; no virtual time passes from the instant that is given.
    pub fn stand_still(
        &self,
        nodes: &[&NodeFrame],
        freeze: impl Fn() -> Result<(), String>,
        thaw: impl Fn(),
    ) -> Result<(Standing, VirtNs), PaceError> {
        let _following = alone(nodes);
        for _ in 0..TRIES {
            let holding = with_timers(nodes)?;
            let mut stopped = StoppedProcesses::default();
            stopped.stop(&holding)?;
            let ready = stopped.timers(Timers::Hold).map_err(PaceError::from);
            let ready = ready.and_then(|()| freeze().map_err(PaceError::Freeze));
            let ready = ready.and_then(|()| Ok(with_timers(nodes)?.iter().all(|pid| holding.contains(pid))));
            let held = match ready {
                Ok(true) => hold_fds(nodes).map_err(PaceError::from).map(Some),
                Ok(false) => Ok(None),
                Err(e) => Err(e),
            };
            if let Ok(Some(timer_fds)) = held {
                drop(stopped);
                let (since, v) = self.change_pace(None);
                nodes.iter().for_each(|n| n.follow(self));
                return Ok((Standing { timer_fds, holding, since }, v));
            }
            thaw();
            let undone = stopped.timers(Timers::Set);
            drop(stopped);
            held?;
            undone?;
        }
        Err(PaceError::Restless)
    }

    /// Time goes on at this TDF, from the instant that is given.
    pub fn go_on(
        &self,
        nodes: &[&NodeFrame],
        standing: Standing,
        stretch: Stretch,
        thaw: impl Fn(),
    ) -> Result<VirtNs, PaceError> {
        let _following = alone(nodes);
        let mut stopped = StoppedProcesses::default();
        let mut asked = Ok(());
        for pid in &standing.holding {
            asked = asked.and(stopped.ask(*pid).map(drop));
        }
        // A thread that is not kicked ends its wait at its old real instant, and then sees whether that was too early.
        nodes.iter().for_each(|n| drop(n.kick()));
        let (at, v) = self.change_pace(Some(stretch.to));
        for node in nodes {
            node.follow(self);
            node.rested(at.since(standing.since).ns());
        }
        for (node, timers) in nodes.iter().zip(standing.timer_fds) {
            node.set_timer_fds(timers, stretch);
        }
        thaw();
        // Whatever becomes of one, the others get their timers back.
        let waited = stopped.wait();
        let set = stopped.timers(Timers::Set);
        asked.and(waited).and(set)?;
        Ok(v)
    }
}

/// Nobody else has these nodes' timers follow anything.
fn alone<'a>(nodes: &[&'a NodeFrame]) -> Vec<MutexGuard<'a, ()>> {
    nodes.iter().map(|n| n.alone()).collect()
}

/// Stops the timers behind descriptors of all nodes, or of none.
fn hold_fds(nodes: &[&NodeFrame]) -> io::Result<Vec<TimerFds>> {
    let mut all: Vec<TimerFds> = nodes.iter().map(|_| TimerFds::default()).collect();
    let held = nodes.iter().zip(&mut all).try_for_each(|(node, timers)| timers.hold(node, Which::All));
    if let Err(e) = held {
        let none = |node: &NodeFrame| node.followed_ahead_ns.load(Ordering::Relaxed);
        nodes.iter().zip(all).for_each(|(node, timers)| timers.set(node.page(), none(node), Stretch::NONE));
        return Err(e);
    }
    Ok(all)
}

/// The processes that have set timers of their own.
fn with_timers(nodes: &[&NodeFrame]) -> Result<Vec<i32>, PaceError> {
    let mut found = Vec::new();
    for node in nodes {
        for pid in (node.members)()? {
            match timers_of(pid) {
                0 => {}
                1 => found.push(pid),
                _ => return Err(PaceError::TooManyTimers { node: node.name.clone(), pid }),
            }
        }
    }
    Ok(found)
}

impl NodeFrame {
    /// Tells the node's processes how time goes on.
    fn follow(&self, lab: &LabFrame) {
        let map = lab.map();
        if map.current().rate != Rate::ZERO {
            let slack = map.current().inverse.mul_up(MACHINE_SLACK_NS);
            self.page().slack_ns.store(slack, Ordering::Relaxed);
        }
        self.page().publish(map.segments());
    }

    /// The node did not run for so long, and it is no colder for it than its machine would be.
    fn rested(&self, real_ns: u64) {
        let busy = &self.page().busy_r_ns;
        if busy.load(Ordering::Relaxed) != 0 {
            busy.fetch_add(real_ns, Ordering::Relaxed);
        }
    }

    /// Makes every thread that is in a translated wait translate it anew, and ends the call of one that waits by a
    /// timeout of its socket: Linux does that itself where a process is stopped, but for some sockets not where it is
    /// frozen. Only while the node is frozen: a thread that runs is nowhere.
    fn kick(&self) -> io::Result<()> {
        self.kick_waits(true).map(drop)
    }

    /// The same, with those that wait by a socket's timeout or without. Whether some thread ran meanwhile, and was nowhere.
    pub(crate) fn kick_waits(&self, sockets: bool) -> io::Result<bool> {
        let mut ran = false;
        let at = |symbol| image::offset(symbol).map_or(0, |offset| BLOB_ADDR + offset);
        let waits = at("diecast_wait_begin")..=at("diecast_wait_end");
        for pid in (self.members)()? {
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for tid in tasks.flatten().filter_map(|t| t.file_name().to_str()?.parse().ok()) {
                let Some(place) = process::place_of(Tid(pid), Tid(tid)) else {
                    ran = true;
                    continue;
                };
                let by_socket = || place.call.is_some_and(|(number, fd)| waits_by_socket(pid, number, fd));
                if waits.contains(&place.at.0) || sockets && by_socket() {
                    // It may have been killed meanwhile.
                    let _ = process::queue_signal(Tid(pid), Tid(tid), libc::SIGTRAP, KICK_MAGIC);
                }
            }
        }
        Ok(ran)
    }
}
