//! Files of /proc that tell time or cores, opened for reading: the descriptor becomes one of a memory file with the
//! kernel's text in the frame's terms (core/procfs).
//!
//! Which file it is shows only once it is open: by any path, through any link and directory. A memory file's name says
//! what it stands for, so that it can be made anew when a reader goes back to its beginning, whoever has it by then.

use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::{PROC_PAGE_ADDR, ProcPage, Shown, VirtualAction};
use diecast_core_cpu::Split;
use diecast_core_procfs::{self as procfs, Kind, Machine, PidTimes, SignalView, Sink, StatusView, TICK_NS};
use diecast_core_syscalls::nr;
use diecast_core_vtime::{NS_PER_S, RealNs};

use crate::sys::{self, EFAULT, Ret, as_is};
use crate::{carried, clock, entry, node, process, sched, signals, tsc, usage};

const READ_ONLY: u64 = 0o2000000;
const PROC_MAGIC: u64 = 0x9fa0;
const F_GETFD: u64 = 1;
const F_GETFL: u64 = 3;
const F_SETFL: u64 = 4;
const F_GET_SEALS: u64 = 1034;
/// Access mode, and O_PATH.
const NOT_READ_ONLY: i64 = 0o10000003;

/// O_APPEND, O_NONBLOCK and O_NOATIME, which say nothing about what is read.
const HABITS: u64 = 0o1006000;

/// A mapping for the work: names, the kernel's text, the text that is made, and a stack, since programs may have as
/// little as 800 bytes left on theirs. Only what is touched is there.
const ROOM_LEN: u64 = 0x10_0000;
const NAME: u64 = 0;
const NAME_LEN: u64 = 240;
const PATH: u64 = 0x1000;
const SOURCE: u64 = 0x2000;
const SOURCE_LEN: u64 = 0x6_e000;
const MADE: u64 = 0x7_0000;
const MADE_LEN: u64 = 0x7_0000;
/// What the kernel puts before the name of a memory file, and we after that.
const MEMORY: &[u8; 7] = b"/memfd:";
const OURS: &[u8; 8] = b"diecast:";

/// Where a view is made, and of what.
struct Room {
    at: u64,
    fd: u64,
    made_len: u64,
    result: Ret,
}

impl Room {
    fn bytes(&self, offset: u64, len: u64) -> &'static [u8] {
        let len = if offset + len > ROOM_LEN { 0 } else { len };
        // SAFETY: within the room, which stays mapped while the caller works; nothing else writes this part of it.
        unsafe { core::slice::from_raw_parts((self.at + offset) as *const u8, len as usize) }
    }

    fn put(&self, at: u64, byte: u8) {
        if at < ROOM_LEN {
            // SAFETY: within the room. Volatile, so that no loop of these becomes a call of memcpy.
            unsafe { ((self.at + at) as *mut u8).write_volatile(byte) };
        }
    }

    /// Writes a text and a zero; gives where the zero is.
    fn write(&self, at: u64, text: &[u8]) -> u64 {
        let mut end = at;
        for byte in text {
            self.put(end, *byte);
            end += 1;
        }
        self.put(end, 0);
        end
    }
}

impl Sink for Room {
    fn push(&mut self, byte: u8) {
        if self.made_len < MADE_LEN {
            self.put(MADE + self.made_len, byte);
            self.made_len += 1;
        }
    }
}

/// Where a number goes in a name.
struct Digits<'a> {
    room: &'a Room,
    at: u64,
}

impl Sink for Digits<'_> {
    fn push(&mut self, byte: u8) {
        self.room.put(self.at, byte);
        self.at += 1;
    }
}

/// open, openat and openat2.
#[inline(never)]
pub fn open(number: u32, a: [u64; 6]) -> Ret {
    let fd = as_is(number, a);
    if fd < 0 || !is_of_proc(fd as u64) {
        return fd;
    }
    let flags = sys::own(sys::FCNTL, [fd as u64, F_GETFL, 0, 0, 0, 0]);
    if flags < 0 || flags & NOT_READ_ONLY != 0 { fd } else { in_a_room(fd as u64, stand_in) }
}

