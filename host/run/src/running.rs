//! Programs of a lab: started, awaited, watched, until the load is done.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

use diecast_core_journal::{Exit, FindingKind, Phase, ProgramChange, ProgramEvent, Record};
use diecast_core_plan::{Plan, PlannedNode, Probing};
use diecast_core_vtime::{VirtNs, VirtSpan};
use diecast_host_net::EmulatorStats;
use diecast_host_node::{Envelope, Event, Handshake, Output, ProgramId, ProgramSpec};

use diecast_host_supervisor::FRAME_SLACK_NS;

use crate::host_watch::Watch;
use crate::lab::{Lab, RunOptions, interrupted};
use crate::lateness::LedgerCounts;
use crate::ready::is_ready;

/// Where programs start, unless the catalog says otherwise, and where their sample files are looked for.
pub const WORK_DIR: &str = "/var/lib/diecast";
/// Virtual time between two looks at a readiness check.
const READY_EVERY: VirtSpan = VirtSpan(20_000_000);
/// What a check waits for an answer before it asks anew.
const READY_ATTEMPT: VirtSpan = VirtSpan(5_000_000_000);
/// Virtual time that the load gets to end after the measured time.
const DRAIN_V_NS: u64 = 60_000_000_000;
/// Last lines of a dead program's log that are shown.
const LAST_LINES: usize = 8;

/// Why a run stops early.
pub enum Stop {
    /// The experiment failed: exit 1.
    Failed(String),
    /// The host can't: exit 3.
    Host(String),
}

struct Started {
    node: usize,
    id: ProgramId,
    name: String,
    out: PathBuf,
    err: PathBuf,
    /// Line and column of its command in the catalog.
    place: (u32, u32),
    is_load: bool,
    done: bool,
}

/// What is known about the measured time.
#[derive(Default)]
pub struct Measured {
    pub emulator_before: Option<EmulatorStats>,
    pub emulator_after: Option<EmulatorStats>,
    /// By node with a frame, at the start and the end of measuring.
    pub ledgers: Vec<(String, LedgerCounts, LedgerCounts)>,
    /// Output files of the load by node.
    pub load_outputs: Vec<(usize, PathBuf)>,
    /// Output files of programs by node.
    pub outputs: Vec<(usize, PathBuf)>,
}

/// A plan being carried out.
pub struct Running<'a> {
    plan: &'a Plan,
    lab: &'a Lab,
    o: &'a RunOptions<'a>,
    watch: &'a Watch,
    started: Vec<Started>,
    measured: Measured,
}

fn program_name(argv: &[String]) -> String {
    let first = argv.first().map_or("program", String::as_str);
    Path::new(first).file_name().map_or_else(|| first.to_owned(), |n| n.to_string_lossy().into_owned())
}

