//! Flags, help and dispatch; nothing else.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use diecast_core_vtime::Tdf;
use diecast_host_run::frame;

/// Run a distributed service on one machine and get the numbers of the real deployment.
#[derive(Parser)]
#[command(name = "diecast", version)]
struct Cli {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Subcommand)]
enum Sub {
    /// Run one command in a time frame of its own.
    Frame(FrameArgs),
}

#[derive(Args)]
struct FrameArgs {
    #[arg(long)]
    tdf: Tdf,
    #[arg(long)]
    speed: Option<f64>,
    #[arg(long)]
    cores: Option<u32>,
    #[arg(long, default_value_t = 100)]
    grain: u64,
    #[arg(long)]
    stats: bool,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Sub::Frame(a) => {
            let o = frame::Options {
                tdf: a.tdf,
                speed_ppm: a.speed.map(|s| (s * 1e6) as u32),
                cores: a.cores,
                grain_ns: a.grain * 1000,
                command: a.command,
                stats: a.stats,
            };
            match frame::run(&o) {
                Ok(e) => {
                    for d in &e.doubts {
                        eprintln!("diecast: not trustworthy: {d}");
                    }
                    ExitCode::from(e.status as u8)
                }
                Err(e) => {
                    eprintln!("diecast: {e}");
                    ExitCode::from(3)
                }
            }
        }
    }
}
