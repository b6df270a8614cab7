//! A fixed amount of work, and the wall and CPU time that it took, or as much work as threads do in a given time, as one
//! line of JSON.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use diecast_loadgen::clock::{monotonic_ns, process_cpu_ns, thread_cpu_ns};
use diecast_loadgen::units;
use diecast_loadgen::work::{self, CpuBurner};

#[derive(Parser, Debug)]
#[command(about = "A fixed amount of work, and the wall and CPU time that it took, as one line of JSON")]
struct Args {
    /// Turns of the loop
    #[arg(long, required_unless_present_any = ["size_for", "last"])]
    turns: Option<u64>,
    /// Print how many turns fill this much CPU time on this machine, and do none
    #[arg(long, conflicts_with = "turns", value_name = "TIME", value_parser = units::parse_time_ns)]
    size_for: Option<u64>,
    /// Work for this much time, after a fifth of it that does not count
    #[arg(long, conflicts_with_all = ["turns", "size_for"], value_name = "TIME", value_parser = units::parse_time_ns)]
    last: Option<u64>,
    /// Threads that work, with --last
    #[arg(long, default_value_t = 1, requires = "last")]
    threads: usize,
    /// A third of each thread's work is done under one mutex, with --last
    #[arg(long, requires = "last")]
    locked: bool,
}

/// Work of a thread between two looks at whether it is over: some 30 µs, a third of it under the mutex.
const TURNS: u64 = 5_000;

fn keep_working(lock: Option<&Mutex<()>>, rounds: &AtomicU64, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        work::spin(2 * TURNS);
        {
            let _held = lock.map(Mutex::lock);
            work::spin(TURNS);
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// What so many threads do in `last_ns`.
fn work_for(threads: usize, locked: bool, last_ns: u64) -> serde_json::Value {
    let (over, rounds, mutex) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(()));
    let lock = locked.then_some(&mutex);
    let read = || (monotonic_ns(), process_cpu_ns(), rounds.load(Ordering::Relaxed));
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| keep_working(lock, &rounds, &over));
        }
        std::thread::sleep(Duration::from_nanos(last_ns / 5));
        let from = read();
        std::thread::sleep(Duration::from_nanos(last_ns));
        let to = read();
        over.store(true, Ordering::Relaxed);
        serde_json::json!({"threads": threads, "wall_ns": to.0 - from.0, "cpu_ns": to.1 - from.1, "rounds": to.2 - from.2})
    })
}

fn main() {
    let args = Args::parse();
    if let Some(cpu_ns) = args.size_for {
        println!("{}", CpuBurner::calibrate().turns_for(cpu_ns));
        return;
    }
    if let Some(last_ns) = args.last {
        println!("{}", work_for(args.threads, args.locked, last_ns));
        return;
    }
    let turns = args.turns.unwrap_or_default();
    let (wall_start_ns, cpu_start_ns) = (monotonic_ns(), thread_cpu_ns());
    let checksum = work::spin(turns);
    let (cpu_ns, wall_ns) = (thread_cpu_ns() - cpu_start_ns, monotonic_ns() - wall_start_ns);
    let line = serde_json::json!({"turns": turns, "wall_ns": wall_ns, "thread_cpu_ns": cpu_ns, "checksum": checksum});
    println!("{line}");
}
