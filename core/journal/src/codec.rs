//! Records to lines and back.

use std::io::{self, BufRead, Write};

use serde::Deserialize;

use crate::record::{End, Header, JOURNAL_VERSION, Record};

/// What a journal holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Journal {
    /// The first line.
    pub header: Header,
    /// The lines after it, in their order.
    pub records: Vec<Record>,
    /// The last line was cut off, as after a crash, and was left out.
    pub torn: bool,
}

impl Journal {
    /// How the run ended; none when it was killed.
    pub fn end(&self) -> Option<&End> {
        self.records.iter().rev().find_map(|record| match record {
            Record::End(end) => Some(end),
            _ => None,
        })
    }
}

/// Why a text is no journal, or a record could not be written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// There is no whole line.
    #[error("the journal is empty, expected a header in line 1")]
    Empty,
    /// The first line is something else.
    #[error("line 1 is no journal header: {0}")]
    NoHeader(String),
    /// Written by another version of the format.
    #[error(
        "the journal has version {found}, this diecast reads version {JOURNAL_VERSION} (it was written by diecast {writer})"
    )]
    Version {
        /// The version in the header.
        found: u64,
        /// Who wrote it.
        writer: String,
    },
    /// A line that is no record.
    #[error("line {line} is no journal record: {source}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A header after the first line.
    #[error("line {line} is a second header, expected one per journal")]
    SecondHeader {
        /// Counted from 1.
        line: usize,
    },
    /// Reading or writing failed.
    #[error("line {line}: {source}")]
    Io {
        /// Counted from 1; 0 when writing.
        line: usize,
        /// The failure.
        source: io::Error,
    },
}

/// The record as one line, newline included.
///
/// # Panics
/// When a floating-point field is not finite: JSON has no such numbers. Metric extraction refuses them.
pub fn to_line(record: &Record) -> String {
    let mut line = serde_json::to_string(record).expect("records are plain data");
    line.push('\n');
    line
}

/// Writes the record as one line with one call, so that a crash tears at most the last line.
pub fn write_record(out: &mut impl Write, record: &Record) -> Result<(), JournalError> {
    out.write_all(to_line(record).as_bytes()).map_err(|source| JournalError::Io { line: 0, source })
}

/// Reads a whole journal. Only a last line without a newline may be broken.
pub fn read(mut input: impl BufRead) -> Result<Journal, JournalError> {
    let mut header = None;
    let mut records = Vec::new();
    let mut torn = false;
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let length = input.read_until(b'\n', &mut bytes).map_err(|source| JournalError::Io { line, source })?;
        if length == 0 {
            break;
        }
        let whole = bytes.last() == Some(&b'\n');
        let record = if line == 1 {
            read_header(&bytes).map(Record::Header)
        } else {
            serde_json::from_slice(&bytes).map_err(|source| JournalError::Line { line, source })
        };
        match record {
            Ok(Record::Header(first)) if line == 1 => header = Some(first),
            Ok(Record::Header(_)) => return Err(JournalError::SecondHeader { line }),
            Ok(record) => records.push(record),
            Err(_) if !whole && line > 1 => torn = true,
            Err(_) if !whole => return Err(JournalError::Empty),
            Err(error) => return Err(error),
        }
    }
    Ok(Journal { header: header.ok_or(JournalError::Empty)?, records, torn })
}

/// Checks kind and version of the first line before its other keys, which another version may have changed.
fn read_header(line: &[u8]) -> Result<Header, JournalError> {
    #[derive(Deserialize)]
    struct Stamp {
        record: String,
        journal_version: u64,
        #[serde(default)]
        diecast_version: String,
    }
    let no_header = |error: serde_json::Error| JournalError::NoHeader(error.to_string());
    let stamp: Stamp = serde_json::from_slice(line).map_err(no_header)?;
    if stamp.record != "header" {
        return Err(JournalError::NoHeader(format!("its record is {:?}, expected \"header\"", stamp.record)));
    }
    if stamp.journal_version != u64::from(JOURNAL_VERSION) {
        return Err(JournalError::Version { found: stamp.journal_version, writer: stamp.diecast_version });
    }
    match serde_json::from_slice(line).map_err(no_header)? {
        Record::Header(header) => Ok(header),
        _ => Err(JournalError::NoHeader("its record is not a header".into())),
    }
}

/// FNV-1a of 64 bits as 16 hexadecimal digits: tells catalogs apart, is no defence against anybody.
pub fn hash_text(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}
