//! One exec: let it happen, then put the new image in its frame before its first instruction.
//!
//! ```text
//! notification ── seize, interrupt, give the memfd ── continue ──┬─ stop in a new image ── map blob ── blob's own init ── int3
//!                                                                │   ── meter on ── detach
//!                                                                ├─ stop in the old one: exec failed ── take the memfd back ── detach
//!                                                                ├─ stop in neither: the kernel ends it ── detach
//!                                                                └─ gone
//! ```
//!
//! Whatever fails on the way ends in one of these, in an errno for the call, or in the end of the process (`carry`).
//!
//! Each stop is two switches between two threads, 30 to 50 µs, so there are as few as can be: the interrupt that was asked for
//! before the call comes at its end, and mapping the blob returns into the blob where the kernel's vDSO has a `syscall` that
//! can (`KernelVdso::syscall_ret`).

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use diecast_core_abi::{BLOB_ADDR, InitArgs, METER_MAGIC, NODE_PAGE_LEN, PROC_MAGIC, PROC_PAGE_ADDR, TracedStart};
use diecast_host_sys::perf::Meter;
use diecast_host_sys::ptrace::{self, Regs, Stopped, Wait, Why};
use diecast_host_sys::seccomp::{self, Notification};
use diecast_host_sys::vdso::KernelVdso;
use diecast_host_sys::{GuestPtr, Tid, memory, process};

use crate::frame::NodeFrame;
use crate::image;
use crate::lend;
use crate::stopped::PATIENCE;
use crate::traced;

pub const SYS_MMAP: u64 = 9;
pub const SYS_EXECVE: i32 = 59;
const SYS_CLOSE: u64 = 3;
const SYS_MUNMAP: u64 = 11;
const SYS_UNSHARE: u64 = 272;
const PROT_READ_WRITE: u64 = 3;
pub const PROT_READ_EXEC: u64 = 5;
pub const MAP_PRIVATE_FIXED_NOREPLACE: u64 = 0x10_0002;
const AT_SYSINFO_EHDR: u64 = 33;
const USER_CS_64: u64 = 0x33;
const TRAP_PERF: i32 = 6;
/// `si_code` of a kick's SIGTRAP.
const SI_QUEUE: i32 = -1;
/// A limit of the stack above which the blob's first call has room on it, whatever the arguments take: that is a quarter, or
/// 128 KiB.
const STACK_AMPLE: u64 = 256 << 10;
/// Elsewhere it gets one of so many bytes.
const OTHER_STACK_LEN: u64 = 16 << 10;
/// How long another thread of this process may trace what is about to exec: no shorter than that thread waits for others.
const OUR_OWN_PATIENCE: Duration = Duration::from_secs(PATIENCE.as_secs() + 5);
/// And how long a thread that nobody traces may refuse: another thread of this process may have let go of it just now.
const PATIENCE_UNTRACED: Duration = Duration::from_secs(3);
/// SIGTRAP and SIGSYS in a signal mask.
pub(crate) const OURS: u64 = 1 << 4 | 1 << 30;

/// Why an exec could not be put in the frame.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("process {0:?} is traced by another process")]
    Traced(Tid),
    #[error(
        "process {0:?} is traced by what traces diecast too, so neither could wait for the other: trace inside the frame \
         (diecast frame -- strace ...)"
    )]
    TracedWithUs(Tid),
    #[error("process {0:?} is a 32-bit program, which a frame does not support")]
    Not64Bit(Tid),
    #[error("no AT_SYSINFO_EHDR in the auxiliary vector of {0:?}")]
    NoVdso(Tid),
    #[error("{what} in {tid:?} failed with errno {errno}")]
    Guest { tid: Tid, what: &'static str, errno: i64 },
    #[error("unexpected stop {why:?} of {tid:?} while {during}")]
    Stop { tid: Tid, why: Why, during: &'static str },
    #[error("meter of {tid:?}: {source}")]
    Meter { tid: Tid, source: io::Error },
    #[error("an exec of process {0:?} failed: the node's memory can't be lent to it: {1}")]
    Lend(Tid, io::Error),
    #[error(
        "process {0:?} executes a program that it may not read: the kernel lets nobody look into such a process but the \
         superuser, so it can't run in the frame of another user"
    )]
    Unreadable(Tid),
    #[error("ptrace: {0}")]
    Io(#[from] io::Error),
}

