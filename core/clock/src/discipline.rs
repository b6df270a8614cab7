//! What adjtimex(2) sets and shows, by the rules of the kernel's timekeeping and NTP code.

use crate::{Leap, NodeClock};

/// Microseconds a tick, nominal: 100 ticks a second in this interface, whatever the kernel's own are.
pub const TICK_US: i64 = 10_000;
/// The largest error that is shown, µs; also that of a clock that nobody has set.
pub const MAXERROR_US: i64 = 16_000_000;
/// `status`: nobody keeps this clock right.
pub const STA_UNSYNC: u32 = 0x40;
/// `status`: times are in nanoseconds.
pub const STA_NANO: u32 = 0x2000;

const STA_PLL: u32 = 0x1;
const STA_FLL: u32 = 0x8;
const STA_FREQHOLD: u32 = 0x80;
const STA_CLOCKERR: u32 = 0x1000;
const STA_MODE: u32 = 0x4000;
/// Bits of `status` that only the kernel sets.
const STA_READ_ONLY: u32 = 0xff00;

/// Seconds from which no clock can be set: the kernel leaves room for 30 years of uptime.
const SETTABLE_S: i64 = 9_223_372_036 - 30 * 365 * 24 * 3600;
/// A unit of `freq` (2^-16 ppm) in those of `Discipline::frequency`.
const FREQ_UNIT: i64 = 1000 << 16;
/// 500 ppm, as `Discipline::frequency` counts.
const FREQUENCY_MAX: i64 = 500_000 << 32;
/// How fast the error of a clock grows that nobody looks after, µs a second.
const ERROR_GROWS_US: i64 = 500;
const PHASE_MAX_NS: i64 = 500_000_000;
const SHIFT_PLL: u32 = 2;
const SHIFT_FLL: u32 = 2;
const CONSTANT_MAX: i64 = 10;
const TAI_MAX_S: i64 = 100_000;
/// Between these many seconds a loop can lock phase or frequency.
const FLL_FROM_S: i64 = 256;
const FLL_ALWAYS_S: i64 = 2048;

/// Bits of `modes`.
pub mod modes {
    pub const OFFSET: u32 = 0x1;
    pub const FREQUENCY: u32 = 0x2;
    pub const MAXERROR: u32 = 0x4;
    pub const ESTERROR: u32 = 0x8;
    pub const STATUS: u32 = 0x10;
    pub const TIMECONST: u32 = 0x20;
    pub const TAI: u32 = 0x80;
    pub const SETOFFSET: u32 = 0x100;
    pub const MICRO: u32 = 0x1000;
    pub const NANO: u32 = 0x2000;
    pub const TICK: u32 = 0x4000;
    /// `adjtime(3)`: with OFFSET, and with NANO when it only reads.
    pub const ADJTIME: u32 = 0x8000;
}

/// `struct timex` as far as it goes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Request {
    pub modes: u32,
    pub offset: i64,
    pub freq: i64,
    pub maxerror: i64,
    pub esterror: i64,
    pub status: u32,
    pub constant: i64,
    pub tick: i64,
    /// `time.tv_usec`, for SETOFFSET.
    pub fraction: i64,
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// EINVAL.
    Invalid,
    /// EPERM.
    NotPermitted,
}

/// What a request wants of the clock's rates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Adjusted {
    /// Frequency or tick changed.
    pub rate: bool,
    /// The phase that the loop has to take away from now on, ns.
    pub phase_ns: Option<i64>,
    /// What `adjtime` has to gain or lose from now on, µs.
    pub adjust_us: Option<i64>,
}

/// A time that CLOCK_REALTIME can be set to.
pub const fn is_time(sec: i64, nsec: i64) -> bool {
    sec >= 0 && (nsec as u64) < 1_000_000_000 && sec < SETTABLE_S
}

/// Whether REALTIME can be this far ahead of MONOTONIC: boot is not before 1970.
pub const fn real_fits(ahead_ns: i128, mono_ns: u64) -> bool {
    let real = ahead_ns + mono_ns as i128;
    ahead_ns >= 0 && real < SETTABLE_S as i128 * 1_000_000_000 && ahead_ns <= i64::MAX as i128
}

