//! Instructions of the seccomp filters that the blob installs or begins.

/// Loads a word of `struct seccomp_data`: [`NUMBER`], [`IP_LOW`], [`IP_HIGH`].
pub const LOAD: u64 = 0x20;
pub const EQUAL: u64 = 0x15;
pub const ABOVE: u64 = 0x25;
pub const AT_LEAST: u64 = 0x35;
pub const RETURN: u64 = 0x06;

pub const NUMBER: u64 = 0;
pub const IP_LOW: u64 = 8;
pub const IP_HIGH: u64 = 12;

pub const ALLOW: u64 = 0x7fff_0000;
/// With 16 bits for the handler.
pub const TRAP: u64 = 0x0003_0000;

/// The call by which handlers return.
pub const RT_SIGRETURN: u64 = 15;

/// The mode of prctl and the operation of seccomp.
pub const SET_MODE_FILTER: u32 = 1;

/// `struct sock_filter`: code of 16 bits, instructions to jump over when it holds and when not, 8 bits each, operand of
/// 32 bits.
pub const fn op(code: u64, holds: u64, not: u64, operand: u64) -> u64 {
    code | holds << 16 | not << 24 | (operand & 0xffff_ffff) << 32
}
