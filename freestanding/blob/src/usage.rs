//! CPU time as the program sees it: charged CPU divided by the node's speed. The meter's own is no part of it.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::Shown;
use diecast_core_cpu::{Split, kernels_of_meter_ns, shown_cpu_ns};
use diecast_core_syscalls::nr;

use crate::clock;
use crate::sys::{self, Ret};
use crate::{cputimers, node, process, signals, user};

const SELF: i32 = 0;
const THREAD: i32 = 1;
const CHILDREN: i32 = -1;
const NS_PER_US: u64 = 1000;
const NS_PER_S: u64 = 1_000_000_000;

/// A `struct rusage` of one word throughout, in place: the image has neither `memset` nor `memcpy`.
#[inline(always)]
fn filled(words: &mut MaybeUninit<[u64; 18]>, word: u64) -> &mut [u64; 18] {
    // SAFETY: fills the 18 words, which makes them a value.
    unsafe {
        core::arch::asm!("rep stosq", inout("rdi") words.as_mut_ptr() => _, inout("rcx") 18u64 => _, in("rax") word, options(nostack));
        words.assume_init_mut()
    }
}

/// What the meter cost processes that have ended: their pages are gone, but their hits came as often and cost as much as the
/// node's do in the mean. Rounded down; nothing below a grain, which a process may live without a hit.
pub fn cost_of_others(real_ns: u64) -> u64 {
    let (n, k) = (node(), &node().counters);
    let cost = k.meter_cost_ns.load(Relaxed);
    let used = cost.saturating_add(k.charged_ns.load(Relaxed)).saturating_add(k.cold_ns.load(Relaxed));
    // In 2^20ths. Up to 2^63 ns nothing overflows: the part is at most 2^40, and 1 where `used` is above 2^20.
    let part = cost / (used.saturating_add(k.slow_ns.load(Relaxed)) >> 20).max(1);
    if n.metered.load(Relaxed) == 0 || real_ns < n.grain_ns.load(Relaxed) {
        return 0;
    }
    (real_ns >> 20)
        .saturating_mul(part)
        .saturating_add((real_ns & 0xf_ffff).saturating_mul(part) >> 20)
        .min(real_ns / 2)
}

/// Real user and system time into virtual ones, without what the meter cost.
pub fn split(real: Split, cost_ns: u64) -> Split {
    if cost_ns == 0 {
        // Each by itself, so that neither goes back.
        let of = |ns| node().slowness().mul_floor(ns);
        return Split { user: of(real.user), system: of(real.system) };
    }
    let total = real.user.saturating_add(real.system);
    shared(real, cost_ns, node().slowness().mul_floor(shown_cpu_ns(total, cost_ns)))
}

/// So much virtual time by mode, of what the kernel counts of both and what the meter cost of that.
pub fn shared(real: Split, cost_ns: u64, v: u64) -> Split {
    real.without_kernels(kernels_of_meter_ns(cost_ns)).parts_of(v)
}

/// What user and system time of one thread or process were shown.
pub type ShownSplit<'a> = (&'a AtomicU64, &'a AtomicU64);

/// Never less than what was shown before, and the same sum: parts and costs change as time goes on.
#[inline(never)]
pub fn monotone_split((user, system): ShownSplit, t: Split) -> Split {
    let next = t.after(Split { user: user.load(Relaxed), system: system.load(Relaxed) });
    Split { user: monotone(user, next.user), system: monotone(system, next.system) }
}

/// The same by number, as [`monotone_of`].
pub fn monotone_split_of((user, system): ShownSplit, t: Split, real_ns: u64) -> Split {
    start_anew(user, t.user, real_ns);
    start_anew(system, t.system, real_ns);
    monotone_split((user, system), t)
}

/// Never less than what was shown before: parts and costs change as time goes on.
pub fn monotone(shown: &AtomicU64, ns: u64) -> u64 {
    shown.fetch_max(ns, Relaxed).max(ns)
}

/// The same of a thread or process by number, which may be another's by now: then the kernel, which knows no cost, has counted
/// less. It counts `real_ns` in all, by ticks or not.
pub fn monotone_of(shown: &AtomicU64, ns: u64, real_ns: u64) -> u64 {
    start_anew(shown, ns, real_ns);
    monotone(shown, ns)
}

fn start_anew(shown: &AtomicU64, ns: u64, real_ns: u64) {
    const BACK_MAX_NS: u64 = 100_000_000;
    let most = node().slowness().mul_floor(real_ns.saturating_add(BACK_MAX_NS));
    // Interrupts may add to it.
    if shown.load(Relaxed) > most.max(ns.saturating_add(BACK_MAX_NS)) {
        shown.store(ns, Relaxed);
    }
}

/// The first four words of a `struct rusage`.
fn times_in(words: &[u64]) -> Split {
    let ns = |at: usize| {
        let word = |i: usize| words.get(i).copied().unwrap_or(0);
        word(at).wrapping_mul(NS_PER_S).wrapping_add(word(at + 1).wrapping_mul(NS_PER_US))
    };
    Split { user: ns(0), system: ns(2) }
}

