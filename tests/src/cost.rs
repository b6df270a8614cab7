//! A clock read and a system call without time, natively and in a frame, in turns.

use crate::runs::{World, real_ns_of_tsc, run_with};
use crate::{c, value};

/// Bar of issue 2 for a clock read, ns more than natively.
pub const CLOCK_BAR_NS: f64 = 20.0;
/// Bar of issue 2 for a system call without time.
pub const CALL_BAR_NS: f64 = 50.0;

/// Bar of issue 2 for a trapped wait.
pub const TRAP_BAR_NS: f64 = 3000.0;

/// The best round of each, ns.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub tdf: &'static str,
    pub native_clock_ns: f64,
    pub native_call_ns: f64,
    pub frame_clock_ns: f64,
    pub frame_call_ns: f64,
    pub native_trap_ns: f64,
    pub frame_trap_ns: f64,
}

impl Cost {
    pub fn clock_added_ns(&self) -> f64 {
        self.frame_clock_ns - self.native_clock_ns
    }

    pub fn call_added_ns(&self) -> f64 {
        self.frame_call_ns - self.native_call_ns
    }

    pub fn trap_added_ns(&self) -> f64 {
        self.frame_trap_ns - self.native_trap_ns
    }

    pub fn json(&self) -> String {
        format!(
            "{{\"tdf\":\"{}\",\"native_clock_ns\":{:.1},\"frame_clock_ns\":{:.1},\"clock_added_ns\":{:.1},\"clock_bar_ns\":{CLOCK_BAR_NS},\
             \"native_call_ns\":{:.1},\"frame_call_ns\":{:.1},\"call_added_ns\":{:.1},\"call_bar_ns\":{CALL_BAR_NS},\
             \"native_trap_ns\":{:.1},\"frame_trap_ns\":{:.1},\"trap_added_ns\":{:.1},\"trap_bar_ns\":{TRAP_BAR_NS}}}",
            self.tdf,
            self.native_clock_ns,
            self.frame_clock_ns,
            self.clock_added_ns(),
            self.native_call_ns,
            self.frame_call_ns,
            self.call_added_ns(),
            self.native_trap_ns,
            self.frame_trap_ns,
            self.trap_added_ns(),
        )
    }
}

/// Measures in turns, so that both see the host in the same state; keeps the best round of each.
pub fn measure(turns: usize, tdf: &'static str) -> Cost {
    let guest = c("cost", false);
    let look = |world: World| {
        let lines = run_with(world, &[], &[&guest, "400"], b"", &[]).lines();
        let ns = |name: &str| real_ns_of_tsc(value(&lines, name) as u64) / 1000.0;
        [ns("clock_ticks_per_1000"), ns("call_ticks_per_1000"), ns("trap_ticks_per_1000")]
    };
    let (mut native, mut frame) = ([f64::MAX; 3], [f64::MAX; 3]);
    for _ in 0..turns {
        let (n, f) = (look(World::Native), look(World::Frame(tdf)));
        for i in 0..3 {
            native[i] = native[i].min(n[i]);
            frame[i] = frame[i].min(f[i]);
        }
    }
    Cost {
        tdf,
        native_clock_ns: native[0],
        native_call_ns: native[1],
        frame_clock_ns: frame[0],
        frame_call_ns: frame[1],
        native_trap_ns: native[2],
        frame_trap_ns: frame[2],
    }
}
