//! Echoed timestamps that would tell a node's kernel that a round trip took as long as a pause.
//!
//! While a lab stands still its programs don't run, but Linux's retransmission timers do. What was on its way is sent
//! again and again, and the first acknowledgement after the pause is of a segment that was retransmitted: Linux takes no
//! round trip from such a segment itself (Karn's rule) but from the timestamp that the acknowledgement echoes (TSecr, RFC
//! 7323), and that is from before the pause, or from within it. An eighth of ten minutes is a smoothed round trip that 75
//! answers don't bring down.
//!
//! So the newest timestamp (TSval) that a connection's end sent while the lab stood still is remembered, and an echo that
//! is not newer is made zero before that end gets it. Linux then has none to go by and keeps the estimate from before the
//! pause. What else looks at a zero echo:
//! * PAWS looks at TSval, which stays.
//! * Eifel detection (`tcp_packet_delayed`) needs an echo to see that a retransmission was spurious, so the first
//!   acknowledgement does not give back the congestion window. The duplicates that the other end gets do, by D-SACK.
//! * A SYN cookie keeps options in the timestamp. It is in a SYN-ACK, of whose timestamps Linux measures nothing: those
//!   are not remembered.
//!
//! A segment that was not retransmitted is measured by when it was sent, whatever is echoed. Alone on its way it is one
//! that the pause was too short for, so its round trip is no longer than a timeout. Of several on their way only the first
//! is retransmitted during a pause. Where the acknowledgements come as a link sends, their sender retransmits each of the
//! others before its acknowledgement comes; where they come at once, it measures some that are as long as the pause, and
//! no echo changes that.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use diecast_core_vtime::VirtNs;

use crate::spec::NodeIx;
use crate::tcp::{ACK, CHECKSUM_AT, Connection, SYN, Segment, ahead};

/// Connections that are remembered at most; of more the first round trip is measured too long.
const CONNECTIONS_MAX: usize = 65_536;
/// Nothing is as long on its way, ns: who has not got a newer echo so long after a pause has ended the connection.
const FORGET_NS: u64 = 60_000_000_000;

/// The newest timestamps that nodes sent while the lab stood still.
#[derive(Debug, Default)]
pub struct StaleEchoes {
    newest: BTreeMap<Connection, u32>,
    /// When the lab stood still last.
    stood: VirtNs,
}

/// What lies in the checksum's field of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// The checksum.
    Done,
    /// That of the pseudo header alone: the rest is left to do (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
    Left,
}

/// An echo in a frame that is to become zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaleEcho {
    /// Where the TCP header begins in the frame, and where the echo does.
    tcp_at: usize,
    echo_at: usize,
}

impl StaleEchoes {
    /// Nothing is remembered, as in a lab that was never paused: then no frame needs to be looked at.
    pub fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    /// A node sends a frame while the lab stands still at `at`; of a large one the headers do.
    pub fn sends(&mut self, at: VirtNs, from: NodeIx, frame: &[u8]) {
        self.stood = at;
        let Some(segment) = Segment::of(frame).filter(|s| s.flags & (SYN | ACK) != SYN | ACK) else { return };
        let Some(timestamps) = segment.timestamps() else { return };
        let has_room = self.newest.len() < CONNECTIONS_MAX;
        match self.newest.entry((from, segment.from, segment.to)) {
            Entry::Occupied(mut newest) if ahead(timestamps.value, *newest.get()) > 0 => {
                newest.insert(timestamps.value);
            }
            Entry::Vacant(place) if has_room => {
                place.insert(timestamps.value);
            }
            Entry::Occupied(_) | Entry::Vacant(_) => {}
        }
    }

    /// A frame that was due at `at` is about to be handed to a node; of a large one the headers are enough. Its echo, if
    /// the node must not get it.
    pub fn delivered(&mut self, at: VirtNs, to: NodeIx, frame: &[u8]) -> Option<StaleEcho> {
        if at.since(self.stood).0 > FORGET_NS {
            self.newest.clear();
        }
        let segment = Segment::of(frame)?;
        let connection = (to, segment.to, segment.from);
        let newest = *self.newest.get(&connection)?;
        let timestamps = segment.timestamps().filter(|t| t.echo != 0)?;
        if ahead(timestamps.echo, newest) > 0 {
            self.newest.remove(&connection);
            return None;
        }
        Some(StaleEcho { tcp_at: segment.at, echo_at: timestamps.echo_at })
    }
}

