//! What came into a network and what left it, written down, so that a run can be had again: the same spec and the same
//! records give the same drops and the same order, whenever the caller looked.

use diecast_core_vtime::{VirtNs, VirtSpan};
use serde::{Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

use crate::change::Change;
use crate::network::{Delivery, Network, NodeCounters};
use crate::packets::Frame;
use crate::pipe::PipeCounters;
use crate::spec::{NetError, NetSpec, NodeIx};

/// One thing that happened, at the instant that counted; in the order of the calls.
#[derive(Clone, PartialEq, Debug)]
pub enum Recorded {
    /// A frame.
    Frame {
        /// When it left its sender's NIC.
        at: VirtNs,
        /// The sender.
        from: NodeIx,
        /// CPU of the sender that was not charged yet.
        debt: VirtSpan,
        /// Its bytes.
        frame: Vec<u8>,
    },
    /// A change of the network.
    Change {
        /// When it takes place.
        at: VirtNs,
        /// What changes.
        change: Change,
    },
    /// A frame was given back for its receiver.
    Delivery(Delivered),
    /// Somebody counted: what is recorded before this and due by then had happened, nothing else had.
    Look {
        /// As of when.
        at: VirtNs,
    },
}

/// A frame that reached its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Delivered {
    /// When it was due.
    #[serde(rename = "due_ns", serialize_with = "ns")]
    pub due: VirtNs,
    /// The receiver.
    pub to: NodeIx,
    /// Its length.
    pub bytes: u32,
    /// XXH3 of its bytes, 64 bits.
    pub hash: u64,
}

impl Delivered {
    fn new(d: &Delivery) -> Delivered {
        Delivered { due: d.due, to: d.to, bytes: d.frame.len() as u32, hash: xxh3_64(&d.frame) }
    }
}

fn ns<S: Serializer>(at: &VirtNs, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(at.0)
}

const FRAME: u8 = 1;
const CHANGE: u8 = 2;
const DELIVERY: u8 = 3;
const LOOK: u8 = 4;

/// Why bytes are no records.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// The text ends within a record, as that of a killed run does.
    #[error("the record at byte {0} is cut off")]
    CutOff(usize),
    /// No kind of record begins like this.
    #[error("no record begins with {tag} (byte {at})")]
    BadTag {
        /// First byte found.
        tag: u8,
        /// Where.
        at: usize,
    },
    /// A change that can't be read.
    #[error("the change at byte {at} can't be read: {problem}")]
    BadChange {
        /// Where its record begins.
        at: usize,
        /// Why.
        problem: String,
    },
}

impl Recorded {
    /// When it came in, takes place, was due or was counted.
    pub fn at(&self) -> VirtNs {
        match self {
            Recorded::Frame { at, .. } | Recorded::Change { at, .. } | Recorded::Look { at } => *at,
            Recorded::Delivery(d) => d.due,
        }
    }

    /// Whether it is something that came in.
    pub fn comes_in(&self) -> bool {
        matches!(self, Recorded::Frame { .. } | Recorded::Change { .. })
    }

    /// Adds the record to a file's bytes: a tag, then numbers in little-endian order, then the frame or the change
    /// (JSON) if it has one, with its length before it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let text;
        let body = match self {
            Recorded::Frame { at, from, debt, frame } => {
                out.push(FRAME);
                out.extend(at.0.to_le_bytes());
                out.extend(from.0.to_le_bytes());
                out.extend(debt.0.to_le_bytes());
                frame
            }
            Recorded::Change { at, change } => {
                out.push(CHANGE);
                out.extend(at.0.to_le_bytes());
                text = serde_json::to_vec(change).unwrap_or_default();
                &text
            }
            Recorded::Delivery(Delivered { due, to, bytes, hash }) => {
                out.push(DELIVERY);
                out.extend(due.0.to_le_bytes());
                out.extend(to.0.to_le_bytes());
                out.extend(bytes.to_le_bytes());
                return out.extend(hash.to_le_bytes());
            }
            Recorded::Look { at } => {
                out.push(LOOK);
                return out.extend(at.0.to_le_bytes());
            }
        };
        out.extend((body.len() as u32).to_le_bytes());
        out.extend_from_slice(body);
    }

    /// All records of a file.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Recorded>, RecordError> {
        let mut out = Vec::new();
        let mut rest = Bytes { all: bytes, at: 0, record: 0 };
        while let Some(&tag) = bytes.get(rest.at) {
            rest.record = rest.at;
            rest.at += 1;
            out.push(match tag {
                FRAME => {
                    let (at, from, debt) = (VirtNs(rest.u64()?), NodeIx(rest.u32()?), VirtSpan(rest.u64()?));
                    Recorded::Frame { at, from, debt, frame: rest.body()?.to_vec() }
                }
                CHANGE => {
                    let at = VirtNs(rest.u64()?);
                    let problem = |e: serde_json::Error| e.to_string();
                    let change = serde_json::from_slice(rest.body()?).map_err(problem);
                    let change = change.map_err(|problem| RecordError::BadChange { at: rest.record, problem })?;
                    Recorded::Change { at, change }
                }
                DELIVERY => {
                    let (due, to) = (VirtNs(rest.u64()?), NodeIx(rest.u32()?));
                    Recorded::Delivery(Delivered { due, to, bytes: rest.u32()?, hash: rest.u64()? })
                }
                LOOK => Recorded::Look { at: VirtNs(rest.u64()?) },
                tag => return Err(RecordError::BadTag { tag, at: rest.record }),
            });
        }
        Ok(out)
    }
}

struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
    /// Where the present record begins.
    record: usize,
}

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], RecordError> {
        let found = self.all[self.at..].get(..n).ok_or(RecordError::CutOff(self.record))?;
        self.at += n;
        Ok(found)
    }

    fn u32(&mut self) -> Result<u32, RecordError> {
        let mut b = [0; 4];
        b.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(b))
    }

    fn u64(&mut self) -> Result<u64, RecordError> {
        let mut b = [0; 8];
        b.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(b))
    }

    fn body(&mut self) -> Result<&'a [u8], RecordError> {
        let n = self.u32()? as usize;
        self.take(n)
    }
}

/// What a replay gave.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Replay {
    /// Every delivery in order.
    pub deliveries: Vec<Delivered>,
    /// Counters of each pipe.
    pub pipes: Vec<PipeCounters>,
    /// Counters of each node.
    pub nodes: Vec<NodeCounters>,
}

/// Where a run and its replay part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Parting {
    /// How many deliveries before it are the same.
    pub same: usize,
    /// What the run has there; none when it has ended.
    pub run: Option<Delivered>,
    /// What the replay has there.
    pub replay: Option<Delivered>,
}

impl Replay {
    /// The first delivery that differs from those of the run; none when all are the same, in the same order.
    pub fn parts_from(&self, run: &[Recorded]) -> Option<Parting> {
        let mut run = run.iter().filter_map(|r| if let Recorded::Delivery(d) = r { Some(*d) } else { None });
        let mut replay = self.deliveries.iter().copied();
        let mut same = 0;
        loop {
            match (run.next(), replay.next()) {
                (None, None) => return None,
                (a, b) if a == b => same += 1,
                (run, replay) => return Some(Parting { same, run, replay }),
            }
        }
    }
}

/// Has a recorded run again, to the end of every packet.
pub fn replay(spec: &NetSpec, records: &[Recorded]) -> Result<Replay, NetError> {
    replay_until(spec, records, VirtNs::NEVER)
}

/// Has a recorded run again as far as this instant, itself included.
pub fn replay_until(spec: &NetSpec, records: &[Recorded], end: VirtNs) -> Result<Replay, NetError> {
    let mut net = Network::new(spec)?;
    let mut deliveries = Vec::new();
    let inputs: Vec<&Recorded> = records.iter().filter(|r| r.comes_in()).collect();
    // Nothing that comes later is earlier than this.
    let mut floors: Vec<u64> = inputs.iter().map(|r| r.at().0).collect();
    for i in (1..floors.len()).rev() {
        floors[i - 1] = floors[i - 1].min(floors[i]);
    }
    for (r, floor) in inputs.into_iter().zip(floors).filter(|(r, _)| r.at() <= end) {
        match r {
            Recorded::Frame { at, from, debt, frame } => {
                // The order of deliveries does not depend on when they are collected, memory does.
                net.collect(VirtNs(floor.saturating_sub(1)).min(end), &mut deliveries);
                net.try_ingress(*at, *from, frame.clone(), *debt)?;
            }
            Recorded::Change { at, change } => net.schedule(*at, change.clone())?,
            Recorded::Delivery(_) | Recorded::Look { .. } => {}
        }
    }
    net.collect(end, &mut deliveries);
    Ok(Replay { deliveries, pipes: net.pipe_counters(), nodes: net.node_counters() })
}

impl Network {
    /// Writes down everything that comes in or is delivered from now on. Packets that are on their way already are not
    /// part of it.
    pub fn record(&mut self) {
        self.record.get_or_insert_default();
    }

    /// The caller has had everything due by then and counts now.
    pub fn looked(&mut self, at: VirtNs) {
        self.record.iter_mut().for_each(|record| record.push(Recorded::Look { at }));
    }

    /// What was written down since the last call; recording goes on.
    pub fn take_recorded(&mut self) -> Vec<Recorded> {
        self.record.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn try_ingress(&mut self, at: VirtNs, from: NodeIx, frame: Vec<u8>, debt: VirtSpan) -> Result<(), NetError> {
        let count = self.nodes.len();
        if from.at() >= count {
            return Err(NetError::NoSuch { what: "node", index: from.0, count });
        }
        self.ingress(at, from, frame, debt);
        Ok(())
    }

    /// A frame goes back to the caller.
    pub(crate) fn give(&mut self, to: NodeIx, frame: Frame, due: VirtNs) -> Delivery {
        let delivery = Delivery { to, frame: self.packets.whole(frame), due };
        if let Some(record) = &mut self.record {
            record.push(Recorded::Delivery(Delivered::new(&delivery)));
        }
        delivery
    }

    fn collect(&mut self, now: VirtNs, out: &mut Vec<Delivered>) {
        while let Some(d) = self.pop_due(now) {
            out.push(Delivered::new(&d));
            self.recycle(d.frame);
        }
    }
}