impl<'a> Running<'a> {
    pub fn new(plan: &'a Plan, lab: &'a Lab, o: &'a RunOptions<'a>, watch: &'a Watch) -> Running<'a> {
        Running { plan, lab, o, watch, started: Vec::new(), measured: Measured::default() }
    }

    /// What was measured, once it is over.
    pub fn measured(&mut self) -> Measured {
        for s in &self.started {
            let list = if s.is_load { &mut self.measured.load_outputs } else { &mut self.measured.outputs };
            list.push((s.node, s.out.clone()));
        }
        std::mem::take(&mut self.measured)
    }

    /// From the first program to the end of the load.
    pub fn carry_out(&mut self) -> Result<(), Stop> {
        let (plan, lab) = (self.plan, self.lab);
        lab.journal.phase(Phase::Start);
        self.o.progress.phase("starting programs");
        for (node, program) in plan.programs_in_start_order() {
            let at = plan.nodes.iter().position(|n| n.name == node.name).unwrap_or(0);
            let place = (program.line, program.column);
            self.start(at, &program.argv, &program.env, program.cwd.as_deref(), place, false)?;
        }
        self.await_ready()?;
        let (warm_up, measure) = (plan.workload.warm_up_ns, plan.workload.measure_ns);
        lab.journal.phase(Phase::WarmUp);
        for (at, n) in plan.nodes.iter().enumerate() {
            if let Some(load) = &n.load {
                let place = (load.line, load.column);
                self.start(at, &load.argv, &load.env, load.cwd.as_deref(), place, true)?;
            }
        }
        let begin = lab.frame.now();
        lab.live
            .load_begins(begin, &plan.faults)
            .map_err(|e| Stop::Host(format!("arranging the catalog's faults: {e}")))?;
        let (from, to) = (begin.plus(warm_up), begin.plus(warm_up).plus(measure));
        self.o.progress.phase(&format!(
            "warming up for {:.0} s and measuring for {:.0} s virtual ({:.0} s real)",
            warm_up.as_secs_f64(),
            measure.as_secs_f64(),
            (warm_up.as_secs_f64() + measure.as_secs_f64()) * plan.tdf.as_f64()
        ));
        self.warm_up(begin, from, to)?;
        self.watch.sample_now();
        lab.live.world.measuring_begins();
        lab.journal.phase(Phase::Measure);
        self.watch.measuring_begins(begin);
        self.measured.emulator_before = lab.pipes.sample();
        let before: Vec<_> = self.ledger_counts();
        self.until(to, "measuring", begin, to)?;
        self.measured.emulator_after = lab.pipes.sample();
        let after = self.ledger_counts();
        self.measured.ledgers = before.into_iter().zip(after).map(|((n, b), (_, a))| (n, b, a)).collect();
        self.watch.sample_now();
        lab.journal.phase(Phase::Drain);
        self.o.progress.phase("waiting for the load to end");
        let give_up = lab.frame.now().plus(VirtSpan(DRAIN_V_NS));
        while self.started.iter().any(|s| s.is_load && !s.done) {
            self.events()?;
            if lab.frame.now() > give_up {
                return Err(Stop::Failed(format!(
                    "the load did not end within {} s virtual after measuring",
                    DRAIN_V_NS / 1_000_000_000
                )));
            }
            lab.sleep(VirtSpan(10_000_000));
        }
        Ok(())
    }

    fn ledger_counts(&self) -> Vec<(String, LedgerCounts)> {
        self.lab.frames.iter().flatten().map(|f| (f.name.clone(), LedgerCounts::of(f))).collect()
    }

    /// Late in the warm-up the lab runs at a lower TDF for a moment, where the host can carry that: what its work costs there
    /// says how much of what it costs otherwise is cold code.
    fn warm_up(&mut self, begin: VirtNs, from: VirtNs, to: VirtNs) -> Result<(), Stop> {
        let live = &self.lab.live;
        if let Some(Probing { tdf, begin: after, end }) = self.plan.probing().filter(|_| self.o.probe) {
            self.until(begin.plus(after), "warm-up", begin, to)?;
            if live.world.tdf() == self.plan.tdf && live.probe(tdf) {
                let done = self.until(begin.plus(end), &format!("warm-up, at TDF {tdf}"), begin, to);
                live.probed(tdf);
                done?;
            }
        }
        self.until(from, "warm-up", begin, to)
    }

    fn until(&mut self, to: VirtNs, phase: &str, begin: VirtNs, end: VirtNs) -> Result<(), Stop> {
        loop {
            self.events()?;
            let now = self.lab.frame.now();
            if now >= to {
                return Ok(());
            }
            let total = end.since(begin).as_secs_f64();
            let tdf = self.lab.live.world.tdf().as_f64();
            let left = end.since(now).as_secs_f64() * tdf;
            self.o.progress.tick(phase, now.since(begin).as_secs_f64(), total, left);
            let step = to.since(now).ns().min((100_000_000.0 / tdf) as u64 + 1);
            self.lab.sleep(VirtSpan(step));
        }
    }

    fn start(
        &mut self,
        at: usize,
        argv: &[String],
        env: &std::collections::BTreeMap<String, String>,
        cwd: Option<&str>,
        place: (u32, u32),
        is_load: bool,
    ) -> Result<(), Stop> {
        let (plan, lab) = (self.plan, self.lab);
        let node = &plan.nodes[at];
        let name = program_name(argv);
        let log = |end: &str| self.o.out.join("logs").join(format!("{}.{name}.{end}", node.name));
        let (out, err) = (log("out"), log("err"));
        let host = |e: diecast_host_node::NodeError| Stop::Host(format!("node {}: {e}", node.name));
        let absolute = |p: &Path| std::path::absolute(p).unwrap_or_else(|_| p.to_owned());
        let mut spec = ProgramSpec::new(argv.iter().map(OsString::from));
        spec.env = env.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).collect();
        spec.cwd = PathBuf::from(cwd.unwrap_or(WORK_DIR));
        spec.stdout = Output::File(absolute(&out));
        spec.stderr = Output::File(absolute(&err));
        spec.cpus = Some(node.cpus.clone());
        spec.timer_slack_ns = lab.frames[at].is_some().then_some(FRAME_SLACK_NS);
        let mut ours = None;
        if lab.frames[at].is_some() {
            let (mine, childs) = Handshake::pair().map_err(host)?;
            spec.envelope = Some(Envelope { filter: diecast_host_supervisor::filter(), handshake: childs });
            ours = Some(mine);
        }
        let (v_ns, r_ns) = lab.journal.now();
        let id = lab.nodes[at].start_program(spec).map_err(host)?;
        lab.journal.write(Record::Program(ProgramEvent {
            node: node.name.clone(),
            program: name.clone(),
            change: ProgramChange::Started { argv: argv.to_vec() },
            v_ns,
            r_ns,
        }));
        if let (Some(handshake), Some(frame)) = (ours, &lab.frames[at]) {
            let listener = handshake
                .accept(Some(Duration::from_secs(20)))
                .and_then(diecast_host_node::HandedOver::go)
                .map_err(|e| Stop::Host(format!("putting {name} on node {} in its frame: {e}", node.name)))?;
            lab.supervisor.add(listener, frame.clone());
        }
        self.started.push(Started { node: at, id, name, out, err, place, is_load, done: false });
        Ok(())
    }

