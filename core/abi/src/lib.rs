//! The bytes that the blob and the supervisor share.
//!
//! One memfd per node holds the blob's ELF image, then the [`NodePage`]. Each process maps the image
//! private and executable at [`BLOB_ADDR`], the node page shared at [`NODE_PAGE_ADDR`] and a private
//! anonymous [`ProcPage`] at [`PROC_PAGE_ADDR`].
//! Any change of a layout here, of a constant or of what a field means needs a new [`ABI_VERSION`].
//! A node can write its own page: the supervisor treats every value read from it as a claim, clamps it and
//! never uses it as an index or a length.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod clock;
mod counters;
mod hits;
mod own;
mod rivals;
mod sched;

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use diecast_core_vtime::{Rate, RealNs, Segment, VirtNs};

pub use clock::{CLOCKS_MAX, ClockCell, ClockPage, ClockPair};
pub use counters::{BlobFault, Counters, LateCost, Shown};
pub use hits::{PAUSED_UNIT_NS, delay_before_ns, is_hit, left_since_ns, packets_tell, paused_before_ns};
pub use own::{
    ALT_ADDR, ALT_LEN, ALT_SLOTS, CPU_TIMER_WORDS, CPU_TIMERS, InheritedPage, OwnPage, SIGNALFDS, SITES, STACK_LEN,
    STACK_WORDS, STACKS, STACKS_ADDR, STUB_PAGES, TIMERS_MAX,
};
use rivals::forget_rival;
pub use rivals::{RIVALS_MAX, Rival, compete};
pub use sched::{SETTINGS_MAX, SchedTable, Setting, SettingCell, WAITING_MAX};

/// Bumped whenever a layout or a meaning changes.
pub const ABI_VERSION: u32 = 42;
/// First word of a [`NodePage`].
pub const NODE_MAGIC: u64 = 0x6e6f_6465_6469_6563;
/// First word of a [`ProcPage`].
pub const PROC_MAGIC: u64 = 0x7072_6f63_6469_6563;
/// Where the blob's image sits in every process; works with glibc, musl, Go, ASan, TSan and UBSan.
pub const BLOB_ADDR: u64 = 0x7e90_0000_0000;
/// Room for the image: system calls from this range pass the filter.
pub const BLOB_LEN_MAX: u64 = 0x10_0000;
/// Where the node page is mapped, shared.
pub const NODE_PAGE_ADDR: u64 = BLOB_ADDR + BLOB_LEN_MAX;
/// Where the private page of a process is mapped.
pub const PROC_PAGE_ADDR: u64 = BLOB_ADDR + 0x80_0000;
/// The filter's 16 data bits: a SIGSYS with this si_errno is ours.
pub const TRAP_MAGIC: u16 = 0xd1ec;
/// In the fifth argument, which FUTEX_WAIT_BITSET does not look at, of the meter's own sleeps: BPF tells them from the
/// program's by it. freestanding/bpf-egress has the same.
pub const METER_SLEEP: u64 = 0xd1ec_51ee;
/// The same of one in which a thread pays what it owes, before a wait of the program's and without a hit.
pub const METER_PAYS: u64 = METER_SLEEP | 1 << 32;
/// `si_perf_data` of the meter's SIGTRAP; the last 24 bits of `si_value` where it comes from a clock of its core, above
/// which is what the kernel knows of the thread: see freestanding/bpf-tick.
pub const METER_MAGIC: u64 = 0xec_ca57;
/// In its place where the core stood still since the thread's last hit: see [`paused_before_ns`].
pub const METER_PAUSED_MAGIC: u64 = 0xec_ca58;
/// More than either where the thread's packets tell what it uses: see [`packets_tell`].
pub const METER_PACKETS_TELL: u64 = 2;
/// `si_value` of the SIGTRAP that makes a thread translate its wait anew, after the frame's rate has changed.
pub const KICK_MAGIC: u64 = 0xd1ec_ca5e_4b1c;
/// `si_value` of the SIGSYS by which a thread takes signals that waited for it to unblock them.
pub const RELEASE_MAGIC: u64 = 0xd1ec_5165_01e7;
/// How many rates a lab can have in its life before retime is refused.
pub const SEGMENTS_MAX: usize = 64;
/// Virtual CPUs of a node at most.
pub const VCPUS_MAX: usize = 64;
/// Threads of a node whose last charge is remembered at one time.
pub const SLOTS_MAX: usize = 8192;
/// How far from its hash a slot may sit.
pub const SLOT_PROBES: usize = 32;
/// Buckets of a lateness histogram in each doubling: a value is told to an eighth of itself.
pub const LATE_STEPS: usize = 8;
/// Buckets of a lateness histogram: see [`late_bucket`]. The last one begins at 2^43 ns, 2.4 hours.
pub const LATE_BUCKETS: usize = 41 * LATE_STEPS + 1;
/// Bins of the sleeps before bursts of work: bin i holds those of [2^i, 2^(i+1)) µs, bin 0 also shorter ones.
pub const GAP_BINS: usize = 24;

