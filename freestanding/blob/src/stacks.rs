//! Stacks of the blob's own, for programs that have goroutines.
//!
//! A goroutine has 800 bytes left when it makes a call, less what Go's own functions around the call need: 620 in most, 460
//! in the child of a fork. Below lies another goroutine's stack, and nothing tells when that is overwritten. So in images
//! that Go's linker made, calls from where little is left are served on stacks of the blob's: what stays on the program's is
//! a red zone, a record and some two hundred bytes. How much is left, Go's own thread-local pointer to the goroutine says.
//! Where there is room, calls are served in place: a dump of all goroutines reads a stack from its thread's stack pointer.
//! So they are on an alternate stack: the kernel would take one that the stack pointer has left for one that is not in use.
//!
//! No handler of the program's runs on these: Go's runtime insists on alternate stacks for all of them.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{STACK_LEN, STACKS, STACKS_ADDR};
use diecast_core_syscalls::nr;

use crate::entry::{self, Record};
use crate::sys::{self, Ret};
use crate::{process, user};

const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_PHDR: u32 = 6;
const PHDR_LEN: u64 = 56;
/// Bytes of a stack that are enough for every call: its deepest way is 1.6 KiB.
const ENOUGH: u64 = 3072;
/// No image of Go's has as many program headers or words of an auxiliary vector.
const MANY: u64 = 64;

/// A word of the new image's, which has been asked for.
///
/// # Safety
/// [`user::is_readable`] said so.
unsafe fn word(addr: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { (addr as *const u64).read_unaligned() }
}

/// In a new image: whether it has goroutines. `auxv_slot` is the address of AT_SYSINFO_EHDR's value, the first of the
/// auxiliary vector.
pub fn note(auxv_slot: u64) {
    const READ_WRITE: u64 = 3;
    const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
    const PRIVATE_ANON_NORESERVE: u64 = 0x4022;
    if auxv_slot == 0 || !has_goroutines(auxv_slot) {
        return;
    }
    let flags = PRIVATE_ANON_NORESERVE | MAP_FIXED_NOREPLACE;
    let r = sys::own(sys::MMAP, [STACKS_ADDR, STACK_LEN * STACKS as u64, READ_WRITE, flags, u64::MAX, 0]);
    sys::seal(STACKS_ADDR, STACK_LEN * STACKS as u64);
    let inherited = &process().inherited;
    inherited.apart.store((r >= 0) as u32, Relaxed);
    // Go's calls are made from a few places for all numbers, which no jump fits in, and what it gains of the others is not
    // worth what its profiler loses: it takes code whose mapping is in parts for other functions.
    inherited.sites_off.store(1, Relaxed);
}

/// Whether the image has the note that Go's linker writes.
fn has_goroutines(auxv_slot: u64) -> bool {
    let (mut at, mut entry_len, mut count) = (0, 0, 0);
    for i in 0..MANY {
        // SAFETY: the vector that the kernel wrote ends with AT_NULL.
        let (kind, value) = unsafe { (word(auxv_slot + 8 + 16 * i), word(auxv_slot + 16 + 16 * i)) };
        match kind {
            AT_NULL => break,
            AT_PHDR => at = value,
            AT_PHENT => entry_len = value,
            AT_PHNUM => count = value,
            _ => {}
        }
    }
    if entry_len != PHDR_LEN || count > MANY || !user::is_readable(at, count * PHDR_LEN) {
        return false;
    }
    // SAFETY: it was asked for just now.
    let field = |i: u64, word_at: u64| unsafe { word(at + PHDR_LEN * i + 8 * word_at) };
    let find = |kind: u32| (0..count).find(|i| field(*i, 0) as u32 == kind);
    // Without its own entry nothing says how far the image was moved.
    let Some(moved) = find(PT_PHDR).map(|i| at.wrapping_sub(field(i, 2))) else { return false };
    (0..count).filter(|i| field(*i, 0) as u32 == PT_NOTE).any(|i| {
        let (from, len) = (field(i, 2), field(i, 5));
        let in_load = (0..count).any(|l| {
            let (start, size) = (field(l, 2), field(l, 4));
            field(l, 0) as u32 == PT_LOAD && from >= start && from.saturating_add(len) <= start.saturating_add(size)
        });
        in_load && is_gos(moved.wrapping_add(from), len)
    })
}

