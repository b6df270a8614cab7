//! One table of system calls: it feeds the seccomp filter, the blob's dispatcher, LIMITS.md and the
//! conformance tests, so that none of them can drift from the others.
//!
//! A row says which register values make a call carry time. Everything else of that number passes at native
//! speed; numbers without a row pass through the kernel's per-call action cache without running the filter.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;

#[cfg(feature = "alloc")]
mod docs;
#[cfg(feature = "alloc")]
mod filter;
mod sites;

#[cfg(feature = "alloc")]
pub use docs::limits_table;
#[cfg(feature = "alloc")]
pub use filter::{FilterInsn, SeccompData, evaluate, filter, filter_bytes};
pub use sites::{BY_JUMP, comes_by_jump};

/// One question about a call's registers. Index counts from 0 (`a0` to `a5`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// The whole 64-bit argument is not zero.
    NonNull(u8),
    /// The low 32 bits, as a signed int, are greater than zero.
    IntPositive(u8),
    /// The low 32 bits, after clearing `clear`, are one of these.
    LowIn { arg: u8, clear: u32, values: &'static [u32] },
}

/// When a call is sent to the blob.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Whatever its arguments.
    Always,
    /// When any of these holds.
    Any(&'static [Test]),
    /// When all of these hold.
    All(&'static [Test]),
    /// When one of the first two holds, and the last.
    EitherAnd([Test; 2], Test),
    /// When argument 1 is one of these levels and argument 2 one of its names.
    Options(&'static [(u32, &'static [u32])]),
}

/// What happens to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// SECCOMP_RET_TRAP: the blob serves it when the condition holds and it does not come from the blob.
    Trap(When),
    /// SECCOMP_RET_USER_NOTIF: the supervisor sees it.
    Notify,
    /// The same, when one of these holds.
    NotifyIf(&'static [Test]),
    /// SECCOMP_RET_ERRNO with this number.
    Refuse(u16),
}

/// What kind of surface a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Reads a clock.
    Clock,
    /// Sleeps or waits with a timeout.
    Wait,
    /// Arms or reads a timer.
    Timer,
    /// An option that holds a time.
    Option,
    /// Signals and process creation: carries no time, but would make SIGSYS or SIGTRAP undeliverable.
    Signal,
    /// Which cores there are, and who may use them.
    Cores,
    /// Starts a new image.
    Exec,
    /// Not available inside a frame.
    Refused,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub nr: u32,
    pub name: &'static str,
    pub class: Class,
    pub action: Action,
    /// What is done, and what is not.
    pub note: &'static str,
    /// Name of the conformance guest that shows it.
    pub test: &'static str,
}

const EACCES: u16 = 13;
const ENOSYS: u16 = 38;
/// Opened for reading, and not a directory, a place in the tree or something new: O_ACCMODE, O_CREAT, O_DIRECTORY and
/// O_PATH are zero.
const fn reads(arg: u8) -> Test {
    LowIn { arg, clear: !0x21_0043, values: &[0] }
}
use Action::{Notify, NotifyIf, Refuse, Trap};
use Class::{Clock, Cores, Exec, Option as Opt, Refused, Signal, Timer, Wait};
use Test::{IntPositive, LowIn, NonNull};
use When::{All, Always, Any, EitherAnd, Options};

macro_rules! rows {
    ($(($nr:literal, $name:ident, $konst:ident, $class:expr, $action:expr, $note:literal, $test:literal)),* $(,)?) => {
        /// System call numbers of x86-64, one constant a row.
        pub mod nr {
            $(pub const $konst: u32 = $nr;)*
        }
        /// The table, in ascending order of numbers.
        pub const ROWS: &[Row] = &[
            $(Row { nr: $nr, name: stringify!($name), class: $class, action: $action, note: $note, test: $test }),*
        ];
    };
}

