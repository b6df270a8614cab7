//! Shared memory files, and other processes' memory.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use crate::{GuestPtr, Tid, check};

/// An anonymous memory file of a given length.
pub fn memfd(name: &std::ffi::CStr, len: u64) -> io::Result<OwnedFd> {
    // SAFETY: a valid C string.
    let fd = check(i64::from(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) }))?;
    // SAFETY: a new descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    // SAFETY: plain call.
    check(i64::from(unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) }))?;
    Ok(fd)
}

/// A shared, writable mapping of a `T` made of atomics, unmapped when dropped.
#[derive(Debug)]
pub struct Shared<T> {
    at: NonNull<T>,
    len: usize,
}

// SAFETY: `map` demands that T is usable from several threads and processes at once (atomics only).
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T: Sync> Shared<T> {
    /// Maps `len` bytes of a file from `offset`.
    ///
    /// T must consist of atomics for which all bit patterns are values; the types of core/abi are.
    pub fn map(fd: &OwnedFd, offset: u64, len: u64) -> io::Result<Shared<T>> {
        if (len as usize) < size_of::<T>() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "mapping shorter than its type"));
        }
        // SAFETY: a new mapping at an address of the kernel's choice.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(p.cast::<T>()) {
            Some(at) => Ok(Shared { at, len: len as usize }),
            None => Err(io::Error::other("mapped at zero")),
        }
    }
}

impl<T> std::ops::Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: mapped for at least size_of::<T>() bytes until drop; T is made of atomics.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, no reference outlives self.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Reads another process's memory; all bytes or an error.
pub fn read(tid: Tid, at: GuestPtr, buf: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let remote = libc::iovec { iov_base: at.0 as *mut libc::c_void, iov_len: buf.len() };
    // SAFETY: the local iovec covers `buf`; the remote address is checked by the kernel.
    let n = check(unsafe { libc::process_vm_readv(tid.0, &raw const local, 1, &raw const remote, 1, 0) } as i64)?;
    if n as usize == buf.len() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
}

/// Writes another process's memory whatever its protection is, for which the caller must be allowed to trace it.
pub fn write_all(tid: Tid, at: GuestPtr, bytes: &[u8]) -> io::Result<()> {
    let memory = std::fs::OpenOptions::new().write(true).open(format!("/proc/{}/mem", tid.0))?;
    memory.write_all_at(bytes, at.0)
}

/// Writes words to another process's memory, where it can write itself.
pub fn write_words(tid: Tid, at: GuestPtr, words: &[u64]) -> io::Result<()> {
    let len = size_of_val(words);
    let local = libc::iovec { iov_base: words.as_ptr().cast_mut().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: at.0 as *mut libc::c_void, iov_len: len };
    // SAFETY: the local iovec covers `words`, which are only read; the remote address is checked by the kernel.
    let n = check(unsafe { libc::process_vm_writev(tid.0, &raw const local, 1, &raw const remote, 1, 0) } as i64)?;
    if n as usize == len { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
}

/// Reads words of another process's memory.
pub fn read_words(tid: Tid, at: GuestPtr, words: &mut [u64]) -> io::Result<()> {
    let mut bytes = vec![0u8; words.len() * 8];
    read(tid, at, &mut bytes)?;
    for (w, b) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *w = u64::from_ne_bytes(b.try_into().unwrap_or([0; 8]));
    }
    Ok(())
}
