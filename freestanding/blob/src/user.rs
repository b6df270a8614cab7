//! The program's memory: read and written only after the kernel said that it may be.
//!
//! `rt_sigprocmask` with an impossible `how` copies 8 bytes in and then fails with EINVAL; it fails with
//! EFAULT when it can't. With `how` = BLOCK and no new set it copies 8 bytes out. Both cost one plain call.

use diecast_core_syscalls::nr::RT_SIGPROCMASK;

use crate::sys::{self, EFAULT, Ret};

/// `struct timespec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Timespec {
    pub sec: i64,
    pub nsec: i64,
}

/// `struct timeval`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Timeval {
    pub sec: i64,
    pub usec: i64,
}

/// `struct itimerspec` and, with microseconds, `struct itimerval`: interval first.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pair<T> {
    pub interval: T,
    pub value: T,
}

/// Types of plain integers only: any bytes are a value.
///
/// # Safety
/// No padding with meaning, no references, size a multiple of 8, or a small integer that is only read (writing asks with whole words).
pub unsafe trait Plain: Copy {}
// SAFETY: plain integers.
unsafe impl Plain for u64 {}
// SAFETY: plain integers.
unsafe impl Plain for u32 {}
// SAFETY: plain integers.
unsafe impl Plain for u16 {}
// SAFETY: plain integers.
unsafe impl Plain for Timespec {}
// SAFETY: plain integers.
unsafe impl Plain for Timeval {}
// SAFETY: plain integers.
unsafe impl<T: Plain> Plain for Pair<T> {}
// SAFETY: plain integers.
unsafe impl<const N: usize> Plain for [u64; N] {}

/// Below it nothing is mapped; and to the questions below a null pointer means "no set", not "is it there?".
const FIRST_PAGE: u64 = 4096;

fn readable8(addr: u64) -> bool {
    addr >= FIRST_PAGE && sys::own(RT_SIGPROCMASK, [99, addr, 0, 8, 0, 0]) != EFAULT
}

fn writable8(addr: u64) -> bool {
    addr >= FIRST_PAGE && sys::own(RT_SIGPROCMASK, [0, 0, addr, 8, 0, 0]) != EFAULT
}

/// Whether up to a page can be read, from the first byte to the last; 8 bytes at least.
pub fn is_readable(addr: u64, len: u64) -> bool {
    (8..=4096).contains(&len) && covered(addr, len, readable8)
}

/// Whether up to a page can be written, from the first byte to the last.
pub fn is_writable(addr: u64, len: u64) -> bool {
    on_this_page(addr, len) || covered(addr, len, writable8)
}

/// The stack page that the blob itself runs on is mapped and writable: no need to ask.
fn on_this_page(addr: u64, len: u64) -> bool {
    let here = 0u8;
    let page = (&raw const here as u64) & !4095;
    addr >= page && addr.saturating_add(len) <= page + 4096
}

/// Calls `ok` for a word in each page of the up to a page of bytes at `addr`. Fewer than 8 bytes are asked for by the aligned
/// words around them, which lie in the same pages.
fn covered(addr: u64, len: u64, ok: fn(u64) -> bool) -> bool {
    let last = addr.wrapping_add(len - 1);
    let (first_word, last_word) = if len < 8 { (addr & !7, last & !7) } else { (addr, addr.wrapping_add(len - 8)) };
    ok(first_word) && ((addr ^ last) < 4096 || ok(last_word))
}

/// Copies a value from the program.
pub fn get<T: Plain>(addr: u64) -> Result<T, Ret> {
    let len = size_of::<T>() as u64;
    if !on_this_page(addr, len) && !covered(addr, len, readable8) {
        return Err(EFAULT);
    }
    // SAFETY: the kernel just read these bytes, or they are on the current stack page; T takes any bytes.
    Ok(unsafe { (addr as *const T).read_unaligned() })
}

/// Copies a value to the program.
pub fn put<T: Plain>(addr: u64, value: T) -> Result<(), Ret> {
    if !is_writable(addr, size_of::<T>() as u64) {
        return Err(EFAULT);
    }
    // SAFETY: the kernel just wrote these bytes, or they are on the current stack page.
    unsafe { (addr as *mut T).write_unaligned(value) };
    Ok(())
}

/// Changes what a call that was just made has written.
///
/// # Safety
/// The kernel wrote the whole of `T` there in that call, and it succeeded.
pub unsafe fn change<T: Plain>(addr: u64, how: impl FnOnce(T) -> T) {
    let at = addr as *mut T;
    // SAFETY: mapped and writable a moment ago; who unmaps what its own call writes hurts itself.
    unsafe { at.write_unaligned(how(at.read_unaligned())) };
}

/// Copies words to the program, up to a page of them, one by one: the image has no `memcpy`.
pub fn put_words(addr: u64, words: &[u64]) -> Result<(), Ret> {
    let len = 8 * words.len() as u64;
    if len > 4096 || len > 0 && !is_writable(addr, len) {
        return Err(EFAULT);
    }
    for (i, w) in words.iter().enumerate() {
        // SAFETY: the kernel just wrote in each page of these bytes, or they are on the current stack page.
        unsafe { (addr as *mut u64).wrapping_add(i).write_unaligned(*w) };
        // Else the compiler makes it a call of `memcpy`.
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    }
    Ok(())
}
