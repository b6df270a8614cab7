//! Debt at egress: a packet leaves when the original machine would have finished what its sender did for it.
//!
//! A thread runs its slice at full speed, so a packet sent within a slice is ahead of its virtual time. The
//! emulator charges the sender up to the instant of sending and holds the packet until that work would have ended.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

use diecast_core_abi::{
    Counters, GAP_BINS, LateCost, NodePage, SWITCH_ONCE, SWITCHES_UNKNOWN, ThreadSlot, late_bucket,
};
use diecast_core_vtime::{Rate, RealNs, VirtNs};

use crate::{
    Interrupts, SwitchCost, at_usual_speed, begins, burst_after, charge, finish_of, slow_given_back, stood_still_ns,
    switches_after, switches_since, uncharge, warm_ns,
};

/// A packet charges its sender by another way than a hit, and takes time that the host stole for its own, until it is given back;
/// never by as much as this, real CPU ns. More is the slot of a dead thread of the same number.
pub const OVERCHARGE_MAX_NS: u64 = 100_000_000;

/// What is known of a packet's sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Thread id in its innermost pid namespace.
    pub tid: u32,
    /// When it sent.
    pub at: RealNs,
    /// Its CPU time then, real ns.
    pub cpu_ns: u64,
    /// Its CPU time when the present burst of work began, real ns.
    pub burst_cpu_ns: u64,
    /// When that burst became possible: the wake-up after the thread had blocked.
    pub woke: RealNs,
    /// Time that it has waited for a core in all, real ns (schedstat's run delay).
    pub run_delay_ns: u64,
    /// How long the node had not run at that wake-up, real ns.
    pub gap_ns: u64,
    /// How often it has given up its core, the last sixteen bits.
    pub switches: u16,
    /// For how long its cores stood still since its last hit while it had them, as far as their clocks saw it, real ns.
    pub paused_ns: u64,
}

/// Where in a burst of work some CPU time lies: how cold it can be.
#[derive(Clone, Copy)]
struct Burst {
    /// How long the node had not run before it, real ns.
    gap_ns: u64,
    /// What it has taken already, real ns.
    taken_ns: u64,
}

impl Burst {
    /// At its begin.
    fn after(gap_ns: u64) -> Burst {
        Burst { gap_ns, taken_ns: 0 }
    }

    /// Where a thread's last charge left it.
    fn of(slot: &ThreadSlot) -> Burst {
        Burst { gap_ns: slot.gap_ns.load(Relaxed), taken_ns: slot.burst().0 }
    }
}

/// The ledger as a sender's charge sees it.
struct Account<'a> {
    discount: &'a [AtomicU32; GAP_BINS],
    slow_discount: u32,
    /// Of a node whose threads are hit after a grain or two wherever they are.
    grain_ns: Option<u64>,
    switch: SwitchCost,
    /// What BPF programs take at a packet: paid after it, so taken off at the next.
    packet_ns: u64,
    /// What a wake-up takes that the original does without: its thread was still at work.
    extra_wake_ns: u64,
    /// What its code takes longer after a hit: taken off at the first packet since.
    after_hit_ns: u64,
    /// From a wake-up to a thread's begin on an idle core of the original.
    way_ns: u64,
    /// What interrupts add to its CPU clock.
    interrupts: Interrupts,
    slowness: Rate,
    entries: &'a [AtomicU64],
    /// Those of them that the thread is pinned to, as bits; 0 for all.
    cores: u64,
    now_v: VirtNs,
    /// What its clock learns late.
    late: Option<&'a LateCost>,
    /// The node's sums; none in a test of the account alone.
    sums: Option<&'a Counters>,
    charged_ns: u64,
    cold_ns: u64,
    slow_ns: u64,
    /// What the meter's part in switches was.
    cost_ns: u64,
    forgiven_v_ns: u64,
    clamped: bool,
    /// What the node had been charged before.
    node_charged_ns: u64,
}

