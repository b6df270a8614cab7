//! Reading clocks and translating spans and deadlines.

use core::sync::atomic::Ordering;

use diecast_core_abi::{Shown, ThreadSlot};
use diecast_core_cpu::{Interrupts, Split, shown_cpu_ns};
use diecast_core_syscalls::nr::CLOCK_GETTIME;
use diecast_core_vtime::{NS_PER_S, RealNs, VirtNs};

use crate::sys::{self, Ret};
use crate::user::Timespec;
use crate::{node, process, settime, usage};

pub const REALTIME: i32 = 0;
pub const MONOTONIC: i32 = 1;
pub const PROCESS_CPU: i32 = 2;
pub const THREAD_CPU: i32 = 3;
pub const RAW: i32 = 4;
pub const REALTIME_COARSE: i32 = 5;
pub const MONOTONIC_COARSE: i32 = 6;
pub const BOOTTIME: i32 = 7;
pub const REALTIME_ALARM: i32 = 8;
pub const BOOTTIME_ALARM: i32 = 9;
pub const TAI: i32 = 11;

/// Seconds from which the kernel takes a time for "never".
const SEC_NEVER: i64 = 9_223_372_036;
/// A time that the kernel turns into "never".
pub const FOREVER: Timespec = Timespec { sec: i64::MAX, nsec: 0 };

pub fn valid(t: Timespec) -> bool {
    t.sec >= 0 && (t.nsec as u64) < NS_PER_S
}

/// Nanoseconds of a valid time, saturating.
pub fn ns_of(t: Timespec) -> u64 {
    if t.sec >= SEC_NEVER { u64::MAX } else { t.sec as u64 * NS_PER_S + t.nsec as u64 }
}

pub fn timespec(ns: u64) -> Timespec {
    Timespec { sec: (ns / NS_PER_S) as i64, nsec: (ns % NS_PER_S) as i64 }
}

fn timespec_signed(ns: i64) -> Timespec {
    Timespec { sec: ns.div_euclid(NS_PER_S as i64), nsec: ns.rem_euclid(NS_PER_S as i64) }
}

/// One of the kernel's clocks, through its own vDSO.
#[inline]
pub fn kernel_ns(clock: i32) -> u64 {
    let f = process().read_clock.load(Ordering::Relaxed);
    if f == 0 {
        return kernel_ns_by_call(clock);
    }
    let mut t = Timespec { sec: 0, nsec: 0 };
    // SAFETY: the supervisor found this function in the kernel's vDSO, which stays mapped; it writes a timespec.
    let f: extern "C" fn(i32, *mut Timespec) -> i32 = unsafe { core::mem::transmute(f) };
    f(clock, &mut t);
    (t.sec as u64).wrapping_mul(NS_PER_S).wrapping_add(t.nsec as u64)
}

#[cold]
#[inline(never)]
fn kernel_ns_by_call(clock: i32) -> u64 {
    let mut t = Timespec { sec: 0, nsec: 0 };
    sys::own(CLOCK_GETTIME, [clock as u64, &raw mut t as u64, 0, 0, 0, 0]);
    (t.sec as u64).wrapping_mul(NS_PER_S).wrapping_add(t.nsec as u64)
}

/// How far one of the kernel's clocks is ahead of its MONOTONIC, ns: at most too much, by what passes between two readings,
/// so that no deadline by it is early. A thread that was kept from running between them reads again.
pub fn kernel_ahead(clock: i32) -> i64 {
    const CLOSE_NS: u64 = 2_000;
    let mut tries = 0;
    loop {
        let mono = kernel_ns(MONOTONIC);
        let read = kernel_ns(clock);
        tries += 1;
        if tries == 8 || kernel_ns(MONOTONIC).wrapping_sub(mono) <= CLOSE_NS {
            return (read as i64).wrapping_sub(mono as i64);
        }
    }
}

pub fn now_real() -> RealNs {
    RealNs(kernel_ns(MONOTONIC))
}

/// Whether steps of the node's clock move what waits for an instant of this one.
pub fn is_wall(clock: i32) -> bool {
    matches!(clock, REALTIME | REALTIME_ALARM | TAI)
}