/// What became of an exec.
#[derive(Debug)]
pub enum Outcome {
    /// The new image runs in the frame; its event, if that is what the node is metered by.
    Framed { meter: Option<Meter> },
    /// The exec failed; the old image goes on.
    Failed,
    /// As that, because of the frame.
    Refused(ExecError),
    /// The call is made again, and asks again.
    Again,
    /// The process died on the way.
    Gone,
}

enum Next {
    Stopped(Stopped),
    Gone,
}

/// Resumes and waits for the next stop that is not a stale tick of the old image's meter. Such a tick comes
/// before the resumed code ran, so it is resumed in the same way again.
fn go(s: Stopped, how: impl Fn(Stopped) -> io::Result<Tid>) -> io::Result<Next> {
    how(s)?;
    loop {
        match ptrace::wait()? {
            Wait::Gone => return Ok(Next::Gone),
            Wait::Stopped(s) => match s.why {
                Why::Signal(libc::SIGTRAP, TRAP_PERF) => {
                    how(s)?;
                }
                _ => return Ok(Next::Stopped(s)),
            },
        }
    }
}

macro_rules! stopped {
    ($next:expr) => {
        match $next? {
            Next::Stopped(s) => s,
            Next::Gone => return Ok(Outcome::Gone),
        }
    };
}

/// Has a stopped thread make one call by the `syscall` instruction at `at`, all signals being blocked that can be; none
/// where it is killed meanwhile.
fn call(mut s: Stopped, regs: &Regs, at: u64, nr: u64, args: [u64; 6]) -> Result<Option<(Stopped, i64)>, ExecError> {
    let mut r = *regs;
    (r.rax, r.rip, r.orig_rax) = (nr, at, u64::MAX);
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = args;
    s.set_regs(&r)?;
    let mut held = None;
    loop {
        s = match go(s, Stopped::step)? {
            Next::Stopped(s) => s,
            Next::Gone => return Ok(None),
        };
        let now = s.regs()?;
        if now.rip != at {
            match held {
                Some(libc::SIGSTOP) => process::kill(s.tid(), libc::SIGSTOP)?,
                Some(_) => traced::kick(s.tid())?,
                None => {}
            }
            return Ok(Some((s, now.rax as i64)));
        }
        // Before the call was made: what can't be blocked, or was sent by us.
        match s.why {
            Why::Interrupt => {}
            Why::Signal(signal @ libc::SIGSTOP, _) | Why::Signal(signal @ libc::SIGTRAP, SI_QUEUE) => {
                held = Some(signal)
            }
            why => return Err(ExecError::Stop { tid: s.tid(), why, during: "making a call" }),
        }
    }
}

macro_rules! call {
    ($s:expr, $regs:expr, $at:expr, $nr:expr, $args:expr) => {
        match call($s, $regs, $at, $nr, $args)? {
            Some(done) => done,
            None => return Ok(Outcome::Gone),
        }
    };
}

/// How a new image begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begins {
    Free,
    /// Traced by its parent, which asked for that in vfork; it has no meter.
    Traced,
}

