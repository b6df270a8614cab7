//! The CPU meter: SIGTRAP after each grain of CPU time of a thread.
//!
//! A hit charges the thread's CPU time since its last charge to the ledger, less what the meter itself cost,
//! and sleeps until the virtual instant at which the original machine would have finished that work. Unlike
//! SIGSYS it sleeps in place, one slice at a time, with the program's signals masked.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{
    METER_SLEEP, SWITCH_ONCE, SWITCHES_UNKNOWN, ThreadSlot, delay_before_ns, is_hit, late_bucket, left_since_ns,
    packets_tell, paused_before_ns,
};
use diecast_core_cpu as ledger;
use diecast_core_syscalls::nr::{FUTEX, OPENAT, RT_SIGPROCMASK};
use diecast_core_vtime::{RealNs, VirtNs};

use crate::entry::{SigInfo, UContext, reg};
use crate::{clock, cputimers, interrupt, node, process, sched, sentraps, signals, sites, sys, turns, usage};

/// A pause shorter than this between two hits is no sleep: a thread that slept would have been switched out and in.
const GAP_MIN_NS: u64 = 10_000;

/// A handler takes no longer after its sleep, nearly always.
const HANDLER_MAX_NS: u64 = 30_000;

/// How far a thread that may hold a lock others wait for may go ahead of its virtual time, in slices.
const AHEAD_SLICES: u64 = 3;

/// For so long after a thread began to wait for a lock, real ns, who is hit goes on: about as long as it takes to wake a
/// holder that sleeps, which makes up for that where locks are held shortly. One that is held for longer is held as long as on
/// the original machine in the mean, since its holder sleeps for what it works.
const WANTED_MAX_R_NS: u64 = 100_000;

/// A process contends for locks for so long after one of its threads began to wait for one, virtual ns.
const CONTENDS_V_NS: u64 = 5_000_000;

/// More CPU time than asking sleepers to go on takes, ns.
const ASKING_MAX_NS: u64 = 100_000;

/// Who begins so much later than it could has waited for a core, virtual ns.
const QUEUED_MIN_V_NS: u64 = 10_000;

/// What the word of a lock holds while threads wait for it, in glibc, Rust, Go and others after Drepper's "Futexes are
/// tricky".
pub const CONTENDED: u32 = 2;

/// SIGTRAP. A meter's hit, or a breakpoint and the like: to the program.
#[unsafe(no_mangle)]
pub extern "C" fn diecast_sigtrap(signo: i32, info: *mut SigInfo, uc: *mut UContext) {
    const TRAP_PERF: i32 = 6;
    const SI_KERNEL: i32 = 0x80;
    // SAFETY: the kernel passes a valid siginfo.
    let i = unsafe { &*info };
    // From an event of the thread's own, or from a clock of its core.
    if (i.code == TRAP_PERF || i.code == SI_KERNEL) && is_hit(i.word1) {
        // SAFETY: as above.
        let u = unsafe { &*uc };
        if interrupt::pays(u) {
            // What it owes is charged there.
            node().slot(sys::gettid()).into_iter().for_each(sentraps::look);
        } else {
            // On its way out of a system call: there rcx holds where it goes on.
            hit(i.word1, i.code == SI_KERNEL, u.regs[reg::RCX] == u.regs[reg::RIP]);
        }
        let blocked = u.mask;
        if process().own.cpu_timers.load(Relaxed) != 0 {
            cputimers::check(blocked);
        }
        usage::meet_cpu_limit(blocked);
        // SAFETY: the kernel passes a valid frame that belongs to this handler alone.
        let u = unsafe { &mut *uc };
        interrupt::give_back(u);
        // A kick that came while this hit was pending is lost: SIGTRAP is not queued.
        interrupt::after_change(u);
    } else if signals::is_kick(i) {
        process().own.kicked.fetch_add(1, Relaxed);
        // SAFETY: as above.
        interrupt::after_kick(unsafe { &mut *uc });
    // SAFETY: as above.
    } else if i.code == SI_KERNEL && sites::met_breakpoint(unsafe { &mut *uc }) {
        // The instruction is made again.
    } else {
        sentraps::came();
        // The program's own handler may make trapped calls; the mask comes back with the frame.
        let sigsys = 1u64 << 30;
        sys::own(RT_SIGPROCMASK, [1, &raw const sigsys as u64, 0, 8, 0, 0]);
        signals::chain(signo, info, uc);
    }
}

