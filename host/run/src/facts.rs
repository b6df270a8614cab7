//! Facts about this machine, in the words of a plan and of a journal.

use std::io;
use std::sync::OnceLock;

use diecast_core_journal::HostFacts;
use diecast_host_sys::time;

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
    })
}

/// The grain of a lab on this host, ns of real CPU time. Loads and unloads the BPF programs for debt at egress.
pub fn default_grain_ns() -> u64 {
    match diecast_host_egress::Egress::load() {
        Ok(_) => diecast_core_plan::GRAIN_NS_WITH_DEBT,
        Err(_) => diecast_core_plan::GRAIN_NS_DEFAULT,
    }
}
