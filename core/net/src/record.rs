//! What came into a network, written down, so that a run can be had again: the same spec and the same records give the
//! same drops and the same order, whenever the caller looked.

use diecast_core_vtime::{VirtNs, VirtSpan};
use serde::Serialize;

use crate::change::Change;
use crate::network::{Network, NodeCounters};
use crate::pipe::PipeCounters;
use crate::spec::{NetError, NetSpec, NodeIx};

/// One thing that came in, at the instant that counted.
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
}

const FRAME: u8 = 1;
const CHANGE: u8 = 2;

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
    /// When it came in or takes place.
    pub fn at(&self) -> VirtNs {
        match self {
            Recorded::Frame { at, .. } | Recorded::Change { at, .. } => *at,
        }
    }

    /// Adds the record to a file's bytes: a tag, then numbers in little-endian order, then the frame or the change
    /// (JSON), each with its length before it.
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
    /// Every delivery in order: when, to whom, how many bytes, and a hash of the frame.
    pub deliveries: Vec<(u64, u32, u32, u64)>,
    /// Counters of each pipe.
    pub pipes: Vec<PipeCounters>,
    /// Counters of each node.
    pub nodes: Vec<NodeCounters>,
}

/// Has a recorded run again, to the end of every packet.
pub fn replay(spec: &NetSpec, records: &[Recorded]) -> Result<Replay, NetError> {
    replay_until(spec, records, VirtNs::NEVER)
}

/// Has a recorded run again as far as this instant, itself included.
pub fn replay_until(spec: &NetSpec, records: &[Recorded], end: VirtNs) -> Result<Replay, NetError> {
    let mut net = Network::new(spec)?;
    let mut deliveries = Vec::new();
    // Nothing that comes later is earlier than this.
    let mut floors: Vec<u64> = records.iter().map(|r| r.at().0).collect();
    for i in (1..floors.len()).rev() {
        floors[i - 1] = floors[i - 1].min(floors[i]);
    }
    for (r, floor) in records.iter().zip(floors).filter(|(r, _)| r.at() <= end) {
        match r {
            Recorded::Frame { at, from, debt, frame } => {
                // The order of deliveries does not depend on when they are collected, memory does.
                net.collect(VirtNs(floor.saturating_sub(1)).min(end), &mut deliveries);
                net.try_ingress(*at, *from, frame.clone(), *debt)?;
            }
            Recorded::Change { at, change } => net.schedule(*at, change.clone())?,
        }
    }
    net.collect(end, &mut deliveries);
    Ok(Replay { deliveries, pipes: net.pipe_counters(), nodes: net.node_counters() })
}

impl Network {
    /// Writes down everything that comes in from now on. Packets that are on their way already are not part of it.
    pub fn record(&mut self) {
        self.record.get_or_insert_default();
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

    fn collect(&mut self, now: VirtNs, out: &mut Vec<(u64, u32, u32, u64)>) {
        while let Some(d) = self.pop_due(now) {
            let mut hash = 0xcbf2_9ce4_8422_2325u64;
            for b in &d.frame {
                hash = (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
            }
            out.push((d.due.0, d.to.0, d.frame.len() as u32, hash));
            self.recycle(d.frame);
        }
    }
}