    /// Waits until every program's readiness check has succeeded.
    fn await_ready(&mut self) -> Result<(), Stop> {
        let (plan, lab) = (self.plan, self.lab);
        let begin = lab.frame.now();
        let mut open: Vec<(usize, &diecast_core_experiment::Ready)> = Vec::new();
        for (i, (_, program)) in plan.programs_in_start_order().into_iter().enumerate() {
            open.extend(program.ready.as_ref().map(|r| (i, r)));
        }
        while !open.is_empty() {
            self.events()?;
            let mut still = Vec::new();
            for (i, ready) in open {
                let s = &self.started[i];
                let node: &PlannedNode = &plan.nodes[s.node];
                let give_up = begin.plus(VirtSpan(ready.within_ns)).min(lab.frame.now().plus(READY_ATTEMPT));
                let wait_on = || !interrupted() && lab.frame.now() < give_up;
                if is_ready(&ready.check, lab.netns[s.node].as_fd(), node.ipv4, &[&s.out, &s.err], &wait_on) {
                    let (v_ns, r_ns) = lab.journal.now();
                    let change = ProgramChange::Ready;
                    lab.journal.write(Record::Program(ProgramEvent {
                        node: node.name.clone(),
                        program: s.name.clone(),
                        change,
                        v_ns,
                        r_ns,
                    }));
                } else if lab.frame.now() > begin.plus(VirtSpan(ready.within_ns)) {
                    return Err(Stop::Failed(format!(
                        "{} on node {} was not ready within {:.1} s virtual{}",
                        s.name,
                        node.name,
                        ready.within_ns as f64 / 1e9,
                        last_lines(s)
                    )));
                } else {
                    still.push((i, ready));
                }
            }
            open = still;
            let waiting: Vec<String> = open
                .iter()
                .map(|(i, _)| format!("{} on {}", self.started[*i].name, plan.nodes[self.started[*i].node].name))
                .collect();
            if !waiting.is_empty() {
                self.o.progress.tick(
                    &format!("waiting for {}", waiting.join(", ")),
                    lab.frame.now().since(begin).as_secs_f64(),
                    0.0,
                    0.0,
                );
            }
            lab.sleep(READY_EVERY);
        }
        Ok(())
    }

