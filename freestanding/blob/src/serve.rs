//! Dispatch of trapped calls, on the program's stack.

use core::sync::atomic::Ordering;

use diecast_core_abi::BlobFault;
use diecast_core_syscalls::nr;

use crate::entry::Record;
use crate::sys::{self, Ret};
use crate::user::{self, Timeval};
use crate::{
    altstack, carried, clock, files, node, report, sched, sentraps, settime, signalfd, signals, sites, sockets, stacks,
    stamps, timers, timespaces, usage, vdso, views, waits,
};

/// Serves one call that came by a signal and gives what goes into rax.
pub extern "C" fn trapped(r: &mut Record) -> Ret {
    stacks::call(r, counted)
}

extern "C" fn counted(r: &mut Record) -> Ret {
    sites::seen(r);
    serve(r)
}

/// Serves one call. Those that come by a jump come here at once: no image with goroutines jumps.
pub extern "C" fn serve(r: &mut Record) -> Ret {
    node().counters.traps.fetch_add(1, Ordering::Relaxed);
    sched::settle();
    signals::own_page();
    let a = r.args();
    if carried::filtered()
        && let Some(refused) = carried::refused(r.nr as u32, a)
    {
        return refused;
    }
    match r.nr as u32 {
        nr::OPEN | nr::OPENAT | nr::OPENAT2 => views::open(r.nr as u32, a),
        nr::LSEEK => views::rewind(a),
        nr::STAT | nr::FSTAT | nr::LSTAT => files::stat(r.nr as u32, a, a[1]),
        nr::NEWFSTATAT => files::stat(nr::NEWFSTATAT, a, a[2]),
        nr::STATX => files::statx(a),
        nr::UTIME => files::utime(a),
        nr::UTIMES => files::utimes(nr::UTIMES, a, sys::AT_FDCWD, a[0], a[1]),
        nr::FUTIMESAT => files::utimes(nr::FUTIMESAT, a, a[0], a[1], a[2]),
        nr::UTIMENSAT => files::utimensat(a),
        nr::CLOCK_GETTIME => clock_gettime(a),
        nr::GETTIMEOFDAY => gettimeofday(a),
        nr::TIME => time(a),
        nr::CLOCK_GETRES => vdso::resolution(sys::plain, a[0] as i32, a[1]),
        nr::ADJTIMEX => settime::adjtimex(nr::ADJTIMEX, a[0]),
        nr::CLOCK_ADJTIME => settime::clock_adjtime(a),
        nr::CLOCK_SETTIME => settime::clock_settime(a),
        nr::SETTIMEOFDAY => settime::settimeofday(a),
        nr::NANOSLEEP => waits::nanosleep(a),
        nr::CLOCK_NANOSLEEP => waits::clock_nanosleep(a),
        nr::POLL => waits::poll(nr::POLL, a, 2),
        nr::EPOLL_WAIT => waits::poll(nr::EPOLL_WAIT, a, 3),
        nr::EPOLL_PWAIT => waits::epoll_pwait(a),
        nr::EPOLL_PWAIT2 => waits::epoll_pwait2(a),
        nr::PPOLL => waits::ppoll(a),
        nr::SELECT => waits::select(a),
        nr::PSELECT6 => waits::with_packed_mask(nr::PSELECT6, a),
        nr::IO_PGETEVENTS => waits::with_packed_mask(nr::IO_PGETEVENTS, a),
        nr::IO_GETEVENTS => waits::io_getevents(a),
        nr::FUTEX => waits::futex(a),
        nr::FUTEX_WAITV => waits::absolute(nr::FUTEX_WAITV, a, 3, a[4] as i32),
        nr::FUTEX_WAIT2 => waits::absolute(nr::FUTEX_WAIT2, a, 4, a[5] as i32),
        nr::MQ_TIMEDSEND => waits::absolute(nr::MQ_TIMEDSEND, a, 4, clock::REALTIME),
        nr::MQ_TIMEDRECEIVE => waits::absolute(nr::MQ_TIMEDRECEIVE, a, 4, clock::REALTIME),
        nr::SEMTIMEDOP => waits::relative(nr::SEMTIMEDOP, a, 3),
        nr::RT_SIGTIMEDWAIT => signals::rt_sigtimedwait(a),
        sys::RECVMSG => stamps::recvmsg(a),
        nr::RECVMMSG => stamps::recvmmsg(a),
        nr::IOCTL => stamps::ioctl(a),
        nr::SHMCTL => stamps::shmctl(a),
        nr::SEMCTL => stamps::semctl(a),
        nr::MSGCTL => stamps::msgctl(a),
        nr::SETSOCKOPT => sockets::set(a),
        nr::GETSOCKOPT => sockets::get(a),
        nr::GETRUSAGE => usage::getrusage(a),
        nr::TIMES => usage::times(a),
        nr::WAIT4 => usage::wait(nr::WAIT4, a, 3),
        nr::WAITID => usage::wait(nr::WAITID, a, 4),
        nr::SETRLIMIT => usage::cpu_limit(nr::SETRLIMIT, a, Some(1), None),
        nr::GETRLIMIT => usage::cpu_limit(nr::GETRLIMIT, a, None, Some(1)),
        nr::PRLIMIT64 => usage::cpu_limit(nr::PRLIMIT64, a, Some(2), Some(3)),
        nr::SYSINFO => sysinfo(a),
        nr::PRCTL => carried::prctl(a),
        nr::SECCOMP => carried::install(nr::SECCOMP, a),
        nr::TKILL | nr::TGKILL => sentraps::send(r.nr as u32, a),
        nr::KEYCTL => timers::key_timeout(a),
        nr::UNSHARE => timespaces::unshare(a),
        nr::SETNS => timespaces::setns(a),
        nr::ALARM => timers::alarm(a),
        nr::SETITIMER => timers::setitimer(a),
        nr::GETITIMER => timers::getitimer(a),
        nr::TIMER_CREATE => timers::timer_create(a),
        nr::TIMER_SETTIME => timers::timer_settime(a),
        nr::TIMER_GETTIME => timers::timer_gettime(a),
        nr::TIMERFD_SETTIME => timers::timerfd_settime(a),
        nr::TIMERFD_GETTIME => timers::timerfd_gettime(a),
        nr::RT_SIGACTION => signals::rt_sigaction(a),
        nr::RT_SIGPROCMASK => signals::rt_sigprocmask(a),
        nr::RT_SIGPENDING => signals::rt_sigpending(a),
        nr::SIGNALFD | nr::SIGNALFD4 => signalfd::signalfd(r.nr as u32, a),
        nr::SIGALTSTACK => altstack::sigaltstack(r),
        nr::PERSONALITY => sched::personality(a),
        nr::SCHED_SETPARAM => sched::sched_setparam(a),
        nr::SCHED_GETPARAM => sched::sched_getparam(a),
        nr::SCHED_SETSCHEDULER => sched::sched_setscheduler(a),
        nr::SCHED_GETSCHEDULER => sched::sched_getscheduler(a),
        nr::SCHED_RR_GET_INTERVAL => sched::sched_rr_get_interval(a),
        nr::SCHED_SETAFFINITY => sched::sched_setaffinity(a),
        nr::SCHED_GETAFFINITY => sched::sched_getaffinity(a),
        nr::GETCPU => sched::getcpu(a),
        nr::SCHED_SETATTR => sched::sched_setattr(a),
        nr::SCHED_GETATTR => sched::sched_getattr(a),
        nr::RT_SIGSUSPEND => signals::rt_sigsuspend(a),
        other => {
            report(BlobFault::NoHandler, other);
            -38
        }
    }
}

