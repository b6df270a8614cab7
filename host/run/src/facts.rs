//! Facts about this machine, in the words of a plan and of a journal.

use std::io;
use std::sync::OnceLock;

use diecast_core_journal::HostFacts;
use diecast_host_supervisor::probe::{Hits, Probe, hit_cost};
use diecast_host_supervisor::{HitsFrom, Meters};
use diecast_host_sys::time;
use diecast_host_tick::Cadence;

/// What the journal says about the machine.
pub fn host_facts() -> HostFacts {
    let host = diecast_host_doctor::host_facts();
    HostFacts {
        kernel: host.kernel,
        cpu_model: host.cpu_model,
        cores: host.cores,
        memory_bytes: host.memory_bytes,
        cgroups: host.cgroups,
    }
}

/// What a plan needs to know: CPUs, the memory that is free for nodes, and the machine score where a catalog has scores.
/// The score is measured once, so that all plans of a command agree.
pub fn plan_facts(with_score: bool) -> io::Result<diecast_core_plan::HostFacts> {
    static SCORE_MILLI: OnceLock<u64> = OnceLock::new();
    let score_milli = match SCORE_MILLI.get() {
        _ if !with_score => None,
        Some(milli) => Some(*milli),
        None => {
            let milli = diecast_host_doctor::score()?.milli;
            Some(*SCORE_MILLI.get_or_init(|| milli))
        }
    };
    Ok(diecast_core_plan::HostFacts {
        cpus: time::allowed_cpus().into_iter().map(|c| c as u32).collect(),
        memory_bytes: diecast_host_doctor::host_facts().memory_available_bytes,
        score_milli,
        hit_cost_ns: None,
    })
}

/// The grain of a lab on this host, ns of real CPU time. Loads and unloads the BPF programs for debt at egress.
pub fn default_grain_ns() -> u64 {
    match diecast_host_egress::Egress::load() {
        Ok(_) => diecast_core_plan::GRAIN_NS_WITH_DEBT,
        Err(_) => diecast_core_plan::GRAIN_NS_DEFAULT,
    }
}

/// A grain is so many times what a hit costs at least, or programs get on slowly; where a hit costs a grain, the next one is
/// due as soon as it ends, and they don't get on at all.
const GRAIN_OF_HITS: u64 = 2;
/// No host was seen where a hit costs so much that a grain of this length is too short. Hits are measured with it.
const GRAIN_SAFE_NS: u64 = 100_000;
const LOOKS: usize = 4;

/// The least grain not below `asked_ns` with which programs get on. A short one is held against what hits cost here, which
/// takes some milliseconds.
pub fn kept_grain_ns(asked_ns: u64, hits_from: HitsFrom) -> u64 {
    if asked_ns >= GRAIN_SAFE_NS {
        return asked_ns;
    }
    let cost_ns = hit_cost_ns(hits_from).unwrap_or(0);
    asked_ns.max((cost_ns * GRAIN_OF_HITS).next_multiple_of(1_000).min(GRAIN_SAFE_NS))
}

/// What a hit costs here, real CPU ns, where it is known: some milliseconds of looks.
pub fn hit_cost_ns(hits_from: HitsFrom) -> Option<u64> {
    // Another thread's cores and timer slack are changed, not the caller's.
    let measured = std::thread::spawn(move || {
        let (meters, _) = Meters::start(hits_from, Cadence::of_grain(GRAIN_SAFE_NS), None).ok()?;
        let probe = Probe::new(meters.ticks(), meters.count_kernel()).ok()?;
        let cpu = *time::allowed_cpus().first()?;
        let hits = Hits { grain_ns: GRAIN_SAFE_NS, pause_ns: GRAIN_SAFE_NS };
        let costs: Vec<u64> =
            (0..LOOKS).filter_map(|_| probe.look(cpu, Some(hits)).ok()).flat_map(|l| l.hit_costs_ns).collect();
        hit_cost(&costs)
    });
    measured.join().ok().flatten()
}
