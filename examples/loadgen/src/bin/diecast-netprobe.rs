//! Measures a network from inside: datagrams at a constant rate, round trips, TCP in bulk.
//!
//! `serve` answers all of them. `flood` and `trickle` differ in their defaults only: full frames above the rate of a
//! link of 100 Mbit/s, small frames far below it. Each prints one line of JSON; `ping` also writes rtt_ns.bin
//! (little-endian u64) in the working directory.

use std::error::Error;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use diecast_loadgen::probe::{self, Probes, Stream};
use diecast_loadgen::units;

const PORT: u16 = 7000;
const SAMPLES: &str = "rtt_ns.bin";

#[derive(Parser, Debug)]
#[command(about = "Measures a network from inside: datagrams at a constant rate, round trips, TCP in bulk")]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand, Debug)]
enum Role {
    /// Count, echo and take what the other roles send, on port 7000 of UDP and TCP
    Serve {
        /// Turns of work for each datagram of a stream, as `diecast-spin --size-for` tells them
        #[arg(long, default_value_t = 0)]
        turns: u64,
    },
    /// Datagrams of 1472 bytes, 9000 a second: 109 Mbit/s
    Flood(Send),
    /// Datagrams of 58 bytes, 4000 a second: 3.2 Mbit/s
    Trickle(Send),
    /// Datagrams of 200 bytes, each when it is due
    Even {
        #[command(flatten)]
        send: Send,
        /// Datagrams a second
        #[arg(long)]
        rate: f64,
    },
    /// Echoes of 64 bytes, one each 10 ms
    Ping(Send),
    /// As much over TCP as goes
    Bulk(Send),
}

#[derive(Args, Debug)]
struct Send {
    /// Node that serves
    #[arg(long)]
    to: String,
    /// Load before the measured time, such as 500ms
    #[arg(long, default_value = "0s", value_parser = units::parse_time_ns)]
    warm_up: u64,
    /// Measured time, such as 2s
    #[arg(long, value_parser = units::parse_time_ns)]
    measure: u64,
}

fn main() -> ExitCode {
    match run(&Cli::parse().role) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("diecast-netprobe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(role: &Role) -> Result<(), Box<dyn Error>> {
    match role {
        Role::Serve { turns } => serve(*turns),
        Role::Flood(send) => stream(send, 1472, 9000.0, false),
        Role::Trickle(send) => stream(send, 58, 4000.0, false),
        Role::Even { send, rate } => stream(send, 200, *rate, true),
        Role::Ping(send) => ping(send),
        Role::Bulk(send) => {
            let series = probe::bulk(address(&send.to)?, send.warm_up + send.measure)?;
            println!("{}", serde_json::to_string(&series)?);
            Ok(())
        }
    }
}

fn serve(turns: u64) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind(("0.0.0.0", PORT))?;
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    println!("listening on port {PORT}");
    std::thread::spawn(move || {
        if let Err(error) = probe::serve_tcp(&listener) {
            eprintln!("diecast-netprobe: TCP: {error}");
        }
    });
    Ok(probe::serve_udp(&socket, turns)?)
}

fn stream(send: &Send, payload_bytes: usize, per_second: f64, even: bool) -> Result<(), Box<dyn Error>> {
    let plan = Stream { payload_bytes, per_second, warm_up_ns: send.warm_up, measure_ns: send.measure, even };
    let seen = probe::stream(&connected(&send.to)?, plan)?;
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

fn ping(send: &Send) -> Result<(), Box<dyn Error>> {
    let plan =
        Probes { payload_bytes: 64, interval_ns: 10_000_000, warm_up_ns: send.warm_up, measure_ns: send.measure };
    let seen = probe::echo(&connected(&send.to)?, plan)?;
    let bytes: Vec<u8> = seen.round_trips_ns.iter().flat_map(|ns| ns.to_le_bytes()).collect();
    std::fs::write(SAMPLES, bytes).map_err(|error| format!("{SAMPLES}: {error}"))?;
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

fn connected(to: &str) -> Result<UdpSocket, Box<dyn Error>> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect(address(to)?)?;
    Ok(socket)
}

fn address(node: &str) -> Result<SocketAddr, Box<dyn Error>> {
    let mut found = (node, PORT).to_socket_addrs()?;
    found.find(SocketAddr::is_ipv4).ok_or_else(|| format!("{node} has no IPv4 address").into())
}