/// Carries one exec through. Blocks for its length, about 300 µs. A process that is killed on the way is gone at
/// whatever request meets it first.
pub fn carry(
    listener: &OwnedFd,
    n: &Notification,
    node: &NodeFrame,
    kernel: &KernelVdso,
    lineage: u64,
    begins: Begins,
) -> Result<Outcome, ExecError> {
    let path = traced::path_of(n.tid(), n);
    if !lend::may_look_into_all() && path.as_deref().is_some_and(|path| lend::is_unreadable(n.tid(), path)) {
        let _ = seccomp::fail(listener, n, libc::EACCES);
        return Ok(Outcome::Refused(ExecError::Unreadable(n.tid())));
    }
    // A search of PATH asks for many files that are not there.
    if path.is_some_and(|path| traced::is_surely_missing(n.tid(), &path)) {
        return unless_void(seccomp::fail(listener, n, libc::ENOENT)).map(|()| Outcome::Failed).map_err(ExecError::Io);
    }
    let mut seized = None;
    match (attempt(listener, n, node, kernel, lineage, begins, &mut seized), seized) {
        (Err(ExecError::Io(e)), Some(_)) if e.raw_os_error() == Some(libc::ESRCH) => {
            // Takes its end, which must not be the next exec's.
            while let Wait::Stopped(s) = ptrace::wait()? {
                let _ = s.detach(0);
            }
            Ok(Outcome::Gone)
        }
        (Err(e), Some(tid)) => {
            // Half in a frame is worse than not at all, and nobody else lets it go.
            let _ = process::kill(tid, libc::SIGKILL);
            // Its end must not be the next exec's.
            while let Ok(Wait::Stopped(s)) = ptrace::wait() {
                let _ = s.detach(libc::SIGKILL);
            }
            Err(match e {
                ExecError::Io(e) if e.raw_os_error() == Some(libc::EPERM) => ExecError::Unreadable(tid),
                e => e,
            })
        }
        (done, _) => done,
    }
}

/// Whether a notification is a word of the blob's: a call of execve that is answered and not made.
pub fn says(n: &Notification, word: u64) -> bool {
    n.nr == SYS_EXECVE && n.args[0] == word
}

/// How long to try again to trace a thread that refuses; not at all where another process traces it.
pub(crate) fn patience_with(tid: Tid) -> Duration {
    match any_tracer_of(tid) {
        None => PATIENCE_UNTRACED,
        Some(tracer) if is_ours(tracer) => OUR_OWN_PATIENCE,
        Some(_) => Duration::ZERO,
    }
}

/// Whether this is a thread of this process.
fn is_ours(tracer: Tid) -> bool {
    std::path::Path::new(&format!("/proc/self/task/{}", tracer.0)).exists()
}

pub(crate) fn any_tracer_of(tid: Tid) -> Option<Tid> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", tid.0)).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")?.trim().parse::<i32>().ok())?;
    (tracer != 0).then_some(Tid(tracer))
}

/// The thread that traces it, where that is none of this process.
pub fn tracer_of(tid: Tid) -> Option<Tid> {
    any_tracer_of(tid).filter(|tracer| !is_ours(*tracer))
}

/// `seized` is the thread that this one traces, as soon as it does.
fn attempt(
    listener: &OwnedFd,
    n: &Notification,
    node: &NodeFrame,
    kernel: &KernelVdso,
    lineage: u64,
    begins: Begins,
    seized: &mut Option<Tid>,
) -> Result<Outcome, ExecError> {
    let tid = n.tid();
    let began = Instant::now();
    let home = lend::household(tid);
    let number = if home.alone { None } else { process::number_inside(tid) };
    // Where other threads end at the exec, the interrupt is lost on the way.
    let seize = if home.alone { ptrace::seize } else { ptrace::seize_to_exec };
    while let Err(e) = seize(tid) {
        match e.raw_os_error() {
            Some(libc::ESRCH) => return Ok(Outcome::Gone),
            // The lab is being paused: it is stopped for its timers.
            _ if began.elapsed() < patience_with(tid) => std::thread::sleep(Duration::from_micros(100)),
            _ => return Err(ExecError::Traced(tid)),
        }
    }
    *seized = Some(tid);
    ptrace::interrupt(tid)?;
    if process::share_descriptors(tid, home.parent) && comes_again(listener, n)? {
        return unshare_table(n, home.parent);
    }
    let fd = match lend::lend(listener, n, node) {
        Ok(fd) => fd,
        Err(e) if is_void(&e) => return let_go(),
        Err(e) => {
            unless_void(seccomp::fail(listener, n, e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
            return match let_go()? {
                Outcome::Failed => Ok(Outcome::Refused(ExecError::Lend(tid, e))),
                gone => Ok(gone),
            };
        }
    };
    unless_void(seccomp::let_continue(listener, n))?;
    let Wait::Stopped(mut s) = ptrace::wait()? else { return Ok(Outcome::Gone) };
    // At an exec a thread takes the number of its process, and what is known of it with it.
    *seized = Some(s.tid());
    if s.tid() != tid
        && let Some(before) = number
        && let Some(now) = process::number_inside(s.tid())
    {
        node.page().renumber(before, now);
    }
    if s.why == Why::Exec {
        // The call is not over: its return value would overwrite a register.
        ptrace::interrupt(s.tid())?;
        s = stopped!(go(s, |s| s.resume(0)));
    }
    let regs = s.regs()?;
    // A new image may begin at the very address, but with all registers zero.
    if regs.rip == n.ip && (regs.rax as i64) < 0 {
        return take_back(s, &regs, fd);
    }
    into_frame(s, &regs, fd as u64, node, kernel, lineage, begins)
}

/// Whether a notification is void: the process is dying, or its call was interrupted.
fn is_void(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENOENT | libc::EINPROGRESS))
}

