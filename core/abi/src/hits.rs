//! What of a hit of the meter its handler can't see.

use core::sync::atomic::Ordering::Relaxed;

use crate::{METER_MAGIC, METER_PACKETS_TELL, METER_PAUSED_MAGIC, NodePage, ThreadSlot};

/// When a core's clock left a hit for a thread, CLOCK_MONOTONIC ns: the last eight bits of that in units of 512 ns, above all
/// else that comes with it; freestanding/bpf-tick has the same.
const LEFT_SHIFT: u32 = 56;
const LEFT_UNIT_SHIFT: u32 = 9;

/// How long ago a core's clock left the hit that came with `told` (`si_value`), real ns, give or take 512 and right in the mean;
/// only below 131 µs. `None` where it tells of a pause instead.
pub const fn left_since_ns(told: u64, now_ns: u64) -> Option<u64> {
    if tells_of_pause(told) {
        return None;
    }
    let units = ((now_ns >> LEFT_UNIT_SHIFT) as u8).wrapping_sub((told >> LEFT_SHIFT) as u8);
    Some((units as u64) << LEFT_UNIT_SHIFT)
}

/// Units in which hits, in the place of when they were left, and packets tell for how long a core stood still, real ns;
/// freestanding/bpf-tick/meter.h has the same.
pub const PAUSED_UNIT_NS: u64 = 1 << 18;

/// How long a thread has waited for cores since its last hit or packet: eight bits above the magic number, in units of so many
/// real ns; freestanding/bpf-tick has the same.
const DELAY_SHIFT: u32 = 24;
const DELAY_UNIT_NS: u64 = 1 << 13;

/// What of `told` is one of the meter's numbers.
const fn magic_of(told: u64) -> u64 {
    told & ((1 << DELAY_SHIFT) - 1)
}

/// How long the thread has waited for cores since its last hit or packet, where its core's clock tells it, real ns. What is less
/// than 8 µs is told by a later hit. `None` where it was longer than 2 ms.
pub const fn delay_before_ns(told: u64) -> Option<u64> {
    match (told >> DELAY_SHIFT) as u8 {
        u8::MAX => None,
        units => Some(units as u64 * DELAY_UNIT_NS),
    }
}

const fn tells_of_pause(told: u64) -> bool {
    let magic = magic_of(told);
    magic == METER_PAUSED_MAGIC || magic == METER_PAUSED_MAGIC + METER_PACKETS_TELL
}

/// Whether this came with a SIGTRAP of the meter.
pub const fn is_hit(told: u64) -> bool {
    tells_of_pause(told) || magic_of(told) == METER_MAGIC || packets_tell(told)
}

/// Whether nearly all that the thread does between two waits is told by a packet of its before it waits again: then that is
/// held until the original machine would have sent it, whether or not the thread sleeps in its hit.
pub const fn packets_tell(told: u64) -> bool {
    let magic = magic_of(told);
    magic == METER_MAGIC + METER_PACKETS_TELL || magic == METER_PAUSED_MAGIC + METER_PACKETS_TELL
}

/// For how long the thread's cores stood still since its last hit while it had them, real ns, rounded down; at most 67 ms.
pub const fn paused_before_ns(told: u64) -> u64 {
    if tells_of_pause(told) { (told >> LEFT_SHIFT) * PAUSED_UNIT_NS } else { 0 }
}

/// In [`ThreadSlot::burst_ns`]: no packet was charged since the thread's last hit.
const HIT_SINCE: u64 = 1 << 63;
/// In it too: by its last hit the thread's packets tell what it uses.
const TELLS: u64 = 1 << 62;
/// In it too: another thread's work, which was handed on to this one since its last charge, ends where it says that its own does.
const HANDED: u64 = 1 << 61;

impl ThreadSlot {
    /// CPU time of its present burst by its last charge, real ns, and whether that was a hit's, after which its code goes on
    /// colder.
    #[inline(always)]
    pub fn burst(&self) -> (u64, bool) {
        let word = self.burst_ns.load(Relaxed);
        (word & !(HIT_SINCE | TELLS | HANDED), word & HIT_SINCE != 0)
    }

    /// Keeps both, and what the last hit said of packets.
    #[inline(always)]
    pub fn set_burst(&self, ns: u64, of_hit: bool) {
        let tells = self.burst_ns.load(Relaxed) & TELLS;
        self.burst_ns.store(ns | tells | if of_hit { HIT_SINCE } else { 0 }, Relaxed);
    }

    /// What this thread does next was handed on to it by another, which is so far: it begins no earlier.
    #[inline(always)]
    pub fn hand_on(&self, at_v_ns: u64) {
        if self.finish_v_ns.fetch_max(at_v_ns, Relaxed) < at_v_ns {
            self.burst_ns.fetch_or(HANDED, Relaxed);
        }
    }

    /// Whether that came after its own work's end, since its last charge.
    #[inline(always)]
    pub fn is_handed(&self) -> bool {
        self.burst_ns.load(Relaxed) & HANDED != 0
    }

    /// Whether its packets tell what the thread uses, by its last hit ([`packets_tell`]).
    #[inline(always)]
    pub fn packets_tell(&self) -> bool {
        self.burst_ns.load(Relaxed) & TELLS != 0
    }

    /// A hit keeps where it found the burst, and says so, or that they don't.
    #[inline(always)]
    pub fn set_burst_of_hit(&self, ns: u64, tell: bool) {
        self.burst_ns.store(ns | HIT_SINCE | if tell { TELLS } else { 0 }, Relaxed);
    }
}

