//! The emulator's part of `benches/net.py`: one JSON line for each figure. Arguments: parts (throughput, rate, delay,
//! idle, star; all when none is named) and `--small`.

use std::process::ExitCode;

use diecast_tests::net::{
    Figure, Size, carried, delay, idle, rate, shaper, shaper_speed, star, throughput, throughput_with_offload,
};

const M: u64 = 1_000_000;
/// Further than one core carries; what lies beyond its throughput is printed, not judged.
const RATES: [(&str, &[u64]); 3] = [
    ("1", &[M, 10 * M, 100 * M, 500 * M, 1000 * M, 2000 * M, 4000 * M]),
    ("10", &[M, 100 * M, 1000 * M, 5000 * M, 10_000 * M, 40_000 * M]),
    ("100", &[M, 10 * M, 1000 * M, 50_000 * M, 100_000 * M]),
];

fn rates(size: Size, small: bool) -> Vec<Figure> {
    let mut figures = Vec::new();
    let limit = carried(size);
    for (tdf, rates) in RATES {
        let rates = if small { &rates[1..2] } else { rates };
        figures.extend(rates.iter().map(|&bps| rate(tdf, bps, limit, size)));
    }
    let shaped = if small { &RATES[0].1[1..2] } else { RATES[0].1 };
    for qdisc in ["tbf", "htb"] {
        figures.extend(shaped.iter().filter_map(|&bps| shaper(qdisc, bps, size)));
    }
    figures
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let small = arguments.iter().any(|a| a == "--small");
    let size = if small { Size::SMALL } else { Size::FULL };
    let parts: Vec<&str> = arguments.iter().map(String::as_str).filter(|a| *a != "--small").collect();
    let parts = if parts.is_empty() { vec!["throughput", "rate", "delay", "idle", "star"] } else { parts };
    for part in parts {
        let figures = match part {
            "throughput" => {
                let shaped = ["tbf", "htb"].iter().filter_map(|qdisc| shaper_speed(qdisc, size));
                throughput(size).into_iter().chain(throughput_with_offload(size)).chain(shaped).collect()
            }
            "mtu" => throughput(size),
            "offload" => throughput_with_offload(size),
            "rate" => rates(size, small),
            "delay" => {
                ["1", "10", "100"].iter().flat_map(|tdf| delay(tdf, 0, size)).chain(delay("1", 6, size)).collect()
            }
            "idle" => idle(size),
            "star" => star(size),
            other => {
                eprintln!("net-cost: expected throughput, offload, rate, delay, idle or star, got {other}");
                return ExitCode::from(2);
            }
        };
        for figure in figures {
            println!("{}", figure.json());
        }
    }
    ExitCode::SUCCESS
}
