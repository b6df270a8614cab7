//! The kernel's own vDSO, as mapped into this process; every process has the same image.

use crate::{GuestPtr, Tid, memory};

/// Offsets of what the blob and the supervisor need in the kernel's vDSO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelVdso {
    /// `__vdso_clock_gettime`.
    pub clock_gettime: u64,
    /// `__vdso_getcpu`, 0 when absent.
    pub getcpu: u64,
    /// `__vdso_getrandom`, 0 when absent (before Linux 6.11).
    pub getrandom: u64,
    /// Some `syscall` instruction.
    pub syscall: u64,
    /// One behind which the function returns, and only clears registers that a call need not keep; None where the image has
    /// none.
    pub syscall_ret: Option<u64>,
}

fn u16_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u16::from_ne_bytes(b.get(at..at + 2)?.try_into().ok()?)))
}
fn u32_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?)))
}
fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(b.get(at..at + 8)?.try_into().ok()?))
}

/// Value of a dynamic symbol of an ELF image.
pub fn symbol(image: &[u8], name: &str) -> Option<u64> {
    let (shoff, shentsize, shnum) =
        (u64_at(image, 40)? as usize, u16_at(image, 58)? as usize, u16_at(image, 60)? as usize);
    for i in 0..shnum {
        let s = shoff + i * shentsize;
        const SHT_DYNSYM: u64 = 11;
        if u32_at(image, s + 4)? != SHT_DYNSYM {
            continue;
        }
        let (off, size, link) =
            (u64_at(image, s + 24)? as usize, u64_at(image, s + 32)? as usize, u32_at(image, s + 40)? as usize);
        let strings = u64_at(image, shoff + link * shentsize + 24)? as usize;
        for at in (off..off + size).step_by(24) {
            let n = strings + u32_at(image, at)? as usize;
            let end = n + image.get(n..)?.iter().position(|b| *b == 0)?;
            if image.get(n..end)? == name.as_bytes() {
                return u64_at(image, at + 8);
            }
        }
    }
    None
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Whether instructions are `ret`, after any number of `xor` of a register that a call need not keep with itself.
fn returns(code: &[u8]) -> bool {
    match code {
        [0xc3, ..] => true,
        // edx, ecx, esi, edi; r8d to r11d.
        [0x31, 0xd2 | 0xc9 | 0xf6 | 0xff, rest @ ..] | [0x45, 0x31, 0xc0 | 0xc9 | 0xd2 | 0xdb, rest @ ..] => {
            returns(rest)
        }
        _ => false,
    }
}

impl KernelVdso {
    /// Finds the offsets in this process's own vDSO. None on a kernel without one.
    pub fn find() -> Option<KernelVdso> {
        // SAFETY: cannot fail; 0 when absent.
        let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
        if base == 0 {
            return None;
        }
        // Two pages at most; read through the kernel so that a shorter image is no fault.
        let mut image = vec![0u8; 8192];
        let me = Tid(std::process::id() as i32);
        if memory::read(me, GuestPtr(base), &mut image).is_err() {
            image.truncate(4096);
            memory::read(me, GuestPtr(base), &mut image).ok()?;
        }
        let clock_gettime = symbol(&image, "__vdso_clock_gettime")?;
        let getcpu = symbol(&image, "__vdso_getcpu").unwrap_or(0);
        let getrandom = symbol(&image, "__vdso_getrandom").unwrap_or(0);
        let syscall = image.windows(2).position(|w| w == SYSCALL)? as u64;
        let syscall_ret = image.windows(2).enumerate().find(|(at, w)| *w == SYSCALL && returns(&image[at + 2..]));
        Some(KernelVdso {
            clock_gettime,
            getcpu,
            getrandom,
            syscall,
            syscall_ret: syscall_ret.map(|(at, _)| at as u64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_returns_where_only_registers_are_cleared_before_ret() {
        assert!(returns(&[0xc3]));
        assert!(returns(&[0x31, 0xd2, 0x31, 0xc9, 0x31, 0xf6, 0x31, 0xff, 0x45, 0x31, 0xdb, 0xc3, 0xcc]));
        for other in
            [&[][..], &[0xc9, 0xc3], &[0x31, 0xdb, 0xc3], &[0x45, 0x31, 0xe4, 0xc3], &[0x31, 0xc0, 0xc3], &[0x31]]
        {
            assert!(!returns(other), "{other:x?}: leave, ebx, r12, the result itself, no end");
        }
    }
}
