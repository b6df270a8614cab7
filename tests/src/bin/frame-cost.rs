//! `benches/frame.sh`: one JSON line per TDF, exit 1 when a bar is missed.

use std::process::ExitCode;

use diecast_tests::cost;

fn main() -> ExitCode {
    let mut met = true;
    for tdf in ["1", "10"] {
        let c = cost::measure(10, tdf);
        println!("{}", c.json());
        met &= c.clock_added_ns() <= cost::CLOCK_BAR_NS && c.call_added_ns() <= cost::CALL_BAR_NS;
        met &= c.trap_added_ns() <= cost::TRAP_BAR_NS;
    }
    if met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
