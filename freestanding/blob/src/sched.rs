//! Cores and real-time policies in the node's terms.
//!
//! The kernel hears of neither: which of the host's cores a node runs on is the plan's affair, and a real-time thread
//! of a node would keep the emulator from its core. A thread carries the index of its setting (see `core/abi`) in
//! twelve bits of its personality that Linux has no use for: children and the next image inherit them. Nice values are
//! the kernel's own. What a weight means for a busy thread is in `turns`.

use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{SchedTable, Setting, VCPUS_MAX};
use diecast_core_procfs::SchedView;
use diecast_core_syscalls::nr;

use crate::sys::{self, EFAULT, EINVAL, EPERM, Ret, as_is};
use crate::{node, process, user};

const ESRCH: Ret = -3;
const ENOMEM: Ret = -12;
const FIFO: u32 = 1;
const RR: u32 = 2;
const DEADLINE: u32 = 6;
const RESET_ON_FORK: u32 = 0x4000_0000;
const PRIORITY_MAX: u32 = 99;
/// Bits 8 to 15 and 28 to 31 of a personality.
const CARRIED: u32 = 0xf000_ff00;
const ASK: u64 = 0xffff_ffff;

fn table() -> &'static SchedTable {
    &node().sched
}

fn carried_by(personality: u32) -> u32 {
    personality >> 8 & 0xff | personality >> 28 << 8
}

fn with_carried(personality: u32, index: u32) -> u32 {
    personality & !CARRIED | (index & 0xff) << 8 | index >> 8 << 28
}

fn own_personality() -> u32 {
    sys::own(nr::PERSONALITY, [ASK, 0, 0, 0, 0, 0]) as u32
}

fn carry(index: u32) {
    sys::own(nr::PERSONALITY, [u64::from(with_carried(own_personality(), index)), 0, 0, 0, 0, 0]);
}

/// Takes what another thread has set for this one.
pub fn settle() {
    if table().any_waits()
        && let Some(index) = table().take(sys::gettid())
    {
        carry(index);
    }
}

/// The cores that the calling thread asked for, as bits; 0 for all. What a hit tells, where it tells anything of how the thread
/// is scheduled, saves the question: but not what another thread has just set.
pub fn cores_here(told: u64) -> u64 {
    let holds = tells_standing(told) && !table().any_waits();
    (if holds { table().get(carried_in(told)) } else { of(0) }).cores
}

/// Whether a hit tells of how its thread is scheduled: above the meter's number then are 8 bits of nice value plus 21, 4 of the
/// kernel's policy, and 12 that the thread carries.
fn tells_standing(told: u64) -> bool {
    told >> 32 & 0xff != 0
}

pub fn carried_in(told: u64) -> u32 {
    (told >> 44) as u32 & 0xfff
}

/// The setting of another thread, by what waits for it or by what it carries. That of a process which may not be looked
/// at is taken for the default.
fn of_other(tid: u32) -> Setting {
    let index = table().waits_for(tid).or_else(|| personality_of(tid).map(carried_by));
    table().get(index.unwrap_or(0)).for_thread(tid)
}

/// The setting of a thread as calls name it: 0 is the caller.
fn of(pid: u64) -> Setting {
    if !table().used() {
        return Setting::default();
    }
    let (tid, me) = (pid as u32, sys::gettid());
    if tid != 0 && tid != me {
        return of_other(tid);
    }
    settle();
    table().get(carried_by(own_personality())).for_thread(me)
}

/// /proc/TID/personality, eight hexadecimal digits.
#[inline(never)]
fn personality_of(tid: u32) -> Option<u32> {
    let mut path = *b"/proc/0000000000/personality\0";
    let mut rest = tid;
    for digit in path.get_mut(6..16)?.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // The kernel knows numbers without leading zeros only: the name begins at the first other digit.
    let zeros = path.get(6..15)?.iter().take_while(|b| **b == b'0').count();
    let mut name = [0u8; 29];
    for (i, byte) in path.iter().enumerate().filter(|(i, _)| *i < 6 || *i >= 6 + zeros) {
        *name.get_mut(if i < 6 { i } else { i - zeros })? = *byte;
    }
    let file = sys::own(nr::OPENAT, [-100i64 as u64, &raw const name as u64, 0o2000000, 0, 0, 0]);
    if file < 0 {
        return None;
    }
    let mut text = [0u8; 16];
    let got = sys::own(sys::READ, [file as u64, &raw mut text as u64, 16, 0, 0, 0]);
    sys::own(sys::CLOSE, [file as u64, 0, 0, 0, 0, 0]);
    let digits = text.iter().take(got.max(0) as usize).map_while(|b| (*b as char).to_digit(16));
    (got > 0).then(|| digits.fold(0u32, |value, digit| value << 4 | digit))
}

