//! `diecast catalog host`: this machine as a machine type of a catalog.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use crate::facts::{HostFacts, host_facts, read, read_number};
use crate::score::{REFERENCE, Score, score};

/// What is written to see how fast the disk is.
const WRITTEN_MIB: usize = 64;
/// Small writes, each of 4 KiB and synced; the median counts.
const SYNCED_WRITES: usize = 25;

/// A disk as a file on it sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Disk {
    /// 10^6 bytes a second, written and synced.
    pub write_mb_per_s: f64,
    /// A write of 4 KiB with its sync, median, ns.
    pub synced_write_ns: u64,
}

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nic {
    pub name: String,
    /// None where the driver doesn't know, as in most virtual machines.
    pub mbit_per_s: Option<u64>,
}

/// This machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    pub host: HostFacts,
    pub score: Score,
    pub disk: Disk,
    pub nics: Vec<Nic>,
}

/// Measures it, in some seconds; the disk is that of `folder`, where a file is written and removed.
pub fn machine(folder: &Path) -> io::Result<Machine> {
    Ok(Machine { host: host_facts(), score: score()?, disk: disk(folder)?, nics: nics() })
}

fn disk(folder: &Path) -> io::Result<Disk> {
    let path = folder.join(format!(".diecast-disk-{}", std::process::id()));
    let measured = File::create_new(&path).and_then(measure_file);
    fs::remove_file(&path)?;
    measured
}

fn measure_file(mut file: File) -> io::Result<Disk> {
    let block: Vec<u8> = (0..1u32 << 18).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    let began = Instant::now();
    for _ in 0..WRITTEN_MIB {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    let write_mb_per_s = (WRITTEN_MIB * block.len()) as f64 / 1e6 / began.elapsed().as_secs_f64();
    let mut times = Vec::with_capacity(SYNCED_WRITES);
    for _ in 0..SYNCED_WRITES {
        let began = Instant::now();
        file.write_all(block.get(..4096).unwrap_or(&block))?;
        file.sync_data()?;
        times.push(began.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Ok(Disk { write_mb_per_s, synced_write_ns: times.get(SYNCED_WRITES / 2).copied().unwrap_or(0) })
}

/// Cards with a device behind them, not bridges and the like.
fn nics() -> Vec<Nic> {
    let Ok(entries) = fs::read_dir("/sys/class/net") else { return Vec::new() };
    let mut nics: Vec<Nic> = entries
        .flatten()
        .filter(|e| e.path().join("device").exists())
        .map(|e| {
            let speed = read_number(&format!("{}/speed", e.path().display())).filter(|s| *s > 0);
            Nic { name: e.file_name().to_string_lossy().into_owned(), mbit_per_s: speed.map(|s| s as u64) }
        })
        .collect();
    nics.sort_by(|a, b| a.name.cmp(&b.name));
    nics
}

/// The machine as the section of a catalog; what the grammar has no key for is a comment.
pub fn render_machine(m: &Machine) -> String {
    let nics: Vec<String> = m
        .nics
        .iter()
        .map(|n| n.mbit_per_s.map_or(format!("{} of unknown speed", n.name), |s| format!("{} {s} Mbit/s", n.name)))
        .collect();
    let kernels: Vec<String> = m.score.kernels.iter().map(|k| format!("{} {:.2}", k.name, k.relative)).collect();
    let name = read("/proc/sys/kernel/hostname").unwrap_or_default();
    format!(
        "# {name}: {}, kernel {}\n# score 1000 is {REFERENCE}\n# against it: {}\n\
         # disk: {:.0} MB/s written and synced; a synced write of 4 KiB takes {} us\n# network: {}\n\
         machine_types:\n  host: {{cores: {}, score: {:.0}, memory: {}MiB}}",
        m.host.cpu_model,
        m.host.kernel,
        kernels.join(", "),
        m.disk.write_mb_per_s,
        m.disk.synced_write_ns / 1000,
        if nics.is_empty() { "no card".to_owned() } else { nics.join(", ") },
        m.host.cores,
        (m.score.milli as f64 / 1000.0).max(1.0),
        m.host.memory_bytes >> 20,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_measured_and_removed() {
        let folder = std::env::temp_dir();
        let d = disk(&folder).unwrap();
        assert!(d.write_mb_per_s > 0.1 && d.synced_write_ns > 0, "{d:?}");
        let mine = format!(".diecast-disk-{}", std::process::id());
        assert!(!folder.join(mine).exists());
        assert!(disk(Path::new("/proc")).is_err());
    }
}
