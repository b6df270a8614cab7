//! Alternate signal stacks that are too small for a frame of ours beside one of the program's.
//!
//! A thread whose stack is small gets one of ours in the kernel, with the program's own in its header: that is what
//! the program sees. The kernel then builds every frame of a handler with SA_ONSTACK on our stack. SIGSYS and SIGTRAP
//! are served there; a handler of the program is entered through `dc_onstack`, which moves the frame to the program's
//! stack, where the kernel would have put it, and leaves ours empty.
//!
//! Where something still lives on our stack below the frame (a handler that met another handler's first
//! instruction), the handler runs in place: the next frame must not overwrite what is there.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{ALT_ADDR, ALT_LEN, ALT_SLOTS};
use diecast_core_syscalls::nr;

use crate::entry::{self, Record, SigInfo, UContext, reg};
use crate::sys::{self, EFAULT, EPERM, Ret};
use crate::{node, process, signals, user};

/// Frames with AVX-512 state are 3.5 KiB: two of them, and room for handlers.
const SMALL_BELOW: u64 = 11 * 1024;
const SS_ONSTACK: u64 = 1;
const SS_DISABLE: u64 = 2;
const SS_AUTODISARM: u64 = 1 << 31;
const SA_ONSTACK: u64 = 0x0800_0000;
/// Bytes kept for the header at the low end of a stack of ours.
const HEADER: u64 = 64;

/// `stack_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Stack {
    sp: u64,
    flags: u64,
    size: u64,
}
// SAFETY: plain integers.
unsafe impl user::Plain for Stack {}

impl Stack {
    fn is_small(&self) -> bool {
        // Linux may take an empty stack, and has none then.
        self.flags & 0xffff_ffff & !SS_AUTODISARM != SS_DISABLE && (1..SMALL_BELOW).contains(&self.size)
    }

    /// The kernel's own test: is this stack pointer on the stack?
    fn holds(&self, sp: u64) -> bool {
        sp > self.sp && sp - self.sp <= self.size
    }
}

/// Index of our stack that an address lies on.
fn index_of(addr: u64) -> Option<u64> {
    let at = addr.wrapping_sub(ALT_ADDR) / ALT_LEN;
    if at < ALT_SLOTS as u64 { Some(at) } else { None }
}

fn base(index: u64) -> u64 {
    ALT_ADDR + index * ALT_LEN
}

/// The program's stack in place of which the thread uses ours.
fn header(index: u64) -> &'static mut Stack {
    // SAFETY: `index` is that of a stack of ours that is mapped; only its thread uses the header.
    unsafe { &mut *(base(index) as *mut Stack) }
}

fn me() -> u64 {
    (sys::own(sys::GETPID, [0; 6]) as u64) << 32 | sys::gettid() as u64
}

/// The kernel's view: set, or ask.
fn kernel(new: u64, old: u64) -> Ret {
    sys::own(nr::SIGALTSTACK, [new, old, 0, 0, 0, 0])
}

#[inline(never)]
pub fn sigaltstack(r: &Record) -> Ret {
    let (new_at, old_at) = (r.rdi, r.rsi);
    let mut now = Stack { sp: 0, flags: 0, size: 0 };
    // The one that a filter of the program's judges.
    let e = sys::plain(nr::SIGALTSTACK, [0, &raw mut now as u64, 0, 0, 0, 0]);
    if e < 0 {
        return e;
    }
    let ours = if now.flags & SS_DISABLE == 0 { index_of(now.sp) } else { None };
    if let Some(i) = ours {
        let auto = now.flags & SS_AUTODISARM;
        now = *header(i);
        if now.flags != SS_DISABLE {
            now.flags = if auto == 0 && now.holds(r.rsp) { SS_ONSTACK } else { auto };
        }
    }
    if new_at != 0 {
        let Ok(new) = user::get::<Stack>(new_at) else { return EFAULT };
        if now.flags & SS_ONSTACK != 0 {
            return EPERM;
        }
        let e = replace(new, ours);
        if e < 0 {
            return e;
        }
    }
    if old_at != 0 { user::put(old_at, now).err().unwrap_or(0) } else { 0 }
}

