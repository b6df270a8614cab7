//! The supervisor's thread: answers every exec of every node, and keeps each lineage's meter open until the
//! last of its processes is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use diecast_core_abi::{PROC_MAGIC, PROC_PAGE_ADDR};
use diecast_host_sys::perf::Meter;
use diecast_host_sys::seccomp::Notification;
use diecast_host_sys::vdso::KernelVdso;
use diecast_host_sys::{GuestPtr, Tid, memory, process, seccomp, time};

use crate::exec::{self, Begins, ExecError, Outcome};
use crate::frame::NodeFrame;
use crate::load::LoadWatch;
use crate::{lend, steps, traced};

/// Scans at which a lineage must have been unseen before its event closes.
const UNSEEN_SCANS: u32 = 3;
/// Real time between scans when nothing presses.
const SCAN_EVERY_NS: u64 = 250_000_000;
/// Scans from one look for tracers to the next: it reads a file of each process.
const TRACERS_EVERY: u64 = 4;
/// Open meters beyond which a scan comes at once, doubled when a scan frees little.
const PRESSURE: usize = 64;

/// What the supervisor counted, for the verdict.
#[derive(Debug, Default)]
pub struct Counts {
    pub execs: AtomicU64,
    pub failed_execs: AtomicU64,
    /// Execs that could not be put in the frame, and processes seen without a blob.
    pub outside: AtomicU64,
    /// Real ns from notification to detach, summed.
    pub exec_ns: AtomicU64,
    pub open_meters: AtomicU64,
    /// First problems, in words.
    pub problems: Mutex<Vec<String>>,
}

impl Counts {
    fn problem(&self, text: String) {
        let mut p = self.problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if p.len() < 50 && !p.contains(&text) {
            p.push(text);
        }
    }
}

struct Lineage {
    meter: Meter,
    unseen: u32,
    /// Off while one of its processes is traced: a debugger would stop at each hit.
    off: bool,
}

struct Listener {
    fd: OwnedFd,
    node: usize,
}

struct Shared {
    wake: OwnedFd,
    stop: AtomicBool,
    added: Mutex<Vec<(OwnedFd, Arc<NodeFrame>)>>,
    counts: Counts,
    /// Traced processes whose new image will ask for its node's memory.
    asking: Mutex<BTreeSet<i32>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A running supervisor. Dropping it stops its thread; execs then fail with ENOSYS and meters end.
pub struct Supervisor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Starts the thread.
    pub fn start() -> io::Result<Supervisor> {
        let kernel = KernelVdso::find().ok_or_else(|| {
            io::Error::other(
                "this process has no vDSO of the kernel's: run diecast outside of frames; else boot without vdso=0",
            )
        })?;
        process::raise_descriptor_limit();
        let shared = Arc::new(Shared {
            wake: process::eventfd()?,
            stop: AtomicBool::new(false),
            added: Mutex::new(Vec::new()),
            counts: Counts::default(),
            asking: Mutex::default(),
        });
        let s = shared.clone();
        let thread = std::thread::Builder::new().name("supervisor".into()).spawn(move || Loop::new(s, kernel).run())?;
        Ok(Supervisor { shared, thread: Some(thread) })
    }

    /// Takes over the notifications of one filter.
    pub fn add(&self, listener: OwnedFd, node: Arc<NodeFrame>) {
        self.shared.added.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((listener, node));
        process::notify(&self.shared.wake);
    }

    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }
}

impl Supervisor {
    /// Ends the thread; what it counted can still be read, and is complete.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        process::notify(&self.shared.wake);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Loop {
    shared: Arc<Shared>,
    kernel: KernelVdso,
    nodes: Vec<Arc<NodeFrame>>,
    loads: Vec<LoadWatch>,
    listeners: Vec<Listener>,
    /// Open meters by node and lineage.
    lineages: BTreeMap<(usize, u64), Lineage>,
    /// Processes seen once without a blob: node and pid.
    suspects: BTreeMap<(usize, i32), u32>,
    /// Nodes of which it was said that a process is traced.
    told: BTreeSet<usize>,
    /// Processes that asked for their parent as a tracer while it waited for them in vfork.
    to_be_traced: BTreeSet<i32>,
    scans: u64,
    next_lineage: u64,
    next_scan_ns: u64,
    pressure: usize,
}

