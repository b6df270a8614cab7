//! Small things about processes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{GuestPtr, Tid, check};

/// Orphaned descendants become children of this process.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: no pointer argument.
    check(i64::from(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })).map(|_| ())
}

/// Gives up new privileges at exec, which lets an ordinary user install a filter. Usable after fork.
pub fn set_no_new_privs() -> io::Result<()> {
    // SAFETY: no pointer argument.
    check(i64::from(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })).map(|_| ())
}

/// The signal that the calling process gets when its parent dies. Usable after fork.
pub fn set_parent_death_signal(signal: i32) -> io::Result<()> {
    // SAFETY: no pointer argument.
    check(i64::from(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) })).map(|_| ())
}

/// True for the superuser.
pub fn is_root() -> bool {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Sends a signal to a process.
pub fn kill(pid: Tid, signal: i32) -> io::Result<()> {
    // SAFETY: no pointer argument.
    check(i64::from(unsafe { libc::kill(pid.0, signal) })).map(|_| ())
}

/// Whether two threads have one table of descriptors. False where the kernel doesn't tell.
pub fn share_descriptors(a: Tid, b: Tid) -> bool {
    const KCMP_FILES: i32 = 2;
    // SAFETY: no pointer argument.
    unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, KCMP_FILES, 0, 0) == 0 }
}

/// A limit of a process: what it is kept to, and what it may raise that to.
pub type Limit = libc::rlimit;
pub use libc::{RLIMIT_NOFILE, RLIMIT_STACK};

/// A limit of a thread's process, and if one is given, sets it.
pub fn limit(tid: Tid, which: u32, new: Option<&Limit>) -> io::Result<Limit> {
    let mut old = Limit { rlim_cur: 0, rlim_max: 0 };
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: none or a live rlimit to read, and one to write.
    check(i64::from(unsafe { libc::prlimit(tid.0, which, new, &raw mut old) }))?;
    Ok(old)
}

/// Queues a signal with a word of data for one thread, as sigqueue(3) does.
pub fn queue_signal(pid: Tid, tid: Tid, signal: i32, word: u64) -> io::Result<()> {
    const SI_QUEUE: i32 = -1;
    #[repr(C)]
    struct Info {
        head: [i32; 4],
        sender: [i32; 2],
        word: u64,
        rest: [u64; 12],
    }
    const _: () = assert!(size_of::<Info>() == 128);
    let info = Info { head: [signal, 0, SI_QUEUE, 0], sender: [0; 2], word, rest: [0; 12] };
    // SAFETY: the kernel reads a siginfo_t, which has this size and no pointer that it would follow.
    let r = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid.0, tid.0, signal, &raw const info) };
    check(r).map(|_| ())
}

/// Where a thread is that does not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The system call that it is in and its first argument.
    pub call: Option<(i64, u64)>,
    /// Where it will go on.
    pub at: GuestPtr,
}

/// Where a thread is; None while it runs, or when it is gone.
pub fn place_of(pid: Tid, tid: Tid) -> Option<Place> {
    parse_place(&std::fs::read_to_string(format!("/proc/{}/task/{}/syscall", pid.0, tid.0)).ok()?)
}

/// `NUMBER ARGUMENT... STACK AT`, `-1 STACK AT` outside of a call, or `running`.
fn parse_place(text: &str) -> Option<Place> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let at = GuestPtr(hex(words.last()?)?);
    let call = match words[..] {
        [number, first, _, _, _, _, _, _, _] => Some((number.parse().ok()?, hex(first)?)),
        _ => None,
    };
    Some(Place { call, at })
}

/// Raises the soft limit of open descriptors to the hard one and returns it.
pub fn raise_descriptor_limit() -> u64 {
    // SAFETY: a live rlimit.
    unsafe {
        let mut l: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut l) == 0 {
            l.rlim_cur = l.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const l);
        }
        l.rlim_cur
    }
}

/// A descriptor that becomes readable when written to from any thread.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointer argument.
    let fd = check(i64::from(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }))?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Adds one to an eventfd.
