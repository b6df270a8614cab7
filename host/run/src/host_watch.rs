//! Two threads beside a run: the probe (is the host what it was? what does a hit cost?) and the watch
//! (conservation windows and samples of every node).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use diecast_core_cpu::{SpeedWatch, undisturbed_ns};
use diecast_core_journal::{
    Conservation, FindingKind, HostSpeed, NodeSample, Record, Stall, Stalls, Throttling, Waits,
};
use diecast_core_vtime::{RealNs, Tdf, VirtNs, VirtSpan};
use diecast_host_egress::Egress;
use diecast_host_node::IdleGroup;
use diecast_host_supervisor::probe::{self, Hits};
use diecast_host_supervisor::{LabFrame, Monitor, NodeFrame};
use diecast_host_sys::{idle, time};

use crate::host_use;
use crate::recorder::Recorder;

/// Real time between two looks of the probe at one core. One without hits takes about 0.4 ms, one with them 2 ms more.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// Real time between two looks with hits at TDF 1, ns. At TDF 10 a tenth of it: what programs lose by a look is less there
/// in virtual time, and their meters hit as often in less of it.
const HITS_EVERY_NS: f64 = 5e9;
/// Virtual time between two ticks of the watch: its own work must not grow with the TDF, it cools the nodes' caches.
const WATCH_EVERY_V_NS: u64 = 10_000_000;
/// Virtual time that a program's start takes at most: some 2 ms of CPU time for a shell, an exec and a linker.
const START_V_NS: u64 = 50_000_000;
/// How often a sample that was asked for is looked for, each after 1 ms.
const SAMPLE_NOW_LOOKS: u32 = 100;
/// Hits from which the cost of one is taken, of nodes with the same grain and share.
const HIT_COSTS_KEPT: usize = 160;
/// Looks from which the cost of a switch is taken.
const SWITCH_COSTS_KEPT: usize = 20;
/// Turns of the work by which a thread sees how fast its core is, about 20 µs, and the parts that are timed.
const AWAKE_TURNS: u64 = 20_000;
const AWAKE_PARTS: usize = 8;
/// Real time between two of them where Linux itself keeps cores from halting, and where no node has a meter to be told.
const AWAKE_REST: Duration = Duration::from_millis(1);
const AWAKE_REST_UNMETERED: Duration = Duration::from_millis(5);
/// By how much a rest may end late, ns, so that it ends with an interrupt that comes anyway, which is mostly a tick of the
/// meters. One of its own takes 10 to 15 us of the program that has the core then.
const AWAKE_SLACK_NS: u64 = 1_000_000;
/// Real time after which what a thread saw of its core is old: others have kept the core from it.
const AWAKE_OLD_NS: u64 = 5_000_000;
/// A look at a core that takes so many times the fastest found the core slow.
const SLOW_LOOK: u64 = 3;
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

    /// Ends its rest.
    fn wake(&self) {
        if let Some(t) = &self.thread {
            t.thread().unpark();
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

/// Keeps every core awake, and tells the meters of `nodes`, and who counts their bursts, when cores are slow. Each node comes
/// with the cores that it may run on, none for all.
///
/// Where the kernel has a driver for idle cores, it is asked to have them poll. Elsewhere a thread on each that runs only
/// when nothing else wants to does (SCHED_IDLE, in an [`IdleGroup`]). Without that group, on cgroup v2, what wakes up a moment
/// after it went to sleep does not always preempt it at once, and was up to 3 ms late here.
///
/// A halted virtual CPU is given to others and comes back with cold caches and TLB: measured here, the same Python work
/// took 1.9 to 3 times its CPU time in a frame at TDF 10 whose core halted between slices, and 1.0 with this. A dilated
/// node sleeps most of the time, a baseline node less, so the error would not cancel.
pub fn keep_awake(nodes: Vec<(Arc<NodeFrame>, Vec<u32>)>, egress: Option<Arc<Egress>>) -> std::io::Result<Awake> {
    let cores: BTreeMap<usize, Core> = time::allowed_cpus().into_iter().map(|cpu| (cpu, Core::default())).collect();
    let polls = idle::driver().and_then(|_| idle::have_cores_poll().ok());
    let metered = nodes.iter().any(|(frame, _)| frame.cpu.metered);
    let rest = polls.is_some().then_some(if metered { AWAKE_REST } else { AWAKE_REST_UNMETERED });
    let behind = if rest.is_none() { IdleGroup::find().ok().map(Arc::new) } else { None };
    let mut awake = Awake { threads: Vec::new(), seen: Arc::new(Seen { cores, nodes, egress }), behind, _polls: polls };
    for cpu in time::allowed_cpus() {
        let (seen, behind) = (awake.seen.clone(), awake.behind.clone());
        awake.threads.push(Beside::spawn(host_use::AWAKE, move |stop| {
            let _ = time::set_timer_slack_ns(AWAKE_SLACK_NS);
            let _ = behind.map(|group| group.join());
            if time::pin_to(&[cpu]).is_ok() && time::only_when_idle().is_ok() {
                stay_awake(stop, cpu, &seen, rest);
            }
        })?);
    }
    Ok(awake)
}

/// Repeats the same work, with rests or without, and notes for how long its core was slow.
fn stay_awake(stop: &AtomicBool, cpu: usize, seen: &Seen, rest: Option<Duration>) {
    let mut speed = SpeedWatch::default();
    let mut last_ns = time::monotonic_ns();
    while !stop.load(Ordering::Relaxed) {
        let mut now_ns = time::monotonic_ns();
        let parts_ns: [u64; AWAKE_PARTS] = std::array::from_fn(|_| {
            std::hint::black_box(probe::fixed_work(AWAKE_TURNS / AWAKE_PARTS as u64));
            let began_ns = std::mem::replace(&mut now_ns, time::monotonic_ns());
            now_ns - began_ns
        });
        let slow_ns = speed.worked(undisturbed_ns(parts_ns), now_ns - last_ns);
        last_ns = now_ns;
        if let Some(core) = seen.cores.get(&cpu) {
            core.slow_ns.store(slow_ns, Ordering::Relaxed);
            core.seen_ns.store(now_ns, Ordering::Relaxed);
            if let Some(discount) = speed.discount() {
                let before = core.discount.swap(discount, Ordering::Relaxed);
                seen.tell(cpu, before != discount, now_ns);
                seen.tell_learner((before == 0) != (discount == 0));
            }
        }
        // Who has just woken up need not wait for a whole slice.
        rest.map_or_else(std::thread::yield_now, std::thread::park_timeout);
    }
}

/// What the thread on a core saw of it.
#[derive(Default)]
struct Core {
    /// For how long the core was slow so far, real ns.
    slow_ns: AtomicU64,
    /// [`SpeedWatch::discount`] now.
    discount: AtomicU32,
    /// CLOCK_MONOTONIC of the last look.
    seen_ns: AtomicU64,
}

/// What all threads that keep cores awake saw, and the nodes that are told.
struct Seen {
    cores: BTreeMap<usize, Core>,
    nodes: Vec<(Arc<NodeFrame>, Vec<u32>)>,
    egress: Option<Arc<Egress>>,
}

impl Seen {
    /// Tells nodes what `cpu` has just been seen to do: its own, and, when that is news, those whose cores are too busy to
    /// be seen: on this host all cores slow down together. The next look at a node's own core has the last word.
    fn tell(&self, cpu: usize, news: bool, now_ns: u64) {
        let Some(core) = self.cores.get(&cpu) else { return };
        let discount = core.discount.load(Ordering::Relaxed);
        for (frame, cores) in &self.nodes {
            let own = cores.is_empty() || cores.contains(&(cpu as u32));
            let told = &frame.page().slow_discount;
            if (own || news && cores.iter().all(|c| self.is_old(*c, now_ns)))
                && told.load(Ordering::Relaxed) != discount
            {
                told.store(discount, Ordering::Relaxed);
            }
        }
    }

    /// Tells who counts bursts whether any core is slow, when one of them has `changed`.
    fn tell_learner(&self, changed: bool) {
        if let (true, Some(egress)) = (changed, &self.egress) {
            // Refused by a kernel that took it before: bursts on slow cores are counted then.
            let _ = egress.set_slow(self.cores.values().any(|c| c.discount.load(Ordering::Relaxed) != 0));
        }
    }

    fn is_old(&self, cpu: u32, now_ns: u64) -> bool {
        let seen_ns = self.cores.get(&(cpu as usize)).map_or(0, |c| c.seen_ns.load(Ordering::Relaxed));
        now_ns.saturating_sub(seen_ns) > AWAKE_OLD_NS
    }
}

/// The threads that keep cores awake, and what they saw.
pub struct Awake {
    threads: Vec<Beside>,
    seen: Arc<Seen>,
    /// Where the threads are, to go after them.
    behind: Option<Arc<IdleGroup>>,
    _polls: Option<File>,
}

impl Awake {
    /// For how long each core was slow so far, real ns; 0 for one that no thread keeps awake.
    pub fn slow(&self) -> impl Fn(usize) -> u64 + Send + 'static {
        let seen = self.seen.clone();
        move |core| seen.cores.get(&core).map_or(0, |c| c.slow_ns.load(Ordering::Relaxed))
    }
}

impl Drop for Awake {
    /// All are asked to stop before the first is waited for, and nodes are charged all of their CPU time again.
    fn drop(&mut self) {
        self.threads.iter().for_each(|t| t.stop.store(true, Ordering::Release));
        self.threads.clear();
        self.seen.nodes.iter().for_each(|(frame, _)| frame.page().slow_discount.store(0, Ordering::Relaxed));
    }
}

/// Looks at each core in turn, keeps the estimate of a hit's hidden cost fresh in every metered node, and reports each
/// look to `seen`. Returns once a first estimate exists. Where no node is metered it only looks when nothing else wants the
/// core.
pub fn start_probe(
    tdf: Tdf,
    nodes: Vec<Arc<NodeFrame>>,
    mut seen: impl FnMut(&probe::Look) + Send + 'static,
) -> std::io::Result<Beside> {
    let nodes: Vec<Arc<NodeFrame>> = nodes.into_iter().filter(|n| n.cpu.metered).collect();
    let (ready, first) = std::sync::mpsc::channel::<()>();
    let beside = Beside::spawn("probe", move |stop| {
        // The same for all of a lab's.
        let count_kernel = nodes.iter().all(|n| n.cpu.count_kernel);
        let ticks = nodes.iter().find_map(|n| n.ticks().cloned());
        let Ok(p) = probe::Probe::new(ticks, count_kernel) else { return };
        let cpus = time::allowed_cpus();
        let mut costs: BTreeMap<Hits, Costs> = BTreeMap::new();
        let mut fastest_ns: BTreeMap<usize, u64> = BTreeMap::new();
        let (mut looks, mut rounds, mut started, mut next_hits_ns) = (0, 0, false, 0);
        if nodes.is_empty() {
            // Refused, it is as others are.
            let _ = time::only_when_idle();
        }
        while !stop.load(Ordering::Acquire) {
            // One kind of hit in each round, all of them in turn.
            let kinds: BTreeSet<Hits> = nodes.iter().map(|n| n.hits()).collect();
            let now_ns = time::monotonic_ns();
            let with_hits = !started || now_ns >= next_hits_ns;
            let kind = kinds.iter().nth(rounds % kinds.len().max(1)).copied().filter(|_| with_hits);
            if with_hits {
                rounds += 1;
                next_hits_ns = now_ns + (HITS_EVERY_NS / tdf.as_f64()) as u64;
            }
            for cpu in &cpus {
                let Ok(look) = p.look(*cpu, kind) else { continue };
                let fastest = fastest_ns.entry(*cpu).or_insert(look.work_ns);
                *fastest = look.work_ns.min(*fastest);
                // What hits cost on a slow core is no cost that nodes are charged for.
                if let (Some(kind), true) = (kind, look.work_ns < fastest.saturating_mul(SLOW_LOOK)) {
                    let known = costs.entry(kind).or_default();
                    known.hits.extend(&look.hit_costs_ns);
                    known.rests.extend(&look.hit_rests_ns);
                    known.switches.extend(p.switch_cost_ns(kind.grain_ns).ok().flatten());
                }
                looks += 1;
                if started {
                    seen(&look);
                }
            }
            keep_costs(&mut costs, &nodes);
            let known = costs.values().filter(|c| c.hits.len() >= FIRST_HITS).count();
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

/// What was seen of one kind of hits.
#[derive(Default)]
struct Costs {
    /// Of each hit, ns.
    hits: Vec<u64>,
    /// The same without what lies between the clock's interrupt and the handler.
    rests: Vec<u64>,
    /// What an event adds to a switch: one mean for each look, ns.
    switches: Vec<u64>,
}

impl Costs {
    fn keep_latest(&mut self) {
        self.hits.drain(..self.hits.len().saturating_sub(HIT_COSTS_KEPT));
        self.rests.drain(..self.rests.len().saturating_sub(HIT_COSTS_KEPT));
        self.switches.drain(..self.switches.len().saturating_sub(SWITCH_COSTS_KEPT));
    }

    /// The median: whatever else the core did then is in both sides of a look's difference.
    fn switch(&self) -> Option<u64> {
        let mut sorted = self.switches.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

/// Keeps the latest costs of each kind of hit, and gives their estimate to the nodes.
fn keep_costs(costs: &mut BTreeMap<Hits, Costs>, nodes: &[Arc<NodeFrame>]) {
    costs.retain(|kind, _| nodes.iter().any(|n| n.hits() == *kind));
    costs.values_mut().for_each(Costs::keep_latest);
    // A kind that was not looked at yet is taken for all of them.
    let all: Vec<u64> = costs.values().flat_map(|c| &c.hits).copied().collect();
    for n in nodes {
        let own = costs.get(&n.hits());
        if let Some(cost) = own.and_then(|c| probe::hit_cost(&c.hits)).or_else(|| probe::hit_cost(&all)) {
            n.page().hit_cost_ns.store(cost, Ordering::Relaxed);
        }
        if let Some(rest) = own.and_then(|c| probe::hit_cost(&c.rests)) {
            n.page().hit_rest_ns.store(rest, Ordering::Relaxed);
        }
        // That depends on the grain alone, whatever the hits' sleeps are.
        let same_grain = costs.iter().find(|(kind, c)| kind.grain_ns == n.cpu.grain_ns && !c.switches.is_empty());
        if let Some(cost) = own.and_then(Costs::switch).or_else(|| same_grain.and_then(|(_, c)| c.switch())) {
            n.page().switch_cost_ns.store(cost, Ordering::Relaxed);
        }
    }
}

/// The probe of a lab: its looks go into the journal.
pub fn start_lab_probe(tdf: Tdf, nodes: Vec<Arc<NodeFrame>>, journal: Recorder) -> std::io::Result<Beside> {
    start_probe(tdf, nodes, move |look| {
        let r_ns = RealNs(time::monotonic_ns());
        journal.write(Record::HostSpeed(HostSpeed { core: look.cpu as u32, r_ns, probe_ns: look.work_ns }));
    })
}

/// The counters of a node at one instant.
pub struct Sample {
    pub node: NodeSample,
    pub throttling: Option<Throttling>,
    /// With causes, where BPF programs tell them.
    pub waits: Option<Waits>,
}

/// Reads the counters of all nodes.
pub type Sampler = Box<dyn Fn() -> Vec<Sample> + Send>;

/// What a node's monitor knows of its waits: one sum, no causes.
fn without_causes(monitors: &[Monitor], sample: &NodeSample) -> Option<Waits> {
    let monitor = monitors.iter().find(|m| m.node().name == sample.node)?;
    Some(Waits { node: sample.node.clone(), v_ns: sample.v_ns, waited_ns: monitor.waited_ns(), causes: None })
}

/// When cores were kept from the lab since this was last asked; none where that is not watched.
fn stalls(egress: &Egress) -> Option<Stalls> {
    let stall = |s: diecast_host_egress::Stall| Stall { core: s.core, r_from_ns: s.from, r_to_ns: s.to, by: s.by };
    let stalls = egress.take_stalls()?.into_iter().map(stall).collect();
    Some(Stalls { r_ns: RealNs(time::monotonic_ns()), stalls, r_lost_ns: egress.lost_stalls_ns() })
}

/// The watch of a lab.
pub struct Watch {
    thread: Beside,
    /// Samples that were asked for, and those of them that were taken.
    asked: Arc<(AtomicU32, AtomicU32)>,
    /// The virtual instant from which conservation windows are to close, ns; none of them [`u64::MAX`].
    close_v_ns: Arc<AtomicU64>,
}

impl Watch {
    /// Has every node's conservation window end soon, while measuring but after the start of programs at this instant, so that none
    /// that counts reaches back to that.
    pub fn measuring_begins(&self, started: VirtNs) {
        self.close_v_ns.store(started.plus(VirtSpan(START_V_NS)).0, Ordering::Release);
        self.thread.wake();
    }

    /// Takes a sample before it returns, so that what a phase used begins and ends with it. Gives up after a while: the
    /// samples before and after will do.
    pub fn sample_now(&self) {
        let (asked, taken) = &*self.asked;
        let mine = asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.thread.wake();
        for _ in 0..SAMPLE_NOW_LOOKS {
            if taken.load(Ordering::Acquire) >= mine {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Ticks the monitors and takes samples each `sample_every_virtual_ns`; `slow_ns` says for how long a core was slow, `stamps` when
/// one was kept from a lab without meters.
pub fn start_watch(
    lab: Arc<LabFrame>,
    mut monitors: Vec<Monitor>,
    sampler: Sampler,
    slow_ns: impl Fn(usize) -> u64 + Send + 'static,
    stamps: Option<Arc<Egress>>,
    sample_every_virtual_ns: u64,
    journal: Recorder,
) -> std::io::Result<Watch> {
    let asked = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
    let told = asked.clone();
    let close_v_ns = Arc::new(AtomicU64::new(u64::MAX));
    let close = close_v_ns.clone();
    let thread = Beside::spawn("watch", move |stop| {
        let mut next_sample = lab.now();
        loop {
            let last = stop.load(Ordering::Acquire);
            if lab.now().0 >= close.load(Ordering::Acquire) {
                close.store(u64::MAX, Ordering::Release);
                monitors.iter_mut().for_each(Monitor::close);
            }
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
                        slow_ns: w.slow_ns,
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
            let (asked, taken) = (told.0.load(Ordering::Acquire), told.1.load(Ordering::Relaxed));
            if last || asked != taken || lab.now() >= next_sample {
                let samples = sampler();
                let nodes_ns = samples.iter().map(|sample| sample.node.cpu_used_ns).sum();
                if let (false, Ok(look)) = (samples.is_empty(), host_use::look(nodes_ns, &slow_ns)) {
                    journal.write(Record::HostUse(look));
                }
                if let Some(found) = stamps.as_deref().and_then(stalls) {
                    journal.write(Record::Stalls(found));
                }
                for Sample { node, throttling, waits } in samples {
                    let waits = waits.or_else(|| without_causes(&monitors, &node));
                    journal.write(Record::Sample(node));
                    throttling.into_iter().for_each(|t| journal.write(Record::Throttling(t)));
                    waits.into_iter().for_each(|w| journal.write(Record::Waits(w)));
                }
                next_sample = lab.now().plus(VirtSpan(sample_every_virtual_ns));
                told.1.store(asked, Ordering::Release);
            }
            if last {
                return;
            }
            let now = lab.now();
            let pause = lab.r_of(now.plus(VirtSpan(WATCH_EVERY_V_NS))).since(lab.r_of(now)).ns();
            std::thread::park_timeout(Duration::from_nanos(pause.clamp(1_000_000, 1_000_000_000)));
        }
    })?;
    Ok(Watch { thread, asked, close_v_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use diecast_core_vtime::Tdf;
    use diecast_host_supervisor::CpuConfig;

    const MS: u64 = 1_000_000;

    fn node(lab: &LabFrame) -> Arc<NodeFrame> {
        let cpu = CpuConfig { metered: true, ..CpuConfig::PLAIN };
        NodeFrame::create(lab, "a", cpu, Box::new(|| Ok(Vec::new())), None).unwrap()
    }

    #[test]
    fn nodes_on_a_slow_core_are_told_and_those_on_a_core_too_busy_to_be_seen() {
        let lab = LabFrame::start("10".parse::<Tdf>().unwrap());
        let (on_0, on_1, anywhere) = (node(&lab), node(&lab), node(&lab));
        let nodes = vec![(on_0.clone(), vec![0]), (on_1.clone(), vec![1]), (anywhere.clone(), Vec::new())];
        let seen = Seen { cores: [(0, Core::default()), (1, Core::default())].into(), nodes, egress: None };
        let told = || [&on_0, &on_1, &anywhere].map(|n| n.page().slow_discount.load(Ordering::Relaxed));
        let look = |cpu: usize, now_ns: u64, discount: u32| {
            seen.cores[&cpu].seen_ns.store(now_ns, Ordering::Relaxed);
            let before = seen.cores[&cpu].discount.swap(discount, Ordering::Relaxed);
            seen.tell(cpu, before != discount, now_ns);
            told()
        };
        assert_eq!(look(1, 10 * MS, 0), [0, 0, 0]);
        // Core 1 was seen at its usual speed a moment ago, then not for a while.
        assert_eq!(look(0, 10 * MS + 100_000, 50_000), [50_000, 0, 50_000]);
        assert_eq!(look(0, 16 * MS, 51_000), [51_000, 51_000, 51_000]);
        // What its own core shows has the last word, even when that is no news to the core.
        assert_eq!(look(1, 16 * MS + 100_000, 0), [51_000, 0, 0]);
        assert_eq!(look(0, 16 * MS + 200_000, 0), [0, 0, 0]);
    }
}
