//! One run of a plan: set up, start, warm up, measure, drain, tear down.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diecast_core_cpu::Sent;
use diecast_core_experiment::{Mode, Protocol};
use diecast_core_journal::{FindingKind, Header, MeterFacts, NodeFacts, Outcome, Phase, Record};
use diecast_core_plan::{CpuLoad, GRAIN_NS_WITH_DEBT, HOST_ADDRESS, HOST_NAME, Plan, PlannedNode, Role, Tsc, WayFrom};
use diecast_core_report::{PLAN_FILE, RunSummary};
use diecast_core_vtime::{RealNs, VirtNs, VirtSpan};
use diecast_host_egress::{Egress, EgressError};
use diecast_host_net::{
    Backlog, EgressLedger, Emulator, EmulatorConfig, LARGE_KEY_BYTES, NicKind, ReceiveLedger, SharedFrame,
    TRAILER_BYTES, Way, WayEnd, add_nic, create_netns, nic_device, prepare_node_with, receive_on,
};
use diecast_host_node::{LabDir, Node, NodeFile, NodeSpec, Quota};
use diecast_host_supervisor::{
    ClockChange, CpuConfig, HitsFrom, INTERRUPTS_NEED, LabFrame, Meters, Monitor, NodeFrame, Supervisor,
    interrupt_cost_ns,
};
use diecast_host_sys::{process, time};
use diecast_host_tcp::InitialRto;
use diecast_host_tick::Cadence;

use crate::arrivals::Arrivals;
use crate::facts::host_facts;
use crate::host_watch::{self, Beside};
use crate::kernel_times::KernelTimes;
use crate::live::Live;
use crate::pace::World;
use crate::pipe_log::PipeLog;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::results;
use crate::running::{Running, WORK_DIR};
use crate::sysctls::SysctlNotes;

/// Real-time priority of the emulator's thread.
const EMULATOR_PRIORITY: u8 = 50;
/// A flow of datagrams through the gateway ends when it has been idle so long by the slower of both clocks.
const UDP_IDLE: Duration = Duration::from_secs(60);
/// Virtual time between two samples of a node.
const SAMPLE_EVERY_V_NS: u64 = 250_000_000;

/// How a plan is run.
pub struct RunOptions<'a> {
    /// Results go here; made if it is missing.
    pub out: &'a Path,
    /// The catalog's folder: its files' paths are relative to it.
    pub base: &'a Path,
    /// The catalog's text, for its hash.
    pub catalog_text: &'a str,
    pub progress: &'a Progress,
    /// Write down everything that comes into the network.
    pub record_arrivals: bool,
    /// Threads of the emulator.
    pub emulator_threads: usize,
    /// What the meter's hits come from.
    pub hits_from: HitsFrom,
    /// Run at a lower TDF for a moment of the warm-up, where the host has room.
    pub probe: bool,
}

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The text of a command or catalog is at fault: exit 2.
    #[error("{0}")]
    Text(String),
    /// The host can't: exit 3.
    #[error("{0}")]
    Host(String),
}

impl RunError {
    pub(crate) fn host<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> RunError + '_ {
        move |e| RunError::Host(format!("{what}: {e}"))
    }
}

/// What a finished run gives; its files are in the directory.
#[derive(Debug)]
pub struct Ran {
    pub directory: PathBuf,
    pub summary: RunSummary,
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether the user asked to stop.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Takes note of Ctrl-C and its like instead of ending; tells whether it came.
pub fn on_interrupt() -> impl Fn() -> bool {
    for s in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        process::on_signal(s, interrupt);
    }
    interrupted
}

