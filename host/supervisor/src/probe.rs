//! The host under suspicion: what does the same work cost on each core now, and what does a meter's hit cost
//! beyond what the blob can see?
//!
//! A hit's hidden cost is seen one by one: a thread that does nothing but read the clock finds a gap, and the part of it
//! that lies outside of what the handler measured is hidden. The handler sleeps as a node's does, since what a hit costs
//! depends on how long the core did something else.
//!
//! A meter's event also makes it dearer to give a thread a core: its timer is set each time. That is the difference of what
//! it costs a thread with such an event and without to ask another on its core and to wait for the answer.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use diecast_core_abi::left_since_ns;
use diecast_core_cpu::undisturbed_ns;
use diecast_host_sys::perf::Meter;
use diecast_host_sys::trap::Hidden;
use diecast_host_sys::{Tid, time, trap};
use diecast_host_tick::CoreTicks;

/// Turns of the probe's loop; about 100 µs on a core of 2 GHz. A program that wants the core waits for the probe, and at
/// TDF 1 that shows in its latencies.
const TURNS: u64 = 100_000;
/// Passes, of which the fastest counts, and parts of each that are timed: on a core with the traffic of a busy lab hardly
/// any 100 µs go by without an interrupt, whose time Linux takes for the thread's.
const PASSES: usize = 3;
const PARTS: usize = 8;
/// CPU time for hits that one look may take, ns, and how many hits it makes of it.
const HITS_NS: u64 = 2_000_000;
const HITS_MIN: u64 = 4;
const HITS_MAX: u64 = 16;
/// Hits sleep for at most this.
const PAUSE_MAX_NS: u64 = 5_000_000;
/// Questions by which a look compares switches with an event and without.
const QUESTIONS: usize = 24;
/// CPU time between two of them at most, ns: the event's timer is set for what is left of a grain.
const BETWEEN_MAX_NS: u64 = 100_000;
/// Rounds of as many for one figure.
const QUESTION_ROUNDS: usize = 100;

/// One look at one core.
#[derive(Clone, Debug)]
pub struct Look {
    pub cpu: usize,
    /// CPU time of the fixed work without what disturbed single parts of it, ns.
    pub work_ns: u64,
    /// CPU time of each hit that its handler can't see, ns; empty when no hit came.
    pub hit_costs_ns: Vec<u64>,
    /// The same without what lies between the clock's interrupt and the handler, where that is known.
    pub hit_rests_ns: Vec<u64>,
}

/// How hits come that the probe imitates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Hits {
    /// CPU time between two.
    pub grain_ns: u64,
    /// Real time for which each puts its thread to sleep.
    pub pause_ns: u64,
}

/// The median, of two the lower: what one hit costs beside which nothing else happens. An interrupt of the kernel's own, beside
/// it by chance, is no part of it, and natively takes as much of a program.
pub fn hit_cost(costs_ns: &[u64]) -> Option<u64> {
    let mut sorted = costs_ns.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

/// Fixed work that a compiler can't shorten: a chain of multiplications.
#[inline(never)]
pub fn fixed_work(turns: u64) -> u64 {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    for i in 0..turns {
        x = std::hint::black_box(x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ i);
    }
    x
}

fn timed(turns: u64) -> u64 {
    let before = time::thread_cpu_ns();
    fixed_work(turns);
    time::thread_cpu_ns() - before
}

/// What questions and the waits for their answers cost the calling thread, ns of CPU time each, with some work between them.
/// Those with a hit in between are left out.
fn question_costs(peer: &mut UnixStream, between_ns: u64) -> io::Result<Vec<u64>> {
    let mut costs = Vec::with_capacity(QUESTIONS);
    for _ in 0..QUESTIONS {
        let end_ns = time::thread_cpu_ns() + between_ns;
        while time::thread_cpu_ns() < end_ns {}
        let hits = trap::hits();
        let before_ns = time::thread_cpu_ns();
        peer.write_all(&[0])?;
        peer.read_exact(&mut [0])?;
        let cost_ns = time::thread_cpu_ns() - before_ns;
        if trap::hits() == hits {
            costs.push(cost_ns);
        }
    }
    Ok(costs)
}

/// Does something beside a thread that answers. It is begun before there is an event, which it would inherit, and stays on this
/// core, if the calling thread is pinned to it.
fn asking<T>(ask: impl FnOnce(&mut UnixStream) -> io::Result<T>) -> io::Result<T> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    let answers = std::thread::Builder::new().name("probe".into()).spawn(move || {
        let mut word = [0];
        while theirs.read_exact(&mut word).and_then(|()| theirs.write_all(&word)).is_ok() {}
    })?;
    let found = ask(&mut ours);
    drop(ours);
    let _ = answers.join();
    found
}