/// Total time this thread waited for a core: what is known already and what has been told since, or from schedstat, which
/// takes longer than all else in a hit; 0 where /proc is missing.
fn run_delay(told: Option<u64>, known: u64) -> u64 {
    match told {
        Some(since) => known.saturating_add(since),
        None => schedstat().unwrap_or(0),
    }
}

/// The same as the kernel tells it; `None` where it does not.
#[inline(never)]
fn schedstat() -> Option<u64> {
    let path = *b"/proc/thread-self/schedstat\0";
    let file = sys::own(OPENAT, [-100i64 as u64, &raw const path as u64, 0o2000000, 0, 0, 0]);
    if file < 0 {
        return None;
    }
    let mut text = [0u8; 64];
    let got = sys::own(sys::READ, [file as u64, &raw mut text as u64, 64, 0, 0, 0]);
    sys::own(sys::CLOSE, [file as u64, 0, 0, 0, 0, 0]);
    let (mut field, mut value) = (0, 0u64);
    for (i, b) in text.iter().enumerate() {
        if i as i64 >= got || field > 1 {
            break;
        }
        match b {
            b'0'..=b'9' if field == 1 => value = value.wrapping_mul(10).wrapping_add((*b - b'0') as u64),
            b' ' => field += 1,
            _ => {}
        }
    }
    if field >= 1 { Some(value) } else { None }
}

pub fn count(bucket_of: &[core::sync::atomic::AtomicU64], ns: u64) {
    if let Some(b) = bucket_of.get(late_bucket(ns)) {
        b.fetch_add(1, Relaxed);
    }
}

/// What was wrong with a charge, if anything.
pub fn count_charge(c: &ledger::Charge) {
    let k = &node().counters;
    if c.clamped {
        k.clamped.fetch_add(1, Relaxed);
    }
    if c.forgiven_v_ns > 0 {
        k.forgiven.fetch_add(1, Relaxed);
        k.forgiven_v_ns.fetch_add(c.forgiven_v_ns, Relaxed);
    }
}

/// Takes the slot. The emulator holds one for less than a microsecond, and never while this thread could keep it from
/// running, as the thread itself does where it pays before a wait, with all signals blocked; one that died while it did must not
/// stop the program.
fn hold(slot: &ThreadSlot) {
    for _ in 0..100_000 {
        if slot.try_hold() {
            return;
        }
        core::hint::spin_loop();
    }
}

