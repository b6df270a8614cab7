//! What the blob keeps for one process beyond the first words of its page.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use crate::BLOB_ADDR;

/// Timers whose clock is remembered.
pub const TIMERS_MAX: usize = 1024;
/// Entries of the CPU timers' table: POSIX timers, then ITIMER_VIRTUAL and ITIMER_PROF.
pub const CPU_TIMERS: usize = TIMERS_MAX + 2;
/// Words of a bit set of [`CPU_TIMERS`].
pub const CPU_TIMER_WORDS: usize = CPU_TIMERS.div_ceil(64);
/// Where the blob maps alternate signal stacks of its own, in place of the program's when those are small.
pub const ALT_ADDR: u64 = BLOB_ADDR + 0x1000_0000;
/// Length of one, its header included.
pub const ALT_LEN: u64 = 0x1_0000;
/// How many a process can have at one time; more small stacks go to the kernel as they are.
pub const ALT_SLOTS: usize = 1024;

/// Signalfds for SIGSYS and SIGTRAP that a process can have at one time.
pub const SIGNALFDS: usize = 4;

/// Places in a program that are watched at one time for how many trapped calls come from them.
pub const SITES: usize = 128;
/// Pages of instructions that they jump to: a program's own code and its libraries may lie more than 2 GiB apart.
pub const STUB_PAGES: usize = 4;

/// Where the blob serves calls of programs with goroutines, whose stacks are too small: so many stacks of this length.
pub const STACKS_ADDR: u64 = ALT_ADDR + ALT_LEN * ALT_SLOTS as u64;
pub const STACK_LEN: u64 = 0x1_0000;
pub const STACKS: usize = 256;

/// Words of [`OwnPage::stack`].
pub const STACK_WORDS: usize = 384;

/// The part of a process's page that a child finds empty after fork (MADV_WIPEONFORK).
#[repr(C, align(4096))]
pub struct OwnPage {
    /// The sum of its threads' `cost_ns`, as far as they have told it.
    pub cost_ns: AtomicU64,
    /// Highest virtual CPU time that was shown: of the process, and its user and system parts.
    pub shown_cpu_ns: AtomicU64,
    pub shown_user_ns: AtomicU64,
    pub shown_system_ns: AtomicU64,
    /// The same of its children that ended.
    pub shown_children_user_ns: AtomicU64,
    pub shown_children_system_ns: AtomicU64,
    /// Virtual CPU time of the process at which its RLIMIT_CPU is looked at again, ns.
    pub cpu_limit_due_ns: AtomicU64,
    /// Hits since the process began.
    pub limit_hits: AtomicU64,
    /// Which CPU timers are armed, as bits.
    pub cpu_timers_armed: [AtomicU64; CPU_TIMER_WORDS],
    /// How many are.
    pub cpu_timers: AtomicU32,
    /// Threads of it that had a hit.
    pub threads_hit: AtomicU32,
    /// Threads of it that sleep off a hit, and how often they were asked to go on before their time.
    pub sleepers: AtomicU32,
    pub asked: AtomicU32,
    /// Threads of it that wait for a contended lock, and when the last of them began to, real ns. One that left its wait by
    /// a jump stays counted: the count means something for a while after that instant only.
    pub lock_waiters: AtomicU32,
    pub lock_wanted_r_ns: AtomicU64,
    /// Handlers of the program that were entered, in a metered node.
    pub handled: AtomicU64,
    /// Those of them that the blob entered, from a frame of its own.
    pub chained: AtomicU64,
    /// Kicks of its threads.
    pub kicked: AtomicU64,
    /// Virtual SIGTRAP (bit 0), SIGSYS (bit 1) and SIGSEGV (bit 2) that wait because every thread they met blocks them.
    pub pending: AtomicU32,
    /// Their `siginfo_t`, SIGTRAP's first.
    pub pending_info: [[AtomicU64; 16]; 3],
    /// Those of them that were written to a signalfd.
    pub posted: AtomicU32,
    /// Its signalfds for the two: descriptor plus 1 (0 = none) and, from bit 32, which signals; and their inodes.
    pub signalfds: [AtomicU64; SIGNALFDS],
    pub signalfd_inodes: [AtomicU64; SIGNALFDS],
    /// 1 once this image set ITIMER_REAL or a POSIX timer, or found the first set by the image before it; 2 once it set
    /// one beyond [`TIMERS_MAX`].
    pub timers: AtomicU32,
    /// 1 once it set a POSIX timer to an instant of a wall clock.
    pub wall_timers: AtomicU32,
    /// The node's MONOTONIC at which a held ITIMER_REAL is due (0 = not held), and its interval, ns.
    pub itimer_due_ns: AtomicU64,
    pub itimer_every_ns: AtomicU64,
    /// Its process id, from its first trapped call on: a child of vfork finds its parent's.
    pub pid: AtomicU32,
    /// Which of the stacks at [`STACKS_ADDR`] are in use, as bits.
    pub stacks: [AtomicU64; STACKS / 64],
    /// 1 while a thread of it changes instructions.
    pub changing: AtomicU32,
    /// Stack of the calls that the supervisor makes while every thread of the process is stopped.
    pub stack: [AtomicU64; STACK_WORDS],
}

/// The part that a child inherits.
#[repr(C)]
pub struct InheritedPage {
    /// The program's handler of each signal whose kernel handler is the blob's.
    pub handlers: [AtomicU64; 65],
    /// Owners of the blob's alternate stacks, `pid << 32 | tid`; 0 = free.
    pub alt_owner: [AtomicU64; ALT_SLOTS],
    /// 1 once any thread's alternate stack was replaced by one of ours.
    pub alt_used: AtomicU32,
    /// 1 once the program installed a seccomp filter of its own.
    pub filtered: AtomicU32,
    /// 1 once a thread asked that rdtsc give it SIGSEGV.
    pub tsc_refused: AtomicU32,
    /// 1 where calls are served on stacks of the blob's.
    pub apart: AtomicU32,
    /// Timer slack that the program set, virtual ns; 0 = the machine's.
    pub slack_v_ns: AtomicU64,
    /// Virtual CPU time at which each armed CPU timer is due, and its interval, ns. Of other POSIX timers, while they are
    /// held: the node's MONOTONIC at which they are due, and their interval.
    pub cpu_due_ns: [AtomicU64; CPU_TIMERS],
    pub cpu_every_ns: [AtomicU64; CPU_TIMERS],
    /// How far the wall clock of a POSIX timer that is set to an instant of it was ahead of MONOTONIC by then, ns.
    pub timer_ahead_ns: [AtomicI64; TIMERS_MAX],
    /// 1 once the program asked for stamps on packets, and its receiving calls are trapped.
    pub stamped: AtomicU32,
    /// Places of which trapped calls came (freestanding/blob/src/sites.rs): the address after the call, times 2^16, and how
    /// many calls came from there or what has become of it.
    pub sites: [AtomicU64; SITES],
    /// Pages with the instructions that those places jump to: address, and in its low bits how many there are.
    pub stubs: [AtomicU64; STUB_PAGES],
    /// The place that is being changed, as in `sites` (0 = none), and its jump's operand.
    pub site_changing: AtomicU64,
    pub site_operand: AtomicU32,
    /// 1 where no place is changed: a tracer would see it, or the kernel can't tell what may be.
    pub sites_off: AtomicU32,
}
