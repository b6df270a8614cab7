//! Facts about this machine, in the words of a plan and of a journal.

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

/// What a plan needs to know: CPUs, and the memory that is free for nodes.
pub fn plan_facts() -> diecast_core_plan::HostFacts {
    diecast_core_plan::HostFacts {
        cpus: time::allowed_cpus().into_iter().map(|c| c as u32).collect(),
        memory_bytes: diecast_host_doctor::host_facts().memory_available_bytes,
    }
}

/// The grain of a lab on this host, ns of real CPU time. Loads and unloads the BPF programs for debt at egress.
pub fn default_grain_ns() -> u64 {
    match diecast_host_egress::Egress::load() {
        Ok(_) => diecast_core_plan::GRAIN_NS_WITH_DEBT,
        Err(_) => diecast_core_plan::GRAIN_NS_DEFAULT,
    }
}
