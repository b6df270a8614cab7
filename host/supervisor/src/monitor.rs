//! Conservation: is every nanosecond of CPU that a node used charged to its ledger, as meter's cost, or known
//! to be on its way? And does every thread have a meter?
//!
//! Over the life of a node, with all terms in real CPU time:
//!
//! ```text
//! used (kernel's account) = charged + cold + slow + meter cost + on its way + escaped
//! ```
//!
//! On its way is what live threads have used since their last charge, and what those that ended told of it. Cold is
//! what work cost more than on the original machine (core/cpu, cold), slow what it cost more because the host's cores
//! were slow (core/cpu, speed). What escaped (threads that ended between two hits, exec, storms of short processes) is
//! charged here, at the window's end. A window closes once the node used 20 ms of CPU, or where [`Monitor::close`] asks
//! for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use diecast_core_abi::ThreadSlot;
use diecast_core_cpu as ledger;
use diecast_core_cpu::{Sent, Then, is_new};
use diecast_host_sys::{Tid, process, time};

use crate::dead_slots::{DeadSlots, Place, of_dead};
use crate::frame::{LabFrame, NodeFrame};

/// CPU time after which a window closes, ns.
const WINDOW_NS: u64 = 20_000_000;
/// CPU time of a thread without a hit beyond which it has no working meter: many grains, and some ms.
const UNMETERED_GRAINS: u64 = 20;
const UNMETERED_NS: u64 = 10_000_000;
/// Looks at most until one is exact; and readings of what is in memory, in each, until one falls between two charges.
const LOOKS_MAX: u32 = 8;
/// Real time after which no other look is begun, ns: one at hundreds of threads takes that long.
const LOOKS_NS: u64 = 5_000_000;
/// What a look that closes a window may be wrong by: a thousandth of it. CPU time from which any look does.
const LOOK_ERROR_NS: u64 = WINDOW_NS / 1000;
const WINDOW_MAX_NS: u64 = 2 * WINDOW_NS;
/// What a node may use during a look whose error is known from the one before: where the account of a family takes in a child, it
/// does so by a tick or more.
const MOVED_MAX_NS: u64 = WINDOW_NS / 4;
/// Where nobody seems to have charged more than such a part of a window, a look so much later closes it, ns: a thread that has
/// just ended may have handed on what it did, which is charged a millisecond or two later, and is not charged twice.
const DOUBT_PART: u64 = 200;
const DOUBT_LASTS_NS: u64 = 4_000_000;
/// Real time in which a charge that was begun ends: it takes some microseconds, and a thread may lose its core in it, ns.
const LOST_AFTER_NS: u64 = 1_000_000_000;

/// One closed window; all real CPU ns within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Charged, by blobs and here.
    pub charged_ns: u64,
    /// The part of it that was charged here.
    pub escaped_ns: u64,
    /// The kernel's account, less what is on its way (more than at the start).
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
    /// On its way, less than nothing where a packet charged ahead.
    uncharged: i64,
    /// Of live threads in all.
    threads_ns: i64,
}

impl Totals {
    /// What the node's account has that live threads have not.
    fn beyond_ns(&self) -> i64 {
        self.usage as i64 - self.threads_ns
    }
}

/// A thread's CPU time that is not charged yet. Both are far below 2^63.
fn uncharged_ns(cpu_ns: u64, charged_to_ns: u64) -> i64 {
    cpu_ns as i64 - charged_to_ns as i64
}

/// What a thread that has ended told.
struct Told {
    charged_to_ns: u64,
    /// The CPU time that it will be charged up to, ns.
    ns: u64,
}

/// What of a thread was read by itself.
struct CpuTime {
    /// The thread's id in the node's pid namespace.
    name: u32,
    ns: u64,
    /// What is kept under its number is that of a dead thread.
    is_others: bool,
}