impl Account<'_> {
    /// Charges work of a burst that could start at `earliest`, with so many switches, and so much that is not the program's
    /// beside; its end.
    fn book(&mut self, earliest: VirtNs, cpu_ns: u64, burst: Burst, (switches, beside_ns): (u64, u64)) -> VirtNs {
        let usual = at_usual_speed(self.slow_discount, cpu_ns);
        let cost = self.switch.of(switches, beside_ns, usual);
        let warm = warm_ns(self.discount, burst.gap_ns, burst.taken_ns, usual - cost);
        self.cost_ns += cost;
        let c = charge(self.entries, self.cores, self.now_v, earliest, self.slowness.mul_floor(warm));
        self.charged_ns += warm;
        self.cold_ns += usual - cost - warm;
        self.slow_ns += cpu_ns - usual;
        self.forgiven_v_ns += c.forgiven_v_ns;
        self.clamped |= c.clamped;
        c.finish
    }

    /// When a burst of a thread with work before it begins, which was woken then.
    fn begins(&self, before: VirtNs, woke: VirtNs) -> VirtNs {
        begins(before, woke, self.way_ns)
    }

    /// For how long of this CPU time a sender's core stood still: who sends was not in one system call for that long.
    fn paused_ns(&self, cpu_ns: u64, seen_ns: u64) -> u64 {
        stood_still_ns(cpu_ns, self.grain_ns, seen_ns)
    }

    /// Virtual CPU time that a burst's work takes on the original machine, ns.
    fn work_v_ns(&self, cpu_ns: u64, burst: Burst, switches: u64) -> u64 {
        let usual = at_usual_speed(self.slow_discount, cpu_ns);
        let work = usual - self.switch.of(switches, 0, usual);
        self.slowness.mul_floor(warm_ns(self.discount, burst.gap_ns, burst.taken_ns, work))
    }

    /// When this much work would have ended, without a charge.
    fn look(&self, earliest: VirtNs, (cpu_ns, seen_ns): (u64, u64), burst: Burst, switches: u64) -> VirtNs {
        let work_v_ns = self.work_v_ns(cpu_ns - self.paused_ns(cpu_ns, seen_ns), burst, switches);
        finish_of(self.entries, self.cores, earliest, work_v_ns)
    }

    fn charge_sender(&mut self, slot: Option<&ThreadSlot>, sent: &Sent, woke: VirtNs) -> VirtNs {
        let burst_ns = sent.cpu_ns.saturating_sub(sent.burst_cpu_ns);
        // A thread without a slot has not had its first hit, nor has anybody read its clock.
        let Some(slot) = slot else {
            return self.look(self.begins(VirtNs(0), woke), (burst_ns, sent.paused_ns), Burst::after(sent.gap_ns), 1);
        };
        if !slot.try_hold() {
            // Its own hit is under way and charges all of this.
            let open_ns = sent.cpu_ns.saturating_sub(slot.last_cpu_ns.load(Relaxed)).min(burst_ns);
            let earliest = self.begins(VirtNs(slot.finish_v_ns.load(Relaxed)), woke);
            let switches = switches_since(slot.switches.load(Relaxed), u64::from(sent.switches));
            return self.look(earliest, (open_ns, sent.paused_ns), Burst::of(slot), switches);
        }
        let release = self.charge_held(slot, sent, woke);
        slot.release();
        release
    }

    fn charge_held(&mut self, slot: &ThreadSlot, sent: &Sent, woke: VirtNs) -> VirtNs {
        let last_cpu_ns = slot.last_cpu_ns.load(Relaxed);
        let before = VirtNs(slot.finish_v_ns.load(Relaxed));
        let used_ns = sent.cpu_ns.saturating_sub(last_cpu_ns);
        if used_ns == 0 {
            // A hit came first and charged more than this packet's work.
            let since = at_usual_speed(self.slow_discount, last_cpu_ns - sent.cpu_ns);
            let of_hit = VirtNs(before.0.saturating_sub(self.slowness.mul_floor(since)));
            if sent.woke.0 <= slot.last_wall_ns.load(Relaxed) {
                return of_hit;
            }
            // Or a packet before it was charged ahead of its own work, and this burst had yet to come then.
            let burst_ns = sent.cpu_ns.saturating_sub(sent.burst_cpu_ns);
            let of_burst = self.work_v_ns(burst_ns, Burst::after(sent.gap_ns), 0);
            return of_hit.max(VirtNs(self.begins(VirtNs(0), woke).0.saturating_add(of_burst)));
        }
        let handed = slot.is_handed();
        let known = slot.switches.load(Relaxed);
        let switches = switches_since(known, u64::from(sent.switches));
        let paused_ns = self.paused_ns(used_ns, sent.paused_ns);
        self.slow_ns += paused_ns;
        let used_ns = used_ns - paused_ns;
        let mut after_hit_ns = if slot.burst().1 { self.after_hit_ns } else { 0 };
        // A wake-up at or before the last hit's return ended the hit's own sleep: the work went on where it was.
        let finish = if sent.woke.0 <= slot.last_wall_ns.load(Relaxed) {
            let burst = Burst::of(slot);
            slot.set_burst(burst_after(burst.taken_ns, used_ns), false);
            self.book(before, used_ns, burst, (switches, self.packet_ns + after_hit_ns))
        } else {
            let left_over_ns = sent.burst_cpu_ns.saturating_sub(last_cpu_ns).min(used_ns);
            let mut earliest = before;
            let mut own_end_v_ns = before.0;
            if left_over_ns > 0 {
                let usual = at_usual_speed(self.slow_discount, left_over_ns);
                let left_over_v_ns = self.slowness.mul_floor(usual);
                own_end_v_ns = own_end_v_ns.saturating_add(left_over_v_ns);
                let latest_start = woke.0.saturating_sub(left_over_v_ns);
                let start = VirtNs(before.0.max(latest_start));
                let beside = (switches.saturating_sub(1), core::mem::take(&mut after_hit_ns));
                earliest = self.book(start, left_over_ns, Burst::of(slot), beside);
            }
            slot.gap_ns.store(sent.gap_ns, Relaxed);
            slot.set_burst(burst_after(0, used_ns - left_over_ns), false);
            // The switch to the present burst is its own, those before it belong to what is left over, if anything is.
            let of_burst = if left_over_ns > 0 { switches.min(1) } else { switches };
            // Here it has run ahead and found nothing more to do. Where others have the cores its original had slept too.
            let extra_wake_ns = if own_end_v_ns > woke.0 && !handed { self.extra_wake_ns } else { 0 };
            let beside = (of_burst, self.packet_ns + extra_wake_ns + after_hit_ns);
            self.book(self.begins(earliest, woke), used_ns - left_over_ns, Burst::after(sent.gap_ns), beside)
        };
        slot.switches.store(switches_after(known, switches), Relaxed);
        let less_ns = self.cost_ns.wrapping_sub(self.interrupts.of(self.charged_ns));
        if let Some(late) = self.late {
            late.add(self.cost_ns, sent.cpu_ns);
        }
        slot.cost_ns.fetch_add(less_ns, Relaxed);
        slot.untold_cost_ns.fetch_add(less_ns, Relaxed);
        slot.charged_ns.fetch_add(self.charged_ns, Relaxed);
        // From here on counts what siblings are charged, and how long the thread waits.
        slot.node_charged_ns.store(self.node_charged_ns + self.charged_ns, Relaxed);
        slot.run_delay_ns.store(sent.run_delay_ns, Relaxed);
        slot.explained_ns.store(0, Relaxed);
        slot.finish_v_ns.store(finish.0, Relaxed);
        let parts = [self.charged_ns, self.cold_ns, self.slow_ns, self.cost_ns];
        match self.sums {
            Some(k) => account(k, slot, (last_cpu_ns, sent.cpu_ns), parts),
            None => slot.account_to(last_cpu_ns, sent.cpu_ns),
        }
        slot.last_wall_ns.store(sent.at.0, Relaxed);
        finish
    }
}