/// One segment in shared memory. Written under the page's seqlock.
#[repr(C)]
#[derive(Default)]
pub struct SegmentCell {
    pub r0_ns: AtomicU64,
    pub v0_ns: AtomicU64,
    pub rate_int: AtomicU64,
    pub rate_frac: AtomicU64,
    pub inverse_int: AtomicU64,
    pub inverse_frac: AtomicU64,
}

impl SegmentCell {
    /// The segment as a value; only consistent inside a seqlock read.
    #[inline(always)]
    pub fn load(&self) -> Segment {
        Segment {
            r0_ns: self.r0_ns.load(Ordering::Relaxed),
            v0_ns: self.v0_ns.load(Ordering::Relaxed),
            rate: Rate { int: self.rate_int.load(Ordering::Relaxed), frac: self.rate_frac.load(Ordering::Relaxed) },
            inverse: Rate {
                int: self.inverse_int.load(Ordering::Relaxed),
                frac: self.inverse_frac.load(Ordering::Relaxed),
            },
        }
    }

    /// What [`Segment::v_of`] gives, where no sum or product can overflow: `d < 2^56` and `int < 2^7`, so `d * rate` is
    /// below 2^63, and so is `v0`.
    #[inline(always)]
    fn v_of_at_once(&self, r: RealNs) -> Option<VirtNs> {
        let d = r.0.wrapping_sub(self.r0_ns.load(Ordering::Relaxed));
        let int = self.rate_int.load(Ordering::Relaxed);
        if d >> 56 != 0 || int >> 7 != 0 {
            return None;
        }
        let part = ((d as u128 * self.rate_frac.load(Ordering::Relaxed) as u128) >> 64) as u64;
        let v0 = self.v0_ns.load(Ordering::Relaxed);
        Some(VirtNs(v0.wrapping_add(d.wrapping_mul(int)).wrapping_add(part)))
    }

    /// Stores a segment; the caller holds the seqlock.
    pub fn store(&self, s: &Segment) {
        self.r0_ns.store(s.r0_ns, Ordering::Relaxed);
        self.v0_ns.store(s.v0_ns, Ordering::Relaxed);
        self.rate_int.store(s.rate.int, Ordering::Relaxed);
        self.rate_frac.store(s.rate.frac, Ordering::Relaxed);
        self.inverse_int.store(s.inverse.int, Ordering::Relaxed);
        self.inverse_frac.store(s.inverse.frac, Ordering::Relaxed);
    }
}

/// Value of [`NodePage::switch_part`] before it is known: one for a process of which one thread only was ever hit, and
/// nothing for others, which may have threads that it switches between.
pub const SWITCHES_UNKNOWN: u32 = u32::MAX;
/// Value of [`NodePage::switch_part`] where each switch costs what the meter adds to one.
pub const SWITCH_ONCE: u32 = 1 << 16;

/// What a thread's meter remembers between two hits. The thread itself writes it, and the emulator when it charges a
/// packet's sender, each while it holds `busy`; the supervisor frees it once the thread is gone. All values relaxed.
#[repr(C, align(128))]
#[derive(Default, Debug)]
pub struct ThreadSlot {
    /// Thread id in the node's pid namespace, 0 = free.
    pub tid: AtomicU32,
    /// 1 while the thread itself or the emulator changes this slot.
    pub busy: AtomicU32,
    /// Thread CPU time (real, raw) up to which everything is charged or is meter cost. Changed by `account_to` only: who
    /// accounts for some adds that much, so that nothing is lost where the thread and the emulator do it at once.
    pub last_cpu_ns: AtomicU64,
    /// Real CLOCK_MONOTONIC when the last hit returned to the program, it had paid before a wait, or the last charged packet left.
    pub last_wall_ns: AtomicU64,
    /// Virtual instant at which the last charged work ends.
    pub finish_v_ns: AtomicU64,
    /// Hits of this thread, and sleeps in which it paid: CPU time without any shows a thread without a meter, whoever charges it.
    pub hits: AtomicU64,
    /// How long the node had not run when this thread's present burst of work began, real ns.
    pub gap_ns: AtomicU64,
    /// CPU time of that burst by its last charge, real ns; what is beyond the part that can be cold does not count; and
    /// three flags (see [`ThreadSlot::burst`], [`ThreadSlot::packets_tell`], [`ThreadSlot::is_handed`]).
    pub burst_ns: AtomicU64,
    /// schedstat's run delay at its last reading.
    pub run_delay_ns: AtomicU64,
    /// Waiting since that reading which is already explained by the ledger.
    pub explained_ns: AtomicU64,
    /// CPU time of this thread that was the meter's own, less what interrupts on the original would have added: that may be more,
    /// so in two's complement (see core/cpu, interrupts).
    pub cost_ns: AtomicU64,
    /// The node's charged total by its last charge.
    pub node_charged_ns: AtomicU64,
    /// CPU time charged to this thread.
    pub charged_ns: AtomicU64,
    /// Context switches of this thread by its last charge, the last sixteen bits; above them those of its own will by its
    /// last hit, or by its last sleep before a wait.
    pub switches: AtomicU64,
    /// The part of `cost_ns` that the process has not been told of: the emulator can't.
    pub untold_cost_ns: AtomicU64,
    /// A SIGTRAP that another thread of its process has sent to this one (blob, sentraps).
    pub trap: AtomicU64,
}