impl Request {
    /// The kernel's checks, in its order; `may` asks whether the caller has CAP_SYS_TIME.
    pub fn check(&self, may: impl FnOnce() -> bool) -> Result<(), Refused> {
        let m = self.modes;
        if m & modes::ADJTIME != 0 && m & modes::OFFSET == 0 {
            return Err(Refused::Invalid);
        }
        let reads = m == 0 || m & (modes::ADJTIME | modes::NANO) == modes::ADJTIME | modes::NANO;
        let sets = !reads || m & modes::SETOFFSET != 0;
        if sets && !may() {
            return Err(Refused::NotPermitted);
        }
        let tick_is_off = self.tick < TICK_US * 9 / 10 || self.tick > TICK_US * 11 / 10;
        if m & modes::ADJTIME == 0 && m & modes::TICK != 0 && tick_is_off {
            return Err(Refused::Invalid);
        }
        let whole = if m & modes::NANO != 0 { 1_000_000_000 } else { 1_000_000 };
        if m & modes::SETOFFSET != 0 && !(0..whole).contains(&self.fraction) {
            return Err(Refused::Invalid);
        }
        let freq_is_off = self.freq < i64::MIN / FREQ_UNIT || self.freq > i64::MAX / FREQ_UNIT;
        if m & modes::FREQUENCY != 0 && freq_is_off {
            return Err(Refused::Invalid);
        }
        Ok(())
    }
}

/// What a node's kernel keeps besides the rates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discipline {
    pub status: u32,
    /// ns a second, times 2^32.
    pub frequency: i64,
    /// The loop's time constant.
    pub constant: i64,
    pub tick_us: i64,
    pub esterror_us: i64,
    /// The error at `since_s`; it grows.
    pub maxerror_us: i64,
    /// REALTIME, seconds, at which `maxerror_us` was right.
    pub since_s: i64,
    /// REALTIME, seconds, at which the loop last took an offset.
    pub reference_s: i64,
    pub tai_s: i64,
    pub leap: Leap,
}

impl Discipline {
    /// A machine that has just started.
    pub const fn start() -> Discipline {
        Discipline {
            status: STA_UNSYNC,
            frequency: 0,
            constant: 2,
            tick_us: TICK_US,
            esterror_us: MAXERROR_US,
            maxerror_us: MAXERROR_US,
            since_s: 0,
            reference_s: 0,
            tai_s: 0,
            leap: Leap::none(),
        }
    }

    /// The error has grown since it was set; from the largest on nobody keeps the clock right.
    #[inline(never)]
    pub fn age(&mut self, now_s: i64) {
        self.leap.age(now_s);
        let seconds = now_s.saturating_sub(self.since_s).clamp(0, MAXERROR_US);
        self.since_s = now_s;
        self.maxerror_us = self.maxerror_us.saturating_add(seconds * ERROR_GROWS_US);
        if self.maxerror_us > MAXERROR_US {
            self.maxerror_us = MAXERROR_US;
            self.status |= STA_UNSYNC;
        }
    }

    /// The clock was stepped: what was known about it is no longer.
    pub fn clear(&mut self, now_s: i64) {
        self.status |= STA_UNSYNC;
        self.leap.due_s = Leap::NEVER;
        self.esterror_us = MAXERROR_US;
        self.maxerror_us = MAXERROR_US;
        self.since_s = now_s;
    }

    /// Carries out a request that was checked, at REALTIME `now_s`.
    pub fn apply(&mut self, r: &Request, now_s: i64) -> Adjusted {
        let m = r.modes;
        if m & modes::ADJTIME != 0 {
            return Adjusted { adjust_us: (m & modes::NANO == 0).then_some(r.offset), ..Adjusted::default() };
        }
        if m & modes::STATUS != 0 {
            self.set_status(r.status, now_s);
        }
        if m & modes::NANO != 0 {
            self.status |= STA_NANO;
        }
        if m & modes::MICRO != 0 {
            self.status &= !STA_NANO;
        }
        if m & modes::FREQUENCY != 0 {
            self.frequency = r.freq.saturating_mul(FREQ_UNIT).clamp(-FREQUENCY_MAX, FREQUENCY_MAX);
        }
        if m & modes::MAXERROR != 0 {
            self.maxerror_us = r.maxerror.clamp(0, MAXERROR_US);
            self.since_s = now_s;
        }
        if m & modes::ESTERROR != 0 {
            self.esterror_us = r.esterror.clamp(0, MAXERROR_US);
        }
        if m & modes::TIMECONST != 0 {
            let more = if self.status & STA_NANO != 0 { 0 } else { 4 };
            self.constant = (r.constant.clamp(0, CONSTANT_MAX) + more).min(CONSTANT_MAX);
        }
        if m & modes::TAI != 0 && (0..=TAI_MAX_S).contains(&r.constant) {
            self.tai_s = r.constant;
        }
        let phase_ns = if m & modes::OFFSET != 0 { self.lock(r.offset, now_s) } else { None };
        if m & modes::TICK != 0 {
            self.tick_us = r.tick;
        }
        Adjusted { rate: m & (modes::TICK | modes::FREQUENCY | modes::OFFSET) != 0, phase_ns, adjust_us: None }
    }

