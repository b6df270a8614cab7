//! Learns, while a lab runs, how the work of each node grows with the sleep before it and with older ages, what a hit adds to
//! it, and from where the cores come to its threads, and tells the node's meters.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use diecast_core_abi::{GAP_BINS, NodePage, SWITCH_ONCE};
use diecast_core_cpu::{
    Ages, Bursts, Growth, HitSums, Level, curve_of_all, discounts, growth_of_all, interrupt_part, mean_switch_ns,
};
use diecast_core_vtime::RealNs;
use diecast_host_egress::{Counted, Egress, HitCost, WakeTimes};
use diecast_host_supervisor::{NodeFrame, SPEED_ONE_PPM};
use diecast_host_sys::time;

use crate::host_watch::Beside;
use crate::live::Live;

/// Real time between two readings of the counts.
const EVERY: Duration = Duration::from_millis(500);
/// What older bursts count after each reading that brought [`ENOUGH`] new ones: half after about 17 s, so that start-up is
/// soon forgotten. After one that brought fewer they count for more: a node that is overloaded never sleeps, and must not
/// forget what it knows, since then it is charged still more.
const KEEP: f64 = 0.98;
const ENOUGH: f64 = 8.0;
/// The same of their ages, half after about 35 s: once the load is steady they differ less, so what was seen while it rose
/// says most.
const KEEP_AGES: f64 = 0.99;
/// A node that was charged more of what its machine can do since the last reading teaches nothing: what it does is queued,
/// it seldom waits, and its bursts run on through sleeps of the meter, whose cold they are not counted for. Its growth
/// would seem to shrink, it would be charged still more, and stay overloaded.
const BUSY_MAX: f64 = 0.85;

/// Hits without which nothing is said of what one costs.
const HITS_MIN: f64 = 20.0;

/// CPU time that is one of [`ENOUGH`] where what interrupts it is learned, real ns.
const CHARGED_ONE_NS: f64 = 5_000_000.0;

/// Wake-ups without which nothing is said of what one takes.
const WAKES_MIN: f64 = 20.0;
/// What of the way to the first receive the original does without, where its thread is still at work and nothing is known of
/// such: the rest is what it takes to ask for more that is there already.
const EXTRA_PART: f64 = 0.75;

/// More than this part of that between a last packet and the sleep is the program's own, which it does in any case: one that
/// answers several requests in a row shows nothing of it where it goes on.
const ENDS_MAX: f64 = 0.5;

/// Switches since the last reading without which what was known of them stays.
const SWITCHES_MIN: u64 = 16;

/// What older ones count after a reading that brought so many new ones; `keep` after one that brought [`ENOUGH`].
fn kept(keep: f64, new: f64) -> f64 {
    keep.powf((new / ENOUGH).min(1.0))
}

/// What is known of one node.
struct Learner {
    frame: Arc<NodeFrame>,
    cookie: u64,
    read: Counted,
    bursts: Known,
    ages: Ages,
    /// The same at the lower TDF of the probe.
    probed_ages: Ages,
    /// Whether the lab ran at that at the last reading.
    probing: bool,
    /// How much is taken off, once the lab has been probed.
    level: Level,
    /// Taken off for cold code, and charged, by the last look of the level, real CPU ns.
    level_read: [u64; 2],
    /// The same of what the kernel does for the node when frames come.
    receives: Receives,
    /// BPF programs' own time for each switch, packet and frame received.
    own: [Mean; 3],
    frames_read: u64,
    /// What a wake-up takes, and the same at the lower TDF of the probe.
    wakes: Wakes,
    probed_wakes: Wakes,
    /// From setting out to wake a thread to its first instant on an idle core.
    ways: Mean,
    /// What interrupts would be of what its threads are charged, and both by the last reading, real CPU ns.
    interrupts: Mean,
    interrupts_read: [u64; 2],
    hits: HitSums,
    /// What the blob saw of a hit, ns; hits and their sum by the last reading.
    hits_seen: Mean,
    hits_read: [u64; 2],
    /// CPU time that blobs saw sleeps before waits take.
    pays_seen: Mean,
    pays_read: [u64; 2],
    /// Charged by the last reading, real CPU ns, and when that was.
    charged_ns: u64,
    read_at: RealNs,
}

