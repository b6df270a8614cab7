//! A node's own clocks in its page: rates, steps and what adjtimex(2) keeps.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use diecast_core_clock::{Discipline, LEAD_NS, Leap, LeapState, NodeClock};

/// Changes of rate that may happen while somebody reads.
pub const CLOCKS_MAX: usize = 16;

/// Set in [`ClockPage::current`] while rates are written down but may not hold yet.
const PROPOSED: u64 = 1 << 63;
/// A change that was too late so often is made all the same.
const TRIES_MAX: u32 = 100;

/// One [`NodeClock`] in shared memory.
#[repr(C)]
#[derive(Default)]
pub struct ClockCell {
    from_v_ns: AtomicU64,
    mono_ns: AtomicU64,
    raw_ns: AtomicU64,
    drift: AtomicI64,
    frequency: AtomicI64,
    adjust_ns: AtomicI64,
    phase_ns: AtomicI64,
    phase_shift: AtomicU64,
}

/// Rates from an instant on, and those before it: a change is made for an instant that is to come.
#[repr(C)]
#[derive(Default)]
pub struct ClockPair {
    before: ClockCell,
    after: ClockCell,
}

impl ClockCell {
    #[inline(always)]
    fn load(&self) -> NodeClock {
        NodeClock {
            from_v_ns: self.from_v_ns.load(Ordering::Relaxed),
            mono_ns: self.mono_ns.load(Ordering::Relaxed),
            raw_ns: self.raw_ns.load(Ordering::Relaxed),
            drift: self.drift.load(Ordering::Relaxed),
            frequency: self.frequency.load(Ordering::Relaxed),
            adjust_ns: self.adjust_ns.load(Ordering::Relaxed),
            phase_ns: self.phase_ns.load(Ordering::Relaxed),
            phase_shift: self.phase_shift.load(Ordering::Relaxed),
        }
    }

    fn store(&self, c: &NodeClock) {
        self.from_v_ns.store(c.from_v_ns, Ordering::Relaxed);
        self.mono_ns.store(c.mono_ns, Ordering::Relaxed);
        self.raw_ns.store(c.raw_ns, Ordering::Relaxed);
        self.drift.store(c.drift, Ordering::Relaxed);
        self.frequency.store(c.frequency, Ordering::Relaxed);
        self.adjust_ns.store(c.adjust_ns, Ordering::Relaxed);
        self.phase_ns.store(c.phase_ns, Ordering::Relaxed);
        self.phase_shift.store(c.phase_shift, Ordering::Relaxed);
    }
}

/// What a node's kernel keeps about its clocks. Any process of the node and the supervisor write it: nobody waits for
/// anybody, since one of the node's may be stopped or killed wherever it is.
#[repr(C)]
#[derive(Default)]
pub struct ClockPage {
    /// Number of the rates in force, and how many were begun. Rates number n are in pair n modulo [`CLOCKS_MAX`]; number
    /// 0 are plain. A number with [`PROPOSED`] is not in force yet: its previous one is.
    current: AtomicU64,
    begun: AtomicU64,
    pairs: [ClockPair; CLOCKS_MAX],
    /// The number before each.
    previous: [AtomicU64; CLOCKS_MAX],
    /// REALTIME minus MONOTONIC: what steps change.
    pub real_ahead_ns: AtomicI64,
    /// The host's REALTIME minus its MONOTONIC at the lab's start, constant: by it times of files are read and set alike.
    pub host_ahead_ns: AtomicI64,
    /// BOOTTIME minus MONOTONIC, constant.
    pub boot_ahead_ns: AtomicI64,
    /// MONOTONIC_RAW minus the oscillator, constant.
    pub raw_ahead_ns: AtomicI64,
    /// How often REALTIME was stepped.
    pub steps: AtomicU64,
    status: AtomicU32,
    /// 1 once the time zone is the node's own.
    pub zone_set: AtomicU32,
    /// `struct timezone`.
    pub zone: AtomicU64,
    frequency: AtomicI64,
    constant: AtomicI64,
    tick_us: AtomicI64,
    esterror_us: AtomicI64,
    maxerror_us: AtomicI64,
    since_s: AtomicI64,
    reference_s: AtomicI64,
    tai_s: AtomicI64,
    /// REALTIME at which a leap second is due, ns; `i64::MAX` for none.
    leap_due_ns: AtomicI64,
    leap_since_s: AtomicI64,
    leap_state: AtomicU32,
    pad: AtomicU32,
}