/// Sets a thread's stack, with every signal blocked: between the kernel's look at the program's stack and ours no
/// frame must be built.
#[inline(never)]
fn replace(new: Stack, ours: Option<u64>) -> Ret {
    let before = signals::set_kernel_mask(!0);
    let r = kernel(&raw const new as u64, 0);
    if r == 0 {
        let owner = me();
        let own = ours.filter(|i| owner_of(*i).is_some_and(|o| o.load(Relaxed) == owner));
        if !new.is_small() {
            if let Some(o) = own.and_then(owner_of) {
                o.store(0, Relaxed);
            }
        } else if let Some(i) = own.or_else(|| take(owner)) {
            *header(i) = new;
            let big = Stack { sp: base(i) + HEADER, flags: new.flags & SS_AUTODISARM, size: ALT_LEN - HEADER };
            kernel(&raw const big as u64, 0);
            signals::enter_through_us();
        }
    }
    signals::set_kernel_mask(before);
    r
}

fn owner_of(index: u64) -> Option<&'static core::sync::atomic::AtomicU64> {
    process().inherited.alt_owner.get(index as usize)
}

/// A free stack of ours, or that of a thread of this process that is gone. Those that a parent's threads had stay
/// theirs: one of them may be this process's first thread.
#[inline(never)]
fn take(owner: u64) -> Option<u64> {
    const PROBES: u64 = 64;
    const ESRCH: Ret = -3;
    for n in 0..PROBES {
        let i = (owner & 0xffff_ffff).wrapping_add(n) % ALT_SLOTS as u64;
        let cell = owner_of(i)?;
        let held = cell.load(Relaxed);
        let gone = held != 0
            && held >> 32 == owner >> 32
            && sys::own(nr::TGKILL, [held >> 32, held & 0xffff_ffff, 0, 0, 0, 0]) == ESRCH;
        if (held == 0 || gone) && cell.compare_exchange(held, owner, Relaxed, Relaxed).is_ok() {
            if is_mapped(i) {
                return Some(i);
            }
            cell.store(0, Relaxed);
            return None;
        }
    }
    None
}

/// A stack of ours for a moment: its end, and the word that gives it back once it is zero.
pub fn lend() -> Option<(u64, u64)> {
    let i = take(me())?;
    Some((base(i) + ALT_LEN, owner_of(i)? as *const _ as u64))
}

/// Maps a stack of ours unless it was before.
fn is_mapped(index: u64) -> bool {
    const EEXIST: Ret = -17;
    const PRIVATE_ANON_FIXED_NOREPLACE_NORESERVE: u64 = 0x10_4022;
    let r = sys::own(sys::MMAP, [base(index), ALT_LEN, 3, PRIVATE_ANON_FIXED_NOREPLACE_NORESERVE, u64::MAX, 0]);
    if r >= 0 {
        sys::seal(base(index), ALT_LEN);
    }
    r == base(index) as Ret || r == EEXIST
}

/// Should this disposition of a signal be entered through `dc_onstack`?
pub fn enters_through_us(signo: u64, action: &[u64; 4]) -> bool {
    let moved = action[1] & SA_ONSTACK != 0 && process().inherited.alt_used.load(Relaxed) != 0;
    action[0] > 1 && (moved || signals::is_internal(signo) || node().metered.load(Relaxed) != 0)
}

/// Where a handler of the program goes on.
#[repr(C)]
pub struct Entry {
    pub rsp: u64,
    pub info: u64,
    pub uc: u64,
    pub handler: u64,
    pub mask: u64,
    pub signo: u64,
}

/// No stack of the program's: one of ours is there for frames of ours.
static NONE: Stack = Stack { sp: 0, flags: SS_DISABLE, size: 0 };

