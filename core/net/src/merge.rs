//! Large frames as they come and go: in as one, through the pipes piece by piece, out as one where pieces are due together.

use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::large::{Pieces, shareable};
use crate::neighbour::{self, Kind};
use crate::network::{Arrived, Came, Delivery, Network, heard};
use crate::offload::OFFLOAD_HEADER_BYTES;
use crate::packets::Dest;
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

impl Due {
    /// The receiver.
    pub fn to(&self) -> NodeIx {
        match self {
            Due::Frame(delivery) => delivery.to,
            Due::Run(run) => run.to,
        }
    }

    /// When it is due; the first of a run.
    pub fn at(&self) -> VirtNs {
        match self {
            Due::Frame(delivery) => delivery.due,
            Due::Run(run) => run.due,
        }
    }

    /// How many frames it stands for.
    pub fn frames(&self) -> usize {
        match self {
            Due::Frame(_) => 1,
            Due::Run(run) => run.count(),
        }
    }

    pub(crate) fn set_at(&mut self, at: VirtNs) {
        match self {
            Due::Frame(delivery) => delivery.due = at,
            Due::Run(run) => run.due = at,
        }
    }
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
        let Some((cut, count)) = shared.filter(|_| self.record.is_none() && !self.strict) else { return Err(read) };
        let frame = &read[OFFLOAD_HEADER_BYTES..];
        let Some(to) = self.one_receiver(from, frame) else { return Err(read) };
        let now = self.not_before(now, from);
        let release = self.release(now, from, frame, debt);
        let way = (Dest::One(to), from, self.nodes[from.at()].vertex);
        let large = self.packets.larges.insert(read, cut, count);
        let packet = self.packets.insert_all(large, count, release, way);
        let bytes = self.packets.coming(packet).expect("it is a train").bytes_of(count.into());
        let c = &mut self.nodes[from.at()].counters;
        c.packets_sent += u64::from(count);
        c.bytes_sent += bytes;
        self.begin(release, from, packet);
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
    /// comes early: all of a run was due at `now`. The first of a run waits for those that are due within `patience`, as a
    /// NIC moderates its interrupts. `merge` is asked right before, with `true`, and with `false` whether it is worth a try.
    /// Each node gets what it gets in the order of the instants; what others get meanwhile may
    /// come before a run's last or after.
    pub fn pop_due_merged(
        &mut self,
        now: VirtNs,
        patience: VirtSpan,
        merge: impl Fn(NodeIx, bool) -> bool,
    ) -> Option<Due> {
        self.patience = patience;
        let Arrived { to, came, due } = self.arrived(now, merge)?;
        Some(match came {
            Came::One(frame) => Due::Frame(self.give(to, frame, due)),
            Came::Run(pieces) => Due::Run(Run { to, due, pieces }),
        })
    }

    /// The bytes of a run as one large frame behind its virtio header: what `head` then has and what is returned.
    pub fn merged<'a>(&'a self, run: &Run, head: &mut Vec<u8>) -> &'a [u8] {
        self.packets.larges.merged(run.pieces, head)
    }

    /// Bytes of what is due, at most; what belongs to a run as if it were cut.
    pub fn bytes_of(&self, due: &Due) -> usize {
        match due {
            Due::Frame(delivery) => delivery.frame.len(),
            Due::Run(Run { pieces, .. }) => {
                self.packets.larges.piece_bytes(pieces.large, pieces.first) as usize * usize::from(pieces.count)
            }
        }
    }

    /// Ends a run.
    pub fn release_run(&mut self, run: Run) {
        self.packets.larges.release(run.pieces.large, run.pieces.count.into());
    }
}
