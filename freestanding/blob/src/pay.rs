//! A thread that looks for more to do has done what it did before, by its ledger.
//!
//! Where packets tell what a thread uses it is not put to sleep amid its work: its packets are held instead, and it would look
//! for more before the original machine's has ended what it was at. A server would find one request where that finds three, in
//! another order, and be woken for each. So it sleeps for what it owes here, between two pieces of work, without a signal.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{METER_PAYS, NodePage, ThreadSlot};
use diecast_core_cpu as ledger;
use diecast_core_vtime::{RealNs, VirtNs};

use crate::meter::{count, count_charge, sleep_until, switch_part, tell_cost};
use crate::{clock, cputimers, interrupt, node, process, signals, sys, turns, usage};

/// What is less than this part of a slice is not slept for: that takes some 15 µs of CPU time.
const WORTH_PART: u64 = 4;

/// How often a thread sleeps at most before one wait: the emulator charges its packets meanwhile, and then knows better.
const SLEEPS_MAX: u32 = 4;

/// What a thread has used until now, and when.
#[derive(Clone, Copy)]
struct Here {
    cpu_ns: u64,
    at: RealNs,
    switches: u64,
}

/// Before a wait that may find something already, and before a sleep. The virtual time that it took, ns.
#[inline(never)]
pub fn before_wait() -> u64 {
    let n = node();
    // Only hits know of weights, and of the cores that a thread has been pinned to since.
    if n.metered.load(Relaxed) == 0 || n.weighted.load(Relaxed) != 0 || n.sched.used() {
        return 0;
    }
    let Some(slot) = n.slot(sys::gettid()) else { return 0 };
    // Others sleep for what they owe wherever they are hit.
    if !slot.packets_tell() {
        return 0;
    }
    let (cpu_ns, at) = (clock::thread_cpu(), clock::now_real());
    let segment = n.segment();
    // It may have waited for its core: no later than this.
    let (before, used) = unpaid(slot, cpu_ns);
    let began = segment.v_of(RealNs(at.0.saturating_sub(used)));
    if !is_worth(segment.v_of(at), done(n, before.max(began), n.slowness().mul_floor(used))) {
        return 0;
    }
    let asked_mono_ns = clock::mono_now();
    let Some(mask) = pay(slot, Here { cpu_ns, at, switches: usage::switches() }, began) else { return 0 };
    // As after a hit, which there are few of.
    if process().own.cpu_timers.load(Relaxed) != 0 {
        cputimers::check(mask);
    }
    usage::meet_cpu_limit(mask);
    signals::set_kernel_mask_of(mask, METER_PAYS);
    clock::mono_now().saturating_sub(asked_mono_ns)
}

/// When what is charged so far ends, and CPU time since. The emulator moves the first before the second: where it does so now
/// the sum is too little.
fn unpaid(slot: &ThreadSlot, cpu_ns: u64) -> (VirtNs, u64) {
    let finish = VirtNs(slot.finish_v_ns.load(Relaxed));
    (finish, cpu_ns.saturating_sub(slot.last_cpu_ns.load(Relaxed)))
}

fn is_worth(now: VirtNs, due: VirtNs) -> bool {
    due.0 > now.0.saturating_add(turns::slice_v_ns() / WORTH_PART)
}

/// When work that could begin at `earliest` would have ended, without a charge.
fn done(n: &NodePage, earliest: VirtNs, work_v_ns: u64) -> VirtNs {
    if work_v_ns == 0 { earliest } else { ledger::finish_of(n.entries(), 0, earliest, work_v_ns) }
}

/// What of some CPU time is the program's work of its present burst, at the usual speed and as warm as on the original
/// machine; what of it was cold; and what was not the program's.
struct Work {
    warm_ns: u64,
    cold_ns: u64,
    cost_ns: u64,
}

/// `beside_ns` is of what is not the program's beside switches.
#[inline(never)]
fn work_of(slot: &ThreadSlot, used_ns: u64, switches: u64, beside_ns: u64) -> Work {
    let n = node();
    let usual = ledger::at_usual_speed(n.slow_discount.load(Relaxed), used_ns);
    let (burst, hit_before) = slot.burst();
    let after_hit = if hit_before { n.after_hit_ns.load(Relaxed) } else { 0 };
    let beside_ns = beside_ns.saturating_add(after_hit);
    let cost_ns = ledger::SwitchCost::of_node(n, switch_part()).of(switches, beside_ns, usual);
    let work = usual - cost_ns;
    let warm_ns = ledger::warm_ns(&n.cold_discount, slot.gap_ns.load(Relaxed), burst, work);
    Work { warm_ns, cold_ns: work - warm_ns, cost_ns }
}