/// A thread that blocks every signal, those of its C library too, may be about to go on without a stack, or on a very small
/// one: musl's detached threads unmap theirs before they end, and its posix_spawn has 5 KiB for its child. A hit comes all
/// the same, so its frame goes to a stack of ours meanwhile. vfork's child keeps that until its exec.
#[inline(never)]
pub fn take_shelter() {
    let mut now = Stack { ..NONE };
    if node().metered.load(Relaxed) == 0 || kernel(0, &raw mut now as u64) < 0 || now.flags & SS_DISABLE == 0 {
        return;
    }
    let owner = me();
    if let Some(i) = take(owner) {
        *header(i) = NONE;
        let ours = Stack { sp: base(i) + HEADER, flags: 0, size: ALT_LEN - HEADER };
        if kernel(&raw const ours as u64, 0) < 0
            && let Some(o) = owner_of(i)
        {
            o.store(0, Relaxed);
        }
    }
}

/// Before a thread unblocks signals again.
#[inline(never)]
pub fn leave_shelter() {
    let mut now = Stack { ..NONE };
    if node().metered.load(Relaxed) == 0 || kernel(0, &raw mut now as u64) < 0 {
        return;
    }
    let ours = if now.flags & SS_DISABLE == 0 { index_of(now.sp) } else { None };
    if let Some(i) = ours.filter(|i| header(*i).flags == SS_DISABLE)
        && kernel(&raw const NONE as u64, 0) == 0
        && let Some(o) = owner_of(i)
        // vfork's child leaves it to its parent, whose it is.
        && (o.load(Relaxed) == me() || !signals::is_guest())
    {
        o.store(0, Relaxed);
    }
}

/// Moves the frame of a handler from our stack to the program's. Every signal is blocked from here until
/// `dc_onstack` set `mask` again.
pub extern "C" fn relocate(signo: u64, info: *mut SigInfo, uc: *mut UContext, frame: u64, out: &mut Entry) {
    *out = Entry {
        rsp: frame,
        info: info as u64,
        uc: uc as u64,
        handler: signals::handler_of(signo),
        mask: signals::set_kernel_mask(!0),
        signo,
    };
    // SAFETY: the kernel passes a valid frame that belongs to this handler alone.
    let u = unsafe { &mut *uc };
    let (Some(i), sp) = (index_of(frame), u.regs[reg::RSP]) else { return };
    let Some(end) = end_of_frame(u, frame) else { return };
    if index_of(sp) == Some(i) {
        return;
    }
    let stack = *header(i);
    let is_none = stack.flags == SS_DISABLE;
    let top = if is_none || stack.holds(sp) { sp - 128 } else { stack.sp + stack.size };
    // The state's alignment is kept: the frame moves by a multiple of 64.
    let down = end.wrapping_sub(top);
    let to = frame.wrapping_sub(down.wrapping_add(63) & !63);
    if !is_none && to < stack.sp || to > top {
        signals::die(11);
    }
    // SAFETY: the program's alternate stack, which the kernel would write to; it does not overlap ours.
    unsafe { entry::copy(frame, to, end - frame) };
    let moved = |at: u64| at.wrapping_sub(frame).wrapping_add(to);
    (out.rsp, out.info, out.uc) = (to, moved(info as u64), moved(uc as u64));
    // SAFETY: the copy just made.
    unsafe { (*(out.uc as *mut UContext)).fpstate = moved(u.fpstate) };
}

/// The end of the frame's last part, the processor's extended state.
fn end_of_frame(u: &UContext, frame: u64) -> Option<u64> {
    const LEGACY: u64 = 512;
    const MAGIC1: u32 = 0x4650_5853;
    let at = u.fpstate;
    if at <= frame {
        return None;
    }
    // SAFETY: the kernel's own words at a fixed place of the state that it saved in this frame.
    let (magic, size) = unsafe { (*((at + 464) as *const u32), *((at + 468) as *const u32)) };
    let end = at + if magic == MAGIC1 { size as u64 } else { LEGACY };
    if end - frame < ALT_LEN { Some(end) } else { None }
}
