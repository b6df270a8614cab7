//! A running lab at another TDF: what its nodes then get of the host, or why the host can't.

use std::cmp::Reverse;

use diecast_core_experiment::Mode;
use diecast_core_vtime::{Tdf, VirtSpan};

use crate::capacity::{ceiling, on_each, ratio_of, shortened};
use crate::model::{Plan, PlannedNode, Quota};
use crate::ratio::Ratio;
use crate::refusal::{Reason, Refusal};

/// Below it code is hardly colder than in the original.
const PROBED_TDF_MIN: f64 = 4.0;
/// Where in the warm-up the lab is probed, in percent of it: once the load has settled, and ending early enough for the
/// lab to settle again.
const PROBED_PERCENT: [u64; 2] = [60, 90];
/// Shorter probes see too little.
const PROBED_MIN_NS: u64 = 1_000_000_000;

/// A part of the warm-up in which the lab runs at a lower TDF, to see what its work costs where code is less cold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probing {
    pub tdf: Tdf,
    /// Since the load began.
    pub begin: VirtSpan,
    pub end: VirtSpan,
}

impl Probing {
    fn of(tdf: Tdf, warm_up: VirtSpan) -> Probing {
        // Rounded down by less than 100 ns.
        let [begin, end] = PROBED_PERCENT.map(|percent| VirtSpan(warm_up.ns() / 100 * percent));
        Probing { tdf, begin, end }
    }

    fn shows_enough(self) -> bool {
        self.tdf.to_real(VirtSpan(self.end.ns() - self.begin.ns())).ns() >= PROBED_MIN_NS
    }
}

impl Plan {
    /// The nodes' quotas at this TDF, in their order. Placement stays as it is.
    pub fn retimed(&self, tdf: Tdf) -> Result<Vec<Quota>, Refusal> {
        if self.mode != Mode::Diecast {
            let hint = "start the lab with --mode diecast, if need be at --tdf 1";
            return Err(Refusal::elsewhere(Reason::TdfNotOne { mode: self.mode, tdf }, hint));
        }
        let share = |n: &PlannedNode| {
            let tdf = ratio_of(tdf);
            Ratio::new(u128::from(n.speed_ppm.0) * tdf.den(), 1_000_000 * tdf.num())
        };
        if let Some(n) = self.nodes.iter().filter(|n| share(n) > Ratio::ONE).max_by_key(|n| n.speed_ppm) {
            let needed = n.speed_ppm.0.div_ceil(1_000_000);
            let machine_type = n.machine_type.clone();
            let reason = Reason::SpeedAboveTdf { machine_type, speed: n.speed_ppm, tdf, share: share(n) };
            return Err(Refusal::elsewhere(reason, format!("at least --tdf {needed}")));
        }
        self.carried(tdf, share)?;
        Ok(self.nodes.iter().map(|n| ceiling(share(n).times(u128::from(n.cores)))).collect())
    }

    /// A lower TDF at which the lab can run for a moment, to see what its work costs where code is less cold: a quarter, or a
    /// half, of its own where the nodes then need no more than half of what a CPU may carry; none where no time is dilated.
    fn probing_tdf(&self) -> Option<Tdf> {
        let part = |of: u64| Tdf::new(u64::from(self.tdf.num()), u64::from(self.tdf.den()) * of).ok();
        let fits = |of: u64| part(2 * of).is_some_and(|half| self.retimed(half).is_ok());
        [4, 2].into_iter().filter(|of| self.cools() && fits(*of)).find_map(part)
    }

    /// Whether the lab is so slow that its code is colder than the original's.
    fn cools(&self) -> bool {
        self.mode == Mode::Diecast && self.tdf.as_f64() >= PROBED_TDF_MIN
    }

    /// When the lab is probed; not at all where the host has no room or the warm-up is too short.
    pub fn probing(&self) -> Option<Probing> {
        self.probing_tdf().map(|tdf| Probing::of(tdf, self.workload.warm_up_ns)).filter(|p| p.shows_enough())
    }

    /// Why a lab whose code is cold is not probed, and with what it would be.
    pub(crate) fn not_probed(&self) -> Option<String> {
        if !self.cools() || self.probing().is_some() {
            return None;
        }
        const TENTH_NS: u64 = 100_000_000;
        let why = match self.probing_tdf() {
            Some(tdf) => {
                // At a TDF of 1, the lowest, 3.4 s.
                let long_enough = |tenths: &u64| Probing::of(tdf, VirtSpan(tenths * TENTH_NS)).shows_enough();
                let tenths = (1..=600).find(long_enough)?;
                format!(
                    "the warm-up is too short to run at TDF {tdf} for a moment; with {} s it does",
                    tenths as f64 / 10.0
                )
            }
            None => "the host has no room to run at a lower TDF for a moment".to_owned(),
        };
        Some(format!("what cold code adds to this lab's CPU time is known less well: {why}"))
    }

    /// Whether no CPU carries more than it may.
    fn carried(&self, tdf: Tdf, share: impl Fn(&PlannedNode) -> Ratio) -> Result<(), Refusal> {
        let on = |cpu: u32| self.nodes.iter().filter(move |n| n.cpus.contains(&cpu));
        let of = |n: &PlannedNode| on_each(share(n), n.cores, n.cpus.len());
        let load = |cpu: u32| on(cpu).fold(Ratio::ZERO, |sum, n| sum.plus(of(n)));
        let loads = || self.cpus.iter().map(|c| (c.cpu, load(c.cpu)));
        let Some((cpu, needed)) = loads().filter(|l| l.1 > self.core_limit).min_by_key(|l| Reverse(l.1)) else {
            return Ok(());
        };
        let fits = Ratio::new(
            needed.num() * u128::from(tdf.num()) * self.core_limit.den(),
            needed.den() * u128::from(tdf.den()) * self.core_limit.num().max(1),
        );
        let names: Vec<String> = on(cpu).map(|n| n.name.clone()).collect();
        let reason = Reason::TooMuchCpu {
            cpu,
            needed,
            nodes: shortened(&names),
            limit: self.core_limit,
            total: loads().fold(Ratio::ZERO, |sum, l| sum.plus(l.1)),
            cpus: self.host.cpus.len(),
        };
        Err(Refusal::elsewhere(reason, format!("at least --tdf {}", fits.ceil())))
    }
}
