//! What a node's kernel leaves to a NIC that offers segmentation and checksums, done as the kernel itself does it.
//!
//! A frame comes with Linux's `struct virtio_net_hdr`. [`Segments`] gives the frames that belong on the wire: one with
//! its checksum filled in, or a large one of TCP or UDP cut into segments, each with its own lengths, IPv4 identifier,
//! sequence number, flags and checksums. So everything behind it sees frames of at most the MTU.

use crate::neighbour::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, be16};
use crate::spec::ETHERNET_HEADER_BYTES;

/// Length of `struct virtio_net_hdr`.
pub const OFFLOAD_HEADER_BYTES: usize = 10;
/// One frame makes at most so many: 64 KiB at the smallest segments that Linux's TCP makes.
pub const SEGMENTS_MAX: usize = 2048;

const NEEDS_CHECKSUM: u8 = 1;
const KIND_TCP_IPV4: u8 = 1;
const KIND_TCP_IPV6: u8 = 4;
const KIND_UDP: u8 = 5;
/// Beside a kind: the first segment has CWR.
const WITH_ECN: u8 = 0x80;
const ETHERTYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
const TAGS_MAX: usize = 2;
/// Where checksums lie behind the start of their protocol's header.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
const TCP_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;
pub(crate) const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// What no kernel says about a frame of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OffloadError {
    /// The checksum lies outside of the frame.
    #[error("a checksum from byte {start}, {offset} bytes behind it, in a frame of {length}")]
    Checksum {
        /// Where summing begins.
        start: usize,
        /// Where the sum goes, from there.
        offset: usize,
        /// Of the frame.
        length: usize,
    },
    /// A kind of segmentation that was not offered.
    #[error("segmentation of kind {0}")]
    Kind(u8),
    /// Its headers are not those of its kind.
    #[error("segmentation of kind {kind} of a frame of {length} bytes without such headers")]
    Headers {
        /// As the header says.
        kind: u8,
        /// Of the frame.
        length: usize,
    },
    /// Segments of nothing, or more than [`SEGMENTS_MAX`].
    #[error("{payload} bytes in segments of {segment}")]
    Segments {
        /// To cut.
        payload: usize,
        /// Of each.
        segment: usize,
    },
}

/// How a large frame is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    tcp: bool,
    ipv4: bool,
    /// Where the headers of IP and of TCP or UDP begin, and where the payload does.
    ip: usize,
    transport: usize,
    pub payload: usize,
    /// Payload of each piece but the last.
    pub segment: usize,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// Nothing to cut; where a checksum goes and from where it is summed.
    Whole(Option<(usize, usize)>),
    Cut(Cut),
}

/// The frames that one frame of a kernel with offloads stands for.
#[derive(Debug)]
pub struct Segments<'a> {
    frame: &'a [u8],
    work: Work,
    count: usize,
    next: usize,
}