/// What threads of a node have told of their CPU time and were not charged for yet, in order.
pub type OnTheWay = Box<dyn Fn() -> Vec<(Sent, Then)> + Send>;

/// Of threads that are gone the CPU time up to which they were charged, or soon will be, ns.
type Gone = BTreeMap<Place, u64>;

/// What a look saw: its terms are of one instant but for `error_ns`, and for charges that came meanwhile where it is not quiet.
#[derive(Default)]
struct Look {
    totals: Totals,
    threads: Threads,
    /// Who has ended and is about to be charged.
    told: Vec<u32>,
    gone: Gone,
    /// The threads' CPU time is that of the last look that counted, and what was charged since ([`Counted::missed_ns`]).
    inferred: bool,
    error_ns: u64,
    quiet: bool,
}

/// A node's threads, one after the other.
#[derive(Default)]
struct Threads {
    /// As the host numbers them, and as their pid namespace does.
    tids: BTreeSet<i32>,
    live: BTreeSet<u32>,
    cpu: Vec<CpuTime>,
    /// CPU time of those that the last look that counted did not see, ns.
    new_ns: u64,
    /// Those that used more than `UNMETERED_NS` since a look last saw them hit.
    unhit: Vec<Unmetered>,
}

/// What a look saw from which a window is counted.
struct Counted {
    totals: Totals,
    tids: BTreeSet<i32>,
    /// Of threads that were gone already how much of what they used the totals have, ns; none where that is all, charged or not.
    gone: BTreeMap<Place, Option<u64>>,
}

impl Counted {
    fn new(totals: Totals, tids: BTreeSet<i32>, gone: Gone, before: Option<Counted>) -> Counted {
        let known = |slot: &Place| before.as_ref().is_some_and(|b| b.gone.get(slot) != Some(&None));
        let gone = gone.into_iter().map(|(slot, ns)| (slot, known(&slot).then_some(ns))).collect();
        Counted { totals, tids, gone }
    }

    /// What threads that are gone by now have used beyond what the totals have of it, as far as it was charged: they ended since, or
    /// began and ended, or were charged late. All are far below 2^63.
    fn ended_ns(&self, gone: &Gone) -> i64 {
        let since = |(slot, ns): (&Place, &u64)| match self.gone.get(slot) {
            Some(None) => 0,
            Some(Some(before_ns)) => *ns as i64 - *before_ns as i64,
            None => *ns as i64,
        };
        gone.iter().map(since).sum()
    }

    /// How much too little a later look read of the threads' CPU time, one after the other, while the node's grew by `moved_ns`
    /// from the first to the last; none where that is not known. What the node's account has beyond theirs stays while none of
    /// them ends: those that begin have used nothing. From the middle of a look either may be ahead. What one that began and ended
    /// in between used is known once it is charged; what never is shows where the node rests during a look, or once it sums up to
    /// more than that.
    fn missed_ns(&self, threads: &Threads, gone: &Gone, totals: &Totals, moved_ns: u64) -> Option<i64> {
        let missed = totals.beyond_ns() - self.totals.beyond_ns() - self.ended_ns(gone);
        // Who joins the node has used what the node has not.
        let none_joined = threads.new_ns <= totals.usage.saturating_sub(self.totals.usage) + moved_ns;
        let known = moved_ns <= MOVED_MAX_NS && none_joined && self.tids.is_subset(&threads.tids);
        (known && missed.unsigned_abs() <= moved_ns.div_ceil(2)).then_some(missed)
    }
}

