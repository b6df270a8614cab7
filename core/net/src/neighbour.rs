//! What a frame from a node is, and the answers to ARP (RFC 826) and neighbour solicitation (RFC 4861).

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::spec::{ETHERNET_HEADER_BYTES, Mac};

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_IGMP: u8 = 2;
const PROTOCOL_ICMPV6: u8 = 58;
const PROTOCOL_HOP_BY_HOP: u8 = 0;
/// First byte after Ethernet and IPv6 headers.
const IPV6_PAYLOAD: usize = ETHERNET_HEADER_BYTES + 40;

/// What to do with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Forward it by its destination address.
    Data,
    /// Answer with the MAC of this address.
    AskV4(Ipv4Addr),
    /// Answer with the MAC of this address.
    AskV6(Ipv6Addr),
    /// Group membership, router discovery, duplicate address detection, unasked announcements: nobody listens.
    Chatter,
    /// Too short or inconsistent.
    Malformed,
}

pub(crate) fn be16(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

pub(crate) fn ipv6_at(frame: &[u8], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&frame[at..at + 16]);
    Ipv6Addr::from(octets)
}

pub(crate) fn ipv4_at(frame: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3])
}

/// Destination and source of a frame; `None` when it has no whole header.
pub(crate) fn addresses(frame: &[u8]) -> Option<(Mac, Mac)> {
    if frame.len() < ETHERNET_HEADER_BYTES {
        return None;
    }
    let mut dst = [0; 6];
    let mut src = [0; 6];
    dst.copy_from_slice(&frame[..6]);
    src.copy_from_slice(&frame[6..12]);
    Some((Mac(dst), Mac(src)))
}

/// Classifies a frame that has a whole Ethernet header.
pub(crate) fn kind(frame: &[u8]) -> Kind {
    match be16(frame, 12) {
        ETHERTYPE_ARP => arp_kind(frame),
        ETHERTYPE_IPV4 => ipv4_kind(frame),
        ETHERTYPE_IPV6 => ipv6_kind(frame),
        _ => Kind::Data,
    }
}

fn arp_kind(frame: &[u8]) -> Kind {
    // Ethernet and IPv4 with their address lengths, then the operation.
    if frame.len() < 42 || frame[14..20] != [0, 1, 8, 0, 6, 4] {
        return Kind::Malformed;
    }
    let (sender, target) = (ipv4_at(frame, 28), ipv4_at(frame, 38));
    match be16(frame, 20) {
        1 if sender != target => Kind::AskV4(target),
        1 | 2 => Kind::Chatter,
        _ => Kind::Malformed,
    }
}

fn ipv4_kind(frame: &[u8]) -> Kind {
    if frame.len() < ETHERNET_HEADER_BYTES + 20 {
        return Kind::Malformed;
    }
    let header = usize::from(frame[14] & 15) * 4;
    let total = usize::from(be16(frame, 16));
    if frame[14] >> 4 != 4 || header < 20 || total < header || total > frame.len() - ETHERNET_HEADER_BYTES {
        return Kind::Malformed;
    }
    if frame[23] == PROTOCOL_IGMP { Kind::Chatter } else { Kind::Data }
}

fn ipv6_kind(frame: &[u8]) -> Kind {
    if frame.len() < IPV6_PAYLOAD || frame[14] >> 4 != 6 {
        return Kind::Malformed;
    }
    if usize::from(be16(frame, 18)) > frame.len() - IPV6_PAYLOAD {
        return Kind::Malformed;
    }
    let mut protocol = frame[20];
    let mut at = IPV6_PAYLOAD;
    if protocol == PROTOCOL_HOP_BY_HOP {
        // MLD carries a router alert option.
        let Some(header) = frame.get(at..at + 2) else { return Kind::Malformed };
        protocol = header[0];
        at += (usize::from(header[1]) + 1) * 8;
    }
    if protocol != PROTOCOL_ICMPV6 {
        return Kind::Data;
    }
    match frame.get(at) {
        None => Kind::Malformed,
        Some(130..=134 | 136 | 137 | 143) => Kind::Chatter,
        Some(135) => {
            if at != IPV6_PAYLOAD || frame.len() < at + 24 || frame[21] != 255 {
                Kind::Malformed
            } else if ipv6_at(frame, 22).is_unspecified() {
                Kind::Chatter
            } else {
                Kind::AskV6(ipv6_at(frame, at + 8))
            }
        }
        Some(_) => Kind::Data,
    }
}

