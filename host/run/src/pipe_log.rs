//! Counters of the pipes, over time, into the journal.

use std::sync::{Mutex, PoisonError};

use diecast_core_journal::{Drops, PipeSample, PipesSample, Record};
use diecast_core_net::{NetSpec, PipeCounters};
use diecast_core_vtime::VirtSpan;
use diecast_host_net::{EmulatorHandle, EmulatorStats};

use crate::recorder::Recorder;

/// Takes snapshots of the emulator and writes down which pipes have changed since the one before.
pub struct PipeLog {
    emulator: EmulatorHandle,
    journal: Recorder,
    /// Names of both ends.
    ends: Vec<(String, String)>,
    /// What was written last; held while a snapshot is taken and written, so that records are in order.
    last: Mutex<Vec<PipeCounters>>,
}

impl PipeLog {
    pub fn new(net: &NetSpec, emulator: EmulatorHandle, journal: Recorder) -> PipeLog {
        let name = |v: diecast_core_net::VertexIx| net.vertices[v.at()].name.clone();
        let ends = net.pipes.iter().map(|p| (name(p.from), name(p.to))).collect();
        let last = Mutex::new(vec![PipeCounters::default(); net.pipes.len()]);
        PipeLog { emulator, journal, ends, last }
    }

    /// Takes and writes one snapshot; none when the emulator has ended.
    pub fn sample(&self) -> Option<EmulatorStats> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let stats = self.emulator.stats().ok()?;
        let changed = stats.pipes.iter().enumerate().filter(|(at, now)| last[*at] != **now);
        let pipes = changed.map(|(at, now)| pipe_sample(at, &self.ends[at], now)).collect();
        self.journal.write(Record::Pipes(PipesSample { v_ns: stats.v_at, pipes }));
        last.clone_from(&stats.pipes);
        Some(stats)
    }
}

fn pipe_sample(at: usize, (from, to): &(String, String), c: &PipeCounters) -> PipeSample {
    PipeSample {
        pipe: at as u32,
        from: from.clone(),
        to: to.clone(),
        packets_in: c.packets_in,
        bytes_in: c.bytes_in,
        packets_sent: c.packets_sent,
        bytes_sent: c.bytes_sent,
        v_busy_ns: VirtSpan(c.busy_ns),
        dropped: drops(c),
        marked: c.marked,
        duplicated: c.duplicated,
        corrupted: c.corrupted,
        queue_packets: c.queue_packets,
        queue_bytes: c.queue_bytes,
        queue_packets_max: c.queue_packets_max,
        queue_bytes_max: c.queue_bytes_max,
    }
}

/// What a pipe dropped.
pub fn drops(c: &PipeCounters) -> Drops {
    Drops {
        queue_full: c.dropped_queue_full,
        early: c.dropped_early,
        loss: c.dropped_loss,
        down: c.dropped_down,
        cut: c.dropped_cut,
    }
}