/// Everything that lives while a lab does, in the order in which it must be torn down.
pub(crate) struct Lab {
    pub frame: Arc<LabFrame>,
    pub journal: Recorder,
    pub emulator: Emulator,
    pub pipes: Arc<PipeLog>,
    pub live: Arc<Live>,
    pub arrivals: Option<Arrivals>,
    pub nodes: Vec<Node>,
    pub netns: Vec<Arc<OwnedFd>>,
    /// By node, where the mode has an envelope.
    pub frames: Vec<Option<Arc<NodeFrame>>>,
    pub supervisor: Supervisor,
    /// In the order of the plan's.
    pub gateway: Vec<Way>,
    pub egress: Option<Arc<Egress>>,
    /// The same, or where nobody is metered that by which frames tell when they left.
    stamps: Option<Arc<Egress>>,
    /// Cookies of the nodes' namespaces, by node, where packets tell their senders.
    pub cookies: Vec<u64>,
    /// Of the cores that receive for nodes without a meter.
    pub backlog: Backlog,
}

/// Runs a plan. An experiment that fails is no error here: the summary says so. A run that is refused leaves no
/// directory that was not there before.
pub fn run(plan: &Plan, o: &RunOptions<'_>) -> Result<Ran, RunError> {
    let missing: Vec<&Path> = o.out.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).collect();
    let ran = run_whole(plan, o);
    if let (Err(_), Some((own, parents))) = (&ran, missing.split_first()) {
        let _ = std::fs::remove_dir_all(own);
        // Only those that are empty again.
        parents.iter().for_each(|p| drop(std::fs::remove_dir(p)));
    }
    ran
}

fn run_whole(plan: &Plan, o: &RunOptions<'_>) -> Result<Ran, RunError> {
    if let Some(who) = diecast_host_doctor::lab_privileges().fault() {
        return Err(RunError::Host(format!(
            "a lab needs root with its capabilities, for namespaces, TAP devices and control groups; this is {who}\n  \
             hint: `diecast doctor` lists what is missing"
        )));
    }
    let _ = on_interrupt();
    let files = read_files(plan, o.base)?;
    results::prepare(o.out)?;
    let write =
        |name: &str, text: String| std::fs::write(o.out.join(name), text).map_err(RunError::host("writing results"));
    write(PLAN_FILE, diecast_core_report::to_json(plan))?;
    o.progress.phase("setting up nodes and network");
    process::raise_descriptor_limit();

    let dir = LabDir::create().map_err(|e| RunError::Host(format!("making the lab's state: {e}")))?;
    let lab = set_up(plan, o, &dir, files)?;
    let frames: Vec<Arc<NodeFrame>> = lab.frames.iter().flatten().cloned().collect();
    let on_cores = |(frame, node): (&Option<Arc<NodeFrame>>, &PlannedNode)| Some((frame.clone()?, node.cpus.clone()));
    let told = lab.frames.iter().zip(&plan.nodes).filter_map(on_cores).collect();
    tell_interrupts(&frames, &lab.journal);
    let awake = host_watch::keep_awake(told, lab.egress.clone())
        .map_err(RunError::host("starting threads that keep cores awake"))?;
    let probe = host_watch::start_lab_probe(plan.tdf, frames.clone(), lab.journal.clone())
        .map_err(RunError::host("starting the host probe"))?;
    let watch = host_watch::start_watch(
        lab.frame.clone(),
        monitors(&lab),
        results::sampler(plan, &lab),
        awake.slow(),
        lab.stamps.clone(),
        SAMPLE_EVERY_V_NS,
        lab.journal.clone(),
    )
    .map_err(RunError::host("starting the watch"))?;

    let learning = start_learning(&lab)?;

    let mut running = Running::new(plan, &lab, o, &watch);
    let outcome = running.carry_out();
    lab.live.ends();
    let outcome = match outcome {
        Ok(()) => Outcome::Completed,
        Err(e) => match e {
            crate::running::Stop::Failed(reason) => Outcome::Failed { reason },
            crate::running::Stop::Host(text) => {
                drop((watch, probe, awake, learning));
                let _ = Node::stop_all(lab.nodes);
                let _ = dir.remove();
                return Err(RunError::Host(text));
            }
        },
    };
    o.progress.phase("collecting results");
    lab.journal.phase(Phase::TearDown);
    let measured = running.measured();
    drop(running);
    drop((watch, probe, awake, learning));
    let outcome = results::collect(plan, &lab, o.out, &measured, outcome);
    let Lab { journal, emulator, arrivals, nodes, supervisor, gateway, netns, frames, egress, stamps, .. } = lab;
    drop(gateway);
    let _ = Node::stop_all(nodes);
    drop((emulator, supervisor, frames, netns, egress, stamps));
    arrivals.map_or(Ok(()), Arrivals::finish).map_err(RunError::host("recording arrivals"))?;
    let summary = results::finish(&journal, o.out, outcome)?;
    dir.remove().map_err(|e| RunError::Host(format!("removing the lab's state: {e}")))?;
    Ok(Ran { directory: o.out.to_owned(), summary })
}

