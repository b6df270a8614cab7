//! The machine score: how fast is one core of this machine, in a number that means the same on another.
//!
//! Several kernels, each the bottleneck of some server: arithmetic, branches, floating point, memory's latency and
//! bandwidth, text and allocation, the kernel's own work. Each is timed in CPU time, the best of some passes counts, the
//! score is the geometric mean of the speeds against [`REFERENCE`] machine's, times 1000. It belongs to the optimised
//! build of one version of this program.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use diecast_host_supervisor::probe::fixed_work;
use diecast_host_sys::time;
use serde::Serialize;

/// The machine whose score is 1000.
pub const REFERENCE: &str =
    "one core of a two-core virtual machine on an Intel Xeon with AMX, kernel 6.18, November 2026";

/// Passes of each kernel on each core.
const PASSES: usize = 5;
/// More cores than these are taken for alike.
const CORES_MAX: usize = 8;

/// One kernel's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kernel {
    pub name: &'static str,
    /// CPU time of its fixed work, ns: the best pass of the median core.
    pub ns: u64,
    /// Speed against the reference machine's.
    pub relative: f64,
}

/// A machine's score and what it is made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Thousandths of a point.
    pub milli: u64,
    pub kernels: Vec<Kernel>,
}

/// What kernels work on, made once.
struct Room {
    numbers: Vec<u64>,
    ring: Vec<u32>,
    text: String,
    bytes: Vec<u8>,
    copy: Vec<u8>,
    pair: (UnixStream, UnixStream),
}

type Work = fn(&mut Room) -> io::Result<()>;

/// Name, CPU time on the reference machine in ns (the median of five looks), work.
const KERNELS: &[(&str, u64, Work)] = &[
    ("integer", 15_100_000, integer),
    ("sort", 7_450_000, sort),
    ("float", 2_500_000, float),
    ("latency", 16_000_000, latency),
    ("bandwidth", 6_050_000, bandwidth),
    ("text", 4_030_000, text),
    ("kernel", 5_930_000, kernel),
];

/// A sequence that looks random and is the same everywhere.
fn scrambled(n: u64) -> u64 {
    let x = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 27)
}

impl Room {
    fn new() -> io::Result<Room> {
        const RING: usize = 4 << 20;
        // Sattolo's shuffle: one cycle through all of it.
        let mut ring: Vec<u32> = (0..RING as u32).collect();
        for i in (1..RING).rev() {
            ring.swap(i, (scrambled(i as u64) % i as u64) as usize);
        }
        let text = (0..12_000u64).map(|n| format!("key{}={}&", scrambled(n) % 3000, scrambled(n) >> 40)).collect();
        Ok(Room {
            numbers: (0..1 << 18).map(scrambled).collect(),
            ring,
            text,
            bytes: vec![7; 32 << 20],
            copy: vec![0; 32 << 20],
            pair: UnixStream::pair()?,
        })
    }
}

fn integer(_: &mut Room) -> io::Result<()> {
    black_box(fixed_work(8_000_000));
    Ok(())
}

fn sort(room: &mut Room) -> io::Result<()> {
    let mut numbers = room.numbers.clone();
    numbers.sort_unstable();
    black_box(numbers);
    Ok(())
}

fn float(_: &mut Room) -> io::Result<()> {
    const N: usize = 192;
    let a: Vec<f64> = (0..N * N).map(|i| i as f64 * 1e-3).collect();
    let mut c = vec![0.0; N * N];
    for (row, out) in a.chunks(N).zip(c.chunks_mut(N)) {
        for (x, other) in row.iter().zip(a.chunks(N)) {
            out.iter_mut().zip(other).for_each(|(o, y)| *o += x * y);
        }
    }
    black_box(c);
    Ok(())
}

fn latency(room: &mut Room) -> io::Result<()> {
    let mut at = 0u32;
    for _ in 0..100_000 {
        at = room.ring.get(at as usize).copied().unwrap_or(0);
    }
    black_box(at);
    Ok(())
}

