//! What a frame costs, in a small form; `benches/frame.sh` measures it properly.

use diecast_tests::{alone, cost};

/// The bars of issue 2 are 20 ns for a clock read and 50 ns for a call without time, on a quiet machine; the small
/// run on a busy one gets as much again before it fails.
#[test]
fn clock_reads_and_other_calls_cost_little() {
    diecast_quiet::look(costs);
}

fn costs() {
    let _turn = alone();
    let c = cost::measure(3, "1");
    println!("{}", c.json());
    assert!(c.clock_added_ns() <= 40.0, "a clock read: {}", c.json());
    assert!(c.trap_added_ns() <= cost::TRAP_BAR_NS, "a trapped wait: {}", c.json());
    assert!(c.call_added_ns() <= 100.0, "a call without time: {}", c.json());
}