/// `told` is what came with it, from a core's clock or not.
#[inline(never)]
fn hit(told: u64, of_clock: bool, in_kernel: bool) {
    let n = node();
    let k = &n.counters;
    k.hits.fetch_add(1, Relaxed);
    if n.metered.load(Relaxed) == 0 {
        return;
    }
    let cpu = clock::thread_cpu();
    let now_r = clock::now_real();
    let Some(slot) = n.claim_slot(sys::gettid()) else {
        k.no_slot.fetch_add(1, Relaxed);
        return;
    };
    if slot.hits.fetch_add(1, Relaxed) == 0 && signals::owns_page() {
        process().own.threads_hit.fetch_add(1, Relaxed);
    }
    hold(slot);
    let mut charged_to = slot.last_cpu_ns.load(Relaxed);
    let last_wall = slot.last_wall_ns.load(Relaxed);
    // Nothing of it is charged yet: its clock was read, if it has a slot at all.
    let (mut last_cpu, mut fresh) = (charged_to, last_wall == 0);
    if charged_to > cpu.saturating_add(ledger::OVERCHARGE_MAX_NS) {
        // A slot left by a dead thread of the same number.
        (last_cpu, fresh) = (0, true);
    } else if last_cpu > cpu {
        ledger::give_back(n, slot, cpu);
        (charged_to, last_cpu) = (cpu, cpu);
    }
    let used = cpu - last_cpu;
    // One on its way out of a system call may have been in it for as long, and an event of a thread's own may count no time in
    // the kernel.
    let in_sight = of_clock && !fresh && !in_kernel;
    let grain = if in_sight { Some(n.grain_ns.load(Relaxed)) } else { None };
    let paused = ledger::stood_still_ns(used, grain, paused_before_ns(told));
    let usual = ledger::at_usual_speed(n.slow_discount.load(Relaxed), used - paused);
    let switches = usage::switches();
    let known_switches = slot.switches.load(Relaxed);
    let switched = {
        let since = ledger::switches_since(known_switches, switches);
        ledger::SwitchCost::of_node(n, switch_part()).of(since, 0, usual)
    };
    // One that was left in the handler of the last had to wait for its end.
    let told_when = of_clock && now_r.0 > last_wall.saturating_add(HANDLER_MAX_NS);
    let left_since = if told_when { left_since_ns(told, now_r.0) } else { None };
    let (mut burst, hit_before) = slot.burst();
    // No packet since the last hit has told what was colder after it.
    let after_last = if hit_before { n.after_hit_ns.load(Relaxed) } else { 0 };
    let hidden = n.hidden_of_hit_ns(left_since).saturating_add(switched).saturating_add(after_last).min(usual);
    let work = usual - hidden;
    let segment = n.segment();
    let now_v = segment.v_of(now_r);

    // Time since the last hit that was not CPU time: none for a thread that ran all along.
    let gap = now_r.0.saturating_sub(last_wall).saturating_sub(used);
    let finish_before = slot.finish_v_ns.load(Relaxed);
    let mut cold_gap = slot.gap_ns.load(Relaxed);
    let delay_told = if of_clock { delay_before_ns(told) } else { None };
    let (continuous, waited) = if fresh {
        let total = run_delay(delay_told, 0);
        slot.run_delay_ns.store(total, Relaxed);
        (false, total)
    } else if gap < GAP_MIN_NS {
        (true, 0)
    } else {
        let charged = k.charged_ns.load(Relaxed);
        let siblings = charged.saturating_sub(slot.node_charged_ns.load(Relaxed));
        let known = slot.run_delay_ns.load(Relaxed);
        let total = run_delay(delay_told, known);
        let since = total.saturating_sub(known);
        let explained = slot.explained_ns.load(Relaxed);
        slot.run_delay_ns.store(total, Relaxed);
        slot.explained_ns.store(0, Relaxed);
        // All of the gap spent waiting for a core: it never slept. Interrupts and a hypervisor take time that is nobody's,
        // so neither has who did not give up the core.
        let waiting = since.saturating_sub(explained);
        let slept = gap.saturating_sub(waiting) >= GAP_MIN_NS && ledger::has_waited(known_switches, switches);
        (!slept, ledger::waited_for_others(since, explained, siblings).min(gap))
    };
    // When could this work have started on the original machine?
    let (earliest, began_r) = if continuous {
        (VirtNs(finish_before), last_wall)
    } else {
        k.waited_ns.fetch_add(waited, Relaxed);
        let began = now_r.0.saturating_sub(used);
        let woke = began.saturating_sub(waited).max(last_wall);
        let busy = n.busy_r_ns.load(Relaxed);
        cold_gap = if fresh || busy == 0 { 0 } else { woke.saturating_sub(busy) };
        burst = 0;
        let woke_v = n.segment_at(RealNs(woke)).v_of(RealNs(woke));
        (ledger::begins(VirtNs(finish_before), woke_v, n.way_ns.load(Relaxed)), began)
    };

    let cold = work - ledger::warm_ns(&n.cold_discount, cold_gap, burst, work);
    burst = ledger::burst_after(burst, work);
    let work = work - cold;
    let work_v = n.slowness().mul_floor(work);
    let c = charge(told, slot, now_v, earliest, work_v);
    let interrupts = ledger::Interrupts::of_node(n).of(usual - hidden);
    slot.charged_ns.fetch_add(work, Relaxed);
    ledger::account(k, slot, (charged_to, cpu), [work, cold, used - usual, hidden]);
    slot.finish_v_ns.store(c.finish.0, Relaxed);
    slot.switches.store(switches, Relaxed);
    // Packets that were sent before this instant find their work charged.
    slot.release();
    tell_cost(slot, hidden, interrupts);
    if in_kernel {
        k.system_ns.fetch_add(work, Relaxed);
    }
    count_charge(&c);
    if now_v > c.finish {
        count(&k.late_v, now_v.0 - c.finish.0);
    }

    // Catch up at twice the share at most: the slice takes at least half its real length.
    let half_r = segment.inverse.mul_floor(work_v) / 2;
    let mut wake = segment.r_of(c.finish).0;
    if wake < began_r.saturating_add(half_r) {
        wake = began_r.saturating_add(half_r);
    }
    n.busy_r_ns.fetch_max(now_r.0, Relaxed);
    let mut woke = now_r.0;
    let began_v = c.finish.0.saturating_sub(work_v);
    // One that other threads kept from a core would have been off it then, lock or not.
    let queued = began_v > earliest.0.saturating_add(QUEUED_MIN_V_NS);
    // Its packets are held until they are due. Cold caches after a sleep, in the midst of what it does, cost more than all else.
    let (early_v, slice_v) = (c.finish.0.saturating_sub(now_v.0), turns::slice_v_ns());
    let held_later = packets_tell(told) && (1..=slice_v).contains(&early_v) && !queued;
    // After its next slice is early enough.
    let contended_v = contended_v_ns(now_r.0);
    let sleeps_later = early_v > 0 && early_v.saturating_add(slice_v) <= contended_v;
    if wake > now_r.0 && wake != u64::MAX && !held_later && !sleeps_later {
        let most_v = slice_v.max(contended_v).saturating_mul(AHEAD_SLICES);
        let ahead_v = if queued { began_v } else { c.finish.0.saturating_sub(most_v) };
        let mut asked;
        Slept { woke, asked, .. } = sleep_until(wake, segment.r_of(VirtNs(ahead_v)).0, METER_SLEEP);
        // A pause, or a change of rate, while it slept: the slice still takes its virtual time.
        while !asked && n.segment() != segment {
            let anew = n.segment().r_of(c.finish).0;
            if anew == u64::MAX || anew <= woke {
                break;
            }
            wake = anew;
            Slept { woke, asked, .. } = sleep_until(anew, anew, METER_SLEEP);
        }
        let late = woke.saturating_sub(wake);
        count(&k.sleep_late, late);
        n.busy_r_ns.fetch_max(woke, Relaxed);
        // The delay after a sleep of ours is not the program's waiting.
        slot.explained_ns.fetch_add(late, Relaxed);
    }

    if let Some(turn) = turns::after(told, slot, RealNs(woke), c.finish) {
        woke = wait_for(&turn, slot, woke);
    }

    slot.node_charged_ns.store(k.charged_ns.load(Relaxed), Relaxed);
    slot.last_wall_ns.store(woke, Relaxed);
    slot.gap_ns.store(cold_gap, Relaxed);
    slot.set_burst_of_hit(burst, packets_tell(told));
    // The switch after its own sleep is in the handler's own time.
    slot.switches.store(usage::switches(), Relaxed);
    sentraps::look(slot);
    let after = clock::thread_cpu();
    // A packet that was sent before the hit may have been charged ahead of it meanwhile: the next hit gives that back.
    let seen = after.saturating_sub(cpu);
    ledger::account(k, slot, (cpu, after), [0, 0, 0, seen]);
    tell_cost(slot, seen, 0);
    k.charging_hits.fetch_add(1, Relaxed);
    k.seen_hits_ns.fetch_add(seen, Relaxed);
}

