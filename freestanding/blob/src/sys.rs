//! Raw system calls. Their instruction pointer lies in the blob, so the filter lets them through.

use core::arch::asm;

use diecast_core_syscalls::nr;

use crate::entry;

/// Result of a call: negative errno or a value, as the kernel gives it.
pub type Ret = i64;

pub const EAGAIN: Ret = -11;
pub const EFAULT: Ret = -14;
pub const EINVAL: Ret = -22;
pub const EINTR: Ret = -4;
pub const EPERM: Ret = -1;
pub const ENOSYS: Ret = -38;
pub const ETIMEDOUT: Ret = -110;
/// Put in place of a result by [`crate::interrupt`]: the wait goes on for what is left of it.
pub const RESTART: Ret = -516;

/// One system call.
///
/// # Safety
/// The caller vouches for every pointer among the arguments, or passes through what the program passed.
#[inline(always)]
pub unsafe fn call(nr: u32, a: [u64; 6]) -> Ret {
    let ret: i64;
    // SAFETY: the instruction clobbers rax, rcx and r11 only; what the kernel writes is the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") nr as u64 => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// A call for the frame's own sake, of numbers and pointers to live locals of the caller. Seccomp filters of the
/// program's own let it through (see `carried::install`): it leaves from one place.
#[inline(always)]
pub fn own(nr: u32, a: [u64; 6]) -> Ret {
    entry::own_call(nr as u64, &a)
}

/// [`own`] or [`plain`]: for the frame's own sake, or judged by the program's filters as a call of its own.
pub type Call = fn(u32, [u64; 6]) -> Ret;

/// A call with the program's own arguments, or with ones that stand for them.
pub fn as_is(nr: u32, a: [u64; 6]) -> Ret {
    // SAFETY: the program's own pointers, judged by the kernel, and pointers to live locals.
    unsafe { call(nr, a) }
}

/// A call whose arguments are numbers or pointers to locals of the caller, of a number that the program used itself: its
/// seccomp filters judge it.
#[inline(always)]
pub fn plain(nr: u32, a: [u64; 6]) -> Ret {
    // SAFETY: used with pointers to live locals of the right size only.
    unsafe { call(nr, a) }
}

/// The folder that a process is in, as a descriptor.
pub const AT_FDCWD: u64 = -100i64 as u64;

pub const READ: u32 = 0;
pub const WRITE: u32 = 1;
pub const CLOSE: u32 = 3;
pub const SOCKET: u32 = 41;
pub const CONNECT: u32 = 42;
pub const SENDTO: u32 = 44;
pub const RECVFROM: u32 = 45;
pub const BIND: u32 = 49;
pub const GETSOCKNAME: u32 = 51;
pub const FCNTL: u32 = 72;
pub const FTRUNCATE: u32 = 77;
pub const FSTATFS: u32 = 138;
pub const READLINKAT: u32 = 267;
pub const DUP3: u32 = 292;
pub const MEMFD_CREATE: u32 = 319;
pub const MMAP: u32 = 9;
pub const MPROTECT: u32 = 10;
pub const RECVMSG: u32 = 47;
pub const GETPID: u32 = 39;
pub const GETUID: u32 = 102;
pub const KILL: u32 = 62;
pub const KCMP: u32 = 312;
pub const ARCH_PRCTL: u32 = 158;
pub const MADVISE: u32 = 28;
pub const RT_SIGQUEUEINFO: u32 = 129;
pub const RT_TGSIGQUEUEINFO: u32 = 297;
pub const CAPGET: u32 = 125;
pub const GETTID: u32 = 186;

pub const MUNMAP: u32 = 11;
pub const MSEAL: u32 = 462;

/// Where the kernel has mseal (Linux 6.10), a program can't unmap, replace or protect this any more; elsewhere it fails
/// harmlessly.
pub fn seal(addr: u64, len: u64) {
    own(MSEAL, [addr, len, 0, 0, 0, 0]);
}

pub fn gettid() -> u32 {
    own(GETTID, [0; 6]) as u32
}

/// Signals that wait for this thread or its process, as the kernel knows them.
pub fn pending() -> u64 {
    let mut set = 0u64;
    own(nr::RT_SIGPENDING, [&raw mut set as u64, 8, 0, 0, 0, 0]);
    set
}

/// Sends this thread a signal by name.
pub fn raise(signo: u64) {
    own(nr::TGKILL, [own(GETPID, [0; 6]) as u64, gettid() as u64, signo, 0, 0, 0]);
}

/// The same, the signal in the first word of a siginfo and all that it says in the others.
pub fn queue_here(info: &[u64; 16]) {
    let (pid, signo) = (own(GETPID, [0; 6]) as u64, info[0]);
    own(RT_TGSIGQUEUEINFO, [pid, gettid() as u64, signo, &raw const *info as u64, 0, 0]);
}

pub fn exit_group(code: u64) -> ! {
    loop {
        plain(231, [code, 0, 0, 0, 0, 0]);
    }
}