/// How many times the node's switches cost what the meter adds to one; nothing before it is known.
fn known_part(page: &NodePage) -> u32 {
    match page.switch_part.load(Relaxed) {
        SWITCHES_UNKNOWN => 0,
        part => part,
    }
}

/// What a switch of the node costs; nothing before it is known.
fn switch_cost(page: &NodePage) -> SwitchCost {
    SwitchCost::of_node(page, known_part(page))
}

/// The same in all, on the average, real CPU ns.
pub fn mean_switch_ns(page: &NodePage) -> f64 {
    let SwitchCost { each_ns, part, own_ns } = switch_cost(page);
    each_ns as f64 * f64::from(part) / f64::from(SWITCH_ONCE) + own_ns as f64
}

/// Charges a packet's sender up to the instant of sending. The packet may leave at the returned instant, which may
/// have passed.
///
/// Work left over from an earlier burst ends where the present one begins, or before. A thread that has no slot yet is
/// not charged: the instant is what a charge would give.
pub fn charge_sender(page: &NodePage, sent: &Sent, now: RealNs) -> VirtNs {
    // Who sends was not in one system call for long.
    let grain_ns = page.clocks_hit().then(|| page.grain_ns.load(Relaxed));
    let (release, now_v) =
        charge_until(page, sent, now, (page.slot(sent.tid), page.own_packet_ns.load(Relaxed), grain_ns));
    if let Some(bucket) = page.counters.late_v.get(late_bucket(now_v.since(release).0)) {
        bucket.fetch_add(1, Relaxed);
    }
    release
}

/// What a thread did that told what it had used by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// It woke another of its node, with this number, and hands work on to it.
    Wakes(u32),
    /// It blocks.
    Blocks,
    /// It has ended: what was told is all that it ever used.
    Ends,
}

/// Charges a thread up to the instant at which it woke another of its node, blocked or ended. What the woken one does next begins
/// no earlier. Both have slots from then on, where there is room. What a thread without one did in earlier bursts is left to who
/// charges what nobody did. One that has ended is given back what was charged beyond what it used: no hit of it will.
pub fn charge_handing(page: &NodePage, by: &Sent, then: Then, now: RealNs) {
    let slot = page.claim_slot(by.tid);
    // What it did before its present burst may be charged already: it may have had a slot, or be done as another.
    if let Some(slot) = slot.filter(|s| is_new(s)) {
        slot.account_to(0, by.burst_cpu_ns);
    }
    let (at, now_v) = charge_until(page, by, now, (slot, 0, None));
    match (then, slot) {
        (Then::Wakes(to), _) => {
            if let Some(slot) = page.claim_slot(to) {
                slot.hand_on(at.0);
            }
        }
        (Then::Ends, Some(slot)) if slot.try_hold() => {
            let given_back_ns = give_back(page, slot, by.cpu_ns);
            uncharge(page.entries(), now_v, page.slowness().mul_floor(given_back_ns));
            slot.release();
        }
        _ => {}
    }
}

/// Whether nothing of a thread is charged yet, and nobody has read its clock.
pub fn is_new(slot: &ThreadSlot) -> bool {
    slot.last_wall_ns.load(Relaxed) == 0 && slot.last_cpu_ns.load(Relaxed) == 0
}

