//! The packets on their way: one table, so that events and queues move four bytes and not a packet.
//!
//! A waiting packet takes about 120 bytes beside its frame: its slot, its place in a queue, room to grow. A frame that
//! fills less than half of its buffer is copied to one of its size, so memory per packet stays close to the packet.

use diecast_core_vtime::VirtNs;

use crate::large::{Larges, Piece};
use crate::neighbour;
use crate::spec::{NodeIx, PipeIx, VertexIx};
use crate::train::Trains;

/// Buffers kept for reuse; more are freed.
const SPARE_BUFFERS_MAX: usize = 4096;
/// Room in a buffer behind the longest frame, so that a caller can see that a frame is longer, or read what comes
/// with it, without growing the buffer.
pub const BUFFER_ROOM_BYTES: usize = 128;

/// Who a frame is for.
#[derive(Clone, Debug)]
pub(crate) enum Dest {
    One(NodeIx),
    /// Copies part where their paths part.
    Group(Box<[NodeIx]>),
}

/// Position in [`Packets`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PacketIx(u32);

/// The bytes of a packet.
#[derive(Debug)]
pub(crate) enum Frame {
    Whole(Vec<u8>),
    Piece(Piece),
    /// Several pieces; `bytes` of the first one.
    Train {
        train: u32,
        bytes: u32,
    },
}

impl Frame {
    pub(crate) fn len(&self) -> usize {
        match self {
            Frame::Whole(bytes) => bytes.len(),
            Frame::Piece(Piece { bytes, .. }) | Frame::Train { bytes, .. } => *bytes as usize,
        }
    }
}

/// Trains go through pipes that do nothing but send; what else happens to packets happens to one at a time.
const ONE: &str = "a train is taken apart before";

/// A packet on its way.
#[derive(Debug)]
pub(crate) struct Packet {
    pub frame: Frame,
    pub dest: Dest,
    /// Who sent it.
    pub from: NodeIx,
    /// The vertex that it reaches next.
    pub vertex: VertexIx,
    /// The pipe was cut under it: it will not arrive.
    pub broken: bool,
}

/// A packet that a watched pipe has begun to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The pipe.
    pub pipe: PipeIx,
    /// When its transmission began.
    pub at: VirtNs,
    /// Its bytes.
    pub frame: Vec<u8>,
}

/// All packets on their way.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    slots: Vec<Option<Packet>>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
    /// Of whom packets may be pieces.
    pub(crate) larges: Larges,
    pub(crate) trains: Trains,
    /// Capacity of a buffer that takes every frame.
    buffer_bytes: usize,
    /// What watched pipes have sent since the last look.
    pub(crate) seen: Vec<Seen>,
}

impl Packets {
    /// For frames of at most so many bytes.
    pub(crate) fn new(frame_bytes_max: usize) -> Packets {
        Packets { buffer_bytes: frame_bytes_max + BUFFER_ROOM_BYTES, ..Packets::default() }
    }

    pub(crate) fn insert(&mut self, packet: Packet) -> PacketIx {
        match self.free.pop() {
            Some(ix) => {
                self.slots[ix as usize] = Some(packet);
                PacketIx(ix)
            }
            None => {
                self.slots.push(Some(packet));
                PacketIx(self.slots.len() as u32 - 1)
            }
        }
    }

    /// The packet in a slot that is in use: events and queues hold each index exactly once.
    pub(crate) fn get(&mut self, ix: PacketIx) -> &mut Packet {
        self.slots[ix.0 as usize].as_mut().expect("an event or a queue holds this packet")
    }

    pub(crate) fn peek(&self, ix: PacketIx) -> &Packet {
        self.slots[ix.0 as usize].as_ref().expect("an event or a queue holds this packet")
    }

    pub(crate) fn take(&mut self, ix: PacketIx) -> Packet {
        self.free.push(ix.0);
        self.slots[ix.0 as usize].take().expect("an event or a queue holds this packet")
    }

    /// Drops a packet.
    pub(crate) fn discard(&mut self, ix: PacketIx) {
        let packet = self.take(ix);
        self.recycle_frame(packet.frame);
    }