/// Sleeps until a thread's turn comes; the instant it woke. Where others went to sleep meanwhile it could have begun its
/// next work before, but it looks only now and then: a slice of that counts.
#[inline(never)]
fn wait_for(turn: &turns::Turn, slot: &ThreadSlot, mut woke: u64) -> u64 {
    let n = node();
    let mut not_before = VirtNs(0);
    loop {
        let segment = n.segment();
        let now = segment.v_of(RealNs(woke));
        let (due, look) = turn.look(now);
        let wake = segment.r_of(look).0;
        if wake <= woke || wake == u64::MAX {
            slot.finish_v_ns.fetch_max(due.0.max(not_before.0), Relaxed);
            return woke;
        }
        not_before = VirtNs(now.0.max(look.0.saturating_sub(turns::slice_v_ns())));
        woke = sleep_until(wake, wake, METER_SLEEP).woke;
        slot.explained_ns.fetch_add(woke.saturating_sub(wake), Relaxed);
        n.busy_r_ns.fetch_max(woke, Relaxed);
    }
}

/// How many times this thread's switches cost what the meter adds to one, in parts of `SWITCH_ONCE`.
pub fn switch_part() -> u32 {
    match node().switch_part.load(Relaxed) {
        SWITCHES_UNKNOWN if process().own.threads_hit.load(Relaxed) > 1 => 0,
        SWITCHES_UNKNOWN => SWITCH_ONCE,
        part => part,
    }
}

