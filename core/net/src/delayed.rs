//! Delayed acknowledgements, as late as on the original machine.
//!
//! Linux lets an answer carry the acknowledgement of what it answers, for 40 ms of its own time, which nothing sets: a
//! TDF-th of that in virtual time. So before most answers of a dilated node leaves an empty segment that the original
//! machine would not send, and who waits for it (a question in two writes, with Nagle's algorithm) waits a TDF-th as long.
//!
//! What a node's kernel should do follows from what it gets and sends, and when: Linux's rules for connections of questions
//! and answers ("ping-pong mode") are kept here once more, for each connection and in virtual time. An empty segment that
//! they would not let go yet waits, until they do or until another segment of its connection leaves: that acknowledges as
//! much, and the empty one never was.

use std::collections::{BTreeMap, BTreeSet};

use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::spec::NodeIx;
use crate::tcp::{ACK, Connection, FIN, RST, SYN, Segment, ahead};

/// How long Linux waits for an answer to carry an acknowledgement, ns: TCP_DELACK_MIN and TCP_ATO_MIN. It waits longer
/// where round trips and answers both take longer; that is not known here.
const ACK_DELAY_NS: u64 = 40_000_000;
/// The most by which Linux expects an answer, ns: the shortest retransmission timeout.
const ANSWER_MAX_NS: u64 = 200_000_000;
/// Connections that are known at most, and how long one is kept that gets nothing when there are more.
const CONNECTIONS_MAX: usize = 65_536;
const FORGET_NS: u64 = 60_000_000_000;

/// What Linux keeps of the receiving side of a connection, in virtual time.
#[derive(Debug)]
struct Receiving {
    /// When data came last.
    came: VirtNs,
    /// The end of it.
    next_seq: u32,
    /// Within which time an answer is expected: Linux's `ato`.
    answer_ns: u64,
    /// An answer came in time, so acknowledgements are left to answers.
    answers: bool,
    /// The last acknowledgement and window that left.
    told: Option<(u32, u16)>,
    /// Segments with data since then, and when the first of them came.
    segments: u32,
    first: VirtNs,
    /// The most data in one.
    longest_bytes: u32,
    /// An acknowledgement that waits until then.
    held: Option<(VirtNs, Vec<u8>)>,
}

/// Acknowledgements that wait, and what is known of each connection of nodes.
#[derive(Debug, Default)]
pub struct DelayedAcks {
    connections: BTreeMap<Connection, Receiving>,
    due: BTreeSet<(VirtNs, Connection)>,
}

/// What becomes of a frame that a node sends.
#[derive(Debug, PartialEq, Eq)]
pub enum Departure {
    /// It leaves.
    Leaves,
    /// It leaves in place of this frame, which waited.
    InPlaceOf(Vec<u8>),
    /// It leaves after this frame, whose time to leave comes at this instant.
    After(VirtNs, Vec<u8>),
    /// It is an acknowledgement that waits until this instant: the caller gives it to [`DelayedAcks::hold`].
    Waits(VirtNs),
}

impl DelayedAcks {
    /// A frame is handed to a node; of a large one the headers do.
    pub fn delivered(&mut self, at: VirtNs, to: NodeIx, frame: &[u8]) {
        let Some(segment) = Segment::of(frame) else { return };
        let connection = (to, segment.to, segment.from);
        if segment.flags & (SYN | RST) != 0 {
            self.forget(&connection);
        } else if segment.payload_bytes > 0 {
            self.make_room(at);
            let r = self.connections.entry(connection).or_insert_with(|| Receiving::begin(at, segment.seq));
            r.gets(at, &segment);
        } else if segment.flags & FIN != 0
            && let Some(r) = self.connections.get_mut(&connection)
        {
            r.gets(at, &segment);
        }
    }