/// Bursts of a node at the lab's TDF, the older the less each counts, and at the lower one at which the lab ran for a moment:
/// these do not age, as there is no more of them.
#[derive(Default)]
struct Known {
    now: Bursts,
    probed: Bursts,
}

impl Known {
    fn add(&mut self, new: &Bursts, probing: bool) {
        match probing {
            true => self.probed.age_and_add(1.0, new),
            false => self.now.age_and_add(kept(KEEP, new.telling()), new),
        }
    }

    fn all(&self) -> Bursts {
        let mut all = self.probed.clone();
        all.age_and_add(1.0, &self.now);
        all
    }
}

/// A mean that forgets.
#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    /// So many more, with this sum; older ones count `keep` of themselves.
    fn add(&mut self, keep: f64, count: u64, sum: u64) {
        self.count = self.count * keep + count as f64;
        self.sum = self.sum * keep + sum as f64;
    }

    /// 0 while there are none.
    fn mean(&self) -> f64 {
        if self.count > 0.0 { self.sum / self.count } else { 0.0 }
    }
}

/// What a wake-up takes beside work: from getting a core to the first receive, from the last packet to the sleep, and what lies
/// between a packet and a receive in any case.
#[derive(Clone, Copy, Default)]
struct Wakes {
    begins: Mean,
    ends: Mean,
    turns: Mean,
}

impl Wakes {
    fn add(&mut self, keep: impl Fn(f64) -> f64, new: &WakeTimes) {
        for (mean, [count, ns]) in
            [(&mut self.begins, new.begins), (&mut self.ends, new.ends), (&mut self.turns, new.turns)]
        {
            mean.add(keep(count as f64), count, ns);
        }
    }

    /// What a thread that is still at work does without, real CPU ns; 0 while little is known. Where too few were seen to go on
    /// without a sleep, a part of the way to the first receive ([`EXTRA_PART`]).
    fn extra_ns(&self) -> f64 {
        if self.begins.count < WAKES_MIN {
            return 0.0;
        }
        let begins_ns = self.begins.mean();
        if self.ends.count < WAKES_MIN || self.turns.count < WAKES_MIN {
            return begins_ns * EXTRA_PART;
        }
        begins_ns + (self.ends.mean() - self.turns.mean()).clamp(-begins_ns, begins_ns * ENDS_MAX)
    }
}

/// What is known of a node's receive work.
#[derive(Default)]
struct Receives {
    read: Bursts,
    frames: Known,
}

impl Receives {
    /// Counts what came since the last reading, unless it is of no use.
    fn look(&mut self, frame: &NodeFrame, of_use: bool, probing: bool) {
        let now = Bursts::of_receives(&frame.receiver.counts());
        if of_use {
            self.frames.add(&now.since(&self.read), probing);
        }
        self.read = now;
    }

    /// What a frame costs more than in the original. While the lab is probed, nothing.
    fn table(&self, evidence: &Bursts, of_all: &[f64; GAP_BINS], tdf: f64, probing: bool) -> [u32; GAP_BINS] {
        if probing {
            return [0; GAP_BINS];
        }
        let table = discounts(&evidence.curve(of_all), 1.0, tdf);
        let Known { now, probed } = &self.frames;
        Level::wanted(now, probed).map_or(table, |wanted| Level::default().set(&table, now, wanted))
    }
}

/// Real ns that the original takes for 1024 ns of CPU time here, in its own time, while that passes.
fn lead(page: &NodePage) -> u64 {
    page.running().inverse.mul_floor(page.slowness().mul_floor(1024))
}

/// How much two sums have grown since they were last read, where `read` has them.
fn grown(read: &mut [u64; 2], now: [u64; 2]) -> [u64; 2] {
    let before = std::mem::replace(read, now);
    std::array::from_fn(|i| now[i].saturating_sub(before[i]))
}

