//! Conservation: is every nanosecond of CPU that a node used charged to its ledger, as meter's cost, or known
//! to be on its way? And does every thread have a meter?
//!
//! Over the life of a node, with all terms in real CPU time:
//!
//! ```text
//! used (kernel's account) = charged + cold + slow + meter cost + uncharged of live threads + escaped
//! ```
//!
//! Cold is what work cost more than on the original machine (core/cpu, cold), slow what it cost more because the host's
//! cores were slow (core/cpu, speed). What escaped (threads that ended between two hits, exec, storms of short processes) is charged here, at the
//! window's end. A window closes once the node used 20 ms of CPU.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use diecast_core_cpu as ledger;
use diecast_host_sys::time;

use crate::frame::{LabFrame, NodeFrame};

/// CPU time after which a window closes, ns.
const WINDOW_NS: u64 = 20_000_000;
/// CPU time of a thread without a hit beyond which it has no working meter: many grains, and some ms.
const UNMETERED_GRAINS: u64 = 20;
const UNMETERED_NS: u64 = 10_000_000;
/// Looks at most until one falls between two hits.
const LOOKS_MAX: u32 = 8;
/// Real time without a charge after which a dead thread's slot is free again, ns.
const SLOT_REST_NS: u64 = 1_000_000_000;

/// One closed window; all real CPU ns within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Charged, by blobs and here.
    pub charged_ns: u64,
    /// The part of it that was charged here.
    pub escaped_ns: u64,
    /// The kernel's account, less what live threads have used since their last hit (more than at the start).
    pub used_ns: u64,
    /// The part of `used_ns` that was the meter's own.
    pub meter_cost_ns: u64,
    /// The part of `used_ns` that was not charged because the work was colder than on the original machine.
    pub cold_ns: u64,
    /// The part of `used_ns` that was not charged because the host's cores were slow.
    pub slow_ns: u64,
}

/// A thread that used CPU time without a hit of a meter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmetered {
    /// The process and the thread, as the host numbers them.
    pub pid: i32,
    pub tid: i32,
    /// The thread's name.
    pub name: String,
    /// CPU time since its last hit, ns.
    pub unhit_ns: u64,
}

/// A thread between two looks.
#[derive(Clone, Copy)]
struct Thread {
    /// Its id in the node's pid namespace.
    name: u32,
    hits: u64,
    /// Its CPU time at the look that saw the last of them, ns.
    cpu_at_hit_ns: u64,
    /// How long it has waited for a core up to the last look, ns.
    waited_ns: u64,
}

impl Thread {
    /// CPU time since the last look at which the count of hits had changed, ns.
    fn unhit_ns(&mut self, hits: u64, cpu_ns: u64) -> u64 {
        if hits != self.hits {
            (self.hits, self.cpu_at_hit_ns) = (hits, cpu_ns);
        }
        cpu_ns.saturating_sub(self.cpu_at_hit_ns)
    }
}

#[derive(Clone, Copy, Default)]
struct Totals {
    usage: u64,
    charged: u64,
    cost: u64,
    cold: u64,
    slow: u64,
    uncharged: u64,
}

/// Watches one node.
pub struct Monitor {
    node: Arc<NodeFrame>,
    last: Option<Totals>,
    /// By host thread id.
    threads: BTreeMap<i32, Thread>,
    suspects: BTreeSet<i32>,
    unmetered: BTreeSet<i32>,
    /// Those that nobody has asked for yet.
    news: Vec<Unmetered>,
    /// Escapes that a window's reading made negative, to be settled by the next.
    owed_ns: i64,
    dead_slots: BTreeSet<usize>,
    /// How long threads have waited for a core, as far as looks saw them, ns.
    waited_ns: u64,
}

impl Monitor {
    /// Starts watching; what the node used before does not count.
    pub fn new(node: Arc<NodeFrame>) -> Monitor {
        Monitor {
            node,
            last: None,
            threads: BTreeMap::new(),
            suspects: BTreeSet::new(),
            unmetered: BTreeSet::new(),
            news: Vec::new(),
            owed_ns: 0,
            dead_slots: BTreeSet::new(),
            waited_ns: 0,
        }
    }

    /// The node.
    pub fn node(&self) -> &Arc<NodeFrame> {
        &self.node
    }

    /// Threads that were found to run without a working meter since the last call, each once.
    pub fn take_unmetered(&mut self) -> Vec<Unmetered> {
        std::mem::take(&mut self.news)
    }

