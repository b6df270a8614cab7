//! Large frames as they come and go: in as one, through the pipes piece by piece, out as one where pieces are due together.

use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::large::{Piece, Pieces, shareable};
use crate::neighbour::{self, Kind};
use crate::network::{Arrived, Delivery, Network, heard};
use crate::offload::OFFLOAD_HEADER_BYTES;
use crate::packets::{Dest, Frame};
use crate::spec::NodeIx;

/// What is due at a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Due {
    /// A frame as on the wire.
    Frame(Delivery),
    /// Several of one large frame.
    Run(Run),
}

/// Frames that followed each other in one large frame, were changed by nothing on their way and are due, one right after
/// the other. [`Network::merged`] gives their bytes; it must be given back with [`Network::release_run`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The receiver.
    pub to: NodeIx,
    /// When the first was due.
    pub due: VirtNs,
    pieces: Pieces,
}

impl Run {
    /// How many frames it stands for, two or more.
    pub fn count(&self) -> usize {
        self.pieces.count.into()
    }
}

impl Network {
    /// An empty buffer for [`Network::ingress_large`].
    pub fn large_buffer(&mut self) -> Vec<u8> {
        self.packets.larges.buffer()
    }

    /// Keeps a buffer for large frames for reuse.
    pub fn recycle_large(&mut self, read: Vec<u8>) {
        self.packets.larges.recycle(read);
    }

    /// As [`Network::ingress`] for each segment of a large frame, which comes behind its virtio header; how many there
    /// were. Gives the buffer back when it is not a plain one: then nothing has happened, and the caller cuts it.
    pub fn ingress_large(
        &mut self,
        now: VirtNs,
        from: NodeIx,
        read: Vec<u8>,
        debt: VirtSpan,
    ) -> Result<usize, Vec<u8>> {
        let shared = shareable(&read, self.frame_bytes_max).filter(|_| self.packets.larges.has_room());
        let Some((cut, count)) = shared.filter(|_| self.record.is_none()) else { return Err(read) };
        let frame = &read[OFFLOAD_HEADER_BYTES..];
        let Some(to) = self.one_receiver(from, frame) else { return Err(read) };
        let now = now.max(self.processed);
        let release = self.release(now, from, frame, debt);
        let vertex = self.nodes[from.at()].vertex;
        let large = self.packets.larges.insert(read, cut, count);
        for ix in 0..count {
            let bytes = self.packets.larges.piece_bytes(large, ix);
            let c = &mut self.nodes[from.at()].counters;
            c.packets_sent += 1;
            c.bytes_sent += u64::from(bytes);
            self.admit(release, vertex, from, Dest::One(to), Frame::Piece(Piece { large, ix, bytes }));
        }
        Ok(count.into())
    }

    /// Whom a frame of data is for, if nothing is the matter with it.
    fn one_receiver(&self, from: NodeIx, frame: &[u8]) -> Option<NodeIx> {
        let (dst, src) = neighbour::addresses(frame)?;
        let node = &self.nodes[from.at()];
        let right = src == node.mac && !dst.is_group() && neighbour::kind(frame) == Kind::Data;
        let to = heard(self.by_mac.get(&dst).filter(|_| right), &self.nodes, node.segment)?;
        (*to != from && self.same_side(from, *to)).then_some(*to)
    }

    /// As [`Network::pop_due`], with what is due and belongs together in one, for nodes that are to have it so. Nothing
    /// waits for that and nothing comes early: all of a run was due at `now`.
    pub fn pop_due_merged(&mut self, now: VirtNs, merge: impl Fn(NodeIx) -> bool) -> Option<Due> {
        let Arrived { to, frame, due } = self.arrived(now)?;
        let piece = match frame {
            Frame::Piece(piece) if merge(to) => piece,
            frame => return Some(Due::Frame(Delivery { to, frame: self.packets.whole(frame), due })),
        };
        let Piece { large, ix: first, .. } = piece;
        let mut pieces = Pieces { large, first, count: 1 };
        while let Some(next) = self.arrived(now) {
            match next.frame {
                Frame::Piece(p) if p.large == large && p.ix == first + pieces.count && next.to == to => {
                    pieces.count += 1;
                }
                _ => {
                    self.ahead = Some(next);
                    break;
                }
            }
        }
        if pieces.count > 1 {
            return Some(Due::Run(Run { to, due, pieces }));
        }
        Some(Due::Frame(Delivery { to, frame: self.packets.whole(Frame::Piece(piece)), due }))
    }

    /// The bytes of a run as one large frame behind its virtio header: what `head` then has and what is returned.
    pub fn merged<'a>(&'a self, run: &Run, head: &mut Vec<u8>) -> &'a [u8] {
        self.packets.larges.merged(run.pieces, head)
    }

    /// Ends a run.
    pub fn release_run(&mut self, run: Run) {
        self.packets.larges.release(run.pieces.large, run.pieces.count.into());
    }
}
