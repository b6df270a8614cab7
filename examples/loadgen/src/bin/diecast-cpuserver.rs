//! An HTTP server whose service is an amount of CPU time, or of work, per request.

use std::net::TcpListener;
use std::process::ExitCode;

use clap::Parser;
use diecast_loadgen::server::{self, Parts, Service};
use diecast_loadgen::stages::{self, HandOn};
use diecast_loadgen::units;

#[derive(Parser, Debug)]
#[command(
    about = "HTTP server whose service is an amount of CPU time, or of work, per request, by one thread or by several in turn"
)]
struct Args {
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: String,
    /// CPU time per request by the server's own clock, such as 500us
    #[arg(long, default_value = "500us", value_parser = units::parse_time_ns)]
    service: u64,
    /// Turns of a loop per request instead: on a machine of half the speed they take twice the time
    #[arg(long, conflicts_with = "service")]
    turns: Option<u64>,
    /// So many threads or processes work on a request, one after another, each for as long
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    parts: u16,
    /// What a request is handed on by
    #[arg(long, value_enum, default_value_t = HandOn::Condition)]
    by: HandOn,
    /// Be one of the processes: a byte comes by standard input when it is to work, and goes out when it has
    #[arg(long, hide = true)]
    part: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let service = args.turns.map_or(Service::CpuTime(args.service), Service::Turns);
    if args.part {
        stages::serve_part(std::io::stdin().lock(), std::io::stdout().lock(), service.work());
        return ExitCode::SUCCESS;
    }
    let listener = match TcpListener::bind(&args.listen) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("diecast-cpuserver: {}: {error}", args.listen);
            return ExitCode::from(3);
        }
    };
    match listener.local_addr() {
        Ok(address) => println!("listening on {address}"),
        Err(error) => eprintln!("diecast-cpuserver: {error}"),
    }
    let count = usize::from(args.parts);
    let of_process = match service.part(count) {
        Service::CpuTime(ns) => ["--part".into(), "--service".into(), format!("{ns}ns")],
        Service::Turns(turns) => ["--part".into(), "--turns".into(), turns.to_string()],
    };
    let parts = Parts { count, by: args.by, of_process: of_process.into() };
    let Err(error) = server::serve(&listener, service, &parts) else { return ExitCode::SUCCESS };
    eprintln!("diecast-cpuserver: {error}");
    ExitCode::FAILURE
}