/// A clock minus MONOTONIC, but for RAW.
pub fn ahead(clock: i32) -> i64 {
    let c = &node().clock;
    match clock {
        REALTIME | REALTIME_COARSE | REALTIME_ALARM => c.real_ahead_ns.load(Ordering::Relaxed),
        TAI => c.real_ahead_ns.load(Ordering::Relaxed).wrapping_add(c.tai_s().wrapping_mul(NS_PER_S as i64)),
        BOOTTIME | BOOTTIME_ALARM => c.boot_ahead_ns.load(Ordering::Relaxed),
        _ => 0,
    }
}

/// Virtual time now: the lab's, not the node's.
pub fn v_now() -> VirtNs {
    node().v_now(now_real)
}

/// The node's MONOTONIC now.
pub fn mono_now() -> u64 {
    let (v, rates) = node().clock.now(|| v_now().0);
    rates.mono_of(v)
}

/// The virtual REALTIME of an instant that the kernel noted by its own, ns.
pub fn then(realtime_ns: u64) -> u64 {
    shown_at(realtime_ns, kernel_ahead(REALTIME))
}

/// The node's REALTIME, ns, when the host's was this, which is so much ahead of its MONOTONIC.
pub fn shown_at(realtime_ns: u64, host_ahead_ns: i64) -> u64 {
    let real = RealNs((realtime_ns as i64).saturating_sub(host_ahead_ns).max(0) as u64);
    let v = node().segment_at(real).v_of(real).0;
    (node().clock.at(v).mono_of(v) as i64).saturating_add(ahead(REALTIME)).max(0) as u64
}

/// The host's REALTIME, ns, when the node's first was this.
pub fn host_at(realtime_ns: u64, host_ahead_ns: i64) -> u64 {
    let mono = (realtime_ns as i64).saturating_sub(ahead(REALTIME)).max(0) as u64;
    let r = node().r_of(VirtNs(node().clock.v_of_mono(mono)));
    (r.0.min(i64::MAX as u64) as i64).saturating_add(host_ahead_ns).max(0) as u64
}

/// Virtual CPU time of `real` ns of CPU, of which `cost` were the meter's own.
fn cpu_out(real_ns: u64, cost_ns: u64) -> Timespec {
    timespec(node().slowness().mul_floor(shown_cpu_ns(real_ns, cost_ns)))
}

/// A clock as the program sees it, or the kernel's error.
#[inline(always)]
pub fn read(clock: i32) -> Result<Timespec, Ret> {
    match read_at_once(clock) {
        Some(t) => Ok(t),
        None => read_with_care(clock),
    }
}

/// The usual clocks of a node that never set them, while the frame's map stays. It is what programs wait for.
#[inline(always)]
pub fn read_at_once(clock: i32) -> Option<Timespec> {
    let n = node();
    let source = match clock {
        REALTIME | MONOTONIC | BOOTTIME => MONOTONIC,
        REALTIME_COARSE | MONOTONIC_COARSE => MONOTONIC_COARSE,
        _ => return None,
    };
    let v = n.clock.now_if_plain(|| Some(n.v_now_at_once(|| RealNs(kernel_ns(source)))?.0))?;
    let shown = match clock {
        REALTIME | REALTIME_COARSE => {
            let shown = (v as i64).wrapping_add(n.clock.real_ahead_ns.load(Ordering::Relaxed));
            if n.clock.leaps(shown) {
                return None;
            }
            shown
        }
        BOOTTIME => (v as i64).wrapping_add(n.clock.boot_ahead_ns.load(Ordering::Relaxed)),
        _ => v as i64,
    };
    (shown >= 0).then(|| timespec(shown as u64))
}

#[inline(never)]
pub fn read_with_care(clock: i32) -> Result<Timespec, Ret> {
    let source = match clock {
        REALTIME | MONOTONIC | RAW | BOOTTIME | TAI => MONOTONIC,
        REALTIME_COARSE | MONOTONIC_COARSE => MONOTONIC_COARSE,
        _ => return read_other(clock),
    };
    let n = node();
    let (v, rates) = n.clock.now(|| n.v_now(|| RealNs(kernel_ns(source))).0);
    let (ns, ahead) = if clock == RAW {
        (rates.raw_of(v), n.clock.raw_ahead_ns.load(Ordering::Relaxed))
    } else {
        (rates.mono_of(v), ahead(clock))
    };
    let shown = (ns as i64).wrapping_add(ahead);
    if (clock == REALTIME || clock == REALTIME_COARSE) && n.clock.leaps(shown) {
        return after_leap(clock, ahead);
    }
    Ok(timespec_signed(shown))
}

