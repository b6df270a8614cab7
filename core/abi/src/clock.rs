//! A node's own clocks in its page: rates, steps and what adjtimex(2) keeps.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use diecast_core_clock::{Discipline, LEAD_NS, NodeClock};

/// Changes of rate that may happen while somebody reads.
pub const CLOCKS_MAX: usize = 16;

/// One [`NodeClock`] in shared memory.
#[repr(C)]
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
pub struct ClockPage {
    /// Number of the rates in force, and how many were begun. Rates number n are in pair n modulo [`CLOCKS_MAX`]; number
    /// 0 are plain.
    current: AtomicU64,
    begun: AtomicU64,
    pairs: [ClockPair; CLOCKS_MAX],
    /// REALTIME minus MONOTONIC: what steps change.
    pub real_ahead_ns: AtomicI64,
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
}

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

    /// Reads the newest pair while it is whole, and gives its number.
    #[inline(always)]
    fn read<T>(&self, what: impl Fn(&ClockPair) -> T) -> (u64, T) {
        let mut tries = 0u32;
        loop {
            let number = self.current.load(Ordering::Acquire);
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
            let number = self.current.load(Ordering::Acquire);
            let v = v_now();
            let clock = if number == 0 { NodeClock::plain() } else { self.at(v) };
            tries += 1;
            if self.current.load(Ordering::Acquire) == number || tries > 1000 {
                return (v, clock);
            }
        }
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
    pub fn change(&self, v_now: impl Fn() -> u64, f: impl Fn(&mut NodeClock)) {
        let mut tries = 0;
        loop {
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
            tries += 1;
            // Written down before it holds.
            let in_time = v_now() < next.from_v_ns || tries > 100;
            if in_time && self.current.compare_exchange(number, own, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
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
    }

    /// TAI minus REALTIME, seconds.
    #[inline(always)]
    pub fn tai_s(&self) -> i64 {
        self.tai_s.load(Ordering::Relaxed)
    }
}
