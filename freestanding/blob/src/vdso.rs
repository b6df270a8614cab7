//! The functions that a C library finds through AT_SYSINFO_EHDR. No system call on the fast path.

use core::arch::global_asm;
use core::mem::offset_of;

use diecast_core_abi::{PROC_PAGE_ADDR, ProcPage};
use diecast_core_syscalls::nr::{CLOCK_GETRES, GETTIMEOFDAY};

use crate::user::{self, Timespec, Timeval};
use crate::{clock, node, sched, settime, sys};

macro_rules! twin {
    ($a:ident, $b:ident, ($($arg:ident : $t:ty),*) -> $r:ty, $body:expr) => {
        // The body twice: a call between two exported symbols would go through a GOT.
        #[unsafe(no_mangle)]
        pub extern "C" fn $a($($arg: $t),*) -> $r { $body }
        #[unsafe(no_mangle)]
        pub extern "C" fn $b($($arg: $t),*) -> $r { $body }
    };
}

twin!(__vdso_clock_gettime, clock_gettime, (id: i32, out: *mut Timespec) -> i32, {
    match clock::read_at_once(id) {
        Some(t) => {
            // SAFETY: as with the kernel's vDSO, a bad pointer is the caller's fault.
            unsafe { out.write(t) };
            0
        }
        None => clock_gettime_with_care(id, out),
    }
});

/// Of the clocks that the kernel's vDSO leaves to the system call a bad pointer gives EFAULT.
#[inline(never)]
fn clock_gettime_with_care(id: i32, out: *mut Timespec) -> i32 {
    match clock::read_with_care(id) {
        Ok(t) if clock::is_called(id) => user::put(out as u64, t).err().unwrap_or(0) as i32,
        Ok(t) => {
            // SAFETY: as with the kernel's vDSO, a bad pointer is the caller's fault.
            unsafe { out.write(t) };
            0
        }
        Err(e) => e as i32,
    }
}

twin!(__vdso_gettimeofday, gettimeofday, (out: *mut Timeval, zone: *mut u64) -> i32, {
    if !out.is_null() && let Ok(t) = clock::read(clock::REALTIME) {
        // SAFETY: as with the kernel's vDSO, a bad pointer is the caller's fault.
        unsafe { out.write(Timeval { sec: t.sec, usec: t.nsec / 1000 }) };
    }
    if !zone.is_null() {
        match settime::zone() {
            // SAFETY: as above.
            Some(own) => unsafe { zone.write(own) },
            None => {
                sys::own(GETTIMEOFDAY, [0, zone as u64, 0, 0, 0, 0]);
            }
        }
    }
    0
});

twin!(__vdso_time, time, (out: *mut i64) -> i64, {
    let sec = match clock::read(clock::REALTIME_COARSE) {
        Ok(t) => t.sec,
        Err(e) => e,
    };
    if !out.is_null() {
        // SAFETY: as with the kernel's vDSO, a bad pointer is the caller's fault.
        unsafe { out.write(sec) };
    }
    sec
});

twin!(__vdso_clock_getres, clock_getres, (id: i32, out: *mut Timespec) -> i32, resolution(sys::own, id, out as u64) as i32);

twin!(__vdso_getcpu, getcpu, (cpu: *mut u32, memory_node: *mut u32, _unused: u64) -> i32, {
    // SAFETY: as with the kernel's vDSO, a bad pointer is the caller's fault.
    unsafe { sched::tell_core(cpu, memory_node) };
    0
});

// Randomness is not of time: the kernel's own function, with its arguments as they are, or what it says where it is not
// supported.
global_asm!(
    r#"
    .text
    .globl __vdso_getrandom
    .type __vdso_getrandom, @function
    .globl getrandom
    .type getrandom, @function
__vdso_getrandom:
getrandom:
    .cfi_startproc
    movabs rax, {kernels}
    mov rax, [rax]
    test rax, rax
    jz 2f
    jmp rax
2:
    mov rax, {enosys}
    ret
    .cfi_endproc
    .size __vdso_getrandom, . - __vdso_getrandom
    .size getrandom, . - getrandom
"#,
    kernels = const PROC_PAGE_ADDR + offset_of!(ProcPage, kernel_getrandom) as u64,
    enosys = const sys::ENOSYS,
);

/// Bytes of the kernel's vDSO, whose first segment is all of it.
pub fn mapped_len(at: u64) -> u64 {
    const PT_LOAD: u32 = 1;
    const PAGE: u64 = 4096;
    // SAFETY: an ELF image of the kernel's, with its program headers in its first page.
    unsafe {
        let first = at + *((at + 32) as *const u64);
        if *(first as *const u32) == PT_LOAD { (*((first + 40) as *const u64)).next_multiple_of(PAGE) } else { 0 }
    }
}

/// clock_getres: 1 ns for high-resolution clocks, a tick in virtual time for the coarse ones and for those of CPU time that
/// the kernel counts in ticks.
pub fn resolution(call: sys::Call, id: i32, out: u64) -> i64 {
    let r = call(CLOCK_GETRES, [id as u32 as u64, out, 0, 0, 0, 0]);
    let n = node();
    let rate = match id {
        clock::REALTIME_COARSE | clock::MONOTONIC_COARSE => n.segment().rate,
        // PROF and VIRT of a process or thread by number.
        id if id < 0 && matches!(id & 3, 0 | 1) => n.slowness(),
        _ => return r,
    };
    if r == 0 && out != 0 {
        // SAFETY: the kernel just wrote a timespec there.
        unsafe {
            let t = (out as *const Timespec).read_unaligned();
            let ns = rate.mul_up(clock::ns_of(t)).max(1);
            (out as *mut Timespec).write_unaligned(clock::timespec(ns));
        }
    }
    r
}