/// REALTIME at a leap second.
#[cold]
#[inline(never)]
fn after_leap(clock: i32, ahead: i64) -> Result<Timespec, Ret> {
    node().clock.leap(ahead);
    if node().clock.real_ahead_ns.load(Ordering::Relaxed) != ahead {
        settime::tell();
    }
    read(clock)
}

/// What of a thread's CPU time so far is no part of its clock, as a slot has it.
pub fn thread_cost(tid: u32, real_ns: u64) -> u64 {
    node().slot(tid).map_or(0, |s| s.cost_ns.load(Ordering::Relaxed).wrapping_sub(interrupts_since(s, real_ns)))
}

/// What interrupts add to the CPU time of a thread since it was last charged.
fn interrupts_since(slot: &ThreadSlot, real_ns: u64) -> u64 {
    let since = real_ns.saturating_sub(slot.last_cpu_ns.load(Ordering::Relaxed));
    Interrupts::of_node(node()).of(since)
}

/// What of this process's CPU time is no part of its clock. What interrupts add is as even as it is in this thread's.
pub fn own_cost() -> u64 {
    let cost = process().own.cost_ns.load(Ordering::Relaxed);
    if Interrupts::of_node(node()) == Interrupts::default() {
        return cost;
    }
    node().slot(sys::gettid()).map_or(cost, |s| cost.wrapping_sub(interrupts_since(s, thread_cpu())))
}

/// What the kernel counts of this thread, ns.
#[inline(never)]
pub fn thread_cpu() -> u64 {
    let mut t = Timespec { sec: 0, nsec: 0 };
    sys::own(CLOCK_GETTIME, [THREAD_CPU as u64, &raw mut t as u64, 0, 0, 0, 0]);
    ns_of(t)
}

/// Whose a CPU clock by number is.
#[derive(Clone, Copy)]
enum Whose {
    Thread(u32),
    Own,
    Process(u32),
}

fn whose(clock: i32) -> Whose {
    const THREAD: i32 = 4;
    let id = !(clock >> 3) as u32;
    if clock & THREAD != 0 {
        Whose::Thread(if id == 0 { sys::gettid() } else { id })
    } else if id == 0 || id == sys::own(sys::GETPID, [0; 6]) as u32 {
        Whose::Own
    } else {
        Whose::Process(id)
    }
}

/// The low bits of a CPU clock by number: time in both modes by ticks is 0, in user mode 1, and by the scheduler 2.
const KINDS: i32 = 3;
const USER: i32 = 1;
const SCHEDULERS: i32 = 2;

/// The CPU clock of a process or thread by number.
fn cpu_by_number(clock: i32, real_ns: u64) -> Result<Timespec, Ret> {
    let owner = whose(clock);
    if clock & KINDS == USER { user_time(clock, owner, real_ns) } else { Ok(cpu_of(owner, real_ns)) }
}

fn cpu_of(owner: Whose, real_ns: u64) -> Timespec {
    match owner {
        Whose::Thread(tid) => cpu_of_thread(tid, real_ns),
        Whose::Own => own_cpu(real_ns),
        Whose::Process(pid) => cpu_of_process(pid, real_ns),
    }
}

/// What the meter cost it of so much.
fn cost_of(owner: Whose, real_ns: u64) -> u64 {
    match owner {
        Whose::Thread(tid) => thread_cost(tid, real_ns),
        Whose::Own => own_cost(),
        Whose::Process(pid) => cost_of_process(pid, real_ns),
    }
}