fn set(pid: u64, setting: Setting) -> Ret {
    let Some(index) = table().index_of(setting) else { return ENOMEM };
    let me = sys::gettid();
    if pid as u32 == 0 || pid as u32 == me {
        settle();
        carry(index);
        return 0;
    }
    let alive = |tid: u32| sys::own(nr::SCHED_GETSCHEDULER, [u64::from(tid), 0, 0, 0, 0, 0]) >= 0;
    if table().leave(pid as u32, index, alive) { 0 } else { ENOMEM }
}

/// Whether the caller may change how a thread is scheduled. The kernel says so of a set without cores, which it refuses as
/// invalid to those that may.
fn judge(pid: u64) -> Ret {
    match sys::own(nr::SCHED_SETAFFINITY, [pid, 0, 0, 0, 0, 0]) {
        EINVAL => 0,
        refused => refused,
    }
}

/// What the kernel says to a call's arguments before it looks for the thread: ESRCH when nothing is wrong with them.
fn of_nobody(number: u32, mut a: [u64; 6]) -> Ret {
    const NOBODY: u64 = 0x7fff_ffff;
    a[0] = NOBODY;
    as_is(number, a)
}

fn all_cores() -> u64 {
    let count = node().entries().len().clamp(1, VCPUS_MAX);
    u64::MAX >> (VCPUS_MAX - count)
}

#[inline(never)]
pub fn sched_setaffinity(a: [u64; 6]) -> Ret {
    let unreadable = of_nobody(nr::SCHED_SETAFFINITY, a);
    if unreadable != ESRCH {
        return unreadable;
    }
    let mut asked = 0;
    for at in (0..u64::from(a[1] as u32).min(8)).rev() {
        // SAFETY: the kernel just read these bytes.
        asked = asked << 8 | u64::from(unsafe { (a[2].wrapping_add(at) as *const u8).read() });
    }
    let judged = judge(a[0]);
    if judged < 0 {
        return judged;
    }
    let cores = asked & all_cores();
    if cores == 0 {
        return EINVAL;
    }
    set(a[0], Setting { cores: if cores == all_cores() { 0 } else { cores }, ..of(a[0]) })
}

#[inline(never)]
pub fn sched_getaffinity(a: [u64; 6]) -> Ret {
    let len = as_is(nr::SCHED_GETAFFINITY, a);
    if len < 8 {
        return len;
    }
    let cores = allowed(of(a[0]));
    for at in (0..len as u64).step_by(8) {
        if let Err(e) = user::put(a[2].wrapping_add(at), if at == 0 { cores } else { 0 }) {
            return e;
        }
    }
    len
}

/// The core that the caller is told to run on: threads are spread by where their stacks are, and move as the host moves
/// them. No system call unless some thread of the node has a setting.
#[inline(always)]
fn own_core() -> u32 {
    let here = 0u8;
    core_on(&raw const here as u64)
}

/// The same of a thread that an address of its stack tells.
#[inline(always)]
pub fn core_on(stack: u64) -> u32 {
    let all = all_cores();
    if all == 1 {
        return 0;
    }
    let cores = if table().used() { allowed(of(0)) } else { all };
    const STACK_SHIFT: u32 = 23;
    one_of(cores, (stack >> STACK_SHIFT).wrapping_add(u64::from(host_core())))
}

/// The cores that a thread of this setting may run on, as bits.
fn allowed(setting: Setting) -> u64 {
    match setting.cores & all_cores() {
        0 => all_cores(),
        cores => cores,
    }
}

/// One of some cores, counted from the lowest.
#[inline(always)]
fn one_of(cores: u64, count: u64) -> u32 {
    let mut rest = cores;
    for _ in 0..count % u64::from(cores.count_ones().max(1)) {
        rest &= rest - 1;
    }
    rest.trailing_zeros()
}

/// How a thread of the node is scheduled, as /proc tells. The core of another than the caller, which `stack` is an address of, is one
/// that it may run on.
#[inline(never)]
pub fn view_of(tid: u32, stack: u64) -> SchedView {
    let setting = of(u64::from(tid));
    let cores = allowed(setting);
    SchedView {
        cpus: all_cores().count_ones(),
        cores,
        core: if tid == sys::gettid() { core_on(stack) } else { one_of(cores, u64::from(tid)) },
        policy: setting.policy,
        priority: setting.priority,
    }
}

fn host_core() -> u32 {
    let mut cpu = 0u32;
    let f = process().kernel_getcpu.load(Relaxed);
    if f == 0 {
        sys::own(nr::GETCPU, [&raw mut cpu as u64, 0, 0, 0, 0, 0]);
    } else {
        // SAFETY: the supervisor found this function in the kernel's vDSO, which stays mapped; it writes one word.
        let f: extern "C" fn(*mut u32, *mut u32, u64) -> i32 = unsafe { core::mem::transmute(f) };
        f(&mut cpu, core::ptr::null_mut(), 0);
    }
    cpu
}

