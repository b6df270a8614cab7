//! What a pipe does to a frame's bytes: congestion marks (RFC 3168) and bit errors.

use crate::neighbour::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, be16};
use crate::rng::SplitMix64;
use crate::spec::ETHERNET_HEADER_BYTES;

/// The two ECN bits: congestion experienced.
const CE: u8 = 3;
/// First byte after Ethernet and IPv6 headers.
const IPV6_PAYLOAD: usize = ETHERNET_HEADER_BYTES + 40;

/// Marks a packet of an ECN-capable transport; false when it is none. A marked one stays marked.
pub(crate) fn congestion(frame: &mut [u8]) -> bool {
    if frame.len() < ETHERNET_HEADER_BYTES + 20 {
        return false;
    }
    match be16(frame, 12) {
        ETHERTYPE_IPV4 if frame[15] & CE != 0 => {
            let before = be16(frame, 14);
            frame[15] |= CE;
            let sum = mended(be16(frame, 24), before, be16(frame, 14));
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            true
        }
        // The traffic class lies across the first two bytes; its low bits are in the second one's high half.
        ETHERTYPE_IPV6 if (frame[15] >> 4) & CE != 0 => {
            frame[15] |= CE << 4;
            true
        }
        _ => false,
    }
}

/// A checksum after one of its words changed: HC' = ~(~HC + ~m + m') of RFC 1624.
fn mended(sum: u16, before: u16, after: u16) -> u16 {
    let mut total = u32::from(!sum) + u32::from(!before) + u32::from(after);
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    !(total as u16)
}

/// Flips one bit of what a checksum of the transport covers: TCP, UDP (where it has one) or ICMP then refuse the
/// packet. A frame without anything behind its headers, or of another kind, gets it anywhere after the Ethernet header.
pub(crate) fn corrupt(frame: &mut [u8], rng: &mut SplitMix64) {
    let (start, end) = payload(frame);
    if end <= start {
        return;
    }
    let bit = rng.below((end - start) as u64 * 8);
    frame[start + (bit / 8) as usize] ^= 1 << (bit % 8);
}

/// First byte behind the IP header and the first behind the packet.
fn payload(frame: &[u8]) -> (usize, usize) {
    let len = frame.len();
    let all = (ETHERNET_HEADER_BYTES.min(len), len);
    if len < ETHERNET_HEADER_BYTES + 20 {
        return all;
    }
    let (start, end) = match be16(frame, 12) {
        ETHERTYPE_IPV4 => {
            let header = usize::from(frame[14] & 15) * 4;
            (ETHERNET_HEADER_BYTES + header, ETHERNET_HEADER_BYTES + usize::from(be16(frame, 16)))
        }
        ETHERTYPE_IPV6 => (IPV6_PAYLOAD, IPV6_PAYLOAD + usize::from(be16(frame, 18))),
        _ => all,
    };
    if start < end && end <= len { (start, end) } else { all }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sum of all words of an IPv4 header with its checksum in place: 0xffff when right.
    fn header_sum(frame: &[u8]) -> u32 {
        let mut sum: u32 = frame[14..34].chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    }

    fn ipv4(tos: u8, id: u16) -> Vec<u8> {
        let mut f = vec![0u8; 60];
        f[12..14].copy_from_slice(&[8, 0]);
        f[14..16].copy_from_slice(&[0x45, tos]);
        f[16..18].copy_from_slice(&46u16.to_be_bytes());
        f[18..20].copy_from_slice(&id.to_be_bytes());
        f[22..24].copy_from_slice(&[64, 6]);
        f[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = !(header_sum(&f) as u16);
        f[24..26].copy_from_slice(&sum.to_be_bytes());
        f
    }

    #[test]
    fn a_mark_keeps_the_ipv4_checksum_right_and_touches_nothing_else() {
        for id in 0..=u16::MAX {
            for ect in [1, 2, 3] {
                let before = ipv4(0xb8 | ect, id);
                let mut f = before.clone();
                assert!(congestion(&mut f));
                assert_eq!(f[15], 0xbb);
                assert_eq!(header_sum(&f), 0xffff, "id {id}, ECT {ect}");
                assert_eq!((&f[..15], &f[16..24], &f[26..]), (&before[..15], &before[16..24], &before[26..]));
            }
        }
        let mut not_ect = ipv4(0xb8, 7);
        assert!(!congestion(&mut not_ect));
        assert_eq!(not_ect, ipv4(0xb8, 7));
    }

    #[test]
    fn an_ipv6_packet_is_marked_in_its_traffic_class() {
        let mut f = vec![0u8; 74];
        f[12..14].copy_from_slice(&[0x86, 0xdd]);
        // Class 0xba: its low four bits are beside the flow label.
        f[14..18].copy_from_slice(&[0x6b, 0xa5, 0x43, 0x21]);
        assert!(congestion(&mut f));
        assert_eq!(f[14..18], [0x6b, 0xb5, 0x43, 0x21]);
        f[15] = 0x85;
        assert!(!congestion(&mut f));
        assert!(!congestion(&mut [0; 20]));
    }

    #[test]
    fn exactly_one_bit_behind_the_ip_header_is_flipped() {
        let mut rng = SplitMix64(3);
        let mut hit = [0u32; 60];
        for _ in 0..20_000 {
            let before = ipv4(0, 9);
            let mut f = before.clone();
            corrupt(&mut f, &mut rng);
            let changed: Vec<usize> = (0..60).filter(|i| f[*i] != before[*i]).collect();
            assert_eq!(changed.len(), 1);
            assert_eq!((f[changed[0]] ^ before[changed[0]]).count_ones(), 1);
            hit[changed[0]] += 1;
        }
        assert!(hit[..34].iter().all(|n| *n == 0) && hit[34..].iter().all(|n| *n > 500), "{hit:?}");
        // Frames of any length are survived; nothing to flip changes nothing.
        for len in 0..60 {
            corrupt(&mut ipv4(0, 9)[..len], &mut rng);
        }
    }
}