/// What a question to a thread on the same core costs the calling one, which is pinned, ns of CPU time: a switch, and what is
/// around it; of some rounds the fastest. None where a hit came with each.
pub fn question_cost_ns() -> io::Result<Option<u64>> {
    asking(|peer| {
        let rounds = (0..QUESTION_ROUNDS).map(|_| Ok(hit_cost(&question_costs(peer, 0)?)));
        Ok(rounds.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().min())
    })
}

/// A probe for the calling thread, which it moves from core to core.
pub struct Probe {
    count_kernel: bool,
    ticks: Option<Arc<CoreTicks>>,
}

impl Probe {
    /// A probe whose hits come as those of programs do: from clocks of cores where there are some, else from an event that
    /// counts kernel mode or not.
    pub fn new(ticks: Option<Arc<CoreTicks>>, count_kernel: bool) -> io::Result<Probe> {
        trap::install_handler();
        time::set_timer_slack_ns(1)?;
        Ok(Probe { count_kernel, ticks })
    }

    /// Looks at one core: fixed work, and some hits where they are asked for. Without permission for an event only the work
    /// is timed.
    pub fn look(&self, cpu: usize, hits: Option<Hits>) -> io::Result<Look> {
        time::pin_to(&[cpu])?;
        // The first pass warms the caches and is not counted.
        timed(TURNS / 10);
        let pass = |_| undisturbed_ns::<PARTS>(std::array::from_fn(|_| timed(TURNS / PARTS as u64)));
        let work_ns = (0..PASSES).map(pass).min().unwrap_or_default();
        let hidden = hits.map_or(Ok(Vec::new()), |hits| self.hits(hits))?;
        // One that was left in the handler of the last had to wait for its end: by its stamp it took longer than it did.
        let rest_ns = |h: &Hidden| h.ns.checked_sub(left_since_ns(h.told, h.handled_ns)?);
        let known = if self.ticks.is_some() { &hidden[..] } else { &[] };
        Ok(Look {
            cpu,
            work_ns,
            hit_costs_ns: hidden.iter().map(|h| h.ns).collect(),
            hit_rests_ns: known.iter().filter_map(rest_ns).collect(),
        })
    }

    /// CPU time that an event of this grain adds to each switch to its thread, ns, on the core of the last look. A core's
    /// clock adds none; what its programs take, 0.2 us where it was measured, the thread pays.
    pub fn switch_cost_ns(&self, grain_ns: u64) -> io::Result<Option<u64>> {
        if self.ticks.is_some() {
            return Ok(Some(0));
        }
        let between_ns = (grain_ns / QUESTIONS as u64).min(BETWEEN_MAX_NS);
        asking(|peer| {
            let Ok(meter) = Meter::open(Tid(0), grain_ns, 0, self.count_kernel) else { return Ok(None) };
            let without = hit_cost(&question_costs(peer, between_ns)?);
            meter.enable()?;
            let with = question_costs(peer, between_ns);
            meter.disable()?;
            Ok(hit_cost(&with?).zip(without).map(|(with, without)| with.saturating_sub(without)))
        })
    }

    fn hits(&self, hits: Hits) -> io::Result<Vec<Hidden>> {
        let count = (HITS_NS / hits.grain_ns.max(1)).clamp(HITS_MIN, HITS_MAX);
        let pause_ns = hits.pause_ns.min(PAUSE_MAX_NS);
        // Twice what they take undisturbed.
        let end_ns = time::monotonic_ns() + 2 * count * (hits.grain_ns + pause_ns + HITS_NS / HITS_MAX);
        if let Some(ticks) = &self.ticks {
            // By the clocks that hit the programs: one more would interrupt each hit now and then, which is no part of its cost.
            let _ticking = ticks.meter_here()?;
            return Ok(trap::hidden_costs(count as usize, pause_ns, end_ns));
        }
        let Ok(meter) = Meter::open(Tid(0), hits.grain_ns, 0, self.count_kernel) else { return Ok(Vec::new()) };
        meter.enable()?;
        let costs = trap::hidden_costs(count as usize, pause_ns, end_ns);
        meter.disable()?;
        Ok(costs)
    }
}

#[cfg(test)]
mod tests {
    use diecast_host_tick::Cadence;

    use super::*;

    #[test]
    fn what_happens_beside_a_hit_is_no_part_of_its_cost() {
        let mut costs = vec![10_000; 20];
        costs.extend([24_000; 18]);
        costs.extend([900_000, 5_000_000]);
        assert_eq!(hit_cost(&costs), Some(10_000));
        assert_eq!(hit_cost(&[7_000]), Some(7_000));
        assert_eq!(hit_cost(&[7_000, 90_000]), Some(7_000));
        assert_eq!(hit_cost(&[]), None);
    }