impl Learner {
    /// What part of the CPU time that the machine has was charged since this was last asked, at most 1 but for catching up.
    fn busy(&mut self, tdf: f64) -> f64 {
        let now = RealNs(time::monotonic_ns());
        let charged_ns = self.frame.page().counters.charged_ns.load(Relaxed);
        let cpu = &self.frame.cpu;
        let speed = f64::from(cpu.speed_ppm) / f64::from(SPEED_ONE_PPM) * f64::from(cpu.cores);
        let can_ns = now.since(self.read_at).ns() as f64 / tdf * speed;
        let gained_ns = charged_ns.saturating_sub(std::mem::replace(&mut self.charged_ns, charged_ns));
        self.read_at = now;
        gained_ns as f64 / can_ns.max(1.0)
    }

    fn look(&mut self, egress: &Egress, tdf: f64, probing: bool, counts_interrupts: bool) {
        let Ok(now) = egress.counted(self.cookie) else { return };
        let new = now.bursts.since(&self.read.bursts);
        let [siblings, metered, others] =
            std::array::from_fn(|i| now.switches[i].saturating_sub(self.read.switches[i]));
        let switches = siblings + metered + others;
        if switches >= SWITCHES_MIN {
            let times = (2 * metered + others) * u64::from(SWITCH_ONCE) / switches;
            self.frame.page().switch_part.store(times as u32, Relaxed);
        }
        self.tell_own(&now, switches);
        // What lies between two readings of different TDFs belongs to neither.
        let of_one_tdf = std::mem::replace(&mut self.probing, probing) == probing;
        self.tell_wakes(&now, tdf, of_one_tdf);
        if counts_interrupts {
            self.tell_interrupts();
        }
        let of_use = self.busy(tdf) <= BUSY_MAX && of_one_tdf;
        self.receives.look(&self.frame, of_use, probing);
        if of_use {
            let new = new.without(mean_switch_ns(self.frame.page()));
            let ages = now.ages.since(&self.read.ages);
            self.bursts.add(&new, probing);
            match probing {
                true => self.probed_ages.age_and_add(1.0, &ages),
                false => self.ages.age_and_add(kept(KEEP_AGES, new.telling()), &ages),
            }
        }
        // A piece of work is one however busy the node is.
        let hits = now.hits.since(&self.read.hits);
        let keep = kept(KEEP, hits.pieces());
        self.hits.age_and_add(keep, &hits);
        self.tell_hits(egress, keep);
        self.read = now;
    }

    /// Tells meters what BPF programs take themselves, which no original machine runs.
    fn tell_own(&mut self, now: &Counted, switches: u64) {
        let own = now.own.since(&self.read.own);
        let frames = self.frame.receiver.frames();
        let new_frames = frames - std::mem::replace(&mut self.frames_read, frames);
        let new = [(switches, own.threads_ns), (own.packets, own.packets_ns), (new_frames, own.frames_ns)];
        for (mean, (count, ns)) in self.own.iter_mut().zip(new) {
            mean.add(kept(KEEP, count as f64), count, ns);
        }
        let [switch, packet, frame] = self.own.map(|mean| mean.mean() as u64);
        let page = self.frame.page();
        page.own_switch_ns.store(switch, Relaxed);
        page.own_packet_ns.store(packet, Relaxed);
        self.frame.receiver.set_own(frame);
    }

    /// Tells meters what a wake-up takes that the original does without (a node that is not dilated has none), and how long after
    /// one the original's threads begin.
    fn tell_wakes(&mut self, now: &Counted, tdf: f64, of_one_tdf: bool) {
        let new = now.wakes.since(&self.read.wakes);
        if of_one_tdf {
            match self.probing {
                true => self.probed_wakes.add(|_| 1.0, &new),
                false => self.wakes.add(|count| kept(KEEP, count), &new),
            }
        }
        let extra_ns = if tdf > 1.0 { self.wakes.extra_ns() } else { 0.0 };
        self.frame.page().extra_wake_ns.store(extra_ns as u64, Relaxed);
        let [count, ns] = new.ways;
        self.ways.add(kept(KEEP, count as f64), count, ns);
        let way_ns = if self.ways.count >= WAKES_MIN { self.ways.mean() } else { 0.0 };
        self.frame.page().way_ns.store(way_ns as u64, Relaxed);
    }

