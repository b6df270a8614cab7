//! First call in a new image, made by the supervisor at the exec stop: pages, handlers, auxiliary vector.

use core::sync::atomic::Ordering;

use diecast_core_abi::{
    ABI_VERSION, BLOB_ADDR, BeginArgs, InitArgs, NODE_PAGE_ADDR, OwnPage, PROC_MAGIC, PROC_PAGE_ADDR, PROC_PAGE_LEN,
};
use diecast_core_syscalls::nr::{self, RT_SIGACTION};

use crate::sys::{self, Ret};
use crate::{entry, node, process, signals, stacks, timers, tsc, vdso};

const PROT_READ_WRITE: u64 = 3;
const MAP_SHARED: u64 = 1;
const MAP_PRIVATE_ANON: u64 = 0x22;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_RESTART: u64 = 0x1000_0000;
const SA_NODEFER: u64 = 0x4000_0000;
/// Everything waits while a meter's hit is served. SIGSYS too: when a trapped call and a tick come together the
/// kernel may set up the tick's frame first, and a SIGSYS on top of it would see the handler's registers, not the call's.
const METER_MASK: u64 = !0;
/// All but SIGSYS, and SIGSEGV and SIGBUS, which a stack without room gives.
const SIGSYS_MASK: u64 = !(1 << 30 | 1 << 10 | 1 << 6);

pub extern "C" fn init(args: &InitArgs) -> Ret {
    let page = sys::own(
        sys::MMAP,
        [NODE_PAGE_ADDR, args.node_len, PROT_READ_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, args.fd, args.node_off],
    );
    sys::own(sys::CLOSE, [args.fd, 0, 0, 0, 0, 0]);
    if page < 0 {
        return page;
    }
    let own = sys::own(
        sys::MMAP,
        [PROC_PAGE_ADDR, PROC_PAGE_LEN, PROT_READ_WRITE, MAP_PRIVATE_ANON | MAP_FIXED_NOREPLACE, u64::MAX, 0],
    );
    if own < 0 {
        return own;
    }
    let p = process();
    p.kernel_clock_gettime.store(args.kernel_clock_gettime, Ordering::Relaxed);
    p.kernel_getcpu.store(args.kernel_getcpu, Ordering::Relaxed);
    p.kernel_getrandom.store(args.kernel_getrandom, Ordering::Relaxed);
    p.read_clock.store(if tsc::is_trapped() { 0 } else { args.kernel_clock_gettime }, Ordering::Relaxed);
    p.lineage.store(args.lineage, Ordering::Relaxed);
    p.version.store(ABI_VERSION, Ordering::Relaxed);
    p.magic.store(PROC_MAGIC, Ordering::Release);

    // A child after fork has used no CPU time, ours neither.
    const MADV_WIPEONFORK: u64 = 18;
    let own = &raw const p.own as u64;
    sys::own(sys::MADVISE, [own, size_of::<OwnPage>() as u64, MADV_WIPEONFORK, 0, 0, 0]);
    if let Some(s) = node().slot(sys::gettid()) {
        // The CPU clocks go on, and what they show must. With what its process was not told yet.
        s.untold_cost_ns.store(0, Ordering::Relaxed);
        p.own.cost_ns.store(s.cost_ns.load(Ordering::Relaxed), Ordering::Relaxed);
        p.own.threads_hit.store((s.hits.load(Ordering::Relaxed) > 0).into(), Ordering::Relaxed);
    }
    signals::own_page();
    stacks::note(args.auxv_slot);
    signals::inherit();
    timers::note_inherited();

    let base = SA_SIGINFO | SA_RESTORER | SA_ONSTACK;
    let sigtrap = [entry::sigtrap_entry(), base | SA_RESTART, entry::restorer(), METER_MASK];
    let r = sys::own(RT_SIGACTION, [5, &raw const sigtrap as u64, 0, 8, 0, 0]);
    if r < 0 {
        return r;
    }
    // A meter's hit waits for the short SIGSYS handler: an alternate stack of 8 KiB has room for the frame of a
    // program's handler and one of ours, not for two. A program's handler waits too: with SIGTRAP blocked it would die of
    // a breakpoint, its own or one of `sites`.
    let sigsys = [entry::sigsys_entry(), base | SA_NODEFER | SA_RESTART, entry::restorer(), SIGSYS_MASK];
    let r = sys::own(RT_SIGACTION, [31, &raw const sigsys as u64, 0, 8, 0, 0]);
    if r < 0 {
        return r;
    }
    if tsc::is_trapped() {
        // Everything waits while it is served, as for a hit; a program's handler gets the mask that it asked for.
        let sigsegv = [entry::sigsegv_entry(), base | SA_RESTART, entry::restorer(), METER_MASK];
        let mut r = sys::own(RT_SIGACTION, [11, &raw const sigsegv as u64, 0, 8, 0, 0]);
        if r == 0 {
            r = tsc::trap();
        }
        if r < 0 {
            return r;
        }
    }
    if args.auxv_slot != 0 {
        let slot = args.auxv_slot as *mut u64;
        // SAFETY: the supervisor found this word in the new image's auxiliary vector.
        let kernels = unsafe { slot.replace(BLOB_ADDR) };
        sys::seal(kernels, vdso::mapped_len(kernels));
    }
    if args.mm_map != 0 {
        // The kernel's copy of the auxiliary vector; without checkpoint support in the kernel it stays as it is.
        const PR_SET_MM: u64 = 35;
        const PR_SET_MM_MAP: u64 = 14;
        const MM_MAP_LEN: u64 = 104;
        sys::own(nr::PRCTL, [PR_SET_MM, PR_SET_MM_MAP, args.mm_map, MM_MAP_LEN, 0, 0]);
    }
    // The node's page lies behind the image in their file. Not sealed: pages that places of the program jump to (sites.rs),
    // which change.
    sys::seal(BLOB_ADDR, args.node_off);
    sys::seal(PROC_PAGE_ADDR, PROC_PAGE_LEN);
    sys::seal(NODE_PAGE_ADDR, args.node_len);
    0
}

/// The image's own first instructions, where the supervisor's were.
pub extern "C" fn put_back(args: &BeginArgs) -> Ret {
    const PROT_ALL: u64 = 7;
    // A tracer shows the program's instructions as they are in its file.
    process().inherited.sites_off.store(1, Ordering::Relaxed);
    let first = args.entry & !4095;
    let len = ((args.entry + args.len + 4095) & !4095) - first;
    let r = sys::own(sys::MPROTECT, [first, len, PROT_ALL, 0, 0, 0]);
    if r < 0 {
        return r;
    }
    for (i, byte) in args.code.iter().enumerate().take(args.len as usize) {
        // SAFETY: the supervisor found these bytes here; the pages are writable now.
        unsafe { ((args.entry + i as u64) as *mut u8).write_volatile(*byte) };
    }
    sys::own(sys::MPROTECT, [first, len, args.prot, 0, 0, 0])
}
