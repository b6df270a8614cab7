//! Who pays for packets, and what a node's NIC tells with each frame: when it left, and how much CPU time its sender has
//! used.
//!
//! The program of `freestanding/bpf-egress` appends a trailer to every frame; the emulator takes it off. One that is still
//! to be cut into segments can't carry it: the program keeps it under what the emulator knows the frame by.

use std::os::fd::BorrowedFd;

use diecast_core_abi::PAUSED_UNIT_NS;
use diecast_core_cpu::Sent;
use diecast_core_vtime::{RealNs, VirtNs, VirtSpan};

/// Length of the trailer. Its 16-bit words sum to 0xffff, so that it changes no checksum.
pub const TRAILER_BYTES: usize = 56;
const MAGIC: u32 = 0xd1ec_de87;
/// In the thread id: it sends this frame in a call of setsockopt.
const IN_SETSOCKOPT: u32 = 1 << 31;
const PAUSED_SHIFT: u32 = 22;
const PAUSED_UNITS_MAX: u32 = 0xff;
/// A frame with several segments is known by both MACs, ports and sequence number (or length and checksum of UDP).
pub const LARGE_KEY_BYTES: usize = 20;
const MAC_BYTES: usize = 12;

/// Charges senders, and says when a packet may leave.
pub trait EgressLedger: Send + Sync {
    /// Charges the sender of a frame of the node with this index; the instant at which the original machine would have
    /// sent it.
    fn charge_sender(&self, node: usize, sent: &Sent, now: RealNs) -> VirtNs;

    /// Charges threads of a node, or of all, for what they did before they handed work on within it, up to that instant: it came
    /// before whatever leaves the node then. Whether there was anything, or may be.
    fn take_handed(&self, _node: Option<usize>, _until: RealNs, _now: RealNs) -> bool {
        false
    }

    /// Readable when some of it is to be taken without waiting for a frame.
    fn handed(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The trailer of a frame that is to be cut into segments; `None` when there is none any more.
    fn trailer_of(&self, key: &[u8; LARGE_KEY_BYTES]) -> Option<[u8; TRAILER_BYTES]>;
}

/// Charges receivers.
pub trait ReceiveLedger: Send + Sync {
    /// Charges the node with this index for a frame of so many bytes that the kernel worked on from `begun` to `ended`.
    fn charge_receiver(&self, node: usize, bytes: usize, begun: RealNs, ended: RealNs);

    /// For how much longer the original's kernel works on a frame of so many bytes than ours does for this node: it is
    /// handed over so much later.
    fn hold(&self, node: usize, bytes: usize) -> VirtSpan;

    /// The least that this is for any node and size.
    fn least_hold(&self) -> VirtSpan;
}

/// The trailer behind a frame: where it begins, and what it says (see [`parse`]). `None` when there is none, then the
/// frame is not the NIC's.
pub(crate) fn find_trailer(frame: &[u8]) -> Option<(usize, Trailer)> {
    let (frame, trailer) = frame.split_last_chunk()?;
    Some((frame.len(), parse(trailer)?))
}

/// What a trailer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Trailer {
    /// When the frame left its node.
    pub at: RealNs,
    /// The thread that sent it; none for an answer of the kernel's, or a retransmission.
    pub sent: Option<Sent>,
    /// Sent in a call of setsockopt: an acknowledgement that its program asked for (TCP_QUICKACK).
    pub asked: bool,
}

/// What a trailer says of the thread that it is of; `None` if it is none, or of no thread.
pub fn thread_of(trailer: &[u8; TRAILER_BYTES]) -> Option<Sent> {
    parse(trailer)?.sent
}

/// What a trailer says, `None` if it is none.
pub(crate) fn parse(t: &[u8; TRAILER_BYTES]) -> Option<Trailer> {
    let u32_at = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| t[at + i]));
    let u64_at = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| t[at + i]));
    if u32_at(0) != MAGIC {
        return None;
    }
    let sent = Sent {
        tid: u32_at(4) & !(IN_SETSOCKOPT | PAUSED_UNITS_MAX << PAUSED_SHIFT),
        at: RealNs(u64_at(8)),
        cpu_ns: u64_at(16),
        burst_cpu_ns: u64_at(24),
        woke: RealNs(u64_at(32)),
        run_delay_ns: u64_at(40),
        gap_ns: u64::from(u32_at(48)) * 1_000,
        switches: u16::from_ne_bytes([t[52], t[53]]),
        paused_ns: u64::from(u32_at(4) >> PAUSED_SHIFT & PAUSED_UNITS_MAX) * PAUSED_UNIT_NS,
    };
    let asked = u32_at(4) & IN_SETSOCKOPT != 0;
    Some(Trailer { at: sent.at, sent: (sent.tid != 0).then_some(sent), asked })
}