/// To the beginning: what stands for a file of /proc is made anew.
#[inline(never)]
pub fn rewind(a: [u64; 6]) -> Ret {
    const SEALED: Ret = 1;
    let r = as_is(nr::LSEEK, a);
    if r == 0 && sys::own(sys::FCNTL, [a[0], F_GET_SEALS, 0, 0, 0, 0]) == SEALED {
        in_a_room(a[0], renew);
    }
    r
}

#[inline(never)]
fn is_of_proc(fd: u64) -> bool {
    let mut info = MaybeUninit::<[u64; 15]>::uninit();
    let r = sys::own(sys::FSTATFS, [fd, info.as_mut_ptr() as u64, 0, 0, 0, 0]);
    // SAFETY: on success the kernel filled it.
    r == 0 && unsafe { info.assume_init_ref() }[0] == PROC_MAGIC
}

/// Runs `work` on a stack of its own; the descriptor itself where there is no memory for it.
#[inline(never)]
fn in_a_room(fd: u64, work: extern "C" fn(&mut Room)) -> Ret {
    const READ_WRITE: u64 = 3;
    const PRIVATE_ANON: u64 = 0x22;
    let at = sys::own(sys::MMAP, [0, ROOM_LEN, READ_WRITE, PRIVATE_ANON, u64::MAX, 0]);
    if at < 0 {
        return fd as Ret;
    }
    let mut room = Room { at: at as u64, fd, made_len: 0, result: fd as Ret };
    entry::apart(work, &mut room, at as u64 + ROOM_LEN);
    sys::own(sys::MUNMAP, [at as u64, ROOM_LEN, 0, 0, 0, 0]);
    room.result
}

/// The path of a descriptor into the room; its length.
fn path_of(room: &Room, fd: u64) -> u64 {
    let at = room.write(NAME, b"/proc/thread-self/fd/");
    let mut digits = Digits { room, at };
    digits.number(fd);
    room.put(digits.at, 0);
    let got = sys::own(sys::READLINKAT, [sys::AT_FDCWD, room.at + NAME, room.at + PATH, SOURCE - PATH - 1, 0, 0]);
    if got > 0 { got as u64 } else { 0 }
}

/// All of a file from where it is; None when that fails or does not fit.
fn read_all(room: &Room, fd: u64) -> Option<u64> {
    let mut len = 0;
    while len < SOURCE_LEN {
        let got = sys::own(sys::READ, [fd, room.at + SOURCE + len, SOURCE_LEN - len, 0, 0, 0]);
        match got {
            0 => return Some(len),
            n if n > 0 => len += n as u64,
            _ => return None,
        }
    }
    None
}

/// A descriptor that was just opened becomes one of its view.
extern "C" fn stand_in(room: &mut Room) {
    const CLOEXEC: u64 = 1;
    const FSIZE: u64 = 1;
    let path_len = path_of(room, room.fd);
    let Some(kind) = procfs::kind_of(room.bytes(PATH, path_len)) else { return };
    let mut limit = [0u64; 2];
    let limited = sys::own(nr::PRLIMIT64, [0, FSIZE, 0, &raw mut limit as u64, 0, 0]) != 0;
    if path_len + OURS.len() as u64 > NAME_LEN || !render(room, kind, room.fd) || limited || limit[0] < room.made_len {
        // The kernel's text, from its beginning.
        sys::own(nr::LSEEK, [room.fd, 0, 0, 0, 0, 0]);
        return;
    }
    let cloexec = sys::own(sys::FCNTL, [room.fd, F_GETFD, 0, 0, 0, 0]) as u64 & CLOEXEC;
    let habits = sys::own(sys::FCNTL, [room.fd, F_GETFL, 0, 0, 0, 0]) as u64 & HABITS;
    let end = room.write(NAME, OURS);
    room.write(end, room.bytes(PATH, path_len));
    // The number first: there may be no other left.
    sys::own(sys::CLOSE, [room.fd, 0, 0, 0, 0, 0]);
    let fd = sys::own(sys::MEMFD_CREATE, [room.at + NAME, cloexec, 0, 0, 0, 0]);
    room.result = fd;
    if fd < 0 {
        return;
    }
    fill(room, fd as u64);
    // As the program opened it: for reading.
    path_of(room, fd as u64);
    let reader = sys::own(nr::OPENAT, [sys::AT_FDCWD, room.at + NAME, READ_ONLY, 0, 0, 0]);
    if reader >= 0 {
        sys::own(sys::DUP3, [reader as u64, fd as u64, if cloexec != 0 { READ_ONLY } else { 0 }, 0, 0, 0]);
        sys::own(sys::CLOSE, [reader as u64, 0, 0, 0, 0, 0]);
    } else {
        sys::own(nr::LSEEK, [fd as u64, 0, 0, 0, 0, 0]);
    }
    if habits != 0 {
        sys::own(sys::FCNTL, [fd as u64, F_SETFL, habits, 0, 0, 0]);
    }
}