/// Who waits for an answer that is void stops all the same.
fn unless_void(answered: io::Result<()>) -> io::Result<()> {
    answered.or_else(|e| if is_void(&e) { Ok(()) } else { Err(e) })
}

/// The signal that a stopped thread is about to receive: its handlers are still there, the meter's included.
fn signal_of(s: &Stopped) -> i32 {
    if let Why::Signal(signal, _) = s.why { signal } else { 0 }
}

/// The call is over, and has left nothing behind.
fn let_go() -> Result<Outcome, ExecError> {
    match ptrace::wait()? {
        Wait::Gone => Ok(Outcome::Gone),
        Wait::Stopped(s) => {
            let signal = signal_of(&s);
            s.detach(signal)?;
            Ok(Outcome::Failed)
        }
    }
}

/// Whether the call of a process that shares its parent's table is to be made again with a table of its own. What is lent
/// would stay in the parent's, since an exec makes a copy and the blob closes it there.
fn comes_again(listener: &OwnedFd, n: &Notification) -> io::Result<bool> {
    let tid = n.tid();
    // Where the exec fails the table must stay as it is; and a filter of the program's might end it for the call.
    let exists = traced::path_of(tid, n).is_none_or(|path| traced::may_exist(tid, &path));
    if !exists || lend::has_own_filters(tid) {
        return Ok(false);
    }
    const ERESTARTNOINTR: i32 = 513;
    unless_void(seccomp::fail(listener, n, ERESTARTNOINTR)).map(|()| true)
}

/// What an exec does first, done before it: a table of descriptors of the process's own.
fn unshare_table(n: &Notification, parent: Tid) -> Result<Outcome, ExecError> {
    const CLONE_FILES: u64 = 0x400;
    let Wait::Stopped(s) = ptrace::wait()? else { return Ok(Outcome::Gone) };
    let (tid, signal, mut regs) = (s.tid(), signal_of(&s), s.regs()?);
    let (vdso, syscall) = kernel_vdso_of(tid).ok_or(ExecError::NoVdso(tid))?;
    let mask = s.sigmask()?;
    s.set_sigmask(!OURS)?;
    let (s, result) = call!(s, &regs, vdso + syscall, SYS_UNSHARE, [CLONE_FILES, 0, 0, 0, 0, 0]);
    regs.orig_rax = u64::MAX;
    // The exec would fail with the same.
    let done = result == 0 && !process::share_descriptors(tid, parent);
    if done {
        (regs.rax, regs.rip) = (n.nr as u64, n.ip - seccomp::SYSCALL_LEN);
    } else {
        regs.rax = if result < 0 { result as u64 } else { -i64::from(libc::EAGAIN) as u64 };
    }
    s.set_regs(&regs)?;
    s.set_sigmask(mask)?;
    s.detach(signal)?;
    Ok(if done { Outcome::Again } else { Outcome::Failed })
}

