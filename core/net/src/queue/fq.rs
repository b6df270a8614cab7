//! FQ-CoDel: RFC 8290. Flows are hashed to queues, each with its own CoDel; queues are served by deficit round
//! robin, those that have just become active first.

use std::collections::{BTreeMap, VecDeque};

use diecast_core_vtime::VirtNs;

use super::{Counting, Fifo, Judge, Waiting, codel};
use crate::link::FqCodel;
use crate::rng::mix;

/// Most packets dropped at once from the largest queue when the limit is passed (RFC 8290, 4.1).
const DROP_BATCH_MAX: usize = 64;

#[derive(Clone, Debug)]
struct Flow {
    queue: Fifo,
    codel: codel::State,
    deficit: i64,
    /// In one of the two lists.
    listed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    params: FqCodel,
    mtu_bytes: u32,
    seed: u64,
    /// Every queue that was ever used.
    flows: BTreeMap<u32, Flow>,
    new: VecDeque<u32>,
    old: VecDeque<u32>,
}

impl State {
    pub(super) fn new(params: FqCodel, mtu_bytes: u32, seed: u64) -> State {
        State { params, mtu_bytes, seed, flows: BTreeMap::new(), new: VecDeque::new(), old: VecDeque::new() }
    }

    /// The queue that a flow is hashed to.
    fn of(&mut self, flow: u64) -> (u32, &mut Flow) {
        let bucket = (mix(flow ^ self.seed) % u64::from(self.params.flows)) as u32;
        let (params, mtu_bytes) = (self.params, self.mtu_bytes);
        let flow = self.flows.entry(bucket).or_insert_with(|| Flow {
            queue: Fifo::default(),
            codel: codel::State::new(params.codel, mtu_bytes),
            deficit: 0,
            listed: false,
        });
        (bucket, flow)
    }

    pub(super) fn push(&mut self, w: Waiting, flow: u64) {
        let quantum = i64::from(self.params.quantum_bytes);
        let (bucket, flow) = self.of(flow);
        flow.queue.push(w);
        if !flow.listed {
            flow.listed = true;
            flow.deficit = quantum;
            self.new.push_back(bucket);
        }
    }

    /// A packet comes and goes at once, since nothing waits: its flow is new and has used up a part of its quantum.
    pub(super) fn passed_by(&mut self, bytes: u32, flow: u64) {
        // Before it the transmitter had found every queue empty.
        for bucket in self.new.drain(..).chain(self.old.drain(..)) {
            if let Some(flow) = self.flows.get_mut(&bucket) {
                flow.listed = false;
                flow.codel.relax();
            }
        }
        let quantum = i64::from(self.params.quantum_bytes);
        let (bucket, flow) = self.of(flow);
        flow.listed = true;
        flow.deficit = quantum - i64::from(bytes);
        self.new.push_back(bucket);
    }

    pub(super) fn pop<J: Judge>(&mut self, now: VirtNs, judge: &mut Counting<'_, J>) -> Option<Waiting> {
        loop {
            let from_new = !self.new.is_empty();
            let list = if from_new { &mut self.new } else { &mut self.old };
            let bucket = *list.front()?;
            let flow = self.flows.get_mut(&bucket)?;
            if flow.deficit <= 0 {
                flow.deficit += i64::from(self.params.quantum_bytes);
                list.pop_front();
                self.old.push_back(bucket);
                continue;
            }
            if let Some(w) = flow.codel.pop(now, &mut flow.queue, judge) {
                flow.deficit -= i64::from(w.bytes);
                return Some(w);
            }
            list.pop_front();
            // An emptied new queue waits behind the old ones once, so that it can't stay new by pausing.
            if from_new && !self.old.is_empty() {
                self.old.push_back(bucket);
            } else {
                flow.listed = false;
            }
        }
    }

    /// Half of the largest queue, at most a batch, from its head.
    pub(super) fn relieve(&mut self) -> Vec<Waiting> {
        let Some(flow) = self.flows.values_mut().max_by_key(|f| f.queue.bytes) else { return Vec::new() };
        let count = flow.queue.len().div_ceil(2).min(DROP_BATCH_MAX);
        (0..count).filter_map(|_| flow.queue.pop()).collect()
    }

    pub(super) fn drain(&mut self) -> Vec<Waiting> {
        self.new.clear();
        self.old.clear();
        let flows = std::mem::take(&mut self.flows);
        flows.into_values().flat_map(|f| f.queue.items).collect()
    }
}
