//! What a frame costs.
//!
//!   frame-cost                               one JSON line per TDF, exit 1 when a bar is missed (`benches/frame.sh`)
//!   frame-cost --looks TURNS OPS [LIBRARY]   one JSON line per look, for `benches/performance.py`

use std::process::ExitCode;

use diecast_tests::cost;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => bars(),
        ["--looks", turns, ops, ref library @ ..] => match (turns.parse(), ops.parse()) {
            (Ok(turns), Ok(ops)) => looks(turns, ops, library.first().copied()),
            _ => ExitCode::from(2),
        },
        _ => ExitCode::from(2),
    }
}

fn looks(turns: usize, ops: usize, library: Option<&str>) -> ExitCode {
    for turn in 0..turns {
        for (world, look) in cost::look_around(turn, ops, library) {
            println!("{}", cost::look_json(turn, world, &look));
        }
    }
    ExitCode::SUCCESS
}

fn bars() -> ExitCode {
    let mut met = true;
    for tdf in ["1", "10"] {
        let c = cost::measure(10, tdf);
        println!("{}", c.json());
        met &= c.clock_added_ns() <= cost::CLOCK_BAR_NS && c.call_added_ns() <= cost::CALL_BAR_NS;
        met &= c.trap_added_ns() <= cost::TRAP_BAR_NS;
    }
    for tdf in ["1", "3"] {
        let idle = cost::Idle::measure(10, tdf);
        println!("{}", idle.json());
        met &= idle.added_ns() as f64 <= cost::TRAP_BAR_NS;
    }
    if met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
