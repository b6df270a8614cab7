//! Open-loop HTTP load: seeded Poisson arrivals, latency from the intended send time.
//!
//! Prints the seed first, and at the end `errors=N` and one line of JSON. Writes the latencies of the measure window to
//! latency_ns.bin (little-endian u64, in order of intended send time) in the working directory.

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use diecast_loadgen::client::{self, ClientOptions};
use diecast_loadgen::schedule::{Paths, ScheduleSpec};
use diecast_loadgen::summary::{Summary, Window, samples_ns, sent_ns};
use diecast_loadgen::{clock, units};

#[derive(Parser, Debug)]
#[command(about = "Open-loop HTTP load: seeded Poisson arrivals, latency from the intended send time")]
struct Args {
    /// Where to send: http://HOST[:PORT][/]
    url: String,
    /// Mean arrivals per second, such as 90/s
    #[arg(long, value_parser = units::parse_rate)]
    rate: f64,
    /// Decides arrival times and paths
    #[arg(long)]
    seed: u64,
    /// Tells generators of one seed apart; @hostname stands for the name of this node
    #[arg(long, default_value = "@hostname")]
    stream: String,
    /// Load before the measure window, such as 5s
    #[arg(long, env = "DIECAST_WARM_UP", default_value = "5s", value_parser = units::parse_time_ns)]
    warm_up: u64,
    /// Leave out what the seed's stream brings for so long, such as 4s: several generators then share one stream
    #[arg(long, default_value = "0s", value_parser = units::parse_time_ns)]
    skip: u64,
    /// In this part of the warm-up, 0 to 1, the rate rises from nothing
    #[arg(long, default_value_t = 0.0, value_parser = parse_part)]
    ramp: f64,
    /// Length of the measure window, such as 20s
    #[arg(long, env = "DIECAST_MEASURE", default_value = "20s", value_parser = units::parse_time_ns)]
    measure: u64,
    /// A request unanswered this long after its intended send time is an error
    #[arg(long, default_value = "5s", value_parser = units::parse_time_ns)]
    timeout: u64,
    /// How long to wait for answers after the measure window
    #[arg(long, default_value = "5s", value_parser = units::parse_time_ns)]
    drain: u64,
    /// Requests ask for /item/1 to /item/ITEMS
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    items: u32,
    /// Ask for the paths in this file instead, one a line, drawn at random
    #[arg(long)]
    path_list: Option<PathBuf>,
    /// Most connections at a time; further requests wait, their clocks running
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// File for the raw latencies
    #[arg(long, default_value = "latency_ns.bin")]
    samples: PathBuf,
    /// File for when each of those was to be sent: CLOCK_MONOTONIC in ns, in the same form and order
    #[arg(long)]
    sent: Option<PathBuf>,
    /// Print the schedule (nanoseconds and path of each request) and send nothing
    #[arg(long)]
    print_schedule: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("diecast-loadgen: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let stream = match args.stream.as_str() {
        "@hostname" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        other => other.to_owned(),
    };
    if args.measure == 0 {
        return Err("the measure window is empty".to_owned());
    }
    let paths = match &args.path_list {
        Some(file) => Paths::List(read_paths(file)?),
        None => Paths::Items(args.items),
    };
    let length_ns = args.warm_up + args.measure;
    let ramp_ns = (args.warm_up as f64 * args.ramp) as u64;
    let spec =
        ScheduleSpec { rate_per_s: args.rate, seed: args.seed, stream, skip_ns: args.skip, length_ns, ramp_ns, paths };
    let arrivals = spec.arrivals();
    if args.print_schedule {
        let lines: String = arrivals.iter().map(|a| format!("{} {}\n", a.at_ns, a.path)).collect();
        // A reader that has seen enough, such as head, is no fault.
        return match std::io::stdout().write_all(lines.as_bytes()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
            _ => Ok(()),
        };
    }
    println!("seed={} stream={} rate={}/s requests={}", spec.seed, spec.stream, spec.rate_per_s, arrivals.len());

    let authority = authority(&args.url)?;
    let options = ClientOptions {
        address: resolve(authority)?,
        host: authority.to_owned(),
        timeout_ns: args.timeout,
        drain_ns: args.drain,
        end_ns: length_ns,
        connections_max: usize::from(args.connections),
    };
    let cpu_before_ns = clock::process_cpu_ns();
    let report = client::run(&options, &arrivals).map_err(|e| format!("event loop: {e}"))?;
    let cpu_ns = clock::process_cpu_ns() - cpu_before_ns;

    let window = Window { from_ns: args.warm_up, length_ns: args.measure };
    write_ns(&args.samples, &samples_ns(&arrivals, &report, window))?;
    if let Some(file) = &args.sent {
        write_ns(file, &sent_ns(&arrivals, &report, window))?;
    }
    if let Some(fault) = &report.first_fault {
        eprintln!("diecast-loadgen: first fault: {fault}");
    }
    let summary = Summary::of(&arrivals, &report, window);
    println!("cpu_per_request_ns={}", cpu_ns / arrivals.len().max(1) as u64);
    println!("errors={}", summary.errors);
    println!("{}", serde_json::to_string(&summary).map_err(|e| e.to_string())?);
    Ok(())
}

fn write_ns(file: &Path, all_ns: &[u64]) -> Result<(), String> {
    let bytes: Vec<u8> = all_ns.iter().flat_map(|ns| ns.to_le_bytes()).collect();
    std::fs::write(file, bytes).map_err(|e| format!("{}: {e}", file.display()))
}

fn parse_part(text: &str) -> Result<f64, String> {
    let part = text.parse::<f64>().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| format!("expected a part of the warm-up from 0 to 1, such as 0.75, got {text:?}"))
}

fn authority(url: &str) -> Result<&str, String> {
    let good = |text: &&str| !text.is_empty() && !text.contains(['/', '?', '#', '@']);
    let rest = url.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest)).filter(good);
    rest.ok_or_else(|| format!("expected http://HOST[:PORT]/ without a path (see --path-list), got {url:?}"))
}

fn read_paths(file: &Path) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let paths: Vec<String> = text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect();
    match paths.iter().position(|path| !path.starts_with('/') || path.contains(char::is_whitespace)) {
        Some(index) => Err(format!("{}: expected a path such as /item/1, got {:?}", file.display(), paths[index])),
        None if paths.is_empty() => Err(format!("{}: holds no path", file.display())),
        None => Ok(paths),
    }
}

fn resolve(authority: &str) -> Result<SocketAddr, String> {
    let with_port = match authority.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_owned(),
        _ => format!("{authority}:80"),
    };
    let addresses: Vec<SocketAddr> = with_port.to_socket_addrs().map_err(|e| format!("{with_port}: {e}"))?.collect();
    // A name with both kinds of address: many servers listen on IPv4 only, so it is preferred.
    let preferred = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    preferred.copied().ok_or_else(|| format!("{with_port}: no address"))
}