    #[inline(never)]
    fn set_status(&mut self, status: u32, now_s: i64) {
        if self.status & STA_PLL != 0 && status & STA_PLL == 0 {
            self.status = STA_UNSYNC;
            self.leap = Leap::none();
        }
        if self.status & STA_PLL == 0 && status & STA_PLL != 0 {
            self.reference_s = now_s;
        }
        self.status = self.status & STA_READ_ONLY | status & !STA_READ_ONLY;
        self.leap.follow(self.status, now_s);
    }

    /// Takes an offset into the loop: its phase, and what it says about the frequency.
    fn lock(&mut self, offset: i64, now_s: i64) -> Option<i64> {
        if self.status & STA_PLL == 0 {
            return None;
        }
        let ns = if self.status & STA_NANO != 0 { offset } else { offset.clamp(-1_000_000, 1_000_000) * 1000 };
        let ns = ns.clamp(-PHASE_MAX_NS, PHASE_MAX_NS);
        let held = self.status & STA_FREQHOLD != 0;
        let seconds = if held { 0 } else { now_s.saturating_sub(self.reference_s) };
        self.reference_s = now_s;
        let by_frequency = self.by_frequency(ns, seconds);
        let seconds = seconds.clamp(0, 1 << (i64::from(SHIFT_PLL) + 1 + self.constant));
        let by_phase = (ns * seconds) << (32 - 2 * (i64::from(SHIFT_PLL) + 2 + self.constant));
        let frequency = self.frequency.saturating_add(by_frequency).saturating_add(by_phase);
        self.frequency = frequency.clamp(-FREQUENCY_MAX, FREQUENCY_MAX);
        Some(ns)
    }

    /// The frequency-locked loop's part.
    fn by_frequency(&mut self, ns: i64, seconds: i64) -> i64 {
        self.status &= !STA_MODE;
        if seconds < FLL_FROM_S || self.status & STA_FLL == 0 && seconds <= FLL_ALWAYS_S {
            return 0;
        }
        self.status |= STA_MODE;
        (ns << (32 - SHIFT_FLL)) / seconds
    }

    /// The rates of these settings, parts of 2^-48.
    pub fn rate(&self) -> i64 {
        // ns a second times 2^32 to parts of 2^-48: times 2^16 / 10^9 = 2^7 / 5^9. A tick is a share of itself.
        let by_frequency = self.frequency * 128 / 1_953_125;
        let by_tick = (self.tick_us - TICK_US) * ((1 << 48) / TICK_US);
        by_frequency + by_tick
    }

    /// The power of 1/2 of its phase that the loop takes away each second.
    pub fn phase_shift(&self) -> u64 {
        u64::from(SHIFT_PLL) + self.constant.clamp(0, CONSTANT_MAX) as u64
    }

    /// Puts the settings into the rates.
    pub fn steer(&self, what: &Adjusted, clock: &mut NodeClock) {
        clock.frequency = self.rate();
        clock.phase_shift = self.phase_shift();
        if let Some(ns) = what.phase_ns {
            clock.phase_ns = ns;
        }
        if let Some(us) = what.adjust_us {
            clock.adjust_ns = us.saturating_mul(1000);
        }
    }

    /// `freq` as it is shown.
    pub fn shown_freq(&self) -> i64 {
        // 1/FREQ_UNIT as the kernel takes it, in 2^-51, toward zero.
        let product = (self.frequency >> 19) * 34_359_739;
        if product < 0 { -(-product >> 32) } else { product >> 32 }
    }

    /// The call's result at REALTIME `now_s`: TIME_ERROR, or where the clock is with a leap second.
    pub const fn state(&self, now_s: i64) -> i64 {
        if self.status & (STA_UNSYNC | STA_CLOCKERR) != 0 { 5 } else { self.leap.shown(now_s) as i64 }
    }
}