    /// A node sends a frame that leaves at `at`; of a large one the headers do. `asked`: its program asked its kernel for
    /// an acknowledgement now (TCP_QUICKACK).
    pub fn sends(&mut self, at: VirtNs, from: NodeIx, frame: &[u8], asked: bool) -> Departure {
        if self.connections.is_empty() {
            return Departure::Leaves;
        }
        let Some(segment) = Segment::of(frame) else { return Departure::Leaves };
        let connection = (from, segment.from, segment.to);
        let Some(r) = self.connections.get_mut(&connection) else { return Departure::Leaves };
        if r.held.as_ref().is_none_or(|(due, _)| at <= *due)
            && let Some(due) = r.waits_until(&segment, asked)
        {
            if at < due {
                return Departure::Waits(due);
            }
            r.waited_in_vain();
        }
        let held = r.held.take();
        if let Some((due, _)) = held {
            self.due.remove(&(due, connection));
            if due < at {
                r.waited_in_vain();
            }
        }
        r.sent(at, &segment, asked);
        if segment.flags & (RST | FIN) != 0 {
            // It answers no more.
            self.connections.remove(&connection);
        }
        match held {
            None => Departure::Leaves,
            Some((due, frame)) if due < at => Departure::After(due, frame),
            Some((_, frame)) => Departure::InPlaceOf(frame),
        }
    }

    /// An acknowledgement waits; the frame that it takes the place of, if one waited already.
    pub fn hold(&mut self, due: VirtNs, from: NodeIx, frame: Vec<u8>) -> Option<Vec<u8>> {
        let Some(segment) = Segment::of(&frame) else { return Some(frame) };
        let connection = (from, segment.from, segment.to);
        let Some(r) = self.connections.get_mut(&connection) else { return Some(frame) };
        let earlier = r.held.replace((due, frame));
        if let Some((was, _)) = earlier {
            self.due.remove(&(was, connection));
        }
        self.due.insert((due, connection));
        earlier.map(|(_, frame)| frame)
    }

    /// When the next one has waited long enough.
    pub fn next_due(&self) -> Option<VirtNs> {
        self.due.first().map(|(due, _)| *due)
    }

    /// One that has waited long enough at `now`: when it was due, whose it is, the frame.
    pub fn pop_due(&mut self, now: VirtNs) -> Option<(VirtNs, NodeIx, Vec<u8>)> {
        let (due, connection) = *self.due.first().filter(|(due, _)| *due <= now)?;
        self.due.pop_first();
        let r = self.connections.get_mut(&connection)?;
        let (_, frame) = r.held.take()?;
        r.waited_in_vain();
        if let Some(segment) = Segment::of(&frame) {
            r.tells(&segment);
        }
        Some((due, connection.0, frame))
    }

    fn forget(&mut self, connection: &Connection) {
        if let Some((due, _)) = self.connections.remove(connection).and_then(|r| r.held) {
            self.due.remove(&(due, *connection));
        }
    }

    fn make_room(&mut self, now: VirtNs) {
        if self.connections.len() < CONNECTIONS_MAX {
            return;
        }
        self.connections.retain(|_, r| r.held.is_some() || now.since(r.came).0 < FORGET_NS);
        if self.connections.len() >= CONNECTIONS_MAX {
            // What is forgotten is learnt again by the next answer.
            self.connections.retain(|_, r| r.held.is_some());
        }
    }
}

impl Receiving {
    fn begin(at: VirtNs, seq: u32) -> Receiving {
        Receiving {
            came: at,
            next_seq: seq,
            answer_ns: 0,
            answers: false,
            told: None,
            segments: 0,
            first: at,
            longest_bytes: 0,
            held: None,
        }
    }

    /// Data comes, or the end of it.
    fn gets(&mut self, at: VirtNs, segment: &Segment<'_>) {
        let fin = segment.flags & FIN != 0;
        let bytes = segment.payload_bytes + u32::from(fin);
        // Out of order, or once more: acknowledged at once. The end of all data is not.
        self.answers = (self.answers || fin) && segment.seq == self.next_seq;
        let end = segment.seq.wrapping_add(bytes);
        if ahead(end, self.next_seq) > 0 {
            self.next_seq = end;
        }
        let since_ns = at.since(self.came).0;
        // No overflow: `answer_ns` is at most ANSWER_MAX_NS.
        self.answer_ns = match self.answer_ns {
            0 => ACK_DELAY_NS,
            before if since_ns <= ACK_DELAY_NS / 2 => before / 2 + ACK_DELAY_NS / 2,
            before if since_ns < before => (before / 2 + since_ns).min(ANSWER_MAX_NS),
            before => before,
        };
        self.came = at;
        if self.segments == 0 {
            self.first = at;
        }
        self.segments = self.segments.saturating_add(1);
        self.longest_bytes = self.longest_bytes.max(bytes);
    }

