//! Facts about this machine that a plan and a journal need.

use diecast_core_journal::HostFacts;
use diecast_host_node::Hierarchies;
use diecast_host_sys::time;

fn line_value(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find(|l| l.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = line_value(&text, key).and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// What the journal says about the machine.
pub fn host_facts() -> HostFacts {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cgroups = match Hierarchies::detect() {
        Ok(h) if h.is_v2() => "v2",
        Ok(h) if h.v2_root().is_some() => "hybrid",
        Ok(_) => "v1",
        Err(_) => "none",
    };
    HostFacts {
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        cpu_model: line_value(&cpuinfo, "model name").unwrap_or_default(),
        cores: time::allowed_cpus().len() as u32,
        memory_bytes: memory_bytes("MemTotal"),
        cgroups: cgroups.to_owned(),
    }
}

/// What a plan needs to know: CPUs, and the memory that is free for nodes.
pub fn plan_facts() -> diecast_core_plan::HostFacts {
    diecast_core_plan::HostFacts {
        cpus: time::allowed_cpus().into_iter().map(|c| c as u32).collect(),
        memory_bytes: memory_bytes("MemAvailable"),
    }
}
