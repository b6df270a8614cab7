//! SIGSYS and SIGTRAP, and SIGSEGV where rdtsc is trapped, stay deliverable whatever the program does, and it sees its
//! own view.

use core::sync::atomic::Ordering;

use diecast_core_abi::{KICK_MAGIC, RELEASE_MAGIC, VirtualAction};
use diecast_core_syscalls::nr;

use crate::carried::{
    self, BLOCKS_SIGSEGV, BLOCKS_SIGSYS, BLOCKS_SIGTRAP, IGNORES_SIGSEGV, IGNORES_SIGSYS, IGNORES_SIGTRAP,
};
use crate::entry::{self, CloneRecord, Resume, SigInfo, UContext};
use crate::sys::{self, Ret, as_is};
use crate::user;
use crate::{altstack, interrupt, process, sentraps, signalfd, timespaces, tsc, waits};

const SIGSYS: u64 = 31;
pub const SIGTRAP: u64 = 5;
const SIGSEGV: u64 = 11;
pub const SIGSYS_BIT: u64 = 1 << (SIGSYS - 1);
pub const SIGTRAP_BIT: u64 = 1 << (SIGTRAP - 1);
pub const SIGSEGV_BIT: u64 = 1 << (SIGSEGV - 1);
/// A thread may send it to itself; what it says arrives however many signals wait, unlike SI_QUEUE's.
const SI_USER: i32 = 0;
/// SIGKILL and SIGSTOP.
pub const NEVER_MASKED: u64 = 1 << 8 | 1 << 18;
/// The signals by which C libraries act on their own threads: glibc's cancellation and setxid, musl's timers, cancellation
/// and calls in all threads.
pub const INTERNAL: u32 = 32;
pub const INTERNALS: u32 = 3;

pub fn is_internal(signo: u64) -> bool {
    (signo as u32).wrapping_sub(INTERNAL) < INTERNALS
}

/// The flags of a disposition that Linux knows; it drops others, by which programs find out.
const SA_KNOWN: u64 = 0xdc00_0807;

/// The signals that must stay deliverable.
pub fn ours() -> u64 {
    SIGSYS_BIT | SIGTRAP_BIT | if tsc::is_trapped() { SIGSEGV_BIT } else { 0 }
}

/// A mask without them.
pub fn strip(mask: u64) -> u64 {
    mask & !ours()
}

const BLOCKS: u32 = BLOCKS_SIGTRAP | BLOCKS_SIGSYS | BLOCKS_SIGSEGV;

/// Those of ours in a mask, packed: as the bits BLOCKS_*.
pub fn pack(mask: u64) -> u32 {
    let mask = mask & ours();
    ((mask & SIGTRAP_BIT != 0) as u32)
        | (((mask & SIGSYS_BIT != 0) as u32) << 1)
        | (((mask & SIGSEGV_BIT != 0) as u32) << 2)
}

pub fn unpack(bits: u32) -> u64 {
    (if bits & BLOCKS_SIGTRAP != 0 { SIGTRAP_BIT } else { 0 })
        | (if bits & BLOCKS_SIGSYS != 0 { SIGSYS_BIT } else { 0 })
        | (if bits & BLOCKS_SIGSEGV != 0 { SIGSEGV_BIT } else { 0 })
}

#[inline(never)]
#[expect(unused_assignments, reason = "the kernel reads the copy through its address")]
pub fn rt_sigprocmask(mut a: [u64; 6]) -> Ret {
    if a[3] != 8 {
        return as_is(nr::RT_SIGPROCMASK, a);
    }
    let bits = carried::load();
    let before = bits & BLOCKS;
    let mut copy = 0u64;
    let mut after = before;
    let mut all = false;
    if a[1] != 0 {
        let Ok(set) = user::get::<u64>(a[1]) else { return as_is(nr::RT_SIGPROCMASK, a) };
        after = match a[0] as u32 {
            0 => before | pack(set),
            1 => before & !pack(set),
            2 => pack(set),
            _ => return as_is(nr::RT_SIGPROCMASK, a),
        };
        all = set | NEVER_MASKED == !0 && a[0] as u32 != 1;
        if !all && a[0] as u32 != 0 {
            altstack::leave_shelter();
        }
        copy = strip(set);
        a[1] = &raw const copy as u64;
    }
    let mut old = 0u64;
    let out = a[2];
    if out != 0 {
        a[2] = &raw mut old as u64;
    }
    let r = as_is(nr::RT_SIGPROCMASK, a);
    if r < 0 {
        return r;
    }
    if all {
        altstack::take_shelter();
    }
    if after != before {
        carried::store(bits & !BLOCKS | after);
        release(before & !after);
    }
    if out != 0
        && let Err(e) = user::put(out, old | unpack(before))
    {
        e
    } else {
        r
    }
}