impl StaleEcho {
    /// Makes it zero in the frame in which it was found.
    pub fn erase(self, frame: &mut [u8], checksum: Checksum) {
        let field = self.tcp_at + CHECKSUM_AT;
        let mut sum = u32::from(!u16::from_be_bytes([frame[field], frame[field + 1]]));
        for (at, byte) in (self.echo_at..).zip(&mut frame[self.echo_at..self.echo_at + 4]) {
            // RFC 1624: the complement of the checksum, less what goes. An option may begin at any byte.
            let shift = if (at - self.tcp_at).is_multiple_of(2) { 8 } else { 0 };
            sum += u32::from(!(u16::from(*byte) << shift));
            *byte = 0;
        }
        if checksum == Checksum::Done {
            while sum >> 16 != 0 {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            frame[field..field + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ETHERNET_HEADER_BYTES;
    use crate::tcp::{RST, in_frame};

    const A: NodeIx = NodeIx(0);
    const B: NodeIx = NodeIx(1);
    const S: u64 = 1_000_000_000;
    /// A's port and the other end's.
    const OWN: u16 = 5000;
    const OTHER: u16 = 80;

    struct Packet {
        ports: (u16, u16),
        flags: u8,
        value: u32,
        echo: u32,
        v6: bool,
        /// Bytes of padding before the option.
        before: usize,
    }

    const PACKET: Packet = Packet { ports: (OWN, OTHER), flags: ACK, value: 0, echo: 0, v6: false, before: 2 };

    impl Packet {
        fn frame(&self) -> Vec<u8> {
            let mut tcp = vec![0; 20];
            tcp[..2].copy_from_slice(&self.ports.0.to_be_bytes());
            tcp[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
            tcp[13] = self.flags;
            tcp.resize(20 + self.before, 1);
            tcp.extend([8, 10]);
            tcp.extend(self.value.to_be_bytes());
            tcp.extend(self.echo.to_be_bytes());
            tcp.resize(tcp.len().next_multiple_of(4), 0);
            tcp[12] = ((tcp.len() / 4) << 4) as u8;
            tcp.extend(b"some data");
            let mut frame = in_frame(&tcp, self.v6);
            let at = frame.len() - tcp.len();
            let sum = !sum(&frame[at..]);
            frame[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
            frame
        }
    }

    /// The ones' complement sum; the addresses' part of a checksum is zero here but for what never changes.
    fn sum(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2).map(|w| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0)));
        let mut sum: u64 = words.sum();
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn sent(value: u32) -> Vec<u8> {
        Packet { value, ..PACKET }.frame()
    }

    fn answer(echo: u32) -> Vec<u8> {
        Packet { ports: (OTHER, OWN), value: 77, echo, ..PACKET }.frame()
    }

    /// A sent these while the lab stood still.
    fn stood(values: &[u32]) -> StaleEchoes {
        let mut echoes = StaleEchoes::default();
        values.iter().for_each(|value| echoes.sends(VirtNs(S), A, &sent(*value)));
        echoes
    }

    #[test]
    fn echoes_up_to_the_newest_go_until_a_newer_one_comes() {
        let mut echoes = stood(&[100, 300, 200]);
        for echo in [50, 100, 250, 300] {
            assert!(echoes.delivered(VirtNs(S), A, &answer(echo)).is_some(), "{echo}");
        }
        assert_eq!(echoes.delivered(VirtNs(S), A, &answer(0)), None, "no echo");
        assert!(!echoes.is_empty());
        assert_eq!(echoes.delivered(VirtNs(S), A, &answer(301)), None);
        assert!(echoes.is_empty());
        assert_eq!(echoes.delivered(VirtNs(S), A, &answer(300)), None);
    }

    #[test]
    fn timestamps_wrap() {
        let mut echoes = stood(&[u32::MAX - 5, 3]);
        assert!(echoes.delivered(VirtNs(S), A, &answer(u32::MAX)).is_some());
        assert!(echoes.delivered(VirtNs(S), A, &answer(3)).is_some());
        assert_eq!(echoes.delivered(VirtNs(S), A, &answer(4)), None);
        assert!(echoes.is_empty());
    }

    #[test]
    fn connections_directions_and_nodes_are_apart() {
        let mut echoes = stood(&[100]);
        let other = Packet { ports: (OTHER, OWN + 1), echo: 50, ..PACKET }.frame();
        let same_way = Packet { echo: 50, ..PACKET }.frame();
        for (node, frame) in [(B, answer(50)), (A, other), (A, same_way), (A, vec![0; 60]), (A, vec![0; 14])] {
            assert_eq!(echoes.delivered(VirtNs(S), node, &frame), None);
        }
        assert!(echoes.delivered(VirtNs(S), A, &answer(50)).is_some());
    }

    #[test]
    fn only_a_syn_ack_is_not_remembered() {
        for (flags, remembered) in [(SYN, true), (SYN | ACK, false), (ACK | RST, true), (ACK, true)] {
            let mut echoes = StaleEchoes::default();
            echoes.sends(VirtNs(S), A, &Packet { flags, value: 9, ..PACKET }.frame());
            assert_eq!(!echoes.is_empty(), remembered, "{flags:#x}");
        }
    }

    #[test]
    fn a_connection_that_gets_nothing_is_forgotten() {
        let mut echoes = stood(&[100]);
        assert!(echoes.delivered(VirtNs(S + FORGET_NS), A, &answer(50)).is_some());
        assert_eq!(echoes.delivered(VirtNs(S + FORGET_NS + 1), B, &answer(50)), None);
        assert!(echoes.is_empty());
        let mut echoes = StaleEchoes::default();
        for i in 0..2 * CONNECTIONS_MAX as u32 {
            let ports = ((i >> 16) as u16, i as u16);
            echoes.sends(VirtNs(S), A, &Packet { ports, value: 1, ..PACKET }.frame());
        }
        assert_eq!(echoes.newest.len(), CONNECTIONS_MAX);
    }

    #[test]
    fn checksums_stay_right_or_as_they_are() {
        for (v6, before) in [(false, 2), (true, 2), (false, 0), (true, 1), (false, 3)] {
            let ip_bytes = if v6 { 40 } else { 20 };
            let tcp_at = ETHERNET_HEADER_BYTES + ip_bytes;
            for echo in [1, 0x8000_0000, 0x1234_5678, u32::MAX, 0xffff, 0xff00_00ff] {
                let newest = Packet { value: echo, v6, ..PACKET }.frame();
                let mut echoes = StaleEchoes::default();
                echoes.sends(VirtNs(S), A, &newest);
                let frame = Packet { ports: (OTHER, OWN), value: 7, echo, v6, before, ..PACKET }.frame();
                let mut erased = frame.clone();
                let stale = echoes.delivered(VirtNs(S), A, &frame).expect("it is stale");
                assert_eq!(frame[stale.echo_at..stale.echo_at + 4], echo.to_be_bytes());
                stale.erase(&mut erased, Checksum::Done);
                assert_eq!(erased[stale.echo_at..stale.echo_at + 4], [0; 4]);
                assert_eq!(
                    (sum(&frame[tcp_at..]), sum(&erased[tcp_at..])),
                    (0xffff, 0xffff),
                    "{v6} {before} {echo:#x}"
                );
                let mut left = frame.clone();
                stale.erase(&mut left, Checksum::Left);
                let changed = (0..frame.len()).filter(|at| left[*at] != frame[*at]);
                assert!(changed.into_iter().all(|at| (stale.echo_at..stale.echo_at + 4).contains(&at)));
            }
        }
    }

    /// Seeded bytes: whatever comes, nothing panics, and only an echo and a checksum change.
    #[test]
    fn any_frames() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let (mut echoes, mut erased) = (StaleEchoes::default(), 0);
        for _ in 0..200_000 {
            let v6 = below(2) == 0;
            let ports = if below(2) == 0 { (OWN, OTHER) } else { (OTHER, OWN) };
            let (value, echo, before) = (below(100) as u32, below(100) as u32, below(29) as usize);
            let mut frame = Packet { ports, value, echo, v6, before, ..PACKET }.frame();
            if below(4) == 0 {
                let place = below(frame.len() as u64) as usize;
                frame[place] = below(256) as u8;
            }
            frame.truncate(frame.len() - if below(4) == 0 { below(60) as usize } else { 0 });
            if below(20) == 0 {
                echoes.sends(VirtNs(S), A, &frame);
            } else if let Some(stale) = echoes.delivered(VirtNs(S), A, &frame) {
                let before = frame.clone();
                stale.erase(&mut frame, Checksum::Done);
                assert!(frame.iter().zip(&before).filter(|(a, b)| a != b).count() <= 6);
                erased += 1;
            }
        }
        assert!(erased > 1000, "{erased}");
    }
}
