//! What the machine is, read from /proc, and the readers of those files.

use std::collections::BTreeMap;
use std::fs;

use diecast_host_node::Hierarchies;
use diecast_host_sys::time;
use serde::Serialize;

/// The machine in short.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct HostFacts {
    /// Kernel release.
    pub kernel: String,
    /// Instruction set, as `uname -m` says it.
    pub architecture: String,
    /// Model name of the processor.
    pub cpu_model: String,
    /// Cores that this process may use.
    pub cores: u32,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// Memory that programs could get now.
    pub memory_available_bytes: u64,
    /// Layout of control groups: `v1`, `hybrid`, `v2` or `none`.
    pub cgroups: String,
}

/// Reads them; nothing is tried.
pub fn host_facts() -> HostFacts {
    let uname = rustix::system::uname();
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    HostFacts {
        kernel: uname.release().to_string_lossy().into_owned(),
        architecture: uname.machine().to_string_lossy().into_owned(),
        cpu_model: cpu_model(&cpuinfo).unwrap_or("unknown processor").to_owned(),
        cores: time::allowed_cpus().len() as u32,
        memory_bytes: meminfo_bytes(&meminfo, "MemTotal").unwrap_or(0),
        memory_available_bytes: meminfo_bytes(&meminfo, "MemAvailable").unwrap_or(0),
        cgroups: Hierarchies::detect().map_or("none", |h| layout(&h)).to_owned(),
    }
}

/// `hybrid` is v1 with a v2 tree beside it.
pub(crate) fn layout(hierarchies: &Hierarchies) -> &'static str {
    match (hierarchies.is_v2(), hierarchies.v2_root().is_some()) {
        (true, true) => "v2",
        (false, true) => "hybrid",
        (false, false) => "v1",
        (true, false) => "none",
    }
}

/// A small text file without its last newline.
pub(crate) fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

/// A file with one number.
pub(crate) fn read_number(path: &str) -> Option<i64> {
    read(path)?.trim().parse().ok()
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.trim_start().strip_prefix(':')).map(str::trim)
}

/// A line `name:  123 kB`.
fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Controller to path of a process's cgroup, from lines `4:cpu,cpuacct:/a/b`; v2 has no controller: the empty name.
pub(crate) fn cgroup_paths(text: &str) -> BTreeMap<String, String> {
    let mut paths = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        if let (Some(controllers), Some(path)) = (fields.next(), fields.next()) {
            paths.extend(controllers.split(',').map(|name| (name.to_owned(), path.to_owned())));
        }
    }
    paths
}

/// A field of /proc/PID/status.
pub(crate) fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// On-CPU time, time waited for a core (ns) and slices, from /proc/PID/schedstat.
pub(crate) fn schedstat(text: &str) -> Option<(u64, u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse::<u64>().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

/// `1.0 TiB`, `24.1 GiB`, `700 MiB`: two or more digits.
pub(crate) fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc_are_read() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: Intel(R) Xeon(R)\nmodel\t: 1\n"), Some("Intel(R) Xeon(R)"));
        assert_eq!(cpu_model("processor: 0\nBogoMIPS: 48\n"), None);
        let meminfo = "MemTotal:       24682416 kB\nMemAvailable:   20000000 kB\nHugePages_Total:       0\n";
        assert_eq!(meminfo_bytes(meminfo, "MemTotal"), Some(24_682_416 * 1024));
        assert_eq!(meminfo_bytes(meminfo, "Mem"), None);
        assert_eq!(meminfo_bytes(meminfo, "HugePages_Total"), None);
        assert_eq!(status_field("Name:\tx\nCapEff:\t000001ffffffffff\nTracerPid:\t0\n", "TracerPid"), Some("0"));
        assert_eq!(status_field("CapEff:\t0\n", "Cap"), None);
        assert_eq!(schedstat("1203 45 6\n"), Some((1203, 45, 6)));
        assert_eq!(schedstat("0 0\n"), None);
        assert_eq!(schedstat("1 x 3\n"), None);
    }

    #[test]
    fn cgroups_of_a_process_on_hybrid_and_v2() {
        let hybrid = cgroup_paths("9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/c:d\n0::/x\n");
        assert_eq!(hybrid.get("cpuacct").map(String::as_str), Some("/c:d"));
        assert_eq!(hybrid.get("memory").map(String::as_str), Some("/a/b"));
        assert_eq!(hybrid.get("").map(String::as_str), Some("/x"));
        assert_eq!(cgroup_paths("0::/user.slice\n").len(), 1);
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(24 * 1024 * 1024 * 1024 + 100 * 1024 * 1024), "24.1 GiB");
        assert_eq!(bytes(700 * 1024 * 1024), "700 MiB");
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = host_facts();
        assert!(facts.cores >= 1 && facts.memory_bytes >= facts.memory_available_bytes && facts.memory_bytes > 0);
        assert!(facts.kernel.starts_with(|c: char| c.is_ascii_digit()), "{}", facts.kernel);
    }
}