/// Sets the kernel's mask of this thread and gives the one before.
pub fn set_kernel_mask(mask: u64) -> u64 {
    set_kernel_mask_of(mask, 0)
}

/// The same, with a word beside that the call does not look at: what a signal interrupts is told by it.
pub fn set_kernel_mask_of(mask: u64, word: u64) -> u64 {
    let mut before = 0u64;
    sys::own(nr::RT_SIGPROCMASK, [2, &raw const mask as u64, &raw mut before as u64, 8, word, 0]);
    before
}

/// Keeps a signal that the program blocks until a thread unblocks it or asks for it.
fn pend(signo: i32, info: *const SigInfo) {
    let own = &process().own;
    let bit = pack(1 << (signo - 1));
    let _in_signalfds_too = signalfd::Look::begin();
    // The first one stays, as with any standard signal.
    if own.pending.load(Ordering::Acquire) & bit == 0
        && let Some(store) = own.pending_info.get(bit.trailing_zeros() as usize)
    {
        for (i, word) in store.iter().enumerate() {
            // SAFETY: a siginfo_t of the kernel has 128 bytes.
            word.store(unsafe { *(info as *const u64).add(i) }, Ordering::Relaxed);
        }
        own.pending.fetch_or(bit, Ordering::Release);
    }
}

/// Takes a pending signal of `bits`: its number, and its siginfo into `info`.
fn take_pending(bits: u32, info: &mut [u64; 16]) -> Option<u64> {
    let own = &process().own;
    let _in_signalfds_too = signalfd::Look::begin();
    for (bit, signo) in [(BLOCKS_SIGTRAP, SIGTRAP), (BLOCKS_SIGSYS, SIGSYS), (BLOCKS_SIGSEGV, SIGSEGV)] {
        if bits & bit == 0 || own.pending.load(Ordering::Acquire) & bit == 0 {
            continue;
        }
        if let Some(store) = own.pending_info.get(bit.trailing_zeros() as usize) {
            for (to, from) in info.iter_mut().zip(store) {
                *to = from.load(Ordering::Relaxed);
            }
        }
        if own.pending.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
            return Some(signo);
        }
    }
    None
}

/// Has this thread take what waited for these to be unblocked. It is told by a SIGSYS: a SIGTRAP that is sent while a hit
/// of the meter waits for the same thread is lost, since Linux keeps one of each.
#[inline(never)]
fn release(bits: u32) {
    if process().own.pending.load(Ordering::Relaxed) & bits == 0 {
        return;
    }
    let mut info = [0u64; 16];
    (info[0], info[1], info[3]) = (SIGSYS, SI_USER as u64, RELEASE_MAGIC);
    sys::queue_here(&info);
}

/// Whether a SIGSYS says that a signal that waited may come now.
pub fn is_release(info: &SigInfo) -> bool {
    info.code == SI_USER && info.word1 == RELEASE_MAGIC
}

/// The signals that it was about, as far as the thread does not block them again. The others first: their handlers run
/// before that of the lowest, as natively.
pub fn let_in(uc: *mut UContext) {
    let unblocked = BLOCKS & !carried::load();
    let mut info = [0u64; 16];
    if let Some(signo) = take_pending(unblocked, &mut info) {
        release(unblocked);
        chain(signo as i32, info.as_mut_ptr().cast(), uc);
    }
}

