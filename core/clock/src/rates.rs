//! How fast a node's clocks run.

const NS_PER_S: u64 = 1_000_000_000;
/// Rates are in parts of 2^-48: 1 ppm is 281,474,976 parts, and the rounding is 0.004 ppb.
const SHIFT: u32 = 48;
/// `adjtime` gains or loses 500 µs a second.
const ADJUST_PARTS: u128 = (1 << SHIFT) / 2000;
/// 2^80 / 10^9, rounded down: a share of a second, in 2^-80.
const SHARE_PER_NS: u128 = (1 << 80) / NS_PER_S as u128;
/// The largest drift that a node can have, parts per billion: a tenth.
pub const DRIFT_MAX_PPB: i64 = 100_000_000;
/// A change of rate takes place so much later in virtual time than it is made, ns: whoever reads a clock meanwhile
/// uses the old rate up to that instant and the new one from there, so no clock goes back.
pub const LEAD_NS: u64 = 1_000_000;

/// A rate in parts of 2^-48, of one in parts per billion.
pub fn parts_of_ppb(ppb: i64) -> i64 {
    // 2^48 / 10^9 = 2^39 / 5^9.
    ((i128::from(ppb) << 39) / 1_953_125) as i64
}

/// The reverse, to the nearest.
pub fn ppb_of_parts(parts: i64) -> i64 {
    ((i128::from(parts) * 1_953_125 + (1 << 38)) >> 39) as i64
}

/// A node's rates from an instant on, until the next change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct NodeClock {
    /// Virtual instant from which this holds.
    pub from_v_ns: u64,
    /// MONOTONIC there.
    pub mono_ns: u64,
    /// The oscillator there.
    pub raw_ns: u64,
    /// How much faster than virtual time the oscillator is, parts of 2^-48.
    pub drift: i64,
    /// How much faster than the oscillator MONOTONIC is, parts of 2^-48: frequency and tick.
    pub frequency: i64,
    /// What `adjtime` still has to gain or lose, ns.
    pub adjust_ns: i64,
    /// What the phase-locked loop still has to gain or lose, ns.
    pub phase_ns: i64,
    /// Each second it gets this power of 1/2 of what is left.
    pub phase_shift: u64,
}

impl NodeClock {
    /// Clocks that run with virtual time.
    pub const fn plain() -> NodeClock {
        NodeClock {
            from_v_ns: 0,
            mono_ns: 0,
            raw_ns: 0,
            drift: 0,
            frequency: 0,
            adjust_ns: 0,
            phase_ns: 0,
            phase_shift: 1,
        }
    }

    /// Whether all clocks run at virtual time's rate.
    #[inline(always)]
    pub const fn is_plain(&self) -> bool {
        self.drift | self.frequency | self.adjust_ns | self.phase_ns == 0
    }

    #[inline(always)]
    const fn rate(&self) -> i64 {
        self.drift.wrapping_add(self.frequency)
    }

    /// MONOTONIC at a virtual instant; monotone.
    ///
    /// Example: drift 100 ppm, one second after the start: 1,000,100,000 ns.
    #[inline]
    pub fn mono_of(&self, v_ns: u64) -> u64 {
        if v_ns < self.from_v_ns {
            return self.mono_ns.saturating_sub(self.from_v_ns - v_ns);
        }
        let d = v_ns - self.from_v_ns;
        if self.is_plain() {
            return self.mono_ns.saturating_add(d);
        }
        // One sum, rounded once: of several that are rounded each, two might go back in the same nanosecond.
        let gain = scaled(d, self.rate()) + self.slewed(d);
        plus(self.mono_ns.saturating_add(d), (gain >> SHIFT) as i64)
    }

    /// The oscillator at a virtual instant; monotone.
    #[inline]
    pub fn raw_of(&self, v_ns: u64) -> u64 {
        if v_ns < self.from_v_ns {
            return self.raw_ns.saturating_sub(self.from_v_ns - v_ns);
        }
        let d = v_ns - self.from_v_ns;
        plus(self.raw_ns.saturating_add(d), (scaled(d, self.drift) >> SHIFT) as i64)
    }

    /// The smallest virtual instant at which MONOTONIC is at least `mono_ns`.
    ///
    /// All rates together stay within ±0.4 of one, so each step leaves at most 0.4 of the error.
    #[inline(never)]
    pub fn v_of_mono(&self, mono_ns: u64) -> u64 {
        let mut v = plus(self.from_v_ns, mono_ns.wrapping_sub(self.mono_ns) as i64);
        for _ in 0..64 {
            let error = mono_ns.wrapping_sub(self.mono_of(v)) as i64;
            if error.unsigned_abs() <= 1 {
                break;
            }
            v = plus(v, error);
        }
        // What is left is a nanosecond or two; the bound is for values that no clock of ours has.
        for _ in 0..16 {
            if self.mono_of(v) >= mono_ns {
                break;
            }
            v = v.saturating_add(1);
        }
        for _ in 0..16 {
            if v == 0 || self.mono_of(v - 1) < mono_ns {
                break;
            }
            v -= 1;
        }
        v
    }