/// getcpu of the vDSO. A node has one memory node.
///
/// # Safety
/// As with the kernel's vDSO, bad pointers are the caller's fault.
#[inline(always)]
pub unsafe fn tell_core(cpu: *mut u32, memory_node: *mut u32) {
    if !cpu.is_null() {
        // SAFETY: the caller's promise.
        unsafe { cpu.write(own_core()) };
    }
    if !memory_node.is_null() {
        // SAFETY: the caller's promise.
        unsafe { memory_node.write(0) };
    }
}

#[inline(never)]
pub fn getcpu(a: [u64; 6]) -> Ret {
    let r = as_is(nr::GETCPU, a);
    if r == 0 {
        // SAFETY: the kernel just wrote to both, where they are not null.
        unsafe { tell_core(a[0] as *mut u32, a[1] as *mut u32) };
    }
    r
}

/// The personality without what rides on it.
#[inline(never)]
pub fn personality(a: [u64; 6]) -> Ret {
    let old = own_personality();
    if a[0] as u32 != u32::MAX {
        let new = u64::from(a[0] as u32 & !CARRIED | old & CARRIED);
        let r = sys::plain(nr::PERSONALITY, [new, 0, 0, 0, 0, 0]);
        if r < 0 {
            return r;
        }
    }
    Ret::from(old & !CARRIED)
}

fn is_real_time(policy: u32) -> bool {
    policy == FIFO || policy == RR
}

/// Is this among the caller's effective capabilities? Of the first 32.
pub fn is_capable(capability: u32) -> bool {
    const VERSION_3: u64 = 0x2008_0522;
    let header = VERSION_3;
    let mut sets = [0u64; 3];
    // Two times effective, permitted and inheritable, 32 bits each: the first word begins with the effective ones.
    sys::own(sys::CAPGET, [&raw const header as u64, &raw mut sets as u64, 0, 0, 0, 0]);
    sets.first().is_some_and(|word| word >> capability & 1 == 1)
}

/// RLIMIT_RTPRIO of a thread's process.
fn priority_limit(pid: u64) -> u64 {
    const RLIMIT_RTPRIO: u64 = 14;
    let mut limit = [0u64; 2];
    sys::own(nr::PRLIMIT64, [pid, RLIMIT_RTPRIO, 0, &raw mut limit as u64, 0, 0]);
    limit.first().copied().unwrap_or(0)
}

/// Remembers a real-time policy, under the kernel's conditions.
fn set_real_time(pid: u64, policy: u32, reset: bool, priority: u32) -> Ret {
    let known = sys::own(nr::SCHED_GETSCHEDULER, [pid, 0, 0, 0, 0, 0]);
    if known < 0 {
        return known;
    }
    if !(1..=PRIORITY_MAX).contains(&priority) {
        return EINVAL;
    }
    let now = of(pid);
    const SYS_NICE: u32 = 23;
    if !is_capable(SYS_NICE) {
        let (limit, same) = (priority_limit(pid), u32::from(now.policy) == policy);
        let raised = priority > u32::from(now.priority) && u64::from(priority) > limit;
        let kept = now.owner != 0 || known as u32 & RESET_ON_FORK != 0;
        if !same && limit == 0 || raised || kept && !reset {
            return EPERM;
        }
        let judged = judge(pid);
        if judged < 0 {
            return judged;
        }
    }
    let tid = if pid as u32 == 0 { sys::gettid() } else { pid as u32 };
    let owner = if reset { tid } else { 0 };
    set(pid, Setting { cores: now.cores, policy: policy as u8, priority: priority as u8, owner })
}

/// After the kernel took a policy of its own for a thread: ours ends.
fn forget_real_time(pid: u64, r: Ret) -> Ret {
    let now = of(pid);
    if r == 0 && now.policy != 0 {
        return set(pid, Setting { cores: now.cores, ..Setting::default() });
    }
    r
}

#[inline(never)]
pub fn sched_setscheduler(a: [u64; 6]) -> Ret {
    let policy = a[1] as u32;
    if !is_real_time(policy & !RESET_ON_FORK) {
        return forget_real_time(a[0], as_is(nr::SCHED_SETSCHEDULER, a));
    }
    if a[2] == 0 || (a[0] as i32) < 0 {
        return EINVAL;
    }
    match user::get::<u32>(a[2]) {
        Ok(priority) => set_real_time(a[0], policy & !RESET_ON_FORK, policy & RESET_ON_FORK != 0, priority),
        Err(e) => e,
    }
}