/// Whether one of some notes is Go's build id.
fn is_gos(mut at: u64, len: u64) -> bool {
    /// Length of the name and its end, and type 4.
    const NAME: u64 = u32::from_le_bytes(*b"Go\0\0") as u64;
    let end = at.saturating_add(len);
    for _ in 0..8 {
        if at.saturating_add(16) > end || !user::is_readable(at, 16) {
            return false;
        }
        // SAFETY: it was asked for just now.
        let (lengths, kind_and_name) = unsafe { (word(at), word(at + 8)) };
        if lengths as u32 == 4 && kind_and_name == NAME << 32 | 4 {
            return true;
        }
        let padded = |n: u64| (n + 3) & !3;
        at = at.saturating_add(12 + padded(lengths & 0xffff_ffff) + padded(lengths >> 32));
    }
    false
}

struct Job<'a> {
    record: &'a mut Record,
    serve: extern "C" fn(&mut Record) -> Ret,
    result: Ret,
}

extern "C" fn run(job: &mut Job<'_>) {
    job.result = (job.serve)(job.record);
}

/// Serves a call where there is room for it.
#[inline(always)]
pub fn call(r: &mut Record, serve: extern "C" fn(&mut Record) -> Ret) -> Ret {
    if process().inherited.apart.load(Relaxed) == 0 { serve(r) } else { call_apart(r, serve) }
}

#[inline(never)]
fn call_apart(record: &mut Record, serve: extern "C" fn(&mut Record) -> Ret) -> Ret {
    let stays = match left(record.rsp) {
        Some(left) => left >= ENOUGH,
        None => is_on_alternate(),
    };
    let free = if stays { None } else { take(record.rsp) };
    let Some(stack) = free else { return serve(record) };
    let mut job = Job { record, serve, result: 0 };
    entry::apart(run, &mut job, STACKS_ADDR + STACK_LEN * (stack as u64 + 1));
    give_back(stack);
    job.result
}

/// How much of its stack a goroutine has left, or one of the runtime's own threads; None where this is neither, or Go's
/// pointer lies elsewhere (C code of the program's may have thread-local variables below it).
#[inline(never)]
fn left(rsp: u64) -> Option<u64> {
    const ARCH_GET_FS: u64 = 0x1003;
    let mut thread = 0u64;
    sys::own(sys::ARCH_PRCTL, [ARCH_GET_FS, &raw mut thread as u64, 0, 0, 0, 0]);
    let goroutine = user::get::<u64>(thread.checked_sub(8)?).ok()?;
    let [low, high] = user::get::<[u64; 2]>(goroutine).ok()?;
    (low <= rsp && rsp < high).then(|| rsp - low)
}

/// Whether this thread is on its alternate stack.
#[inline(never)]
fn is_on_alternate() -> bool {
    const SS_ONSTACK: u64 = 1;
    let mut stack = [0u64; 3];
    sys::own(nr::SIGALTSTACK, [0, &raw mut stack as u64, 0, 0, 0, 0]);
    stack[1] & SS_ONSTACK != 0
}

/// A stack that nobody uses. A thread that ends in a call keeps its own for ever, and when all are gone calls are served
/// where they are made.
#[inline(never)]
fn take(near: u64) -> Option<usize> {
    let used = &process().own.stacks;
    for i in 0..used.len() {
        let at = ((near >> 11) as usize).wrapping_add(i) % STACKS.div_ceil(64);
        let Some(word) = used.get(at) else { continue };
        loop {
            let bit = (!word.load(Relaxed)).trailing_zeros() as usize;
            if bit == 64 {
                break;
            }
            if word.fetch_or(1 << bit, core::sync::atomic::Ordering::Acquire) & 1 << bit == 0 {
                return Some(64 * at + bit);
            }
        }
    }
    None
}

#[inline(never)]
fn give_back(stack: usize) {
    if let Some(word) = process().own.stacks.get(stack / 64) {
        word.fetch_and(!(1 << (stack % 64)), core::sync::atomic::Ordering::Release);
    }
}