    /// What the nodes report. A server that ends, or a load that fails, stops the run.
    fn events(&mut self) -> Result<(), Stop> {
        if interrupted() {
            return Err(Stop::Failed("interrupted".into()));
        }
        for (at, node) in self.lab.nodes.iter().enumerate() {
            loop {
                let event = match node.try_event() {
                    Ok(Some(e)) => e,
                    Ok(None) => break,
                    Err(e) => return Err(Stop::Host(format!("node {}: {e}", node.name()))),
                };
                match event {
                    Event::Started { .. } => {}
                    Event::Gone => return Err(Stop::Failed(format!("node {} is gone (its init died)", node.name()))),
                    Event::Failed { program, errno, what } => {
                        let why = std::io::Error::from_raw_os_error(errno);
                        return Err(self.not_started(at, program, &format!("{what}: {why}")));
                    }
                    Event::Exited { program, exit } => self.exited(at, program, exit)?,
                }
            }
        }
        Ok(())
    }

    /// Why the kernel killed it, where the node's memory limit is the reason.
    fn memory_limit(&self, at: usize, signal: i32) -> String {
        let kills = self.lab.nodes[at].cgroup().oom_kills().unwrap_or(0);
        if signal != libc::SIGKILL || kills == 0 {
            return String::new();
        }
        let mib = self.plan.nodes[at].memory_bytes / (1 << 20);
        format!(": the kernel killed it at the node's memory limit of {mib} MiB")
    }

    /// A program that the node's init could not execute, or that the supervisor could not put in its frame.
    fn not_started(&self, at: usize, id: ProgramId, why: &str) -> Stop {
        let node = &self.plan.nodes[at].name;
        let of_node = format!("node {node}: ");
        let problems = self.lab.supervisor.counts().problems.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(problem) = problems.iter().find(|p| p.starts_with(&of_node)) {
            return Stop::Host(problem.clone());
        }
        let s = self.started.iter().find(|s| s.node == at && s.id == id);
        let (name, (line, column)) = s.map_or(("a program", (1, 1)), |s| (&s.name, s.place));
        Stop::Host(format!(
            "{}:{line}:{column}: node {node}: cannot start {name}: {why}\n  \
             hint: install it on the host, or put it in the node with `files`",
            self.plan.catalog
        ))
    }

    fn exited(&mut self, at: usize, id: ProgramId, exit: diecast_host_node::Exit) -> Result<(), Stop> {
        let (v_ns, r_ns) = self.lab.journal.now();
        let (exit, words) = match exit {
            diecast_host_node::Exit::Code(c) => (Exit::Status(c), format!("with status {c}")),
            diecast_host_node::Exit::Signal(n) => {
                (Exit::Signal(n), format!("by signal {n}{}", self.memory_limit(at, n)))
            }
        };
        let Some(s) = self.started.iter_mut().find(|s| s.node == at && s.id == id) else { return Ok(()) };
        s.done = true;
        let node = &self.plan.nodes[at].name;
        let change = ProgramChange::Exited(exit);
        self.lab.journal.write(Record::Program(ProgramEvent {
            node: node.clone(),
            program: s.name.clone(),
            change,
            v_ns,
            r_ns,
        }));
        if s.is_load && exit == Exit::Status(0) {
            return Ok(());
        }
        let text = format!("{} on node {node} ended {words}{}", s.name, last_lines(s));
        self.lab.journal.finding(FindingKind::ProgramDied, Some(node), 1, text.clone());
        Err(Stop::Failed(text))
    }
}

fn last_lines(s: &Started) -> String {
    let mut text = String::new();
    for file in [&s.out, &s.err] {
        let bytes = std::fs::read(file).unwrap_or_default();
        let all = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = all.lines().collect();
        for l in &lines[lines.len().saturating_sub(LAST_LINES)..] {
            text.push_str("\n    | ");
            text.push_str(l);
        }
    }
    if text.is_empty() { "; it wrote nothing".into() } else { format!("; its last lines:{text}") }
}