/// Charges this thread's work to the cores that it is pinned to, as its packets are from here on.
#[inline(never)]
fn charge(told: u64, slot: &ThreadSlot, now: VirtNs, earliest: VirtNs, work_v_ns: u64) -> ledger::Charge {
    let n = node();
    let mut cores = 0;
    if n.sched.used() {
        cores = sched::cores_here(told);
        if let Some(known) = n.pinned(slot.tid.load(Relaxed)) {
            known.store(cores, Relaxed);
        }
    }
    ledger::charge(n.entries(), cores, now, earliest, work_v_ns)
}

/// CPU time that was the meter's own, for a thread's and a process's clocks, which have what interrupts add instead. A child of
/// vfork, in its parent's memory, tells its process nothing: its next image begins with what its thread has.
pub fn tell_cost(slot: &ThreadSlot, ns: u64, interrupts_ns: u64) {
    let less_ns = ns.wrapping_sub(interrupts_ns);
    slot.cost_ns.fetch_add(less_ns, Relaxed);
    if signals::owns_page() {
        let untold = slot.untold_cost_ns.swap(0, Relaxed);
        process().own.cost_ns.fetch_add(less_ns.wrapping_add(untold), Relaxed);
    }
}

const FUTEX_WAKE_PRIVATE: u64 = 129;
const FUTEX_WAIT_BITSET_PRIVATE: u64 = 137;
const ANY: u64 = 0xffff_ffff;