    /// Nested virtual machines pay microseconds for a timer that others set for nothing.
    #[test]
    fn an_event_makes_switches_dearer_the_shorter_its_grain() {
        let probe = Probe::new(None, true).unwrap();
        time::pin_to(&time::allowed_cpus()[..1]).unwrap();
        let cost = |grain_ns: u64| {
            let mut costs: Vec<u64> = (0..20).filter_map(|_| probe.switch_cost_ns(grain_ns).unwrap()).collect();
            costs.sort_unstable();
            costs.get(costs.len() / 2).copied()
        };
        let (Some(short), Some(long)) = (cost(100_000), cost(50_000_000)) else {
            diecast_quiet::skipped("no event may be opened here");
            return;
        };
        assert!(short < 100_000 && long <= short + 2_000, "{short} and {long} ns");
    }

    /// The pause is no cost: it is between the handler's readings.
    #[test]
    fn a_hit_costs_some_microseconds_however_long_it_sleeps() {
        let probe = Probe::new(None, true).unwrap();
        for pause_ns in [0, 900_000] {
            let cpu = time::allowed_cpus()[0];
            let looks: Vec<Look> =
                (0..8).map(|_| probe.look(cpu, Some(Hits { grain_ns: 100_000, pause_ns })).unwrap()).collect();
            let costs: Vec<u64> = looks.into_iter().flat_map(|l| l.hit_costs_ns).collect();
            let Some(cost) = hit_cost(&costs) else {
                diecast_quiet::skipped("no event may be opened here");
                return;
            };
            assert!((1_000..200_000).contains(&cost), "pause {pause_ns}: {cost} ns of {costs:?}");
        }
    }

    /// Linux takes an interrupt's time for the thread's that it meets, and 74 µs lie between two of these.
    #[test]
    fn interrupts_do_not_make_a_core_look_slow() {
        let cpu = time::allowed_cpus()[0];
        let probe = Probe::new(None, true).unwrap();
        // The fastest: a host's own speed changes within milliseconds, interrupts meet every look.
        let fastest_ns = || (0..7).map(|_| probe.look(cpu, None).unwrap().work_ns).min().unwrap();
        diecast_quiet::look(|| {
            let (mut alone_ns, mut beside_ns) = (u64::MAX, u64::MAX);
            for _ in 0..15 {
                alone_ns = alone_ns.min(fastest_ns());
                let ticks = match CoreTicks::start(&[cpu], Cadence::of_grain(40_000), None) {
                    Ok(ticks) => ticks,
                    Err(e) => {
                        diecast_quiet::skipped(e.to_string());
                        return;
                    }
                };
                beside_ns = beside_ns.min(fastest_ns());
                drop(ticks);
            }
            println!("{alone_ns} ns, {beside_ns} beside interrupts");
            assert!(beside_ns < alone_ns * 103 / 100, "{beside_ns} ns beside interrupts, {alone_ns} without");
        });
    }

    /// Of a core's clock most of a hit's cost lies before its handler, and the hit tells.
    #[test]
    fn a_hit_of_a_cores_clock_tells_its_way_to_the_handler() {
        let cpu = time::allowed_cpus()[0];
        let ticks = match CoreTicks::start(&[cpu], Cadence::of_grain(500_000), None) {
            Ok(ticks) => ticks,
            Err(e) => {
                diecast_quiet::skipped(e.to_string());
                return;
            }
        };
        let probe = Probe::new(Some(Arc::new(ticks)), true).unwrap();
        diecast_quiet::look(|| {
            let looks: Vec<Look> =
                (0..8).map(|_| probe.look(cpu, Some(Hits { grain_ns: 500_000, pause_ns: 0 })).unwrap()).collect();
            let costs: Vec<u64> = looks.iter().flat_map(|l| l.hit_costs_ns.clone()).collect();
            let rests: Vec<u64> = looks.iter().flat_map(|l| l.hit_rests_ns.clone()).collect();
            assert!(costs.len() >= 8 && rests.len() > costs.len() * 3 / 4, "{costs:?} {rests:?}");
            let (cost, rest) = (hit_cost(&costs).unwrap(), hit_cost(&rests).unwrap());
            println!("{cost} ns a hit, {rest} without its way to the handler");
            assert!(rest > 0 && rest < cost * 3 / 4, "{rest} of {cost}: {costs:?} {rests:?}");
        });
    }
}
