//! Why there is a meter: a service of short requests must see its CPU time pass as on the original machine, and what
//! could stand in the meter's place does not do that.
//!
//! The judged property: the median time that a request takes on the service's own clock, for short and for long
//! requests apart, over the time that the same work takes natively. On the original machine both are 1.

use diecast_host_node::{Cgroup, Hierarchies, Quota};
use diecast_tests::{World, alone, c, run_with, value};

const TDF: &str = "10";
/// Turns of 2 ns or so: requests of about 300 µs and 1500 µs.
const SHORT_TURNS: &str = "150000";
const LONG_TURNS: &str = "750000";
const REQUESTS: &str = "60";
/// Idle time between two requests, on the service's clock: a load of about 0.3.
const GAP_NS: &str = "2000000";
/// How far the meter may be off, for a grain of 100 µs and the noise of two shared cores.
const TOLERANCE: f64 = 0.25;
/// Looks at most; a host that wavers spoils one, not three.
const LOOKS: usize = 3;

/// Median time of a request, short and long.
#[derive(Clone, Copy, Debug)]
struct Took {
    short_ns: f64,
    long_ns: f64,
}

/// Runs the service; `wrap` makes the command of it.
fn serve(world: World, options: &[&str], sleep_ns: u64, wrap: impl Fn(&str) -> Vec<String>) -> Took {
    let service = format!("{} {REQUESTS} {SHORT_TURNS} {LONG_TURNS} {GAP_NS} {sleep_ns}", c("bursts", true));
    let command = wrap(&service);
    let r = run_with(world, options, &command.iter().map(String::as_str).collect::<Vec<_>>(), b"", &[]);
    assert_eq!(r.status, Some(0), "{}", r.stderr);
    let lines = r.lines();
    Took { short_ns: value(&lines, "short") as f64, long_ns: value(&lines, "long") as f64 }
}

fn plain(service: &str) -> Vec<String> {
    service.split(' ').map(str::to_owned).collect()
}

fn native() -> Took {
    serve(World::Native, &[], 0, plain)
}

/// What a request takes in the frame over what it takes natively.
fn ratios(native: Took, framed: Took) -> [f64; 2] {
    [framed.short_ns / native.short_ns, framed.long_ns / native.long_ns]
}

fn holds(ratios: [f64; 2]) -> bool {
    ratios.iter().all(|ratio| (ratio - 1.0).abs() <= TOLERANCE)
}

/// Looks until the property holds; the ratios of every look.
fn look(framed: impl Fn(Took) -> Took) -> Vec<[f64; 2]> {
    let mut seen = Vec::new();
    while seen.len() < LOOKS && !seen.last().is_some_and(|&last| holds(last)) {
        let native = native();
        seen.push(ratios(native, framed(native)));
    }
    println!("short and long requests, framed over native: {seen:.3?}");
    seen
}

/// No look comes near: each has a size that is off by more than twice the tolerance, or a third of the time is missing.
fn misses_clearly(seen: &[[f64; 2]]) {
    assert_eq!(seen.len(), LOOKS, "it held: {seen:.3?}");
    for ratios in seen {
        let clear = ratios.iter().any(|&ratio| !(0.67..=1.0 + 2.0 * TOLERANCE).contains(&ratio));
        assert!(clear, "{seen:.3?}");
    }
}

/// Clocks dilated, CPU not metered: a speed of 10 at TDF 10 is a whole core.
const UNMETERED: [&str; 4] = ["--speed", TDF, "--cores", "1"];

#[test]
fn under_the_meter_requests_take_what_they_take_natively() {
    let _turn = alone();
    let seen = look(|_| serve(World::Frame(TDF), &["--cores", "1"], 0, plain));
    assert!(holds(seen[seen.len() - 1]), "{seen:.3?}");
}

/// A control group of the test's own.
struct Group(Cgroup);

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(left) = self.0.remove() {
            eprintln!("left behind: {left:?}");
        }
    }
}

/// A tenth of a core by the kernel's bandwidth control: a request is over before the first tick looks at it.
#[test]
fn a_cfs_quota_in_the_meters_place_fails() {
    let _turn = alone();
    let group = Hierarchies::detect().map(|h| h.cgroup(format!("diecast-test-quota-{}", std::process::id())));
    let group = match group.and_then(|g| g.create().map(|()| Group(g))) {
        Ok(group) => group,
        Err(e) => return diecast_quiet::skipped(format_args!("no control group: {e}")),
    };
    group.0.set_quota(Some(Quota { quota_us: 10_000, period_us: 100_000 })).expect("a quota");
    let procs = group.0.directory("cpu").expect("a controller").join("cgroup.procs");
    let wrap = |service: &str| {
        let script = format!("echo $$ > {} && exec {service}", procs.display());
        ["sh", "-c", &script].map(str::to_owned).to_vec()
    };
    misses_clearly(&look(|_| serve(World::Frame(TDF), &UNMETERED, 0, wrap)));
}

/// After each request the time that an average one lacks: short ones take too long, long ones are too quick.
#[test]
fn a_fixed_sleep_per_request_in_the_meters_place_fails() {
    let _turn = alone();
    let sleeping = |native: Took| {
        let mean_ns = (native.short_ns + native.long_ns) / 2.0;
        serve(World::Frame(TDF), &UNMETERED, (mean_ns * 0.9) as u64, plain)
    };
    misses_clearly(&look(sleeping));
}

/// A tick of 10 ms of CPU time: most requests see none, and one pays for all.
#[test]
fn a_scaled_tick_in_the_meters_place_fails() {
    let _turn = alone();
    let ticking = |_| serve(World::Frame(TDF), &["--grain", "10ms", "--cores", "1"], 0, plain);
    misses_clearly(&look(ticking));
}
