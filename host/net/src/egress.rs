//! Who pays for packets, and what a node's NIC tells with each frame: how much CPU time its sender has used.
//!
//! The program of `freestanding/bpf-egress` appends a trailer to every frame; the emulator takes it off.

use diecast_core_cpu::Sent;
use diecast_core_vtime::{RealNs, VirtNs};

/// Length of the trailer. Its 16-bit words sum to 0xffff, so that it changes no checksum.
pub const TRAILER_BYTES: usize = 56;
const MAGIC: u32 = 0xd1ec_de87;

/// Charges senders, and says when a packet may leave.
pub trait EgressLedger: Send + Sync {
    /// Charges the sender of a frame of the node with this index; the instant at which the original machine would have
    /// sent it.
    fn charge_sender(&self, node: usize, sent: &Sent, now: RealNs) -> VirtNs;
}

/// Charges receivers.
pub trait ReceiveLedger: Send + Sync {
    /// Charges the node with this index for a frame that the kernel worked on from `begun` to `ended`.
    fn charge_receiver(&self, node: usize, begun: RealNs, ended: RealNs);
}

/// Takes the trailer off a frame. `None` when there is none, then the frame is not the NIC's; `Some(None)` for a frame
/// that no thread of the node sent (an answer of the kernel's, a retransmission).
pub(crate) fn take_trailer(frame: &mut Vec<u8>) -> Option<Option<Sent>> {
    let length = frame.len().checked_sub(TRAILER_BYTES)?;
    let t = &frame[length..];
    let u32_at = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| t[at + i]));
    let u64_at = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| t[at + i]));
    if u32_at(0) != MAGIC {
        return None;
    }
    let sent = Sent {
        tid: u32_at(4),
        at: RealNs(u64_at(8)),
        cpu_ns: u64_at(16),
        burst_cpu_ns: u64_at(24),
        woke: RealNs(u64_at(32)),
        run_delay_ns: u64_at(40),
        gap_ns: u64::from(u32_at(48)) * 1_000,
    };
    frame.truncate(length);
    Some((sent.tid != 0).then_some(sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailer_is_taken_off() {
        let mut frame = b"payload".to_vec();
        frame.extend(MAGIC.to_ne_bytes());
        frame.extend(9u32.to_ne_bytes());
        for v in [1u64, 2, 3, 4, 5, 6] {
            frame.extend(v.to_ne_bytes());
        }
        let mut without = frame.clone();
        let sent =
            Sent { tid: 9, at: RealNs(1), cpu_ns: 2, burst_cpu_ns: 3, woke: RealNs(4), run_delay_ns: 5, gap_ns: 6_000 };
        assert_eq!(take_trailer(&mut frame), Some(Some(sent)));
        assert_eq!(frame, b"payload");
        assert_eq!(take_trailer(&mut frame), None, "shorter than a trailer");
        without[7] ^= 1;
        assert_eq!(take_trailer(&mut without), None, "not the magic number");
        assert_eq!(without.len(), 7 + TRAILER_BYTES);
    }
}
