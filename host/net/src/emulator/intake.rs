//! What nodes have sent is read, and enters the network in the order in which it left them.

use diecast_core_net::{NodeIx, OFFLOAD_HEADER_BYTES, Segments};
use diecast_core_vtime::{RealNs, VirtNs, VirtSpan};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use super::{GATHER_MAX_NS, GATHER_MIN_NS, Runner};
use crate::clock::monotonic_now;
use crate::egress::{Trailer, find_trailer, large_key, parse};

/// Frames read from one TAP before the next has its turn; a large one takes as long as so many.
const READ_BATCH: usize = 16;
const READ_LARGE: usize = 5;
/// Frames that are read before they enter the network: with many TAPs a turn can be longer than a whole window.
pub(super) const READS_MAX: usize = 32;
/// Real time between two looks at the least way, which changes with links.
const WAY_EVERY_NS: u64 = 100_000_000;

/// A frame that was read.
pub(super) struct Read {
    node: usize,
    /// With a virtio header before it where its TAP has them; without its trailer.
    frame: Vec<u8>,
    trailer: Option<Trailer>,
    /// When it was read.
    now: RealNs,
    /// When it left its node, which it tells, or where it does not was read; no earlier than those of the node before it.
    left: RealNs,
}

impl Runner {
    /// Reads from a TAP.
    pub(super) fn read_batch(&mut self, node: usize) {
        let (mut left, mut before) = (READ_BATCH, RealNs(0));
        while left > 0 {
            let Some(mut read) = self.read(node) else { return };
            read.left = read.left.max(before);
            before = read.left;
            let large = self.hand.offload[node] && read.frame.get(1).is_some_and(|kind| *kind != 0);
            left = left.saturating_sub(if large { READ_LARGE } else { 1 });
            self.reads.push(read);
        }
        self.unread = true;
    }

    /// Reads a frame; `None` when there is none.
    fn read(&mut self, node: usize) -> Option<Read> {
        let tap = self.hand.taps[node].as_ref()?;
        let large = self.hand.offload[node];
        let mut frame = if large { self.net.large_buffer() } else { self.net.buffer() };
        if !large {
            frame.reserve(self.frame_room);
        }
        if let Err(e) = rustix::io::read(tap, spare_capacity(&mut frame)) {
            self.recycle(large, frame);
            if !matches!(e, Errno::AGAIN | Errno::INTR) {
                self.lose(node);
            }
            return None;
        }
        self.tally.packets_read += 1;
        let now = monotonic_now();
        let trailer = self.take_trailer(large, &mut frame);
        let left = trailer.map_or(now, |trailer| trailer.at.min(now));
        Some(Read { node, frame, trailer, now, left })
    }

    /// The trailer of a frame, which ends before it then.
    fn take_trailer(&self, large: bool, frame: &mut Vec<u8>) -> Option<Trailer> {
        let ledger = self.ledger.as_ref()?;
        if let Some((header, whole)) = frame.split_first_chunk::<OFFLOAD_HEADER_BYTES>().filter(|_| large)
            && header[1] != 0
        {
            let key = large_key(whole, Segments::new(header, whole).ok()?.transport()?)?;
            return parse(&ledger.trailer_of(&key)?);
        }
        let (length, trailer) = find_trailer(frame)?;
        frame.truncate(length);
        Some(trailer)
    }

    /// What was read enters the network.
    pub(super) fn take_in(&mut self) {
        let mut reads = std::mem::take(&mut self.reads);
        if reads.is_empty() {
            return;
        }
        reads.sort_by_key(|read| read.left);
        for read in reads.drain(..) {
            if self.hand.offload[read.node] {
                self.take_in_large(read);
            } else {
                let (v, debt) = self.enters(&read);
                self.leave(read.node, read.frame, v, debt, read.trailer);
            }
        }
        self.reads = reads;
        self.deliver();
        self.keep_to_share();
    }

    /// One with what its kernel left to do, which is done here.
    fn take_in_large(&mut self, mut read: Read) {
        let from = NodeIx(read.node as u32);
        let whole = std::mem::take(&mut read.frame);
        let Some((header, frame)) = whole.split_first_chunk::<OFFLOAD_HEADER_BYTES>() else {
            return self.net.malformed(from, whole.len());
        };
        let Ok(segments) = Segments::new(header, frame) else {
            self.net.malformed(from, frame.len());
            return self.net.recycle_large(whole);
        };
        let at_once = segments.transport().is_none() || !self.captures.is_empty();
        let (v, debt) = self.enters(&read);
        if at_once {
            self.cut(&read, segments, v, debt);
            return self.net.recycle_large(whole);
        }
        self.pass_acks(read.node, frame, v, debt);
        if let Err(whole) = self.net.ingress_large(v, from, whole, debt) {
            let (header, frame) = whole.split_first_chunk().expect("it was seen above");
            if let Ok(segments) = Segments::new(header, frame) {
                self.cut(&read, segments, v, debt);
            }
            self.net.recycle_large(whole);
        }
    }

