//! A fixed amount of work, and the wall and CPU time that it took, as one line of JSON.

use clap::Parser;
use diecast_loadgen::clock::{monotonic_ns, thread_cpu_ns};
use diecast_loadgen::units;
use diecast_loadgen::work::{self, CpuBurner};

#[derive(Parser, Debug)]
#[command(about = "A fixed amount of work, and the wall and CPU time that it took, as one line of JSON")]
struct Args {
    /// Turns of the loop
    #[arg(long, required_unless_present = "size_for")]
    turns: Option<u64>,
    /// Print how many turns fill this much CPU time on this machine, and do none
    #[arg(long, conflicts_with = "turns", value_name = "TIME", value_parser = units::parse_time_ns)]
    size_for: Option<u64>,
}

fn main() {
    let args = Args::parse();
    if let Some(cpu_ns) = args.size_for {
        println!("{}", CpuBurner::calibrate().turns_for(cpu_ns));
        return;
    }
    let turns = args.turns.unwrap_or_default();
    let (wall_start_ns, cpu_start_ns) = (monotonic_ns(), thread_cpu_ns());
    let checksum = work::spin(turns);
    let (cpu_ns, wall_ns) = (thread_cpu_ns() - cpu_start_ns, monotonic_ns() - wall_start_ns);
    let line = serde_json::json!({"turns": turns, "wall_ns": wall_ns, "thread_cpu_ns": cpu_ns, "checksum": checksum});
    println!("{line}");
}