/// The thread's mask where it has slept: the kernel's blocks all signals from then on.
#[inline(never)]
fn pay(slot: &ThreadSlot, here: Here, began: VirtNs) -> Option<u64> {
    let n = node();
    let k = &n.counters;
    let known = slot.switches.load(Relaxed);
    // One that has not waited since its last sleep for the meter goes on where it was.
    let began = if ledger::has_waited(known, here.switches) { began } else { VirtNs(0) };
    let charged_to = slot.last_cpu_ns.load(Relaxed);
    let handlers = interrupt::seen();
    let (mut woke, mut late_ns, mut sleeps, mut handled) = (here.at.0, 0u64, 0, false);
    while sleeps < u64::from(SLEEPS_MAX) {
        let (before, used) = unpaid(slot, here.cpu_ns);
        // Once a packet was charged, what was before it is known.
        let is_charged = slot.last_cpu_ns.load(Relaxed) != charged_to;
        let (earliest, switches, packet_ns) = if is_charged {
            (before, 0, 0)
        } else {
            (before.max(began), ledger::switches_since(known, here.switches), n.own_packet_ns.load(Relaxed))
        };
        let work = work_of(slot, used, switches, packet_ns);
        let due = done(n, earliest, n.slowness().mul_floor(work.warm_ns));
        let segment = n.segment();
        let wake = segment.r_of(due).0;
        if !is_worth(segment.v_of(RealNs(woke)), due) || wake <= woke || wake == u64::MAX {
            break;
        }
        // Handlers of the program's run meanwhile, as on the original machine, which is at work. One that does not return leaves
        // a sleeper too many.
        let slept = sleep_until(wake, 0, METER_PAYS);
        woke = slept.woke;
        sleeps += 1;
        n.busy_r_ns.fetch_max(woke, Relaxed);
        let interrupted = slept.interrupted && interrupt::seen() != handlers;
        handled |= interrupted;
        if slept.asked {
            break;
        }
        if !interrupted {
            let late = woke.saturating_sub(wake);
            count(&k.sleep_late, late);
            late_ns += late;
        }
    }
    // Where a handler forked, the slot is its parent's.
    if sleeps == 0 || handled && slot.tid.load(Relaxed) != sys::gettid() {
        return None;
    }
    // Who is interrupted with the slot, by a handler that does not return, would keep it. A hit waits, and then finds nothing
    // to charge. Calls of the blob's own are trapped by nobody.
    let open = signals::ours() & !(signals::SIGSYS_BIT | signals::SIGTRAP_BIT);
    let mask = signals::set_kernel_mask_of(!open, METER_PAYS);
    // Where a packet is being charged, the next charge has this.
    if slot.try_hold() {
        settle(slot, here, if slot.last_cpu_ns.load(Relaxed) == charged_to { began } else { VirtNs(0) });
        // What it has used is charged: it has a meter.
        slot.hits.fetch_add(1, Relaxed);
        slot.last_wall_ns.store(woke, Relaxed);
        slot.explained_ns.fetch_add(late_ns, Relaxed);
        slot.switches.store(usage::switches(), Relaxed);
        // What a handler of the program's did meanwhile is charged next.
        let seen = if handled { 0 } else { clock::thread_cpu().saturating_sub(here.cpu_ns) };
        ledger::account(k, slot, (0, seen), [0, 0, 0, seen]);
        slot.release();
        if !handled {
            k.pays.fetch_add(sleeps, Relaxed);
            k.seen_pays_ns.fetch_add(seen, Relaxed);
        }
        tell_cost(slot, seen, 0);
    }
    Some(mask)
}

/// Charges what no packet told of what the thread has used until `here`, and could begin at `began`.
#[inline(never)]
fn settle(slot: &ThreadSlot, here: Here, began: VirtNs) {
    let n = node();
    let k = &n.counters;
    let last = slot.last_cpu_ns.load(Relaxed);
    let used = here.cpu_ns.saturating_sub(last);
    if used == 0 {
        return;
    }
    let work = work_of(slot, used, ledger::switches_since(slot.switches.load(Relaxed), here.switches), 0);
    let usual = work.warm_ns + work.cold_ns + work.cost_ns;
    let earliest = VirtNs(slot.finish_v_ns.load(Relaxed)).max(began);
    let now = n.segment().v_of(here.at);
    let c = ledger::charge(n.entries(), 0, now, earliest, n.slowness().mul_floor(work.warm_ns));
    count_charge(&c);
    slot.charged_ns.fetch_add(work.warm_ns, Relaxed);
    let (burst, hit_before) = slot.burst();
    slot.set_burst(ledger::burst_after(burst, usual - work.cost_ns), hit_before && work.cost_ns == 0);
    slot.finish_v_ns.store(c.finish.0, Relaxed);
    ledger::account(k, slot, (last, here.cpu_ns), [work.warm_ns, work.cold_ns, used - usual, work.cost_ns]);
    slot.node_charged_ns.store(k.charged_ns.load(Relaxed), Relaxed);
    tell_cost(slot, work.cost_ns, ledger::Interrupts::of_node(n).of(usual - work.cost_ns));
}