impl NodePage {
    /// CPU time of a hit that the blob can't see, estimated, real ns.
    #[inline(always)]
    pub fn hidden_hit_ns(&self) -> u64 {
        match self.shown_hit_ns.load(Relaxed) {
            0 => self.hit_cost_ns.load(Relaxed),
            shown => shown,
        }
    }

    /// Whether a clock of its core hits a thread wherever it is, as far as the probe has seen: an event of its own may count no
    /// time in the kernel.
    pub fn clocks_hit(&self) -> bool {
        self.hit_rest_ns.load(Relaxed) != 0
    }

    /// What [`hidden_hit_ns`](Self::hidden_hit_ns) is of one hit, by how long ago it was left for its thread, where that is
    /// known: all hits of a core are dearer in some seconds than in others, and most of what a handler can't see comes before
    /// it.
    ///
    /// What is learned from the node's work is of its mean hit. One that had to wait, or beside which something else happened,
    /// counts as others do.
    #[inline(always)]
    pub fn hidden_of_hit_ns(&self, left_since_ns: Option<u64>) -> u64 {
        let rest_ns = if self.shown_hit_ns.load(Relaxed) == 0 { self.hit_rest_ns.load(Relaxed) } else { 0 };
        of_hit_ns(self.hidden_hit_ns(), rest_ns, left_since_ns)
    }
}

/// By what hits cost usually and by what is left of that without their way to the handler, 0 where it is not known.
#[inline(always)]
const fn of_hit_ns(usual_ns: u64, rest_ns: u64, left_since_ns: Option<u64>) -> u64 {
    match left_since_ns {
        Some(since_ns) if rest_ns > 0 && since_ns < usual_ns.saturating_mul(2) => rest_ns + since_ns,
        _ => usual_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_tells_when_it_was_left() {
        let told = |left_ns: u64| (left_ns >> 9) << 56 | 0x1234_5678;
        for left_ns in [0, 511, 512, 130_999, 131_072, u64::from(u32::MAX) - 7, 1 << 50] {
            let mut sum = 0;
            for after_ns in 0..130_000 {
                let found = left_since_ns(told(left_ns), left_ns + after_ns).unwrap();
                assert!(found.abs_diff(after_ns) <= 512, "{left_ns}, {after_ns}: {found}");
                sum += found;
            }
            assert!((sum / 130_000).abs_diff(65_000) <= 512, "{left_ns}: {sum}");
        }
        assert_eq!(left_since_ns(told(1_000), 1_000 + 131_072 + 2_048), Some(2_048), "no longer than eight bits");
    }

    #[test]
    fn who_is_further_is_handed_nothing() {
        let slot = ThreadSlot::default();
        slot.set_burst_of_hit(300, true);
        slot.finish_v_ns.store(7, Relaxed);
        slot.hand_on(7);
        assert!(!slot.is_handed());
        slot.hand_on(9);
        slot.hand_on(8);
        assert_eq!((slot.finish_v_ns.load(Relaxed), slot.is_handed()), (9, true));
        assert_eq!((slot.burst(), slot.packets_tell()), ((300, true), true));
        slot.set_burst(400, false);
        assert_eq!((slot.burst(), slot.packets_tell(), slot.is_handed()), ((400, false), true, false));
    }

    #[test]
    fn a_hit_tells_of_a_pause_or_when_it_was_left() {
        let paused = 19 << 56 | 0xfff << 44 | METER_PAUSED_MAGIC;
        assert_eq!((left_since_ns(paused, 0), paused_before_ns(paused)), (None, 19 * 262_144));
        let left = 19 << 56 | 0xfff << 44 | METER_MAGIC;
        assert_eq!((left_since_ns(left, 0).is_some(), paused_before_ns(left)), (true, 0));
        for (told, tell) in [(paused, false), (left, false), (paused + 2, true), (left + 2, true)] {
            assert_eq!((is_hit(told), packets_tell(told)), (true, tell), "{told:x}");
        }
        assert_eq!((paused_before_ns(paused + 2), paused_before_ns(left + 2)), (19 * 262_144, 0));
        assert!(!is_hit(left + 4) && !is_hit(left - 1));
        assert_eq!(
            [0, 7, 254, 255].map(|d| delay_before_ns(left | d << 24)),
            [Some(0), Some(57_344), Some(2_080_768), None]
        );
        assert!(is_hit(paused | 255 << 24) && tells_of_pause(paused | 255 << 24));
    }

    #[test]
    fn what_a_burst_has_taken_and_its_marks_do_not_touch_each_other() {
        let slot = ThreadSlot::default();
        let seen = |s: &ThreadSlot| (s.burst(), s.packets_tell());
        assert_eq!(seen(&slot), ((0, false), false));
        slot.set_burst_of_hit(70, true);
        assert_eq!(seen(&slot), ((70, true), true));
        // A packet is charged: what the last hit said of packets stays.
        slot.set_burst(1_000_000, false);
        assert_eq!(seen(&slot), ((1_000_000, false), true));
        slot.set_burst(80, true);
        assert_eq!(seen(&slot), ((80, true), true));
        slot.set_burst_of_hit(90, false);
        assert_eq!(seen(&slot), ((90, true), false));
    }

    #[test]
    fn a_hit_costs_its_way_and_the_rest_where_both_are_known() {
        assert_eq!(of_hit_ns(20_000, 0, Some(15_000)), 20_000, "the rest is not known");
        assert_eq!(of_hit_ns(20_000, 6_000, None), 20_000);
        assert_eq!(of_hit_ns(20_000, 6_000, Some(9_000)), 15_000);
        assert_eq!(of_hit_ns(20_000, 6_000, Some(40_000)), 20_000, "it had to wait");
    }
}
