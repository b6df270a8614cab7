//! What happens next, and how early it can lead to a delivery.
//!
//! Packets reach the end of a pipe in the order in which they left it, but for those that jitter reorders. So what a
//! pipe has sent is a lane, first in, first out; only the heads of lanes compete, in a tree with a leaf for each lane.
//! What is out of order, and all that is no packet, goes to a heap: one for pipes that may send again, one for the rest.
//! An event costs O(log lanes) or O(log events).

use core::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use diecast_core_vtime::VirtNs;

use crate::network::What;

/// Something that will happen. The order is (due, rank).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub due: VirtNs,
    pub rank: u64,
    pub what: What,
}

impl Event {
    pub(crate) fn key(&self) -> Key {
        (self.due, self.rank)
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
    /// The earliest deliveries that can follow from the events, each with its event's rank: only those that are
    /// before all that come behind them, so the first is the least.
    earliest: VecDeque<(VirtNs, u64)>,
}

impl Lane {
    fn takes(&self, event: &Event) -> bool {
        self.events.back().is_none_or(|last| last.key() < event.key())
    }

    fn push(&mut self, event: Event, earliest: VirtNs) {
        self.events.push_back(event);
        self.bind(event.rank, earliest);
    }

    fn bind(&mut self, rank: u64, earliest: VirtNs) {
        while self.earliest.back().is_some_and(|(bound, _)| *bound >= earliest) {
            self.earliest.pop_back();
        }
        self.earliest.push_back((earliest, rank));
    }

    /// Before all others.
    fn put_back(&mut self, event: Event, earliest: VirtNs) {
        self.events.push_front(event);
        if self.earliest.front().is_none_or(|(bound, _)| *bound > earliest) {
            self.earliest.push_front((earliest, event.rank));
        }
    }

    fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if self.earliest.front().is_some_and(|(_, rank)| *rank == event.rank) {
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

/// Events in any order.
#[derive(Debug, Default)]
struct Loose {
    events: BinaryHeap<Event>,
    /// For each the earliest delivery, then the event's own instant, by which entries of processed events are told.
    earliest: BinaryHeap<Reverse<(VirtNs, VirtNs)>>,
}

impl Loose {
    fn push(&mut self, event: Event, earliest: VirtNs) {
        self.earliest.push(Reverse((earliest, event.due)));
        self.events.push(event);
    }

    fn first(&self) -> Key {
        self.events.peek().map_or(EMPTY, Event::key)
    }

    fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop();
        let pending = self.events.peek().map(|e| e.due);
        while self.earliest.peek().is_some_and(|Reverse((_, due))| pending.is_none_or(|p| *due < p)) {
            self.earliest.pop();
        }
        event
    }

    fn bind_anew(&mut self, earliest: &mut impl FnMut(&Event) -> VirtNs) {
        self.earliest = self.events.iter().map(|e| Reverse((earliest(e), e.due))).collect();
    }

    fn memory_bytes(&self) -> usize {
        self.events.capacity() * size_of::<Event>() + self.earliest.capacity() * size_of::<Reverse<(VirtNs, VirtNs)>>()
    }
}

/// A lane whose events follow each other.
#[derive(Clone, Copy, Debug)]
struct Hot {
    lane: usize,
    /// The first of all events elsewhere.
    elsewhere: Key,
    /// Its events before this instant need not wait for those elsewhere; `None` before anybody has said so.
    sure: Option<VirtNs>,
}

/// What is where an event came from.
pub(crate) struct Beside {
    /// The lane; `None` for a heap.
    pub lane: Option<usize>,
    /// The instant of what is next in that lane.
    pub next: VirtNs,
    /// The first instant anywhere else.
    pub elsewhere: VirtNs,
}

/// All events to come.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    lanes: Vec<Lane>,
    /// Lanes by their first event.
    heads: Least,
    /// Lanes by their earliest delivery, but for those that changed since it was asked for.
    deliveries: Least,
    changed: Vec<u32>,
    is_changed: Vec<bool>,
    /// The lane from which events came last: while it stays so, the trees need not know what is left in it. They have
    /// what was there before.
    hot: Option<Hot>,
    loose: Loose,
    /// Pipes that may send again.
    serves: Loose,
}

impl Agenda {
    pub(crate) fn new(lanes: usize) -> Agenda {
        Agenda {
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            heads: Least::new(lanes),
            deliveries: Least::new(lanes),
            is_changed: vec![false; lanes],
            ..Agenda::default()
        }
    }