/// The exec failed: close the descriptor that was lent, then let go.
fn take_back(s: Stopped, regs: &Regs, fd: i32) -> Result<Outcome, ExecError> {
    let (tid, signal) = (s.tid(), signal_of(&s));
    if ends(tid, signal) {
        s.detach(signal)?;
        return Ok(Outcome::Failed);
    }
    let (vdso, syscall) = kernel_vdso_of(tid).ok_or(ExecError::NoVdso(tid))?;
    // A pending signal would stop the step before the call is made: the descriptor would stay and the signal be lost.
    let mask = s.sigmask()?;
    s.set_sigmask(!OURS)?;
    let (s, _) = call!(s, regs, vdso + syscall, SYS_CLOSE, [fd as u64, 0, 0, 0, 0, 0]);
    s.set_regs(regs)?;
    s.set_sigmask(mask)?;
    s.detach(signal)?;
    Ok(Outcome::Failed)
}

/// Whether the old image is gone and the new one could not be completed: then the kernel raises SIGSEGV, for which there is
/// no handler any more.
fn ends(tid: Tid, signal: i32) -> bool {
    if blob_vdso_of(tid).is_some() {
        return false;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", tid.0)).unwrap_or_default();
    let pending = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigPnd:")?.trim(), 16).ok());
    signal == libc::SIGSEGV || pending.is_some_and(|pending| pending & 1 << (libc::SIGSEGV - 1) != 0)
}

/// The kernel's vDSO function that the blob reads clocks with; none where there is no blob.
fn blob_vdso_of(tid: Tid) -> Option<u64> {
    let mut page = [0u64; 4];
    memory::read_words(tid, GuestPtr(PROC_PAGE_ADDR), &mut page).ok().filter(|()| page[0] == PROC_MAGIC)?;
    Some(page[3])
}

/// Base of the kernel's vDSO in a process and its `syscall` instruction: from the blob's page, or where there is no
/// blob yet from the kernel's copy of the auxiliary vector, which afterwards names the blob.
fn kernel_vdso_of(tid: Tid) -> Option<(u64, u64)> {
    let kernel = KernelVdso::find()?;
    if let Some(clock_gettime) = blob_vdso_of(tid) {
        return Some((clock_gettime - kernel.clock_gettime, kernel.syscall));
    }
    let auxv = std::fs::read(format!("/proc/{}/auxv", tid.0)).ok()?;
    let word = |b: &[u8]| u64::from_ne_bytes(b.try_into().unwrap_or([0; 8]));
    let base = auxv.chunks_exact(16).find(|e| word(&e[..8]) == AT_SYSINFO_EHDR).map(|e| word(&e[8..]))?;
    Some((base, kernel.syscall))
}

/// Where the auxiliary vector of a new image is.
pub struct Auxv {
    /// Address of the value of AT_SYSINFO_EHDR, and the value.
    pub slot: u64,
    pub vdso: u64,
    /// The vector, its end mark included.
    start: u64,
    end: u64,
}

/// Finds the auxiliary vector on a new image's stack; None when it names no vDSO.
pub fn find_auxv(tid: Tid, rsp: u64) -> io::Result<Option<Auxv>> {
    // argc, argv.., 0, envp.., 0, then pairs. Strings may make argv long: read on page by page.
    let (mut at, mut zeros, mut pending) = (rsp + 8, 0, None);
    let (mut start, mut found) = (0, None);
    let mut words = [0u64; 64];
    loop {
        // Up to the end of a page: a stack with few strings ends soon after the vector, and nothing is behind it.
        let count = words.len().min(((4096 - at % 4096) / 8) as usize);
        memory::read_words(tid, GuestPtr(at), &mut words[..count])?;
        for (i, w) in words[..count].iter().enumerate() {
            let here = at + 8 * i as u64;
            if zeros < 2 {
                zeros += u32::from(*w == 0);
                start = here + 8;
            } else if let Some(key) = pending.take() {
                match key {
                    AT_SYSINFO_EHDR => found = Some((here, *w)),
                    0 => return Ok(found.map(|(slot, vdso)| Auxv { slot, vdso, start, end: here + 8 })),
                    _ => {}
                }
            } else {
                pending = Some(*w);
            }
        }
        at += 8 * count as u64;
    }
}

/// A `struct prctl_mm_map` that changes nothing but the kernel's copy of the auxiliary vector.
pub fn mm_map(tid: Tid, auxv: &Auxv) -> Option<[u64; 13]> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", tid.0)).ok()?;
    // The name may hold spaces and brackets; the third field follows the last bracket.
    let fields: Vec<u64> =
        stat.rsplit_once(')')?.1.split_whitespace().map(|f| f.parse::<i128>().unwrap_or(0) as u64).collect();
    let field = |n: usize| fields.get(n - 3).copied();
    let (start_brk, no_exe) = (field(47)?, u64::from(u32::MAX) << 32);
    Some([
        field(26)?,
        field(27)?,
        field(45)?,
        field(46)?,
        start_brk,
        // At an exec the break is where it starts.
        start_brk,
        field(28)?,
        field(48)?,
        field(49)?,
        field(50)?,
        field(51)?,
        auxv.start,
        no_exe | (auxv.end - auxv.start),
    ])
}