    /// A span of MONOTONIC, ns, in virtual ns, rounded up, by the lasting rates alone.
    pub fn span_in(&self, mono_ns: u64) -> u64 {
        let rate = self.rate();
        if rate == 0 {
            return mono_ns;
        }
        let mut v = mono_ns;
        for _ in 0..64 {
            let error = mono_ns.wrapping_sub(self.span_out(v)) as i64;
            if error.unsigned_abs() <= 1 {
                break;
            }
            v = plus(v, error);
        }
        for _ in 0..16 {
            if self.span_out(v) >= mono_ns {
                break;
            }
            v = v.saturating_add(1);
        }
        v
    }

    /// A virtual span, ns, in ns of MONOTONIC, rounded down, by the lasting rates alone.
    pub fn span_out(&self, v_ns: u64) -> u64 {
        plus(v_ns, (scaled(v_ns, self.rate()) >> SHIFT) as i64)
    }

    /// What `adjtime` has left at a virtual instant, ns.
    pub fn adjust_left(&self, v_ns: u64) -> i64 {
        let done = adjusted(self.adjust_ns, v_ns.saturating_sub(self.from_v_ns)) >> SHIFT;
        toward(self.adjust_ns, self.adjust_ns.unsigned_abs().saturating_sub(done as u64))
    }

    /// What the phase-locked loop has left at a virtual instant, ns.
    pub fn phase_left(&self, v_ns: u64) -> i64 {
        let done = self.phased(v_ns.saturating_sub(self.from_v_ns)) >> SHIFT;
        toward(self.phase_ns, self.phase_ns.unsigned_abs().saturating_sub(done as u64))
    }

    /// The same clocks, written down anew at an instant from which something can change.
    pub fn at(&self, v_ns: u64) -> NodeClock {
        NodeClock {
            from_v_ns: v_ns,
            mono_ns: self.mono_of(v_ns),
            raw_ns: self.raw_of(v_ns),
            drift: self.drift,
            frequency: self.frequency,
            adjust_ns: self.adjust_left(v_ns),
            phase_ns: self.phase_left(v_ns),
            phase_shift: self.phase_shift,
        }
    }

    /// What the slews have gained `d` ns after the start, in 2^-48 ns.
    fn slewed(&self, d: u64) -> i128 {
        let mut sum = 0;
        if self.adjust_ns != 0 {
            let done = adjusted(self.adjust_ns, d) as i128;
            sum += if self.adjust_ns < 0 { -done } else { done };
        }
        if self.phase_ns != 0 {
            let done = self.phased(d) as i128;
            sum += if self.phase_ns < 0 { -done } else { done };
        }
        sum
    }

    /// The magnitude of what the phase-locked loop has done after `d` ns, in 2^-48 ns: evenly within each second, as
    /// the kernel spreads it over its ticks.
    fn phased(&self, d: u64) -> u128 {
        let all = self.phase_ns.unsigned_abs();
        let (second, within) = (d / NS_PER_S, d % NS_PER_S);
        let done = all.saturating_sub(left_after(all, self.phase_shift, second));
        let next = all.saturating_sub(left_after(all, self.phase_shift, second.saturating_add(1)));
        let step = next.saturating_sub(done);
        let part = (step.saturating_mul(within) as u128 * SHARE_PER_NS) >> 32;
        ((done as u128) << SHIFT) + part.min((step as u128) << SHIFT)
    }
}

/// `d` times a rate, in 2^-48 ns.
#[inline(always)]
fn scaled(d: u64, parts: i64) -> i128 {
    let product = (d as u128 * parts.unsigned_abs() as u128) as i128;
    if parts < 0 { -product } else { product }
}

/// The magnitude of what `adjtime` has done of `all` ns after `d` ns, in 2^-48 ns.
fn adjusted(all: i64, d: u64) -> u128 {
    (d as u128 * ADJUST_PARTS).min((all.unsigned_abs() as u128) << SHIFT)
}

/// What is left of `all` after so many seconds, each of which takes the `shift`th power of 1/2 of it. A rest that this
/// does not change any more is gone at once.
fn left_after(all: u64, shift: u64, seconds: u64) -> u64 {
    let shift = shift.clamp(1, 16);
    if all >> shift == 0 && seconds > 0 || seconds > 40 << shift {
        return 0;
    }
    // Square and multiply in 2^-62.
    let (mut weight, mut power, mut n) = (1u64 << 62, (1u64 << 62) - (1 << (62 - shift)), seconds);
    while n > 0 {
        if n & 1 != 0 {
            weight = ((weight as u128 * power as u128) >> 62) as u64;
        }
        power = ((power as u128 * power as u128) >> 62) as u64;
        n >>= 1;
    }
    ((all as u128 * weight as u128) >> 62) as u64
}

fn toward(sign: i64, magnitude: u64) -> i64 {
    if sign < 0 { -(magnitude as i64) } else { magnitude as i64 }
}

#[inline(always)]
fn plus(a: u64, b: i64) -> u64 {
    if b < 0 { a.saturating_sub(b.unsigned_abs()) } else { a.saturating_add(b as u64) }
}
