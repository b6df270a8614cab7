//! Several packets as one: pieces of a large frame that follow each other on one way, each with its instant.

use diecast_core_vtime::VirtNs;

use crate::large::{Piece, Pieces};
use crate::packets::{Dest, Frame, Packet, PacketIx, Packets};
use crate::spec::{NodeIx, VertexIx};

/// A packet that reaches a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Passing {
    pub at: VirtNs,
    pub bytes: u32,
}

/// Two pieces or more.
#[derive(Debug)]
pub(crate) struct Train {
    pieces: Pieces,
    /// Of the last piece's frame; those before it have the length that the packet tells.
    last_bytes: u32,
    /// When pieces from this one on reach the packet's vertex, in order.
    from: u16,
    at: Vec<VirtNs>,
}

impl Train {
    pub fn count(&self) -> usize {
        self.pieces.count.into()
    }

    fn at(&self) -> &[VirtNs] {
        &self.at[usize::from(self.pieces.first - self.from)..]
    }
}

/// All trains, with room for more.
#[derive(Debug, Default)]
pub(crate) struct Trains {
    slots: Vec<Train>,
    free: Vec<u32>,
    /// Packets beyond one in each.
    pub(crate) coupled: usize,
}

impl Trains {
    /// A train that reaches its vertex at instants that are yet to be told.
    fn insert(&mut self, pieces: Pieces, last_bytes: u32) -> u32 {
        self.coupled += usize::from(pieces.count) - 1;
        let ix = self.free.pop().unwrap_or_else(|| {
            let none = Pieces { large: 0, first: 0, count: 0 };
            self.slots.push(Train { pieces: none, last_bytes: 0, from: 0, at: Vec::new() });
            self.slots.len() as u32 - 1
        });
        let train = &mut self.slots[ix as usize];
        (train.pieces, train.last_bytes, train.from) = (pieces, last_bytes, pieces.first);
        train.at.clear();
        ix
    }

    fn remove(&mut self, ix: u32) {
        self.coupled -= self.slots[ix as usize].count() - 1;
        self.free.push(ix);
    }

    pub fn get(&self, ix: u32) -> &Train {
        &self.slots[ix as usize]
    }

    /// Bytes of memory that they take.
    pub fn memory_bytes(&self) -> usize {
        let at: usize = self.slots.iter().map(|t| t.at.capacity() * size_of::<VirtNs>()).sum();
        at + self.slots.capacity() * size_of::<Train>() + self.free.capacity() * 4
    }
}

/// A train as a pipe or a node sees it.
#[derive(Clone, Copy)]
pub(crate) struct Coming<'a> {
    at: &'a [VirtNs],
    bytes: u32,
    last_bytes: u32,
}

impl Coming<'_> {
    pub fn get(&self, i: usize) -> Passing {
        let bytes = if i + 1 == self.at.len() { self.last_bytes } else { self.bytes };
        Passing { at: self.at[i], bytes }
    }

    /// Bytes of the first ones together.
    pub fn bytes_of(&self, count: usize) -> u64 {
        let last = if count == self.at.len() { self.last_bytes } else { self.bytes };
        u64::from(self.bytes) * (count as u64 - 1) + u64::from(last)
    }
}

impl Packets {
    /// All pieces of a large frame, two or more, as one packet that reaches its vertex at one instant.
    pub(crate) fn insert_all(
        &mut self,
        large: u32,
        count: u16,
        at: VirtNs,
        (dest, from, vertex): (Dest, NodeIx, VertexIx),
    ) -> PacketIx {
        let (bytes, last_bytes) = (self.larges.piece_bytes(large, 0), self.larges.piece_bytes(large, count - 1));
        let train = self.trains.insert(Pieces { large, first: 0, count }, last_bytes);
        self.trains.slots[train as usize].at.resize(count.into(), at);
        self.insert(Packet { frame: Frame::Train { train, bytes }, dest, from, vertex, broken: false })
    }

