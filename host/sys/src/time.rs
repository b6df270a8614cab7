//! The host's clocks.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::{Tid, check};

/// A clock of the host in nanoseconds.
pub fn clock_ns(id: i32) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec.
    unsafe { libc::clock_gettime(id, &raw mut t) };
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// The processor's time stamp counter and CLOCK_MONOTONIC_RAW of the same instant, to some tens of ns: the closest of a
/// few looks.
pub fn tsc() -> (u64, u64) {
    const LOOKS: u32 = 32;
    let look = || {
        let before = clock_ns(libc::CLOCK_MONOTONIC_RAW);
        // SAFETY: reads a counter that every x86-64 processor has; where the kernel forbids it, that is our own doing.
        let ticks = unsafe { std::arch::x86_64::_rdtsc() };
        let after = clock_ns(libc::CLOCK_MONOTONIC_RAW);
        (after - before, ticks, before + (after - before) / 2)
    };
    let (_, ticks, raw_ns) = (0..LOOKS).map(|_| look()).min().unwrap_or_default();
    (ticks, raw_ns)
}

/// What the host's kernel says about its own REALTIME.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Bits of `struct timex`'s status.
    pub status: u32,
    pub maxerror_us: i64,
    pub esterror_us: i64,
    /// TAI minus REALTIME.
    pub tai_s: i64,
}

/// How well the host's REALTIME is kept.
pub fn kept() -> Kept {
    // SAFETY: plain integers; modes 0 only reads.
    let mut x: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: a live timex.
    unsafe { libc::adjtimex(&raw mut x) };
    Kept { status: x.status as u32, maxerror_us: x.maxerror, esterror_us: x.esterror, tai_s: i64::from(x.tai) }
}

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of the calling process in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the children that this process has waited for, and of theirs, in user mode and in the kernel, ns.
pub fn children_cpu_ns() -> (u64, u64) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills the struct, which is all zero until then, and valid so.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
    (ns(usage.ru_utime), ns(usage.ru_stime))
}

/// CPU time of another process, of all its threads that ever were, ns; 0 when it is gone.
pub fn process_cpu_ns_of(pid: Tid) -> u64 {
    let mut clock = 0;
    // SAFETY: a live clockid_t.
    let found = unsafe { libc::clock_getcpuclockid(pid.0, &raw mut clock) };
    // Refused, a clock shows nothing.
    if found == 0 { clock_ns(clock) } else { 0 }
}

/// Length of a tick as the kernel counts them for programs, ns.
pub fn tick_ns() -> u64 {
    // SAFETY: cannot fail for this name.
    let per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    1_000_000_000 / (per_s.max(1) as u64)
}

/// Sleeps until an instant of CLOCK_MONOTONIC.
pub fn sleep_until_ns(at: u64) {
    let t = libc::timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
    while monotonic_ns() < at {
        // SAFETY: a live timespec.
        unsafe {
            libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const t, std::ptr::null_mut())
        };
    }
}

/// Timer slack of the calling thread and of the children it makes from now on.
pub fn set_timer_slack_ns(ns: u64) -> std::io::Result<()> {
    // SAFETY: no pointer argument.
    check(i64::from(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns, 0, 0, 0) })).map(|_| ())
}

/// Pins the calling thread to these CPUs.
pub fn pin_to(cpus: &[usize]) -> std::io::Result<()> {
    // SAFETY: zero is an empty set; the set lives during the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for c in cpus {
            libc::CPU_SET(*c, &mut set);
        }
        check(i64::from(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set))).map(|_| ())
    }
}

/// CPUs that the calling thread may run on.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: the kernel fills the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return vec![0];
        }
        (0..libc::CPU_SETSIZE as usize).filter(|c| libc::CPU_ISSET(*c, &set)).collect()
    }
}

/// CPUs that are online, whoever may use them; those of [`allowed_cpus`] where /sys does not tell.
pub fn online_cpus() -> Vec<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    cpus_of(list.trim()).filter(|cpus| !cpus.is_empty()).unwrap_or_else(allowed_cpus)
}

/// The kernel's lists of CPUs: `0-3,8`.
fn cpus_of(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        cpus.extend(first..=last.min(first + libc::CPU_SETSIZE as usize));
    }
    Some(cpus)
}

/// From now on the calling thread runs only when nothing else wants its core (SCHED_IDLE).
pub fn only_when_idle() -> std::io::Result<()> {
    let p = libc::sched_param { sched_priority: 0 };
    // SAFETY: a live sched_param.
    check(i64::from(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const p) })).map(|_| ())
}

/// Gives a timerfd expirations that nobody has read yet, at least one.
pub fn set_ticks(timer: &OwnedFd, ticks: u64) -> io::Result<()> {
    const TFD_IOC_SET_TICKS: libc::c_ulong = 0x4008_5400;
    // SAFETY: the kernel reads eight bytes.
    check(i64::from(unsafe { libc::ioctl(timer.as_raw_fd(), TFD_IOC_SET_TICKS, &raw const ticks) })).map(|_| ())
}
