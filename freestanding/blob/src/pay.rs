//! A thread that looks for more to do has done what it did before, by its ledger.
//!
//! Where packets tell what a thread uses it is not put to sleep amid its work: its packets are held instead, and it would look
//! for more before the original machine's has ended what it was at. A server would find one request where that finds three, in
//! another order, and be woken for each. So it sleeps for what it owes here, between two pieces of work, without a signal.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use diecast_core_abi::{METER_PAYS, NodePage, ThreadSlot};
use diecast_core_cpu as ledger;
use diecast_core_syscalls::nr::FUTEX;
use diecast_core_vtime::{RealNs, VirtNs};

use crate::meter::{ANY, FUTEX_WAIT_BITSET_PRIVATE, add_cost, count, switch_part};
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
}

/// Before a wait that may find something already.
#[inline(never)]
pub fn before_wait() {
    let n = node();
    if n.metered.load(Relaxed) == 0 {
        return;
    }
    let Some(slot) = n.slot(sys::gettid()) else { return };
    // Others sleep for what they owe wherever they are hit.
    if !slot.packets_tell() {
        return;
    }
    let here = Here { cpu_ns: clock::thread_cpu(), at: clock::now_real() };
    let segment = n.segment();
    let now = segment.v_of(here.at);
    // At most: it may have waited for its core.
    let used = here.cpu_ns.saturating_sub(slot.last_cpu_ns.load(Relaxed));
    let began = segment.v_of(RealNs(here.at.0.saturating_sub(used)));
    let before = VirtNs(slot.finish_v_ns.load(Relaxed));
    let due = done(n, slot, used, before.max(began));
    if is_worth(now, due) {
        pay(slot, here, began);
    }
}

fn is_worth(now: VirtNs, due: VirtNs) -> bool {
    due.0 > now.0.saturating_add(turns::slice_v_ns() / WORTH_PART)
}

/// What of this CPU time is the program's work of its present burst, at the usual speed and as warm as on the original
/// machine; what of it was cold; and what was not the program's.
struct Work {
    warm_ns: u64,
    cold_ns: u64,
    cost_ns: u64,
}

#[inline(always)]
fn work_of(n: &NodePage, slot: &ThreadSlot, used_ns: u64, switches: u64) -> Work {
    let usual = ledger::at_usual_speed(n.slow_discount.load(Relaxed), used_ns);
    let (burst, hit_before) = slot.burst();
    let after_hit = if hit_before { n.after_hit_ns.load(Relaxed) } else { 0 };
    let cost_ns = ledger::SwitchCost::of_node(n, switch_part()).of(switches, after_hit, usual);
    let work = usual - cost_ns;
    let warm_ns = ledger::warm_ns(&n.cold_discount, slot.gap_ns.load(Relaxed), burst, work);
    Work { warm_ns, cold_ns: work - warm_ns, cost_ns }
}

fn cores_of(n: &NodePage, slot: &ThreadSlot) -> u64 {
    if n.sched.used() { n.pinned(slot.tid.load(Relaxed)).map_or(0, |cores| cores.load(Relaxed)) } else { 0 }
}

/// When work that took so much and could begin at `earliest` would have ended, without a charge.
#[inline(never)]
fn done(n: &NodePage, slot: &ThreadSlot, used_ns: u64, earliest: VirtNs) -> VirtNs {
    let work_v_ns = n.slowness().mul_floor(work_of(n, slot, used_ns, 0).warm_ns);
    if work_v_ns == 0 {
        return earliest;
    }
    ledger::finish_of(n.entries(), cores_of(n, slot), earliest, work_v_ns)
}