#[inline(never)]
fn clock_gettime(a: [u64; 6]) -> Ret {
    match clock::read(a[0] as i32) {
        Ok(t) => match user::put(a[1], t) {
            Ok(()) => 0,
            Err(e) => e,
        },
        Err(e) => e,
    }
}

#[inline(never)]
fn gettimeofday(a: [u64; 6]) -> Ret {
    if a[0] != 0
        && let Ok(t) = clock::read(clock::REALTIME)
        && let Err(e) = user::put(a[0], Timeval { sec: t.sec, usec: t.nsec / 1000 })
    {
        return e;
    }
    match settime::zone() {
        _ if a[1] == 0 => 0,
        Some(own) => user::put(a[1], own).err().unwrap_or(0),
        // SAFETY: the program's own pointer, judged by the kernel.
        None => unsafe { sys::call(nr::GETTIMEOFDAY, [0, a[1], 0, 0, 0, 0]) },
    }
}

#[inline(never)]
fn time(a: [u64; 6]) -> Ret {
    match clock::read(clock::REALTIME_COARSE) {
        Ok(t) if a[0] == 0 => t.sec,
        Ok(t) => match user::put(a[0], t.sec as u64) {
            Ok(()) => t.sec,
            Err(e) => e,
        },
        Err(e) => e,
    }
}

/// The uptime, in seconds rounded up as in the kernel, and the load averages.
#[inline(never)]
fn sysinfo(a: [u64; 6]) -> Ret {
    // SAFETY: the program's own pointer, judged by the kernel.
    let r = unsafe { sys::call(nr::SYSINFO, a) };
    if r == 0
        && let Ok(t) = clock::read(clock::BOOTTIME)
    {
        // The kernel has 16 bits of fraction here, 11 elsewhere.
        let load = |at: usize| node().loads.get(at).map_or(0, |load| load.load(Ordering::Relaxed) << 5);
        let _ = user::put_words(a[0], &[(t.sec + (t.nsec != 0) as i64) as u64, load(0), load(1), load(2)]);
    }
    r
}
