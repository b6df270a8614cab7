//! An HTTP server whose service is an amount of CPU time, or of work, per request.

use std::net::TcpListener;
use std::process::ExitCode;

use clap::Parser;
use diecast_loadgen::server::{self, Service};
use diecast_loadgen::units;

#[derive(Parser, Debug)]
#[command(about = "HTTP server whose service is an amount of CPU time, or of work, per request, on one thread")]
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
}

fn main() -> ExitCode {
    let args = Args::parse();
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
    let service = args.turns.map_or(Service::CpuTime(args.service), Service::Turns);
    let Err(error) = server::serve(&listener, service) else { return ExitCode::SUCCESS };
    eprintln!("diecast-cpuserver: {error}");
    ExitCode::FAILURE
}
