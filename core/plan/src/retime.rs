//! A running lab at another TDF: what its nodes then get of the host, or why the host can't.

use std::cmp::Reverse;

use diecast_core_experiment::Mode;
use diecast_core_vtime::Tdf;

use crate::capacity::{ceiling, ratio_of, shortened};
use crate::model::{Plan, PlannedNode, Quota};
use crate::ratio::Ratio;
use crate::refusal::{Reason, Refusal};

/// Below it code is hardly colder than in the original.
const PROBED_TDF_MIN: f64 = 4.0;

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
    pub fn probe_tdf(&self) -> Option<Tdf> {
        let part = |of: u64| Tdf::new(u64::from(self.tdf.num()), u64::from(self.tdf.den()) * of).ok();
        let fits = |of: u64| part(2 * of).is_some_and(|half| self.retimed(half).is_ok());
        let dilated = self.mode == Mode::Diecast && self.tdf.as_f64() >= PROBED_TDF_MIN;
        [4, 2].into_iter().filter(|of| dilated && fits(*of)).find_map(part)
    }

    /// Whether no CPU carries more than it may.
    fn carried(&self, tdf: Tdf, share: impl Fn(&PlannedNode) -> Ratio) -> Result<(), Refusal> {
        let on = |cpu: u32| self.nodes.iter().filter(move |n| n.cpus.contains(&cpu));
        let load = |cpu: u32| on(cpu).fold(Ratio::ZERO, |sum, n| sum.plus(share(n)));
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