    /// Tells clocks what interrupts would add to its threads' CPU time.
    fn tell_interrupts(&mut self) {
        let page = self.frame.page();
        let now = [self.frame.receiver.amid_ns(), page.counters.charged_ns.load(Relaxed)];
        let [amid_ns, charged_ns] = grown(&mut self.interrupts_read, now);
        self.interrupts.add(kept(KEEP, charged_ns as f64 / CHARGED_ONE_NS), charged_ns, amid_ns);
        page.interrupt_part.store(interrupt_part(self.interrupts.sum, self.interrupts.count), Relaxed);
    }

    /// Tells meters and counting programs what a hit adds to a burst; what was seen of older hits counts `keep` of itself.
    fn tell_hits(&mut self, egress: &Egress, keep: f64) {
        let page = self.frame.page();
        let k = &page.counters;
        let now = [&k.charging_hits, &k.seen_hits_ns].map(|c| c.load(Relaxed));
        let [hits, all_ns] = grown(&mut self.hits_read, now);
        self.hits_seen.add(keep, hits, all_ns);
        let seen_ns = self.hits_seen.mean();
        let mut added_ns = 0;
        if self.hits_seen.count >= HITS_MIN {
            let probed_ns = page.hit_cost_ns.load(Relaxed);
            let hidden_ns = self.hits.hidden_ns(seen_ns, probed_ns);
            // 0 is for what is not known.
            page.shown_hit_ns.store(hidden_ns.min(probed_ns).max(1), Relaxed);
            page.after_hit_ns.store(hidden_ns.saturating_sub(probed_ns), Relaxed);
            added_ns = hidden_ns + seen_ns as u64;
        }
        let [pays, all_ns] = grown(&mut self.pays_read, [&k.pays, &k.seen_pays_ns].map(|c| c.load(Relaxed)));
        self.pays_seen.add(keep, pays, all_ns);
        let cost = HitCost {
            added_ns,
            period_ns: self.frame.hits_apart_ns(),
            pays_ns: self.pays_seen.mean() as u64,
            lead: lead(page),
            by_cores: self.frame.ticks().is_some(),
        };
        // A map that refuses has what it was told last.
        let _ = egress.set_hit_cost(self.cookie, cost);
    }

    /// All that is known.
    fn evidence(&self) -> (Bursts, Ages) {
        let mut ages = self.probed_ages.clone();
        ages.age_and_add(1.0, &self.ages);
        (self.bursts.all(), ages)
    }

    /// What part of its work's cost is taken off ([`Level::wanted`]). What wake-ups take is no part of the work: at a lower TDF more
    /// requests share one, and what the original does without is taken off at packets.
    fn wanted(&self) -> Option<f64> {
        let Known { now, probed } = &self.bursts;
        if probed.count.iter().flatten().sum::<f64>() == 0.0 {
            return None;
        }
        let now = now.clone().without(self.wakes.extra_ns());
        Level::wanted(&now, &probed.clone().without(self.probed_wakes.extra_ns()))
    }

