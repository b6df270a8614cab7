//! The blob's image and where things are in it.

use diecast_host_sys::vdso;

/// The ELF image, built and checked by build.rs.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/blob.so"));

/// Bytes of the image, rounded up to whole pages.
pub fn mapped_len() -> u64 {
    (IMAGE.len() as u64).next_multiple_of(4096)
}

/// Offset of a symbol of the image.
pub fn offset(symbol: &str) -> Option<u64> {
    vdso::symbol(IMAGE, symbol)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic, OpKind, Register};

    fn number(b: &[u8], at: usize, len: usize) -> u64 {
        b.get(at..at + len).map_or(0, |s| s.iter().rev().fold(0, |n, x| n << 8 | u64::from(*x)))
    }
    include!("image_check.rs");

    #[test]
    fn image_is_accepted_and_broken_ones_are_not() {
        assert_eq!(check(IMAGE), Ok(()));
        let phoff = number(IMAGE, 32, 8) as usize;
        let with = |at: usize, byte: u8| {
            let mut b = IMAGE.to_vec();
            b[at] = byte;
            check(&b)
        };
        assert!(with(0, 0).is_err(), "not ELF");
        assert!(with(phoff + 4, 7).is_err(), "writable load");
        assert!(with(phoff + 56 + 4, 6).is_err(), "writable dynamic");
        assert!(with(phoff + 56, 1).is_err(), "two loads");
        assert!(with(phoff + 56, 7).is_err(), "thread-local storage");
        assert!(with(phoff + 56, 3).is_err(), "interpreter");
    }

    #[test]
    fn exports_the_vdso_and_the_supervisors_entries() {
        for name in ["clock_gettime", "gettimeofday", "time", "clock_getres", "getcpu", "getrandom"] {
            assert!(offset(name).is_some() && offset(&format!("__vdso_{name}")).is_some(), "{name}");
        }
        assert!(offset("diecast_blob_init").is_some());
        assert!(offset("nothing_of_the_kind").is_none());
    }

    fn text() -> (u64, &'static [u8]) {
        let (shoff, size, n, names) = (
            number(IMAGE, 40, 8) as usize,
            number(IMAGE, 58, 2) as usize,
            number(IMAGE, 60, 2) as usize,
            number(IMAGE, 62, 2) as usize,
        );
        let strings = number(IMAGE, shoff + names * size + 24, 8) as usize;
        for i in 0..n {
            let s = shoff + i * size;
            let name = strings + number(IMAGE, s, 4) as usize;
            if IMAGE[name..].starts_with(b".text\0") {
                let (at, len) = (number(IMAGE, s + 24, 8) as usize, number(IMAGE, s + 32, 8) as usize);
                return (at as u64, &IMAGE[at..at + len]);
            }
        }
        panic!("no .text");
    }

    /// A system call preserves vector registers and the x87 state: so must a trampoline.
    #[test]
    fn uses_general_registers_only() {
        let (at, code) = text();
        let mut info = InstructionInfoFactory::new();
        for i in Decoder::with_ip(64, code, at, DecoderOptions::NONE).iter() {
            for r in info.info(&i).used_registers() {
                let r = r.register();
                assert!(!r.is_xmm() && !r.is_ymm() && !r.is_zmm() && !r.is_mm() && !r.is_st(), "{i} at {:x}", i.ip());
            }
        }
    }

    /// Goroutines leave about 800 bytes: no single frame may take much of it.
    #[test]
    fn frames_are_small() {
        let (at, code) = text();
        for i in Decoder::with_ip(64, code, at, DecoderOptions::NONE).iter() {
            let grows =
                i.mnemonic() == Mnemonic::Sub && i.op0_register() == Register::RSP && i.op1_kind() != OpKind::Register;
            assert!(!grows || i.immediate(1) <= 0x120, "{i} at {:x}", i.ip());
        }
    }
}