rows! {
    (2, open, OPEN, Clock, Trap(Any(&[reads(1)])), "for reading: files of /proc that tell time are shown in virtual time, see below", "procfs"),
    (4, stat, STAT, Clock, Trap(Always), "times of files that are newer than the lab, see below", "files"),
    (5, fstat, FSTAT, Clock, Trap(Always), "as stat", "files"),
    (6, lstat, LSTAT, Clock, Trap(Always), "as stat", "files"),
    (7, poll, POLL, Wait, Trap(Any(&[IntPositive(2)])), "served by ppoll, exact; after a seccomp filter of the program's own by poll, in whole real ms", "waits"),
    (8, lseek, LSEEK, Clock, Trap(All(&[LowIn { arg: 1, clear: 0, values: &[0] }, LowIn { arg: 2, clear: 0, values: &[0] }])), "to the beginning: a file of /proc that is shown in virtual time is made anew", "procfs"),
    (13, rt_sigaction, RT_SIGACTION, Signal, Trap(Always), "SIGSYS and SIGTRAP are virtual; sa_mask loses both", "signals"),
    (14, rt_sigprocmask, RT_SIGPROCMASK, Signal, Trap(Always), "SIGSYS and SIGTRAP are blocked in the program's view only", "signals"),
    (16, ioctl, IOCTL, Clock, Trap(Any(&[LowIn { arg: 1, clear: 0, values: &[0x8906, 0x8907, 0x8010_8906, 0x8010_8907] }])), "SIOCGSTAMP and SIOCGSTAMPNS; times of file systems and devices stay real", "stamps"),
    (23, select, SELECT, Wait, Trap(Any(&[NonNull(4)])), "remaining time written back in virtual time", "waits"),
    (31, shmctl, SHMCTL, Clock, Trap(Any(&[LowIn { arg: 1, clear: 0, values: &[2, 13, 15] }])), "times of the object, in whole real seconds mapped; /proc/sysvipc stays real", "stamps"),
    (35, nanosleep, NANOSLEEP, Wait, Trap(Any(&[NonNull(0)])), "remaining time in virtual time", "waits"),
    (36, getitimer, GETITIMER, Timer, Trap(Any(&[NonNull(1)])), "ITIMER_VIRTUAL and ITIMER_PROF in virtual CPU time", "timers"),
    (37, alarm, ALARM, Timer, Trap(Always), "served by setitimer for sub-second precision", "timers"),
    (38, setitimer, SETITIMER, Timer, Trap(Any(&[NonNull(1), NonNull(2)])), "ITIMER_VIRTUAL and ITIMER_PROF in virtual CPU time", "timers"),
    (54, setsockopt, SETSOCKOPT, Opt, Trap(Options(&[(1, &[13, 20, 21, 29, 35, 37, 47, 63, 64, 65, 66, 67]), (6, &[4, 5, 8, 9, 18, 37, 44, 45, 46]), (40, &[6, 8])])), "SO_RCVTIMEO, SO_SNDTIMEO, SO_VM_SOCKETS_CONNECT_TIMEOUT, SO_LINGER, SO_MAX_PACING_RATE, TCP_KEEPIDLE and TCP_KEEPINTVL (at most 32767 s of real time), TCP_LINGER2 (the kernel stops at 120 s), TCP_DEFER_ACCEPT, TCP_USER_TIMEOUT, TCP_TX_DELAY; TCP_RTO_MIN_US, TCP_DELACK_MAX_US and TCP_RTO_MAX_MS within what the kernel takes of real time (200 ms, 200 ms, 1 to 120 s); SO_TIMESTAMP and its kin: from then on recvmsg and recvmmsg of this process are translated (with no_new_privs where it lacks CAP_SYS_ADMIN)", "sockets"),
    (55, getsockopt, GETSOCKOPT, Opt, Trap(Options(&[(1, &[13, 20, 21, 47, 66, 67]), (6, &[4, 5, 8, 9, 11, 18, 26, 37, 44, 45, 46]), (40, &[6, 8])])), "as setsockopt, and TCP_INFO and TCP_CC_INFO (BBR's): times shrink, rates grow", "sockets"),
    (59, execve, EXECVE, Exec, Notify, "the supervisor maps the blob into the new image", "processes"),
    (61, wait4, WAIT4, Clock, Trap(Any(&[NonNull(3)])), "usage in virtual CPU time; what the meter cost a child is estimated by its part in the node", "usage"),
    (66, semctl, SEMCTL, Clock, Trap(Any(&[LowIn { arg: 2, clear: 0, values: &[2, 18, 20] }])), "as shmctl", "stamps"),
    (71, msgctl, MSGCTL, Clock, Trap(Any(&[LowIn { arg: 1, clear: 0, values: &[2, 11, 13] }])), "as shmctl", "stamps"),
    (96, gettimeofday, GETTIMEOFDAY, Clock, Trap(Any(&[NonNull(0), NonNull(1)])), "the time zone is the node's own", "clocks"),
    (97, getrlimit, GETRLIMIT, Clock, Trap(All(&[LowIn { arg: 0, clear: 0, values: &[0] }, NonNull(1)])), "RLIMIT_CPU, by speed", "usage"),
    (98, getrusage, GETRUSAGE, Clock, Trap(Always), "virtual CPU time; of children as wait4", "usage"),
    (99, sysinfo, SYSINFO, Clock, Trap(Any(&[NonNull(0)])), "uptime and load averages", "clocks"),
    (100, times, TIMES, Clock, Trap(Always), "virtual CPU time; the result counts from that of CLOCK_MONOTONIC", "usage"),
    (101, ptrace, PTRACE, Signal, NotifyIf(&[LowIn { arg: 0, clear: 0, values: &[0] }]), "PTRACE_TRACEME: the meter goes off first, see below", "tracers"),
    (127, rt_sigpending, RT_SIGPENDING, Signal, Trap(Always), "SIGSYS and SIGTRAP that the program blocks are among them", "signals"),
    (128, rt_sigtimedwait, RT_SIGTIMEDWAIT, Wait, Trap(Always), "relative; takes virtually pending SIGSYS and SIGTRAP", "waits"),
    (130, rt_sigsuspend, RT_SIGSUSPEND, Signal, Trap(Always), "the temporary mask loses SIGSYS and SIGTRAP", "signals"),
    (131, sigaltstack, SIGALTSTACK, Signal, Trap(Always), "one of less than 11 KiB is replaced by a larger one of the blob's; handlers run on the program's own", "signals"),
    (132, utime, UTIME, Clock, Trap(Any(&[NonNull(1)])), "as utimensat, which serves it", "files"),
    (135, personality, PERSONALITY, Cores, Trap(Always), "bits 8 to 15 and 28 to 31, which mean nothing to Linux, are the frame's", "cores"),
    (142, sched_setparam, SCHED_SETPARAM, Cores, Trap(Always), "as sched_setscheduler", "cores"),
    (143, sched_getparam, SCHED_GETPARAM, Cores, Trap(Always), "", "cores"),
    (144, sched_setscheduler, SCHED_SETSCHEDULER, Cores, Trap(Always), "SCHED_FIFO and SCHED_RR are judged, remembered and inherited as by the kernel, and come first by the ledger, not by the kernel", "cores"),
    (145, sched_getscheduler, SCHED_GETSCHEDULER, Cores, Trap(Always), "", "cores"),
    (148, sched_rr_get_interval, SCHED_RR_GET_INTERVAL, Cores, Trap(Always), "of real-time threads; others see the host's", "cores"),
    (157, prctl, PRCTL, Signal, Trap(Any(&[LowIn { arg: 0, clear: 0, values: &[21, 22, 25, 26, 29, 30, 59] }])), "timer slack is the program's view, one for all of its threads; a filter of its own is noted; PR_SET_TSC with `--tsc trap`; PR_SET_SYSCALL_USER_DISPATCH is refused with EINVAL, as it would take the meter's own calls", "usage"),
    (159, adjtimex, ADJTIMEX, Clock, Trap(Always), "the node's own clock: frequency, tick, slew, phase-locked loop, steps, leap seconds; needs CAP_SYS_TIME", "settime"),
    (160, setrlimit, SETRLIMIT, Clock, Trap(All(&[LowIn { arg: 0, clear: 0, values: &[0] }, NonNull(1)])), "RLIMIT_CPU, by speed; in a metered node it is met at hits of the meter, and the kernel's own is more than twice as long", "usage"),
    (164, settimeofday, SETTIMEOFDAY, Clock, Trap(Always), "the node's own clock and time zone; needs CAP_SYS_TIME", "settime"),
    (200, tkill, TKILL, Signal, Trap(Any(&[LowIn { arg: 1, clear: 0, values: &[5] }])), "of SIGTRAP, which a hit on its way would take the place of: sent once more", "sentraps"),
    (201, time, TIME, Clock, Trap(Always), "", "clocks"),
    (202, futex, FUTEX, Wait, Trap(EitherAnd([NonNull(3), LowIn { arg: 2, clear: 0, values: &[2] }], LowIn { arg: 1, clear: 0x180, values: &[0, 6, 9, 11, 13] })), "WAIT relative; LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2 absolute; waits for a 2, which stands for a contended lock, without a timeout too", "waits"),
    (203, sched_setaffinity, SCHED_SETAFFINITY, Cores, Trap(Always), "the node's cores; remembered and inherited; from its next hit on the ledger serves a thread on those alone; /proc/PID/status and stat show them", "cores"),
    (204, sched_getaffinity, SCHED_GETAFFINITY, Cores, Trap(Always), "the node's cores", "cores"),
    (208, io_getevents, IO_GETEVENTS, Wait, Trap(Any(&[NonNull(4)])), "relative", "waits"),
    (220, semtimedop, SEMTIMEDOP, Wait, Trap(Any(&[NonNull(3)])), "relative", "waits"),
    (222, timer_create, TIMER_CREATE, Timer, Trap(Always), "remembers the clock of each timer", "timers"),
    (223, timer_settime, TIMER_SETTIME, Timer, Trap(Any(&[NonNull(2)])), "CPU clocks in virtual CPU time, looked at after each hit of the meter", "timers"),
    (224, timer_gettime, TIMER_GETTIME, Timer, Trap(Any(&[NonNull(1)])), "", "timers"),
    (227, clock_settime, CLOCK_SETTIME, Clock, Trap(Always), "the node's own clock; needs CAP_SYS_TIME; what waits for an instant of it follows", "settime"),
    (228, clock_gettime, CLOCK_GETTIME, Clock, Trap(Any(&[NonNull(1)])), "all clock ids; CPU clocks in virtual CPU time", "clocks"),
    (229, clock_getres, CLOCK_GETRES, Clock, Trap(Any(&[NonNull(1)])), "coarse clocks have a tick divided by the TDF", "clocks"),
    (230, clock_nanosleep, CLOCK_NANOSLEEP, Wait, Trap(Any(&[NonNull(2)])), "relative and absolute", "waits"),
    (232, epoll_wait, EPOLL_WAIT, Wait, Trap(Always), "with a timeout served by epoll_pwait2, as poll; a thread whose packets tell what it uses sleeps first for what it owes", "waits"),
    (234, tgkill, TGKILL, Signal, Trap(Any(&[LowIn { arg: 2, clear: 0, values: &[5] }])), "as tkill", "sentraps"),
    (235, utimes, UTIMES, Clock, Trap(Any(&[NonNull(1)])), "as utime", "files"),
    (242, mq_timedsend, MQ_TIMEDSEND, Wait, Trap(Any(&[NonNull(4)])), "absolute", "waits"),
    (243, mq_timedreceive, MQ_TIMEDRECEIVE, Wait, Trap(Any(&[NonNull(4)])), "absolute", "waits"),
    (247, waitid, WAITID, Clock, Trap(Any(&[NonNull(4)])), "as wait4", "usage"),
    (250, keyctl, KEYCTL, Timer, Trap(Any(&[LowIn { arg: 0, clear: 0, values: &[15] }])), "KEYCTL_SET_TIMEOUT", "timers"),
    (257, openat, OPENAT, Clock, Trap(Any(&[reads(2)])), "as open", "procfs"),
    (261, futimesat, FUTIMESAT, Clock, Trap(Any(&[NonNull(2)])), "as utime", "files"),
    (262, newfstatat, NEWFSTATAT, Clock, Trap(Always), "as stat", "files"),
    (270, pselect6, PSELECT6, Wait, Trap(Any(&[NonNull(4), NonNull(5)])), "the temporary mask loses SIGSYS and SIGTRAP", "waits"),
    (271, ppoll, PPOLL, Wait, Trap(Any(&[NonNull(2), NonNull(3)])), "the temporary mask loses SIGSYS and SIGTRAP", "waits"),
    (272, unshare, UNSHARE, Refused, Trap(Any(&[LowIn { arg: 0, clear: !0x80, values: &[0x80] }])), "CLONE_NEWTIME is refused with EINVAL: the offset would lie under the frame's clocks", "refusals"),
    (280, utimensat, UTIMENSAT, Clock, Trap(Any(&[NonNull(2)])), "what stat shows is what was set", "files"),
    (281, epoll_pwait, EPOLL_PWAIT, Wait, Trap(Any(&[IntPositive(3), NonNull(4)])), "the temporary mask loses SIGSYS and SIGTRAP", "waits"),
    (282, signalfd, SIGNALFD, Signal, Trap(Always), "of SIGSYS and SIGTRAP alone: a socket with their records; of others too: see below", "blocked"),
    (286, timerfd_settime, TIMERFD_SETTIME, Timer, Trap(Any(&[NonNull(2)])), "for an absolute time it is first set far ahead, to tell its clock", "timers"),
    (287, timerfd_gettime, TIMERFD_GETTIME, Timer, Trap(Any(&[NonNull(1)])), "", "timers"),
    (289, signalfd4, SIGNALFD4, Signal, Trap(Always), "as signalfd", "blocked"),
    (298, perf_event_open, PERF_EVENT_OPEN, Refused, Refuse(EACCES), "its counts, stamps and mapped pages are in real time, and kernel.perf_event_paranoid refuses so", "refusals"),
    (299, recvmmsg, RECVMMSG, Wait, Trap(Any(&[NonNull(4)])), "", "waits"),
    (302, prlimit64, PRLIMIT64, Clock, Trap(All(&[LowIn { arg: 1, clear: 0, values: &[0] }])), "RLIMIT_CPU, as setrlimit", "usage"),
    (305, clock_adjtime, CLOCK_ADJTIME, Clock, Trap(Always), "as adjtimex; clocks but REALTIME refuse by themselves, or are the host's (CLOCK_AUX, PTP)", "settime"),
    (308, setns, SETNS, Refused, Trap(Any(&[LowIn { arg: 1, clear: !0x80, values: &[0x80] }, LowIn { arg: 1, clear: 0, values: &[0] }])), "into another time namespace is refused with EINVAL, as unshare", "refusals"),
    (309, getcpu, GETCPU, Cores, Trap(Always), "one of the node's cores that the thread may use", "cores"),
    (314, sched_setattr, SCHED_SETATTR, Cores, Trap(Always), "as sched_setscheduler; SCHED_DEADLINE is refused with EPERM", "cores"),
    (315, sched_getattr, SCHED_GETATTR, Cores, Trap(Always), "", "cores"),
    (317, seccomp, SECCOMP, Signal, Trap(Any(&[LowIn { arg: 0, clear: 0, values: &[0, 1] }])), "a copy with a way through for the blob's own calls; a call of the program's is judged by its own number; a listener is refused with EBUSY", "usage"),
    (322, execveat, EXECVEAT, Exec, Notify, "as execve", "processes"),
    (332, statx, STATX, Clock, Trap(Always), "as stat", "files"),
    (333, io_pgetevents, IO_PGETEVENTS, Wait, Trap(Any(&[NonNull(4), NonNull(5)])), "the temporary mask loses SIGSYS and SIGTRAP", "waits"),
    (334, rseq, RSEQ, Refused, Refuse(ENOSYS), "it would show the host's cores", "refusals"),
    (425, io_uring_setup, IO_URING_SETUP, Refused, Refuse(ENOSYS), "its timeouts can't be seen", "refusals"),
    (426, io_uring_enter, IO_URING_ENTER, Refused, Refuse(ENOSYS), "its timeouts can't be seen", "refusals"),
    (427, io_uring_register, IO_URING_REGISTER, Refused, Refuse(ENOSYS), "its timeouts can't be seen", "refusals"),
    (435, clone3, CLONE3, Signal, Trap(Always), "CLONE_CLEAR_SIGHAND is done by hand, so that SIGSYS stays ours; CLONE_NEWTIME is refused with EINVAL", "processes"),
    (437, openat2, OPENAT2, Clock, Trap(Always), "as open", "procfs"),
    (441, epoll_pwait2, EPOLL_PWAIT2, Wait, Trap(Always), "as epoll_wait; the temporary mask loses SIGSYS and SIGTRAP", "waits"),
    (449, futex_waitv, FUTEX_WAITV, Wait, Trap(Any(&[NonNull(3)])), "absolute", "waits"),
    (455, futex_wait, FUTEX_WAIT2, Wait, Trap(Any(&[NonNull(4)])), "absolute", "waits"),
}

#[cfg(test)]
mod tests;