/// Counts what a thread used from one reading of its CPU time to another: charged, cold, slow and the meter's own. The watch waits
/// for its end, so this is all that is done in between: a thread may lose its core here. Who sees a half finds too much charged,
/// and nothing that escaped.
#[inline(always)]
pub fn account(
    k: &Counters,
    slot: &ThreadSlot,
    (from_ns, to_ns): (u64, u64),
    [charged_ns, cold_ns, slow_ns, cost_ns]: [u64; 4],
) {
    k.charges_begun.fetch_add(1, AcqRel);
    for (sum, ns) in [(&k.charged_ns, charged_ns), (&k.cold_ns, cold_ns), (&k.slow_ns, slow_ns)] {
        if ns != 0 {
            sum.fetch_add(ns, Relaxed);
        }
    }
    k.meter_cost_ns.fetch_add(cost_ns, Relaxed);
    slot.account_to(from_ns, to_ns);
    k.charges_done.fetch_add(1, AcqRel);
}

/// Counts what a thread was charged beyond what it has used as not charged, with what was taken off of that because cores were
/// slow; the ledger stays as it is. How much less it is charged, real CPU ns; nothing where the slot is one that a dead thread of
/// the same number left. For who holds it.
#[inline(always)]
pub fn give_back(page: &NodePage, slot: &ThreadSlot, cpu_ns: u64) -> u64 {
    let k = &page.counters;
    let charged_to_ns = slot.last_cpu_ns.load(Relaxed);
    let over_ns = charged_to_ns.saturating_sub(cpu_ns);
    if over_ns == 0 || over_ns > OVERCHARGE_MAX_NS {
        return 0;
    }
    // Who sees a half of it finds too much charged, and none that escaped.
    k.charges_begun.fetch_add(1, AcqRel);
    let charged_ns = over_ns - slow_given_back(&k.slow_ns, page.slow_discount.load(Relaxed), over_ns);
    slot.account_to(charged_to_ns, cpu_ns);
    k.charged_ns.fetch_sub(charged_ns, Relaxed);
    slot.charged_ns.fetch_sub(charged_ns, Relaxed);
    k.charges_done.fetch_add(1, AcqRel);
    charged_ns
}

/// Charges a thread up to the instant told, where it has a slot; when that work ends, and `now` in virtual time. What BPF programs
/// take there, and the grain where work that is far longer without a hit shows that its core stood still.
fn charge_until(
    page: &NodePage,
    sent: &Sent,
    now: RealNs,
    (slot, packet_ns, grain_ns): (Option<&ThreadSlot>, u64, Option<u64>),
) -> (VirtNs, VirtNs) {
    let now_v = page.segment().v_of(now);
    let k = &page.counters;
    page.busy_r_ns.fetch_max(sent.at.0, Relaxed);
    let mut account = Account {
        discount: &page.cold_discount,
        slow_discount: page.slow_discount.load(Relaxed),
        grain_ns,
        switch: switch_cost(page),
        packet_ns,
        extra_wake_ns: page.extra_wake_ns.load(Relaxed),
        after_hit_ns: page.after_hit_ns.load(Relaxed),
        way_ns: page.way_ns.load(Relaxed),
        interrupts: Interrupts::of_node(page),
        slowness: page.slowness(),
        entries: page.entries(),
        cores: if page.sched.used() { page.pinned(sent.tid).map_or(0, |cores| cores.load(Relaxed)) } else { 0 },
        now_v,
        late: page.shown(sent.tid).map(|shown| &shown.late),
        sums: Some(k),
        charged_ns: 0,
        cold_ns: 0,
        slow_ns: 0,
        cost_ns: 0,
        forgiven_v_ns: 0,
        clamped: false,
        node_charged_ns: k.charged_ns.load(Relaxed),
    };
    // The lab may have been paused, or re-timed, since.
    let woke = page.segment_at(sent.woke).v_of(sent.woke);
    let release = account.charge_sender(slot, sent, woke);
    if account.forgiven_v_ns > 0 {
        k.forgiven.fetch_add(1, Relaxed);
        k.forgiven_v_ns.fetch_add(account.forgiven_v_ns, Relaxed);
    }
    k.clamped.fetch_add(u64::from(account.clamped), Relaxed);
    (release, now_v)
}

#[cfg(test)]
mod tests {
    use super::*;
    use diecast_core_abi::Shown;
    use diecast_core_vtime::{Segment, Tdf};

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;

    fn slot(last_cpu_ns: u64, last_wall_ns: u64, finish_v_ns: u64) -> ThreadSlot {
        let s = ThreadSlot::default();
        s.last_cpu_ns.store(last_cpu_ns, Relaxed);
        s.last_wall_ns.store(last_wall_ns, Relaxed);
        s.finish_v_ns.store(finish_v_ns, Relaxed);
        s
    }

    /// At TDF 10 and speed 0.5, one virtual CPU free since `free_v`; real 0 is virtual 0. Release, CPU charged, free.
    fn charged(free_v: u64, now_ns: u64, slot: Option<&ThreadSlot>, sent: &Sent) -> (u64, u64, u64) {
        charged_on((&Default::default(), 0, 0), free_v, now_ns, slot, sent)
    }