    /// Until when a segment waits, if it is an acknowledgement that does.
    fn waits_until(&self, segment: &Segment<'_>, asked: bool) -> Option<VirtNs> {
        let (acked, window) = self.told?;
        let new_bytes = ahead(segment.ack, acked);
        let waits = self.answers
            && !asked
            && segment.payload_bytes == 0
            && segment.flags == ACK
            && self.segments <= 1
            && new_bytes > 0
            && new_bytes as u32 <= self.longest_bytes
            // Linux tells of a window that has doubled.
            && u32::from(segment.window) < 2 * u32::from(window).max(1)
            && !segment.has_sack();
        waits.then(|| self.first.plus(VirtSpan(ACK_DELAY_NS)))
    }

    /// A segment leaves.
    fn sent(&mut self, at: VirtNs, segment: &Segment<'_>, asked: bool) {
        if segment.payload_bytes > 0 {
            self.answers |= at.since(self.came).0 < self.answer_ns;
        } else if asked || self.told.is_some_and(|(acked, _)| ahead(segment.ack, acked) <= 0) {
            // Asked for, or of something out of order.
            self.answers = false;
        }
        self.tells(segment);
    }

    fn tells(&mut self, segment: &Segment<'_>) {
        if segment.flags & ACK != 0 {
            self.told = Some((segment.ack, segment.window));
            // What has just come is not acknowledged yet.
            self.segments = u32::from(ahead(self.next_seq, segment.ack) > 0);
            self.first = self.came;
        }
    }