impl ThreadSlot {
    /// All that is kept of the thread, but its number and who changes it.
    #[inline(always)]
    fn words(&self) -> [&AtomicU64; 14] {
        [
            &self.last_cpu_ns,
            &self.last_wall_ns,
            &self.finish_v_ns,
            &self.hits,
            &self.gap_ns,
            &self.burst_ns,
            &self.run_delay_ns,
            &self.explained_ns,
            &self.cost_ns,
            &self.node_charged_ns,
            &self.charged_ns,
            &self.switches,
            &self.untold_cost_ns,
            &self.trap,
        ]
    }

    /// CPU time from one reading to another is charged, or is meter cost; the second is the lower one where too much was
    /// charged before.
    #[inline(always)]
    pub fn account_to(&self, from_ns: u64, to_ns: u64) {
        self.last_cpu_ns.fetch_add(to_ns.wrapping_sub(from_ns), Ordering::Relaxed);
    }

    /// Takes the slot for a change. False when somebody else is at it; nobody sleeps or runs the program meanwhile.
    #[inline(always)]
    pub fn try_hold(&self) -> bool {
        self.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Gives the slot back.
    #[inline(always)]
    pub fn release(&self) {
        self.busy.store(0, Ordering::Release);
    }
}

/// The page that all processes of a node share.
#[repr(C)]
pub struct NodePage {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub size: AtomicU32,
    /// Seqlock of the frame: odd while it is being written. Also the frame's generation.
    pub seq: AtomicU32,
    pub segment_count: AtomicU32,
    pub segments: [SegmentCell; SEGMENTS_MAX],
    pub clock: ClockPage,
    /// 1 when every thread has a meter.
    pub metered: AtomicU32,
    /// Trapped calls from one place in a program after which it jumps to the blob instead; 0 = never.
    pub site_calls: AtomicU32,
    pub vcpus: AtomicU32,
    /// Real CPU time between two hits.
    pub grain_ns: AtomicU64,
    /// The grain at which threads of a process that contends for locks sleep: no less.
    pub contended_grain_ns: AtomicU64,
    /// Virtual CPU ns per real CPU ns: 1/speed.
    pub slowness_int: AtomicU64,
    pub slowness_frac: AtomicU64,
    /// Real CPU ns per virtual CPU ns: speed.
    pub speed_int: AtomicU64,
    pub speed_frac: AtomicU64,
    /// The machine's timer slack stretched by the TDF, real ns: added to sleeps and waits, not to timers.
    pub slack_ns: AtomicU64,
    /// The part of a hit's cost that the blob can't see (interrupt, signal delivery), as the probe estimates it, real ns.
    pub hit_cost_ns: AtomicU64,
    /// The part of that which a hit of a core's clock does not tell itself: all but what lies between the clock's interrupt and
    /// the handler; 0 where that is not known.
    pub hit_rest_ns: AtomicU64,
    /// `hit_cost_ns`, or what the node's own work shows where that is less; 0 while it shows nothing (see core/cpu, hits).
    pub shown_hit_ns: AtomicU64,
    /// What its code takes longer after a hit, since others had its caches meanwhile, as its own work shows it: on the average,
    /// real CPU ns. No part of what is taken off at the hit, but of the work after it.
    pub after_hit_ns: AtomicU64,
    /// What the meter adds to a context switch to one of its threads: its timer is set. Estimated, ns.
    pub switch_cost_ns: AtomicU64,
    /// How many times that a switch costs on the average, in parts of [`SWITCH_ONCE`]: nothing between threads of one process, whose timer goes
    /// on, and twice from another metered one, whose timer is ended first. [`SWITCHES_UNKNOWN`] where nobody tells.
    pub switch_part: AtomicU32,
    /// What DieCast's BPF programs take of its threads' CPU time for each switch to one of them (with the wake-ups and receives
    /// that go with it) and for each packet that they send, on the average, real CPU ns; 0 while that is not known.
    pub own_switch_ns: AtomicU64,
    pub own_packet_ns: AtomicU64,
    /// What a thread takes to come back from a sleep that the original's would not have slept, for it was still at work when
    /// more came: on the average, real CPU ns; 0 while that is not known.
    pub extra_wake_ns: AtomicU64,
    /// How long a thread of the node needs to come to an idle core once somebody sets out to wake it, on the average, real ns: no
    /// CPU time of its own, and no less on the original machine. 0 while that is not known.
    pub way_ns: AtomicU64,
    /// What work on frames in the midst of its threads' own adds to their CPU clocks, as a part of that in 1/65536: a kernel
    /// without IRQ_TIME_ACCOUNTING counts it as theirs. 0 under any other, and while it is not known (see core/cpu, interrupts).
    pub interrupt_part: AtomicU32,
    /// Part of a burst's CPU time, in 1/65536, that is not charged after a sleep of each length (see core/cpu, cold).
    pub cold_discount: [AtomicU32; GAP_BINS],
    /// Part of all CPU time, in 1/65536, that is not charged: the cores of the node run so much slower than they usually do
    /// (see core/cpu, speed).
    pub slow_discount: AtomicU32,
    /// Ticks of the TSC per virtual ns where rdtsc is trapped and tells virtual time, else zero.
    pub tsc_rate_int: AtomicU64,
    pub tsc_rate_frac: AtomicU64,
    /// Averages of how many threads the node ran or had waiting for a core or a disk, over 1, 5 and 15 virtual minutes, in
    /// 1/2048.
    pub loads: [AtomicU64; 3],
    /// Ticks of CPU time that the host's programs and its kernel had used when the node was made.
    pub host_ticks: [AtomicU64; 2],
    /// Real CLOCK_MONOTONIC at which the node was last seen to run.
    pub busy_r_ns: AtomicU64,
    /// Virtual instant at which each virtual CPU is free.
    pub free_v_ns: [AtomicU64; VCPUS_MAX],
    pub counters: Counters,
    pub slots: [ThreadSlot; SLOTS_MAX],
    pub sched: SchedTable,
    /// 1 once a thread was hit whose weight is not the usual one.
    pub weighted: AtomicU32,
    /// Who competes for cores, where that is so.
    pub rivals: [Rival; RIVALS_MAX],
    /// One for each of `slots`.
    pub shown: [Shown; SLOTS_MAX],
    /// For each of `slots`, bits of the node's cores that its thread was pinned to at its last hit; 0 for all.
    pub pinned: [AtomicU64; SLOTS_MAX],
}

/// A virtual signal disposition, as the program set it.
#[repr(C)]
pub struct VirtualAction {
    pub handler: AtomicU64,
    pub flags: AtomicU64,
    pub restorer: AtomicU64,
    pub mask: AtomicU64,
}

/// Private page of one process; copied by fork, shared by threads and vfork, new at exec.
#[repr(C)]
pub struct ProcPage {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub pad: AtomicU32,
    /// Which exec this process descends from without another one.
    pub lineage: AtomicU64,
    /// The kernel's own vDSO functions.
    pub kernel_clock_gettime: AtomicU64,
    pub kernel_getcpu: AtomicU64,
    pub kernel_getrandom: AtomicU64,
    /// The kernel's function by which clocks are read: `kernel_clock_gettime`, or none where that would trap.
    pub read_clock: AtomicU64,
    pub sigsys: VirtualAction,
    pub sigtrap: VirtualAction,
    /// Used where rdtsc is trapped.
    pub sigsegv: VirtualAction,
    /// Per signal: bits of the virtual signals that the program put in its sa_mask.
    pub sa_mask_bits: [AtomicU32; 65],
    pub pad2: AtomicU32,
    /// Clock id + 1 of each POSIX timer, 0 = unknown, and [`TIMER_AT_WALL_TIME`] where it was set to an instant of a wall
    /// clock.
    pub timer_clock: [AtomicU32; TIMERS_MAX],
    pub inherited: InheritedPage,
    pub own: OwnPage,
}

/// In [`ProcPage::timer_clock`]: steps of the node's clock move this timer. No clock's number has this bit alone.
pub const TIMER_AT_WALL_TIME: u32 = 0x100;

/// Address of [`OwnPage::wall_timers`] in a process.
pub const WALL_TIMERS_ADDR: u64 =
    PROC_PAGE_ADDR + (offset_of!(ProcPage, own) + offset_of!(OwnPage, wall_timers)) as u64;
/// Address of [`OwnPage::timers`] in a process.
pub const TIMERS_ADDR: u64 = PROC_PAGE_ADDR + (offset_of!(ProcPage, own) + offset_of!(OwnPage, timers)) as u64;
/// Where the stack of calls into a stopped process begins.
pub const STOPPED_STACK_ADDR: u64 =
    (PROC_PAGE_ADDR + (offset_of!(ProcPage, own) + offset_of!(OwnPage, stack) + 8 * STACK_WORDS) as u64) & !15;

/// What the supervisor hands to the blob's first call in a new image, on the new stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitArgs {
    /// Descriptor of the node's memfd; closed by the blob.
    pub fd: u64,
    /// Offset and length of the node page in it.
    pub node_off: u64,
    pub node_len: u64,
    pub kernel_clock_gettime: u64,
    pub kernel_getcpu: u64,
    /// 0 where the kernel's vDSO has none.
    pub kernel_getrandom: u64,
    /// Address of the value of AT_SYSINFO_EHDR on the stack, 0 when the kernel gave none.
    pub auxv_slot: u64,
    pub lineage: u64,
    /// Address of a `struct prctl_mm_map` for PR_SET_MM_MAP, so that the kernel's copy of the auxiliary vector names
    /// the blob too; 0 = none.
    pub mm_map: u64,
}