impl<'a> Segments<'a> {
    /// Looks at a frame and what its kernel says about it.
    pub fn new(header: &[u8; OFFLOAD_HEADER_BYTES], frame: &'a [u8]) -> Result<Segments<'a>, OffloadError> {
        // Flags, kind, length of headers (a hint), of a segment's payload, start of the checksum, its place from there.
        let word = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        let (start, offset) = (word(6), word(8));
        let mut checksum = None;
        if header[0] & NEEDS_CHECKSUM != 0 {
            if start + offset + 2 > frame.len() {
                return Err(OffloadError::Checksum { start, offset, length: frame.len() });
            }
            checksum = Some((start, start + offset));
        }
        if header[1] == 0 {
            return Ok(Segments { frame, work: Work::Whole(checksum), count: 1, next: 0 });
        }
        let kind = header[1] & !WITH_ECN;
        let cut = Cut::new(kind, checksum, frame, word(4))?;
        let payload = frame.len() - cut.payload;
        let count = payload.div_ceil(cut.segment.max(1)).max(1);
        if cut.segment == 0 || count > SEGMENTS_MAX {
            return Err(OffloadError::Segments { payload, segment: cut.segment });
        }
        Ok(Segments { frame, work: Work::Cut(cut), count, next: 0 })
    }

    /// Of a frame that is cut: where its header of TCP or UDP begins, which has at least eight bytes.
    pub fn transport(&self) -> Option<usize> {
        match self.work {
            Work::Whole(_) => None,
            Work::Cut(cut) => Some(cut.transport),
        }
    }

    /// Of a frame that is cut: how.
    pub(crate) fn cut(&self) -> Option<Cut> {
        match self.work {
            Work::Whole(_) => None,
            Work::Cut(cut) => Some(cut),
        }
    }

    /// How many frames there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Writes the next frame to an empty buffer, but no more than `limit` bytes of it: one that is longer is cut off
    /// there, to be seen and dropped. False when there is none left.
    pub fn next_into(&mut self, buffer: &mut Vec<u8>, limit: usize) -> bool {
        if self.next == self.count {
            return false;
        }
        match self.work {
            Work::Whole(checksum) => {
                buffer.extend_from_slice(&self.frame[..self.frame.len().min(limit)]);
                if let Some((start, field)) = checksum.filter(|_| buffer.len() == self.frame.len()) {
                    // Zero would mean that there is none.
                    let sum = !fold(sum(&buffer[start..]));
                    put(buffer, field, if sum == 0 { 0xffff } else { sum });
                }
            }
            Work::Cut(cut) => cut.write(self.frame, self.next, self.next + 1 == self.count, buffer, limit),
        }
        self.next += 1;
        true
    }
}

impl Cut {
    fn new(kind: u8, checksum: Option<(usize, usize)>, frame: &[u8], segment: usize) -> Result<Cut, OffloadError> {
        let (tcp, ethertype) = match kind {
            KIND_TCP_IPV4 => (true, Some(ETHERTYPE_IPV4)),
            KIND_TCP_IPV6 => (true, Some(ETHERTYPE_IPV6)),
            KIND_UDP => (false, None),
            other => return Err(OffloadError::Kind(other)),
        };
        let wrong = OffloadError::Headers { kind, length: frame.len() };
        let (transport, field) = checksum.ok_or(wrong)?;
        let (found, ip) = network_header(frame).ok_or(wrong)?;
        let ipv4 = found == ETHERTYPE_IPV4;
        let place = transport + if tcp { TCP_CHECKSUM } else { UDP_CHECKSUM };
        if ethertype.is_some_and(|e| e != found) || field != place {
            return Err(wrong);
        }
        let header = if tcp { TCP_HEADER_BYTES } else { UDP_HEADER_BYTES };
        if frame.len() < transport + header || !ip_fits(frame, ip, transport, ipv4) {
            return Err(wrong);
        }
        let header = if tcp { usize::from(frame[transport + 12] >> 4) * 4 } else { header };
        let payload = transport + header;
        if tcp && header < TCP_HEADER_BYTES || payload > frame.len() {
            return Err(wrong);
        }
        Ok(Cut { tcp, ipv4, ip, transport, payload, segment })
    }

    /// Whether TCP or UDP lies right behind an IP header without extensions, and that behind a bare Ethernet header.
    pub(crate) fn is_plain(self, frame: &[u8]) -> bool {
        let protocol = if self.tcp { PROTOCOL_TCP } else { PROTOCOL_UDP };
        let (at, behind) = if self.ipv4 { (self.ip + 9, self.transport) } else { (self.ip + 6, self.ip + 40) };
        self.ip == ETHERNET_HEADER_BYTES && frame[at] == protocol && behind == self.transport
    }

    /// Writes a piece to an empty buffer, but no more than `limit` bytes of it.
    pub(crate) fn write(self, frame: &[u8], ix: usize, last: bool, out: &mut Vec<u8>, limit: usize) {
        let data = &frame[self.payload + ix * self.segment..];
        out.extend_from_slice(&frame[..self.payload]);
        out.extend_from_slice(&data[..data.len().min(self.segment)]);
        if out.len() > limit {
            return out.truncate(limit);
        }
        let bytes = out.len() - self.payload;
        self.mend(out, frame.len(), ix, bytes, last);
        let field = self.checksum_field();
        let sum = !fold(sum(&out[self.transport..]));
        put(out, field, if sum == 0 && !self.tcp { 0xffff } else { sum });
    }

