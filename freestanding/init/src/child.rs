//! From a start request to a running program.
//!
//! [`Prepared`] does every allocation before the fork. [`Prepared::run`] is the child: raw system calls on
//! that memory. Once the filter is installed its envelope has no handler yet, so the child must not make
//! a call that the filter traps (signal masks and actions, clocks, sleeps, waits with a timeout, clone3,
//! socket timeouts): only the calls in [`Prepared::run_filtered`] are left.

use crate::sys::{FIRST_FREE_FD, move_up};
use diecast_init_protocol::{HANDSHAKE_MAGIC, Start, User};
use libc::{c_char, c_int, c_long, c_ulong, syscall};
use std::ffi::CString;
use std::io::Error;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{null, null_mut};

/// Where the child keeps the write end of the pipe that reports a failure, and the handshake socket.
const FAILURE_FD: RawFd = 3;
const HANDSHAKE_FD: RawFd = 4;
const _: () = assert!(FIRST_FREE_FD > HANDSHAKE_FD);

/// Where a program without a slash is looked for when its environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What containers usually keep (the default set of Docker): CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL,
/// SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, NET_RAW, SYS_CHROOT, MKNOD, AUDIT_WRITE, SETFCAP.
const CAPABILITIES: u64 = 1 << 0
    | 1 << 1
    | 1 << 3
    | 1 << 4
    | 1 << 5
    | 1 << 6
    | 1 << 7
    | 1 << 8
    | 1 << 10
    | 1 << 13
    | 1 << 18
    | 1 << 27
    | 1 << 29
    | 1 << 31;
/// SYS_NICE, for programs in a frame: the machine's root may raise priorities, and there the frame sees that no thread
/// becomes real-time on the host.
const SYS_NICE: u64 = 1 << 23;

/// In an envelope, whose filter keeps every call that sets a clock from the host's: the node's own can be set.
const SYS_TIME: u64 = 1 << 25;

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// Arguments of variadic calls need their full width: the kernel checks all 64 bits of prctl's.
const ZERO: c_ulong = 0;
const ONE: c_ulong = 1;
const PR_CAP_AMBIENT: c_ulong = libc::PR_CAP_AMBIENT as c_ulong;
const PR_CAP_AMBIENT_CLEAR_ALL: c_ulong = libc::PR_CAP_AMBIENT_CLEAR_ALL as c_ulong;
const PR_CAPBSET_READ: c_ulong = libc::PR_CAPBSET_READ as c_ulong;
const PR_CAPBSET_DROP: c_ulong = libc::PR_CAPBSET_DROP as c_ulong;
/// linux/seccomp.h; the libc crate has no name for the last one.
const SECCOMP_SET_MODE_FILTER: c_long = 1;
const SECCOMP_FILTER_FLAG_NEW_LISTENER: c_long = 1 << 3;
const SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV: c_long = 1 << 5;

/// A step that failed, with its operand.
pub struct Failure {
    pub errno: i32,
    pub what: String,
}

/// Steps of the child; the number goes through the pipe when one fails.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Step {
    Session = 1,
    Descriptors,
    Signals,
    Directory,
    Affinity,
    Priority,
    TimerSlack,
    NoNewPrivs,
    Filter,
    Handshake,
    Capabilities,
    Identity,
    Exec,
}

/// Operands for messages, kept by the parent.
pub struct Names {
    program: String,
    cwd: String,
    cpus: Vec<u32>,
}

/// Everything that the child needs, in memory that it only reads.
pub struct Prepared {
    fds: Vec<OwnedFd>,
    _strings: Vec<CString>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    candidates: Vec<CString>,
    cwd: CString,
    user: Option<User>,
    filter: Vec<libc::sock_filter>,
    no_new_privs: bool,
    keep_caps: bool,
    cpus: Option<libc::cpu_set_t>,
    timer_slack_ns: Option<u64>,
    names: Names,
}