pub fn notify(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight live bytes.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Empties an eventfd.
pub fn drain(fd: &OwnedFd) {
    let mut n = 0u64;
    // SAFETY: eight live bytes.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut n).cast(), 8) };
}

/// Waits for descriptors: for each, 0, or POLLIN / POLLHUP / POLLERR bits.
pub fn poll(fds: &[RawFd], timeout_ms: i32) -> io::Result<Vec<i16>> {
    let mut p: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    loop {
        // SAFETY: `p` has `len` entries.
        let r = unsafe { libc::poll(p.as_mut_ptr(), p.len() as libc::nfds_t, timeout_ms) };
        match check(i64::from(r)) {
            Ok(_) => return Ok(p.iter().map(|x| x.revents).collect()),
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => continue,
            Err(e) => return Err(e),
        }
    }
}

/// Registers code that runs in the child between fork and exec.
pub fn before_exec<F>(command: &mut std::process::Command, f: F)
where
    F: FnMut() -> io::Result<()> + Send + Sync + 'static,
{
    use std::os::unix::process::CommandExt;
    // SAFETY: callers pass closures that make plain system calls only and do not allocate.
    unsafe { command.pre_exec(f) };
}

/// Installs a handler that makes async-signal-safe calls only.
pub fn on_signal(signal: i32, handler: extern "C" fn(libc::c_int)) {
    install(signal, handler as *const () as usize, 0);
}

/// The same with what comes with the signal.
pub(crate) fn on_signal_with(
    signal: i32,
    handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void),
) {
    install(signal, handler as *const () as usize, libc::SA_SIGINFO);
}

fn install(signal: i32, handler: usize, flags: libc::c_int) {
    // SAFETY: zero is a valid sigaction; the handler lives for ever.
    unsafe {
        let mut a: libc::sigaction = std::mem::zeroed();
        a.sa_sigaction = handler;
        a.sa_flags = libc::SA_RESTART | flags;
        libc::sigaction(signal, &raw const a, std::ptr::null_mut());
    }
}

/// Is this signal ignored? Programs that are started afterwards inherit that, and only that.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: zero is a valid sigaction; the kernel fills it.
    unsafe {
        let mut a: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut a);
        a.sa_sigaction == libc::SIG_IGN
    }
}

/// A thread's number in the innermost of its pid namespaces, which it knows itself by.
pub fn number_inside(tid: Tid) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", tid.0)).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

static SIGCHLD_IGNORED: AtomicBool = AtomicBool::new(false);

/// Where SIGCHLD was ignored by whoever started this process, the kernel would take its children's statuses away, which it
/// waits for: it no longer is. For the beginning of a program.
pub fn keep_statuses() {
    if is_ignored(libc::SIGCHLD) {
        SIGCHLD_IGNORED.store(true, Ordering::Relaxed);
        // SAFETY: changes a disposition to the default.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
}

/// SIGCHLD as [`keep_statuses`] found it. For a child before its exec: async-signal-safe.
pub fn give_sigchld_back() {
    if SIGCHLD_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: changes a disposition.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    }
}

/// The calling thread's signal mask.
pub fn signal_mask() -> libc::sigset_t {
    // SAFETY: zero is a valid sigset_t; the kernel fills it.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        mask
    }
}

/// Sets the calling thread's signal mask. Can be used between fork and exec.
pub fn set_signal_mask(mask: &libc::sigset_t) {
    // SAFETY: reads one sigset_t.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// A descriptor that becomes readable when a process ends.
pub fn pidfd(pid: Tid) -> io::Result<OwnedFd> {
    // SAFETY: no pointer argument.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.0, 0) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A descriptor of the calling thread. Linux 6.9 or later.
pub fn pidfd_of_this_thread() -> io::Result<OwnedFd> {
    const PIDFD_THREAD: libc::c_int = libc::O_EXCL;
    // SAFETY: no pointer argument.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::gettid(), PIDFD_THREAD) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Takes the wait status of a child that has ended; None when it has not, or is no child.
///
/// Only for a process that is known to be dead: the kernel shows a parent the ptrace stops that another thread of
/// it, the supervisor's, waits for, and the one who sees a stop first consumes it.
pub fn reap(pid: Tid) -> Option<i32> {
    let mut status = 0;
    // SAFETY: a live local.
    let r = unsafe { libc::waitpid(pid.0, &raw mut status, libc::WNOHANG | libc::__WALL) };
    (r == pid.0).then_some(status)
}

/// Has Linux interrupt every core on which another thread of this process runs, by a memory barrier of all of them.
pub fn interrupt_own_threads() -> io::Result<()> {
    let command = |command: libc::c_int| {
        // SAFETY: the call takes numbers only.
        check(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }).map(drop)
    };
    match command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // The first time the process has to register.
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            command(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)?;
            command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_the_kernel_writes_it() {
        let inside = "45 0x3 0x7f00 0x1 0x0 0x0 0x0 0x7ffd10 0x7e9000001234\n";
        assert_eq!(parse_place(inside), Some(Place { call: Some((45, 3)), at: GuestPtr(0x7e90_0000_1234) }));
        assert_eq!(parse_place("-1 0x7ffd10 0x401000"), Some(Place { call: None, at: GuestPtr(0x40_1000) }));
        assert_eq!(parse_place("running\n"), None);
    }
}
