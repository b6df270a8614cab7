//! Large frames on their way: pieces of one are packets of their own, and share its bytes until somebody needs theirs.
//!
//! Pieces that reach a node together are given back as one large frame again, as a NIC merges what it received (GRO):
//! nothing is known of a piece that was not so of the frame that its sender's kernel made, since one that a pipe changed
//! has bytes of its own.

use crate::offload::{Cut, OFFLOAD_HEADER_BYTES, Segments};

/// Buffers of large frames kept for reuse; more are freed.
const SPARE_MAX: usize = 64;
/// What a buffer of a large frame takes: a virtio header, an Ethernet header with tags, an IP packet, room for what else
/// comes with it.
pub const LARGE_BYTES: usize = OFFLOAD_HEADER_BYTES + 14 + 8 + 65_535 + 64;
/// A large frame lasts as long as its last piece. While those on their way take more than this, frames are cut at once.
const HELD_BYTES_MAX: usize = 64 << 20;

/// A packet that is still part of a large frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub large: u32,
    pub ix: u16,
    /// Of the frame that it stands for.
    pub bytes: u32,
}

/// Pieces that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pieces {
    pub large: u32,
    pub first: u16,
    pub count: u16,
}

#[derive(Debug)]
struct Large {
    /// Virtio header and frame.
    read: Vec<u8>,
    cut: Cut,
    count: u16,
    /// Pieces on their way.
    left: u32,
}

impl Large {
    fn frame(&self) -> &[u8] {
        &self.read[OFFLOAD_HEADER_BYTES..]
    }
}

/// All large frames on their way.
#[derive(Debug, Default)]
pub(crate) struct Larges {
    slots: Vec<Option<Large>>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
}

impl Larges {
    /// An empty buffer for a virtio header and a large frame.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(LARGE_BYTES))
    }

    pub(crate) fn recycle(&mut self, mut read: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && read.capacity() >= LARGE_BYTES {
            read.clear();
            self.spare.push(read);
        }
    }

    /// Whether another one may be held.
    pub(crate) fn has_room(&self) -> bool {
        (self.slots.len() - self.free.len()) * LARGE_BYTES < HELD_BYTES_MAX
    }

    /// Takes a frame whose pieces are to be on their way.
    pub(crate) fn insert(&mut self, read: Vec<u8>, cut: Cut, count: u16) -> u32 {
        let large = Some(Large { read, cut, count, left: u32::from(count) });
        match self.free.pop() {
            Some(ix) => {
                self.slots[ix as usize] = large;
                ix
            }
            None => {
                self.slots.push(large);
                self.slots.len() as u32 - 1
            }
        }
    }

    fn get(&self, large: u32) -> &Large {
        self.slots[large as usize].as_ref().expect("a piece of it is on its way")
    }

    /// Bytes of a piece's frame.
    pub(crate) fn piece_bytes(&self, large: u32, ix: u16) -> u32 {
        let l = self.get(large);
        let begin = usize::from(ix) * l.cut.segment;
        (l.cut.payload + (l.frame().len() - l.cut.payload - begin).min(l.cut.segment)) as u32
    }

    /// Bytes that tell a piece's flow.
    pub(crate) fn headers(&self, piece: Piece) -> &[u8] {
        let l = self.get(piece.large);
        &l.frame()[..l.cut.payload]
    }

    /// Writes a piece's frame to an empty buffer.
    pub(crate) fn write(&self, piece: Piece, buffer: &mut Vec<u8>) {
        let l = self.get(piece.large);
        l.cut.write(l.frame(), piece.ix.into(), piece.ix + 1 == l.count, buffer, usize::MAX);
    }

    /// One more packet is this piece.
    pub(crate) fn share(&mut self, piece: Piece) {
        self.slots[piece.large as usize].as_mut().expect("a piece of it is on its way").left += 1;
    }

    /// So many packets are no longer pieces of it.
    pub(crate) fn release(&mut self, large: u32, packets: u32) {
        let slot = &mut self.slots[large as usize];
        let l = slot.as_mut().expect("a piece of it is on its way");
        l.left -= packets;
        if l.left == 0 {
            let read = slot.take().expect("seen above").read;
            self.free.push(large);
            self.recycle(read);
        }
    }

    /// Pieces as one large frame: what `head` then has, a virtio header and headers, and behind it what is returned.
    pub(crate) fn merged<'a>(&'a self, pieces: Pieces, head: &mut Vec<u8>) -> &'a [u8] {
        let l = self.get(pieces.large);
        head.clear();
        if pieces.first == 0 && pieces.count == l.count {
            return &l.read;
        }
        let (first, count) = (usize::from(pieces.first), usize::from(pieces.count));
        let last = pieces.first + pieces.count == l.count;
        let (begin, frame) = (l.cut.payload + first * l.cut.segment, l.frame());
        let end = frame.len().min(begin + count * l.cut.segment);
        head.extend_from_slice(&l.read[..OFFLOAD_HEADER_BYTES + l.cut.payload]);
        l.cut.head_of(head, frame.len(), first, end - begin, last);
        &frame[begin..end]
    }

    /// Bytes of memory that they take.
    pub(crate) fn memory_bytes(&self) -> usize {
        let held: usize = self.slots.iter().flatten().map(|l| l.read.capacity()).sum();
        let spare: usize = self.spare.iter().map(Vec::capacity).sum();
        held + spare + self.slots.capacity() * size_of::<Option<Large>>() + self.free.capacity() * 4
    }
}

/// How a frame behind its virtio header is cut, and into how many, if its pieces can share it: a plain one of TCP or UDP
/// right behind IP, each of whose pieces has at most so many bytes.
pub(crate) fn shareable(read: &[u8], frame_bytes_max: usize) -> Option<(Cut, u16)> {
    let (header, frame) = read.split_first_chunk()?;
    let segments = Segments::new(header, frame).ok()?;
    let (cut, count) = (segments.cut()?, u16::try_from(segments.count()).ok()?);
    let fits = cut.payload + cut.segment <= frame_bytes_max;
    (count > 1 && fits && cut.is_plain(frame)).then_some((cut, count))
}
