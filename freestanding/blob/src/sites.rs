//! Places in a program that call the kernel often go to the blob by a jump, without a signal.
//!
//! Nearly all calls are made by `mov $number, %eax; syscall`. Once a place was trapped [`NodePage::site_calls`] times, its
//! first instruction, five bytes, becomes a jump to a *stub* near it, which says where it came from and goes on to
//! `dc_site` (entry.rs). The `syscall` stays: whatever the filter would let through, and everything once the program
//! has filters of its own, is called from there, and so does the kernel make calls again that a signal interrupted.
//!
//! Other threads may run the instructions while they change. They change as Linux changes its own: a breakpoint first, then
//! the operand, then the first byte, each in pages that were made writable and read-only again before the next, which has
//! every core see it. Who meets the breakpoint tries again (`met_breakpoint`).
//!
//! [`NodePage::site_calls`]: diecast_core_abi::NodePage::site_calls

use core::mem::offset_of;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use diecast_core_syscalls::nr::{IOCTL, OPENAT};
use diecast_core_syscalls::{BY_JUMP, comes_by_jump};

use crate::entry::{self, Record, UContext, reg};
use crate::{carried, node, process, signals, sys, user};

/// States of a place in `InheritedPage::sites`; below them it is the number of its calls.
const CALLS_MAX: u64 = 0xfff0;
/// Left as it is.
const NEVER: u64 = 0xfffd;
const CHANGING: u64 = 0xfffe;
const JUMPS: u64 = 0xffff;
/// How far from its hash a place may sit.
const PROBES: u64 = 8;

/// `mov imm32, %eax`, and the bytes of `syscall`.
const MOV_EAX: u8 = 0xb8;
const SYSCALL: u16 = 0x050f;
const BREAKPOINT: u8 = 0xcc;
const JUMP: u8 = 0xe9;
/// Length of `mov` and of the jump in its place, and of both instructions.
const MOV_LEN: u64 = 5;
const SITE_LEN: u64 = 7;

const PAGE: u64 = 4096;
const STUB_LEN: u64 = 32;
const STUBS_A_PAGE: u64 = PAGE / STUB_LEN;
/// A jump's operand has 31 bits for each direction; a page is taken that leaves some room.
const REACH: u64 = 0x7ff0_0000;

const PROT_READ_EXEC: u64 = 5;
const PROT_ALL: u64 = 7;

/// A trapped call: counts its place, and changes it once it is one that calls often.
#[inline(always)]
pub fn seen(r: &Record) {
    let after = node().site_calls.load(Relaxed) as u64;
    let state = &process().inherited;
    if after != 0 && state.sites_off.load(Relaxed) == 0 && !carried::filtered() {
        count(r, after);
    }
}

#[inline(never)]
fn count(r: &Record, after: u64) {
    let Some(place) = place_of(r.resume) else { return };
    let before = place.load(Relaxed);
    let is_known = before >> 16 == r.resume;
    if is_known && before & 0xffff >= CALLS_MAX {
        return;
    }
    if is_known && (before & 0xffff) + 1 < after {
        // Where another thread was faster a call is not counted.
        let _ = place.compare_exchange(before, before + 1, Relaxed, Relaxed);
        return;
    }
    let changing = &process().own.changing;
    if changing.swap(1, AcqRel) != 0 {
        return;
    }
    // A handler of the program's that does not return would leave it half done.
    let mask = signals::set_kernel_mask(!signals::ours());
    note(r, after);
    signals::set_kernel_mask(mask);
    changing.store(0, Release);
}

/// As long as nobody else is at it: a place gets its cell, once, or is changed.
#[inline(never)]
fn note(r: &Record, after: u64) {
    finish_left();
    let Some(place) = place_of(r.resume) else { return };
    let before = place.load(Relaxed);
    if before >> 16 != r.resume {
        place.store(r.resume << 16 | 1, Release);
        if after > 1 {
            return;
        }
    } else if before & 0xffff >= CALLS_MAX {
        return;
    }
    if !change(place, r) {
        place.store(r.resume << 16 | NEVER, Release);
    }
}

/// Where a place is kept or may be: its own cell, or a free one, or one of another that was seen less.
fn place_of(resume: u64) -> Option<&'static AtomicU64> {
    let sites = &process().inherited.sites;
    let first = resume.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let mut best: Option<&AtomicU64> = None;
    for i in 0..PROBES {
        let cell = sites.get(((first + i) % sites.len() as u64) as usize)?;
        let word = cell.load(Relaxed);
        if word >> 16 == resume {
            return Some(cell);
        }
        let calls = |cell: &AtomicU64| cell.load(Relaxed) & 0xffff;
        if word & 0xffff < CALLS_MAX && best.is_none_or(|b| calls(b) > word & 0xffff) {
            best = Some(cell);
        }
    }
    best
}