    /// Adds an event that leads to no delivery before `earliest`. It goes to `lane` if it is behind all that is there.
    pub(crate) fn push(&mut self, lane: Option<usize>, event: Event, earliest: VirtNs) {
        let key = event.key();
        let to = lane.filter(|at| self.lanes[*at].takes(&event));
        match to {
            Some(at) => self.lanes[at].push(event, earliest),
            None if matches!(event.what, What::Serve(_)) => self.serves.push(event, earliest),
            None => self.loose.push(event, earliest),
        }
        match &mut self.hot {
            Some(hot) if to == Some(hot.lane) => return,
            Some(hot) => hot.elsewhere = key.min(hot.elsewhere),
            None => {}
        }
        if let Some(at) = to {
            self.look(at);
        }
    }

    /// Puts what is left of the event that came last back to where it was.
    pub(crate) fn put_back(&mut self, event: Event, earliest: VirtNs) {
        match self.hot {
            Some(hot) if self.lanes[hot.lane].events.front().is_none_or(|next| event.key() < next.key()) => {
                self.lanes[hot.lane].put_back(event, earliest);
            }
            _ => self.push(None, event, earliest),
        }
    }

    /// A lane has changed.
    fn look(&mut self, at: usize) {
        self.heads.set(at, self.lanes[at].events.front().map_or(EMPTY, Event::key));
        if !std::mem::replace(&mut self.is_changed[at], true) {
            self.changed.push(at as u32);
        }
    }

    /// Order of the first event.
    pub(crate) fn first(&self) -> Key {
        match self.hot {
            Some(hot) => self.next_in(hot.lane).min(hot.elsewhere),
            None => self.heads.get().map_or(EMPTY, |(_, key)| key).min(self.first_in_heaps()),
        }
    }

    /// What is left in the lane from which the last event came.
    pub(crate) fn row(&self) -> impl Iterator<Item = &Event> {
        self.hot.into_iter().flat_map(|hot| self.lanes[hot.lane].events.iter())
    }

    /// What is beside the event that came last and so many that are behind it in its lane.
    pub(crate) fn beside(&self, behind: usize) -> Beside {
        match self.hot {
            Some(hot) => {
                let next = self.lanes[hot.lane].events.get(behind).map_or(VirtNs::NEVER, |e| e.due);
                Beside { lane: Some(hot.lane), next, elsewhere: hot.elsewhere.0 }
            }
            None => Beside { lane: None, next: VirtNs::NEVER, elsewhere: self.first().0 },
        }
    }

    /// The instant of the first event in a lane, but for the one from which the last event came.
    pub(crate) fn head(&self, lane: usize) -> VirtNs {
        self.heads.keys[lane].0
    }

    /// The first instant at which something is due that is in no lane, but for pipes that may send again.
    pub(crate) fn first_loose(&self) -> VirtNs {
        self.loose.first().0
    }

    /// Takes out the first events of that lane.
    pub(crate) fn skip(&mut self, events: usize) {
        if let Some(hot) = self.hot {
            for _ in 0..events {
                self.lanes[hot.lane].pop();
            }
        }
    }

    fn next_in(&self, lane: usize) -> Key {
        self.lanes[lane].events.front().map_or(EMPTY, Event::key)
    }

    /// The lane from which the last event came, and the first instant elsewhere, when the lane's next one is due at `now`
    /// but has to wait unless somebody says that it need not.
    pub(crate) fn waits(&self, now: VirtNs) -> Option<(usize, VirtNs)> {
        let hot = self.hot.filter(|hot| hot.sure.is_none())?;
        let next = self.next_in(hot.lane);
        (next.0 <= now && next > hot.elsewhere).then_some((hot.lane, hot.elsewhere.0))
    }