impl InitArgs {
    /// The fields in their order: what lies in the process's memory.
    pub const fn words(&self) -> [u64; 9] {
        [
            self.fd,
            self.node_off,
            self.node_len,
            self.kernel_clock_gettime,
            self.kernel_getcpu,
            self.kernel_getrandom,
            self.auxv_slot,
            self.lineage,
            self.mm_map,
        ]
    }
}

/// Most bytes at the beginning of an image that are put aside for those by which a traced process maps the blob.
pub const BEGIN_LEN_MAX: usize = 128;

/// The same for a process that another one traces, which the supervisor can't stop at its exec: the image begins with
/// instructions of the supervisor's, and the blob puts its own back.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeginArgs {
    pub init: InitArgs,
    /// Where the image begins, and with which stack pointer.
    pub entry: u64,
    pub rsp: u64,
    /// Protection of those pages (PROT_READ and so on), and how many bytes of them were replaced.
    pub prot: u64,
    pub len: u64,
    pub code: [u8; BEGIN_LEN_MAX],
}

const _: () = assert!(offset_of!(BeginArgs, entry) == size_of::<InitArgs>());

/// A `ucontext_t` for rt_sigreturn, with which an image begins that is traced from its first instruction on.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedStart {
    pub flags: u64,
    pub link: u64,
    pub stack: [u64; 3],
    /// r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, rflags, segments, and four that count for nothing.
    pub regs: [u64; 23],
    /// No state of the floating-point unit: it begins as new.
    pub fpstate: u64,
    /// In a part that the kernel ignores: SIGTRAP.
    pub trap_mask: u64,
    pub reserved: [u64; 7],
    pub sigmask: u64,
}