/// Makes a view anew in the same memory file.
extern "C" fn renew(room: &mut Room) {
    const READ_WRITE: u64 = READ_ONLY | 2;
    let path_len = path_of(room, room.fd);
    let name = room.bytes(PATH, path_len);
    let ours = MEMORY.len() + OURS.len();
    let begins = name.iter().zip(MEMORY.iter().chain(OURS)).all(|(a, b)| a == b);
    // The kernel says that the file has no name in any folder.
    let source = name.strip_suffix_len(b" (deleted)".len()).get(ours..).unwrap_or(&[]);
    let Some(kind) = procfs::kind_of(source).filter(|_| begins) else { return };
    let file = sys::own(nr::OPENAT, [sys::AT_FDCWD, room.at + NAME, READ_WRITE, 0, 0, 0]);
    room.write(NAME, source);
    let kernels = sys::own(nr::OPENAT, [sys::AT_FDCWD, room.at + NAME, READ_ONLY, 0, 0, 0]);
    if kernels >= 0 {
        if file >= 0 && render(room, kind, kernels as u64) {
            fill(room, file as u64);
        }
        sys::own(sys::CLOSE, [kernels as u64, 0, 0, 0, 0, 0]);
    }
    if file >= 0 {
        sys::own(sys::CLOSE, [file as u64, 0, 0, 0, 0, 0]);
    }
}

trait Shorter {
    fn strip_suffix_len(&self, len: usize) -> &[u8];
}

impl Shorter for [u8] {
    fn strip_suffix_len(&self, len: usize) -> &[u8] {
        self.get(..self.len().saturating_sub(len)).unwrap_or(&[])
    }
}

/// What was made, into a memory file from its beginning.
fn fill(room: &Room, fd: u64) {
    let mut done = 0;
    while done < room.made_len {
        let n = sys::own(sys::WRITE, [fd, room.at + MADE + done, room.made_len - done, 0, 0, 0]);
        if n <= 0 {
            break;
        }
        done += n as u64;
    }
    sys::own(sys::FTRUNCATE, [fd, done, 0, 0, 0, 0]);
}

/// Makes the view of a file of the kernel's.
#[inline(never)]
fn render(room: &mut Room, kind: Kind, fd: u64) -> bool {
    let Some(len) = read_all(room, fd) else { return false };
    let host = room.bytes(SOURCE, len);
    room.made_len = 0;
    match kind {
        Kind::Uptime => procfs::uptime(room, &machine(host_ticks(room))),
        Kind::Stat => {
            let machine = machine(procfs::busy_ticks(host));
            let keep = !is_metered() && is_plain() && procfs::cores_of(host) == machine.cpus;
            procfs::stat(host, room, &machine, keep);
        }
        Kind::Cpuinfo => {
            let cpus = node().vcpus.load(Relaxed).max(1);
            if procfs::processors_of(host) == cpus {
                return false;
            }
            procfs::cpuinfo(host, room, 0..cpus, cpus);
        }
        Kind::Loadavg => procfs::loadavg(host, room, &machine((0, 0))),
        Kind::PidStat { pid, tid } => return pid_stat(room, host, pid, tid),
        Kind::PidStatus { pid, tid } => pid_status(room, host, pid, tid),
        Kind::Schedstat { pid, tid } => {
            // Of a process: its first thread's.
            let tid = if tid == 0 { pid } else { tid };
            let cpu = |ns: u64| clock::ns_of(clock::thread_cpu_of(tid, shown_of(pid, tid), ns));
            procfs::schedstat(host, room, cpu, |ns| node().segment().rate.mul_floor(ns));
        }
    }
    true
}

