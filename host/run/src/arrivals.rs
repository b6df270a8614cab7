//! What came into the network, on request: written while the lab runs, and had again later.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use diecast_core_journal::{Drops, JOURNAL_FILE, Record};
use diecast_core_net::{NetSpec, Recorded, replay_until};
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
    /// Frames and changes that came in.
    pub records: usize,
    /// Frames that reached their nodes.
    pub deliveries: usize,
    /// A hash of every delivery in order: when, to whom and what.
    pub hash: String,
    /// Pipes that saw a packet.
    pub pipes: Vec<ReplayedPipe>,
}

impl Replayed {
    /// Whether every pipe did the same.
    pub fn is_same(&self) -> bool {
        self.pipes.iter().all(|p| p.run == p.replay)
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
    let mut last: BTreeMap<usize, (u64, Drops)> = BTreeMap::new();
    let mut end = VirtNs(0);
    for record in &journal.records {
        if let Record::Pipes(sample) = record {
            end = sample.v_ns;
            last.extend(sample.pipes.iter().map(|p| (p.pipe as usize, (p.packets_in, p.dropped))));
        }
    }
    // The run's last look; what nodes send while they are stopped is no part of it.
    let again = replay_until(&spec, &records, end).map_err(bad(PLAN_FILE))?;
    let name = |v: diecast_core_net::VertexIx| spec.vertices[v.at()].name.clone();
    let pipes = spec.pipes.iter().zip(&again.pipes).enumerate().map(|(ix, (p, c))| ReplayedPipe {
        from: name(p.from),
        to: name(p.to),
        run: last.get(&ix).copied().unwrap_or_default(),
        replay: (c.packets_in, crate::pipe_log::drops(c)),
    });
    let text = format!("{:?}", again.deliveries);
    Ok(Replayed {
        records: records.iter().filter(|r| r.at() <= end).count(),
        deliveries: again.deliveries.len(),
        hash: diecast_core_journal::hash_text(&text),
        pipes: pipes.filter(|p| p.run.0 > 0 || p.replay.0 > 0).collect(),
    })
}
