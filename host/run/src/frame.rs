//! `diecast frame`: one command in a frame of its own.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use diecast_core_abi::{SLOTS_MAX, VCPUS_MAX};
use diecast_core_cpu as ledger;
use diecast_core_plan::{GRAIN_NS_DEFAULT, GRAIN_NS_WITH_DEBT, NODE_CORES_MAX, Tsc};
use diecast_core_vtime::{Tdf, VirtNs};
use diecast_host_node::CoreView;
use diecast_host_supervisor::{
    CpuConfig, FRAME_SLACK_NS, HitsFrom, LabFrame, Meters, NodeFrame, SPEED_ONE_PPM, Supervisor,
};

use diecast_host_sys::{Tid, process, ptrace, seccomp, socket, time};
use diecast_host_tick::{Cadence, TickError};

use crate::cores::Cores;
use crate::family::{self, descendants};
use crate::host_watch;

const _: () = assert!(NODE_CORES_MAX as usize == VCPUS_MAX);

/// What to run and how.
#[derive(Clone, Debug)]
pub struct Options {
    pub tdf: Tdf,
    /// Millionths of a host core; None: min(1, TDF).
    pub speed_ppm: Option<u32>,
    /// Virtual CPUs; None: as many as the host's.
    pub cores: Option<u32>,
    /// None: as fine as the host has room for (`grain_for`).
    pub grain_ns: Option<u64>,
    pub hits_from: HitsFrom,
    pub tsc: Tsc,
    /// Calls from one place in a program after which it jumps to the blob; 0 = never.
    pub call_sites: u32,
    pub command: Vec<OsString>,
    /// Print what the supervisor counted to stderr at the end.
    pub stats: bool,
}

