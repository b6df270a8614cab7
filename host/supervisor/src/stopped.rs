//! Processes of which every thread is stopped, so that one of them can make calls into the blob.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use diecast_core_abi::{BLOB_ADDR, KICK_MAGIC, STOPPED_STACK_ADDR, TIMERS_ADDR, WALL_TIMERS_ADDR};
use diecast_host_sys::ptrace::{self, Stopped, Wait, Why};
use diecast_host_sys::{GuestPtr, Tid, memory, process};

use crate::exec::{OURS, patience_with};
use crate::image;
use crate::traced::stat_field;

/// How long threads may take to stop, or to be let go by the supervisor's own work with them. On a busy host Linux was
/// seen to give a runnable thread of usual priority two hundredths of a core for 5 s, beside a cgroup of small weight; the
/// lab runs on meanwhile, and one that goes on would lose the timers that it holds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// How many of the threads that don't stop a message says more about.
const NAMED_MAX: usize = 4;
/// `si_code` of a breakpoint's SIGTRAP, and of a kick's.
const SI_KERNEL: i32 = 0x80;
const SI_QUEUE: i32 = -1;

/// Why a process could not be stopped.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    #[error("thread {tid} of process {pid} can't be traced: {source}")]
    Seize { pid: i32, tid: i32, source: io::Error },
    #[error("{0} threads that set timers, or wait beside some that did, don't stop: {1}")]
    Late(usize, String),
    #[error("the blob of process {0} did not answer")]
    Silent(i32),
    #[error("ptrace: {0}")]
    Io(#[from] io::Error),
}

/// What the blob shall do with a process's own timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timers {
    /// Stop them, and remember when they are due in virtual time.
    Hold,
    /// Set them again.
    Set,
}

/// Processes that this thread, and no other, traces.
#[derive(Default)]
pub struct StoppedProcesses {
    seized: BTreeSet<(i32, i32)>,
    stopped: Vec<(i32, Stopped)>,
}

impl StoppedProcesses {
    /// Asks every thread of a process that is not asked yet to stop; how many there were. One that is frozen stops once
    /// it is thawed.
    pub fn ask(&mut self, pid: i32) -> Result<usize, StopError> {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Ok(0) };
        let mut new = 0;
        for tid in tasks.flatten().filter_map(|t| t.file_name().to_str()?.parse::<i32>().ok()) {
            if self.seized.contains(&(pid, tid)) || !seize(pid, tid)? {
                continue;
            }
            self.seized.insert((pid, tid));
            new += 1;
        }
        Ok(new)
    }

    /// Waits until all of them have.
    pub fn wait(&mut self) -> Result<(), StopError> {
        let give_up = Instant::now() + PATIENCE;
        while self.stopped.len() < self.seized.len() {
            match ptrace::look()? {
                Some((tid, Wait::Gone)) => {
                    self.seized.retain(|(_, t)| *t != tid.0);
                    self.stopped.retain(|(_, s)| s.tid() != tid);
                }
                Some((tid, Wait::Stopped(s))) => match s.why {
                    Why::Interrupt => {
                        let pid = self.seized.iter().find(|(_, t)| *t == tid.0).map_or(tid.0, |(pid, _)| *pid);
                        self.stopped.push((pid, s));
                    }
                    // It stops again before it does anything for this signal.
                    Why::Signal(signal, _) => drop(s.resume(signal)),
                    Why::Exec => drop(s.resume(0)),
                },
                None if Instant::now() > give_up => {
                    return Err(self.late());
                }
                None => std::thread::sleep(LOOK_EVERY),
            }
        }
        Ok(())
    }

    /// How many have not stopped, and what the first of them are in.
    fn late(&self) -> StopError {
        let stopped: BTreeSet<i32> = self.stopped.iter().map(|(_, s)| s.tid().0).collect();
        let late: Vec<&(i32, i32)> = self.seized.iter().filter(|(_, tid)| !stopped.contains(tid)).collect();
        let named: Vec<String> = late.iter().take(NAMED_MAX).map(|(pid, tid)| state_of(*pid, *tid)).collect();
        StopError::Late(late.len(), named.join("; "))
    }

    /// Stops all threads of these processes, those that they make meanwhile included.
    pub fn stop(&mut self, pids: &[i32]) -> Result<(), StopError> {
        loop {
            let mut new = 0;
            for pid in pids {
                new += self.ask(*pid)?;
            }
            if new == 0 {
                return Ok(());
            }
            self.wait()?;
        }
    }

    /// Has the blob of each process do this: of all that can, whatever becomes of one.
    pub fn timers(&mut self, what: Timers) -> Result<(), StopError> {
        let (mut done, mut all) = (BTreeSet::new(), Ok(()));
        for (pid, s) in std::mem::take(&mut self.stopped) {
            if !done.insert(pid) {
                self.stopped.push((pid, s));
                continue;
            }
            let tid = s.tid().0;
            match call(pid, s, what) {
                Ok(Some(s)) => {
                    self.stopped.push((pid, s));
                    continue;
                }
                // It was killed, and has no timers any more.
                Ok(None) => {}
                Err(e) => all = all.and(Err(e)),
            }
            self.seized.remove(&(pid, tid));
        }
        all
    }
}

