//! Who waits for a pipe, who goes first, who is dropped or marked before the queue is full.

mod codel;
mod fq;
mod red;

use std::collections::VecDeque;

use diecast_core_vtime::VirtNs;

use crate::link::Discipline;
use crate::packets::PacketIx;
use crate::rng::SplitMix64;

/// A waiting packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub packet: PacketIx,
    /// Of its frame.
    pub bytes: u32,
    pub since: VirtNs,
}

/// A first-in, first-out queue that knows its bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fifo {
    items: VecDeque<Waiting>,
    bytes: u64,
}

/// Room that an empty queue keeps; more is given back.
const ROOM_KEPT: usize = 64;

impl Fifo {
    fn push(&mut self, w: Waiting) {
        self.bytes += u64::from(w.bytes);
        self.items.push_back(w);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let w = self.items.pop_front()?;
        self.bytes -= u64::from(w.bytes);
        if self.items.is_empty() && self.items.capacity() > ROOM_KEPT {
            self.items.shrink_to(ROOM_KEPT);
        }
        Some(w)
    }

    fn len(&self) -> usize {
        self.items.len()
    }
}

/// What a discipline decides about a packet that it would drop.
pub(crate) trait Judge {
    /// Marks the packet if its transport understands that; false when it does not.
    fn mark(&mut self, packet: PacketIx) -> bool;
    /// The packet is dropped.
    fn drop(&mut self, packet: PacketIx);
}

/// What becomes of a packet on arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// It may wait or be sent.
    Pass,
    /// The same, but it should bear a mark; dropped when it can't.
    Mark,
    /// It is dropped.
    Drop,
}

/// The queue of a pipe.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    kind: Kind,
    packets: u32,
    bytes: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    DropTail(Fifo),
    Red(Fifo, red::State),
    Codel(Fifo, codel::State),
    FqCodel(Box<fq::State>),
}

impl Queue {
    /// An empty queue. `mtu_bytes` is the longest frame; `seed` belongs to this queue alone.
    pub(crate) fn new(discipline: &Discipline, mtu_bytes: u32, seed: u64) -> Queue {
        let kind = match discipline {
            Discipline::DropTail => Kind::DropTail(Fifo::default()),
            Discipline::Red(p) => Kind::Red(Fifo::default(), red::State::new(*p, SplitMix64(seed))),
            Discipline::Codel(p) => Kind::Codel(Fifo::default(), codel::State::new(*p, mtu_bytes)),
            Discipline::FqCodel(p) => Kind::FqCodel(Box::new(fq::State::new(*p, mtu_bytes, seed))),
        };
        Queue { kind, packets: 0, bytes: 0 }
    }

    /// Packets that wait.
    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    /// Their bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether [`Queue::push`] wants to know a packet's flow.
    pub(crate) fn sorts_flows(&self) -> bool {
        matches!(self.kind, Kind::FqCodel(_))
    }

    /// The packet that goes next whatever happens; `None` when that is only known then.
    pub(crate) fn certain_head(&self) -> Option<Waiting> {
        match &self.kind {
            Kind::DropTail(q) | Kind::Red(q, _) => q.items.front().copied(),
            _ => None,
        }
    }

    /// Asks about a packet that has just reached the pipe. `idle_since` is when the transmitter became free, if it is.
    pub(crate) fn arrival(&mut self, now: VirtNs, idle_since: Option<VirtNs>, bandwidth_bps: u64) -> Arrival {
        match &mut self.kind {
            Kind::Red(q, state) => state.arrival(now, q.len(), idle_since, bandwidth_bps),
            _ => Arrival::Pass,
        }
    }

    /// A packet passes without waiting: the queue is empty, the transmitter free. `flow` counts only when
    /// [`Queue::sorts_flows`].
    pub(crate) fn passed_by(&mut self, bytes: u32, flow: u64) {
        match &mut self.kind {
            Kind::Codel(_, state) => state.relax(),
            Kind::FqCodel(state) => state.passed_by(bytes, flow),
            Kind::DropTail(_) | Kind::Red(..) => {}
        }
    }

    /// Lets a packet wait. `flow` counts only when [`Queue::sorts_flows`].
    pub(crate) fn push(&mut self, w: Waiting, flow: u64) {
        self.packets += 1;
        self.bytes += u64::from(w.bytes);
        match &mut self.kind {
            Kind::DropTail(q) | Kind::Red(q, _) | Kind::Codel(q, _) => q.push(w),
            Kind::FqCodel(state) => state.push(w, flow),
        }
    }

    /// The packet that is sent at `now`; some may be dropped for it.
    pub(crate) fn pop(&mut self, now: VirtNs, judge: &mut impl Judge) -> Option<Waiting> {
        let (packets, bytes) = (&mut self.packets, &mut self.bytes);
        let mut gone = |w: Waiting| {
            *packets -= 1;
            *bytes -= u64::from(w.bytes);
        };
        let mut judge = Counting { judge, gone: &mut gone };
        let next = match &mut self.kind {
            Kind::DropTail(q) | Kind::Red(q, _) => q.pop(),
            Kind::Codel(q, state) => state.pop(now, q, &mut judge),
            Kind::FqCodel(state) => state.pop(now, &mut judge),
        };
        if let Some(w) = next {
            gone(w);
        }
        next
    }

    /// Makes room in the largest flow, if the discipline does that instead of refusing the newest: what is dropped.
    pub(crate) fn relieve(&mut self) -> Vec<Waiting> {
        let Kind::FqCodel(state) = &mut self.kind else { return Vec::new() };
        let dropped = state.relieve();
        self.packets -= dropped.len() as u32;
        self.bytes -= dropped.iter().map(|w| u64::from(w.bytes)).sum::<u64>();
        dropped
    }

    /// Takes out everything, in the order of arrival.
    pub(crate) fn drain(&mut self) -> Vec<Waiting> {
        (self.packets, self.bytes) = (0, 0);
        let mut all: Vec<Waiting> = match &mut self.kind {
            Kind::DropTail(q) | Kind::Red(q, _) | Kind::Codel(q, _) => std::mem::take(q).items.into(),
            Kind::FqCodel(state) => state.drain(),
        };
        all.sort_by_key(|w| w.since);
        all
    }
}

/// A judge that keeps the queue's sums right; disciplines see a drop with its size.
pub(crate) struct Counting<'a, J> {
    judge: &'a mut J,
    gone: &'a mut dyn FnMut(Waiting),
}

impl<J: Judge> Counting<'_, J> {
    fn mark(&mut self, w: Waiting) -> bool {
        self.judge.mark(w.packet)
    }

    fn drop(&mut self, w: Waiting) {
        (self.gone)(w);
        self.judge.drop(w.packet);
    }
}