impl TracedStart {
    /// `code_segment` and `stack_segment` are those of the new image.
    pub fn new(rip: u64, rsp: u64, rflags: u64, code_segment: u64, stack_segment: u64, sigmask: u64) -> TracedStart {
        const SS_DISABLE: u64 = 2;
        const SIGTRAP_BIT: u64 = 1 << 4;
        let mut regs = [0; 23];
        (regs[15], regs[16], regs[17], regs[18]) = (rsp, rip, rflags, code_segment | stack_segment << 48);
        let (stack, trap_mask) = ([0, SS_DISABLE, 0], SIGTRAP_BIT);
        TracedStart { flags: 0, link: 0, stack, regs, fpstate: 0, trap_mask, reserved: [0; 7], sigmask }
    }

    /// As it lies in memory.
    pub fn words(&self) -> [u64; 38] {
        let mut words = [0; 38];
        (words[0], words[1]) = (self.flags, self.link);
        words[2..5].copy_from_slice(&self.stack);
        words[5..28].copy_from_slice(&self.regs);
        (words[28], words[29]) = (self.fpstate, self.trap_mask);
        words[30..37].copy_from_slice(&self.reserved);
        words[37] = self.sigmask;
        words
    }
}

const _: () = assert!(size_of::<TracedStart>() == 38 * 8 && offset_of!(TracedStart, trap_mask) == 29 * 8);
const _: () = assert!(offset_of!(TracedStart, sigmask) == 37 * 8);

/// Second argument of the PTRACE_TRACEME that the blob makes for a program.
pub const TRACED_MAGIC: u64 = 0xd1ec_a500_a5c5_0002;

/// First argument of the execve by which a traced process asks for its node's memory: no address of any program's.
pub const ASKS_MAGIC: u64 = 0xd1ec_a500_a5c5_0001;

/// First argument of the execve by which the blob tells that its node's wall clock was stepped: no address either.
pub const STEPPED_MAGIC: u64 = 0xd1ec_a500_a5c5_0003;