impl Prepared {
    pub fn new(start: Start, fds: Vec<OwnedFd>) -> Result<Prepared, Failure> {
        let expected = if start.filter.is_empty() { 3 } else { 4 };
        if fds.len() != expected {
            return Err(invalid(format!("start request with {} descriptors, expected {expected}", fds.len())));
        }
        let Some(program) = start.argv.first().filter(|p| !p.is_empty()).cloned() else {
            return Err(invalid("start request without a program".into()));
        };
        let filter = start.filter.chunks_exact(size_of::<libc::sock_filter>());
        if !filter.remainder().is_empty() || filter.len() > usize::from(u16::MAX) {
            return Err(invalid(format!("filter of {} bytes is no array of instructions", start.filter.len())));
        }
        // SAFETY: sock_filter is plain data without padding or invalid values, and each chunk has its size.
        let filter =
            filter.map(|bytes| unsafe { bytes.as_ptr().cast::<libc::sock_filter>().read_unaligned() }).collect();
        let names = Names {
            program: String::from_utf8_lossy(&program).into_owned(),
            cwd: String::from_utf8_lossy(&start.cwd).into_owned(),
            cpus: start.cpus.clone(),
        };
        let path = start.env.iter().find_map(|e| e.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH);
        let candidates = candidates(&program, path).into_iter().map(c_string).collect::<Result<_, _>>()?;
        let argc = start.argv.len();
        let strings: Vec<CString> = start.argv.into_iter().chain(start.env).map(c_string).collect::<Result<_, _>>()?;
        let (argv, envp) = strings.split_at(argc);
        let terminated = |list: &[CString]| list.iter().map(|s| s.as_ptr()).chain([null()]).collect();
        Ok(Prepared {
            argv: terminated(argv),
            envp: terminated(envp),
            _strings: strings,
            fds,
            candidates,
            cwd: c_string(start.cwd)?,
            user: start.user,
            filter,
            no_new_privs: start.no_new_privs,
            keep_caps: start.keep_caps,
            cpus: cpu_set(&start.cpus)?,
            timer_slack_ns: start.timer_slack_ns,
            names,
        })
    }

