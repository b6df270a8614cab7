//! The meter's event: a SIGTRAP to a thread after each `period` of its CPU time.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::{Tid, check};

const TYPE_SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// `struct perf_event_attr` up to version 7, 128 bytes.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved_2: u16,
    aux_sample_size: u32,
    reserved_3: u32,
    sig_data: u64,
}

const _: () = assert!(size_of::<Attr>() == 128);

/// Opens an event that overflows after each period of a core's time, whoever runs: for a BPF program. When the core is idle
/// too, which costs little more, since its timer is set all the same: a tick that is missing tells that the core stood still.
pub fn core_clock(core: u32, period_ns: u64) -> io::Result<OwnedFd> {
    let attr = Attr {
        kind: TYPE_SOFTWARE,
        size: size_of::<Attr>() as u32,
        config: CPU_CLOCK,
        sample_period: period_ns,
        flags: EXCLUDE_HV,
        ..Attr::default()
    };
    open(&attr, -1, core as i32)
}

/// An event of a thread (0 = the caller) on any core (-1), or of a core for whoever runs there (-1).
fn open(attr: &Attr, tid: i32, core: i32) -> io::Result<OwnedFd> {
    // SAFETY: attr is a live, fully initialised perf_event_attr of the size it names.
    let r =
        unsafe { libc::syscall(libc::SYS_perf_event_open, std::ptr::from_ref(attr), tid, core, -1, FLAG_FD_CLOEXEC) };
    // SAFETY: a new descriptor that nobody else owns.
    check(r).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A meter's event on one lineage; it ends for all descendants when this is dropped.
#[derive(Debug)]
pub struct Meter {
    fd: OwnedFd,
}

impl Meter {
    /// Opens a disabled event on a thread (0 = the caller), inherited by its children.
    ///
    /// Kernel mode is counted and delivers too: without it, ticks that land in the kernel are dropped.
    pub fn open(tid: Tid, period_ns: u64, sig_data: u64, count_kernel: bool) -> io::Result<Meter> {
        let attr = Attr {
            kind: TYPE_SOFTWARE,
            size: size_of::<Attr>() as u32,
            config: CPU_CLOCK,
            sample_period: period_ns,
            flags: DISABLED
                | INHERIT
                | EXCLUDE_HV
                | REMOVE_ON_EXEC
                | SIGTRAP
                | if count_kernel { 0 } else { EXCLUDE_KERNEL },
            sig_data,
            ..Attr::default()
        };
        open(&attr, tid.0, -1).map(|fd| Meter { fd })
    }

    pub fn enable(&self) -> io::Result<()> {
        // SAFETY: no pointer argument.
        check(i64::from(unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_ENABLE, 0) })).map(|_| ())
    }

    pub fn disable(&self) -> io::Result<()> {
        // SAFETY: no pointer argument.
        check(i64::from(unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_DISABLE, 0) })).map(|_| ())
    }
}
