//! The journal as it grows: every record goes to the file at once, and stays here for the verdict.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use diecast_core_journal::{Finding, FindingKind, JOURNAL_FILE, Phase, PhaseChange, Record, write_record};
use diecast_core_vtime::{RealNs, VirtNs};
use diecast_host_supervisor::LabFrame;
use diecast_host_sys::time;

struct Inner {
    file: File,
    records: Vec<Record>,
    failed: Option<String>,
}

/// A shared writer of one run's journal.
#[derive(Clone)]
pub struct Recorder {
    inner: Arc<Mutex<Inner>>,
    lab: Arc<LabFrame>,
}

impl Recorder {
    /// A new journal in the run's directory.
    pub fn create(directory: &Path, lab: Arc<LabFrame>) -> io::Result<Recorder> {
        let file = File::create(directory.join(JOURNAL_FILE))?;
        Ok(Recorder { inner: Arc::new(Mutex::new(Inner { file, records: Vec::new(), failed: None })), lab })
    }

    /// Now, on both clocks.
    pub fn now(&self) -> (VirtNs, RealNs) {
        let r = RealNs(time::monotonic_ns());
        (self.lab.v_of(r), r)
    }

    /// Writes a record. A full disk is reported when the run ends.
    pub fn write(&self, record: Record) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = &mut *inner;
        if let Err(e) = write_record(&mut inner.file, &record) {
            inner.failed.get_or_insert(e.to_string());
        }
        inner.records.push(record);
    }

    /// The run enters a phase.
    pub fn phase(&self, phase: Phase) {
        let (v_ns, r_ns) = self.now();
        self.write(Record::Phase(PhaseChange { phase, v_ns, r_ns }));
    }

    /// Something that a reader must know.
    pub fn finding(&self, kind: FindingKind, node: Option<&str>, count: u64, detail: String) {
        let (v_ns, r_ns) = self.now();
        self.write(Record::Finding(Finding { kind, node: node.map(str::to_owned), count, detail, v_ns, r_ns }));
    }

    /// All records so far.
    pub fn records(&self) -> Vec<Record> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).records.clone()
    }

    /// Whether everything reached the file.
    pub fn finish(&self) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.failed.take() {
            Some(e) => Err(io::Error::other(e)),
            None => inner.file.sync_data(),
        }
    }
}
