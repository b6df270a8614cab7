//! The host's speed: what the same work costs on each core, and what a meter's hit costs.

use std::collections::BTreeMap;
use std::io;

use diecast_host_supervisor::Meters;
use diecast_host_supervisor::probe::{Hits, Look, Probe, hit_cost};
use diecast_host_sys::time;

use super::cpu::{GRAIN_NS, subject};
use super::on_thread;
use crate::report::{Check, Need, Subject};

/// Looks at each core, if time allows.
const ROUNDS: usize = 15;
/// No new look is begun after this.
const LOOKING_NS: u64 = 400_000_000;
/// Per cent that speeds may differ; `compare` gives no verdict beyond it.
const DIFFERENCE_PERCENT_MAX: f64 = 5.0;
/// A hit may cost this part of the default grain.
const HIT_PERCENT_MAX: f64 = 20.0;
/// The grain of a lab whose packets tell what their senders have used.
const LAB_GRAIN_NS: u64 = 500_000;
/// The hits of a busy node at TDF 10 would take too long here: those of one at TDF 1 and half speed.
const HITS: Hits = Hits { grain_ns: GRAIN_NS, pause_ns: GRAIN_NS };
/// More cores are not listed one by one.
const LISTED: usize = 4;

pub(super) fn all(meters: Meters) -> Vec<Check> {
    let (equal, steady) = (subject("cores alike", Need::Accuracy), subject("steady speed", Need::Accuracy));
    let metered = meters.any();
    match on_thread(move || looks(meters)) {
        Ok(looks) => {
            let mut checks = vec![judge_cores(equal, &looks), judge_steadiness(steady, &looks)];
            if metered {
                checks.push(judge_hits(subject("cost of a hit", Need::Accuracy), &looks));
            }
            checks
        }
        Err(e) => vec![equal.degraded(e.to_string(), "the speed of this host's cores is not known", "")],
    }
}

/// Round by round over all cores, so that a disturbance meets all of them.
fn looks(meters: Meters) -> io::Result<Vec<Look>> {
    let probe = Probe::new(meters.ticks(), meters.count_kernel())?;
    let cpus = time::allowed_cpus();
    let end = time::monotonic_ns() + LOOKING_NS;
    let mut looks = Vec::new();
    for _ in 0..ROUNDS {
        for cpu in &cpus {
            if time::monotonic_ns() > end && !looks.is_empty() {
                return Ok(looks);
            }
            looks.push(probe.look(*cpu, Some(HITS))?);
        }
    }
    Ok(looks)
}

/// The fixed work's times by core, ascending.
fn by_core(looks: &[Look]) -> BTreeMap<usize, Vec<u64>> {
    let mut cores: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for look in looks {
        cores.entry(look.cpu).or_default().push(look.work_ns);
    }
    cores.values_mut().for_each(|times| times.sort_unstable());
    cores
}

/// By how many per cent `more` is above `less`.
fn percent_above(more: u64, less: u64) -> f64 {
    (more as f64 / less.max(1) as f64 - 1.0) * 100.0
}

/// Compares the best time of each core: what the core can do.
fn judge_cores(s: Subject, looks: &[Look]) -> Check {
    let mut best: Vec<(u64, usize)> = by_core(looks).iter().map(|(core, times)| (times[0], *core)).collect();
    best.sort_unstable();
    let (Some(&(fastest_ns, fastest)), Some(&(slowest_ns, slowest))) = (best.first(), best.last()) else {
        return s.degraded("no core could be looked at", "the speed of this host's cores is not known", "");
    };
    let difference = percent_above(slowest_ns, fastest_ns);
    let list = if best.len() <= LISTED {
        let core = |(ns, core): &(u64, usize)| format!("core {core} {} us", ns / 1000);
        best.iter().map(core).collect::<Vec<_>>().join(", ")
    } else {
        format!("core {fastest} {} us ... core {slowest} {} us", fastest_ns / 1000, slowest_ns / 1000)
    };
    let found = format!("fixed work: {list}; {difference:.1} % apart");
    if difference > DIFFERENCE_PERCENT_MAX {
        return s.degraded(
            found,
            "a node's speed depends on the core that it is pinned to; 'compare' gives no verdict when the host's speed \
             differs by more than 5 % between runs",
            "keep other work off this host (and off its neighbours, on a rented one); on your own machine use cores of \
             one kind and the performance governor",
        );
    }
    s.ok(found)
}