/// Which of ours wait for this thread, as bits.
#[inline(never)]
pub fn pending() -> u32 {
    let _in_signalfds_too = signalfd::Look::begin();
    process().own.pending.load(Ordering::Relaxed) & carried::load()
}

#[inline(never)]
pub fn rt_sigpending(a: [u64; 6]) -> Ret {
    let r = as_is(nr::RT_SIGPENDING, a);
    let waiting = pending();
    if r == 0
        && waiting != 0
        && a[1] == 8
        && let Ok(set) = user::get::<u64>(a[0])
    {
        let _ = user::put(a[0], set | unpack(waiting));
    }
    r
}

/// Whether a SIGTRAP says that the frame's rate has changed. Where the user's RLIMIT_SIGPENDING is used up, Linux forgets
/// what a signal of SI_QUEUE says, and shows it as one of nobody's.
pub fn is_kick(info: &SigInfo) -> bool {
    const SI_QUEUE: i32 = -1;
    let says_nothing = info.code == SI_USER && info.word0 == 0;
    info.code == SI_QUEUE && info.word1 == KICK_MAGIC || says_nothing
}

/// The same of what a wait for signals took.
pub fn took_kick(r: Ret, info: u64) -> bool {
    // SAFETY: who waits for SIGTRAP passes a siginfo_t of the blob's.
    r == SIGTRAP as Ret && info != 0 && is_kick(unsafe { &*(info as *const SigInfo) })
}

/// Takes a virtually pending signal of the set, or waits for the others.
#[inline(never)]
pub fn rt_sigtimedwait(a: [u64; 6]) -> Ret {
    let wanted = if a[3] == 8 { user::get::<u64>(a[0]).map_or(0, pack) } else { 0 };
    if wanted == 0 {
        return waits::relative(nr::RT_SIGTIMEDWAIT, a, 2);
    }
    let mut info = [0u64; 16];
    let taken = loop {
        if let Some(signo) = take_pending(wanted, &mut info) {
            break signo as Ret;
        }
        let r = waits::relative(nr::RT_SIGTIMEDWAIT, [a[0], &raw mut info as u64, a[2], a[3], 0, 0], 2);
        // One that came meanwhile went through our handler, which ended the wait.
        if r != sys::EINTR || process().own.pending.load(Ordering::Relaxed) & wanted == 0 {
            break r;
        }
    };
    if taken == SIGTRAP as Ret {
        sentraps::came();
    }
    if taken < 0 || a[1] == 0 { taken } else { user::put_words(a[1], &info).err().unwrap_or(taken) }
}

#[inline(never)]
pub fn rt_sigsuspend(a: [u64; 6]) -> Ret {
    match user::get::<u64>(a[0]) {
        Ok(m) if a[1] == 8 => {
            let copy = strip(m);
            let _mask = TemporaryMask::begin(m);
            loop {
                let seen = interrupt::seen();
                let r = sys::plain(nr::RT_SIGSUSPEND, [&raw const copy as u64, 8, 0, 0, 0, 0]);
                if !interrupt::missed(r, copy, seen) && !interrupt::was_a_hit(r, seen) {
                    return r;
                }
            }
        }
        _ => as_is(nr::RT_SIGSUSPEND, a),
    }
}

/// Which of ours the program blocks while a call with a mask of its own lasts. What it lets through of those that wait is
/// the kernel's to deliver, in the call.
pub struct TemporaryMask {
    before: u32,
    during: u32,
    /// The kernel's mask, where something was sent.
    kernel_mask: Option<u64>,
}

impl TemporaryMask {
    #[inline(never)]
    pub fn begin(mask: u64) -> TemporaryMask {
        let bits = carried::load();
        let (before, during) = (bits & BLOCKS, pack(mask));
        let mut kernel_mask = None;
        if before != during {
            carried::store(bits & !BLOCKS | during);
            let let_through = before & !during;
            if process().own.pending.load(Ordering::Relaxed) & let_through != 0 {
                // Not before the call.
                let (ours, mut old) = (ours(), 0u64);
                sys::own(nr::RT_SIGPROCMASK, [0, &raw const ours as u64, &raw mut old as u64, 8, 0, 0]);
                kernel_mask = Some(old);
                release(let_through);
            }
        }
        TemporaryMask { before, during, kernel_mask }
    }
}