/// The same in user mode only. Under a meter it is what part of the kernel's ticks this is of the exact time in both modes: ticks
/// meet the slices of a busy thread more or less often by chance, and what the meter cost is known exactly.
#[inline(never)]
fn user_time(clock: i32, owner: Whose, user: u64) -> Result<Timespec, Ret> {
    // It may have ended since its user time was read.
    let ticks = ns_of(kernels(clock & !KINDS)?).max(user);
    let by_ticks = Split { user, system: ticks - user };
    let (t, all) = if node().metered.load(Ordering::Relaxed) == 0 {
        (usage::split(by_ticks, 0), ticks)
    } else {
        let exact = ns_of(kernels(clock & !KINDS | SCHEDULERS)?);
        (usage::shared(by_ticks.parts_of(exact), cost_of(owner, exact), ns_of(cpu_of(owner, exact))), exact)
    };
    let own = &process().own;
    let shown = match owner {
        Whose::Own => return Ok(timespec(usage::monotone_split((&own.shown_user_ns, &own.shown_system_ns), t).user)),
        Whose::Thread(tid) => shown_of(tid).map(|s| (&s.user_ns, &s.system_ns)),
        Whose::Process(pid) => shown_of(pid).map(|s| (&s.process_user_ns, &s.process_system_ns)),
    };
    Ok(timespec(shown.map_or(t, |cells| usage::monotone_split_of(cells, t, all)).user))
}

/// What was shown of a thread or process by number. One that was never hit gets its slot for this: its first hit takes more off than
/// has passed since its clock was read.
pub fn shown_of(tid: u32) -> Option<&'static Shown> {
    let n = node();
    if n.metered.load(Ordering::Relaxed) != 0 {
        n.claim_slot(tid);
    }
    n.shown(tid)
}

/// This process's CPU clock. A hit's cost is known at its end only: other threads must not see time go back.
fn own_cpu(real_ns: u64) -> Timespec {
    let own = &process().own;
    let v = ns_of(cpu_out(real_ns, own_cost()));
    timespec(own.shown_cpu_ns.fetch_max(v, Ordering::Relaxed).max(v))
}

/// The same of a thread.
fn cpu_of_thread(tid: u32, real_ns: u64) -> Timespec {
    thread_cpu_of(tid, shown_of(tid), real_ns)
}

/// The same where this was shown of it. What the meter cost one without a slot is not known.
#[inline(never)]
pub fn thread_cpu_of(tid: u32, shown: Option<&Shown>, real_ns: u64) -> Timespec {
    let Some(shown) = shown else { return cpu_out(real_ns, thread_cost(tid, real_ns)) };
    let cost = thread_cost(tid, real_ns).wrapping_sub(shown.late.unseen_ns(real_ns));
    timespec(usage::monotone_of(&shown.thread_ns, ns_of(cpu_out(real_ns, cost)), real_ns))
}

/// What the meter cost another process that used so much. Its page is private: it is known of its first thread, and
/// estimated for what others used.
pub fn cost_of_process(pid: u32, real_ns: u64) -> u64 {
    let (known, rest) = node().slot(pid).map_or((0, real_ns), |s| {
        let of_first = s.last_cpu_ns.load(Ordering::Relaxed);
        (s.cost_ns.load(Ordering::Relaxed), real_ns.saturating_sub(of_first))
    });
    known.wrapping_add(usage::cost_of_others(rest))
}

/// The same of another process.
#[inline(never)]
fn cpu_of_process(pid: u32, real_ns: u64) -> Timespec {
    let v = cpu_out(real_ns, cost_of_process(pid, real_ns));
    shown_of(pid).map_or(v, |s| timespec(usage::monotone_of(&s.process_ns, ns_of(v), real_ns)))
}

/// A clock as the kernel has it.
fn kernels(clock: i32) -> Result<Timespec, Ret> {
    let mut t = Timespec { sec: 0, nsec: 0 };
    let r = sys::own(CLOCK_GETTIME, [clock as u32 as u64, &raw mut t as u64, 0, 0, 0, 0]);
    if r < 0 { Err(r) } else { Ok(t) }
}

#[inline(never)]
fn read_other(clock: i32) -> Result<Timespec, Ret> {
    let t = kernels(clock)?;
    let ns = ns_of(t);
    Ok(match clock {
        THREAD_CPU => cpu_of_thread(sys::gettid(), ns),
        PROCESS_CPU => own_cpu(ns),
        // The CPU clock of a process or thread by number (low bits 0 to 2; 3 would be a device's clock).
        c if c < 0 && c & 3 != 3 => return cpu_by_number(c, ns),
        REALTIME_ALARM | BOOTTIME_ALARM => timespec_signed((mono_now() as i64).wrapping_add(ahead(clock))),
        _ => t,
    })
}