    fn tell(&mut self, (bursts, ages): &(Bursts, Ages), of_all: &[f64; GAP_BINS], growth: &Growth, tdf: f64) {
        let page = self.frame.page();
        // How old its work is now decides, not how it was at another TDF.
        let aged = self.ages.factor(&ages.growth(growth), tdf.log2());
        let mut table = discounts(&bursts.curve(of_all), aged, tdf);
        let now = [&page.counters.cold_ns, &page.counters.charged_ns].map(|c| c.load(Relaxed));
        let [cold_ns, charged_ns] = grown(&mut self.level_read, now);
        if self.probing {
            // What work costs now is what is taken for the original's.
            table = [0; GAP_BINS];
        } else if let Some(wanted) = self.wanted() {
            self.level.follow(&self.bursts.now, wanted, cold_ns, charged_ns);
            table = self.level.set(&table, &self.bursts.now, wanted);
        }
        for (cell, discount) in page.cold_discount.iter().zip(table) {
            cell.store(discount, Relaxed);
        }
    }
}

/// Whether this kernel counts what interrupts a thread as the thread's: one without IRQ_TIME_ACCOUNTING, or that was told not to
/// use it. Where the kernel does not tell, it is taken to keep them apart.
fn counts_interrupts() -> bool {
    let has = |path, word: &str| std::fs::read_to_string(path).map(|text| text.split_whitespace().any(|w| w == word));
    match has("/proc/kallsyms", "irqtime_account_irq") {
        Ok(true) => has("/proc/cmdline", "tsc=noirqtime").unwrap_or(false),
        Ok(false) => true,
        Err(_) => false,
    }
}

/// Starts the learning for the metered nodes of a lab, each with its namespace's cookie.
pub(crate) fn start_learning(
    egress: Arc<Egress>,
    nodes: Vec<(Arc<NodeFrame>, u64)>,
    live: Arc<Live>,
) -> std::io::Result<Beside> {
    let learner = |(frame, cookie): (Arc<NodeFrame>, u64)| {
        let receives = Receives { read: Bursts::of_receives(&frame.receiver.counts()), ..Receives::default() };
        let (frames_read, charged_ns) = (frame.receiver.frames(), frame.page().counters.charged_ns.load(Relaxed));
        let mut learner = Learner {
            frame,
            cookie,
            read: Counted::default(),
            bursts: Known::default(),
            ages: Ages::default(),
            probed_ages: Ages::default(),
            probing: false,
            level: Level::default(),
            level_read: [0; 2],
            receives,
            own: Default::default(),
            frames_read,
            wakes: Wakes::default(),
            probed_wakes: Wakes::default(),
            ways: Mean::default(),
            interrupts: Mean::default(),
            interrupts_read: [0; 2],
            hits: HitSums::default(),
            hits_seen: Mean::default(),
            hits_read: [0; 2],
            pays_seen: Mean::default(),
            pays_read: [0; 2],
            charged_ns,
            read_at: RealNs(time::monotonic_ns()),
        };
        learner.tell_hits(&egress, 1.0);
        // What making the nodes took is none of their programs'.
        learner.read = egress.counted(cookie).unwrap_or_default();
        learner
    };
    let mut learners: Vec<Learner> = nodes.into_iter().map(learner).collect();
    Beside::spawn("cold", move |stop| {
        let counts_interrupts = counts_interrupts();
        while !stop.load(Acquire) {
            for l in &mut learners {
                l.look(&egress, live.world.tdf().as_f64(), live.world.probing(), counts_interrupts);
            }
            let evidence: Vec<(Bursts, Ages)> = learners.iter().map(Learner::evidence).collect();
            let of_all = curve_of_all(evidence.iter().map(|(bursts, _)| bursts));
            let growth = growth_of_all(evidence.iter().map(|(_, ages)| ages));
            let tdf = live.world.tdf().as_f64();
            for (l, evidence) in learners.iter_mut().zip(&evidence) {
                l.tell(evidence, &of_all, &growth, tdf);
            }
            // One kernel receives for all.
            let receives: Vec<Bursts> = learners.iter().map(|l| l.receives.frames.all()).collect();
            let of_all = curve_of_all(receives.iter());
            for (l, evidence) in learners.iter().zip(&receives) {
                let table = l.receives.table(evidence, &of_all, tdf, l.probing);
                l.frame.receiver.set_cold_discount(&table);
            }
            std::thread::park_timeout(EVERY);
        }
    })
}
