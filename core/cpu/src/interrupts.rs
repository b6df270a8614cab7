//! Interrupts as threads' CPU clocks have them.
//!
//! A kernel without IRQ_TIME_ACCOUNTING counts what interrupts a thread as the thread's. In a frame the work on frames is
//! done elsewhere, so a thread's clock would run slower than on the original machine: a program that works for some time by
//! its CPU clock would work longer. Clocks run faster instead, evenly: at the frames' own instants they would jump in the
//! thread's sleeps after hits, and what a hit adds (`hits`) would seem to be less by that.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::NodePage;

use crate::cold::WHOLE;

/// What a node's threads are interrupted, as a part of their CPU time in 1/65536.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Interrupts(pub(crate) u32);

impl Interrupts {
    /// Of this node, now.
    #[inline(always)]
    pub fn of_node(page: &NodePage) -> Interrupts {
        Interrupts(page.interrupt_part.load(Relaxed))
    }

    /// What they add to this much CPU time, ns: rounded down, at most as much again. What is above 2^47 ns has none.
    #[inline(always)]
    pub const fn of(self, work_ns: u64) -> u64 {
        let part = if self.0 as u64 > WHOLE { WHOLE } else { self.0 as u64 };
        if work_ns >> 47 != 0 { 0 } else { work_ns * part / WHOLE }
    }
}

/// The kernel's count of CPU time as a program is to see it, real ns: less what is no part of it, which is below zero where more
/// belongs to it.
#[inline(always)]
pub const fn shown_cpu_ns(kernels_ns: u64, cost_ns: u64) -> u64 {
    let shown = kernels_ns.wrapping_sub(cost_ns) as i64;
    if shown < 0 { 0 } else { shown as u64 }
}

/// The part for a node's page, of what interrupted its threads and what they were charged.
pub fn interrupt_part(amid_ns: f64, charged_ns: f64) -> u32 {
    if charged_ns > 0.0 { ((amid_ns / charged_ns).min(1.0) * WHOLE as f64) as u32 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_runs_faster_by_what_interrupts_it() {
        let part = interrupt_part(13.0, 520.0);
        assert_eq!(Interrupts(part).of(520_000), 12_996);
        assert_eq!([0.0, 30.0].map(|amid| interrupt_part(amid, 10.0)), [0, 1 << 16]);
        assert_eq!(interrupt_part(5.0, 0.0), 0);
        assert_eq!([3, 10, 12, 3_u64.wrapping_neg()].map(|cost| shown_cpu_ns(10, cost)), [7, 0, 0, 13]);
        assert_eq!(Interrupts(u32::MAX).of(7), 7, "a page can say anything");
        assert_eq!([1 << 47, u64::MAX].map(|ns| Interrupts(1 << 16).of(ns)), [0, 0], "no overflow");
    }
}
