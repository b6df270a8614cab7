//! What came into the network and what left it, on request: written while the lab runs, and had again later.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use diecast_core_journal::{Drops, JOURNAL_FILE, Record};
use diecast_core_net::{Delivered, NetSpec, Parting, Recorded, replay_until};
use diecast_core_report::PLAN_FILE;
use diecast_core_vtime::VirtNs;
use serde::Serialize;

/// The file's name in a run directory.
pub const ARRIVALS_FILE: &str = "arrivals.bin";

/// The thread that writes arrivals down. Its channel has no bound: the emulator must not wait, and a record with gaps is
/// worth nothing, so what a slow disk has not taken yet is kept in memory.
pub struct Arrivals {
    thread: JoinHandle<io::Result<()>>,
}

impl Arrivals {
    /// Starts writing to the run's directory; it ends when the sender is dropped.
    pub fn start(directory: &Path) -> io::Result<(Arrivals, Sender<Vec<Recorded>>)> {
        let mut file = BufWriter::new(File::create(directory.join(ARRIVALS_FILE))?);
        let (sender, batches) = channel::<Vec<Recorded>>();
        let write = move || {
            let mut bytes = Vec::new();
            for batch in batches {
                bytes.clear();
                batch.iter().for_each(|recorded| recorded.encode(&mut bytes));
                file.write_all(&bytes)?;
            }
            file.into_inner()?.sync_data()
        };
        let thread = std::thread::Builder::new().name("arrivals".into()).spawn(write)?;
        Ok((Arrivals { thread }, sender))
    }

    /// Waits until everything is in the file.
    pub fn finish(self) -> io::Result<()> {
        self.thread.join().map_err(|_| io::Error::other("the thread that writes arrivals panicked"))?
    }
}

/// One pipe, as the run saw it and as the replay did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ReplayedPipe {
    /// Where packets enter.
    pub from: String,
    /// Where they leave.
    pub to: String,
    /// Packets that reached it and drops, in the run.
    pub run: (u64, Drops),
    /// The same in the replay.
    pub replay: (u64, Drops),
}

/// What a replay gave.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Replayed {
    /// Frames and changes that came in until the run's last look at its counters.
    pub records: usize,
    /// Frames that reached their nodes in the replay.
    pub deliveries: usize,
    /// Where the run and the replay part: the first delivery with another instant, receiver or content.
    pub parting: Option<Parting>,
    /// The same in words, none where they don't.
    pub parted: Option<String>,
    /// Pipes that saw a packet.
    pub pipes: Vec<ReplayedPipe>,
}

impl Replayed {
    /// Whether every delivery and every pipe were the same.
    pub fn is_same(&self) -> bool {
        self.parting.is_none() && self.pipes.iter().all(|p| p.run == p.replay)
    }
}

/// Why a run can't be had again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A file can't be read.
    #[error("reading {file}: {problem}")]
    Read {
        /// Which.
        file: &'static str,
        /// Why.
        problem: String,
    },
    /// Journal and records have no look at the counters in common.
    #[error("{ARRIVALS_FILE} has none of the looks at the network that {JOURNAL_FILE} has: it ended before the first")]
    NoLook,
}

/// Has the network of a recorded run again, as far as the last sample of its journal.
pub fn replay_run(directory: &Path) -> Result<Replayed, ReplayError> {
    let bytes_of = |file: &'static str| {
        std::fs::read(directory.join(file)).map_err(|e| ReplayError::Read { file, problem: e.to_string() })
    };
    fn bad<E: std::fmt::Display>(file: &'static str) -> impl FnOnce(E) -> ReplayError {
        move |e| ReplayError::Read { file, problem: e.to_string() }
    }
    let plan: serde_json::Value = serde_json::from_slice(&bytes_of(PLAN_FILE)?).map_err(bad(PLAN_FILE))?;
    let spec: NetSpec = serde_json::from_value(plan["net"].clone()).map_err(bad(PLAN_FILE))?;
    let records = Recorded::decode_all(&bytes_of(ARRIVALS_FILE)?).map_err(bad(ARRIVALS_FILE))?;
    let journal = diecast_core_journal::read(bytes_of(JOURNAL_FILE)?.as_slice()).map_err(bad(JOURNAL_FILE))?;
    let samples = || journal.records.iter().filter_map(|r| if let Record::Pipes(s) = r { Some(s) } else { None });
    let looks: BTreeSet<VirtNs> = samples().map(|s| s.v_ns).collect();
    // The run's last look; what nodes send while they are stopped is no part of it.
    let last_look = records.iter().rposition(|r| matches!(r, Recorded::Look { at } if looks.contains(at)));
    let records = &records[..=last_look.ok_or(ReplayError::NoLook)?];
    let end = records.last().map_or(VirtNs(0), Recorded::at);
    let mut last: BTreeMap<usize, (u64, Drops)> = BTreeMap::new();
    for sample in samples().filter(|s| s.v_ns <= end) {
        last.extend(sample.pipes.iter().map(|p| (p.pipe as usize, (p.packets_in, p.dropped))));
    }
    let again = replay_until(&spec, records, end).map_err(bad(PLAN_FILE))?;
    let parting = again.parts_from(records);
    let node = |d: Delivered| spec.nodes.get(d.to.at()).map_or("no node", |n| n.name.as_str());
    let words = |d: Option<Delivered>| match d {
        Some(d) => format!("{} bytes for {} at {} ns (XXH3 {:016x})", d.bytes, node(d), d.due.0, d.hash),
        None => "nothing more".to_owned(),
    };
    let parted =
        parting.map(|p| format!("after {} deliveries: run {}, replay {}", p.same, words(p.run), words(p.replay)));
    let name = |v: diecast_core_net::VertexIx| spec.vertices[v.at()].name.clone();
    let pipes = spec.pipes.iter().zip(&again.pipes).enumerate().map(|(ix, (p, c))| ReplayedPipe {
        from: name(p.from),
        to: name(p.to),
        run: last.get(&ix).copied().unwrap_or_default(),
        replay: (c.packets_in, crate::pipe_log::drops(c)),
    });
    Ok(Replayed {
        records: records.iter().filter(|r| r.comes_in() && r.at() <= end).count(),
        deliveries: again.deliveries.len(),
        parting,
        parted,
        pipes: pipes.filter(|p| p.run.0 > 0 || p.replay.0 > 0).collect(),
    })
}