impl Drop for TemporaryMask {
    #[inline(never)]
    fn drop(&mut self) {
        if self.before == self.during {
            return;
        }
        let bits = carried::load();
        carried::store(bits & !BLOCKS | self.before);
        if let Some(old) = self.kernel_mask {
            // What the call did not let out waits with the program's own mask again.
            set_kernel_mask(old);
        }
        release(self.during & !self.before);
    }
}

fn load(v: &VirtualAction) -> [u64; 4] {
    [
        v.handler.load(Ordering::Relaxed),
        v.flags.load(Ordering::Relaxed),
        v.restorer.load(Ordering::Relaxed),
        v.mask.load(Ordering::Relaxed),
    ]
}

fn store(v: &VirtualAction, a: [u64; 4]) {
    v.flags.store(a[1], Ordering::Relaxed);
    v.restorer.store(a[2], Ordering::Relaxed);
    v.mask.store(a[3], Ordering::Relaxed);
    v.handler.store(a[0], Ordering::Release);
}

fn virtual_action(sig: u64) -> Option<&'static VirtualAction> {
    match sig as u32 as u64 {
        SIGSYS => Some(&process().sigsys),
        SIGTRAP => Some(&process().sigtrap),
        SIGSEGV if tsc::is_trapped() => Some(&process().sigsegv),
        _ => None,
    }
}

/// What comes of one of ours in this thread, as the program set it; of one that it blocks nothing does.
#[inline(never)]
pub fn view(sig: u64) -> Option<[u64; 4]> {
    let action = load(virtual_action(sig)?);
    Some(if carried::load() & pack(1 << (sig - 1)) != 0 { [0; 4] } else { action })
}

/// An ignored signal stays so in the next image, which may be that of a child.
fn carry_ignored(signo: u64, handler: u64) {
    let bit = match signo {
        SIGTRAP => IGNORES_SIGTRAP,
        SIGSYS => IGNORES_SIGSYS,
        _ => IGNORES_SIGSEGV,
    };
    let before = carried::load();
    let after = if handler == 1 { before | bit } else { before & !bit };
    if after != before {
        carried::store(after);
    }
}

/// In a new image: what the old one ignored, and whether it had filters or no TSC.
pub fn inherit() {
    let bits = carried::load();
    if bits & IGNORES_SIGTRAP != 0 {
        process().sigtrap.handler.store(1, Ordering::Relaxed);
    }
    if bits & IGNORES_SIGSYS != 0 {
        process().sigsys.handler.store(1, Ordering::Relaxed);
    }
    if bits & IGNORES_SIGSEGV != 0 {
        process().sigsegv.handler.store(1, Ordering::Relaxed);
    }
    if bits & carried::REFUSES_TSC != 0 {
        tsc::refused();
    }
    if bits & carried::FILTERED != 0 {
        process().inherited.filtered.store(1, Ordering::Relaxed);
    }
}

/// The program's handler behind `dc_onstack`.
pub fn handler_of(signo: u64) -> u64 {
    process().inherited.handlers.get(signo as u32 as usize).map_or(0, |h| h.load(Ordering::Acquire))
}

/// Puts `dc_onstack` before a handler. That of a guest is not remembered in its host's memory: the kernel hands it over in
/// place of the restorer.
fn remember_handler(signo: u64, action: &mut [u64; 4]) {
    if is_guest() {
        (action[0], action[2]) = (entry::guests_entry(), action[0]);
    } else if let Some(h) = process().inherited.handlers.get(signo as u32 as usize) {
        h.store(action[0], Ordering::Release);
        action[0] = entry::onstack_entry();
    }
}