fn bandwidth(room: &mut Room) -> io::Result<()> {
    room.copy.copy_from_slice(black_box(&room.bytes));
    black_box(&room.copy);
    Ok(())
}

fn text(room: &mut Room) -> io::Result<()> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (key, value) in room.text.split('&').filter_map(|pair| pair.split_once('=')) {
        *sums.entry(key.to_owned()).or_default() += value.parse::<u64>().unwrap_or(0);
    }
    black_box(sums);
    Ok(())
}

fn kernel(room: &mut Room) -> io::Result<()> {
    let mut buffer = [1u8; 4096];
    for _ in 0..3000 {
        room.pair.0.write_all(&buffer)?;
        room.pair.1.read_exact(&mut buffer)?;
    }
    Ok(())
}

/// Measures on each core in turn, about a second for two. Moves the calling thread.
fn looks() -> io::Result<Vec<Vec<u64>>> {
    let mut room = Room::new()?;
    let cores = time::allowed_cpus();
    let mut best = vec![vec![u64::MAX; cores.len().min(CORES_MAX)]; KERNELS.len()];
    // Pass by pass over all cores, so that a disturbance meets all of them.
    for _ in 0..PASSES {
        for (i, core) in cores.iter().take(CORES_MAX).enumerate() {
            time::pin_to(&[*core])?;
            for ((_, _, work), best) in KERNELS.iter().zip(&mut best) {
                let before = time::thread_cpu_ns();
                work(&mut room)?;
                best[i] = best[i].min(time::thread_cpu_ns() - before);
            }
        }
    }
    Ok(best)
}

fn judge(best: &[Vec<u64>]) -> Score {
    let kernels: Vec<Kernel> = KERNELS
        .iter()
        .zip(best)
        .map(|((name, reference_ns, _), cores)| {
            let mut cores = cores.clone();
            cores.sort_unstable();
            let ns = cores.get(cores.len() / 2).copied().unwrap_or(u64::MAX).max(1);
            Kernel { name, ns, relative: *reference_ns as f64 / ns as f64 }
        })
        .collect();
    let logs: f64 = kernels.iter().map(|k| k.relative.ln()).sum();
    let score = (logs / kernels.len().max(1) as f64).exp();
    Score { milli: (score * 1e6).round().max(1.0) as u64, kernels }
}

/// The score of this machine, on a thread of its own.
pub fn score() -> io::Result<Score> {
    let thread = std::thread::Builder::new().name("score".into()).spawn(looks)?;
    let best = thread.join().unwrap_or_else(|_| Err(io::Error::other("a kernel panicked")))?;
    Ok(judge(&best))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_machine_has_1000_and_one_twice_as_slow_500() {
        let times = |factor: u64| -> Vec<Vec<u64>> { KERNELS.iter().map(|(_, ns, _)| vec![ns * factor; 3]).collect() };
        assert_eq!(judge(&times(1)).milli, 1_000_000);
        assert_eq!(judge(&times(2)).milli, 500_000);
        let mut one_slow_core = times(1);
        one_slow_core[0][0] *= 10;
        assert_eq!(judge(&one_slow_core).milli, 1_000_000);
    }

    #[test]
    fn every_kernel_does_its_work() {
        let mut room = Room::new().unwrap();
        for (name, _, work) in KERNELS {
            let before = time::thread_cpu_ns();
            work(&mut room).unwrap();
            let ns = time::thread_cpu_ns() - before;
            assert!(ns > 200_000, "{name}: {ns} ns");
        }
        // One cycle: the walk comes back to its start after all entries, not before.
        let mut at = room.ring[0];
        let mut steps = 1;
        while at != 0 {
            at = room.ring[at as usize];
            steps += 1;
        }
        assert_eq!(steps, room.ring.len());
    }
}