/// Index of the first slot to look at for a thread.
#[inline(always)]
pub const fn slot_hash(tid: u32) -> usize {
    (tid.wrapping_mul(0x9e37_79b1) >> 16) as usize % SLOTS_MAX
}

/// Bucket of a lateness value: of its own below 8 ns, then eight in each doubling.
#[inline(always)]
pub const fn late_bucket(ns: u64) -> usize {
    if ns < LATE_STEPS as u64 {
        return ns as usize;
    }
    let doubling = 63 - ns.leading_zeros() as usize;
    let b = LATE_STEPS * (doubling - 2) + (ns >> (doubling - 3)) as usize % LATE_STEPS;
    if b < LATE_BUCKETS { b } else { LATE_BUCKETS - 1 }
}

/// The greatest value of a bucket but the last, which has no end, ns.
pub const fn late_bucket_max_ns(bucket: usize) -> u64 {
    let next = bucket + 1;
    let (doubling, step) = (next / LATE_STEPS, next % LATE_STEPS);
    (if doubling == 0 { step as u64 } else { ((LATE_STEPS + step) as u64) << (doubling - 1) }) - 1
}

impl NodePage {
    /// The segment in force, read under the seqlock. Gives up after many tries (a supervisor that died while
    /// writing) and returns the last consistent-looking value.
    #[inline(always)]
    pub fn segment(&self) -> Segment {
        self.steady(|| ()).0
    }

    /// The segment in force all the while that `what` took.
    #[inline(always)]
    fn steady<T>(&self, what: impl Fn() -> T) -> (Segment, T) {
        let mut tries = 0u32;
        loop {
            let before = self.seq.load(Ordering::Acquire);
            let count = self.segment_count.load(Ordering::Relaxed) as usize;
            let index = if count == 0 || count > SEGMENTS_MAX { 0 } else { count - 1 };
            let s = self.segments[index].load();
            let value = what();
            core::sync::atomic::fence(Ordering::Acquire);
            if (before & 1 == 0 && self.seq.load(Ordering::Relaxed) == before) || tries > 1_000_000 {
                return (s, value);
            }
            tries += 1;
            core::hint::spin_loop();
        }
    }

    /// The segment in force, an instant in it, and the generation of the map that has it: any change gives another.
    #[inline(always)]
    pub fn look(&self, real_now: impl Fn() -> RealNs) -> (Segment, RealNs, u64) {
        let (segment, (r, generation)) = self.steady(|| (real_now(), self.seq.load(Ordering::Relaxed)));
        (segment, r, u64::from(generation))
    }

    /// The newest segment in which time passes.
    pub fn running(&self) -> Segment {
        let count = (self.segment_count.load(Ordering::Relaxed) as usize).min(SEGMENTS_MAX);
        let segments = self.segments.iter().take(count).rev().map(SegmentCell::load);
        segments.into_iter().find(|s| s.rate != Rate::ZERO).unwrap_or_else(|| self.segment())
    }

    /// The segment in which a real instant lies. The past does not change, so only the newest one needs the seqlock.
    pub fn segment_at(&self, r: RealNs) -> Segment {
        let mut s = self.segment();
        let count = (self.segment_count.load(Ordering::Relaxed) as usize).min(SEGMENTS_MAX);
        for cell in self.segments.iter().take(count).rev().skip(1) {
            if s.r0_ns <= r.0 {
                break;
            }
            s = cell.load();
        }
        s
    }

    /// The smallest real instant at which virtual time is at least `v`: of the past too, which does not change.
    pub fn r_of(&self, v: VirtNs) -> RealNs {
        let count = (self.segment_count.load(Ordering::Relaxed) as usize).min(SEGMENTS_MAX);
        let mut s = self.segment();
        for cell in self.segments.iter().take(count).rev().skip(1) {
            if s.v0_ns < v.0 {
                break;
            }
            s = cell.load();
        }
        s.r_of(v)
    }

    /// Virtual time now. `real_now` is asked while the frame holds still: a clock that was read after a change of rate
    /// is never mapped by the rate before it. A coarse clock may be behind the change: the change's own instant is the least
    /// that can't be less than what it showed before.
    #[inline(always)]
    pub fn v_now(&self, real_now: impl Fn() -> RealNs) -> VirtNs {
        let (segment, r) = self.steady(real_now);
        segment.v_of(RealNs(r.0.max(segment.r0_ns)))
    }

    /// [`Self::v_now`] where one look is enough and the arithmetic that of every day. The map is read after the clock, so
    /// that little must be kept meanwhile.
    #[inline(always)]
    pub fn v_now_at_once(&self, real_now: impl FnOnce() -> RealNs) -> Option<VirtNs> {
        let before = self.seq.load(Ordering::Acquire);
        let r = real_now();
        let last = (self.segment_count.load(Ordering::Relaxed) as usize).wrapping_sub(1);
        let v = self.segments.get(last)?.v_of_at_once(r)?;
        core::sync::atomic::fence(Ordering::Acquire);
        (before & 1 == 0 && self.seq.load(Ordering::Relaxed) == before).then_some(v)
    }

