//! The blob: code that lives inside every process of a frame, without libc.
//!
//! It is an ELF image that stands in for the kernel's vDSO ([`vdso`]), a SIGSYS handler that sends trapped
//! calls to a trampoline on the program's own stack ([`entry`]), the translation of those calls
//! ([`serve`]), and the CPU meter's SIGTRAP handler ([`meter`]).
//!
//! House rules, and what enforces them:
//! * One PT_LOAD, no relocation, no GOT, no data, no bss: `blob.lds` asserts it at link time and
//!   host/supervisor's build checks the file. So no statics, no panics with messages, no function tables.
//! * General registers only: host/supervisor's test disassembles the image and refuses any vector register,
//!   because a system call preserves them and so must a trampoline.
//! * No allocation, no TLS, no lock; state is in the pages of core/abi or on the caller's stack.
//! * Little stack below the program's red zone: the same test bounds each frame. Handlers of single calls are therefore
//!   separate functions that are not inlined. Goroutines have less than that: see [`stacks`].
//! * The program's memory is read only after the kernel said that it is readable, so that a bad pointer
//!   gives EFAULT as natively.
//! * In a handler, no call that the filter traps is made from outside this image.
#![no_std]

mod altstack;
mod carried;
mod clock;
mod cputimers;
mod entry;
mod files;
mod filter;
mod held;
mod init;
mod interrupt;
mod meter;
mod pay;
mod sched;
mod sentraps;
mod serve;
mod settime;
mod signalfd;
mod signals;
mod sites;
mod sockets;
mod stacks;
mod stamps;
mod sys;
mod timers;
mod timespaces;
mod tsc;
mod turns;
mod usage;
mod user;
mod vdso;
mod views;
mod waits;

use core::sync::atomic::Ordering;

use diecast_core_abi::{BlobFault, NODE_PAGE_ADDR, NodePage, PROC_PAGE_ADDR, ProcPage};

/// The node's page. Mapped before any other code of the blob runs.
#[inline(always)]
fn node() -> &'static NodePage {
    // SAFETY: `init` mapped the page at this fixed address before it installed any handler, and the mapping
    // lives as long as the image does; all fields are atomics.
    unsafe { &*(NODE_PAGE_ADDR as *const NodePage) }
}

/// This process's page.
#[inline(always)]
fn process() -> &'static ProcPage {
    // SAFETY: as for `node`.
    unsafe { &*(PROC_PAGE_ADDR as *const ProcPage) }
}

/// Leaves a fault number where the supervisor finds it; the first one wins.
fn report(fault: BlobFault, detail: u32) {
    let c = &node().counters;
    if c.fault.compare_exchange(0, fault as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        c.fault_detail.store(detail, Ordering::Release);
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    report(BlobFault::Panic, 0);
    sys::exit_group(133)
}
