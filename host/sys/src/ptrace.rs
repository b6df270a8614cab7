//! Ptrace as a type: a [`Stopped`] thread can be read, changed and resumed; resuming consumes it.
//!
//! All functions must be called by the thread that seized the tracee.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};

use crate::{GuestPtr, Tid, check};

/// `struct user_regs_struct`.
pub type Regs = libc::user_regs_struct;

const PTRACE_EVENT_STOP: i32 = 128;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;

/// Why a thread stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// In execve, the new image is in place; after [`seize_to_exec`] only.
    Exec,
    /// An interrupt that we asked for, or a group stop.
    Interrupt,
    /// About to receive this signal; the second number is its si_code.
    Signal(i32, i32),
}

/// A traced thread that is stopped.
#[derive(Debug)]
pub struct Stopped {
    tid: Tid,
    pub why: Why,
}

/// What waiting for a tracee ended with.
#[derive(Debug)]
pub enum Wait {
    Stopped(Stopped),
    /// The thread (or its process) is gone.
    Gone,
}

fn request(req: libc::c_uint, tid: Tid, addr: u64, data: u64) -> io::Result<i64> {
    // SAFETY: requests used here take numbers, or pointers to live buffers of the size the kernel expects.
    check(unsafe { libc::ptrace(req, tid.0, addr as *mut libc::c_void, data as *mut libc::c_void) })
}

/// Attaches without stopping. An exec is no stop of its own.
pub fn seize(tid: Tid) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, 0).map(|_| ())
}

/// The same, where an exec is a stop.
pub fn seize_to_exec(tid: Tid) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, libc::PTRACE_O_TRACEEXEC as u64).map(|_| ())
}

/// Asks a running tracee to stop.
pub fn interrupt(tid: Tid) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0).map(|_| ())
}

/// Waits until this thread's only tracee stops or is gone.
///
/// Any tracee, because an exec from a thread that is not the leader changes the thread's id on the way.
pub fn wait() -> io::Result<Wait> {
    match wait_for(-1, 0)? {
        Some((tid, status)) => Ok(what_happened(tid, status)),
        None => Ok(Wait::Gone),
    }
}

/// Waits until this tracee of several stops or is gone. It does not exec meanwhile.
pub fn wait_of(tid: Tid) -> io::Result<Wait> {
    Ok(wait_for(tid.0, 0)?.map_or(Wait::Gone, |(tid, status)| what_happened(tid, status)))
}

/// What has happened to one of this thread's tracees, and to which; none when nothing has, or none is left.
pub fn look() -> io::Result<Option<(Tid, Wait)>> {
    Ok(wait_for(-1, libc::WNOHANG)?.map(|(tid, status)| (tid, what_happened(tid, status))))
}

/// A thread, or -1 for any.
fn wait_for(which: i32, how: i32) -> io::Result<Option<(Tid, i32)>> {
    let mut status = 0;
    loop {
        // SAFETY: status is a live local. __WNOTHREAD: only children and tracees of this thread.
        let r = unsafe { libc::waitpid(which, &raw mut status, libc::__WALL | libc::__WNOTHREAD | how) };
        if r > 0 {
            if !libc::WIFSTOPPED(status) {
                remember((r, status));
            }
            return Ok(Some((Tid(r), status)));
        }
        if r == 0 {
            return Ok(None);
        }
        let e = io::Error::last_os_error();
        match e.raw_os_error() {
            Some(libc::EINTR) => continue,
            Some(libc::ECHILD) => return Ok(None),
            _ => return Err(e),
        }
    }
}

/// How the latest processes ended whose end a tracer of this process saw, oldest first.
static ENDED: Mutex<VecDeque<(i32, i32)>> = Mutex::new(VecDeque::new());
/// Whoever waits for one of them looks within milliseconds.
const ENDED_MAX: usize = 256;

fn remember(end: (i32, i32)) {
    let mut ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
    if ended.len() == ENDED_MAX {
        ended.pop_front();
    }
    ended.push_back(end);
}

/// The wait status of a child of this process that ended while one of its threads traced it. That thread's wait takes
/// the child away for the whole process: a parent that gets ECHILD finds the status here, at once or a moment later.
pub fn ended_while_traced(pid: Tid) -> Option<i32> {
    let ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
    ended.iter().find(|end| end.0 == pid.0).map(|end| end.1)
}

fn what_happened(tid: Tid, status: i32) -> Wait {
    if !libc::WIFSTOPPED(status) {
        return Wait::Gone;
    }
    let sig = libc::WSTOPSIG(status);
    let event = status >> 16;
    let why = if event == PTRACE_EVENT_STOP {
        Why::Interrupt
    } else if event == libc::PTRACE_EVENT_EXEC {
        Why::Exec
    } else {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        let code = match request(libc::PTRACE_GETSIGINFO, tid, 0, info.as_mut_ptr() as u64) {
            // SAFETY: the kernel filled the siginfo; zero is a valid value too.
            Ok(_) => unsafe { info.assume_init() }.si_code,
            Err(_) => 0,
        };
        Why::Signal(sig, code)
    };
    Wait::Stopped(Stopped { tid, why })
}

impl Stopped {
    pub fn tid(&self) -> Tid {
        self.tid
    }

    pub fn regs(&self) -> io::Result<Regs> {
        let mut r = std::mem::MaybeUninit::<Regs>::zeroed();
        request(libc::PTRACE_GETREGS, self.tid, 0, r.as_mut_ptr() as u64)?;
        // SAFETY: the kernel filled it.
        Ok(unsafe { r.assume_init() })
    }

    pub fn set_regs(&self, r: &Regs) -> io::Result<()> {
        request(libc::PTRACE_SETREGS, self.tid, 0, std::ptr::from_ref(r) as u64).map(|_| ())
    }

    /// The thread's blocked signals.
    pub fn sigmask(&self) -> io::Result<u64> {
        let mut mask = 0u64;
        request(PTRACE_GETSIGMASK, self.tid, 8, &raw mut mask as u64)?;
        Ok(mask)
    }

    pub fn set_sigmask(&self, mask: u64) -> io::Result<()> {
        request(PTRACE_SETSIGMASK, self.tid, 8, &raw const mask as u64).map(|_| ())
    }

    /// Writes words into the tracee, whatever its page protections are.
    pub fn poke(&self, at: GuestPtr, words: &[u64]) -> io::Result<()> {
        for (i, w) in words.iter().enumerate() {
            request(libc::PTRACE_POKEDATA, self.tid, at.0 + 8 * i as u64, *w)?;
        }
        Ok(())
    }

    /// Goes on, delivering a signal (0: none).
    pub fn resume(self, signal: i32) -> io::Result<Tid> {
        request(libc::PTRACE_CONT, self.tid, 0, signal as u64)?;
        Ok(self.tid)
    }

    /// Executes one instruction.
    pub fn step(self) -> io::Result<Tid> {
        request(libc::PTRACE_SINGLESTEP, self.tid, 0, 0)?;
        Ok(self.tid)
    }

    /// Lets go of it for good, delivering a signal (0: none).
    pub fn detach(self, signal: i32) -> io::Result<()> {
        request(libc::PTRACE_DETACH, self.tid, 0, signal as u64).map(|_| ())
    }
}