#[inline(never)]
pub fn sched_getscheduler(a: [u64; 6]) -> Ret {
    let r = sys::plain(nr::SCHED_GETSCHEDULER, a);
    let now = if r < 0 { Setting::default() } else { of(a[0]) };
    match now.policy {
        0 => r,
        policy => Ret::from(policy) | if now.owner != 0 { Ret::from(RESET_ON_FORK) } else { 0 },
    }
}

#[inline(never)]
pub fn sched_setparam(a: [u64; 6]) -> Ret {
    let now = if (a[0] as i32) < 0 { Setting::default() } else { of(a[0]) };
    if now.policy == 0 || a[1] == 0 {
        return as_is(nr::SCHED_SETPARAM, a);
    }
    match user::get::<u32>(a[1]) {
        Ok(priority) => set_real_time(a[0], u32::from(now.policy), now.owner != 0, priority),
        Err(e) => e,
    }
}

#[inline(never)]
pub fn sched_getparam(a: [u64; 6]) -> Ret {
    let r = as_is(nr::SCHED_GETPARAM, a);
    let now = if r < 0 { Setting::default() } else { of(a[0]) };
    if now.policy != 0 {
        // SAFETY: the kernel just wrote this word.
        unsafe { (a[1] as *mut u32).write_unaligned(u32::from(now.priority)) };
    }
    r
}

/// `struct sched_attr`: size and policy, flags, nice and priority, then times.
const ATTR_LEN: usize = 48;
const ATTR_RESET: u64 = 1;
const ATTR_KEEP_POLICY: u64 = 8;
const ATTR_KEEP_PARAMS: u64 = 16;
const ATTR_FLAGS: u64 = 0x7f;

/// Whether Linux takes these for runtime, deadline and period.
fn are_a_deadlines([runtime, deadline, period]: [u64; 3]) -> bool {
    const RUNTIME_MIN: u64 = 1 << 10;
    let period = if period == 0 { deadline } else { period };
    (RUNTIME_MIN..=deadline).contains(&runtime) && (deadline..1 << 63).contains(&period)
}

#[inline(never)]
pub fn sched_setattr(a: [u64; 6]) -> Ret {
    let kernels = || forget_real_time(a[0], as_is(nr::SCHED_SETATTR, a));
    let Ok([first, flags, values, times @ ..]) = user::get::<[u64; ATTR_LEN / 8]>(a[1]) else { return kernels() };
    let (mut policy, mut priority) = ((first >> 32) as u32, (values >> 32) as u32);
    if (a[0] as i32) < 0 || flags & !ATTR_FLAGS != 0 {
        return kernels();
    }
    let now = of(a[0]);
    if flags & ATTR_KEEP_POLICY != 0 {
        if now.policy == 0 {
            return kernels();
        }
        policy = u32::from(now.policy);
    }
    if policy != DEADLINE && !is_real_time(policy) {
        return kernels();
    }
    let wrong = of_nobody(nr::SCHED_SETATTR, a);
    if wrong != ESRCH {
        return wrong;
    }
    if policy == DEADLINE {
        // A thread that is bound to some of the cores, as all of a node are, can't have it.
        let known = sys::own(nr::SCHED_GETSCHEDULER, a);
        let refused = if priority == 0 && are_a_deadlines(times) { EPERM } else { EINVAL };
        return if known < 0 { known } else { refused };
    }
    if flags & ATTR_KEEP_PARAMS != 0 {
        priority = u32::from(now.priority);
    }
    set_real_time(a[0], policy, flags & ATTR_RESET != 0, priority)
}

#[inline(never)]
pub fn sched_getattr(a: [u64; 6]) -> Ret {
    let r = as_is(nr::SCHED_GETATTR, a);
    let now = if r < 0 { Setting::default() } else { of(a[0]) };
    if now.policy == 0 {
        return r;
    }
    let Ok(first) = user::get::<u32>(a[1]) else { return EFAULT };
    let words = [
        u64::from(first) | u64::from(now.policy) << 32,
        if now.owner != 0 { ATTR_RESET } else { 0 },
        u64::from(now.priority) << 32,
        0,
    ];
    match user::put_words(a[1], &words) {
        Ok(()) => 0,
        Err(e) => e,
    }
}

/// A round-robin slice of Linux's default length; a FIFO thread has none.
#[inline(never)]
pub fn sched_rr_get_interval(a: [u64; 6]) -> Ret {
    const SLICE_NS: u64 = 100_000_000;
    let r = as_is(nr::SCHED_RR_GET_INTERVAL, a);
    let now = if r < 0 { Setting::default() } else { of(a[0]) };
    if now.policy == 0 {
        return r;
    }
    let ns = if u32::from(now.policy) == RR { SLICE_NS } else { 0 };
    match user::put_words(a[1], &[0, ns]) {
        Ok(()) => 0,
        Err(e) => e,
    }
}