/// What a frame with several segments is known by, whose header of TCP or UDP begins there.
pub(crate) fn large_key(frame: &[u8], transport: usize) -> Option<[u8; LARGE_KEY_BYTES]> {
    let mut key = [0; LARGE_KEY_BYTES];
    key[..MAC_BYTES].copy_from_slice(frame.get(..MAC_BYTES)?);
    key[MAC_BYTES..].copy_from_slice(frame.get(transport..transport + LARGE_KEY_BYTES - MAC_BYTES)?);
    Some(key)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Of a frame that left then, and that no thread sent.
    pub(crate) fn trailer_at(left: RealNs) -> [u8; TRAILER_BYTES] {
        let mut t = [0; TRAILER_BYTES];
        t[..4].copy_from_slice(&MAGIC.to_ne_bytes());
        t[8..16].copy_from_slice(&left.0.to_ne_bytes());
        t
    }

    #[test]
    fn a_trailer_is_taken_off() {
        let mut frame = b"payload".to_vec();
        frame.extend(MAGIC.to_ne_bytes());
        frame.extend(9u32.to_ne_bytes());
        for v in [1u64, 2, 3, 4, 5, 6] {
            frame.extend(v.to_ne_bytes());
        }
        let sent = Sent {
            tid: 9,
            at: RealNs(1),
            cpu_ns: 2,
            burst_cpu_ns: 3,
            woke: RealNs(4),
            run_delay_ns: 5,
            gap_ns: 6_000,
            switches: 0,
            paused_ns: 0,
        };
        let trailer = |sent, asked| Some((7, Trailer { at: RealNs(1), sent, asked }));
        assert_eq!(find_trailer(&frame), trailer(Some(sent), false));
        assert_eq!(find_trailer(b"payload"), None, "shorter than a trailer");
        frame[14] = 0x80;
        assert_eq!(find_trailer(&frame), trailer(Some(sent), true));
        frame[13] = 0x40;
        frame[14] = 0x81;
        let paused = Sent { paused_ns: 5 * 262_144, ..sent };
        assert_eq!(find_trailer(&frame), trailer(Some(paused), true));
        frame[11..15].fill(0);
        assert_eq!(find_trailer(&frame), trailer(None, false), "no thread");
        frame[7] ^= 1;
        assert_eq!(find_trailer(&frame), None, "not the magic number");
    }

    /// DIECAST_FUZZ=N: N times as many random cases, from seed N (`make fuzz`).
    fn fuzz() -> Option<u64> {
        std::env::var("DIECAST_FUZZ").ok()?.parse().ok()
    }

    /// What a node sends decides nothing but whether a trailer is there: the bytes before it are the frame.
    #[test]
    fn no_frame_upsets_the_search_for_its_trailer_or_key() {
        let (times, seed) = fuzz().map_or((1, 7), |n| (n, n));
        // A xorshift generator; its state is never zero.
        let mut x = seed.wrapping_mul(2).wrapping_add(1);
        let mut below = |n: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 8) % n
        };
        let (mut found, mut keys) = (0, 0);
        for _ in 0..times * 20_000 {
            let mut frame: Vec<u8> = (0..below(160)).map(|_| below(256) as u8).collect();
            let begins = frame.len().checked_sub(TRAILER_BYTES);
            if let Some(at) = begins.filter(|_| below(2) == 0) {
                frame[at..at + 4].copy_from_slice(&MAGIC.to_ne_bytes());
            }
            let is_one = begins.is_some_and(|at| frame[at..at + 4] == MAGIC.to_ne_bytes());
            let trailer = find_trailer(&frame);
            assert_eq!(trailer.map(|(at, _)| at), begins.filter(|_| is_one), "{frame:?}");
            if let Some((at, trailer)) = trailer {
                let tid = u32::from_ne_bytes(std::array::from_fn(|i| frame[at + 4 + i]));
                assert_eq!((trailer.sent.is_none(), trailer.asked), (tid << 1 == 0, tid >> 31 == 1), "{frame:?}");
                found += 1;
            }
            let transport = below(200) as usize;
            let key = large_key(&frame, transport);
            let whole = frame.len() >= MAC_BYTES && frame.len() >= transport + LARGE_KEY_BYTES - MAC_BYTES;
            assert_eq!(key.is_some(), whole, "{transport} of {frame:?}");
            if let Some(key) = key {
                assert_eq!(key[..MAC_BYTES], frame[..MAC_BYTES]);
                assert_eq!(key[MAC_BYTES..], frame[transport..][..LARGE_KEY_BYTES - MAC_BYTES]);
                keys += 1;
            }
        }
        assert!(found > 1_000 && keys > 1_000, "the cases are too tame: {found} trailers, {keys} keys");
    }
}