/// What has become of a place.
fn state_of(resume: u64) -> u64 {
    match place_of(resume).map(|cell| cell.load(Acquire)) {
        Some(word) if word >> 16 == resume => word & 0xffff,
        _ => 0,
    }
}

/// Replaces the instruction before a call. False where that can't be done.
#[inline(never)]
fn change(place: &AtomicU64, r: &Record) -> bool {
    let site = r.resume.wrapping_sub(SITE_LEN);
    if !is_call(r) || !is_own_code(site) {
        return false;
    }
    let Some(stub) = new_stub(site, r) else { return false };
    let state = &process().inherited;
    state.site_operand.store(stub.wrapping_sub(site + MOV_LEN) as u32, Relaxed);
    state.site_changing.store(r.resume << 16 | CHANGING, Release);
    place.store(r.resume << 16 | CHANGING, Release);
    // The first write decides: what can't be made writable stays.
    let done = write(site, 1, BREAKPOINT as u64);
    if done {
        finish(site);
    } else {
        state.site_changing.store(0, Release);
    }
    done
}

/// The steps to the end. What fails now is left as it is, for the next one who meets the breakpoint.
fn finish(site: u64) {
    let state = &process().inherited;
    let done = write(site, 1, BREAKPOINT as u64)
        && write(site + 1, 4, state.site_operand.load(Relaxed) as u64)
        && write(site, 1, JUMP as u64);
    if done {
        if let Some(place) = place_of(site + SITE_LEN) {
            place.store((site + SITE_LEN) << 16 | JUMPS, Release);
        }
        state.site_changing.store(0, Release);
    }
}

/// Ends what a parent was at when it forked.
fn finish_left() {
    let left = process().inherited.site_changing.load(Acquire);
    if left != 0 {
        finish((left >> 16) - SITE_LEN);
    }
}

/// SIGTRAP of an instruction: true where a place was being changed when this thread came to it. It tries again.
pub fn met_breakpoint(u: &mut UContext) -> bool {
    let site = u.regs[reg::RIP].wrapping_sub(1);
    let resume = site.wrapping_add(SITE_LEN);
    let is_ours = match state_of(resume) {
        CHANGING => {
            // In a child whose parent was at it when it forked, nobody else is.
            let changing = &process().own.changing;
            if changing.swap(1, AcqRel) == 0 {
                finish_left();
                changing.store(0, Release);
            }
            true
        }
        // One that is there now is the program's or its tracer's.
        JUMPS => user::get::<u64>(site).is_ok_and(|word| word as u8 == JUMP),
        _ => false,
    };
    if is_ours {
        u.regs[reg::RIP] = site;
    }
    is_ours
}

/// Whether the instruction before the call is the one that put its number into eax, as far as its bytes tell: they must
/// be no operand of a longer instruction.
fn is_call(r: &Record) -> bool {
    let (Ok(before), Ok(last)) =
        (user::get::<u64>(r.resume.wrapping_sub(16)), user::get::<u64>(r.resume.wrapping_sub(8)))
    else {
        return false;
    };
    let prefix = last as u8;
    // REX.B makes it a mov to r8d; these opcodes have a 32-bit operand, after up to three bytes of address.
    let is_longer = prefix & 0xf1 == 0x41
        || [prefix, (before >> 56) as u8, (before >> 48) as u8].iter().any(|b| matches!(b, 0x69 | 0x81 | 0xc7));
    (last >> 8) as u8 == MOV_EAX
        && (last >> 16) as u32 as u64 == r.nr
        && (last >> 48) as u16 == SYSCALL
        && BY_JUMP.contains(&(r.nr as u32))
        && !is_longer
}

/// `struct procmap_query`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MapQuery {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_and_id_size: [u32; 2],
    name_addr: u64,
    id_addr: u64,
}

const _: () = assert!(size_of::<MapQuery>() == 104 && offset_of!(MapQuery, inode) == 64);

/// Does the place lie in a private mapping of a file that is read and executed, and not written? Linux 6.11 and later
/// tell; elsewhere nothing is changed.
#[inline(never)]
fn is_own_code(site: u64) -> bool {
    const PROCMAP_QUERY: u64 = 0xc068_6611;
    const READABLE: u64 = 1;
    const EXECUTABLE: u64 = 4;
    const O_CLOEXEC: u64 = 0o2000000;
    const ENOTTY: sys::Ret = -25;
    let path = *b"/proc/thread-self/maps\0\0";
    let file = sys::own(OPENAT, [-100i64 as u64, &raw const path as u64, O_CLOEXEC, 0, 0, 0]);
    if file < 0 {
        return false;
    }
    let mut query = MapQuery {
        size: size_of::<MapQuery>() as u64,
        flags: 0,
        addr: site,
        start: 0,
        end: 0,
        vma_flags: 0,
        page_size: 0,
        offset: 0,
        inode: 0,
        device: [0; 2],
        name_and_id_size: [0; 2],
        name_addr: 0,
        id_addr: 0,
    };
    let r = sys::own(IOCTL, [file as u64, PROCMAP_QUERY, &raw mut query as u64, 0, 0, 0]);
    sys::own(sys::CLOSE, [file as u64, 0, 0, 0, 0, 0]);
    if r == ENOTTY {
        process().inherited.sites_off.store(1, Relaxed);
    }
    r == 0
        && query.vma_flags == READABLE | EXECUTABLE
        && query.inode != 0
        && query.start <= site
        && site + SITE_LEN <= query.end
}