    /// The same after some sleeps, on cores slower than usual and with dearer switches, if any.
    fn charged_on(
        (discount, slow_discount, switch_ns): (&[AtomicU32; GAP_BINS], u32, u64),
        free_v: u64,
        now_ns: u64,
        slot: Option<&ThreadSlot>,
        sent: &Sent,
    ) -> (u64, u64, u64) {
        let switch = SwitchCost { each_ns: switch_ns, part: 1 << 16, own_ns: 0 };
        charged_less((discount, slow_discount, switch, [0; 2]), free_v, now_ns, slot, sent)
    }

    /// What is taken off: for sleeps, for cores slower than usual and at switches; by BPF programs at a packet, and for what a
    /// wake-up does that the original does without.
    type Less<'a> = (&'a [AtomicU32; GAP_BINS], u32, SwitchCost, [u64; 2]);

    fn segment() -> Segment {
        Segment::new(RealNs(0), VirtNs(0), "10".parse::<Tdf>().unwrap())
    }

    fn account<'a>(less: Less<'a>, entries: &'a [AtomicU64], now_ns: u64) -> Account<'a> {
        let (discount, slow_discount, switch, [packet_ns, extra_wake_ns]) = less;
        Account {
            discount,
            slow_discount,
            grain_ns: Some(500 * US),
            switch,
            packet_ns,
            extra_wake_ns,
            after_hit_ns: 0,
            way_ns: 0,
            interrupts: Interrupts::default(),
            slowness: Rate { int: 2, frac: 0 },
            entries,
            cores: 0,
            now_v: segment().v_of(RealNs(now_ns)),
            late: None,
            sums: None,
            charged_ns: 0,
            cold_ns: 0,
            slow_ns: 0,
            cost_ns: 0,
            forgiven_v_ns: 0,
            clamped: false,
            node_charged_ns: 0,
        }
    }

    /// The same with all that is taken off.
    fn charged_less(
        less: Less<'_>,
        free_v: u64,
        now_ns: u64,
        slot: Option<&ThreadSlot>,
        sent: &Sent,
    ) -> (u64, u64, u64) {
        let entries = [AtomicU64::new(free_v)];
        let mut a = account(less, &entries, now_ns);
        let release = a.charge_sender(slot, sent, segment().v_of(sent.woke)).0;
        assert_eq!((a.forgiven_v_ns, a.clamped), (0, false));
        (release, a.charged_ns, entries[0].load(Relaxed))
    }

    /// Woke at real 100 ms (virtual 10 ms), used 300 us, sent at once.
    fn sent() -> Sent {
        let woke = RealNs(100 * MS);
        Sent {
            tid: 7,
            at: RealNs(woke.0 + 300 * US),
            cpu_ns: 1300 * US,
            burst_cpu_ns: 1000 * US,
            woke,
            run_delay_ns: 9,
            gap_ns: 40 * MS,
            switches: 0,
            paused_ns: 0,
        }
    }

    #[test]
    fn a_burst_is_charged_from_its_wake_up() {
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        // 10 ms and 300 us of CPU at half speed.
        assert_eq!(charged(0, 101 * MS, Some(&s), &sent()), (10_600 * US, 300 * US, 10_600 * US));
        assert_eq!(s.last_cpu_ns.load(Relaxed), 1300 * US);
        assert_eq!(s.last_wall_ns.load(Relaxed), sent().at.0);
        assert_eq!((s.run_delay_ns.load(Relaxed), s.node_charged_ns.load(Relaxed)), (9, 300 * US));
        assert!(s.try_hold(), "given back");
    }

    #[test]
    fn a_cold_burst_is_charged_what_it_would_be_on_a_warmer_machine() {
        let discount: [AtomicU32; GAP_BINS] = Default::default();
        // A quarter less after 33 to 66 ms.
        discount[crate::gap_bin(40 * MS)].store(16_384, Relaxed);
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        assert_eq!(charged_on((&discount, 0, 0), 0, 101 * MS, Some(&s), &sent()), (10_450 * US, 225 * US, 10_450 * US));
        // All that the kernel counted is settled, and the burst's coldness is known to the next hit.
        assert_eq!((s.last_cpu_ns.load(Relaxed), s.gap_ns.load(Relaxed)), (1300 * US, 40 * MS));
        let warm = Sent { gap_ns: 2 * MS, ..sent() };
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        assert_eq!(charged_on((&discount, 0, 0), 0, 101 * MS, Some(&s), &warm), (10_600 * US, 300 * US, 10_600 * US));
    }

    #[test]
    fn only_the_first_millisecond_of_a_burst_can_be_cold() {
        let discount: [AtomicU32; GAP_BINS] = Default::default();
        discount[crate::gap_bin(40 * MS)].store(16_384, Relaxed);
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        // Three packets of one burst, whatever sleeps of the meter lie between them.
        for (cpu_us, charged_us, burst_us) in [(1300, 225, 300), (2000, 525, 1000), (3000, 1000, 1000)] {
            let sent = Sent { cpu_ns: cpu_us * US, at: RealNs(100 * MS + cpu_us * US), ..sent() };
            let (_, charged_ns, _) = charged_on((&discount, 0, 0), 0, 110 * MS, Some(&s), &sent);
            assert_eq!((charged_ns, s.burst_ns.load(Relaxed)), (charged_us * US, burst_us * US));
        }
        // The next burst is as cold again.
        let next =
            Sent { woke: RealNs(150 * MS), at: RealNs(151 * MS), cpu_ns: 3400 * US, burst_cpu_ns: 3000 * US, ..sent() };
        let (_, charged_ns, _) = charged_on((&discount, 0, 0), 0, 152 * MS, Some(&s), &next);
        assert_eq!((charged_ns, s.burst_ns.load(Relaxed)), (300 * US, 400 * US));
    }

    #[test]
    fn what_the_meter_adds_to_switches_is_charged_to_nobody() {
        // Two switches of 5 us: one of the work left over from before, one of the present burst. Half speed.
        let s = slot(800 * US, 50 * MS, 5 * MS);
        s.switches.store(0xffff, Relaxed);
        let sent = Sent { switches: 1, ..sent() };
        let none = Default::default();
        let dearer = |free_v, slot| charged_on((&none, 0, 5 * US), free_v, 101 * MS, slot, &sent);
        assert_eq!(dearer(10 * MS, Some(&s)), (10_980 * US, 490 * US, 10_980 * US));
        assert_eq!((s.switches.load(Relaxed) as u16, s.cost_ns.load(Relaxed)), (1, 10 * US));
        assert_eq!(s.untold_cost_ns.load(Relaxed), 10 * US);
        // A thread without a slot was switched to once.
        assert_eq!(dearer(0, None), (10_590 * US, 0, 0));
    }

    /// A quarter of what is charged, less the meter's part in a switch: a clock gains by it, and what is charged is the same.
    #[test]
    fn clocks_have_what_interrupts_beside_what_is_charged() {
        let (none, entries) = (Default::default(), [AtomicU64::new(0)]);
        for (switch_ns, charged_ns, cost_ns) in
            [(0, 500 * US, -125_000), (20 * US, 480 * US, -100_000), (400 * US, 218_750, 226_563)]
        {
            let s = slot(800 * US, 50 * MS, 5 * MS);
            let switch = SwitchCost { each_ns: switch_ns, part: 1 << 16, own_ns: 0 };
            let mut a = account((&none, 0, switch, [0; 2]), &entries, 101 * MS);
            a.interrupts = Interrupts(1 << 14);
            a.charge_sender(Some(&s), &Sent { switches: 1, ..sent() }, VirtNs(10 * MS));
            assert_eq!(a.charged_ns, charged_ns);
            assert_eq!([&s.cost_ns, &s.untold_cost_ns].map(|ns| ns.load(Relaxed) as i64), [cost_ns; 2]);
        }
    }

    #[test]
    fn what_bpf_programs_take_is_charged_to_nobody() {
        // 3 us at each of two switches, 7 at the packet before. Half speed.
        let s = slot(800 * US, 50 * MS, 5 * MS);
        s.switches.store(0xffff, Relaxed);
        let sent = Sent { switches: 1, ..sent() };
        let (none, switch) = (Default::default(), SwitchCost { own_ns: 3 * US, ..SwitchCost::default() });
        let less = |slot| charged_less((&none, 0, switch, [7 * US, 0]), 10 * MS, 101 * MS, slot, &sent);
        assert_eq!(less(Some(&s)).1, (500 - 2 * 3 - 7) * US);
        assert_eq!(s.cost_ns.load(Relaxed), 13 * US);
        assert_eq!(s.last_cpu_ns.load(Relaxed), 1300 * US, "all that the kernel counted is settled");
        // Never all of it.
        let short = Sent { cpu_ns: 1004 * US, ..sent };
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        assert_eq!(charged_less((&none, 0, switch, [7 * US, 0]), 0, 101 * MS, Some(&s), &short).1, 250);
    }

    /// Its last hit was 500 us of CPU time ago, some of which it used before it slept, or none, or it did not sleep since.
    #[test]
    fn what_is_colder_after_a_hit_is_taken_off_at_the_first_packet() {
        let (none, entries) = (Default::default(), [AtomicU64::new(0)]);
        for (burst_cpu_ns, last_wall_ns) in [(1000 * US, 50 * MS), (800 * US, 50 * MS), (800 * US, 100 * MS)] {
            let (s, shown) = (slot(800 * US, last_wall_ns, 5 * MS), Shown::default());
            s.set_burst(70 * US, true);
            let charged = |cpu_ns| {
                let mut a = account((&none, 0, SwitchCost::default(), [0; 2]), &entries, 101 * MS);
                (a.after_hit_ns, a.late) = (20 * US, Some(&shown.late));
                a.charge_sender(Some(&s), &Sent { cpu_ns, burst_cpu_ns, ..sent() }, VirtNs(10 * MS));
                a.charged_ns
            };
            assert_eq!(charged(1300 * US), 480 * US);
            assert!(!s.burst().1);
            assert_eq!(charged(1350 * US), 50 * US, "once");
            assert_eq!(s.cost_ns.load(Relaxed), 20 * US);
            // Its clock has been read after the packets, and not before.
            shown.late.unseen_ns(1400 * US);
            s.set_burst(0, true);
            assert_eq!(charged(1390 * US), 20 * US);
            assert_eq!(shown.late.unseen_ns(1410 * US), 20 * US, "not yet");
        }
    }

    /// It was woken at virtual 10 ms, with work up to 9 or 11, and is 12 us on its way to an idle core.
    #[test]
    fn a_burst_begins_when_its_thread_has_come_to_a_core() {
        let none = Default::default();
        let entries = || [AtomicU64::new(0)];
        for (finish_v, begin_v) in [(9 * MS, 10_012), (10 * MS, 10_012), (10_005 * US, 10_005), (11 * MS, 11_000)] {
            let begin_v = begin_v * US;
            let (s, entries) = (slot(1000 * US, 50 * MS, finish_v), entries());
            let mut a = account((&none, 0, SwitchCost::default(), [0; 2]), &entries, 101 * MS);
            a.way_ns = 12 * US;
            // 300 us at half speed.
            assert_eq!(a.charge_sender(Some(&s), &sent(), VirtNs(10 * MS)), VirtNs(begin_v + 600 * US));
            assert_eq!(a.charged_ns, 300 * US);
            // A second packet of the same burst goes on where the first ended.
            let next = Sent { cpu_ns: 1400 * US, at: RealNs(100 * MS + 400 * US), ..sent() };
            assert_eq!(a.charge_sender(Some(&s), &next, VirtNs(10 * MS)), VirtNs(begin_v + 800 * US));
        }
        // Before its first hit, and while one is under way.
        let (s, entries) = (slot(1000 * US, 50 * MS, 9 * MS), entries());
        assert!(s.try_hold());
        for slot in [None, Some(&s)] {
            let mut a = account((&none, 0, SwitchCost::default(), [0; 2]), &entries, 101 * MS);
            a.way_ns = 12 * US;
            assert_eq!(a.charge_sender(slot, &sent(), VirtNs(10 * MS)), VirtNs(10_612 * US));
        }
    }

    /// It was woken at virtual 10 ms, with work up to 9 or 11.
    #[test]
    fn a_wake_up_that_the_original_does_without_is_charged_to_nobody() {
        let none = Default::default();
        for (finish_v, charged_us) in [(9 * MS, 300), (11 * MS, 280)] {
            let s = slot(1000 * US, 50 * MS, finish_v);
            let from = finish_v.max(10 * MS);
            let less = (&none, 0, SwitchCost::default(), [0, 20 * US]);
            let found = charged_less(less, 0, 101 * MS, Some(&s), &sent());
            assert_eq!(found, (from + 2 * charged_us * US, charged_us * US, from + 2 * charged_us * US));
            assert_eq!(s.last_cpu_ns.load(Relaxed), 1300 * US, "all that the kernel counted is settled");
        }
        // It was done at 9.02 ms and slept; it is another's work that has the core until 11 ms.
        let s = slot(990 * US, 50 * MS, 9 * MS);
        let less = (&none, 0, SwitchCost::default(), [0, 20 * US]);
        assert_eq!(charged_less(less, 11 * MS, 101 * MS, Some(&s), &sent()).1, 310 * US);
    }

    /// It slept in the original too, until another's work, which ends at 12 ms, was handed on to it.
    #[test]
    fn what_was_handed_on_begins_when_that_was_done_and_costs_a_wake_up() {
        let less = (&Default::default(), 0, SwitchCost::default(), [0, 20 * US]);
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        s.hand_on(12 * MS);
        assert_eq!(charged_less(less, 0, 101 * MS, Some(&s), &sent()), (12_600 * US, 300 * US, 12_600 * US));
        // What it does itself next is its own.
        assert!(!s.is_handed());
        // Who was done before it was woken hands nothing on.
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        s.hand_on(9 * MS);
        assert_eq!(charged_less(less, 0, 101 * MS, Some(&s), &sent()), (10_600 * US, 300 * US, 10_600 * US));
    }

    /// Nine tenths of 1/65536 each.
    const A_TENTH: u32 = 58_982;

    #[test]
    fn what_took_ten_times_as_long_on_a_slow_core_is_charged_once() {
        let none = Default::default();
        let slow = Sent { cpu_ns: 4000 * US, at: RealNs(103 * MS), ..sent() };
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        let (release, charged, free) = charged_on((&none, A_TENTH, 0), 0, 103 * MS, Some(&s), &slow);
        assert!(charged.abs_diff(300 * US) < 100 && release.abs_diff(10_600 * US) < 200, "{charged} {release}");
        assert_eq!(free, release);
        assert_eq!(s.last_cpu_ns.load(Relaxed), 4000 * US, "all that the kernel counted is settled");
        // Without a slot it leaves as late.
        assert_eq!(charged_on((&none, A_TENTH, 0), 0, 103 * MS, None, &slow), (release, 0, 0));
        // What is left of an earlier burst, 1 ms of CPU time, was as slow.
        let s = slot(0, 50 * MS, 5 * MS);
        let (_, charged, free) = charged_on((&none, A_TENTH, 0), 0, 103 * MS, Some(&s), &slow);
        assert!(charged.abs_diff(400 * US) < 100 && free.abs_diff(10_600 * US) < 200, "{charged} {free}");
    }

    /// A core stood still for 15 ms while the thread had it.
    #[test]
    fn a_pause_of_the_core_is_charged_to_nobody() {
        let none = Default::default();
        let paused = Sent { cpu_ns: 16_300 * US, at: RealNs(115 * MS), ..sent() };
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        // A grain of it was work, at half speed.
        let found = charged_on((&none, 0, 0), 0, 115 * MS, Some(&s), &paused);
        assert_eq!(found, (11_000 * US, 500 * US, 11_000 * US));
        assert_eq!(s.last_cpu_ns.load(Relaxed), 16_300 * US, "all that the kernel counted is settled");
        // 9 ms may be one call.
        let busy = Sent { cpu_ns: 10_000 * US, ..paused };
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        assert_eq!(charged_on((&none, 0, 0), 0, 115 * MS, Some(&s), &busy).1, 9_000 * US);
        // Nor does the packet wait for it where its sender has no slot yet, or its own hit holds that.
        assert_eq!(charged(0, 115 * MS, None, &paused), (11_000 * US, 0, 0));
        let seen = Sent { cpu_ns: 4_000 * US, paused_ns: 2_700 * US, ..paused };
        assert_eq!(
            charged(0, 115 * MS, None, &seen),
            charged(0, 115 * MS, None, &Sent { cpu_ns: 1_300 * US, paused_ns: 0, ..paused })
        );
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        assert!(s.try_hold());
        assert_eq!(charged(0, 115 * MS, Some(&s), &paused), (11_000 * US, 0, 0));
    }

    #[test]
    fn a_busy_virtual_cpu_is_waited_for() {
        let s = slot(1000 * US, 50 * MS, 5 * MS);
        assert_eq!(charged(12 * MS, 101 * MS, Some(&s), &sent()), (12_600 * US, 300 * US, 12_600 * US));
    }

    #[test]
    fn work_left_over_ends_before_the_burst_when_the_cpu_was_idle() {
        let s = slot(800 * US, 50 * MS, 5 * MS);
        assert_eq!(charged(0, 101 * MS, Some(&s), &sent()), (10_600 * US, 500 * US, 10_600 * US));
        // And pushes the burst when it was not.
        let s = slot(800 * US, 50 * MS, 5 * MS);
        assert_eq!(charged(10 * MS, 101 * MS, Some(&s), &sent()), (11_000 * US, 500 * US, 11_000 * US));
    }

    #[test]
    fn after_a_hit_the_work_goes_on_where_it_ended() {
        // The hit's sleep ended late, at 10.5 ms virtual, for work that ended at 10.4 ms.
        let s = slot(1200 * US, 105 * MS, 10_400 * US);
        let sent = Sent { burst_cpu_ns: 1210 * US, woke: RealNs(105 * MS - 1), at: RealNs(106 * MS), ..sent() };
        assert_eq!(charged(10_400 * US, 106 * MS, Some(&s), &sent), (10_600 * US, 100 * US, 10_600 * US));
    }

    #[test]
    fn a_packet_that_a_hit_overtook_is_charged_once() {
        let s = slot(1500 * US, 101 * MS, 11 * MS);
        assert_eq!(charged(11 * MS, 101 * MS, Some(&s), &sent()), (10_600 * US, 0, 11 * MS));
        assert_eq!(s.last_cpu_ns.load(Relaxed), 1500 * US);
    }

    #[test]
    fn a_burst_whose_work_was_charged_ahead_begins_when_it_woke() {
        // The packet of the burst before, which ended at 5 ms virtual, was charged up to 1.5 ms; this one's is at 1.3 ms.
        let s = slot(1500 * US, 50 * MS, 5 * MS);
        assert_eq!(charged(5 * MS, 101 * MS, Some(&s), &sent()), (10_600 * US, 0, 5 * MS));
        assert_eq!(s.last_cpu_ns.load(Relaxed), 1500 * US);
    }

    #[test]
    fn what_is_charged_ahead_of_a_hit_while_it_sleeps_stays_known() {
        // The hit has charged up to 1.4 ms; the packet, sent before it by a clock that is ahead, up to 1.5 ms.
        let s = slot(1400 * US, 101 * MS, 11 * MS);
        let ahead = Sent { cpu_ns: 1500 * US, ..sent() };
        assert_eq!(charged(11 * MS, 101 * MS, Some(&s), &ahead).1, 100 * US);
        // The hit ends, and took 20 us for itself.
        s.account_to(1400 * US, 1420 * US);
        assert_eq!(s.last_cpu_ns.load(Relaxed), 1520 * US, "the next hit finds 100 us to give back");
    }

    #[test]
    fn a_slot_in_use_and_a_missing_slot_delay_without_a_charge() {
        assert_eq!(charged(0, 101 * MS, None, &sent()), (10_600 * US, 0, 0));
        let s = slot(1100 * US, 50 * MS, 10_200 * US);
        assert!(s.try_hold());
        assert_eq!(charged(0, 101 * MS, Some(&s), &sent()), (10_600 * US, 0, 0));
        assert!(!s.try_hold(), "still theirs");
    }
}
