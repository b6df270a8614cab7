//! The unsafe calls of this crate, each behind a safe function that has no lasting effect but on the caller.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// `mseal`, since Linux 6.10; libc has no name for it.
const SYS_MSEAL: libc::c_long = 462;
const KVM_CREATE_VM: libc::Ioctl = 0xae01;

/// Does the kernel know this pair of flags of a seccomp filter with a listener? Asked with a filter that can't be
/// read, so that nothing is installed: unknown flags are refused (EINVAL) before the filter is looked at (EFAULT).
pub(crate) fn knows_seccomp_flags(flags: libc::c_ulong) -> bool {
    // SAFETY: the null pointer is what is asked about; the kernel answers EFAULT.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, std::ptr::null::<libc::sock_fprog>())
    };
    result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// The system call that the trial filter reports: it changes nothing and nobody makes it by chance.
pub(crate) const REPORTED_CALL: libc::c_long = libc::SYS_getpgrp;

/// Makes it. Usable after fork.
pub(crate) fn reported_call() -> io::Result<()> {
    // SAFETY: no argument.
    let result = unsafe { libc::syscall(REPORTED_CALL) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Seals a page of its own, which stays mapped for the life of the process: for a child that ends at once.
pub(crate) fn seal_a_page() -> io::Result<()> {
    const LEN: usize = 4096;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: seals the mapping made above, which nobody else uses.
    let result = unsafe { libc::syscall(SYS_MSEAL, page, LEN, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks what mapping lies at an address of this process's code, as the blob does before it changes an instruction.
pub(crate) fn query_own_map() -> io::Result<()> {
    /// `struct procmap_query`: size, flags and address go in, the rest is told.
    const WORDS: usize = 13;
    const QUERY: libc::Ioctl = 0xc068_6611;
    let maps = std::fs::File::open("/proc/self/maps")?;
    let mut query = [0u64; WORDS];
    (query[0], query[2]) = (size_of::<[u64; WORDS]>() as u64, query_own_map as *const () as u64);
    // SAFETY: the kernel reads and writes the size that the first word tells, which is the array's.
    let result = unsafe { libc::ioctl(maps.as_raw_fd(), QUERY, query.as_mut_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// SCHED_FIFO for the calling thread.
pub(crate) fn set_fifo(priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: pid 0 is the calling thread, `param` is a valid sched_param that outlives the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const param) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Moves the calling process, which has one thread and is about to end, into new namespaces.
pub(crate) fn unshare_in_child(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: only called between fork and exit, where no other thread exists and nothing relies on the namespaces
    // (or, with FILES, on the descriptor table) that the process was forked in.
    unsafe { unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// Makes a virtual machine without memory or processors, and destroys it.
pub(crate) fn make_virtual_machine(kvm: BorrowedFd<'_>) -> io::Result<()> {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: KVM_CREATE_VM takes a number by value: machine type 0.
    let fd = unsafe { libc::ioctl(kvm.as_raw_fd(), KVM_CREATE_VM, 0 as libc::c_ulong) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns; closing it destroys the machine.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}