    /// Forks the child; gives its pid and the read end of the pipe that [`read_failure`] wants.
    pub fn fork(self) -> Result<(i32, OwnedFd, Names), Failure> {
        let mut pipe = [0; 2];
        // SAFETY: pipe2 fills the array with two descriptors that become owned here; init has one thread,
        // so the child of fork may go on as if nothing had happened, and `run` never returns.
        unsafe {
            if libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) < 0 {
                return Err(failed("create a pipe"));
            }
            let [read, write] = pipe.map(|fd| move_up(OwnedFd::from_raw_fd(fd)));
            let (Ok(read), Ok(write)) = (read, write) else {
                return Err(failed("duplicate a pipe"));
            };
            match libc::fork() {
                -1 => Err(failed("fork")),
                0 => self.run(write.as_raw_fd()),
                pid => Ok((pid, read, self.names)),
            }
        }
    }

    /// The child.
    ///
    /// # Safety
    /// Only in a freshly forked process with one thread; never returns.
    unsafe fn run(&self, failure_fd: RawFd) -> ! {
        // SAFETY: integers, and pointers into `self`, which lives until the exec.
        unsafe {
            // Duplicates first: from here on `fail` can report.
            if libc::dup2(failure_fd, FAILURE_FD) < 0 || libc::fcntl(FAILURE_FD, libc::F_SETFD, libc::FD_CLOEXEC) < 0 {
                libc::_exit(127);
            }
            for (target, source) in self.fds.iter().take(3).enumerate() {
                require(libc::dup2(source.as_raw_fd(), target as c_int) as c_long, Step::Descriptors);
            }
            let first_closed = if let Some(handshake) = self.fds.get(3) {
                require(libc::dup2(handshake.as_raw_fd(), HANDSHAKE_FD) as c_long, Step::Descriptors);
                require(libc::fcntl(HANDSHAKE_FD, libc::F_SETFD, libc::FD_CLOEXEC) as c_long, Step::Descriptors);
                HANDSHAKE_FD + 1
            } else {
                FAILURE_FD + 1
            };
            // All others are close-on-exec anyway; closing them early keeps init's socket out of the way.
            if syscall(libc::SYS_close_range, first_closed as c_ulong, c_ulong::from(u32::MAX), ZERO) < 0 {
                (first_closed..1024).for_each(|fd| {
                    libc::close(fd);
                });
            }
            require(libc::setsid() as c_long, Step::Session);
            reset_signals();
            libc::umask(0o022);
            require(libc::chdir(self.cwd.as_ptr()) as c_long, Step::Directory);
            if let Some(set) = &self.cpus {
                require(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) as c_long, Step::Affinity);
            }
            // Whatever diecast itself was started with: a machine's programs begin with the usual ones.
            let param = libc::sched_param { sched_priority: 0 };
            require(libc::sched_setscheduler(0, libc::SCHED_OTHER, &param) as c_long, Step::Priority);
            require(libc::setpriority(libc::PRIO_PROCESS, 0, 0) as c_long, Step::Priority);
            if let Some(slack_ns) = self.timer_slack_ns {
                require(libc::prctl(libc::PR_SET_TIMERSLACK, slack_ns) as c_long, Step::TimerSlack);
            }
            if self.no_new_privs {
                require(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, ONE, ZERO, ZERO, ZERO) as c_long, Step::NoNewPrivs);
            }
            if !self.filter.is_empty() {
                self.install_filter();
            }
            self.run_filtered()
        }
    }

    /// Installs the filter, hands its listener over and waits for the word to go on.
    ///
    /// # Safety
    /// As [`Prepared::run`].
    unsafe fn install_filter(&self) {
        // SAFETY: `program` points to the filter in `self`; the message's parts live on this stack.
        unsafe {
            let program = libc::sock_fprog { len: self.filter.len() as u16, filter: self.filter.as_ptr().cast_mut() };
            let mut listener = -1;
            for flags in [
                SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
                SECCOMP_FILTER_FLAG_NEW_LISTENER,
            ] {
                listener = syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
                if listener >= 0 || *libc::__errno_location() != libc::EINVAL {
                    break;
                }
            }
            require(listener, Step::Filter);
            let mut text = [0u8; 8];
            text[..4].copy_from_slice(&HANDSHAKE_MAGIC);
            text[4..].copy_from_slice(&(syscall(libc::SYS_getpid) as u32).to_le_bytes());
            let mut iov = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() };
            let mut control = [0u64; 4];
            let mut message: libc::msghdr = zeroed();
            message.msg_iov = &mut iov;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(listener as c_int);
            require(syscall(libc::SYS_sendmsg, HANDSHAKE_FD, &message, libc::MSG_NOSIGNAL), Step::Handshake);
            syscall(libc::SYS_close, listener);
            let mut go = 0u8;
            if require(syscall(libc::SYS_read, HANDSHAKE_FD, &mut go, ONE), Step::Handshake) == 0 {
                // Nobody supervises: the program must not run outside of its frame.
                fail(Step::Handshake, libc::ECONNRESET);
            }
            syscall(libc::SYS_close, HANDSHAKE_FD);
        }
    }

    /// Drops rights, takes the identity and runs the program.
    ///
    /// # Safety
    /// As [`Prepared::run`].
    unsafe fn run_filtered(&self) -> ! {
        let keeps = CAPABILITIES | if self.filter.is_empty() { 0 } else { SYS_NICE | SYS_TIME };
        // SAFETY: integers, and pointers into `self`, which lives until the exec.
        unsafe {
            if !self.keep_caps {
                syscall(libc::SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, ZERO, ZERO, ZERO);
                for capability in 0..64 as c_ulong {
                    // -1 past the last one that this kernel knows.
                    if keeps & (1 << capability) == 0 && syscall(libc::SYS_prctl, PR_CAPBSET_READ, capability) == 1 {
                        require(syscall(libc::SYS_prctl, PR_CAPBSET_DROP, capability), Step::Capabilities);
                    }
                }
            }
            if let Some(user) = &self.user {
                require(syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()), Step::Identity);
                require(syscall(libc::SYS_setresgid, user.gid, user.gid, user.gid), Step::Identity);
                require(syscall(libc::SYS_setresuid, user.uid, user.uid, user.uid), Step::Identity);
            }
            if !self.keep_caps {
                // Another user than root has lost permitted and effective with the change of identity.
                let header = [CAPABILITY_VERSION_3, 0];
                let mut sets = [[0u32; 3]; 2];
                require(syscall(libc::SYS_capget, &header, &mut sets), Step::Capabilities);
                for (index, [effective, permitted, inheritable]) in sets.iter_mut().enumerate() {
                    let keep = (keeps >> (32 * index)) as u32;
                    (*effective, *permitted, *inheritable) = (*effective & keep, *permitted & keep, 0);
                }
                require(syscall(libc::SYS_capset, &header, &sets), Step::Capabilities);
            }
            let mut errno = libc::ENOENT;
            for candidate in &self.candidates {
                // Each exec costs the supervisor a round trip, so ask first.
                if syscall(libc::SYS_faccessat, libc::AT_FDCWD, candidate.as_ptr(), libc::X_OK) == 0 {
                    syscall(libc::SYS_execve, candidate.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr());
                }
                match *libc::__errno_location() {
                    libc::ENOENT | libc::ENOTDIR => {}
                    // As in execvp: a directory further on may hold one that we may run.
                    libc::EACCES => errno = libc::EACCES,
                    other => fail(Step::Exec, other),
                }
            }
            fail(Step::Exec, errno)
        }
    }
}