/// Turns an ARP request into its answer: `target` is at `mac`.
pub(crate) fn answer_arp(frame: &mut Vec<u8>, target: Ipv4Addr, mac: Mac) {
    let asker: [u8; 10] = {
        let mut a = [0; 10];
        a.copy_from_slice(&frame[22..32]);
        a
    };
    frame.truncate(42);
    frame[..6].copy_from_slice(&asker[..6]);
    frame[6..12].copy_from_slice(&mac.0);
    frame[20..22].copy_from_slice(&2u16.to_be_bytes());
    frame[22..28].copy_from_slice(&mac.0);
    frame[28..32].copy_from_slice(&target.octets());
    frame[32..42].copy_from_slice(&asker);
}

/// Turns a neighbour solicitation into its answer, solicited and overriding.
pub(crate) fn answer_solicitation(frame: &mut Vec<u8>, target: Ipv6Addr, mac: Mac) {
    let mut asker_mac = [0; 6];
    asker_mac.copy_from_slice(&frame[6..12]);
    let asker = ipv6_at(frame, 22);
    frame.clear();
    frame.extend_from_slice(&asker_mac);
    frame.extend_from_slice(&mac.0);
    frame.extend_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
    // Version 6, no class or label; 32 bytes of ICMPv6; hop limit 255 as RFC 4861 demands.
    frame.extend_from_slice(&[0x60, 0, 0, 0, 0, 32, PROTOCOL_ICMPV6, 255]);
    frame.extend_from_slice(&target.octets());
    frame.extend_from_slice(&asker.octets());
    // Type 136, code 0, checksum to come, flags solicited and override.
    frame.extend_from_slice(&[136, 0, 0, 0, 0x60, 0, 0, 0]);
    frame.extend_from_slice(&target.octets());
    frame.extend_from_slice(&[2, 1]);
    frame.extend_from_slice(&mac.0);
    let sum = icmpv6_checksum(frame);
    frame[IPV6_PAYLOAD + 2..IPV6_PAYLOAD + 4].copy_from_slice(&sum.to_be_bytes());
}

/// Internet checksum over pseudo header and ICMPv6 message of a frame without extension headers whose
/// checksum field is zero. Bound: 750 words of 16 bits fit 32 bits.
fn icmpv6_checksum(frame: &[u8]) -> u16 {
    let message = &frame[IPV6_PAYLOAD..];
    let mut sum = message.len() as u32 + u32::from(PROTOCOL_ICMPV6);
    for pair in frame[22..IPV6_PAYLOAD].chunks_exact(2).chain(message.chunks_exact(2)) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A number that is the same for packets of one flow (addresses, protocol, ports): FNV-1a. Two flows with the
/// same number are merely kept in order with each other.
pub(crate) fn flow_key(frame: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut eat = |bytes: &[u8]| {
        for b in bytes {
            hash = (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    eat(&frame[..ETHERNET_HEADER_BYTES]);
    match be16(frame, 12) {
        ETHERTYPE_IPV4 if frame.len() >= 34 => {
            eat(&frame[23..24]);
            eat(&frame[26..34]);
            let ports = ETHERNET_HEADER_BYTES + usize::from(frame[14] & 15) * 4;
            eat(frame.get(ports..ports + 4).unwrap_or(&[]));
        }
        ETHERTYPE_IPV6 if frame.len() >= IPV6_PAYLOAD => {
            eat(&frame[20..21]);
            eat(&frame[22..IPV6_PAYLOAD]);
            eat(frame.get(IPV6_PAYLOAD..IPV6_PAYLOAD + 4).unwrap_or(&[]));
        }
        _ => {}
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_an_answer_verifies() {
        let mut frame = vec![0; 86];
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        frame[22..38].copy_from_slice(&Ipv6Addr::new(0xfd00, 0xdc, 0, 0, 0, 0, 0, 9).octets());
        answer_solicitation(&mut frame, Ipv6Addr::new(0xfd00, 0xdc, 0, 0, 0, 0, 0, 7), Mac([2, 0, 0, 0, 0, 7]));
        assert_eq!(frame.len(), 86);
        // Summing over a message with its checksum in place gives zero.
        assert_eq!(icmpv6_checksum(&frame), 0);
        assert_eq!(frame[..6], [2, 0, 0, 0, 0, 9]);
    }

    #[test]
    fn flows_differ_by_port_only_there() {
        let mut a = vec![0u8; 60];
        a[12] = 8;
        a[14] = 0x45;
        let mut b = a.clone();
        b[50] = 1;
        assert_eq!(flow_key(&a), flow_key(&b), "payload is not part of a flow");
        b[35] = 1;
        assert_ne!(flow_key(&a), flow_key(&b), "source port is");
    }
}
