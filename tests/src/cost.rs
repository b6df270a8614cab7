//! A clock read and a system call without time, natively and in a frame, in turns.

use crate::runs::{World, real_ns_of_tsc, run_with};
use crate::{c, value};

/// Bar of issue 2 for a clock read, ns more than natively.
pub const CLOCK_BAR_NS: f64 = 20.0;
/// Bar of issue 2 for a system call without time.
pub const CALL_BAR_NS: f64 = 50.0;

/// Bar of issue 2 for a trapped wait, whether it ends at once or times out.
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
        ["clock", "call", "trap"].map(|name| ns(&lines, name))
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

/// CPU time of a wait of 1 ms that times out, natively and in a frame that meters, ns.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    pub tdf: &'static str,
    pub native_ns: i64,
    pub frame_ns: i64,
}

impl Idle {
    /// The native wait is as long in real time, since longer ones cost more everywhere. In turns, since what a wake-up costs
    /// changes by the second; the least of each.
    pub fn measure(turns: usize, tdf: &'static str) -> Idle {
        let guest = c("idle", false);
        let cost = |world: World, ms: &str| {
            value(&run_with(world, &[], &[&guest, "400", ms], b"", &[]).lines(), "cpu_ns_per_wait")
        };
        let (mut native_ns, mut frame_ns) = (i64::MAX, i64::MAX);
        for _ in 0..turns {
            native_ns = native_ns.min(cost(World::Native, tdf));
            frame_ns = frame_ns.min(cost(World::Frame(tdf), "1"));
        }
        Idle { tdf, native_ns, frame_ns }
    }

    pub fn added_ns(&self) -> i64 {
        self.frame_ns - self.native_ns
    }

    pub fn json(&self) -> String {
        format!(
            "{{\"tdf\":\"{}\",\"native_idle_ns\":{},\"frame_idle_ns\":{},\"idle_added_ns\":{},\"idle_bar_ns\":{TRAP_BAR_NS}}}",
            self.tdf,
            self.native_ns,
            self.frame_ns,
            self.added_ns(),
        )
    }
}

/// What a program costs in one world at one time, ns by name.
pub type Look = Vec<(&'static str, f64)>;

const NAMES: [&str; 6] = ["clock", "call", "trap", "thread", "fork", "exec"];

/// Everything once in each world, in an order that turns; natively also an empty SIGSYS round trip. `ops` threads,
/// forks and execs each; under libfaketime where its library is given.
pub fn look_around(turn: usize, ops: usize, faketime: Option<&str>) -> Vec<(&'static str, Look)> {
    let guest = c("cost", false);
    let ops = ops.to_string();
    let look = |world: World, options: &[&str], env: &[(&str, &str)]| -> Look {
        let lines = run_with(world, options, &[&guest, "200", &ops], b"", env).lines();
        NAMES.iter().map(|name| (*name, ns(&lines, name))).collect()
    };
    let mut worlds = vec!["native", "frame-1", "frame-10", "trapped"];
    worlds.extend(faketime.map(|_| "libfaketime"));
    let count = worlds.len();
    worlds.rotate_left(turn % count);
    let at = |world: &'static str| {
        let found = match world {
            "native" => {
                let mut found = look(World::Native, &[], &[]);
                let lines = run_with(World::Native, &[], &[&guest, "sigsys", "400"], b"", &[]).lines();
                found.push(("sigsys", ns(&lines, "sigsys")));
                found
            }
            // Of a whole core, so that the meter's sleeps are in no figure.
            "frame-10" => look(World::Frame("10"), &["--speed", "10"], &[]),
            "libfaketime" => {
                let env = [("LD_PRELOAD", faketime.unwrap_or_default()), ("FAKETIME", "+0 x0.1")];
                look(World::Native, &[], &env)
            }
            "trapped" => look(World::Frame("1"), &["--call-sites", "never"], &[]),
            _ => look(World::Frame("1"), &[], &[]),
        };
        (world, found)
    };
    worlds.into_iter().map(at).collect()
}

fn ns(lines: &[(u64, String)], name: &str) -> f64 {
    real_ns_of_tsc(value(lines, &format!("{name}_ticks_per_1000")) as u64) / 1000.0
}

/// A look as `benches/performance.py` reads it.
pub fn look_json(turn: usize, world: &str, look: &Look) -> String {
    let ns: Vec<String> = look.iter().map(|(name, ns)| format!("\"{name}\":{ns:.2}")).collect();
    format!("{{\"turn\":{turn},\"world\":\"{world}\",\"ns\":{{{}}}}}", ns.join(","))
}