    fn cut(&mut self, read: &Read, mut segments: Segments<'_>, v: VirtNs, debt: VirtSpan) {
        loop {
            let mut buffer = self.net.buffer();
            if !segments.next_into(&mut buffer, self.frame_room) {
                return self.net.recycle(buffer);
            }
            self.leave(read.node, buffer, v, debt, read.trailer);
        }
    }

    /// When a frame enters the network, and how much later it may leave: its sender is charged by what its trailer says.
    fn enters(&mut self, read: &Read) -> (VirtNs, VirtSpan) {
        self.tally.without_trailer += u64::from(self.ledger.is_some() && read.trailer.is_none());
        // Never before a frame that has entered: what was recorded then replays in the same order.
        self.entered = self.entered.max(self.clock.v_of(read.left));
        let sent = read.trailer.and_then(|trailer| trailer.sent);
        let (Some(ledger), Some(sent)) = (&self.ledger, sent) else { return (self.entered, VirtSpan(0)) };
        ledger.take_handed(Some(read.node), sent.at, read.now);
        (self.entered, ledger.charge_sender(read.node, &sent, read.now).since(self.entered))
    }

    /// For how long frames may gather, if the last look at that is old.
    pub(super) fn keep_to_way(&mut self, now: RealNs) {
        if now.since(self.gather_at).0 >= WAY_EVERY_NS {
            let way = self.clock.r_of(self.clock.v_of(now).plus(self.net.least_way())).since(now);
            (self.gather_ns, self.gather_at) = ((way.0 / 2).clamp(GATHER_MIN_NS, GATHER_MAX_NS), now);
        }
    }

    fn recycle(&mut self, large: bool, frame: Vec<u8>) {
        if large { self.net.recycle_large(frame) } else { self.net.recycle(frame) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use diecast_core_cpu::Sent;
    use diecast_core_net::{Link, NetBuilder, Recorded};
    use diecast_core_vtime::{FrameMap, RealNs, Tdf, VirtNs};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use crate::egress::tests::trailer_at;
    use crate::{EgressLedger, Emulator, EmulatorConfig, LARGE_KEY_BYTES, SharedFrame, TRAILER_BYTES, monotonic_now};

    struct Nobody;

    impl EgressLedger for Nobody {
        fn charge_sender(&self, _: usize, _: &Sent, _: RealNs) -> VirtNs {
            VirtNs(0)
        }
        fn take_handed(&self, _: Option<usize>, _: RealNs, _: RealNs) -> bool {
            false
        }
        fn handed(&self) -> Option<BorrowedFd<'_>> {
            None
        }
        fn trailer_of(&self, _: &[u8; LARGE_KEY_BYTES]) -> Option<[u8; TRAILER_BYTES]> {
            None
        }
    }

    /// Frames that several nodes sent in turns before the emulator looked enter in those turns, each when it left; those of a node
    /// keep their order whatever they tell.
    #[test]
    fn frames_of_several_nodes_enter_in_the_order_in_which_they_left() {
        let mut net = NetBuilder::new(1, 9);
        let hub = net.switch("hub");
        for name in ["a", "b", "c"] {
            let (_, node) = net.node(name);
            net.link(node, hub, Link { delay_ns: 1_000_000, ..Link::default() });
        }
        let spec = net.build().unwrap();
        let pair = |_| socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
        let (ends, taps): (Vec<OwnedFd>, Vec<OwnedFd>) = (0..3).map(pair).unzip();
        let clock = Arc::new(SharedFrame::new(FrameMap::start(monotonic_now(), Tdf::ONE)));
        let begin = monotonic_now();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let left = [(0, 10), (0, 30), (1, 20), (1, 15), (2, 5), (2, 40)];
        for (node, us) in left {
            let mut frame = vec![0; 60];
            frame[..6].copy_from_slice(&spec.nodes[(node + 1) % 3].mac.0);
            frame[6..12].copy_from_slice(&spec.nodes[node].mac.0);
            frame[12..14].copy_from_slice(&[8, 0]);
            frame.extend(trailer_at(RealNs(begin.0 + us * 1_000)));
            rustix::io::write(&ends[node], &frame).unwrap();
        }
        let (record, recorded) = channel();
        let config = EmulatorConfig {
            spec,
            taps,
            clock,
            ledger: Some(Arc::new(Nobody)),
            receivers: None,
            delays_acks: false,
            priority: None,
            cpu: None,
            threads: 1,
            record: Some(record),
        };
        let emulator = Emulator::start(config).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let stats = emulator.stop().unwrap();
        assert_eq!((stats.packets_read, stats.without_trailer), (6, 0));
        let entered: Vec<(u32, u64)> = recorded
            .iter()
            .flatten()
            .filter_map(|r| if let Recorded::Frame { from, at, .. } = r { Some((from.0, at.0)) } else { None })
            .collect();
        let first = entered[0].1;
        let in_order = [(2, 0), (0, 5_000), (1, 15_000), (1, 15_000), (0, 25_000), (2, 35_000)];
        assert_eq!(entered, in_order.map(|(from, later)| (from, first + later)));
    }
}