impl Drop for StoppedProcesses {
    /// Lets go of all of them. Those that have not stopped yet do so first: only then can they be let go.
    fn drop(&mut self) {
        let _ = self.wait();
        for (_, s) in self.stopped.drain(..) {
            let _ = s.detach(0);
        }
    }
}

/// A thread's name, its state in the kernel's letter and the function of the kernel in which it waits.
fn state_of(pid: i32, tid: i32) -> String {
    let of = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}")).unwrap_or_default();
    let state = stat_field(Tid(tid), 0).unwrap_or_else(|| "gone".into());
    format!("{tid} ({}) is {state} in {}", of("comm").trim(), of("wchan"))
}

/// True when the thread will stop, false when it is gone. One whose exec the supervisor carries through is waited for.
fn seize(pid: i32, tid: i32) -> Result<bool, StopError> {
    let began = Instant::now();
    loop {
        match ptrace::seize(Tid(tid)).and_then(|()| ptrace::interrupt(Tid(tid))) {
            Ok(()) => return Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
            Err(source) if began.elapsed() >= patience_with(Tid(tid)) => {
                return Err(StopError::Seize { pid, tid, source });
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// One call into the blob, from wherever the thread is; None where the process is killed meanwhile.
fn call(pid: i32, s: Stopped, what: Timers) -> Result<Option<Stopped>, StopError> {
    match attempt(pid, s, what) {
        Err(StopError::Io(e)) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        done => done,
    }
}

fn attempt(pid: i32, s: Stopped, what: Timers) -> Result<Option<Stopped>, StopError> {
    let at = |symbol| image::offset(symbol).map(|o| BLOB_ADDR + o).ok_or(StopError::Silent(pid));
    let (entry, done) = (at("diecast_timers")?, at("diecast_timers_done")?);
    let (regs, mask) = (s.regs()?, s.sigmask()?);
    // No signal may be taken on the way but the breakpoint's.
    s.set_sigmask(!OURS)?;
    let mut r = regs;
    r.rip = entry;
    r.rsp = STOPPED_STACK_ADDR;
    r.rdi = u64::from(what == Timers::Set);
    r.orig_rax = u64::MAX;
    s.set_regs(&r)?;
    let tid = s.resume(0)?;
    let mut kicked = false;
    let s = loop {
        // Others of this thread's tracees are stopped, and may be killed.
        match ptrace::wait_of(tid)? {
            Wait::Gone => return Ok(None),
            Wait::Stopped(s) => match s.why {
                // A hit by a core's clock is of this kind too.
                Why::Signal(libc::SIGTRAP, SI_KERNEL) if s.regs()?.rip == done => break s,
                Why::Signal(libc::SIGTRAP, SI_QUEUE) => {
                    kicked = true;
                    s.resume(0)?;
                }
                // A hit: the next one charges its work too.
                _ => drop(s.resume(0)?),
            },
        }
    };
    s.set_regs(&regs)?;
    s.set_sigmask(mask)?;
    if kicked {
        process::queue_signal(Tid(pid), s.tid(), libc::SIGTRAP, KICK_MAGIC)?;
    }
    Ok(Some(s))
}

/// How a process has used timers of its own: not, some, or more than the blob keeps.
pub fn timers_of(pid: i32) -> u32 {
    word_of(pid, TIMERS_ADDR)
}

/// Whether a process has set POSIX timers to instants of a wall clock.
pub fn sets_wall_timers(pid: i32) -> bool {
    word_of(pid, WALL_TIMERS_ADDR) != 0
}

/// A word of a process's page; 0 without a blob yet.
fn word_of(pid: i32, address: u64) -> u32 {
    let mut word = [0u8; 4];
    memory::read(Tid(pid), GuestPtr(address), &mut word).map_or(0, |()| u32::from_ne_bytes(word))
}