    /// A number that is the same for packets of one flow.
    pub(crate) fn flow(&mut self, ix: PacketIx) -> u64 {
        match &self.peek(ix).frame {
            Frame::Whole(bytes) => neighbour::flow_key(bytes),
            Frame::Piece(piece) => neighbour::flow_key(self.larges.headers(*piece)),
            Frame::Train { .. } => unreachable!("{ONE}"),
        }
    }

    /// A second packet with the same content.
    pub(crate) fn copy(&mut self, ix: PacketIx) -> PacketIx {
        let original = self.get(ix);
        let (dest, from, vertex) = (original.dest.clone(), original.from, original.vertex);
        let frame = match &original.frame {
            Frame::Whole(bytes) => Frame::Whole(bytes.clone()),
            Frame::Piece(piece) => Frame::Piece(*piece),
            Frame::Train { .. } => unreachable!("{ONE}"),
        };
        if let Frame::Piece(piece) = &frame {
            self.larges.share(*piece);
        }
        self.insert(Packet { frame, dest, from, vertex, broken: false })
    }

    /// Its bytes, to be changed: from now on its own.
    pub(crate) fn bytes_mut(&mut self, ix: PacketIx) -> &mut Vec<u8> {
        if let Frame::Piece(piece) = self.get(ix).frame {
            let bytes = self.whole(Frame::Piece(piece));
            self.get(ix).frame = Frame::Whole(bytes);
        }
        match &mut self.get(ix).frame {
            Frame::Whole(bytes) => bytes,
            Frame::Piece(_) | Frame::Train { .. } => unreachable!("it has just become whole"),
        }
    }

    /// A copy of its bytes.
    pub(crate) fn bytes_of(&mut self, ix: PacketIx) -> Vec<u8> {
        match self.get(ix).frame {
            Frame::Whole(ref bytes) => bytes.clone(),
            Frame::Piece(piece) => {
                let mut bytes = Vec::with_capacity(piece.bytes as usize);
                self.larges.write(piece, &mut bytes);
                bytes
            }
            Frame::Train { .. } => unreachable!("{ONE}"),
        }
    }

    /// The bytes of a packet that is none any more.
    pub(crate) fn whole(&mut self, frame: Frame) -> Vec<u8> {
        match frame {
            Frame::Whole(bytes) => bytes,
            Frame::Piece(piece) => {
                let mut bytes = self.buffer();
                self.larges.write(piece, &mut bytes);
                self.larges.release(piece.large, 1);
                bytes
            }
            Frame::Train { .. } => unreachable!("{ONE}"),
        }
    }

    pub(crate) fn recycle_frame(&mut self, frame: Frame) {
        match frame {
            Frame::Whole(bytes) => self.recycle(bytes),
            Frame::Piece(piece) => self.larges.release(piece.large, 1),
            Frame::Train { .. } => unreachable!("{ONE}"),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len() + self.trains.coupled
    }

    /// An empty buffer that takes every frame, a used one when there is one.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.buffer_bytes))
    }

    /// Keeps a buffer for reuse if it takes every frame.
    pub(crate) fn recycle(&mut self, mut frame: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX && frame.capacity() >= self.buffer_bytes {
            frame.clear();
            self.spare.push(frame);
        }
    }

    /// The frame in a buffer that it fills at least by half.
    pub(crate) fn fitted(&mut self, frame: Vec<u8>) -> Vec<u8> {
        if frame.len() * 2 >= frame.capacity() {
            return frame;
        }
        let small = frame.as_slice().to_vec();
        self.recycle(frame);
        small
    }

    /// Bytes of memory that packets and buffers in reserve take.
    pub(crate) fn memory_bytes(&self) -> usize {
        let frame = |p: &Packet| match &p.frame {
            Frame::Whole(bytes) => bytes.capacity(),
            Frame::Piece(_) | Frame::Train { .. } => 0,
        };
        let frames: usize = self.slots.iter().flatten().map(frame).sum::<usize>() + self.larges.memory_bytes();
        let frames = frames + self.trains.memory_bytes();
        let spare: usize = self.spare.iter().map(Vec::capacity).sum();
        frames + spare + self.slots.capacity() * size_of::<Option<Packet>>() + self.free.capacity() * 4
    }
}