    /// Publishes all segments of a frame. Only the supervisor calls it. False when there are too many.
    pub fn publish(&self, segments: &[Segment]) -> bool {
        if segments.len() > SEGMENTS_MAX {
            return false;
        }
        self.seq.fetch_add(1, Ordering::AcqRel);
        core::sync::atomic::fence(Ordering::Release);
        for (cell, s) in self.segments.iter().zip(segments) {
            cell.store(s);
        }
        self.segment_count.store(segments.len() as u32, Ordering::Relaxed);
        self.seq.fetch_add(1, Ordering::Release);
        true
    }

    /// Makes whatever waits by this map translate anew. Only the supervisor calls it.
    pub fn renew(&self) {
        self.seq.fetch_add(2, Ordering::AcqRel);
    }

    /// The node's MONOTONIC at a real instant, ns; never zero.
    #[inline(never)]
    pub fn mono_at(&self, r: RealNs) -> u64 {
        let v = self.segment_at(r).v_of(r).0;
        self.clock.at(v).mono_of(v).max(1)
    }

    /// The smallest real instant at which the node's MONOTONIC is at least this, by the rate that holds now: one that has
    /// passed lies no further back than the node's clock says, whatever pauses there were since.
    #[inline(never)]
    pub fn r_of_mono(&self, mono_ns: u64) -> RealNs {
        self.segment().r_of(VirtNs(self.clock.v_of_mono(mono_ns)))
    }

    /// The slot of a thread that has one.
    #[inline(always)]
    pub fn slot(&self, tid: u32) -> Option<&ThreadSlot> {
        self.slots.get(self.place(tid)?)
    }

    /// Where that is.
    #[inline(always)]
    fn place(&self, tid: u32) -> Option<usize> {
        let first = slot_hash(tid);
        for i in 0..SLOT_PROBES {
            let at = (first + i) % SLOTS_MAX;
            if self.slots.get(at)?.tid.load(Ordering::Relaxed) == tid {
                return Some(at);
            }
        }
        None
    }

