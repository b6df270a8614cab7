//! What is read of a TCP segment, and what connections are known by.

use std::net::IpAddr;

use crate::neighbour::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, be16, ipv4_at, ipv6_at};
use crate::offload::PROTOCOL_TCP;
use crate::spec::{ETHERNET_HEADER_BYTES, NodeIx};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;
const OPTION_END: u8 = 0;
const OPTION_NOTHING: u8 = 1;
const OPTION_SACK: u8 = 5;
const OPTION_TIMESTAMPS: u8 = 8;
const TIMESTAMPS_BYTES: usize = 10;
const HEADER_BYTES: usize = 20;
/// Where the checksum lies in the header.
pub(crate) const CHECKSUM_AT: usize = 16;

/// An end of a connection.
pub(crate) type End = (IpAddr, u16);
/// A node's end of a connection first, then the other.
pub(crate) type Connection = (NodeIx, End, End);

/// What is read of a TCP segment.
pub(crate) struct Segment<'a> {
    /// Where its header begins in its frame.
    pub at: usize,
    pub from: End,
    pub to: End,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    options: &'a [u8],
    pub payload_bytes: u32,
}

/// The timestamps option (RFC 7323).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: what the sender got last of the other end's clock.
    pub echo: u32,
    /// Where that lies in the frame.
    pub echo_at: usize,
}

impl Segment<'_> {
    /// `None`: no TCP, or a fragment, or behind extension headers.
    pub fn of(frame: &[u8]) -> Option<Segment<'_>> {
        let ip = frame.get(ETHERNET_HEADER_BYTES..)?;
        let (from, to, at, end) = match be16(frame, 12) {
            ETHERTYPE_IPV4 if ip.len() >= 20 && ip[9] == PROTOCOL_TCP && be16(ip, 6) & 0x3fff == 0 => {
                let address = |at| IpAddr::V4(ipv4_at(ip, at));
                (address(12), address(16), usize::from(ip[0] & 15) * 4, usize::from(be16(ip, 2)))
            }
            ETHERTYPE_IPV6 if ip.len() >= 40 && ip[6] == PROTOCOL_TCP => {
                let address = |at| IpAddr::V6(ipv6_at(ip, at));
                (address(8), address(24), 40, 40 + usize::from(be16(ip, 4)))
            }
            _ => return None,
        };
        let tcp = ip.get(at..).filter(|tcp| tcp.len() >= HEADER_BYTES)?;
        let header_bytes = usize::from(tcp[12] >> 4) * 4;
        let word = |at: usize| word_at(tcp, at);
        Some(Segment {
            at: ETHERNET_HEADER_BYTES + at,
            from: (from, be16(tcp, 0)),
            to: (to, be16(tcp, 2)),
            seq: word(4),
            ack: word(8),
            flags: tcp[13],
            window: be16(tcp, 14),
            options: tcp.get(HEADER_BYTES..header_bytes)?,
            // At most 64 KiB.
            payload_bytes: end.checked_sub(at + header_bytes)? as u32,
        })
    }

    pub fn has_sack(&self) -> bool {
        self.option(OPTION_SACK).is_some()
    }

    pub fn timestamps(&self) -> Option<Timestamps> {
        let at = self.option(OPTION_TIMESTAMPS)?;
        let option = self.options.get(at..at + TIMESTAMPS_BYTES).filter(|o| usize::from(o[1]) == TIMESTAMPS_BYTES)?;
        let echo_at = self.at + HEADER_BYTES + at + 6;
        Some(Timestamps { value: word_at(option, 2), echo: word_at(option, 6), echo_at })
    }

    /// Where among the options the first of this kind begins.
    fn option(&self, wanted: u8) -> Option<usize> {
        let mut at = 0;
        loop {
            match self.options.get(at..)? {
                [kind, ..] if *kind == wanted => return Some(at),
                [OPTION_NOTHING, ..] => at += 1,
                [OPTION_END, ..] | [] | [_] => return None,
                [_, length, ..] => at += usize::from(*length).max(2),
            }
        }
    }
}

/// `a - b` of sequence numbers, or of timestamps.
pub(crate) fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A segment with an IP and an Ethernet header, for tests: what nobody looks at is zero.
#[cfg(test)]
pub(crate) fn in_frame(tcp: &[u8], v6: bool) -> Vec<u8> {
    let mut ip = vec![0; if v6 { 40 } else { 20 }];
    let length = tcp.len() as u16;
    if v6 {
        (ip[0], ip[6]) = (0x60, crate::offload::PROTOCOL_TCP);
        ip[4..6].copy_from_slice(&length.to_be_bytes());
    } else {
        (ip[0], ip[9]) = (0x45, crate::offload::PROTOCOL_TCP);
        ip[2..4].copy_from_slice(&(20 + length).to_be_bytes());
    }
    let mut frame = vec![0; crate::spec::ETHERNET_HEADER_BYTES];
    frame[12..14].copy_from_slice(&if v6 { [0x86, 0xdd] } else { [8, 0] });
    frame.extend(ip);
    frame.extend(tcp);
    frame
}