impl Loop {
    fn new(shared: Arc<Shared>, kernel: KernelVdso) -> Loop {
        Loop {
            shared,
            kernel,
            nodes: Vec::new(),
            loads: Vec::new(),
            listeners: Vec::new(),
            lineages: BTreeMap::new(),
            suspects: BTreeMap::new(),
            told: BTreeSet::new(),
            to_be_traced: BTreeSet::new(),
            scans: 0,
            next_lineage: 1,
            next_scan_ns: time::monotonic_ns() + SCAN_EVERY_NS,
            pressure: PRESSURE,
        }
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            let mut fds = vec![self.shared.wake.as_raw_fd()];
            fds.extend(self.listeners.iter().map(|l| l.fd.as_raw_fd()));
            let left_ns = self.next_scan_ns.saturating_sub(time::monotonic_ns());
            let Ok(ready) = process::poll(&fds, (left_ns / 1_000_000 + 1) as i32) else { return };
            if ready[0] != 0 {
                process::drain(&self.shared.wake);
                self.take_added();
            }
            for i in (0..ready.len() - 1).rev() {
                let r = ready[i + 1];
                if r & libc::POLLIN != 0 {
                    self.serve(i);
                } else if r & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
                    // No process uses this filter any more.
                    self.listeners.swap_remove(i);
                }
            }
            if time::monotonic_ns() >= self.next_scan_ns || self.lineages.len() > self.pressure {
                self.scan();
            }
        }
    }

    fn take_added(&mut self) {
        let added = std::mem::take(&mut *self.shared.added.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        for (fd, node) in added {
            let at = self.nodes.iter().position(|n| Arc::ptr_eq(n, &node)).unwrap_or_else(|| {
                self.nodes.push(node);
                self.loads.push(LoadWatch::default());
                self.nodes.len() - 1
            });
            self.listeners.push(Listener { fd, node: at });
        }
    }

    fn serve(&mut self, index: usize) {
        let l = &self.listeners[index];
        let at = l.node;
        let Ok(n) = seccomp::receive(&l.fd) else { return };
        let node = self.nodes[l.node].clone();
        if traced::asks(&n) {
            // One that nobody waits for is the program's own call, with a bad address.
            let lent = match lock(&self.shared.asking).remove(&n.tid().0) {
                true => lend::lend(&l.fd, &n, &node),
                false => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            };
            // One that gets none can't map the blob, and dies of it.
            let _ = match lent {
                Ok(fd) => seccomp::answer(&l.fd, &n, i64::from(fd)),
                Err(e) => seccomp::fail(&l.fd, &n, e.raw_os_error().unwrap_or(libc::EFAULT)),
            };
            return;
        }
        if steps::tells(&n) {
            // The thread ends by itself. What can't be done stays as before the step.
            let _ = node.follow_steps();
            let _ = seccomp::answer(&l.fd, &n, 0);
            return;
        }
        if traced::wants_tracer(&n) {
            return self.serve_traced(index, &n);
        }
        let began = time::monotonic_ns();
        let lineage = self.next_lineage;
        self.next_lineage += 1;
        let shared = self.shared.clone();
        let counts = &shared.counts;
        let pid = if self.to_be_traced.is_empty() { None } else { traced::process_of(n.tid()) };
        let pid = pid.filter(|pid| self.to_be_traced.contains(&pid.0) && traced::parent_waits(n.tid()));
        let begins = if pid.is_some() { Begins::Traced } else { Begins::Free };
        match exec::carry(&l.fd, &n, &node, &self.kernel, lineage, begins) {
            Ok(Outcome::Framed { meter }) => {
                if let Some(pid) = pid {
                    self.to_be_traced.remove(&pid.0);
                    self.tell_of_tracer(at, pid);
                }
                counts.execs.fetch_add(1, Ordering::Relaxed);
                counts.exec_ns.fetch_add(time::monotonic_ns() - began, Ordering::Relaxed);
                if let Some(meter) = meter {
                    self.lineages.insert((at, lineage), Lineage { meter, unseen: 0, off: false });
                    counts.open_meters.store(self.lineages.len() as u64, Ordering::Relaxed);
                }
            }
            Ok(Outcome::Failed | Outcome::Gone) => {
                counts.failed_execs.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Outcome::Again) => {}
            Ok(Outcome::Refused(e)) => {
                counts.failed_execs.fetch_add(1, Ordering::Relaxed);
                counts.outside.fetch_add(1, Ordering::Relaxed);
                counts.problem(format!("node {}: {e}", node.name));
            }
            Err(ExecError::Traced(_)) => self.serve_traced(index, &n),
            Err(e) => {
                counts.outside.fetch_add(1, Ordering::Relaxed);
                counts.problem(format!("node {}: {e}", node.name));
            }
        }
    }

    /// PTRACE_TRACEME, or an exec of a process that is traced. Its meter goes off, and the call is made again after a kick,
    /// which takes the place of a hit that is due: in a new image it would be the end, and a tracer would see it.
    fn serve_traced(&mut self, index: usize, n: &Notification) {
        let (tid, at) = (n.tid(), self.listeners[index].node);
        let node = self.nodes[at].clone();
        if traced::wants_tracer(n) && !traced::asks_again(n) && traced::parent_waits(tid) {
            // Its memory and its meter are its parent's until it execs.
            self.to_be_traced.extend(traced::process_of(tid).map(|pid| pid.0));
            let _ = seccomp::answer(&self.listeners[index].fd, n, 0);
            return;
        }
        let mut head = [0u64; 3];
        if node.cpu.metered
            && memory::read_words(tid, GuestPtr(PROC_PAGE_ADDR), &mut head).is_ok()
            && let Some(l) = self.lineages.get_mut(&(at, head[2]))
            && !l.off
        {
            let _ = l.meter.disable();
            l.off = true;
            // Only on the way to a handler a call is made again. One signal of this number is kept, not two.
            if traced::kick(tid).is_ok() {
                let _ = seccomp::make_again(&self.listeners[index].fd, n);
                return;
            }
        }
        if traced::wants_tracer(n) {
            let _ = seccomp::let_continue(&self.listeners[index].fd, n);
            return;
        }
        if traced::by_ours(tid) {
            self.shared.counts.failed_execs.fetch_add(1, Ordering::Relaxed);
            self.shared.counts.problem(format!("node {}: {}", node.name, ExecError::TracedWithUs(tid)));
            let _ = seccomp::fail(&self.listeners[index].fd, n, libc::EPERM);
            return;
        }
        self.tell_of_tracer(at, tid);
        let (shared, kernel, lineage, n) = (self.shared.clone(), self.kernel, self.next_lineage, *n);
        self.next_lineage += 1;
        let fd = &self.listeners[index].fd;
        let Ok(listener) = fd.try_clone() else {
            let _ = seccomp::fail(fd, &n, libc::EAGAIN);
            return;
        };
        let work = move || {
            let began = time::monotonic_ns();
            let asks = |pid: Tid| {
                lock(&shared.asking).insert(pid.0);
            };
            let counts = &shared.counts;
            match traced::carry(&listener, &n, &kernel, lineage, asks) {
                Ok(traced::Outcome::Asks) => {
                    counts.execs.fetch_add(1, Ordering::Relaxed);
                    counts.exec_ns.fetch_add(time::monotonic_ns() - began, Ordering::Relaxed);
                }
                Ok(traced::Outcome::Failed | traced::Outcome::Gone) => {
                    counts.failed_execs.fetch_add(1, Ordering::Relaxed);
                }
                Err(e) => {
                    counts.outside.fetch_add(1, Ordering::Relaxed);
                    counts.problem(format!("node {}: {e}", node.name));
                    let _ = seccomp::fail(&listener, &n, libc::EPERM);
                }
            }
        };
        // It ends with its tracer at the latest.
        if std::thread::Builder::new().name("traced".into()).spawn(work).is_err() {
            let _ = seccomp::fail(fd, &n, libc::EAGAIN);
        }
    }

    /// Switches meters off whose lineages have a traced process, of `(node, lineage, process)`, and others on.
    fn switch_traced(&mut self, traced: &[(usize, u64, i32)]) {
        for ((node, lineage), l) in &mut self.lineages {
            let off = traced.iter().any(|(n, id, _)| (n, id) == (node, lineage));
            if off != l.off {
                let _ = if off { l.meter.disable() } else { l.meter.enable() };
                l.off = off;
            }
        }
        for (at, _, pid) in traced {
            self.tell_of_tracer(*at, Tid(*pid));
        }
    }

    /// Says once for each metered node that a process is traced, and so has no meter.
    fn tell_of_tracer(&mut self, at: usize, pid: Tid) {
        let node = &self.nodes[at];
        if !node.cpu.metered || !self.told.insert(at) {
            return;
        }
        let name = |tid: Tid| std::fs::read_to_string(format!("/proc/{}/comm", tid.0)).unwrap_or_default();
        // One that is yet to be traced has its parent for a tracer.
        let tracer = exec::tracer_of(pid).or_else(|| traced::parent_of(pid)).map(name).unwrap_or_default();
        self.shared.counts.outside.fetch_add(1, Ordering::Relaxed);
        self.shared.counts.problem(format!(
            "node {}: process {} ({}) is traced by {}: its CPU time is not metered meanwhile",
            node.name,
            pid.0,
            name(pid).trim(),
            tracer.trim()
        ));
    }

    /// Which lineages still have a process? Which processes have no blob?
    fn scan(&mut self) {
        self.next_scan_ns = time::monotonic_ns() + SCAN_EVERY_NS;
        for (node, load) in self.nodes.iter().zip(&mut self.loads) {
            load.tick(node);
        }
        self.scans += 1;
        let looks_for_tracers = self.scans.is_multiple_of(TRACERS_EVERY);
        let mut traced: Vec<(usize, u64, i32)> = Vec::new();
        let mut suspects = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let Ok(pids) = (node.members)() else { continue };
            let mut seen = Vec::new();
            for pid in pids {
                if pid as u64 == node.init_pid.load(Ordering::Relaxed) {
                    continue;
                }
                let mut head = [0u64; 3];
                match memory::read_words(Tid(pid), GuestPtr(PROC_PAGE_ADDR), &mut head) {
                    Ok(()) if head[0] == PROC_MAGIC => {
                        seen.push(head[2]);
                        if looks_for_tracers && node.cpu.metered && exec::tracer_of(Tid(pid)).is_some() {
                            traced.push((at, head[2], pid));
                        }
                    }
                    // Gone, or a zombie: it holds no meter.
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    _ => {
                        let times = self.suspects.get(&(at, pid)).copied().unwrap_or(0) + 1;
                        suspects.insert((at, pid), times);
                        // Between fork and exec a child of init has none: only what stays so counts.
                        if times == 2 {
                            self.shared.counts.outside.fetch_add(1, Ordering::Relaxed);
                            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                            self.shared.counts.problem(format!(
                                "node {}: process {pid} ({}) runs outside the frame",
                                node.name,
                                name.trim()
                            ));
                        }
                    }
                }
            }
            for ((n, id), l) in &mut self.lineages {
                if *n == at {
                    l.unseen = if seen.contains(id) { 0 } else { l.unseen + 1 };
                }
            }
        }
        self.suspects = suspects;
        self.to_be_traced.retain(|pid| traced::parent_waits(Tid(*pid)));
        if looks_for_tracers {
            self.switch_traced(&traced);
        }
        let before = self.lineages.len();
        self.lineages.retain(|_, l| {
            if l.unseen >= UNSEEN_SCANS {
                let _ = l.meter.disable();
            }
            l.unseen < UNSEEN_SCANS
        });
        let after = self.lineages.len();
        // Under pressure, scan again soon; grow the bound when lineages really live.
        self.pressure = if before > self.pressure { after * 2 + PRESSURE } else { PRESSURE.max(after * 2) };
        if after > PRESSURE {
            self.next_scan_ns = time::monotonic_ns() + SCAN_EVERY_NS / 5;
        }
        self.shared.counts.open_meters.store(after as u64, Ordering::Relaxed);
    }
}