/// Why a frame could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a speed of {speed} needs more than a whole core at TDF {tdf}")]
    TooFast { speed: f64, tdf: Tdf },
    #[error("{program}: {source}")]
    Program { program: String, source: io::Error },
    #[error("{what}: {source}")]
    Host { what: &'static str, source: io::Error },
    #[error("{0}; --hits threads does without")]
    Clocks(#[from] TickError),
    #[error("putting {program} in a frame: {problem}")]
    Frame { program: String, problem: String },
}

/// What happened, for the caller's exit status.
#[derive(Debug)]
pub struct Ended {
    /// As a shell would report it: status, or 128 + signal.
    pub status: i32,
    /// Reasons why the run can't be trusted.
    pub doubts: Vec<String>,
}

/// The speed at which a virtual CPU takes a whole core, in millionths, rounded down.
fn whole_core_ppm(tdf: Tdf) -> u64 {
    u64::from(SPEED_ONE_PPM) * u64::from(tdf.num()) / u64::from(tdf.den())
}

/// Speed in millionths, and whether a meter is needed: at a share of a whole core there is nothing to meter.
fn speed_of(o: &Options) -> Result<(u32, bool), FrameError> {
    let whole_ppm = whole_core_ppm(o.tdf);
    let speed = o.speed_ppm.map_or(whole_ppm.min(u64::from(SPEED_ONE_PPM)), u64::from);
    if speed > whole_ppm {
        return Err(FrameError::TooFast { speed: speed as f64 / 1e6, tdf: o.tdf });
    }
    Ok((speed as u32, speed < whole_ppm))
}

/// The grain of a frame that asks for none. Hits of the fine one cost up to a half of what they meter, so that more than
/// half of the host at work would leave too little for the rest: busy threads would fall behind their share for good.
fn grain_for(tdf: Tdf, cores: u32, speed_ppm: u32, host_cores: u32) -> u64 {
    // In millionths of a core at the frame's own time; below 2^97.
    let work = u128::from(cores) * u128::from(speed_ppm);
    let host = u128::from(host_cores) * u128::from(whole_core_ppm(tdf));
    if 2 * work > host { GRAIN_NS_WITH_DEBT } else { GRAIN_NS_DEFAULT }
}

/// Files that show the frame's cores, where the host's do not and it lets us put others in their place.
fn view_of(cores: u32) -> Option<CoreView> {
    CoreView::of(cores).unwrap_or_else(|problem| {
        tell_of_no_view(&problem.to_string());
        None
    })
}

fn tell_of_no_view(problem: &str) {
    eprintln!(
        "diecast: /sys, and sysconf with it, shows this host's cores, not the frame's: to show others takes root with \
         mounts of its own ({problem})"
    );
}

static CHILD: AtomicI32 = AtomicI32::new(0);

/// Terminal signals go to the whole foreground group; those sent to us alone are passed on. What is ignored stays so,
/// here and in the command; a handler is nothing that the command would inherit.
fn forward_signals() {
    extern "C" fn forward(sig: libc::c_int) {
        let pid = CHILD.load(Ordering::Relaxed);
        if pid > 0 {
            let _ = process::kill(Tid(pid), sig);
        }
    }
    extern "C" fn stay(_: libc::c_int) {}
    const PASSED_ON: [i32; 4] = [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
    for sig in PASSED_ON.into_iter().filter(|s| !process::is_ignored(*s)) {
        process::on_signal(sig, forward);
    }
    for sig in [libc::SIGINT, libc::SIGQUIT].into_iter().filter(|s| !process::is_ignored(*s)) {
        process::on_signal(sig, stay);
    }
}

/// Runs a command in a frame and waits for it and for everything it left.
pub fn run(o: &Options) -> Result<Ended, FrameError> {
    let (mut speed_ppm, wanted) = speed_of(o)?;
    let allowed = time::allowed_cpus();
    let host_cores = allowed.len() as u32;
    let cores = o.cores.unwrap_or(host_cores.min(NODE_CORES_MAX));
    if o.cores.is_none() && host_cores > NODE_CORES_MAX {
        eprintln!(
            "diecast: the frame has {NODE_CORES_MAX} of this host's {host_cores} cores: more have no room in its ledger"
        );
    }
    let grain_ns = o.grain_ns.unwrap_or_else(|| grain_for(o.tdf, cores, speed_ppm, host_cores));
    let mut doubts = Vec::new();
    let meters = wanted.then(|| Meters::start(o.hits_from, Cadence::of_grain(grain_ns), None)).transpose()?;
    let meters = meters.map(|(meters, _)| meters);
    let metered = meters.as_ref().is_some_and(Meters::any);
    if wanted && !metered {
        doubts.push(
            "no CPU meter: this host does not allow perf events with sigtrap; CPU runs at the host's speed".to_owned(),
        );
        // CPU clocks must not outrun the wall clock.
        speed_ppm = whole_core_ppm(o.tdf) as u32;
    }
    let host = |what| move |source| FrameError::Host { what, source };
    let (trap_tsc, site_calls) = (o.tsc == Tsc::Trap, o.call_sites);
    let count_kernel = meters.as_ref().is_some_and(Meters::count_kernel);
    let contended_grain_ns = GRAIN_NS_WITH_DEBT;
    let cpu = CpuConfig { cores, speed_ppm, grain_ns, contended_grain_ns, metered, count_kernel, trap_tsc, site_calls };
    process::become_subreaper().map_err(host("becoming a subreaper"))?;
    let lab = LabFrame::start(o.tdf);
    let began = lab.now();
    let node = NodeFrame::create(&lab, "frame", cpu, Box::new(descendants), Some(Box::new(family::used_ns)))
        .map_err(host("making the frame's memory"))?;
    if let Some(ticks) = meters.as_ref().and_then(Meters::ticks) {
        node.hit_by(ticks);
    }
    let own = Cores::take(cores as usize, allowed);
    let awake = if metered {
        let on = own.cpus.iter().map(|cpu| *cpu as u32).collect();
        Some(
            host_watch::keep_awake(vec![(node.clone(), on)], None)
                .map_err(host("starting threads that keep cores awake"))?,
        )
    } else {
        None
    };
    let probe = if metered {
        Some(host_watch::start_probe(o.tdf, vec![node.clone()], |_| {}).map_err(host("starting the probe"))?)
    } else {
        None
    };
    let watch = metered.then(|| family::watch(lab.clone(), node.clone())).transpose();
    let watch = watch.map_err(host("starting the watch"))?;
    let mut supervisor = Supervisor::start().map_err(host("starting the supervisor"))?;

    let (ours, theirs) = socket::pair().map_err(host("making a socket"))?;
    let filter = diecast_host_supervisor::filter();
    let mut command = Command::new(&o.command[0]);
    command.args(&o.command[1..]);
    let program = o.command[0].to_string_lossy().into_owned();
    let child_end = theirs.try_clone().map_err(host("making a socket"))?;
    let mask = process::signal_mask();
    let cpus = own.cpus.clone();
    let view = view_of(cores);
    process::before_exec(&mut command, move || {
        process::set_signal_mask(&mask);
        process::give_sigchld_back();
        time::pin_to(&cpus)?;
        process::set_parent_death_signal(libc::SIGKILL)?;
        time::set_timer_slack_ns(FRAME_SLACK_NS)?;
        let problem = view.as_ref().and_then(|view| view.enter().err());
        let errno = problem.and_then(|problem| problem.raw_os_error()).unwrap_or(0);
        let listener = seccomp::install_with_or_without_privilege(&filter)?;
        socket::send_fd(child_end.as_fd(), listener.as_fd(), &errno.to_le_bytes())?;
        drop(listener);
        // Wait until the supervisor listens.
        let mut go = [0u8; 1];
        socket::recv_fd(child_end.as_fd(), &mut go).map(|_| ())
    });
    forward_signals();
    let (child, has_filter) = std::thread::scope(|s| {
        let waiting = s.spawn(|| -> io::Result<bool> {
            // For which it has no view of its cores; 0 where it has one or needs none.
            let mut errno = [0u8; 4];
            let (n, fd) = socket::recv_fd(ours.as_fd(), &mut errno)?;
            let (true, Some(listener)) = (n > 0, fd) else { return Ok(false) };
            if errno != [0; 4] {
                tell_of_no_view(&io::Error::from_raw_os_error(i32::from_le_bytes(errno)).to_string());
            }
            supervisor.add(listener, node.clone());
            socket::send(ours.as_fd(), b"G").map(|_| true)
        });
        let child = command.spawn();
        // The child's copies are gone or used: an early failure ends the handshake.
        drop(command);
        drop(theirs);
        let has_filter = waiting.join().is_ok_and(|r| r.unwrap_or(false));
        (child, has_filter)
    });
    let child = child.map_err(|source| not_started(program, source, has_filter, &mut supervisor))?;
    let pid = child.id() as i32;
    CHILD.store(pid, Ordering::Relaxed);
    let status = wait_for(pid);
    let ended = lab.now();
    let left = end_the_rest(pid);
    if left > 0 {
        eprintln!(
            "diecast: {left} processes were still running when the command ended; they were ended with their frame"
        );
    }
    drop((probe, awake, watch, own));
    if metered {
        let free = ledger::finish_of(node.page().entries(), 0, VirtNs(0), 0);
        let escaped_ns = node.page().counters.charged_by_supervisor_ns.load(Ordering::Relaxed);
        let escaped_v_ns = node.page().slowness().mul_floor(escaped_ns);
        doubts.extend(doubt_of_debt(ended.since(began).0, free.0.saturating_sub(ended.0), escaped_v_ns));
    }
    supervisor.stop();
    let counts = supervisor.counts();
    let p = node.page();
    if counts.outside.load(Ordering::Relaxed) > 0 {
        doubts.extend(counts.problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter().cloned());
    }
    if p.counters.fault.load(Ordering::Relaxed) != 0 {
        doubts.push(format!(
            "a blob reported fault {} (detail {})",
            p.counters.fault.load(Ordering::Relaxed),
            p.counters.fault_detail.load(Ordering::Relaxed)
        ));
    }
    let unslotted = p.counters.no_slot.load(Ordering::Relaxed);
    if unslotted > 0 {
        doubts.push(format!(
            "{unslotted} hits were charged to nobody, since other threads had all slots for theirs: a frame has {SLOTS_MAX} in all"
        ));
    }
    if metered && !count_kernel {
        doubts.extend(doubt_of_kernel(time::children_cpu_ns()));
    }
    if o.stats {
        print_stats(&node, counts);
    }
    Ok(Ended { status, doubts })
}

/// Hits that come of time in user mode only are this much rarer than the grain asks for, where programs spend as much of their
/// time in the kernel.
const KERNEL_PART_MAX: f64 = 0.5;
/// What an exec and the begin of a program take there is no reason yet, ns.
const KERNEL_LEAST_NS: u64 = 100_000_000;

/// What is wrong with a frame of such hits whose programs used so much, ns in user mode and in the kernel.
fn doubt_of_kernel((user_ns, kernel_ns): (u64, u64)) -> Option<String> {
    let part = kernel_ns as f64 / (user_ns + kernel_ns).max(1) as f64;
    (part > KERNEL_PART_MAX && kernel_ns > KERNEL_LEAST_NS).then(|| {
        format!(
            "{:.0} % of the CPU time was in the kernel, where the meter hits nobody on this host: it was charged late, in lumps; \
             sysctl kernel.perf_event_paranoid=1, or run as root",
            part * 100.0
        )
    })
}

/// A frame's first core is free later than its command has ended, by more than this and such a part of its time: what a hit
/// and a window of the watch leave is less.
const DEBT_LEAST_V_NS: u64 = 50_000_000;
const DEBT_PART: u64 = 10;

/// What is wrong with a frame of so much virtual time whose command ended so much before the work that it was charged, where most of
/// that can be what escaped its hits, ns.
fn doubt_of_debt(passed_v_ns: u64, debt_v_ns: u64, escaped_v_ns: u64) -> Option<String> {
    let is_much = debt_v_ns > DEBT_LEAST_V_NS.max(passed_v_ns / DEBT_PART);
    (is_much && escaped_v_ns > debt_v_ns / 2).then(|| {
        format!(
            "it ended {:.0} ms before its CPU time allows, after {:.0}: processes that are too short for the meter to hit wait \
             for nobody; try a finer --grain",
            debt_v_ns as f64 / 1e6,
            passed_v_ns as f64 / 1e6
        )
    })
}

/// Whose fault it is that the command did not start: the filter's, the supervisor's, or its own.
fn not_started(program: String, source: io::Error, has_filter: bool, supervisor: &mut Supervisor) -> FrameError {
    if !has_filter {
        return FrameError::Host { what: "installing the seccomp filter of a frame", source };
    }
    supervisor.stop();
    let problems = supervisor.counts().problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match problems.first().cloned() {
        Some(problem) => FrameError::Frame { program, problem },
        None => FrameError::Program { program, source },
    }
}

fn print_stats(node: &Arc<NodeFrame>, counts: &diecast_host_supervisor::Counts) {
    let k = &node.page().counters;
    let g = |a: &std::sync::atomic::AtomicU64| a.load(Ordering::Relaxed);
    eprintln!(
        "diecast: execs {} ({} failed, mean {} us), traps {}, hits {}, charged {} us and {} us that escaped them, meter cost {} us ({} ns a hit hidden, {} ns a switch), waited {} us, forgiven {} ({} us), clamped {}",
        g(&counts.execs),
        g(&counts.failed_execs),
        g(&counts.exec_ns) / 1000 / g(&counts.execs).max(1),
        g(&k.traps),
        g(&k.hits),
        g(&k.charged_ns) / 1000,
        g(&k.charged_by_supervisor_ns) / 1000,
        g(&k.meter_cost_ns) / 1000,
        node.page().hidden_hit_ns(),
        g(&node.page().switch_cost_ns),
        g(&k.waited_ns) / 1000,
        g(&k.forgiven),
        g(&k.forgiven_v_ns) / 1000,
        g(&k.clamped),
    );
}

/// Waits for the command; meanwhile reaps orphans.
fn wait_for(pid: i32) -> i32 {
    let end = process::pidfd(Tid(pid));
    loop {
        // Without a pidfd it is gone already.
        let ended = end.as_ref().map_or(true, |e| process::poll(&[e.as_raw_fd()], 1000).is_ok_and(|r| r[0] != 0));
        if ended && let Some(status) = process::reap(Tid(pid)).or_else(|| ptrace::ended_while_traced(Tid(pid))) {
            let s = std::process::ExitStatus::from_raw(status);
            return s.code().unwrap_or_else(|| 128 + s.signal().unwrap_or(0));
        }
        reap_zombies(pid);
        if ended {
            // Its tracer has taken its status and not yet said so.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

fn state_of(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Orphans that ended became our children: nobody else takes their status.
fn reap_zombies(except: i32) {
    for p in descendants().unwrap_or_default() {
        if p != except && state_of(p) == Some('Z') {
            let _ = process::reap(Tid(p));
        }
    }
}

/// Ends what the command left behind: without its supervisor it would run free and could not exec.
fn end_the_rest(except: i32) -> usize {
    let mut ended = std::collections::BTreeSet::new();
    for _ in 0..200 {
        reap_zombies(except);
        let rest: Vec<i32> = descendants().unwrap_or_default().into_iter().filter(|p| *p != except).collect();
        if rest.is_empty() {
            break;
        }
        for p in rest {
            if state_of(p) != Some('Z') && process::kill(Tid(p), libc::SIGKILL).is_ok() {
                ended.insert(p);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    ended.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_that_no_hit_leaves_is_a_doubt() {
        const MS: u64 = 1_000_000;
        assert_eq!(doubt_of_debt(5_000 * MS, 40 * MS, 900 * MS), None);
        assert_eq!(doubt_of_debt(5_000 * MS, 400 * MS, 900 * MS), None);
        assert_eq!(doubt_of_debt(17 * MS, 138 * MS, 20 * MS), None, "slices of many threads");
        assert!(doubt_of_debt(17 * MS, 138 * MS, 130 * MS).is_some_and(|text| text.contains("138 ms")));
    }

    #[test]
    fn a_frame_that_may_take_most_of_the_host_is_metered_coarsely() {
        let tdf = |num| Tdf::new(num, 1).expect("a TDF");
        let grain = |tdf, cores, speed_ppm| grain_for(tdf, cores, speed_ppm, 2);
        assert_eq!(grain(tdf(10), 2, 1_000_000), GRAIN_NS_DEFAULT);
        assert_eq!(grain(tdf(2), 2, 1_000_000), GRAIN_NS_DEFAULT, "half of the host");
        assert_eq!(grain(tdf(2), 4, 760_000), GRAIN_NS_WITH_DEBT);
        assert_eq!(grain(tdf(1), 1, 900_000), GRAIN_NS_DEFAULT);
        assert_eq!(grain(tdf(1), u32::MAX, u32::MAX), GRAIN_NS_WITH_DEBT, "no overflow");
    }
}