/// Compares each core's median with its best: what others take away.
fn judge_steadiness(s: Subject, looks: &[Look]) -> Check {
    let worst = by_core(looks).into_iter().map(|(core, t)| (percent_above(t[t.len() / 2], t[0]), core, t.len()));
    let Some((above, core, count)) = worst.max_by(|a, b| a.0.total_cmp(&b.0)) else {
        return s.degraded("no core could be looked at", "the speed of this host's cores is not known", "");
    };
    let found = format!("the median of {count} looks at core {core} took {above:.1} % more CPU time than the best");
    if above > DIFFERENCE_PERCENT_MAX {
        return s.degraded(
            found,
            "the same work takes changing CPU time: results scatter, and short runs differ by as much",
            "keep other work off this host; run longer, and repeat",
        );
    }
    s.ok(found)
}

fn judge_hits(s: Subject, looks: &[Look]) -> Check {
    let mut costs: Vec<u64> = looks.iter().flat_map(|look| look.hit_costs_ns.iter().copied()).collect();
    costs.sort_unstable();
    let Some(cost) = hit_cost(&costs) else {
        return s.degraded("no hit came", "the meter's own cost can't be estimated and is charged to programs", "");
    };
    let of_grain = cost as f64 * 100.0 / GRAIN_NS as f64;
    let (low, high) = (costs[costs.len() / 10], costs[costs.len() * 9 / 10]);
    let found = format!(
        "{:.1} us, 80 % between {:.1} and {:.1}; {of_grain:.0} % of a frame's grain of {} us, {:.0} % of a lab's of {}",
        cost as f64 / 1e3,
        low as f64 / 1e3,
        high as f64 / 1e3,
        GRAIN_NS / 1_000,
        cost as f64 * 100.0 / LAB_GRAIN_NS as f64,
        LAB_GRAIN_NS / 1_000
    );
    if of_grain > HIT_PERCENT_MAX {
        return s.degraded(
            found,
            "the meter takes as much of the host's CPU beside what programs use; it is not charged to them, but leaves \
             less room on a core",
            "for frames --grain 500us, as labs have it: what is shorter is then less exact",
        );
    }
    s.ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;

    fn look(cpu: usize, work_us: u64, hit_us: u64) -> Look {
        Look { cpu, work_ns: work_us * 1000, hit_costs_ns: vec![hit_us * 1000], hit_rests_ns: Vec::new() }
    }

    #[test]
    fn cores_that_differ_are_told_by_their_best() {
        let s = subject("cores alike", Need::Accuracy);
        let alike = [look(0, 400, 5), look(1, 419, 5), look(0, 900, 5), look(1, 800, 5)];
        assert_eq!(judge_cores(s, &alike).status, Status::Ok);
        let check = judge_cores(s, &[look(0, 400, 5), look(7, 421, 5)]);
        assert_eq!(check.status, Status::Degraded);
        assert_eq!(check.found, "fixed work: core 0 400 us, core 7 421 us; 5.2 % apart");
        let many: Vec<Look> = (0..64).map(|cpu| look(cpu, 400 + cpu as u64, 5)).collect();
        assert_eq!(judge_cores(s, &many).found, "fixed work: core 0 400 us ... core 63 463 us; 15.7 % apart");
        assert_eq!(judge_cores(s, &[]).status, Status::Degraded);
    }

    #[test]
    fn an_unsteady_core_is_told_by_its_median() {
        let s = subject("steady speed", Need::Accuracy);
        let one_slow = [look(0, 400, 5), look(0, 401, 5), look(0, 4000, 5), look(1, 500, 5)];
        assert_eq!(judge_steadiness(s, &one_slow).status, Status::Ok);
        let half_slow = [look(0, 400, 5), look(0, 440, 5), look(0, 900, 5), look(1, 500, 5)];
        assert_eq!(judge_steadiness(s, &half_slow).status, Status::Degraded);
    }

    #[test]
    fn an_expensive_hit_is_told_as_part_of_the_grain() {
        let s = subject("cost of a hit", Need::Accuracy);
        let cheap: Vec<Look> = (1..=10).map(|us| look(0, 400, us)).collect();
        let check = judge_hits(s, &cheap);
        assert_eq!(check.status, Status::Ok);
        assert_eq!(
            check.found,
            "5.0 us, 80 % between 2.0 and 10.0; 5 % of a frame's grain of 100 us, 1 % of a lab's of 500"
        );
        assert_eq!(judge_hits(s, &[look(0, 400, 21)]).status, Status::Degraded);
        assert_eq!(
            judge_hits(s, &[Look { cpu: 0, work_ns: 1, hit_costs_ns: Vec::new(), hit_rests_ns: Vec::new() }]).status,
            Status::Degraded
        );
    }
}