fn times_out(words: &mut [u64; 18], t: Split) {
    for (at, ns) in [(0, t.user), (2, t.system)] {
        words[at] = ns / NS_PER_S;
        words[at + 1] = ns % NS_PER_S / NS_PER_US;
    }
}

/// Virtual times of this process, this thread or the children it waited for, into a `struct rusage`.
#[inline(never)]
fn usage(call: sys::Call, who: i32, words: &mut [u64; 18]) -> Ret {
    let r = call(nr::GETRUSAGE, [who as u32 as u64, words as *mut [u64; 18] as u64, 0, 0, 0, 0]);
    if r < 0 {
        return r;
    }
    let real = times_in(words);
    let own = &process().own;
    let t = match who {
        SELF => {
            let t = split(real, clock::own_cost());
            monotone_split((&own.shown_user_ns, &own.shown_system_ns), t)
        }
        THREAD => {
            let tid = sys::gettid();
            of_thread(tid, clock::shown_of(tid), real)
        }
        _ => of_children(real),
    };
    times_out(words, t);
    r
}

/// Virtual times of a thread of which this was shown, of the kernel's.
pub fn of_thread(tid: u32, shown: Option<&Shown>, real: Split) -> Split {
    let all = real.user + real.system;
    let t = split(real, clock::thread_cost(tid, all));
    shown.map_or(t, |s| monotone_split_of((&s.user_ns, &s.system_ns), t, all))
}

/// The same of another process.
pub fn of_process(pid: u32, real: Split) -> Split {
    let all = real.user + real.system;
    let cost = clock::cost_of_process(pid, all);
    let Some(s) = node().shown(pid) else { return split(real, cost) };
    let v = node().slowness().mul_floor(shown_cpu_ns(all, cost));
    let t = shared(real, cost, monotone_of(&s.process_ns, v, all));
    monotone_split_of((&s.process_user_ns, &s.process_system_ns), t, all)
}

/// Virtual times of this process's children that ended, of the kernel's. The meter's part in them is estimated by what it is
/// in the node now, so that it may grow.
pub fn of_children(real: Split) -> Split {
    let t = split(real, cost_of_others(real.user + real.system));
    let own = &process().own;
    monotone_split((&own.shown_children_user_ns, &own.shown_children_system_ns), t)
}

/// How often this thread has given up its core, as a slot has it; 0 where the kernel does not tell.
#[inline(never)]
pub fn switches() -> u64 {
    const VOLUNTARY: usize = 16;
    let mut room = MaybeUninit::uninit();
    let words = filled(&mut room, 0);
    sys::own(nr::GETRUSAGE, [THREAD as u64, words as *mut [u64; 18] as u64, 0, 0, 0, 0]);
    diecast_core_cpu::switches_of(words[VOLUNTARY], words[VOLUNTARY + 1])
}

/// Virtual times of this process.
#[inline(never)]
pub fn own() -> Split {
    let mut room = MaybeUninit::uninit();
    let words = filled(&mut room, 0);
    usage(sys::own, SELF, words);
    times_in(words)
}

/// Virtual user time of this process, ns: what ITIMER_VIRTUAL counts.
#[inline(never)]
pub fn user_ns() -> u64 {
    own().user
}

#[inline(never)]
pub fn getrusage(a: [u64; 6]) -> Ret {
    let mut room = MaybeUninit::uninit();
    let words = filled(&mut room, 0);
    let r = usage(sys::plain, a[0] as i32, words);
    if r == 0 { user::put_words(a[1], words).err().unwrap_or(0) } else { r }
}

/// wait4 and waitid with a `struct rusage` in argument `at`: the child's, with what it waited for itself.
#[inline(never)]
pub fn wait(number: u32, mut a: [u64; 6], at: usize) -> Ret {
    let out = a[at];
    // waitid writes what became of the child only after its usage.
    if number == nr::WAITID && !user::is_writable(out, size_of::<[u64; 18]>() as u64) {
        return sys::as_is(number, a);
    }
    let mut room = MaybeUninit::uninit();
    let words = filled(&mut room, u64::MAX);
    a[at] = words as *mut [u64; 18] as u64;
    // SAFETY: the program's own arguments, judged by the kernel; the usage goes to a local of the right size.
    let r = unsafe { sys::call(number, a) };
    // Nothing is written when no child changed.
    if r < 0 || words[0] == u64::MAX {
        return r;
    }
    let real = times_in(words);
    times_out(words, split(real, cost_of_others(real.user + real.system)));
    user::put_words(out, words).err().unwrap_or(r)
}