const NS_PER_S: i64 = 1_000_000_000;

impl ClockPage {
    /// Before the first process of the node.
    pub fn start(&self, d: &Discipline) {
        let first = self.pair(0);
        first.before.store(&NodeClock::plain());
        first.after.store(&NodeClock::plain());
        self.current.store(0, Ordering::Relaxed);
        self.begun.store(0, Ordering::Relaxed);
        self.keep(d);
    }

    #[inline(always)]
    fn pair(&self, number: u64) -> &ClockPair {
        let [first, ..] = &self.pairs;
        self.pairs.get(number as usize % CLOCKS_MAX).unwrap_or(first)
    }

    /// The number in force.
    #[inline(always)]
    fn in_force(&self, current: u64) -> u64 {
        if current & PROPOSED == 0 { current } else { self.previous(current).load(Ordering::Relaxed) }
    }

    #[inline(always)]
    fn previous(&self, number: u64) -> &AtomicU64 {
        let [first, ..] = &self.previous;
        self.previous.get(number as usize % CLOCKS_MAX).unwrap_or(first)
    }

    /// Takes back what is only proposed: its instant has come, or its author is dead or slow. What is in force stays.
    fn take_back(&self, current: u64) {
        let before = self.in_force(current);
        _ = self.current.compare_exchange(current, before, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Reads the pair in force while it is whole, and gives its number.
    #[inline(always)]
    fn read<T>(&self, what: impl Fn(&ClockPair) -> T) -> (u64, T) {
        let mut tries = 0u32;
        loop {
            let number = self.in_force(self.current.load(Ordering::Acquire));
            let value = what(self.pair(number));
            core::sync::atomic::fence(Ordering::Acquire);
            let intact = self.begun.load(Ordering::Relaxed).wrapping_sub(number) < CLOCKS_MAX as u64;
            tries += 1;
            if intact || tries > 10_000 {
                return (number, value);
            }
        }
    }

    /// Virtual time now and the rates that hold. `v_now` is asked while the rates stay: an instant that was read before
    /// a change is never looked up after it, however long its reader was kept from running.
    #[inline(always)]
    pub fn now(&self, v_now: impl Fn() -> u64) -> (u64, NodeClock) {
        let mut tries = 0u32;
        loop {
            let current = self.current.load(Ordering::Acquire);
            let v = v_now();
            tries += 1;
            if current & PROPOSED != 0 && self.pair(current).after.from_v_ns.load(Ordering::Relaxed) <= v {
                // This instant is read by the old rates: the new ones must not hold from before it.
                self.take_back(current);
                continue;
            }
            let clock = if current == 0 { NodeClock::plain() } else { self.at(v) };
            if self.current.load(Ordering::Acquire) == current || tries > 1000 {
                return (v, clock);
            }
        }
    }

    /// The node's MONOTONIC now, where its rates are the plain ones all the while: virtual time itself.
    #[inline(always)]
    pub fn now_if_plain(&self, v_now: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let is_plain = || self.current.load(Ordering::Acquire) == 0;
        let v = if is_plain() { v_now()? } else { return None };
        is_plain().then_some(v)
    }

    /// The number of the rates in force: any change gives another.
    #[inline(always)]
    pub fn number(&self) -> u64 {
        self.in_force(self.current.load(Ordering::Acquire))
    }

    /// The rates that hold at a virtual instant.
    #[inline(never)]
    pub fn at(&self, v_ns: u64) -> NodeClock {
        self.read(|p| if p.after.from_v_ns.load(Ordering::Relaxed) <= v_ns { &p.after } else { &p.before }.load()).1
    }

    /// The smallest virtual instant at which MONOTONIC is at least `mono_ns`, as far as its rates are known.
    #[inline(never)]
    pub fn v_of_mono(&self, mono_ns: u64) -> u64 {
        let which = |p: &ClockPair| {
            if p.after.mono_ns.load(Ordering::Relaxed) <= mono_ns { &p.after } else { &p.before }.load()
        };
        self.read(which).1.v_of_mono(mono_ns)
    }

    /// The newest rates.
    #[inline(always)]
    pub fn latest(&self) -> NodeClock {
        self.read(|p| p.after.load()).1
    }

    /// Changes the rates a little later than now, so that no reader sees a clock go back; a change that is still to come
    /// is changed.
    ///
    /// The new rates are proposed, and put in force if their instant is still to come then. Whoever reads a clock at or
    /// after that instant meanwhile takes the proposal back, and the change is made again: it never matters how long
    /// this thread is kept from running.
    pub fn change(&self, v_now: impl Fn() -> u64, f: impl Fn(&mut NodeClock)) {
        let mut tries = 0;
        loop {
            self.take_back(self.current.load(Ordering::Acquire));
            let (number, mut next) = self.read(|p| p.after.load());
            let now = v_now();
            let pending = next.from_v_ns > now;
            let last = if pending { self.read(|p| p.before.load()).1 } else { next };
            if !pending {
                next = next.at(now.saturating_add(LEAD_NS));
            }
            f(&mut next);
            let own = self.begun.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
            let pair = self.pair(own);
            pair.before.store(&last);
            pair.after.store(&next);
            self.previous(own).store(number, Ordering::Relaxed);
            tries += 1;
            let swap = |from, to| self.current.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if !swap(number, own | PROPOSED) {
                continue;
            }
            if (v_now() < next.from_v_ns || tries > TRIES_MAX) && swap(own | PROPOSED, own) {
                return;
            }
        }
    }

    /// Lets REALTIME jump by setting how far it is ahead of MONOTONIC.
    pub fn step(&self, real_ahead_ns: i64) {
        self.real_ahead_ns.store(real_ahead_ns, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::AcqRel);
    }

    /// Status, errors and the rest. Field by field: two daemons that set one clock get what they deserve.
    pub fn discipline(&self) -> Discipline {
        Discipline {
            status: self.status.load(Ordering::Relaxed),
            frequency: self.frequency.load(Ordering::Relaxed),
            constant: self.constant.load(Ordering::Relaxed).clamp(0, 10),
            tick_us: self.tick_us.load(Ordering::Relaxed).clamp(9000, 11000),
            esterror_us: self.esterror_us.load(Ordering::Relaxed),
            maxerror_us: self.maxerror_us.load(Ordering::Relaxed),
            since_s: self.since_s.load(Ordering::Relaxed),
            reference_s: self.reference_s.load(Ordering::Relaxed),
            tai_s: self.tai_s.load(Ordering::Relaxed),
            leap: Leap {
                state: LeapState::of(self.leap_state.load(Ordering::Relaxed)),
                since_s: self.leap_since_s.load(Ordering::Relaxed),
                due_s: match self.leap_due_ns.load(Ordering::Relaxed) {
                    i64::MAX => Leap::NEVER,
                    ns => ns / NS_PER_S,
                },
            },
        }
    }

    /// The reverse.
    pub fn keep(&self, d: &Discipline) {
        self.status.store(d.status, Ordering::Relaxed);
        self.frequency.store(d.frequency, Ordering::Relaxed);
        self.constant.store(d.constant, Ordering::Relaxed);
        self.tick_us.store(d.tick_us, Ordering::Relaxed);
        self.esterror_us.store(d.esterror_us, Ordering::Relaxed);
        self.maxerror_us.store(d.maxerror_us, Ordering::Relaxed);
        self.since_s.store(d.since_s, Ordering::Relaxed);
        self.reference_s.store(d.reference_s, Ordering::Relaxed);
        self.tai_s.store(d.tai_s, Ordering::Relaxed);
        self.leap_since_s.store(d.leap.since_s, Ordering::Relaxed);
        self.leap_state.store(d.leap.state as u32, Ordering::Relaxed);
        self.leap_due_ns.store(d.leap.due_s.saturating_mul(NS_PER_S), Ordering::Release);
    }

    /// Whether a leap second is due at this REALTIME.
    #[inline(always)]
    pub fn leaps(&self, real_ns: i64) -> bool {
        real_ns >= self.leap_due_ns.load(Ordering::Relaxed)
    }

    /// Lets REALTIME jump for the leap second that a reader found due, who took it to be `ahead_ns` ahead of MONOTONIC.
    /// Of several only one does; TAI goes on. An insertion is over for others as soon as the clock was put back, a
    /// deletion must be claimed before: else somebody would find it due again.
    #[inline(never)]
    pub fn leap(&self, ahead_ns: i64) {
        let due_ns = self.leap_due_ns.load(Ordering::Acquire);
        let state = LeapState::of(self.leap_state.load(Ordering::Relaxed));
        if due_ns == i64::MAX {
            return;
        }
        let jump_ns = Leap::jump_s(state) * NS_PER_S;
        let claim = || self.leap_due_ns.compare_exchange(due_ns, i64::MAX, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let put = || {
            let (old, new) = (ahead_ns, ahead_ns.wrapping_add(jump_ns));
            self.real_ahead_ns.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if jump_ns > 0 && !claim() || !put() || jump_ns < 0 && !claim() {
            return;
        }
        self.tai_s.fetch_sub(Leap::jump_s(state), Ordering::Relaxed);
        self.leap_since_s.store(due_ns / NS_PER_S, Ordering::Relaxed);
        self.leap_state.store(Leap::after(state) as u32, Ordering::Relaxed);
    }

    /// TAI minus REALTIME, seconds.
    #[inline(always)]
    pub fn tai_s(&self) -> i64 {
        self.tai_s.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    const S: u64 = 1_000_000_000;

    fn slower(rates: &mut NodeClock) {
        rates.drift = diecast_core_clock::parts_of_ppb(-100_000_000);
    }

    /// The author of a change is kept from running at its `kept`-th look at the time, for ten leads; somebody reads
    /// the clock all along. Gives how often it went back, and the reading at its end.
    fn read_beside(kept: u32) -> (u32, u64) {
        let page = ClockPage::default();
        page.start(&Discipline::start());
        let (time, looks, last, back) = (Cell::new(S), Cell::new(0), Cell::new(0), Cell::new(0));
        let read = || {
            let (v, rates) = page.now(|| time.get());
            let mono = rates.mono_of(v);
            back.set(back.get() + u32::from(mono < last.get()));
            last.set(mono);
        };
        let look = || {
            let now = time.get();
            looks.set(looks.get() + 1);
            for _ in 0..if looks.get() == kept { 100 } else { 1 } {
                time.set(time.get() + LEAD_NS / 10);
                read();
            }
            // What it read before it was kept.
            now
        };
        page.change(look, slower);
        for _ in 0..100 {
            time.set(time.get() + LEAD_NS / 10);
            read();
        }
        (back.get(), last.get())
    }

    #[test]
    fn no_clock_goes_back_however_long_a_changes_author_is_kept_from_running() {
        for kept in 0..6 {
            let (back, mono) = read_beside(kept);
            assert_eq!(back, 0, "kept at look {kept}");
            assert!(mono < S + 100 * LEAD_NS, "the change holds in the end: {mono}");
        }
    }

    #[test]
    fn a_dead_authors_proposal_is_taken_back() {
        let page = ClockPage::default();
        page.start(&Discipline::start());
        page.current.store(1 | PROPOSED, Ordering::Relaxed);
        page.begun.store(1, Ordering::Relaxed);
        page.pair(1).after.store(&NodeClock { from_v_ns: 2 * S, ..NodeClock::plain() });
        assert_eq!(page.now(|| S).1, NodeClock::plain());
        assert_eq!(page.current.load(Ordering::Relaxed), 1 | PROPOSED);
        assert_eq!(page.now(|| 2 * S).1, NodeClock::plain());
        assert_eq!(page.current.load(Ordering::Relaxed), 0);
        page.current.store(1 | PROPOSED, Ordering::Relaxed);
        page.change(|| S, slower);
        assert_eq!(page.current.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn plain_rates_are_asked_for_before_and_after_the_clock() {
        let page = ClockPage::default();
        page.start(&Discipline::start());
        assert_eq!(page.now_if_plain(|| Some(5)), Some(5));
        assert_eq!(page.now_if_plain(|| None), None);
        let changed = page.now_if_plain(|| {
            page.change(|| S, slower);
            Some(5)
        });
        assert_eq!((changed, page.now_if_plain(|| Some(5))), (None, None));
    }
}