/// From now on the program's handlers with SA_ONSTACK are entered through `dc_onstack`: those that are there too.
#[inline(never)]
pub fn enter_through_us() {
    // A guest's run in place: its host's handlers are not its to change.
    let used = &process().inherited.alt_used;
    if used.load(Ordering::Acquire) != 0 || is_guest() || used.swap(1, Ordering::AcqRel) != 0 {
        return;
    }
    for sig in (1..=64u64).filter(|s| virtual_action(*s).is_none()) {
        let mut now = [0u64; 4];
        sys::own(nr::RT_SIGACTION, [sig, 0, &raw mut now as u64, 8, 0, 0]);
        if now[0] != entry::onstack_entry() && altstack::enters_through_us(sig, &now) {
            remember_handler(sig, &mut now);
            sys::own(nr::RT_SIGACTION, [sig, &raw const now as u64, 0, 8, 0, 0]);
        }
    }
}

/// Ends the process by the default action of a signal.
pub fn die(signo: u64) -> ! {
    let dfl = [0u64; 4];
    sys::own(nr::RT_SIGACTION, [signo, &raw const dfl as u64, 0, 8, 0, 0]);
    sys::raise(signo);
    set_kernel_mask(0);
    sys::exit_group(128 + signo)
}

/// Makes the page this process's, where it is nobody's: a fork wipes the field. Whoever calls vfork has made a trapped call
/// before (the C library and Go block signals first), so its child never finds it empty.
#[inline(always)]
pub fn own_page() {
    if process().own.pid.load(Ordering::Relaxed) == 0 {
        let me = sys::own(sys::GETPID, [0; 6]) as u32;
        _ = process().own.pid.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether this process lives in another's memory, but has handlers of its own: a child of vfork before its exec.
pub fn is_guest() -> bool {
    const KCMP_SIGHAND: u64 = 4;
    const ESRCH: Ret = -3;
    let me = sys::own(sys::GETPID, [0; 6]) as u32;
    let owner = process().own.pid.load(Ordering::Relaxed);
    if me == owner {
        return false;
    }
    let r = sys::own(sys::KCMP, [me as u64, owner as u64, KCMP_SIGHAND, 0, 0, 0]);
    if r == ESRCH {
        // Its owner is dead, or was a guest that came first.
        _ = process().own.pid.compare_exchange(owner, me, Ordering::Relaxed, Ordering::Relaxed);
        return false;
    }
    r != 0
}

/// Whether this process's page is its own: not its parent's, whose CPU time is another.
pub fn owns_page() -> bool {
    own_page();
    let me = sys::own(sys::GETPID, [0; 6]) as u32;
    let is_owner = || process().own.pid.load(Ordering::Relaxed) == me;
    is_owner() || !is_guest() && is_owner()
}

/// `struct sigaction` of the kernel: handler, flags, restorer, mask.
#[inline(never)]
pub fn rt_sigaction(mut a: [u64; 6]) -> Ret {
    if a[3] != 8 {
        return as_is(nr::RT_SIGACTION, a);
    }
    let mut new = [0u64; 4];
    if a[1] != 0 {
        match user::get::<[u64; 4]>(a[1]) {
            Ok(n) => new = n,
            Err(e) => return e,
        }
    }
    if let Some(v) = virtual_action(a[0]) {
        let old = load(v);
        if a[1] != 0 {
            // As the kernel keeps it.
            new[1] &= SA_KNOWN;
            new[3] &= !NEVER_MASKED;
            // What a guest sets is for its next image: its host's threads go on with theirs.
            if !is_guest() {
                store(v, new);
            }
            carry_ignored(a[0] as u32 as u64, new[0]);
        }
        return if a[2] != 0
            && let Err(e) = user::put(a[2], old)
        {
            e
        } else {
            0
        };
    }
    let (new_at, old_at) = (a[1], a[2]);
    let remembered = process().sa_mask_bits.get(a[0] as u32 as usize);
    let bits = pack(new[3]);
    let handler_before = handler_of(a[0]);
    let mut old = [0u64; 4];
    if new_at != 0 {
        new[3] = strip(new[3]);
        if altstack::enters_through_us(a[0], &new) {
            remember_handler(a[0], &mut new);
        }
        a[1] = &raw const new as u64;
    }
    if old_at != 0 {
        a[2] = &raw mut old as u64;
    }
    let r = as_is(nr::RT_SIGACTION, a);
    if r < 0 {
        return r;
    }
    if old[0] == entry::onstack_entry() {
        old[0] = handler_before;
    }
    if old[0] == entry::guests_entry() {
        (old[0], old[2]) = (old[2], entry::restorer());
    }
    let before = remembered.map_or(0, |m| m.load(Ordering::Relaxed));
    if new_at != 0
        && let Some(m) = remembered
        && !(bits != before && is_guest())
    {
        m.store(bits, Ordering::Relaxed);
    }
    if old_at != 0 {
        old[3] |= unpack(before);
        if let Err(e) = user::put(old_at, old) {
            return e;
        }
    }
    r
}

/// A SIGSYS, SIGTRAP or SIGSEGV that is not ours goes where the program wanted it.
pub fn chain(signo: i32, info: *mut SigInfo, uc: *mut UContext) {
    let Some(v) = virtual_action(signo as u64) else { return };
    let a = load(v);
    const TRAP_PERF: i32 = 6;
    // SAFETY: the kernel passes a valid siginfo.
    let code = unsafe { (*info).code };
    let blocked = carried::load() & pack(1 << (signo - 1)) != 0;
    let forced = code > 0 && (code != TRAP_PERF || signo as u64 != SIGTRAP);
    if blocked && !forced && a[0] != 1 {
        pend(signo, info);
        return;
    }
    // A forced signal is not held back: it kills where it is blocked or ignored.
    let handler = if forced && (blocked || a[0] == 1) { 0 } else { a[0] };
    match handler {
        // SIG_DFL: die of it, as natively. The real disposition is reset, then the signal sent again; it
        // stays blocked until this handler returns.
        0 => {
            let dfl = [0u64; 4];
            sys::own(nr::RT_SIGACTION, [signo as u64, &raw const dfl as u64, 0, 8, 0, 0]);
            sys::raise(signo as u64);
        }
        1 => {}
        handler => {
            const RESETHAND: u64 = 0x8000_0000;
            const NODEFER: u64 = 0x4000_0000;
            if a[1] & RESETHAND != 0 {
                store(v, [0, a[1], a[2], a[3]]);
            }
            process().own.handled.fetch_add(1, Ordering::Relaxed);
            process().own.chained.fetch_add(1, Ordering::Relaxed);
            if !forced {
                // SAFETY: the kernel passes a valid context.
                interrupt::by_flags(unsafe { &mut *uc }, a[1]);
            }
            // SAFETY: the kernel passes a valid context.
            let mask = unsafe { (*uc).mask };
            let own = if a[1] & NODEFER == 0 { 1 << (signo - 1) } else { 0 };
            let before = block(a[3] | own, mask);
            // SAFETY: the program registered this function as a handler for this signal.
            let f: extern "C" fn(i32, *mut SigInfo, *mut UContext) = unsafe { core::mem::transmute(handler) };
            f(signo, info, uc);
            unblock(before);
        }
    }
}

/// Blocks what a handler of the program's asks for, besides `mask`; what it blocked of ours before. The kernel's mask
/// comes back with the context.
#[inline(never)]
fn block(asked: u64, mask: u64) -> u32 {
    let bits = carried::load();
    if bits | pack(asked) != bits {
        carried::store(bits | pack(asked));
    }
    set_kernel_mask(strip(mask | asked));
    bits & BLOCKS
}

#[inline(never)]
fn unblock(before: u32) {
    let bits = carried::load();
    if bits & BLOCKS != before {
        carried::store(bits & !BLOCKS | before);
        release(bits & BLOCKS & !before);
    }
}

const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_VM: u64 = 0x100;

/// Prepares a clone3: a copy of its arguments without CLONE_CLEAR_SIGHAND, and for parent and child what
/// they need to go on. The child of a call with a new stack finds it at that stack's top.
#[inline(never)]
pub extern "C" fn prepare_clone3(r: &mut CloneRecord) {
    let b = &r.base;
    (r.args, r.size, r.clear) = (b.rdi, b.rsi, 0);
    r.resume = Resume {
        resume: b.resume,
        rdi: b.rdi,
        rsi: b.rsi,
        rdx: b.rdx,
        r10: b.r10,
        r8: b.r8,
        r9: b.r9,
        rsp: b.rsp,
        lent: 0,
    };
    r.parent = &raw const r.resume as u64;
    r.child = r.parent;
    // Fields: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, ...
    let words = r.base.rsi / 8;
    if !(8..=16).contains(&words) || !r.base.rsi.is_multiple_of(8) {
        return;
    }
    for i in 0..words {
        match user::get::<u64>(r.base.rdi.wrapping_add(8 * i)) {
            Ok(w) => {
                if let Some(c) = r.copy.get_mut(i as usize) {
                    *c = w;
                }
            }
            Err(_) => return,
        }
    }
    r.args = &raw const r.copy as u64;
    let flags = r.copy[0];
    if timespaces::are_made_by(flags) {
        // Of these flags the kernel makes EINVAL before anything else.
        r.copy[0] = u64::MAX;
        return;
    }
    if flags & CLONE_CLEAR_SIGHAND != 0 && flags & CLONE_SIGHAND == 0 {
        r.copy[0] = flags & !CLONE_CLEAR_SIGHAND;
        r.clear = if flags & CLONE_VM == 0 { 1 } else { 2 };
    }
    if r.copy[5] != 0 && r.copy[6] != 0 {
        let top = r.copy[5].wrapping_add(r.copy[6]);
        place_child(r, flags, top);
    }
}

/// Puts what the child of a call with a new stack needs where it finds it: at that stack's top if there is room, which
/// [`reset_handlers`] needs too. Else where the record is, if that stays, or on a stack of the blob's.
#[inline(never)]
fn place_child(r: &mut CloneRecord, flags: u64, top: u64) {
    const ROOM: u64 = 1024;
    const CLONE_VFORK: u64 = 0x4000;
    let b = &r.base;
    let at = (top - size_of::<Resume>() as u64) & !7;
    if r.copy[6] > ROOM && user::put(at, [b.resume, b.rdi, b.rsi, b.rdx, b.r10, b.r8, b.r9, top, 0]).is_ok() {
        r.child = at;
    } else if flags & (CLONE_VM | CLONE_VFORK) != CLONE_VM {
        r.for_child = Resume { rsp: top, ..r.resume };
        r.child = &raw const r.for_child as u64;
    } else if let Some((end, owner)) = altstack::lend() {
        let at = end - 128;
        // SAFETY: a stack of ours that nobody else uses.
        unsafe { (at as *mut Resume).write(Resume { rsp: top, lent: owner, ..r.resume }) };
        r.child = at;
    } else {
        // The kernel has EINVAL for it.
        r.copy[0] = u64::MAX;
    }
}

/// In the child of a clone3 that asked for it: every handler to default, of ours in the program's view. Ignored stays.
/// Where its memory is its parent's, so is the view: until its exec the child sees the parent's.
pub extern "C" fn reset_handlers(clear: u64) {
    const OWN_MEMORY: u64 = 1;
    for sig in 1..=64u64 {
        if let Some(v) = virtual_action(sig) {
            if clear == OWN_MEMORY && v.handler.load(Ordering::Relaxed) > 1 {
                store(v, [0; 4]);
            }
            continue;
        }
        if sig == 9 || sig == 19 {
            continue;
        }
        let mut now = [0u64; 4];
        if sys::own(nr::RT_SIGACTION, [sig, 0, &raw mut now as u64, 8, 0, 0]) == 0 && now[0] > 1 {
            let dfl = [0u64; 4];
            sys::own(nr::RT_SIGACTION, [sig, &raw const dfl as u64, 0, 8, 0, 0]);
        }
    }
}