/// Ticks of 10 ms. The result counts from an arbitrary instant: here from that of CLOCK_MONOTONIC.
#[inline(never)]
pub fn times(a: [u64; 6]) -> Ret {
    const TICK_NS: u64 = 10_000_000;
    if a[0] != 0 {
        let mut room = MaybeUninit::uninit();
        let words = filled(&mut room, 0);
        usage(sys::own, SELF, words);
        let own = times_in(words);
        usage(sys::own, CHILDREN, words);
        let children = times_in(words);
        let ticks = [own.user / TICK_NS, own.system / TICK_NS, children.user / TICK_NS, children.system / TICK_NS];
        if let Err(e) = user::put_words(a[0], &ticks) {
            return e;
        }
    }
    (clock::mono_now() / TICK_NS) as Ret
}

/// Seconds beyond which a limit is none: a century of CPU time.
const LIMIT_MAX_S: u64 = 4_000_000_000;

/// The kernel's limit for one of virtual CPU seconds, rounded up but for the rate's own rounding. Where the meter's CPU time is
/// part of what the kernel counts it is more than twice as much: [`meet_cpu_limit`] keeps the program's. Bound: 4e9 s are 4e18
/// ns.
fn limit_in(v: u64) -> u64 {
    if v > LIMIT_MAX_S {
        return v;
    }
    let real = node().speed().mul_up(v * NS_PER_S).saturating_add(NS_PER_S - 1000) / NS_PER_S;
    if cputimers::counts(clock::PROCESS_CPU) { 2 * real + 1 } else { real }
}

fn limit_out(real: u64) -> u64 {
    if real > limit_in(LIMIT_MAX_S) {
        return real;
    }
    let real = if cputimers::counts(clock::PROCESS_CPU) { real.saturating_sub(1) / 2 } else { real };
    node().slowness().mul_floor(real.saturating_mul(NS_PER_S)).saturating_add(1000) / NS_PER_S
}

/// After a hit, or what pays for one, of a thread that blocks these signals: has its process used its RLIMIT_CPU? As the kernel does, SIGXCPU once a
/// second, then SIGKILL. Looked at once a second at least: another process may have set it.
#[inline(never)]
pub fn meet_cpu_limit(blocked: u64) {
    const RLIMIT_CPU: u64 = 0;
    const SIGXCPU: u64 = 24;
    const SIGKILL: u64 = 9;
    /// Hits from one look at the clock to the next; the kernel looks at its tick, of 1 to 10 ms.
    const HITS: u64 = 8;
    if !process().own.limit_hits.fetch_add(1, Relaxed).is_multiple_of(HITS) {
        return;
    }
    // A child of vfork finds its parent's page.
    if signals::is_guest() {
        return;
    }
    let due = &process().own.cpu_limit_due_ns;
    let seen = due.load(Relaxed);
    let at = clock::read(clock::PROCESS_CPU).map_or(0, clock::ns_of);
    let next = at.saturating_add(NS_PER_S);
    // One thread looks.
    if at < seen || due.compare_exchange(seen, next, Relaxed, Relaxed).is_err() {
        return;
    }
    let mut kernels = [u64::MAX; 2];
    sys::own(nr::PRLIMIT64, [0, RLIMIT_CPU, 0, &raw mut kernels as u64, 0, 0]);
    let ns = |real: u64| limit_out(real).max(1).saturating_mul(NS_PER_S);
    let (mut soft, hard) = (ns(kernels[0]), ns(kernels[1]));
    if at >= hard {
        sys::own(sys::KILL, [sys::own(sys::GETPID, [0; 6]) as u64, SIGKILL, 0, 0, 0, 0]);
    } else if at >= soft {
        soft = soft.saturating_add(NS_PER_S);
        kernels[0] = limit_in(soft / NS_PER_S).min(kernels[1]);
        sys::own(nr::PRLIMIT64, [0, RLIMIT_CPU, &raw const kernels as u64, 0, 0, 0]);
        cputimers::tell(SIGXCPU, blocked);
    }
    due.fetch_min(soft.min(hard), Relaxed);
}

/// RLIMIT_CPU: seconds of virtual CPU time. `new` and `old` are the arguments that hold the pointers.
#[inline(never)]
pub fn cpu_limit(number: u32, mut a: [u64; 6], new: Option<usize>, old: Option<usize>) -> Ret {
    // SAFETY (both): the program's own arguments, judged by the kernel.
    let pass = |a| unsafe { sys::call(number, a) };
    let mut limits = [0u64; 2];
    if let Some(i) = new
        && a[i] != 0
    {
        let Ok(v) = user::get::<[u64; 2]>(a[i]) else { return pass(a) };
        if v[0] > v[1] {
            return pass(a);
        }
        limits = [limit_in(v[0]), limit_in(v[1])];
        a[i] = &raw const limits as u64;
    }
    let (mut before, mut out) = ([0u64; 2], 0);
    if let Some(i) = old {
        out = a[i];
        if out != 0 {
            a[i] = &raw mut before as u64;
        }
    }
    let r = pass(a);
    core::hint::black_box(&limits);
    process().own.cpu_limit_due_ns.store(0, Relaxed);
    if r == 0 && out != 0 {
        return user::put_words(out, &[limit_out(before[0]), limit_out(before[1])]).err().unwrap_or(0);
    }
    r
}