    /// Events of that lane before this instant need not wait for others.
    pub(crate) fn need_not_wait(&mut self, before: VirtNs) {
        if let Some(hot) = &mut self.hot {
            hot.sure = Some(before);
        }
    }

    /// Whether it did not wait for others.
    pub(crate) fn is_ahead(&self, event: &Event) -> bool {
        self.hot.is_some_and(|hot| event.key() > hot.elsewhere)
    }

    fn first_in_heaps(&self) -> Key {
        self.loose.first().min(self.serves.first())
    }

    /// Takes out the first event if it is due at `now`.
    pub(crate) fn pop(&mut self, now: VirtNs) -> Option<Event> {
        if let Some(hot) = self.hot {
            let first = self.next_in(hot.lane);
            if first.0 <= now && (first < hot.elsewhere || hot.sure.is_some_and(|sure| first.0 < sure)) {
                return self.lanes[hot.lane].pop();
            }
            self.hot = None;
            self.look(hot.lane);
        }
        let (loose, serves) = (self.loose.first(), self.serves.first());
        let heaps = loose.min(serves);
        match self.heads.get() {
            Some((at, key)) if key < heaps => {
                if key.0 > now {
                    return None;
                }
                self.hot = Some(Hot { lane: at, elsewhere: heaps.min(self.heads.except(at)), sure: None });
                self.lanes[at].pop()
            }
            _ if heaps.0 > now => None,
            _ if serves < loose => self.serves.pop(),
            _ => self.loose.pop(),
        }
    }

    /// No delivery is due before this instant.
    pub(crate) fn earliest(&mut self) -> Option<VirtNs> {
        for at in self.changed.drain(..) {
            let at = at as usize;
            self.is_changed[at] = false;
            self.deliveries.set(at, self.lanes[at].earliest.front().copied().unwrap_or(EMPTY));
        }
        let lanes = match self.hot {
            Some(Hot { lane, .. }) => {
                Some(self.lanes[lane].earliest.front().copied().unwrap_or(EMPTY).min(self.deliveries.except(lane)))
            }
            None => self.deliveries.get().map(|(_, key)| key),
        };
        let lanes = lanes.filter(|key| *key != EMPTY).map(|(bound, _)| bound);
        let heaps = [&self.loose, &self.serves].into_iter();
        let heaps = heaps.filter_map(|h| h.earliest.peek()).map(|Reverse((bound, _))| *bound);
        lanes.into_iter().chain(heaps).min()
    }

    /// Finds the earliest delivery of every event anew.
    pub(crate) fn bind_anew(&mut self, mut earliest: impl FnMut(&Event) -> VirtNs) {
        self.hot = None;
        for at in 0..self.lanes.len() {
            let lane = &mut self.lanes[at];
            lane.earliest.clear();
            for i in 0..lane.events.len() {
                let event = lane.events[i];
                lane.bind(event.rank, earliest(&event));
            }
            self.look(at);
        }
        self.loose.bind_anew(&mut earliest);
        self.serves.bind_anew(&mut earliest);
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let lane = |l: &Lane| l.events.capacity() * size_of::<Event>() + l.earliest.capacity() * size_of::<Key>();
        self.lanes.iter().map(lane).sum::<usize>() + self.loose.memory_bytes() + self.serves.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;
    use crate::spec::PipeIx;

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
                let what =
                    if lane == lanes && seq % 2 == 0 { What::Serve(PipeIx(0)) } else { What::Change(seq as u32) };
                let event = Event { due, rank: seq, what };
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
                    let beside = agenda.beside(0);
                    let others = list.first().map_or(VirtNs::NEVER, |((due, _), _)| *due);
                    assert_eq!(beside.next.min(beside.elsewhere), others, "seed {seed}");
                    // A part of it is due later.
                    if random.below(4) == 0 {
                        let rest = Event { due: VirtNs(popped.due.0 + random.below(6)), rank: 1000 + seq, ..popped };
                        if !list.iter().any(|(key, _)| *key == rest.key()) {
                            agenda.put_back(rest, rest.due);
                            list.push((rest.key(), rest.due));
                            list.sort();
                        }
                    }
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