/// The catalog's files by node, read before anything is made.
fn read_files(plan: &Plan, base: &Path) -> Result<BTreeMap<String, Vec<NodeFile>>, RunError> {
    use std::os::unix::fs::PermissionsExt;
    let mut out: BTreeMap<String, Vec<NodeFile>> = BTreeMap::new();
    for n in &plan.nodes {
        let all = n.programs.iter().flat_map(|p| &p.files).chain(n.load.iter().flat_map(|l| &l.files));
        for f in all {
            let path = base.join(&f.source);
            let at = |e: std::io::Error| {
                RunError::Text(format!(
                    "{}:{}:{}: cannot read {}: {e}\n  hint: paths are relative to the catalog's folder",
                    plan.catalog, f.line, f.column, f.source
                ))
            };
            let mode = std::fs::metadata(&path).map_err(at)?.permissions().mode() & 0o777;
            let content = diecast_host_node::Content::Bytes(std::fs::read(&path).map_err(at)?);
            out.entry(n.name.clone()).or_default().push(NodeFile { path: PathBuf::from(&f.path), content, mode });
        }
    }
    Ok(out)
}

fn header(plan: &Plan, o: &RunOptions<'_>, dir: &LabDir, frame: &LabFrame, meter: Option<MeterFacts>) -> Header {
    let r = RealNs(time::monotonic_ns());
    let v = frame.v_of(r);
    let nodes = plan.nodes.iter().map(|n| NodeFacts {
        name: n.name.clone(),
        machine_type: n.machine_type.clone(),
        cores: n.cores,
        speed: n.speed_ppm.0 as f64 / 1e6,
        host_cores: n.cpus.clone(),
        generates_load: n.role == Role::Load,
    });
    Header {
        journal_version: diecast_core_journal::JOURNAL_VERSION,
        diecast_version: env!("CARGO_PKG_VERSION").into(),
        lab: dir.id().to_owned(),
        mode: plan.mode,
        tdf: plan.tdf,
        scale: plan.scale.map_or(1.0, |s| s.ratio().as_f64()),
        speed: plan.speed.0 as f64 / 1e6,
        seed: plan.seed,
        catalog: plan.lab.clone(),
        catalog_hash: diecast_core_journal::hash_text(o.catalog_text),
        parameters: plan.workload.parameters.clone(),
        host: host_facts(),
        meter,
        nodes: nodes.collect(),
        r_start_ns: r,
        v_start_ns: v,
        unix_start_ns: v.0.saturating_add_signed(frame.realtime_offset_ns()),
    }
}

/// How a node knows another, or itself: the name is the NIC in a segment of the node's own, `name.eth1` that NIC.
fn known_as(plan: &Plan, n: &PlannedNode, other: &PlannedNode) -> Vec<(std::net::IpAddr, Vec<String>)> {
    let nic = |ix: &u32| &plan.net.nodes[*ix as usize];
    let near = other.nics.iter().position(|ix| n.nics.iter().any(|own| nic(own).segment == nic(ix).segment));
    let named = |(i, ix): (usize, &u32)| {
        let mut names = Vec::new();
        if i == near.unwrap_or(0) {
            names.push(other.name.clone());
        }
        if other.nics.len() > 1 {
            names.push(format!("{}.{}", other.name, nic_device(i)));
        }
        [(nic(ix).ipv4.into(), names.clone()), (nic(ix).ipv6.into(), names)]
    };
    other.nics.iter().enumerate().flat_map(named).filter(|(_, names)| !names.is_empty()).collect()
}