    /// The slot of a thread, a free one where it has none: with nothing in it.
    #[inline(never)]
    pub fn claim_slot(&self, tid: u32) -> Option<&ThreadSlot> {
        let first = slot_hash(tid);
        self.slot(tid).or_else(|| {
            (0..SLOT_PROBES).filter_map(|i| self.slots.get((first + i) % SLOTS_MAX)).find(|s| {
                // Who reads a thread's clock and its first hit may both be at it.
                s.tid
                    .compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed)
                    .map_or_else(|now| now == tid, |_| true)
            })
        })
    }

    /// Empties a slot for the next thread. Nobody finds there what was its last one's.
    pub fn free_slot(&self, at: usize) {
        let (Some(slot), Some(shown), Some(pinned)) = (self.slots.get(at), self.shown.get(at), self.pinned.get(at))
        else {
            return;
        };
        for word in slot.words() {
            word.store(0, Ordering::Relaxed);
        }
        slot.busy.store(0, Ordering::Relaxed);
        shown.forget();
        pinned.store(0, Ordering::Relaxed);
        slot.tid.store(0, Ordering::Release);
    }

    /// A thread takes the number of its process at an exec, in which all others end: its slot goes with it, and what is there
    /// of the first thread does not hold for it. Only the supervisor calls it, while the thread stands still.
    pub fn renumber(&self, from: u32, to: u32) {
        let free = |tid| self.place(tid).into_iter().for_each(|at| self.free_slot(at));
        forget_rival(&self.rivals, to);
        let Some(own) = self.slot(from) else { return free(to) };
        let Some(slot) = self.claim_slot(to) else { return free(from) };
        for (new, old) in slot.words().into_iter().zip(own.words()) {
            new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if let (Some(new), Some(old)) = (self.pinned(to), self.pinned(from)) {
            new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if let (Some(new), Some(old)) = (self.shown(to), self.shown(from)) {
            // The process's time goes on.
            for (new, old) in
                [(&new.thread_ns, &old.thread_ns), (&new.user_ns, &old.user_ns), (&new.system_ns, &old.system_ns)]
            {
                new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            new.late.take_over(&old.late);
        }
        free(from);
    }

    /// What was shown of such a thread.
    #[inline(never)]
    pub fn shown(&self, tid: u32) -> Option<&Shown> {
        self.shown.get(self.place(tid)?)
    }

    /// The cores that it is pinned to.
    #[inline(never)]
    pub fn pinned(&self, tid: u32) -> Option<&AtomicU64> {
        self.pinned.get(self.place(tid)?)
    }

    /// The ledger's entries, one per virtual CPU.
    #[inline(always)]
    pub fn entries(&self) -> &[AtomicU64] {
        let vcpus = self.vcpus.load(Ordering::Relaxed) as usize;
        let vcpus = if vcpus == 0 { 1 } else { vcpus };
        self.free_v_ns.get(..vcpus).unwrap_or(&self.free_v_ns)
    }

    /// Ticks of the TSC per virtual ns, where rdtsc is trapped.
    #[inline(always)]
    pub fn tsc_rate(&self) -> Option<Rate> {
        let (int, frac) = (self.tsc_rate_int.load(Ordering::Relaxed), self.tsc_rate_frac.load(Ordering::Relaxed));
        (int | frac != 0).then_some(Rate { int, frac })
    }

    /// Virtual CPU ns per real CPU ns (1/speed).
    #[inline(always)]
    pub fn slowness(&self) -> Rate {
        Rate { int: self.slowness_int.load(Ordering::Relaxed), frac: self.slowness_frac.load(Ordering::Relaxed) }
    }

    /// Real CPU ns per virtual CPU ns (speed).
    #[inline(always)]
    pub fn speed(&self) -> Rate {
        Rate { int: self.speed_int.load(Ordering::Relaxed), frac: self.speed_frac.load(Ordering::Relaxed) }
    }
}

/// Bytes of a node page, a multiple of a memory page.
pub const NODE_PAGE_LEN: u64 = (size_of::<NodePage>() as u64).next_multiple_of(4096);
/// Bytes of a process page, a multiple of a memory page.
pub const PROC_PAGE_LEN: u64 = (size_of::<ProcPage>() as u64).next_multiple_of(4096);

const _: () = {
    assert!(size_of::<SegmentCell>() == 48);
    assert!(size_of::<ThreadSlot>() == 128);
    assert!(size_of::<InitArgs>() == 72);
    assert!(offset_of!(NodePage, seq) == 16);
    assert!(offset_of!(NodePage, segments) == 24);
    assert!(offset_of!(NodePage, clock) == 24 + 48 * SEGMENTS_MAX);
    assert!(size_of::<ClockPair>() == 128);
    assert!(offset_of!(ProcPage, lineage) == 16);
    assert!(offset_of!(ProcPage, kernel_clock_gettime) == 24);
    assert!(offset_of!(ProcPage, own) % 4096 == 0);
    assert!(size_of::<OwnPage>() == 4096);
    assert!(PROC_PAGE_ADDR + PROC_PAGE_LEN <= ALT_ADDR);
    assert!(NODE_PAGE_ADDR + NODE_PAGE_LEN <= PROC_PAGE_ADDR);
    assert!(NODE_PAGE_LEN < 0x20_0000);
};

#[cfg(test)]
mod tests {
    use diecast_core_vtime::Tdf;

    use super::*;

    #[test]
    fn buckets_follow_each_other_and_tell_an_eighth() {
        assert_eq!((late_bucket(0), late_bucket(7), late_bucket(8)), (0, 7, 8));
        assert_eq!((late_bucket(1023), late_bucket(1024), late_bucket(1151), late_bucket(1152)), (63, 64, 64, 65));
        let mut least = 0;
        for bucket in 0..LATE_BUCKETS - 1 {
            let max = late_bucket_max_ns(bucket);
            assert_eq!((late_bucket(least), late_bucket(max), late_bucket(max + 1)), (bucket, bucket, bucket + 1));
            assert!(max - least <= least / 8, "bucket {bucket}: {least} to {max}");
            least = max + 1;
        }
        assert_eq!(least, 1 << 43);
        assert_eq!(late_bucket(u64::MAX), LATE_BUCKETS - 1);
    }

    #[test]
    fn the_short_way_to_virtual_time_is_the_long_one_or_none() {
        for (num, den) in [(1, 1), (10, 1), (1000, 1), (3, 2), (7, 3), (1, 100)] {
            let segment = Segment::new(RealNs(5_000_000_000), VirtNs(77), Tdf::new(num, den).unwrap());
            let cell = SegmentCell::default();
            cell.store(&segment);
            for d in
                (0..56).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) | 0x1234_5678]).filter(|d| d >> 56 == 0)
            {
                let r = RealNs(segment.r0_ns + d);
                assert_eq!(cell.v_of_at_once(r), Some(segment.v_of(r)), "TDF {num}/{den}, {d} ns");
            }
            for r in [segment.r0_ns - 1, 0, u64::MAX, segment.r0_ns + (1 << 56)] {
                assert_eq!(cell.v_of_at_once(RealNs(r)), None, "{r}");
            }
        }
    }
}
