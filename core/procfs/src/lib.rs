//! Files of /proc that tell time or cores, as a frame shows them: the kernel's text with these replaced.
//!
//! Text goes in and out byte by byte, so that the blob, which has neither allocator nor `memcpy`, can use it.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod path;
mod process;
mod system;

pub use path::{Kind, kind_of};
pub use process::{PidTimes, SchedView, SignalView, StatusView, parse_times, pid_stat, schedstat, status};
pub use system::{Machine, busy_ticks, cores_of, cpuinfo, loadavg, processors_of, stat, uptime};

/// The unit of times in most of these files.
pub const TICK_NS: u64 = 10_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Where text goes.
pub trait Sink {
    fn push(&mut self, byte: u8);

    fn text(&mut self, text: &[u8]) {
        for byte in text {
            self.push(*byte);
        }
    }

    fn number(&mut self, value: u64) {
        let (mut digits, mut first, mut left) = ([0u8; 20], 20, value);
        for (i, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                first = i;
                break;
            }
        }
        self.text(digits.get(first..).unwrap_or(&[]));
    }

    /// Exactly two digits.
    fn hundredths(&mut self, value: u64) {
        self.push(b'0' + (value / 10 % 10) as u8);
        self.push(b'0' + (value % 10) as u8);
    }

    fn hex16(&mut self, value: u64) {
        for at in (0..16).rev() {
            self.hex_digit(value >> (4 * at));
        }
    }

    /// The lowest four bits.
    fn hex_digit(&mut self, value: u64) {
        let digit = (value & 15) as u8;
        self.push(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
    }
}

/// The first number of a text: its decimal digits after anything that is none.
fn first_number(text: &[u8]) -> Option<u64> {
    let mut value = None;
    for byte in text {
        if byte.is_ascii_digit() {
            value = Some(value.unwrap_or(0u64).wrapping_mul(10).wrapping_add((*byte - b'0') as u64));
        } else if value.is_some() {
            break;
        }
    }
    value
}

/// Whether two texts are the same; the blob has no `memcmp` either.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && begins(a, b)
}

fn begins(text: &[u8], start: &[u8]) -> bool {
    text.len() >= start.len() && text.iter().zip(start).all(|(x, y)| x == y)
}

/// Pieces of a text with the byte that ends each. The standard library's own can panic, which the blob must not.
#[derive(Clone)]
struct Pieces<'a> {
    rest: &'a [u8],
    end: u8,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let len = self.rest.iter().position(|byte| *byte == self.end).map_or(self.rest.len(), |at| at + 1);
        let piece = self.rest.get(..len)?;
        self.rest = self.rest.get(len..)?;
        if piece.is_empty() { None } else { Some(piece) }
    }
}

fn lines(text: &[u8]) -> Pieces<'_> {
    Pieces { rest: text, end: b'\n' }
}

fn words(text: &[u8]) -> Pieces<'_> {
    Pieces { rest: text, end: b' ' }
}

#[cfg(test)]
impl Sink for String {
    fn push(&mut self, byte: u8) {
        String::push(self, byte as char);
    }
}
