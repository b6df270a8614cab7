//! What happens next, and how early it can lead to a delivery.
//!
//! Packets reach the end of a pipe in the order in which they left it, but for those that jitter reorders. So what a
//! pipe has sent is a lane, first in, first out; only the heads of lanes compete, in a tree with a leaf for each lane.
//! What is out of order, and all that is no packet, goes to a heap. An event costs O(log lanes) or O(log events).

use core::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use diecast_core_vtime::VirtNs;

use crate::network::What;

/// Something that will happen. The order is (due, seq).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub due: VirtNs,
    pub seq: u64,
    pub what: What,
}

impl Event {
    pub(crate) fn key(&self) -> Key {
        (self.due, self.seq)
    }
}

impl Ord for Event {
    /// Reversed: the heap's greatest is the earliest.
    fn cmp(&self, other: &Event) -> Ordering {
        other.key().cmp(&self.key())
    }
}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Event {}

pub(crate) type Key = (VirtNs, u64);
/// The key of a lane in which nothing is.
const EMPTY: Key = (VirtNs::NEVER, u64::MAX);
/// Room that an empty lane keeps; more is given back.
const ROOM_KEPT: usize = 64;

/// Events in order.
#[derive(Debug, Default)]
struct Lane {
    events: VecDeque<Event>,
    /// The earliest deliveries that can follow from the events, each with its event's number: only those that are
    /// before all that come behind them, so the first is the least.
    earliest: VecDeque<(VirtNs, u64)>,
}

impl Lane {
    fn takes(&self, event: &Event) -> bool {
        self.events.back().is_none_or(|last| last.key() < event.key())
    }

    fn push(&mut self, event: Event, earliest: VirtNs) {
        self.events.push_back(event);
        self.bind(event.seq, earliest);
    }

    fn bind(&mut self, seq: u64, earliest: VirtNs) {
        while self.earliest.back().is_some_and(|(bound, _)| *bound >= earliest) {
            self.earliest.pop_back();
        }
        self.earliest.push_back((earliest, seq));
    }

    fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if self.earliest.front().is_some_and(|(_, seq)| *seq == event.seq) {
            self.earliest.pop_front();
        }
        if self.events.is_empty() && self.events.capacity() > ROOM_KEPT {
            self.events.shrink_to(ROOM_KEPT);
            self.earliest.shrink_to(ROOM_KEPT);
        }
        Some(event)
    }
}

/// The least of many keys, each of which changes now and then.
#[derive(Debug, Default)]
struct Least {
    keys: Vec<Key>,
    /// A heap-shaped tree: `winner[1]` has the least key of all, `winner[n + i]` is leaf `i`.
    winner: Vec<u32>,
}

impl Least {
    fn new(count: usize) -> Least {
        let n = count.next_power_of_two();
        let mut winner = vec![0; 2 * n];
        for (i, w) in winner[n..].iter_mut().enumerate() {
            *w = i as u32;
        }
        for i in (1..n).rev() {
            winner[i] = winner[2 * i];
        }
        Least { keys: vec![EMPTY; n], winner }
    }

    fn set(&mut self, at: usize, key: Key) {
        if self.keys[at] == key {
            return;
        }
        self.keys[at] = key;
        let mut i = (self.keys.len() + at) / 2;
        while i >= 1 {
            let (a, b) = (self.winner[2 * i], self.winner[2 * i + 1]);
            let least = if self.keys[b as usize] < self.keys[a as usize] { b } else { a };
            if self.winner[i] == least && least as usize != at {
                return;
            }
            self.winner[i] = least;
            i /= 2;
        }
    }

    fn get(&self) -> Option<(usize, Key)> {
        let at = *self.winner.get(1)? as usize;
        (self.keys[at] != EMPTY).then_some((at, self.keys[at]))
    }

    /// The least key of all others.
    fn except(&self, at: usize) -> Key {
        let (mut i, mut least) = (self.keys.len() + at, EMPTY);
        while i > 1 {
            least = least.min(self.keys[self.winner[i ^ 1] as usize]);
            i /= 2;
        }
        least
    }
}

/// All events to come.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    lanes: Vec<Lane>,
    /// Lanes by their first event.
    heads: Least,
    /// Lanes by their earliest delivery.
    deliveries: Least,
    /// The lane from which events came last, and the first of all events elsewhere: while that is behind the lane's next,
    /// the trees need not know what is left in the lane. They have what was there before.
    hot: Option<(usize, Key)>,
    loose: BinaryHeap<Event>,
    /// For each loose event the earliest delivery, then the event's own instant, by which entries of processed events
    /// are told.
    earliest: BinaryHeap<Reverse<(VirtNs, VirtNs)>>,
}

impl Agenda {
    pub(crate) fn new(lanes: usize) -> Agenda {
        Agenda {
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            heads: Least::new(lanes),
            deliveries: Least::new(lanes),
            ..Agenda::default()
        }
    }

    /// Adds an event that leads to no delivery before `earliest`. It goes to `lane` if it is behind all that is there.
    pub(crate) fn push(&mut self, lane: Option<usize>, event: Event, earliest: VirtNs) {
        let key = event.key();
        let to = lane.filter(|at| self.lanes[*at].takes(&event));
        match to {
            Some(at) => self.lanes[at].push(event, earliest),
            None => {
                self.earliest.push(Reverse((earliest, event.due)));
                self.loose.push(event);
            }
        }
        match &mut self.hot {
            Some((hot, _)) if to == Some(*hot) => return,
            Some((_, elsewhere)) => *elsewhere = key.min(*elsewhere),
            None => {}
        }
        if let Some(at) = to {
            self.look(at);
        }
    }