fn node_spec(plan: &Plan, n: &PlannedNode, netns: OwnedFd, mut files: Vec<NodeFile>) -> NodeSpec {
    files.push(NodeFile::text(format!("{WORK_DIR}/.diecast"), "working directory of programs\n"));
    let hosts = plan.nodes.iter().flat_map(|m| known_as(plan, n, m));
    let reaches_host = plan.gateway.iter().any(|w| w.from == WayFrom::Node && w.node == n.name);
    let host = reaches_host.then(|| (HOST_ADDRESS.into(), vec![HOST_NAME.to_owned()]));
    NodeSpec {
        hostname: Some(n.name.clone()),
        netns: Some(netns),
        memory_bytes: Some(n.memory_bytes),
        cpus: n.cpus.clone(),
        // In a frame its own, numbered from 0; else those that it is pinned to.
        cores: if n.envelope { (0..n.cores).collect() } else { n.cpus.clone() },
        quota: n.quota.map(|q| Quota { quota_us: q.quota_us, period_us: q.period_us }),
        files,
        hosts: hosts.chain(host).collect(),
        ..NodeSpec::new(n.name.clone())
    }
}

/// The programs of a lab without meters: frames only tell when they left, and where no quota holds a node cores when they were kept
/// from it.
fn load_stamps(plan: &Plan, journal: &Recorder) -> Option<Egress> {
    let stalls = plan.nodes.iter().all(|n| n.quota.is_none()).then(Egress::load_stalls);
    let stalls =
        stalls.and_then(|e| loaded(e, "what others take of the cores is not seen, but for whole ticks", journal));
    let without = "packets enter the network when they are read, some 20 us after they left";
    stalls.or_else(|| loaded(Egress::load_stamps(), without, journal))
}

/// Whether a node's own cores receive for this NIC. One with a meter is charged for what the emulator's core does for it.
fn receives_itself(netns: &OwnedFd, nic: usize, n: &PlannedNode, journal: &Recorder) -> bool {
    if n.metered {
        return false;
    }
    let steered = receive_on(netns.as_fd(), &nic_device(nic), &n.cpus);
    if let Err(e) = &steered {
        let text = format!("node {}: its packets are received on the emulator's core, not on its own: {e}", n.name);
        journal.finding(FindingKind::Warning, Some(&n.name), 1, text);
    }
    steered.is_ok()
}

/// Tells metered nodes what the interrupt takes by which a machine at work learns of a packet.
fn tell_interrupts(frames: &[Arc<NodeFrame>], journal: &Recorder) {
    if !frames.iter().any(|f| f.cpu.metered) {
        return;
    }
    let why = match interrupt_cost_ns() {
        Ok(Some(ns)) => return frames.iter().for_each(|f| f.receiver.set_interrupt(ns)),
        Ok(None) => INTERRUPTS_NEED.to_owned(),
        Err(e) => e.to_string(),
    };
    let text = format!("packets interrupt no node: what that takes can't be seen: {why}");
    journal.finding(FindingKind::MissingFeature, None, 1, text);
}

fn loaded(egress: Result<Egress, EgressError>, without: &str, journal: &Recorder) -> Option<Egress> {
    egress.inspect_err(|e| journal.finding(FindingKind::MissingFeature, None, 1, format!("{without}: {e}"))).ok()
}

/// Who watches the nodes, and sees what their threads have told.
fn monitors(lab: &Lab) -> Vec<Monitor> {
    let of_node = |(at, frame): (usize, &Option<Arc<NodeFrame>>)| {
        let monitor = Monitor::new(frame.clone()?);
        let (Some(egress), Some(&cookie)) = (lab.egress.clone(), lab.cookies.get(at)) else { return Some(monitor) };
        let told = move || egress.peek_handed(cookie).into_iter().map(|handed| (handed.by, handed.then)).collect();
        Some(monitor.with_on_the_way(Box::new(told)))
    };
    lab.frames.iter().enumerate().filter_map(of_node).collect()
}