/// This and the next two are apart so that no stack frame is large.
#[inline(never)]
fn pid_stat(room: &mut Room, host: &[u8], pid: u32, tid: u32) -> bool {
    let Some(times) = procfs::parse_times(host) else { return false };
    let view = status_of(room, pid, tid);
    write_stat(room, host, &times_of(times, pid, tid, view.filters != 0), &view);
    true
}

#[inline(never)]
fn write_stat(room: &mut Room, host: &[u8], times: &PidTimes, view: &StatusView) {
    procfs::pid_stat(host, room, times, &view.signals, view.sched.as_ref());
}

#[inline(never)]
fn pid_status(room: &mut Room, host: &[u8], pid: u32, tid: u32) {
    let view = status_of(room, pid, tid);
    procfs::status(host, room, &view);
}

fn is_metered() -> bool {
    node().metered.load(Relaxed) != 0
}

/// Whether virtual time passes as real time does.
fn is_plain() -> bool {
    let rate = node().segment().rate;
    rate.int == 1 && rate.frac == 0
}

/// What the host's /proc/stat says now; only where a node has no account of its own.
fn host_ticks(room: &Room) -> (u64, u64) {
    if is_metered() {
        return (0, 0);
    }
    room.write(NAME, b"/proc/stat");
    let fd = sys::own(nr::OPENAT, [sys::AT_FDCWD, room.at + NAME, READ_ONLY, 0, 0, 0]);
    if fd < 0 {
        return (0, 0);
    }
    let len = read_all(room, fd as u64).unwrap_or(0);
    sys::own(sys::CLOSE, [fd as u64, 0, 0, 0, 0, 0]);
    procfs::busy_ticks(room.bytes(SOURCE, len))
}

/// The node as a machine. Without a meter its CPU time is the host's.
#[inline(never)]
fn machine(host_ticks: (u64, u64)) -> Machine {
    let n = node();
    let c = &n.clock;
    let slowness = n.slowness();
    let (user_ns, system_ns) = if is_metered() {
        let escaped = n.counters.charged_by_supervisor_ns.load(Relaxed);
        let system = n.counters.system_ns.load(Relaxed);
        let user = n.counters.charged_ns.load(Relaxed).saturating_sub(system);
        (slowness.mul_floor(user), slowness.mul_floor(system.saturating_add(escaped)))
    } else {
        let since = |now: u64, at: usize| {
            let before = n.host_ticks.get(at).map_or(0, |ticks| ticks.load(Relaxed));
            slowness.mul_floor(now.saturating_sub(before) * TICK_NS).saturating_add(before * TICK_NS)
        };
        (since(host_ticks.0, 0), since(host_ticks.1, 1))
    };
    let load = |at: usize| n.loads.get(at).map_or(0, |load| load.load(Relaxed));
    Machine {
        uptime_ns: clock::read(clock::BOOTTIME).map_or(0, clock::ns_of),
        booted_s: (c.real_ahead_ns.load(Relaxed) - c.boot_ahead_ns.load(Relaxed)).div_euclid(NS_PER_S as i64),
        cpus: n.vcpus.load(Relaxed).max(1),
        user_ns,
        system_ns,
        loads: [load(0), load(1), load(2)],
    }
}

fn is_own(pid: u32) -> bool {
    pid == sys::own(sys::GETPID, [0; 6]) as u32
}

/// What was shown of a thread. Others than this process's may lie outside of the frame: they are given no slot for it.
fn shown_of(pid: u32, tid: u32) -> Option<&'static Shown> {
    if is_own(pid) { clock::shown_of(tid) } else { node().shown(tid) }
}