    /// Makes the headers of a large frame of `whole` bytes, behind its virtio header, those of one that has `bytes` of its
    /// payload from piece `first` on, and its last bytes or not. The checksum stays left to do.
    pub(crate) fn head_of(self, head: &mut [u8], whole: usize, first: usize, bytes: usize, last: bool) {
        if first > 0 {
            head[1] &= !WITH_ECN;
        }
        self.mend(&mut head[OFFLOAD_HEADER_BYTES..], whole, first, bytes, last);
    }

    fn checksum_field(self) -> usize {
        self.transport + if self.tcp { TCP_CHECKSUM } else { UDP_CHECKSUM }
    }

    /// Headers of a part of a frame of `whole` bytes; where the checksum goes, the sum of the pseudo header.
    fn mend(self, out: &mut [u8], whole: usize, first: usize, bytes: usize, last: bool) {
        let Cut { ip, transport: at, .. } = self;
        let length = (self.payload + bytes - ip) as u16;
        if self.ipv4 {
            let id = be16(out, ip + 4).wrapping_add(first as u16);
            out[ip + 2..ip + 4].copy_from_slice(&length.to_be_bytes());
            out[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
            put(out, ip + 10, 0);
            let sum = !fold(sum(&out[ip..at]));
            put(out, ip + 10, sum);
        } else {
            out[ip + 4..ip + 6].copy_from_slice(&length.wrapping_sub(40).to_be_bytes());
        }
        let length = (self.payload + bytes - at) as u16;
        if self.tcp {
            let sequence: [u8; 4] = std::array::from_fn(|i| out[at + 4 + i]);
            let sequence = u32::from_be_bytes(sequence).wrapping_add((first * self.segment) as u32);
            out[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
            let gone = if last { 0 } else { FIN_PSH } | if first == 0 { 0 } else { CWR };
            out[at + 13] &= !gone;
        } else {
            out[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
        }
        // The kernel has put the sum of the pseudo header there, with the length of the whole.
        let field = self.checksum_field();
        let whole = (whole - at) as u16;
        let pseudo = u64::from(get(out, field)) + u64::from(!whole.to_be()) + u64::from(length.to_be());
        put(out, field, fold(pseudo));
    }
}

/// Ethertype and place of what follows the Ethernet header and its VLAN tags.
fn network_header(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = ETHERNET_HEADER_BYTES;
    for _ in 0..=TAGS_MAX {
        let ethertype = be16(frame.get(..at)?, at - 2);
        if !ETHERTYPES_VLAN.contains(&ethertype) {
            return [ETHERTYPE_IPV4, ETHERTYPE_IPV6].contains(&ethertype).then_some((ethertype, at));
        }
        at += 4;
    }
    None
}

/// Whether an IP header, with what it is extended by, lies between these places.
fn ip_fits(frame: &[u8], ip: usize, transport: usize, ipv4: bool) -> bool {
    if ipv4 {
        ip + 20 <= transport && frame[ip] >> 4 == 4 && ip + usize::from(frame[ip] & 15) * 4 == transport
    } else {
        ip + 40 <= transport && frame[ip] >> 4 == 6
    }
}

/// Sum of 16-bit words in the machine's order; that of ones' complement does not depend on it. No overflow: 64 KiB of
/// words of 32 bits.
fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let sum: u64 = words.by_ref().map(|w| u64::from(u32::from_ne_bytes([w[0], w[1], w[2], w[3]]))).sum();
    let rest = words.remainder();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_ne_bytes(last))
}

fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn get(frame: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([frame[at], frame[at + 1]])
}

fn put(frame: &mut [u8], at: usize, word: u16) {
    frame[at..at + 2].copy_from_slice(&word.to_ne_bytes());
}
