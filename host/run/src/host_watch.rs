//! Two threads beside a run: the probe (is the host what it was? what does a hit cost?) and the watch
//! (conservation windows and samples of every node).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use diecast_core_cpu::SpeedWatch;
use diecast_core_journal::{Conservation, FindingKind, HostSpeed, NodeSample, Record, Throttling};
use diecast_core_vtime::{RealNs, VirtSpan};
use diecast_host_supervisor::probe::{self, Hits};
use diecast_host_supervisor::{LabFrame, Monitor, NodeFrame};
use diecast_host_sys::time;

use crate::host_use;
use crate::recorder::Recorder;

/// Real time between two looks of the probe at one core; a look takes about 2 ms.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// Virtual time between two ticks of the watch: its own work must not grow with the TDF, it cools the nodes' caches.
const WATCH_EVERY_V_NS: u64 = 10_000_000;
/// Hits from which the cost of one is taken, of nodes with the same grain and share.
const HIT_COSTS_KEPT: usize = 160;
/// Turns of the work that a thread repeats to keep its core awake; about 50 µs.
const AWAKE_TURNS: u64 = 50_000;
/// Hits without a node to imitate, for the host's speed alone.
const DEFAULT_HITS: Hits = Hits { grain_ns: 500_000, pause_ns: 0 };
/// Hits of each kind before a first estimate is good enough to start programs, kinds that are waited for, and looks
/// after which nothing is.
const FIRST_HITS: usize = 48;
const FIRST_KINDS: usize = 4;
const FIRST_LOOKS_MAX: usize = 200;

/// A thread that is asked to stop, and waited for, when dropped.
pub struct Beside {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Beside {
    pub(crate) fn spawn(name: &str, work: impl FnOnce(&AtomicBool) + Send + 'static) -> std::io::Result<Beside> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&seen))?;
        Ok(Beside { stop, thread: Some(thread) })
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(t) = self.thread.take() {
            t.thread().unpark();
            let _ = t.join();
        }
    }
}

/// Keeps every core awake with a thread that runs only when nothing else wants to (SCHED_IDLE).
///
/// A halted virtual CPU is given to others and comes back with cold caches and TLB: measured here, the same Python work
/// took 1.9 to 3 times its CPU time in a frame at TDF 10 whose core halted between slices, and 1.0 with this. A dilated
/// node sleeps most of the time, a baseline node less, so the error would not cancel.
pub fn keep_awake() -> std::io::Result<Awake> {
    let mut awake = Awake { threads: Vec::new(), slow_ns: BTreeMap::new() };
    for cpu in time::allowed_cpus() {
        let slow_ns = Arc::new(AtomicU64::new(0));
        awake.slow_ns.insert(cpu, slow_ns.clone());
        awake.threads.push(Beside::spawn("awake", move |stop| {
            if time::pin_to(&[cpu]).is_ok() && time::only_when_idle().is_ok() {
                stay_awake(stop, &slow_ns);
            }
        })?);
    }
    Ok(awake)
}

/// Repeats the same work, and notes for how long its core was slow.
fn stay_awake(stop: &AtomicBool, slow_ns: &AtomicU64) {
    let mut speed = SpeedWatch::default();
    let mut last_ns = time::monotonic_ns();
    while !stop.load(Ordering::Relaxed) {
        let cpu_ns = time::thread_cpu_ns();
        std::hint::black_box(probe::fixed_work(AWAKE_TURNS));
        let (cpu_ns, now_ns) = (time::thread_cpu_ns().saturating_sub(cpu_ns), time::monotonic_ns());
        slow_ns.store(speed.worked(cpu_ns, now_ns - last_ns), Ordering::Relaxed);
        last_ns = now_ns;
    }
}

/// The threads that keep cores awake, and what they saw.
pub struct Awake {
    threads: Vec<Beside>,
    slow_ns: BTreeMap<usize, Arc<AtomicU64>>,
}

impl Awake {
    /// For how long each core was slow so far, real ns; 0 for one that no thread keeps awake.
    pub fn slow(&self) -> impl Fn(usize) -> u64 + Send + 'static {
        let slow_ns = self.slow_ns.clone();
        move |core| slow_ns.get(&core).map_or(0, |sum| sum.load(Ordering::Relaxed))
    }
}

impl Drop for Awake {
    /// All are asked to stop before the first is waited for.
    fn drop(&mut self) {
        self.threads.iter().for_each(|t| t.stop.store(true, Ordering::Release));
    }
}