/// Every signal unblocked and with its default action: whatever started `diecast` may ignore some, and an exec
/// keeps that. Raw calls, because the C library refuses the two signals that it uses itself.
///
/// # Safety
/// As [`Prepared::run`].
unsafe fn reset_signals() {
    /// Bytes of the kernel's own signal set.
    const SET_BYTES: c_ulong = 8;
    // The kernel's sigaction (four words), all zero: SIG_DFL, no flags.
    let default = [ZERO; 4];
    for signo in (1..=64).filter(|signo| ![libc::SIGKILL, libc::SIGSTOP].contains(signo)) {
        // SAFETY: the action lives on this stack and has the kernel's layout.
        let result = unsafe { syscall(libc::SYS_rt_sigaction, signo, &default, null_mut::<u64>(), SET_BYTES) };
        // SAFETY: as of this function.
        unsafe { require(result, Step::Signals) };
    }
    let none = ZERO;
    // SAFETY: the set lives on this stack.
    let result = unsafe { syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &none, null_mut::<u64>(), SET_BYTES) };
    // SAFETY: as of this function.
    unsafe { require(result, Step::Signals) };
}

/// The result of a call that must not fail.
///
/// # Safety
/// As [`Prepared::run`].
unsafe fn require(result: c_long, step: Step) -> c_long {
    if result < 0 {
        // SAFETY: errno belongs to the call just made.
        unsafe { fail(step, *libc::__errno_location()) };
    }
    result
}

/// Writes step and errno to the pipe and ends the child.
///
/// # Safety
/// As [`Prepared::run`].
unsafe fn fail(step: Step, errno: c_int) -> ! {
    let report = [step as i32, errno];
    // SAFETY: the report lives on this stack.
    unsafe {
        syscall(libc::SYS_write, FAILURE_FD, report.as_ptr(), size_of_val(&report));
        syscall(libc::SYS_exit_group, 127);
    }
    std::process::abort()
}

/// What the child has written to its pipe; `None` when an exec closed it.
pub fn read_failure(pipe: &OwnedFd, names: &Names) -> Option<Failure> {
    let mut report = [0i32; 2];
    // SAFETY: the report's own pointer and size; any bytes are valid integers.
    let length = unsafe { libc::read(pipe.as_raw_fd(), report.as_mut_ptr().cast(), size_of_val(&report)) };
    if length != size_of_val(&report) as isize {
        return None;
    }
    let [step, errno] = report;
    let what = match step {
        s if s == Step::Session as i32 => "start a session".into(),
        s if s == Step::Descriptors as i32 => "set up descriptors".into(),
        s if s == Step::Signals as i32 => "reset signals".into(),
        s if s == Step::Directory as i32 => format!("change to directory '{}'", names.cwd),
        s if s == Step::Affinity as i32 => format!("pin to cpus {:?}", names.cpus),
        s if s == Step::Priority as i32 => "set policy and nice value".into(),
        s if s == Step::TimerSlack as i32 => "set the timer slack".into(),
        s if s == Step::NoNewPrivs as i32 => "set no_new_privs".into(),
        s if s == Step::Filter as i32 => "install the seccomp filter".into(),
        s if s == Step::Handshake as i32 => "hand the seccomp listener over".into(),
        s if s == Step::Capabilities as i32 => "drop capabilities".into(),
        s if s == Step::Identity as i32 => "change user and group".into(),
        _ => format!("execute '{}'", names.program),
    };
    Some(Failure { errno, what })
}

fn candidates(program: &[u8], path: &[u8]) -> Vec<Vec<u8>> {
    if program.contains(&b'/') {
        return vec![program.to_vec()];
    }
    let directories = path.split(|b| *b == b':').map(|d| if d.is_empty() { b".".as_slice() } else { d });
    directories.map(|d| [d, b"/", program].concat()).collect()
}

fn cpu_set(cpus: &[u32]) -> Result<Option<libc::cpu_set_t>, Failure> {
    if cpus.is_empty() {
        return Ok(None);
    }
    // SAFETY: an all-zero set is the empty set.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    for cpu in cpus {
        if *cpu as usize >= libc::CPU_SETSIZE as usize {
            return Err(invalid(format!("cpu {cpu} is over {}", libc::CPU_SETSIZE - 1)));
        }
        // SAFETY: the index is inside the set.
        unsafe { libc::CPU_SET(*cpu as usize, &mut set) };
    }
    Ok(Some(set))
}

fn c_string(bytes: Vec<u8>) -> Result<CString, Failure> {
    CString::new(bytes).map_err(|e| invalid(format!("a zero byte in '{}'", String::from_utf8_lossy(&e.into_vec()))))
}

fn invalid(what: String) -> Failure {
    Failure { errno: libc::EINVAL, what }
}

fn failed(what: &str) -> Failure {
    Failure { errno: Error::last_os_error().raw_os_error().unwrap_or(libc::EIO), what: what.into() }
}