/// True for clocks that are read by a system call everywhere.
pub fn is_called(clock: i32) -> bool {
    !matches!(clock, REALTIME | MONOTONIC | RAW | REALTIME_COARSE | MONOTONIC_COARSE | BOOTTIME | TAI)
}

/// True for clocks that count CPU time.
pub fn is_cpu(clock: i32) -> bool {
    clock == PROCESS_CPU || clock == THREAD_CPU || (clock < 0 && clock & 3 != 3)
}

/// Real length of a wait from now in ns, rounded up; zero only for zero; `u64::MAX` is never.
pub fn span_in(clock: i32, v_ns: u64) -> u64 {
    if v_ns == u64::MAX || v_ns == 0 || is_cpu(clock) || node().clock.latest().is_plain() {
        return interval_in(clock, v_ns);
    }
    let now = v_now().0;
    let end = node().clock.at(now).mono_of(now).saturating_add(v_ns);
    stretched(node().clock.v_of_mono(end).saturating_sub(now).max(1))
}

/// Real length of a period or setting in ns, by the lasting rates alone, so that it reads back as it was set.
pub fn interval_in(clock: i32, v_ns: u64) -> u64 {
    if v_ns == u64::MAX || v_ns == 0 {
        return v_ns;
    }
    if is_cpu(clock) {
        return node().speed().mul_up(v_ns).max(1);
    }
    stretched(node().clock.latest().span_in(v_ns))
}

/// Real length of a span of the lab's virtual time, ns.
pub fn stretched(v_ns: u64) -> u64 {
    let s = node().segment();
    if s.rate.int == 0 && s.rate.frac == 0 { u64::MAX } else { s.inverse.mul_up(v_ns).max(1) }
}

/// Length on the node's clock of a remaining real span in ns, rounded up; zero only for zero.
pub fn span_out(clock: i32, r_ns: u64) -> u64 {
    if r_ns == u64::MAX || r_ns == 0 || is_cpu(clock) || node().clock.latest().is_plain() {
        return interval_out(clock, r_ns);
    }
    let now = v_now().0;
    let end = now.saturating_add(node().segment().rate.mul_up(r_ns));
    let c = &node().clock;
    c.at(end).mono_of(end).saturating_sub(c.at(now).mono_of(now)).max(1)
}

/// The reverse of [`interval_in`], rounded up.
pub fn interval_out(clock: i32, r_ns: u64) -> u64 {
    if r_ns == u64::MAX || r_ns == 0 {
        return r_ns;
    }
    if is_cpu(clock) {
        return node().slowness().mul_up(r_ns).max(1);
    }
    let rates = node().clock.latest();
    let v = node().segment().rate.mul_up(r_ns);
    (if rates.is_plain() { v } else { rates.span_out(v).saturating_add(1) }).max(1)
}

/// The machine's timer slack, real ns. The kernel's own for threads of a frame is 1 ns, so that the meter's sleeps
/// are exact; a lone timer fires at its end plus the slack, and so do these.
fn slack() -> u64 {
    match process().inherited.slack_v_ns.load(Ordering::Relaxed) {
        0 => node().slack_ns.load(Ordering::Relaxed),
        v => span_in(MONOTONIC, v),
    }
}

/// A wait by the node's MONOTONIC, which may have to be translated more than once.
#[derive(Clone, Copy)]
pub struct Wait {
    /// Its end on the node's MONOTONIC; `u64::MAX` never comes.
    end_mono_ns: u64,
    /// Zero asks whether it is so already, and does not wait.
    zero: bool,
}

impl Wait {
    /// One that begins now.
    pub fn new(t: Timespec) -> Wait {
        Wait::since(t, 0)
    }

    /// One that began so much virtual time ago.
    pub fn since(t: Timespec, ago_ns: u64) -> Wait {
        let ns = ns_of(t);
        let end_mono_ns = if ns == u64::MAX { ns } else { mono_now().saturating_add(ns).saturating_sub(ago_ns) };
        Wait { end_mono_ns, zero: ns == 0 }
    }

