//! A time stamp counter that tells virtual time, where the frame was asked for one (`--tsc trap`).
//!
//! Every thread has the counter taken away (PR_SET_TSC, which fork, clone and exec hand on), so that rdtsc and rdtscp
//! raise SIGSEGV. It follows the node's CLOCK_MONOTONIC_RAW at the host's frequency: one oscillator drives both.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_syscalls::nr;

use crate::carried::{self, REFUSES_TSC};
use crate::entry::{SigInfo, UContext, reg};
use crate::sys::{self, Ret, as_is};
use crate::{clock, node, process, sched, signals};

pub const PR_GET_TSC: u64 = 25;
pub const PR_SET_TSC: u64 = 26;
const PR_TSC_ENABLE: u32 = 1;
const PR_TSC_SIGSEGV: u32 = 2;
/// Longest instruction, bytes.
const INSTRUCTION_MAX: u64 = 15;

/// Whether the frame's programs read a counter of ours.
pub fn is_trapped() -> bool {
    node().tsc_rate().is_some()
}

/// Takes the counter from this thread.
pub fn trap() -> Ret {
    sys::own(nr::PRCTL, [PR_SET_TSC, PR_TSC_SIGSEGV as u64, 0, 0, 0, 0])
}

/// PR_GET_TSC: what the program asked for.
#[inline(never)]
pub fn get(a: [u64; 6]) -> Ret {
    let r = as_is(nr::PRCTL, a);
    if r == 0 && is_trapped() {
        let mode = if carried::load() & REFUSES_TSC != 0 { PR_TSC_SIGSEGV } else { PR_TSC_ENABLE };
        // SAFETY: the kernel just wrote an int there.
        unsafe { (a[1] as *mut u32).write_unaligned(mode) };
    }
    r
}

/// PR_SET_TSC: noted, for this thread and those that it makes.
#[inline(never)]
pub fn set(a: [u64; 6]) -> Ret {
    let bits = carried::load();
    let after = match a[1] as u32 {
        PR_TSC_ENABLE => bits & !REFUSES_TSC,
        PR_TSC_SIGSEGV => bits | REFUSES_TSC,
        _ => return sys::EINVAL,
    };
    if after & REFUSES_TSC != 0 {
        refused();
    }
    carried::store(after);
    if is_trapped() { 0 } else { as_is(nr::PRCTL, a) }
}

/// Some thread of the process, or of the one that it descends from, has no counter in its own view: nor has the kernel's
/// vDSO there.
pub fn refused() {
    process().inherited.tsc_refused.store(1, Relaxed);
    process().read_clock.store(0, Relaxed);
}

/// SIGSEGV. Of rdtsc: its result. Everything else: to the program's own disposition.
#[unsafe(no_mangle)]
pub extern "C" fn diecast_sigsegv(signo: i32, info: *mut SigInfo, uc: *mut UContext) {
    const SI_KERNEL: i32 = 0x80;
    // SAFETY: the kernel passes valid pointers to a frame that belongs to this handler alone.
    let (code, u) = unsafe { ((*info).code, &mut *uc) };
    let refused = || process().inherited.tsc_refused.load(Relaxed) != 0 && carried::load() & REFUSES_TSC != 0;
    if code == SI_KERNEL
        && let Some((len, with_core)) = instruction(u.regs[reg::RIP])
        && !refused()
    {
        let ticks = now();
        u.regs[reg::RAX] = ticks & 0xffff_ffff;
        u.regs[reg::RDX] = ticks >> 32;
        if with_core {
            u.regs[reg::RCX] = sched::core_on(u.regs[reg::RSP]) as u64;
        }
        u.regs[reg::RIP] += len;
        return;
    }
    signals::chain(signo, info, uc);
}

/// Length of the rdtsc or rdtscp at an address, and whether it is the latter.
#[inline(never)]
fn instruction(at: u64) -> Option<(u64, bool)> {
    // SAFETY: the processor fetched it from there and raised a fault that is none of memory's, so it is mapped as far as
    // it goes: no byte behind the one that tells it from others is read.
    let byte = |i: u64| unsafe { ((at + i) as *const u8).read_volatile() };
    let mut i = 0;
    // Prefixes that change nothing.
    while matches!(byte(i), 0x66 | 0x67 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x40..=0x4f) {
        i += 1;
        if i == INSTRUCTION_MAX {
            return None;
        }
    }
    if byte(i) != 0x0f {
        return None;
    }
    match byte(i + 1) {
        0x31 => Some((i + 2, false)),
        0x01 if byte(i + 2) == 0xf9 => Some((i + 3, true)),
        _ => None,
    }
}

/// The counter, rounded down. It wraps as the processor's does, after 2^64 ticks: centuries.
fn now() -> u64 {
    let rate = node().tsc_rate().unwrap_or(diecast_core_vtime::Rate::ZERO);
    rate.mul_floor(clock::read(clock::RAW).map_or(0, clock::ns_of))
}