#[inline(never)]
fn pay(slot: &ThreadSlot, here: Here, began: VirtNs) {
    let n = node();
    let k = &n.counters;
    let known = slot.switches.load(Relaxed);
    // One that has not waited since its last sleep for the meter goes on where it was.
    let began = if ledger::has_waited(known, usage::switches()) { began } else { VirtNs(0) };
    let charged_to = slot.last_cpu_ns.load(Relaxed);
    let handlers = interrupt::seen();
    let (mut woke, mut late_ns) = (here.at.0, 0u64);
    for _ in 0..SLEEPS_MAX {
        let last = slot.last_cpu_ns.load(Relaxed);
        let before = VirtNs(slot.finish_v_ns.load(Relaxed));
        // Once a packet was charged since, that is known.
        let earliest = if last == charged_to { before.max(began) } else { before };
        let due = done(n, slot, here.cpu_ns.saturating_sub(last), earliest);
        let segment = n.segment();
        let wake = segment.r_of(due).0;
        if !is_worth(segment.v_of(RealNs(woke)), due) || wake <= woke || wake == u64::MAX {
            break;
        }
        woke = sleep_until(wake);
        let late = woke.saturating_sub(wake);
        count(&k.sleep_late, late);
        late_ns += late;
        n.busy_r_ns.fetch_max(woke, Relaxed);
    }
    // A handler of the program's that does not return would keep the slot.
    let mask = signals::set_kernel_mask_of(!signals::ours(), METER_PAYS);
    k.charges_begun.fetch_add(1, AcqRel);
    // Where a hit or a packet is being charged, the next charge has this.
    if slot.try_hold() {
        settle(slot, here, if slot.last_cpu_ns.load(Relaxed) == charged_to { began } else { VirtNs(0) });
        // As a hit does: it has a meter.
        slot.hits.fetch_add(1, Relaxed);
        slot.last_wall_ns.store(woke, Relaxed);
        slot.explained_ns.fetch_add(late_ns, Relaxed);
        slot.switches.store(usage::switches(), Relaxed);
        let after = clock::thread_cpu();
        let last = slot.last_cpu_ns.load(Relaxed);
        // What a handler of the program's did meanwhile is charged next.
        let seen = if interrupt::seen() == handlers { after.saturating_sub(here.cpu_ns.max(last)) } else { 0 };
        slot.account_to(0, seen);
        slot.release();
        k.pays.fetch_add(1, Relaxed);
        k.seen_pays_ns.fetch_add(seen, Relaxed);
        add_cost(slot, seen, 0);
    }
    k.charges_done.fetch_add(1, AcqRel);
    if process().own.cpu_timers.load(Relaxed) != 0 {
        cputimers::check(mask);
    }
    usage::meet_cpu_limit(mask);
    signals::set_kernel_mask_of(mask, METER_PAYS);
}

/// The instant it woke, not before this one. Handlers of the program's run meanwhile, as on the original machine, which is at
/// work, and may not return.
fn sleep_until(real_ns: u64) -> u64 {
    let word = 0u32;
    loop {
        let now = clock::now_real().0;
        if now >= real_ns {
            return now;
        }
        let t = clock::timespec(real_ns);
        let (at, until) = (&raw const word as u64, &raw const t as u64);
        sys::own(FUTEX, [at, FUTEX_WAIT_BITSET_PRIVATE, 0, until, METER_PAYS, ANY]);
    }
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
    let switches = ledger::switches_since(slot.switches.load(Relaxed), usage::switches());
    // The last was to sleep here, and is in the time of that.
    let work = work_of(n, slot, used, switches.saturating_sub(1));
    let usual = work.warm_ns + work.cold_ns + work.cost_ns;
    let earliest = VirtNs(slot.finish_v_ns.load(Relaxed)).max(began);
    let now = n.segment().v_of(here.at);
    let c = ledger::charge(n.entries(), cores_of(n, slot), now, earliest, n.slowness().mul_floor(work.warm_ns));
    k.charged_ns.fetch_add(work.warm_ns, Relaxed);
    k.cold_ns.fetch_add(work.cold_ns, Relaxed);
    k.slow_ns.fetch_add(used - usual, Relaxed);
    k.clamped.fetch_add(c.clamped as u64, Relaxed);
    if c.forgiven_v_ns > 0 {
        k.forgiven.fetch_add(1, Relaxed);
        k.forgiven_v_ns.fetch_add(c.forgiven_v_ns, Relaxed);
    }
    slot.charged_ns.fetch_add(work.warm_ns, Relaxed);
    let (burst, hit_before) = slot.burst();
    slot.set_burst(ledger::burst_after(burst, usual - work.cost_ns), hit_before && work.cost_ns == 0);
    slot.finish_v_ns.store(c.finish.0, Relaxed);
    slot.node_charged_ns.store(k.charged_ns.load(Relaxed), Relaxed);
    slot.account_to(last, here.cpu_ns);
    add_cost(slot, work.cost_ns, ledger::Interrupts::of_node(n).of(usual - work.cost_ns));
}