/// Watches one node.
pub struct Monitor {
    node: Arc<NodeFrame>,
    on_the_way: Option<OnTheWay>,
    last: Option<Counted>,
    /// By host thread id.
    threads: BTreeMap<i32, Thread>,
    suspects: BTreeSet<i32>,
    unmetered: BTreeSet<i32>,
    /// Those that nobody has asked for yet.
    news: Vec<Unmetered>,
    /// Escapes that a window's reading made negative, or half of a charge did, to be settled by the next.
    owed_ns: i64,
    /// Since when the window is left open because of what nobody seems to have charged, CLOCK_MONOTONIC ns.
    doubted_ns: Option<u64>,
    /// Whether the window closes however little was used.
    closing: bool,
    dead_slots: DeadSlots,
    /// Charges that will never end; the fewest that were open at any look since a real instant.
    lost: u64,
    open_least: u64,
    open_from_ns: u64,
    /// How long threads have waited for a core, as far as looks saw them, ns.
    waited_ns: u64,
}

impl Monitor {
    /// Starts watching; what the node used before does not count.
    pub fn new(node: Arc<NodeFrame>) -> Monitor {
        Monitor {
            node,
            on_the_way: None,
            last: None,
            threads: BTreeMap::new(),
            suspects: BTreeSet::new(),
            unmetered: BTreeSet::new(),
            news: Vec::new(),
            owed_ns: 0,
            doubted_ns: None,
            closing: false,
            dead_slots: DeadSlots::default(),
            lost: 0,
            open_least: u64::MAX,
            open_from_ns: time::monotonic_ns(),
            waited_ns: 0,
        }
    }