    /// A lane has changed.
    fn look(&mut self, at: usize) {
        let lane = &self.lanes[at];
        self.heads.set(at, lane.events.front().map_or(EMPTY, Event::key));
        self.deliveries.set(at, lane.earliest.front().copied().unwrap_or(EMPTY));
    }

    /// Order of the first event.
    pub(crate) fn first(&self) -> Key {
        match self.hot {
            Some((at, elsewhere)) => self.lanes[at].events.front().map_or(elsewhere, |e| e.key().min(elsewhere)),
            None => self.heads.get().map_or(EMPTY, |(_, key)| key).min(self.first_loose()),
        }
    }

    /// What is left in the lane from which the last event came, and the first of all events elsewhere.
    pub(crate) fn row(&self) -> (impl Iterator<Item = &Event>, Key) {
        let (lane, elsewhere) = self.hot.map_or((None, EMPTY), |(at, elsewhere)| (Some(&self.lanes[at]), elsewhere));
        (lane.into_iter().flat_map(|l| l.events.iter()), elsewhere)
    }

    /// Takes out the first events of that lane.
    pub(crate) fn skip(&mut self, events: usize) {
        if let Some((at, _)) = self.hot {
            for _ in 0..events {
                self.lanes[at].pop();
            }
        }
    }

    fn first_loose(&self) -> Key {
        self.loose.peek().map_or(EMPTY, Event::key)
    }

    /// Takes out the first event if it is due at `now`.
    pub(crate) fn pop(&mut self, now: VirtNs) -> Option<Event> {
        if let Some((at, elsewhere)) = self.hot {
            let first = self.lanes[at].events.front().map_or(EMPTY, Event::key);
            if first < elsewhere && first.0 <= now {
                return self.lanes[at].pop();
            }
            self.hot = None;
            self.look(at);
        }
        let loose = self.first_loose();
        match self.heads.get() {
            Some((at, key)) if key < loose => {
                if key.0 > now {
                    return None;
                }
                self.hot = Some((at, loose.min(self.heads.except(at))));
                self.lanes[at].pop()
            }
            _ => {
                if loose.0 > now {
                    return None;
                }
                let event = self.loose.pop();
                let pending = self.loose.peek().map(|e| e.due);
                while self.earliest.peek().is_some_and(|Reverse((_, due))| pending.is_none_or(|p| *due < p)) {
                    self.earliest.pop();
                }
                event
            }
        }
    }

    /// No delivery is due before this instant.
    pub(crate) fn earliest(&self) -> Option<VirtNs> {
        let lanes = match self.hot {
            Some((at, _)) => {
                Some(self.lanes[at].earliest.front().copied().unwrap_or(EMPTY).min(self.deliveries.except(at)))
            }
            None => self.deliveries.get().map(|(_, key)| key),
        };
        let lanes = lanes.filter(|key| *key != EMPTY).map(|(bound, _)| bound);
        let loose = self.earliest.peek().map(|Reverse((bound, _))| *bound);
        lanes.into_iter().chain(loose).min()
    }

    /// Finds the earliest delivery of every event anew.
    pub(crate) fn bind_anew(&mut self, mut earliest: impl FnMut(&Event) -> VirtNs) {
        self.hot = None;
        for at in 0..self.lanes.len() {
            let lane = &mut self.lanes[at];
            lane.earliest.clear();
            for i in 0..lane.events.len() {
                let event = lane.events[i];
                lane.bind(event.seq, earliest(&event));
            }
            self.look(at);
        }
        self.earliest = self.loose.iter().map(|e| Reverse((earliest(e), e.due))).collect();
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let lane = |l: &Lane| l.events.capacity() * size_of::<Event>() + l.earliest.capacity() * size_of::<Key>();
        self.lanes.iter().map(lane).sum::<usize>()
            + self.loose.capacity() * size_of::<Event>()
            + self.earliest.capacity() * size_of::<Reverse<(VirtNs, VirtNs)>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    /// Against a sorted list: the same order whatever goes where, and no bound after the least of what is there.
    #[test]
    fn lanes_and_heap_give_one_order() {
        for seed in 0..200 {
            let mut random = SplitMix64(seed);
            let lanes = 1 + random.below(9) as usize;
            let mut agenda = Agenda::new(lanes);
            let mut list: Vec<(Key, VirtNs)> = Vec::new();
            let mut now = 0;
            for seq in 0..400 {
                now += random.below(4);
                let due = VirtNs(now + random.below(30));
                let earliest = VirtNs(due.0 + random.below(20));
                let lane = random.below(lanes as u64 + 1) as usize;
                let event = Event { due, seq, what: What::Change(seq as u32) };
                agenda.push((lane < lanes).then_some(lane), event, earliest);
                list.push(((due, seq), earliest));
                list.sort();
                if random.below(50) == 0 {
                    list.iter_mut().for_each(|(key, earliest)| *earliest = key.0);
                    agenda.bind_anew(|e| e.due);
                }
                while list.first().is_some_and(|((due, _), _)| due.0 <= now) {
                    let popped = agenda.pop(VirtNs(now)).expect("one is due");
                    assert_eq!(popped.key(), list.remove(0).0, "seed {seed}");
                }
                assert!(agenda.pop(VirtNs(now)).is_none(), "seed {seed}: nothing more is due");
                let least = list.iter().map(|(_, earliest)| *earliest).min();
                assert!(
                    agenda.earliest() <= least || least.is_none(),
                    "seed {seed}: {:?} {least:?}",
                    agenda.earliest()
                );
                assert_eq!(agenda.earliest().is_none(), least.is_none(), "seed {seed}");
            }
        }
    }
}