/// The learning of what the CPU time of nodes is that meters must not charge, where packets tell their senders.
fn start_learning(lab: &Lab) -> Result<Option<Beside>, RunError> {
    let Some(egress) = lab.egress.clone() else { return Ok(None) };
    let metered = |(frame, cookie): (&Option<Arc<NodeFrame>>, &u64)| {
        frame.clone().filter(|f| f.cpu.metered).map(|f| (f, *cookie))
    };
    let nodes: Vec<_> = lab.frames.iter().zip(&lab.cookies).filter_map(metered).collect();
    if nodes.is_empty() {
        return Ok(None);
    }
    let started = crate::cold::start_learning(egress, nodes, lab.live.clone());
    started.map(Some).map_err(RunError::host("starting to learn how cold code is"))
}

/// The core with the least of the nodes' shares: where the emulator is in nobody's way, or in that of those who have most
/// left. Of equal ones that with fewer programs besides the load's.
fn emulator_cpu(plan: &Plan) -> Option<usize> {
    let served = |core: &CpuLoad| {
        plan.nodes.iter().filter(|n| core.nodes.contains(&n.name)).map(|n| n.programs.len()).sum::<usize>()
    };
    plan.cpus.iter().min_by_key(|core| (core.share, served(core))).map(|core| core.cpu as usize)
}

/// What was handed on so long ago, real ns, is left to the watch, as all that nobody charges: its thread may have ended, and its
/// slot be free.
const HANDED_MAX_NS: u64 = 500_000_000;

/// The ledgers of a lab's nodes, by NIC, with their namespaces' cookies, and who knows what packets' senders have used.
struct NodeLedgers(Vec<Option<(Arc<NodeFrame>, u64)>>, Option<Arc<Egress>>);

/// `cookies` is empty where nobody is watched.
fn by_nic(plan: &Plan, frames: &[Option<Arc<NodeFrame>>], cookies: &[u64]) -> Vec<Option<(Arc<NodeFrame>, u64)>> {
    let mut out = vec![None; plan.net.nodes.len()];
    for (at, (n, frame)) in plan.nodes.iter().zip(frames).enumerate() {
        let known = frame.clone().map(|frame| (frame, cookies.get(at).copied().unwrap_or_default()));
        n.nics.iter().for_each(|&ix| out[ix as usize] = known.clone());
    }
    out
}

impl NodeLedgers {
    fn metered(&self, nic: usize) -> Option<(&NodeFrame, u64)> {
        let (frame, cookie) = self.0.get(nic)?.as_ref()?;
        frame.cpu.metered.then_some((frame, *cookie))
    }
}

impl EgressLedger for NodeLedgers {
    fn charge_sender(&self, node: usize, sent: &Sent, now: RealNs) -> VirtNs {
        self.metered(node).map_or(VirtNs(0), |(frame, _)| diecast_core_cpu::charge_sender(frame.page(), sent, now))
    }

    fn take_handed(&self, node: Option<usize>, until: RealNs, now: RealNs) -> bool {
        let Some(egress) = &self.1 else { return false };
        // A node that is not metered has threads that tell nothing.
        let of_node = node.and_then(|nic| self.metered(nic)).map(|(_, cookie)| cookie);
        if node.is_some() && of_node.is_none() {
            return false;
        }
        egress.take_handed(of_node, until, |handed| {
            let of_node = self.0.iter().flatten().find(|(frame, cookie)| *cookie == handed.cookie && frame.cpu.metered);
            if let Some((frame, _)) = of_node.filter(|_| now.since(handed.by.at).0 <= HANDED_MAX_NS) {
                diecast_core_cpu::charge_handing(frame.page(), &handed.by, handed.then, now);
            }
        })
    }

    fn handed(&self) -> Option<BorrowedFd<'_>> {
        Some(self.1.as_ref()?.handed())
    }

    fn trailer_of(&self, key: &[u8; LARGE_KEY_BYTES]) -> Option<[u8; TRAILER_BYTES]> {
        self.1.as_ref()?.trailer_of(key)
    }
}