    /// No answer came in time.
    fn waited_in_vain(&mut self) {
        self.answers = false;
        self.answer_ns = ACK_DELAY_NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::in_frame;

    const A: NodeIx = NodeIx(0);
    const B: NodeIx = NodeIx(1);
    const MS: u64 = 1_000_000;

    /// The other end's port and a node's own.
    const OTHER: u16 = 80;
    const OWN: u16 = 5000;

    #[derive(Clone, Copy)]
    struct Packet {
        ports: (u16, u16),
        seq: u32,
        ack: u32,
        flags: u8,
        window: u16,
        payload: usize,
        sack: bool,
        v6: bool,
    }

    const PACKET: Packet =
        Packet { ports: (OWN, OTHER), seq: 0, ack: 0, flags: ACK, window: 500, payload: 0, sack: false, v6: false };

    impl Packet {
        /// As on Ethernet: at least 60 bytes.
        fn frame(self) -> Vec<u8> {
            let mut tcp = vec![0; 20];
            tcp[..2].copy_from_slice(&self.ports.0.to_be_bytes());
            tcp[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
            tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
            tcp[8..12].copy_from_slice(&self.ack.to_be_bytes());
            tcp[13] = self.flags;
            tcp[14..16].copy_from_slice(&self.window.to_be_bytes());
            if self.sack {
                tcp.extend([1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
            } else {
                tcp.extend([1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0]);
            }
            tcp[12] = ((tcp.len() / 4) << 4) as u8;
            tcp.resize(tcp.len() + self.payload, 0x55);
            let mut frame = in_frame(&tcp, self.v6);
            frame.resize(frame.len().max(60), 0);
            frame
        }
    }

    /// A question to A; its sequence number is the sum of those before.
    fn question(seq: u32, payload: usize) -> Vec<u8> {
        Packet { ports: (OTHER, OWN), seq, payload, ..PACKET }.frame()
    }

    fn answer(ack: u32) -> Vec<u8> {
        Packet { ack, payload: 10, ..PACKET }.frame()
    }

    fn empty(ack: u32) -> Vec<u8> {
        Packet { ack, ..PACKET }.frame()
    }

    /// A has answered a question of 100 bytes within 5 ms.
    fn answered() -> DelayedAcks {
        let mut acks = DelayedAcks::default();
        acks.delivered(VirtNs(0), A, &question(0, 100));
        assert_eq!(
            acks.sends(VirtNs(MS), A, &empty(100), false),
            Departure::Leaves,
            "nobody knows yet that it answers"
        );
        assert_eq!(acks.sends(VirtNs(5 * MS), A, &answer(100), false), Departure::Leaves);
        acks
    }

    fn holds(acks: &mut DelayedAcks, at: u64, frame: &[u8], due: u64) {
        assert_eq!(acks.sends(VirtNs(at), A, frame, false), Departure::Waits(VirtNs(due)));
        assert_eq!(acks.hold(VirtNs(due), A, frame.to_vec()), None);
    }

    #[test]
    fn an_answer_takes_the_place_of_the_empty_segment_before_it() {
        let mut acks = answered();
        for round in 1..4u32 {
            let at = u64::from(round) * 100 * MS;
            acks.delivered(VirtNs(at), A, &question(round * 100, 100));
            let ack = empty(round * 100 + 100);
            holds(&mut acks, at + MS, &ack, at + 40 * MS);
            assert_eq!(acks.next_due(), Some(VirtNs(at + 40 * MS)));
            assert_eq!(acks.pop_due(VirtNs(at + 40 * MS - 1)), None);
            let answer = answer(round * 100 + 100);
            assert_eq!(acks.sends(VirtNs(at + 39 * MS), A, &answer, false), Departure::InPlaceOf(ack));
            assert_eq!((acks.next_due(), acks.pop_due(VirtNs(u64::MAX))), (None, None));
        }
    }

    #[test]
    fn without_an_answer_it_leaves_after_40_ms_and_the_next_one_at_once() {
        let mut acks = answered();
        acks.delivered(VirtNs(100 * MS), A, &question(100, 100));
        holds(&mut acks, 101 * MS, &empty(200), 140 * MS);
        assert_eq!(acks.pop_due(VirtNs(140 * MS)), Some((VirtNs(140 * MS), A, empty(200))));
        assert_eq!(acks.sends(VirtNs(150 * MS), A, &answer(200), false), Departure::Leaves);
        acks.delivered(VirtNs(200 * MS), A, &question(200, 100));
        assert_eq!(acks.sends(VirtNs(201 * MS), A, &empty(300), false), Departure::Leaves);
        assert_eq!(acks.sends(VirtNs(202 * MS), A, &answer(300), false), Departure::Leaves, "an answer in time");
        acks.delivered(VirtNs(300 * MS), A, &question(300, 100));
        holds(&mut acks, 301 * MS, &empty(400), 340 * MS);
    }

    #[test]
    fn an_answer_that_leaves_after_it_was_due_leaves_after_it() {
        let mut acks = answered();
        acks.delivered(VirtNs(100 * MS), A, &question(100, 100));
        holds(&mut acks, 101 * MS, &empty(200), 140 * MS);
        // Work that its sender has still to do makes it leave later than it was sent.
        let after = Departure::After(VirtNs(140 * MS), empty(200));
        assert_eq!(acks.sends(VirtNs(141 * MS), A, &answer(200), false), after);
        assert_eq!(acks.next_due(), None);
        acks.delivered(VirtNs(200 * MS), A, &question(200, 100));
        assert_eq!(
            acks.sends(VirtNs(201 * MS), A, &empty(300), false),
            Departure::Leaves,
            "it does not answer in time"
        );
    }

    #[test]
    fn an_empty_segment_that_comes_late_enough_leaves() {
        let mut acks = answered();
        acks.delivered(VirtNs(100 * MS), A, &question(100, 100));
        assert_eq!(acks.sends(VirtNs(140 * MS), A, &empty(200), false), Departure::Leaves);
        assert_eq!(acks.next_due(), None);
    }

    #[test]
    fn two_questions_are_acknowledged_at_once() {
        let mut acks = answered();
        acks.delivered(VirtNs(100 * MS), A, &question(100, 100));
        holds(&mut acks, 101 * MS, &empty(200), 140 * MS);
        acks.delivered(VirtNs(102 * MS), A, &question(200, 100));
        assert_eq!(acks.sends(VirtNs(103 * MS), A, &empty(300), false), Departure::InPlaceOf(empty(200)));
        assert_eq!(acks.next_due(), None);
        // More than the longest segment so far has come as one large frame.
        acks.delivered(VirtNs(200 * MS), A, &question(300, 100));
        acks.delivered(VirtNs(200 * MS), A, &question(400, 50));
        assert_eq!(acks.sends(VirtNs(201 * MS), A, &empty(450), false), Departure::Leaves);
    }

    #[test]
    fn what_an_answer_did_not_acknowledge_counts_with_what_comes_next() {
        let mut acks = answered();
        acks.delivered(VirtNs(100 * MS), A, &question(100, 100));
        assert_eq!(acks.sends(VirtNs(101 * MS), A, &answer(100), false), Departure::Leaves, "sent before it was read");
        acks.delivered(VirtNs(102 * MS), A, &question(200, 100));
        assert_eq!(acks.sends(VirtNs(103 * MS), A, &empty(300), false), Departure::Leaves);
    }

    #[test]
    fn others_that_linux_sends_at_once_leave_at_once() {
        let usual = Packet { ack: 200, ..PACKET };
        let others = [
            ("SACK", Packet { sack: true, ..usual }),
            ("ECE", Packet { flags: ACK | 0x40, ..usual }),
            ("FIN", Packet { flags: ACK | FIN, ..usual }),
            ("RST", Packet { flags: ACK | RST, ..usual }),
            ("nothing new", Packet { ack: 100, ..usual }),
            ("a window that has doubled", Packet { window: 1000, ..usual }),
        ];
        for (what, packet) in others {
            let mut acks = answered();
            acks.delivered(VirtNs(100 * MS), A, &question(100, 100));
            assert_eq!(acks.sends(VirtNs(101 * MS), A, &packet.frame(), false), Departure::Leaves, "{what}");
        }
        let mut acks = answered();
        acks.delivered(VirtNs(100 * MS), A, &question(100, 100));
        assert_eq!(acks.sends(VirtNs(101 * MS), A, &empty(200), true), Departure::Leaves, "asked for");
        for seq in [0, 300] {
            let mut acks = answered();
            acks.delivered(VirtNs(100 * MS), A, &question(seq, 100));
            assert_eq!(acks.sends(VirtNs(101 * MS), A, &empty(200), false), Departure::Leaves, "out of order");
        }
    }

    #[test]
    fn connections_and_nodes_are_apart() {
        let mut acks = answered();
        acks.delivered(VirtNs(100 * MS), A, &question(100, 100));
        holds(&mut acks, 101 * MS, &empty(200), 140 * MS);
        let other = Packet { ports: (OWN, 81), ack: 200, payload: 10, ..PACKET }.frame();
        for (node, frame) in [(B, answer(200)), (A, other), (A, vec![0; 60]), (A, vec![0; 14])] {
            assert_eq!(acks.sends(VirtNs(102 * MS), node, &frame, false), Departure::Leaves);
        }
        assert_eq!(acks.next_due(), Some(VirtNs(140 * MS)));
    }

    /// 40 ms later than the end came: the other end is told sooner by an answer, or by this one's own end.
    #[test]
    fn the_end_of_all_questions_is_acknowledged_late() {
        let mut acks = answered();
        let end = Packet { ports: (OTHER, OWN), seq: 100, flags: ACK | FIN, ..PACKET }.frame();
        acks.delivered(VirtNs(100 * MS), A, &end);
        holds(&mut acks, 101 * MS, &empty(101), 140 * MS);
        let own_end = Packet { ack: 101, flags: ACK | FIN, ..PACKET }.frame();
        assert_eq!(acks.sends(VirtNs(110 * MS), A, &own_end, false), Departure::InPlaceOf(empty(101)));
        assert_eq!(acks.next_due(), None);
        assert!(acks.connections.is_empty());
    }

    #[test]
    fn a_connection_that_begins_anew_knows_nothing() {
        let mut acks = answered();
        acks.delivered(VirtNs(100 * MS), A, &question(100, 100));
        holds(&mut acks, 101 * MS, &empty(200), 140 * MS);
        let reset = Packet { ports: (OTHER, OWN), flags: RST, ..PACKET }.frame();
        acks.delivered(VirtNs(102 * MS), A, &reset);
        assert_eq!((acks.next_due(), acks.pop_due(VirtNs(u64::MAX))), (None, None));
        acks.delivered(VirtNs(103 * MS), A, &question(0, 100));
        assert_eq!(acks.sends(VirtNs(104 * MS), A, &empty(100), false), Departure::Leaves);
    }

    #[test]
    fn ipv6_and_sequence_numbers_that_wrap() {
        let mut acks = DelayedAcks::default();
        let mut seq = u32::MAX - 150;
        for round in 0..3u64 {
            let question = Packet { ports: (OTHER, OWN), seq, payload: 100, v6: true, ..PACKET }.frame();
            acks.delivered(VirtNs(round * 100 * MS), A, &question);
            seq = seq.wrapping_add(100);
            let ack = Packet { ack: seq, v6: true, ..PACKET }.frame();
            if round > 0 {
                holds(&mut acks, round * 100 * MS + MS, &ack, round * 100 * MS + 40 * MS);
            }
            let answer = Packet { ack: seq, payload: 10, v6: true, ..PACKET }.frame();
            let expected = if round > 0 { Departure::InPlaceOf(ack) } else { Departure::Leaves };
            assert_eq!(acks.sends(VirtNs(round * 100 * MS + 5 * MS), A, &answer, false), expected);
        }
    }

    #[test]
    fn connections_without_number_are_forgotten() {
        let mut acks = DelayedAcks::default();
        for i in 0..3 * CONNECTIONS_MAX as u32 {
            let ports = ((i >> 16) as u16, i as u16);
            acks.delivered(VirtNs(u64::from(i)), A, &Packet { ports, payload: 1, ..PACKET }.frame());
        }
        assert!(acks.connections.len() <= CONNECTIONS_MAX);
    }

    /// Seeded bytes: whatever comes, nothing panics, and what waits comes out once.
    #[test]
    fn any_frames() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut acks = answered();
        let (mut waiting, mut at) = (0u32, 10 * MS);
        for _ in 0..200_000 {
            at += below(20 * MS);
            let mut frame = Packet {
                ports: if below(2) == 0 { (OWN, OTHER) } else { (OTHER, OWN) },
                seq: below(1000) as u32,
                ack: below(1000) as u32,
                flags: [ACK, ACK, ACK, ACK | FIN, SYN, RST][below(6) as usize],
                payload: [0, 0, 10, 100][below(4) as usize],
                sack: below(9) == 0,
                ..PACKET
            }
            .frame();
            if below(4) == 0 {
                let place = below(frame.len() as u64) as usize;
                frame[place] = below(256) as u8;
            }
            frame.truncate(frame.len() - if below(4) == 0 { below(47) as usize } else { 0 });
            if below(2) == 0 {
                acks.delivered(VirtNs(at), A, &frame);
            } else {
                match acks.sends(VirtNs(at), A, &frame, below(20) == 0) {
                    Departure::Leaves => {}
                    Departure::InPlaceOf(_) | Departure::After(..) => waiting -= 1,
                    Departure::Waits(due) => {
                        assert!(due > VirtNs(at));
                        waiting += u32::from(acks.hold(due, A, frame).is_none());
                    }
                }
            }
            while acks.pop_due(VirtNs(at)).is_some() {
                waiting -= 1;
            }
            // Those of a connection that was reset are gone.
            let held = acks.connections.values().filter(|r| r.held.is_some()).count() as u32;
            assert!(held <= waiting);
            waiting = held;
            assert_eq!(acks.due.len() as u32, held);
        }
    }
}