    /// How long the node's threads have waited for a core, for whatever reason; those that ended between two windows are
    /// missing. Source: schedstat.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns
    }

    /// Looks at the node; a window when one closed.
    pub fn tick(&mut self, lab: &LabFrame) -> io::Result<Option<Window>> {
        if self.node.usage.is_none() {
            return Ok(None);
        }
        let Some(last) = self.last else {
            self.last = Some(self.look()?.0);
            return Ok(None);
        };
        if self.used()?.saturating_sub(last.usage) < WINDOW_NS {
            return Ok(None);
        }
        let (mut now, live) = self.look()?;
        let gain = |f: fn(&Totals) -> u64| f(&now) as i64 - f(&last) as i64;
        let residual =
            gain(|t| t.usage) - gain(|t| t.charged + t.cold + t.slow + t.cost) - gain(|t| t.uncharged) + self.owed_ns;
        let escaped = residual.max(0) as u64;
        self.owed_ns = residual.min(0);
        if escaped > 0 {
            self.charge(lab, escaped);
            now.charged += escaped;
        }
        let window = Window {
            charged_ns: now.charged.saturating_sub(last.charged),
            escaped_ns: escaped,
            used_ns: ((now.usage as i64 - last.usage as i64) - (now.uncharged as i64 - last.uncharged as i64)).max(0)
                as u64,
            meter_cost_ns: now.cost - last.cost,
            cold_ns: now.cold.saturating_sub(last.cold),
            slow_ns: now.slow.saturating_sub(last.slow),
        };
        self.last = Some(now);
        self.free_dead_slots(&live);
        Ok(Some(window))
    }

    /// All terms at one instant, nearly: a look during which anything was charged is repeated.
    fn look(&mut self) -> io::Result<(Totals, BTreeSet<u32>)> {
        let mut tries = 0;
        loop {
            let quiet = self.quiet();
            let before = self.used()?;
            let (uncharged, live) = self.uncharged()?;
            let now = Totals { uncharged, ..self.counters() };
            // The threads ran on while they were looked at: their account is taken from the middle.
            let usage = before + self.used()?.saturating_sub(before) / 2;
            tries += 1;
            if tries == LOOKS_MAX || quiet.is_some() && self.quiet() == quiet {
                return Ok((Totals { usage, ..now }, live));
            }
        }
    }

    /// The number of charges so far; none while one is under way.
    fn quiet(&self) -> Option<u64> {
        let k = &self.node.page().counters;
        let done = k.charges_done.load(Acquire);
        (k.charges_begun.load(Acquire) == done).then_some(done)
    }

    fn used(&self) -> io::Result<u64> {
        match &self.node.usage {
            Some(read) => read(),
            None => Ok(0),
        }
    }

    fn counters(&self) -> Totals {
        let c = &self.node.page().counters;
        let charged = c.charged_ns.load(Relaxed).saturating_add(c.charged_by_supervisor_ns.load(Relaxed));
        let (cost, cold, slow) = (c.meter_cost_ns.load(Relaxed), c.cold_ns.load(Relaxed), c.slow_ns.load(Relaxed));
        Totals { charged, cost, cold, slow, ..Totals::default() }
    }

    /// Charges what no meter caught, as work that could start now.
    fn charge(&self, lab: &LabFrame, real_ns: u64) {
        let p = self.node.page();
        let now = lab.now();
        ledger::charge(p.entries(), now, now, p.slowness().mul_floor(real_ns));
        p.counters.charged_by_supervisor_ns.fetch_add(real_ns, Relaxed);
    }

    /// CPU time of live threads since their last hit, summed, and the threads' ids in the node.
    fn uncharged(&mut self) -> io::Result<(u64, BTreeSet<u32>)> {
        let mut sum = 0;
        let (mut live, mut seen, mut suspects) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let init = self.node.init_pid.load(Relaxed);
        for pid in (self.node.members)()? {
            if pid as u64 == init {
                continue;
            }
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for t in tasks.flatten() {
                let Some(tid) = t.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
                let Ok(text) = std::fs::read_to_string(t.path().join("schedstat")) else { continue };
                let mut numbers = text.split_whitespace().map(|n| n.parse::<u64>());
                let Some(Ok(cpu)) = numbers.next() else { continue };
                let Some(mut thread) = self.thread(tid) else { continue };
                let waited = numbers.next().and_then(Result::ok).unwrap_or(0);
                self.waited_ns += waited.saturating_sub(thread.waited_ns);
                thread.waited_ns = waited;
                seen.insert(tid);
                live.insert(thread.name);
                let slot = self.node.page().slot(thread.name);
                let (charged_to, hits) = slot.map_or((0, 0), |s| (s.last_cpu_ns.load(Relaxed), s.hits.load(Relaxed)));
                sum += cpu.saturating_sub(charged_to);
                let unhit_ns = thread.unhit_ns(hits, cpu);
                self.threads.insert(tid, thread);
                let limit = UNMETERED_NS.max(UNMETERED_GRAINS * self.node.cpu.grain_ns);
                if self.node.cpu.metered && unhit_ns > limit {
                    suspects.insert(tid);
                    if self.suspects.contains(&tid) && self.unmetered.insert(tid) {
                        let name = std::fs::read_to_string(t.path().join("comm")).unwrap_or_default();
                        let name = name.trim().to_owned();
                        self.news.push(Unmetered { pid, tid, name, unhit_ns });
                    }
                }
            }
        }
        self.suspects = suspects;
        self.threads.retain(|tid, _| seen.contains(tid));
        Ok((sum, live))
    }

    /// What is known of a thread; of a new one its id in the innermost pid namespace.
    fn thread(&self, tid: i32) -> Option<Thread> {
        if let Some(t) = self.threads.get(&tid) {
            return Some(*t);
        }
        let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
        let line = status.lines().find(|l| l.starts_with("NSpid:"))?;
        let name = line.split_whitespace().last()?.parse().ok()?;
        Some(Thread { name, hits: 0, cpu_at_hit_ns: 0, waited_ns: 0 })
    }

    /// A slot whose thread was gone at two windows, and that nobody used for a while, is free again.
    fn free_dead_slots(&mut self, live: &BTreeSet<u32>) {
        let now = time::monotonic_ns();
        let mut dead = BTreeSet::new();
        for (i, s) in self.node.page().slots.iter().enumerate() {
            let tid = s.tid.load(Relaxed);
            if tid == 0 || live.contains(&tid) || now.saturating_sub(s.last_wall_ns.load(Relaxed)) < SLOT_REST_NS {
                continue;
            }
            if self.dead_slots.contains(&i) {
                let _ = s.tid.compare_exchange(tid, 0, Relaxed, Relaxed);
            } else {
                dead.insert(i);
            }
        }
        self.dead_slots = dead;
    }
}