impl ReceiveLedger for NodeLedgers {
    fn charge_receiver(&self, node: usize, bytes: usize, begun: RealNs, ended: RealNs) {
        // Of each frame, whoever is charged: the next one's would not be noted.
        let reached = self.1.as_ref().and_then(|egress| egress.reached_stack(begun)).unwrap_or(begun);
        if let Some((frame, cookie)) = self.metered(node) {
            let runs = || self.1.as_ref().is_some_and(|egress| egress.runs(cookie));
            frame.receiver.charge(frame.page(), bytes, [begun, reached, ended], runs);
        }
    }

    fn hold(&self, node: usize, bytes: usize) -> VirtSpan {
        self.metered(node).map_or(VirtSpan(0), |(frame, _)| frame.receiver.hold(frame.page(), bytes))
    }

    /// Nodes that have received nothing yet have no say.
    fn least_hold(&self) -> VirtSpan {
        let of_nic = |nic| match self.metered(nic) {
            Some((frame, _)) => frame.receiver.least_hold(frame.page()),
            None => Some(VirtSpan(0)),
        };
        (0..self.0.len()).filter_map(of_nic).min().unwrap_or_default()
    }
}

/// The ways between nodes and the host. They are there before the first program and serve when the other end does.
fn open_gateway(plan: &Plan, netns: &[Arc<OwnedFd>]) -> Result<Vec<Way>, RunError> {
    let idle = UDP_IDLE.max(Duration::from_nanos(plan.tdf.to_real(VirtSpan(UDP_IDLE.as_nanos() as u64)).0));
    let open = |way: &diecast_core_plan::PlannedWay| {
        let node = plan.nodes.iter().position(|n| n.name == way.node);
        let in_node = WayEnd { netns: node.map(|at| netns[at].clone()), address: way.in_node };
        let on_host = WayEnd { netns: None, address: way.on_host };
        let (listens, to) = match way.from {
            WayFrom::Host => (on_host, in_node),
            WayFrom::Node => (in_node, on_host),
        };
        let opened = match way.protocol {
            Protocol::Tcp => Way::tcp(&listens, to),
            Protocol::Udp => Way::udp(&listens, to, idle),
        };
        opened.map_err(|e| {
            let hint = "a port that is free: another lab or program may have this one";
            let (catalog, line, column) = (&plan.catalog, way.line, way.column);
            RunError::Host(format!("{catalog}:{line}:{column}: gateway: {way}: {e}\n  hint: {hint}"))
        })
    };
    plan.gateway.iter().map(open).collect()
}