/// Lets a thread run to its next trap, all other signals being blocked that can be. A SIGSTOP stops the process as it would
/// any, and the thread goes on nonetheless: once it is let go it stops too, unless a SIGCONT came.
fn to_trap(mut s: Stopped) -> Result<Next, ExecError> {
    let (mut kicked, mut signal) = (false, 0);
    loop {
        s = match go(s, |s| s.resume(signal))? {
            Next::Stopped(s) => s,
            Next::Gone => return Ok(Next::Gone),
        };
        signal = 0;
        match s.why {
            Why::Interrupt => {}
            Why::Signal(libc::SIGSTOP, _) => signal = libc::SIGSTOP,
            Why::Signal(libc::SIGTRAP, SI_QUEUE) => kicked = true,
            _ => break,
        }
    }
    if kicked {
        traced::kick(s.tid())?;
    }
    Ok(Next::Stopped(s))
}

fn expect_trap(s: &Stopped, during: &'static str) -> Result<(), ExecError> {
    match s.why {
        Why::Signal(libc::SIGTRAP, _) => Ok(()),
        why => Err(ExecError::Stop { tid: s.tid(), why, during }),
    }
}

fn into_frame(
    s: Stopped,
    regs: &Regs,
    fd: u64,
    node: &NodeFrame,
    kernel: &KernelVdso,
    lineage: u64,
    begins: Begins,
) -> Result<Outcome, ExecError> {
    let tid = s.tid();
    if s.why != Why::Interrupt {
        return Err(ExecError::Stop { tid, why: s.why, during: "leaving execve" });
    }
    let regs = *regs;
    if regs.cs != USER_CS_64 {
        return Err(ExecError::Not64Bit(tid));
    }
    let auxv = find_auxv(tid, regs.rsp)?.ok_or(ExecError::NoVdso(tid))?;
    let vdso = auxv.vdso;
    let mask = s.sigmask()?;
    // Other signals wait until the new image is ready; int3 must not be blocked.
    s.set_sigmask(!OURS)?;

    let failed = |what, r: u64| ExecError::Guest { tid, what, errno: -(r as i64) };
    let is_tight = process::limit(tid, process::RLIMIT_STACK, None).is_ok_and(|l| l.rlim_cur < STACK_AMPLE);
    let (s, other_stack) = if is_tight {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let (s, r) = call!(
            s,
            &regs,
            vdso + kernel.syscall,
            SYS_MMAP,
            [0, OTHER_STACK_LEN, PROT_READ_WRITE, flags as u64, u64::MAX, 0]
        );
        if r < 0 {
            return Err(failed("mapping a stack", r as u64));
        }
        (s, Some(r as u64))
    } else {
        (s, None)
    };
    let at = (other_stack.map_or(regs.rsp, |low| low + OTHER_STACK_LEN) - 512) & !15;
    let map = mm_map(tid, &auxv);
    let args = InitArgs {
        fd,
        node_off: image::mapped_len(),
        node_len: NODE_PAGE_LEN,
        kernel_clock_gettime: vdso + kernel.clock_gettime,
        kernel_getcpu: if kernel.getcpu == 0 { 0 } else { vdso + kernel.getcpu },
        kernel_getrandom: if kernel.getrandom == 0 { 0 } else { vdso + kernel.getrandom },
        auxv_slot: auxv.slot,
        lineage,
        mm_map: if map.is_some() { at + size_of::<InitArgs>() as u64 } else { 0 },
    };
    let entry = BLOB_ADDR + image::offset("diecast_blob_init").ok_or(ExecError::NoVdso(tid))?;
    // Where mapping the blob returns to, then the arguments.
    let words: Vec<u64> = [0, entry].into_iter().chain(args.words()).chain(map.into_iter().flatten()).collect();
    memory::write_words(tid, GuestPtr(at - 16), &words)?;

    let mapping = [BLOB_ADDR, image::mapped_len(), PROT_READ_EXEC, MAP_PRIVATE_FIXED_NOREPLACE, fd, 0];
    let mut r = regs;
    (r.rbx, r.rsp) = (at, at - 8);
    // Debuggers' programs, which start seldom, take the longer way everywhere, so that it is walked on every kernel.
    let short = kernel.syscall_ret.filter(|_| begins == Begins::Free);
    let s = if let Some(returns) = short {
        (r.rax, r.orig_rax, r.rip) = (SYS_MMAP, u64::MAX, vdso + returns);
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = mapping;
        s.set_regs(&r)?;
        stopped!(to_trap(s))
    } else {
        let (s, mapped) = call!(s, &r, vdso + kernel.syscall, SYS_MMAP, mapping);
        expect_trap(&s, "mapping the blob")?;
        if mapped as u64 != BLOB_ADDR {
            return Err(failed("mapping the blob", mapped as u64));
        }
        (r.rip, r.orig_rax) = (entry, u64::MAX);
        s.set_regs(&r)?;
        stopped!(to_trap(s))
    };
    let now = s.regs()?;
    if now.rip == entry {
        // It returned to where nothing is mapped.
        return Err(failed("mapping the blob", now.rax));
    }
    expect_trap(&s, "initialising the blob")?;
    let result = now.rax as i64;
    if result != 0 {
        return Err(failed("initialising the blob", now.rax));
    }
    let s = match other_stack {
        Some(low) => call!(s, &regs, vdso + kernel.syscall, SYS_MUNMAP, [low, OTHER_STACK_LEN, 0, 0, 0, 0]).0,
        None => s,
    };

    let mask = mask & !node.never_masked();
    let mut back = regs;
    back.orig_rax = u64::MAX;
    if begins == Begins::Traced {
        let at = (regs.rsp - 512) & !15;
        let start = TracedStart::new(regs.rip, regs.rsp, regs.eflags, regs.cs, regs.ss, mask);
        let trace = image::offset("diecast_blob_trace").ok_or(ExecError::NoVdso(tid))?;
        s.poke(GuestPtr(at), &start.words())?;
        (back.rsp, back.rip) = (at, BLOB_ADDR + trace);
    }
    s.set_regs(&back)?;
    s.set_sigmask(mask)?;
    // Handlers are installed: only now may it be hit.
    let unmetered = |source| ExecError::Meter { tid, source };
    let meter = match node.ticks() {
        _ if !node.cpu.metered || begins != Begins::Free => None,
        Some(ticks) => {
            ticks.begin(tid).map_err(unmetered)?;
            None
        }
        None => {
            let m = Meter::open(tid, node.cpu.grain_ns, METER_MAGIC, node.cpu.count_kernel).map_err(unmetered)?;
            m.enable().map_err(unmetered)?;
            Some(m)
        }
    };
    s.detach(0)?;
    Ok(Outcome::Framed { meter })
}