/// Times of a process, or of a thread, on the node's clocks.
#[inline(never)]
fn times_of(real: PidTimes, pid: u32, tid: u32, is_framed: bool) -> PidTimes {
    let real_split = |user: u64, system: u64| Split { user: user * TICK_NS, system: system * TICK_NS };
    let both = real_split(real.user, real.system);
    let others = |real: Split| match is_framed {
        true => usage::split(real, usage::cost_of_others(real.user + real.system)),
        false => usage::split(real, 0),
    };
    let is_own = is_own(pid);
    let own = if tid != 0 {
        usage::of_thread(tid, shown_of(pid, tid), both)
    } else if is_own {
        usage::own()
    } else if is_framed {
        usage::of_process(pid, both)
    } else {
        usage::split(both, 0)
    };
    let children = real_split(real.children_user, real.children_system);
    let children = if is_own { usage::of_children(children) } else { others(children) };
    // The kernel counts from its own boot, by BOOTTIME.
    let ahead = clock::kernel_ahead(clock::BOOTTIME);
    let started = RealNs(((real.started * TICK_NS) as i64).saturating_sub(ahead).max(0) as u64);
    let v = node().segment_at(started).v_of(started).0;
    let mono = node().clock.at(v).mono_of(v) as i64;
    PidTimes {
        user: own.user / TICK_NS,
        system: own.system / TICK_NS,
        children_user: children.user / TICK_NS,
        children_system: children.system / TICK_NS,
        started: mono.saturating_add(node().clock.boot_ahead_ns.load(Relaxed)).max(0) as u64 / TICK_NS,
    }
}

/// What a process did with SIGSYS, SIGTRAP and SIGSEGV and which filters are the frame's. Of other processes, what of it lies in
/// their page and may be read.
#[inline(never)]
fn status_of(room: &Room, pid: u32, tid: u32) -> StatusView {
    const PROCESS_VM_READV: u32 = 310;
    let me = sys::own(sys::GETPID, [0; 6]) as u32;
    let signals = SignalView { ours: signals::ours(), ..SignalView::default() };
    let mut view = StatusView { signals, filters: 1, sched: None };
    let handler = |set: &mut SignalView, bit: u64, handler: u64| match handler {
        0 => {}
        1 => set.ignored |= bit,
        _ => set.caught |= bit,
    };
    // Of a process: its first thread.
    let thread = if tid == 0 { pid } else { tid };
    // A room lies on its thread's own stack, what is done in it on another.
    let scheduled = || Some(sched::view_of(thread, core::ptr::from_ref(room) as u64));
    if pid == me {
        handler(&mut view.signals, signals::SIGSYS_BIT, process().sigsys.handler.load(Relaxed));
        handler(&mut view.signals, signals::SIGTRAP_BIT, process().sigtrap.handler.load(Relaxed));
        if tsc::is_trapped() {
            handler(&mut view.signals, signals::SIGSEGV_BIT, process().sigsegv.handler.load(Relaxed));
        }
        let bits = carried::load();
        if thread == sys::gettid() {
            view.signals.blocked = signals::unpack(bits);
        }
        view.signals.pending = signals::unpack(signals::pending());
        view.filters += process().inherited.stamped.load(Relaxed) as u64;
        view.sched = scheduled();
        return view;
    }
    const LEN: i64 = 3 * size_of::<VirtualAction>() as i64;
    let mut words = [0u64; LEN as usize / 8];
    let here = [&raw mut words as u64, LEN as u64];
    let there = [PROC_PAGE_ADDR + offset_of!(ProcPage, sigsys) as u64, LEN as u64];
    let from = [pid as u64, &raw const here as u64, 1, &raw const there as u64, 1, 0];
    match sys::own(PROCESS_VM_READV, from) {
        LEN => {
            handler(&mut view.signals, signals::SIGSYS_BIT, words[0]);
            handler(&mut view.signals, signals::SIGTRAP_BIT, words[4]);
            if tsc::is_trapped() {
                handler(&mut view.signals, signals::SIGSEGV_BIT, words[8]);
            }
            view.sched = scheduled();
        }
        // Not in a frame.
        EFAULT => return StatusView::default(),
        _ => {}
    }
    core::hint::black_box(&words);
    view
}