fn set_up(
    plan: &Plan,
    o: &RunOptions<'_>,
    dir: &LabDir,
    mut files: BTreeMap<String, Vec<NodeFile>>,
) -> Result<Lab, RunError> {
    let frame = LabFrame::start(plan.tdf);
    let any_metered = plan.nodes.iter().any(|n| n.envelope && n.metered);
    // Debt at egress, where the plan meters anything and the host allows it.
    let egress = any_metered.then(Egress::load);
    let cadence = if let Some(Ok(_)) = egress { Cadence::told_by_packets } else { Cadence::of_grain };
    let shared = egress.as_ref().and_then(|e| Some(e.as_ref().ok()?.metered()));
    let meters = any_metered.then(|| Meters::start(o.hits_from, cadence(plan.grain_ns), shared)).transpose();
    let meters = meters.map_err(|e| RunError::Host(format!("{e}\n  hint: --hits threads does without")))?;
    let (meters, no_clocks) = meters.unzip();
    let journal = Recorder::create(o.out, frame.clone()).map_err(RunError::host("making the journal"))?;
    let meter = meters.as_ref().and_then(|meters| {
        Some(MeterFacts {
            hits_from: meters.hits_from()?.to_string(),
            grain_ns: plan.grain_ns,
            counts_kernel: meters.count_kernel(),
            packets_tell: matches!(egress, Some(Ok(_))),
        })
    });
    journal.write(Record::Header(header(plan, o, dir, &frame, meter)));
    journal.phase(Phase::SetUp);
    if let Some(why) = no_clocks.flatten().filter(|_| meters.as_ref().is_some_and(Meters::any)) {
        let text = format!(
            "hits come from an event of each thread, which makes switches dearer and leaves nice and real-time priorities without effect: {why}"
        );
        journal.finding(FindingKind::MissingFeature, None, 1, text);
    }
    if meters.as_ref().is_some_and(|meters| meters.any() && !meters.count_kernel()) {
        let text = "the meter does not hit threads in the kernel (see perf_event_paranoid): what they use there is charged late";
        journal.finding(FindingKind::MissingFeature, None, 1, text.to_owned());
    }
    let initial_rto = match InitialRto::attach() {
        Ok(rto) => Some(rto),
        Err(e) => {
            journal.finding(FindingKind::MissingFeature, None, 1, format!("the initial RTO is not dilated: {e}"));
            None
        }
    };
    let egress = egress.and_then(|e| loaded(e, "latencies below the grain are not emulated", &journal)).map(Arc::new);
    let stamps = egress.clone().or_else(|| load_stamps(plan, &journal).map(Arc::new));
    let (mut taps, mut netns, mut specs, mut cookies) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut sysctls, mut receiving) = (SysctlNotes::default(), Vec::<u32>::new());
    for n in &plan.nodes {
        let ns = create_netns().map_err(RunError::host("making a network namespace"))?;
        if let Some(rto) = &initial_rto {
            rto.set(ns.as_fd(), plan.tdf).map_err(RunError::host("setting the initial RTO"))?;
        }
        let watching = stamps.as_ref().filter(|e| egress.is_some() || e.watches_stalls());
        let watched = watching.map(|e| e.add_node(ns.as_fd())).transpose();
        let watched = watched.map_err(RunError::host("watching a node's threads"))?;
        cookies.extend(watched.filter(|_| egress.is_some()));
        let before_up = |nic| stamps.as_ref().map_or(Ok(()), |e| e.attach_here(nic));
        for (i, &ix) in n.nics.iter().enumerate() {
            let net = &plan.net.nodes[ix as usize];
            let subnet = plan.net.subnet.of_segment(net.segment);
            let kind = NicKind { ecn: plan.marks(), ..NicKind::of(&plan.net) };
            let prepared = match i {
                0 => prepare_node_with(ns.as_fd(), net, &subnet, kind, plan.tdf, &before_up),
                _ => add_nic(ns.as_fd(), &nic_device(i), net, &subnet, kind, plan.tdf, &before_up),
            };
            let prepared = prepared.map_err(|e| RunError::Host(format!("making NIC {i} of node {}: {e}", n.name)))?;
            sysctls.add(&prepared.sysctls, plan.tdf);
            taps.push((ix, prepared.tap));
            if receives_itself(&ns, i, n, &journal) {
                receiving.extend(&n.cpus);
            }
        }
        let for_node = ns.try_clone().map_err(RunError::host("copying a descriptor"))?;
        specs.push(node_spec(plan, n, for_node, files.remove(&n.name).unwrap_or_default()));
        netns.push(Arc::new(ns));
    }
    taps.sort_by_key(|(ix, _)| *ix);
    let taps = taps.into_iter().map(|(_, tap)| tap).collect();
    sysctls.write(&journal);
    let nodes = Node::start_all(dir, specs).map_err(|e| {
        let hint = e.hint().map(|h| format!("\n  hint: {h}")).unwrap_or_default();
        RunError::Host(format!("starting nodes: {e}{hint}"))
    })?;
    let (possible, count_kernel) = meters.as_ref().map_or((false, false), |m| (m.any(), m.count_kernel()));
    let mut frames = Vec::new();
    for (n, node) in plan.nodes.iter().zip(&nodes) {
        frames.push(if n.envelope {
            let metered = n.metered && possible;
            if n.metered && !possible {
                journal.finding(
                    FindingKind::ThreadWithoutMeter,
                    Some(&n.name),
                    1,
                    format!(
                        "node {}: no thread has a meter: this host does not allow perf events with sigtrap",
                        n.name
                    ),
                );
            }
            let cpu = CpuConfig {
                cores: n.cores,
                speed_ppm: n.speed_ppm.0 as u32,
                grain_ns: plan.grain_ns,
                contended_grain_ns: if egress.is_some() { GRAIN_NS_WITH_DEBT } else { plan.grain_ns },
                metered,
                count_kernel,
                trap_tsc: plan.tsc == Tsc::Trap,
                site_calls: plan.call_sites,
            };
            let (for_members, for_usage) = (node.cgroup().clone(), node.cgroup().clone());
            let frame_of_node = NodeFrame::create(
                &frame,
                &n.name,
                cpu,
                Box::new(move || {
                    let pids = for_members.procs().map_err(std::io::Error::other)?;
                    Ok(pids.into_iter().map(|p| p as i32).collect())
                }),
                Some(Box::new(move || for_usage.cpu_usage_ns().map_err(std::io::Error::other))),
            )
            .map_err(RunError::host("making a frame's memory"))?;
            if let (true, Some(ticks)) = (metered, meters.as_ref().and_then(Meters::ticks)) {
                frame_of_node.hit_by(ticks);
            }
            for change in [ClockChange::Offset(n.clock.offset_ns), ClockChange::Drift(n.clock.drift_ppb)] {
                if matches!(change, ClockChange::Offset(ns) | ClockChange::Drift(ns) if ns != 0) {
                    let wrong = |e| RunError::Text(format!("clock of node {}: {e}", n.name));
                    frame_of_node.change_clock(&frame, change).map_err(wrong)?;
                }
            }
            frame_of_node.init_pid.store(u64::from(node.init_pid()), Ordering::Relaxed);
            Some(frame_of_node)
        } else {
            None
        });
    }
    let recording = o.record_arrivals.then(|| Arrivals::start(o.out)).transpose();
    let (arrivals, record) = recording.map_err(RunError::host("recording arrivals"))?.unzip();
    let map = Arc::new(SharedFrame::new(frame.map()));
    let ledgers = Arc::new(NodeLedgers(by_nic(plan, &frames, &cookies), stamps.clone()));
    let emulator = Emulator::start(EmulatorConfig {
        spec: plan.net.clone(),
        taps,
        clock: map.clone(),
        ledger: stamps.is_some().then(|| ledgers.clone() as Arc<dyn EgressLedger>),
        receivers: Some(ledgers),
        delays_acks: plan.mode == Mode::Diecast,
        priority: Some(EMULATOR_PRIORITY),
        cpu: emulator_cpu(plan),
        threads: o.emulator_threads,
        record,
    })
    .map_err(RunError::host("starting the emulator"))?;
    let supervisor = Supervisor::start().map_err(RunError::host("starting the supervisor"))?;
    let pipes = Arc::new(PipeLog::new(&plan.net, emulator.handle(), journal.clone()));
    let live = Arc::new(Live::new(
        plan,
        emulator.handle(),
        journal.clone(),
        World::new(
            frame.clone(),
            frames.iter().flatten().cloned().collect(),
            KernelTimes {
                plan: plan.clone(),
                cgroups: nodes.iter().map(|n| n.cgroup().clone()).collect(),
                netns: netns.clone(),
                initial_rto,
                journal: journal.clone(),
            },
            map,
            emulator.handle(),
        ),
    ));
    let gateway = open_gateway(plan, &netns)?;
    let serving = live.clone();
    dir.set_control(Box::new(move |request, client| serving.serve(request, client)));
    Ok(Lab {
        frame,
        journal,
        emulator,
        pipes,
        live,
        arrivals,
        nodes,
        netns,
        frames,
        supervisor,
        gateway,
        egress,
        stamps,
        cookies,
        backlog: Backlog::of(receiving),
    })
}

impl Lab {
    /// Sleeps for a virtual span, or less when interrupted.
    pub(crate) fn sleep(&self, v: VirtSpan) {
        let until = self.frame.now().plus(v);
        // Looked at anew: the lab may stand still, or run at another rate, meanwhile.
        while !interrupted() && self.frame.now() < until {
            let left = self.frame.r_of(until).since(RealNs(time::monotonic_ns())).ns();
            std::thread::sleep(Duration::from_nanos(left.min(100_000_000)));
        }
    }
}