    /// The same where threads tell what they use: of those that have ended, what is on its way to the ledger has not escaped.
    pub fn with_on_the_way(self, on_the_way: OnTheWay) -> Monitor {
        Monitor { on_the_way: Some(on_the_way), ..self }
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

    /// Has the next look that can be exact close the window, so that what comes then lies in windows of its own.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Looks at the node; a window when one closed.
    pub fn tick(&mut self, lab: &LabFrame) -> io::Result<Option<Window>> {
        if self.node.usage.is_none() {
            return Ok(None);
        }
        let Some(last) = self.last.as_ref().map(|last| last.totals) else {
            let Look { totals, threads, gone, .. } = self.look()?;
            self.last = Some(Counted::new(totals, threads.tids, gone, None));
            return Ok(None);
        };
        let usage = self.used()?;
        // The account of a family loses what children that nobody waits for have used: the window begins anew.
        if usage + WINDOW_NS < last.usage {
            self.last = None;
            return Ok(None);
        }
        let used = usage.saturating_sub(last.usage);
        if used < WINDOW_NS && !self.closing {
            return Ok(None);
        }
        let Look { totals: mut now, threads, told, gone, inferred, error_ns, quiet } = self.look()?;
        if used < WINDOW_MAX_NS && !(quiet && error_ns <= LOOK_ERROR_NS) {
            self.find_lost();
            return Ok(None);
        }
        let gain = |f: fn(&Totals) -> u64| f(&now) as i64 - f(&last) as i64;
        let on_the_way = now.uncharged - last.uncharged;
        let residual = gain(|t| t.usage) - gain(|t| t.charged + t.cold + t.slow + t.cost) - on_the_way + self.owed_ns;
        let escaped = residual.max(0) as u64;
        if escaped > used / DOUBT_PART {
            let real_ns = time::monotonic_ns();
            if real_ns - *self.doubted_ns.get_or_insert(real_ns) < DOUBT_LASTS_NS {
                return Ok(None);
            }
        }
        (self.doubted_ns, self.closing) = (None, false);
        // No more than hits may have charged too much.
        self.owed_ns = residual.clamp(-(ledger::OVERCHARGE_MAX_NS as i64), 0);
        if escaped > 0 {
            self.charge(lab, escaped);
            now.charged += escaped;
        }
        let window = Window {
            charged_ns: now.charged.saturating_sub(last.charged),
            escaped_ns: escaped,
            used_ns: (now.usage as i64 - last.usage as i64 - on_the_way).max(0) as u64,
            meter_cost_ns: now.cost - last.cost,
            cold_ns: now.cold.saturating_sub(last.cold),
            slow_ns: now.slow.saturating_sub(last.slow),
        };
        let before = self.last.take().filter(|_| inferred);
        let Threads { tids, mut live, unhit, .. } = threads;
        self.last = Some(Counted::new(now, tids, gone, before));
        // One in a long call is in the same call soon after.
        if used >= WINDOW_NS {
            self.suspect(unhit);
        }
        self.find_lost();
        // Nor is a slot free that is about to be charged.
        live.extend(told);
        self.dead_slots.free(self.node.page(), &live);
        Ok(Some(window))
    }

    /// All terms at one instant, nearly: the best of some looks, of which the first is that was exact.
    fn look(&mut self) -> io::Result<Look> {
        let (began, mut best) = (time::monotonic_ns(), self.look_once()?);
        for _ in 1..LOOKS_MAX {
            if best.quiet && best.error_ns == 0 || time::monotonic_ns() - began > LOOKS_NS {
                break;
            }
            let look = self.look_once()?;
            if (!look.quiet, look.error_ns) < (!best.quiet, best.error_ns) {
                best = look;
            }
        }
        Ok(best)
    }

    fn look_once(&mut self) -> io::Result<Look> {
        let before = self.used()?;
        let threads = self.threads()?;
        let threads_ns = threads.cpu.iter().map(|c| c.ns as i64).sum();
        // The rest is quickly read, all at once.
        let (mut totals, mut quiet) = (Totals::default(), false);
        let mut told = BTreeMap::new();
        for _ in 0..LOOKS_MAX {
            let charges = self.charges();
            told = self.told_by_dead(&threads.live);
            let of_dead: i64 = told.values().map(|t| uncharged_ns(t.ns, t.charged_to_ns)).sum();
            let uncharged = self.uncharged(&threads.cpu) + of_dead;
            totals = Totals { uncharged, threads_ns, ..self.counters() };
            quiet = charges.is_some() && self.charges() == charges;
            if quiet {
                break;
            }
        }
        let mut error_ns = self.used()?.saturating_sub(before);
        // Where the threads ran on, their account is taken from the middle.
        totals.usage = before + error_ns / 2;
        // Takes longer than the rest: a charge in between seems to have escaped, which is doubted.
        let dead = of_dead(self.node.page(), &threads.live);
        let charged_to =
            |tid, s: &ThreadSlot| told.get(&tid).map_or_else(|| s.last_cpu_ns.load(Relaxed), |t: &Told| t.ns);
        let gone = dead.map(|(place, s)| (place, charged_to(place.1, s))).collect();
        let mut inferred = false;
        let missed = |last: &Counted| last.missed_ns(&threads, &gone, &totals, error_ns);
        if let Some(missed) = self.last.as_ref().and_then(missed) {
            inferred = error_ns > 0;
            (totals.threads_ns, totals.uncharged) = (totals.threads_ns + missed, totals.uncharged + missed);
            error_ns = 0;
        }
        let told = told.into_keys().collect();
        Ok(Look { totals, threads, told, gone, inferred, error_ns, quiet })
    }

    /// The number of charges so far; none while one is under way.
    fn charges(&mut self) -> Option<u64> {
        let k = &self.node.page().counters;
        let done = k.charges_done.load(Acquire);
        let open = k.charges_begun.load(Acquire).saturating_sub(done);
        self.open_least = self.open_least.min(open);
        // Fewer than were lost: one of those was not.
        self.lost = self.lost.min(open);
        (open == self.lost).then_some(done)
    }

    /// A thread that was killed in the midst of a charge never ends it. As many as were open at every look of a second
    /// are taken for such.
    fn find_lost(&mut self) {
        let now = time::monotonic_ns();
        if now.saturating_sub(self.open_from_ns) >= LOST_AFTER_NS {
            self.lost = self.lost.max(std::mem::replace(&mut self.open_least, u64::MAX));
            self.open_from_ns = now;
        }
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
        ledger::charge(p.entries(), 0, now, now, p.slowness().mul_floor(real_ns));
        p.counters.charged_by_supervisor_ns.fetch_add(real_ns, Relaxed);
    }

    /// The threads' CPU time since their last charge, summed.
    fn uncharged(&self, cpu: &[CpuTime]) -> i64 {
        let page = self.node.page();
        let slot = |c: &CpuTime| page.slot(c.name).filter(|_| !c.is_others);
        cpu.iter().map(|c| uncharged_ns(c.ns, slot(c).map_or(0, |s| s.last_cpu_ns.load(Relaxed)))).sum()
    }

    /// What threads that have ended will be charged up to, by number: each has a slot, where there is room, as it will have then.
    fn told_by_dead(&self, live: &BTreeSet<u32>) -> BTreeMap<u32, Told> {
        let page = self.node.page();
        let mut all = BTreeMap::<u32, Told>::new();
        for (by, then) in self.on_the_way.iter().flat_map(|told| told()).filter(|(by, _)| !live.contains(&by.tid)) {
            let Some(slot) = page.claim_slot(by.tid) else { continue };
            // What a new one did before its present burst nobody will charge.
            let charged_to_ns = if is_new(slot) { by.burst_cpu_ns } else { slot.last_cpu_ns.load(Relaxed) };
            let told = all.entry(by.tid).or_insert(Told { charged_to_ns, ns: charged_to_ns });
            told.ns = if then == Then::Ends { by.cpu_ns } else { told.ns.max(by.cpu_ns) };
        }
        all.retain(|_, t| t.charged_to_ns <= t.ns + ledger::OVERCHARGE_MAX_NS);
        all
    }

    /// The node's threads. The kernel brings their CPU time and the node's account up to date together, a tick behind or less;
    /// a charge may be ahead of both.
    fn threads(&mut self) -> io::Result<Threads> {
        let mut all = Threads::default();
        let init = self.node.init_pid.load(Relaxed);
        let limit = UNMETERED_NS.max(UNMETERED_GRAINS * self.node.cpu.grain_ns);
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
                all.tids.insert(tid);
                all.live.insert(thread.name);
                if self.last.as_ref().is_some_and(|last| !last.tids.contains(&tid)) {
                    all.new_ns += cpu;
                }
                let slot = self.node.page().slot(thread.name);
                let (charged_to, hits) = slot.map_or((0, 0), |s| (s.last_cpu_ns.load(Relaxed), s.hits.load(Relaxed)));
                let is_others = charged_to > cpu + ledger::OVERCHARGE_MAX_NS;
                all.cpu.push(CpuTime { name: thread.name, ns: cpu, is_others });
                let unhit_ns = thread.unhit_ns(hits, cpu);
                self.threads.insert(tid, thread);
                if self.node.cpu.metered && unhit_ns > limit {
                    all.unhit.push(Unmetered { pid, tid, name: String::new(), unhit_ns });
                }
            }
        }
        self.threads.retain(|tid, _| all.tids.contains(tid));
        Ok(all)
    }

    /// A thread without a hit at two windows has no meter. At one it may be one that was just executed: its exec has none.
    fn suspect(&mut self, unhit: Vec<Unmetered>) {
        let before = std::mem::take(&mut self.suspects);
        for mut thread in unhit {
            let Unmetered { pid, tid, .. } = thread;
            self.suspects.insert(tid);
            if before.contains(&tid) && self.unmetered.insert(tid) {
                let name = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
                name.trim().clone_into(&mut thread.name);
                self.news.push(thread);
            }
        }
    }

    /// What is known of a thread; of a new one its id in the innermost pid namespace.
    fn thread(&self, tid: i32) -> Option<Thread> {
        if let Some(t) = self.threads.get(&tid) {
            return Some(*t);
        }
        let name = process::number_inside(Tid(tid))?;
        Some(Thread { name, hits: 0, cpu_at_hit_ns: 0, waited_ns: 0 })
    }
}

#[cfg(test)]
mod tests;