    /// What is left of it in real time, with the machine's slack and at least 1 ns, and the generation that says so.
    pub fn left(&self) -> (Timespec, u64) {
        let clock = &node().clock;
        // Before the rates are used.
        let rates = clock.number();
        let (segment, now, map) = node().look(now_real);
        let generation = of_both(map, rates);
        if self.zero {
            return (Timespec { sec: 0, nsec: 0 }, generation);
        }
        if self.end_mono_ns == u64::MAX {
            return (FOREVER, generation);
        }
        // Rates number 0 are plain.
        let end_v_ns = if rates == 0 { self.end_mono_ns } else { clock.v_of_mono(self.end_mono_ns) };
        let end = segment.r_of(VirtNs(end_v_ns));
        if end == RealNs::NEVER {
            return (FOREVER, generation);
        }
        (with_slack(real_timespec(end.0.saturating_sub(now.0).max(1))), generation)
    }

    /// Whether its end has come.
    pub fn is_over(&self) -> bool {
        mono_now() >= self.end_mono_ns
    }
}

/// What is translated before this changes is void: the generation of the frame's map, and the number of the rates of the
/// node's clock. A change of the map ends waits, one of the rates only has the end of a wait judged anew.
fn of_both(map: u64, rates: u64) -> u64 {
    map & 0xffff_ffff | rates << 32
}

/// The generation of the frame's map and of the node's rates.
pub fn generation() -> u64 {
    let rates = node().clock.number();
    of_both(node().look(|| RealNs(0)).2, rates)
}

/// Makes a call again where the lab got another rate between a translation and the call: whoever changes the rate can't
/// know on which side of the call this thread stood still. The call is told how often it was made before.
pub fn by_one_rate(mut call: impl FnMut(u32) -> Ret) -> Ret {
    let mut made = 0;
    loop {
        let before = generation();
        let r = call(made);
        if r < 0 || generation() == before {
            return r;
        }
        made += 1;
    }
}

/// A deadline to wait for, with the machine's slack.
pub fn wait_until(clock: i32, t: Timespec) -> Timespec {
    with_slack(abs_in(clock, t))
}

fn with_slack(real: Timespec) -> Timespec {
    let ns = ns_of(real);
    if ns <= 1 || ns == u64::MAX { real } else { timespec(ns.saturating_add(slack())) }
}

/// What is left of a wait made by [`wait_in`], in virtual ns.
pub fn wait_left(real: Timespec) -> u64 {
    let ns = ns_of(real);
    if ns == 0 { 0 } else { span_out(MONOTONIC, ns.saturating_sub(slack()).max(1)) }
}

pub fn rel_in(clock: i32, t: Timespec) -> Timespec {
    real_timespec(span_in(clock, ns_of(t)))
}

/// A timer's period.
pub fn period_in(clock: i32, t: Timespec) -> Timespec {
    real_timespec(interval_in(clock, ns_of(t)))
}

fn real_timespec(ns: u64) -> Timespec {
    if ns >= SEC_NEVER as u64 * NS_PER_S { FOREVER } else { timespec(ns) }
}

/// A kernel deadline for a virtual deadline on `clock`: never early, at least 1 ns (zero would disarm).
pub fn abs_in(clock: i32, t: Timespec) -> Timespec {
    let v = ns_of(t);
    if v == u64::MAX {
        return FOREVER;
    }
    if is_cpu(clock) {
        // The meter's own CPU time so far lies on the kernel's clock too.
        let cost = if clock == PROCESS_CPU { own_cost() } else { 0 };
        let due = node().speed().mul_up(v).min(i64::MAX as u64) as i64;
        return timespec(due.saturating_add(cost as i64).max(1) as u64);
    }
    let mono = (v as i64).saturating_sub(ahead(clock)).max(0) as u64;
    let r = node().segment().r_of(VirtNs(node().clock.v_of_mono(mono)));
    if r == RealNs::NEVER {
        return FOREVER;
    }
    // The kernel waits on its own `clock`: add what it is ahead of MONOTONIC just now.
    let ahead = match clock {
        MONOTONIC => 0,
        c => kernel_ahead(c),
    };
    timespec((r.0 as i64).saturating_add(ahead).max(1) as u64)
}