    /// The packets that a train is; `None` for one that is none.
    pub(crate) fn coming(&self, ix: PacketIx) -> Option<Coming<'_>> {
        let Frame::Train { train, bytes } = self.peek(ix).frame else { return None };
        let train = self.trains.get(train);
        Some(Coming { at: train.at(), bytes, last_bytes: train.last_bytes })
    }

    /// How many packets it is.
    pub(crate) fn count(&self, ix: PacketIx) -> usize {
        match self.peek(ix).frame {
            Frame::Train { train, .. } => self.trains.get(train).count(),
            _ => 1,
        }
    }

    /// The first ones of a train, but not all, on their own, and when the rest reaches the vertex. The rest stays what
    /// it was to whoever knows its last packet.
    pub(crate) fn uncouple(&mut self, ix: PacketIx, count: usize) -> (PacketIx, VirtNs) {
        let (frame, rest) = self.split(ix, count);
        let packet = self.peek(ix);
        let (dest, from, vertex) = (packet.dest.clone(), packet.from, packet.vertex);
        (self.insert(Packet { frame, dest, from, vertex, broken: false }), rest)
    }

    fn split(&mut self, ix: PacketIx, count: usize) -> (Frame, VirtNs) {
        let Frame::Train { train: tix, bytes } = self.peek(ix).frame else { unreachable!("only a train is split") };
        let train = &mut self.trains.slots[tix as usize];
        let Pieces { large, first, count: all } = train.pieces;
        let (last_bytes, gone) = (train.last_bytes, count as u16);
        // One coupling less is left, and `insert` counts those of the first ones.
        self.trains.coupled -= count;
        train.pieces = Pieces { large, first: first + gone, count: all - gone };
        let rest = train.at()[0];
        if all - gone == 1 {
            self.trains.free.push(tix);
            self.get(ix).frame = Frame::Piece(Piece { large, ix: first + gone, bytes: last_bytes });
        }
        let frame = match count {
            1 => Frame::Piece(Piece { large, ix: first, bytes }),
            _ => Frame::Train { train: self.trains.insert(Pieces { large, first, count: gone }, bytes), bytes },
        };
        (frame, rest)
    }

    /// Takes the first ones out, to their node; when the rest reaches it, if not all are taken.
    pub(crate) fn arrive(&mut self, ix: PacketIx, count: usize) -> (Pieces, Option<VirtNs>) {
        let Frame::Train { train: tix, .. } = self.peek(ix).frame else { unreachable!("only a train is split") };
        let pieces = Pieces { count: count as u16, ..self.trains.get(tix).pieces };
        if count == self.trains.get(tix).count() {
            self.trains.remove(tix);
            self.take(ix);
            return (pieces, None);
        }
        let (frame, rest) = self.split(ix, count);
        if let Frame::Train { train, .. } = frame {
            self.trains.remove(train);
        }
        (pieces, Some(rest))
    }

    /// Gives a train new instants; what it had is in `at` then.
    pub(crate) fn retime(&mut self, ix: PacketIx, at: &mut Vec<VirtNs>) {
        let Frame::Train { train, .. } = self.peek(ix).frame else { unreachable!("only a train is timed") };
        let train = &mut self.trains.slots[train as usize];
        train.from = train.pieces.first;
        std::mem::swap(&mut train.at, at);
    }

    /// Makes the first of several pieces that follow each other a train of all.
    pub(crate) fn couple(&mut self, pieces: &[PacketIx]) -> PacketIx {
        let piece = |packets: &Packets, ix| match packets.peek(ix).frame {
            Frame::Piece(piece) => piece,
            _ => unreachable!("only pieces are coupled"),
        };
        let (first, last) = (piece(self, pieces[0]), piece(self, pieces[pieces.len() - 1]));
        let all = Pieces { large: first.large, first: first.ix, count: pieces.len() as u16 };
        for ix in &pieces[1..] {
            self.take(*ix);
        }
        let train = self.trains.insert(all, last.bytes);
        self.get(pieces[0]).frame = Frame::Train { train, bytes: first.bytes };
        pieces[0]
    }
}