/// Looks at each core in turn, keeps the estimate of a hit's hidden cost fresh in every node, and reports each
/// look to `seen`. Returns once a first estimate exists.
pub fn start_probe(
    nodes: Vec<Arc<NodeFrame>>,
    count_kernel: bool,
    mut seen: impl FnMut(&probe::Look) + Send + 'static,
) -> std::io::Result<Beside> {
    let (ready, first) = std::sync::mpsc::channel::<()>();
    let beside = Beside::spawn("probe", move |stop| {
        let Ok(p) = probe::Probe::new(count_kernel) else { return };
        let cpus = time::allowed_cpus();
        let mut costs: BTreeMap<Hits, Vec<u64>> = BTreeMap::new();
        let (mut looks, mut started) = (0, false);
        while !stop.load(Ordering::Acquire) {
            // One kind of hit in each round, all of them in turn.
            let kinds: BTreeSet<Hits> = nodes.iter().map(|n| n.hits()).collect();
            let turn = looks / cpus.len().max(1) % kinds.len().max(1);
            let kind = kinds.iter().nth(turn).copied().unwrap_or(DEFAULT_HITS);
            for cpu in &cpus {
                let Ok(look) = p.look(*cpu, kind) else { continue };
                costs.entry(kind).or_default().extend(&look.hit_costs_ns);
                looks += 1;
                if started {
                    seen(&look);
                }
            }
            keep_costs(&mut costs, &nodes);
            let known = costs.values().filter(|c| c.len() >= FIRST_HITS).count();
            started |= known >= kinds.len().min(FIRST_KINDS) || looks >= FIRST_LOOKS_MAX;
            if started {
                let _ = ready.send(());
                std::thread::park_timeout(PROBE_EVERY);
            }
        }
    })?;
    let _ = first.recv_timeout(Duration::from_secs(8));
    Ok(beside)
}

/// Keeps the latest costs of each kind of hit, and gives their estimate to the nodes.
fn keep_costs(costs: &mut BTreeMap<Hits, Vec<u64>>, nodes: &[Arc<NodeFrame>]) {
    costs.retain(|kind, _| *kind == DEFAULT_HITS || nodes.iter().any(|n| n.hits() == *kind));
    for latest in costs.values_mut() {
        latest.drain(..latest.len().saturating_sub(HIT_COSTS_KEPT));
    }
    // A kind that was not looked at yet is taken for the mean of all.
    let all: Vec<u64> = costs.values().flatten().copied().collect();
    for n in nodes {
        let own = costs.get(&n.hits()).and_then(|c| probe::hit_cost(c));
        if let Some(cost) = own.or_else(|| probe::hit_cost(&all)) {
            n.page().hit_cost_ns.store(cost, Ordering::Relaxed);
        }
    }
}

/// The probe of a lab: its looks go into the journal.
pub fn start_lab_probe(nodes: Vec<Arc<NodeFrame>>, count_kernel: bool, journal: Recorder) -> std::io::Result<Beside> {
    start_probe(nodes, count_kernel, move |look| {
        let r_ns = RealNs(time::monotonic_ns());
        journal.write(Record::HostSpeed(HostSpeed { core: look.cpu as u32, r_ns, probe_ns: look.work_ns }));
    })
}

/// Reads the counters of all nodes.
pub type Sampler = Box<dyn Fn() -> Vec<(NodeSample, Option<Throttling>)> + Send>;

/// Ticks the monitors and takes samples each `sample_every_virtual_ns`; `slow_ns` says for how long a core was slow.
pub fn start_watch(
    lab: Arc<LabFrame>,
    nodes: Vec<Arc<NodeFrame>>,
    sampler: Sampler,
    slow_ns: impl Fn(usize) -> u64 + Send + 'static,
    sample_every_virtual_ns: u64,
    journal: Recorder,
) -> std::io::Result<Beside> {
    Beside::spawn("watch", move |stop| {
        let mut monitors: Vec<Monitor> = nodes.into_iter().map(Monitor::new).collect();
        let mut next_sample = lab.now();
        loop {
            let last = stop.load(Ordering::Acquire);
            for m in &mut monitors {
                let name = m.node().name.clone();
                if let Ok(Some(w)) = m.tick(&lab) {
                    let (v_ns, _) = journal.now();
                    journal.write(Record::Conservation(Conservation {
                        node: name.clone(),
                        v_ns,
                        charged_ns: w.charged_ns,
                        escaped_ns: w.escaped_ns,
                        used_ns: w.used_ns,
                        meter_cost_ns: w.meter_cost_ns,
                        cold_ns: w.cold_ns,
                    }));
                }
                for t in m.take_unmetered() {
                    let text = format!(
                        "node {name}: thread {} of process {} ({}) used {:.0} ms of CPU time without a hit of the meter",
                        t.tid,
                        t.pid,
                        t.name,
                        t.unhit_ns as f64 / 1e6
                    );
                    journal.finding(FindingKind::ThreadWithoutMeter, Some(&name), 1, text);
                }
            }
            if last || lab.now() >= next_sample {
                let samples = sampler();
                let nodes_ns = samples.iter().map(|(sample, _)| sample.cpu_used_ns).sum();
                if let (false, Ok(look)) = (samples.is_empty(), host_use::look(nodes_ns, &slow_ns)) {
                    journal.write(Record::HostUse(look));
                }
                for (sample, throttling) in samples {
                    journal.write(Record::Sample(sample));
                    if let Some(t) = throttling {
                        journal.write(Record::Throttling(t));
                    }
                }
                next_sample = lab.now().plus(VirtSpan(sample_every_virtual_ns));
            }
            if last {
                return;
            }
            let now = lab.now();
            let pause = lab.r_of(now.plus(VirtSpan(WATCH_EVERY_V_NS))).since(lab.r_of(now)).ns();
            std::thread::park_timeout(Duration::from_nanos(pause.clamp(1_000_000, 1_000_000_000)));
        }
    })
}
