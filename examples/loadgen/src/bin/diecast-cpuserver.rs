//! An HTTP server whose service is an amount of CPU time per request.

use std::net::TcpListener;
use std::process::ExitCode;

use clap::Parser;
use diecast_loadgen::{server, units};

#[derive(Parser, Debug)]
#[command(about = "HTTP server whose service is an amount of CPU time per request, on one thread")]
struct Args {
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: String,
    /// CPU time per request, such as 500us
    #[arg(long, default_value = "500us", value_parser = units::parse_time_ns)]
    service: u64,
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
    let Err(error) = server::serve(&listener, args.service) else { return ExitCode::SUCCESS };
    eprintln!("diecast-cpuserver: {error}");
    ExitCode::FAILURE
}