/// Writes a stub for a place, near enough, and gives its address.
#[inline(never)]
fn new_stub(site: u64, r: &Record) -> Option<u64> {
    let mut page = None;
    for cell in &process().inherited.stubs {
        let word = cell.load(Relaxed);
        let near = word & !(PAGE - 1);
        if word == 0 {
            cell.store(map_near(site)?, Relaxed);
            page = Some(cell);
            break;
        } else if is_near(near, site) && word & (PAGE - 1) < STUBS_A_PAGE {
            page = Some(cell);
            break;
        }
    }
    let cell = page?;
    let word = cell.fetch_add(1, Relaxed);
    let stub = (word & !(PAGE - 1)) + (word & (PAGE - 1)) * STUB_LEN;
    let back = r.resume.wrapping_sub(stub + 12) as u32 as u64;
    let entry = entry::site_entry();
    // mov $number, %eax; lea resume(%rip), %rcx; movabs $dc_site, %r11; jmp *%r11; int3...
    let words = [
        MOV_EAX as u64 | (r.nr & 0xffff_ffff) << 8 | 0x0d_8d48 << 40,
        back | 0xbb49 << 32 | entry << 48,
        entry >> 16 | 0xff41 << 48,
        0xcccc_cccc_cccc_cce3,
    ];
    if sys::own(sys::MPROTECT, [word & !(PAGE - 1), PAGE, PROT_ALL, 0, 0, 0]) < 0 {
        return None;
    }
    for (i, word) in words.iter().enumerate() {
        // SAFETY: in a page of ours that was just made writable, behind all stubs in use.
        unsafe { ((stub + 8 * i as u64) as *mut u64).write_volatile(*word) };
    }
    sys::own(sys::MPROTECT, [word & !(PAGE - 1), PAGE, PROT_READ_EXEC, 0, 0, 0]);
    Some(stub)
}

fn is_near(page: u64, site: u64) -> bool {
    page.abs_diff(site) < REACH
}

/// A page within the reach of a jump: where the kernel would put one, or as far above the code as can be, since a heap may
/// grow there. Below only when all else is taken: profilers take what lies first for the program's own code.
fn map_near(site: u64) -> Option<u64> {
    const PRIVATE_ANON: u64 = 0x22;
    const FIXED_NOREPLACE: u64 = 0x10_0000;
    let map = |at: u64, flags: u64| {
        let r = sys::own(sys::MMAP, [at, PAGE, PROT_READ_EXEC, PRIVATE_ANON | flags, u64::MAX, 0]);
        if r > 0 { Some(r as u64) } else { None }
    };
    let first = map(0, 0)?;
    if is_near(first, site) {
        return Some(first);
    }
    sys::own(sys::MUNMAP, [first, PAGE, 0, 0, 0, 0]);
    let above = [REACH - PAGE].into_iter().chain((20..31).rev().map(|shift| 1 << shift)).map(|d| site.wrapping_add(d));
    let below = (20..31).map(|shift| site.saturating_sub(1 << shift));
    for at in above.chain(below) {
        let at = at & !(PAGE - 1);
        if at >= 16 * PAGE
            && is_near(at, site)
            && let Some(page) = map(at, FIXED_NOREPLACE)
        {
            return Some(page);
        }
    }
    None
}

/// Writes 1 or 4 bytes of the program's code.
#[inline(never)]
fn write(at: u64, len: u64, value: u64) -> bool {
    let first = at & !(PAGE - 1);
    let pages = (at + len - first).next_multiple_of(PAGE);
    if sys::own(sys::MPROTECT, [first, pages, PROT_ALL, 0, 0, 0]) < 0 {
        // Of two pages the first may be writable now.
        sys::own(sys::MPROTECT, [first, pages, PROT_READ_EXEC, 0, 0, 0]);
        return false;
    }
    if len == 1 {
        // SAFETY: code of a mapping that was found to be private, made writable.
        unsafe { (at as *mut u8).write_volatile(value as u8) };
    } else {
        // SAFETY: as above.
        unsafe { (at as *mut u32).write_unaligned(value as u32) };
    }
    sys::own(sys::MPROTECT, [first, pages, PROT_READ_EXEC, 0, 0, 0]);
    true
}

/// A call that came by a jump: not zero where it is made as it is, by the place's own `syscall`.
pub extern "C" fn passes(r: &Record) -> u64 {
    (carried::filtered() || comes_by_jump(r.nr as u32, &r.args()) != Some(true)) as u64
}
