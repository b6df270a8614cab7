//! A running lab at another TDF: what its nodes then get of the host, or why the host can't.

use std::cmp::Reverse;

use diecast_core_experiment::Mode;
use diecast_core_vtime::Tdf;

use crate::capacity::{ceiling, ratio_of, shortened};
use crate::model::{Plan, PlannedNode, Quota};
use crate::ratio::Ratio;
use crate::refusal::{Reason, Refusal};

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