/// Sleeps until a real instant; until `ahead_ns` at most once it is asked to go on, or where another thread has just begun
/// to wait for a lock, which this one may hold. It is `which` of the meter's sleeps. Threads of a frame have no
/// timer slack of the kernel's: the machine's own is added to the program's waits (see `clock::slack`).
#[inline(never)]
pub fn sleep_until(real_ns: u64, ahead_ns: u64, which: u64) -> Slept {
    let own = &process().own;
    let first = own.asked.load(Relaxed);
    let mut interrupted = false;
    own.sleepers.fetch_add(1, Relaxed);
    // Whoever begins to wait for a lock from here on sees this sleeper, and asks it.
    let wanted = lock_is_wanted();
    let woke = loop {
        let seen = own.asked.load(Relaxed);
        let end_ns = if wanted || seen != first { ahead_ns.min(real_ns) } else { real_ns };
        let now = clock::now_real().0;
        if now >= end_ns {
            break now;
        }
        let t = clock::timespec(end_ns);
        let word = &raw const own.asked as u64;
        let r = sys::own(FUTEX, [word, FUTEX_WAIT_BITSET_PRIVATE, seen as u64, &raw const t as u64, which, ANY]);
        interrupted |= r == sys::EINTR;
    };
    own.sleepers.fetch_sub(1, Relaxed);
    Slept { woke, asked: woke < real_ns, interrupted }
}

/// How a sleep ended.
pub struct Slept {
    /// Real CLOCK_MONOTONIC, ns.
    pub woke: u64,
    /// It was early.
    pub asked: bool,
    /// Signals came: of the program's where it does not block them.
    pub interrupted: bool,
}

/// How far ahead of its virtual time a thread of a process that contends for locks may get without a sleep, each of which may
/// be one with a lock held, virtual ns; 0 of another.
fn contended_v_ns(now_r_ns: u64) -> u64 {
    let n = node();
    let contends = lock_wanted_since_ns(now_r_ns) < n.segment().inverse.mul_floor(CONTENDS_V_NS);
    if contends { n.slowness().mul_floor(n.contended_grain_ns.load(Relaxed)) } else { 0 }
}

/// How long ago a thread of the process last began to wait for a contended lock, real ns.
fn lock_wanted_since_ns(now_r_ns: u64) -> u64 {
    now_r_ns.saturating_sub(process().own.lock_wanted_r_ns.load(Relaxed))
}

/// Whether a thread of the process has just begun to wait for a contended lock.
fn lock_is_wanted() -> bool {
    process().own.lock_waiters.load(Relaxed) != 0 && lock_wanted_since_ns(clock::now_real().0) < WANTED_MAX_R_NS
}

/// Asks the sleepers of the process to go on. The CPU time that this takes is the meter's, where nothing else came meanwhile: a
/// hit counts its own, and handlers are the program's, on whatever thread they end. Without holding the slot, with which no
/// handler may be met.
#[inline(never)]
fn ask_sleepers() {
    let own = &process().own;
    own.asked.fetch_add(1, Relaxed);
    let slot = node().slot(sys::gettid());
    let looks = || (slot.map_or(0, |s| s.hits.load(Relaxed)), interrupt::seen());
    let (before, cpu_ns) = (looks(), clock::thread_cpu());
    sys::own(FUTEX, [&raw const own.asked as u64, FUTEX_WAKE_PRIVATE, i32::MAX as u64, 0, 0, 0]);
    let took_ns = clock::thread_cpu().saturating_sub(cpu_ns);
    if let Some(slot) = slot.filter(|_| took_ns < ASKING_MAX_NS && looks() == before) {
        ledger::account(&node().counters, slot, (0, took_ns), [0, 0, 0, took_ns]);
        tell_cost(slot, took_ns, 0);
    }
}

/// This thread is about to wait for a lock. Who holds it may be asleep for a hit, or be hit meanwhile, as no thread of the
/// original machine would be: those of the process that are go on, ahead of their virtual time, and their next hits make
/// up for it.
pub fn while_wanted(wait: impl FnOnce() -> sys::Ret) -> sys::Ret {
    let own = &process().own;
    own.lock_wanted_r_ns.store(clock::now_real().0, Relaxed);
    own.lock_waiters.fetch_add(1, Relaxed);
    if own.sleepers.load(Relaxed) > 0 {
        ask_sleepers();
    }
    let r = wait();
    own.lock_waiters.fetch_sub(1, Relaxed);
    r
}
