//! Who had the host's cores: what the kernel counts for each, beside what the lab and `diecast` used.

use std::io;

use diecast_core_journal::{CoreUse, HostUse};
use diecast_core_vtime::RealNs;
use diecast_host_sys::time;

/// Beginnings of the names of the emulator's threads, and of those that keep cores awake.
const EMULATOR: &str = "diecast-net";
pub(crate) const AWAKE: &str = "awake";

/// CPU time of this process's threads whose names begin so, ns. Those that have ended are missing.
fn of_threads(names: [&str; 2]) -> [u64; 2] {
    let mut sums = [0; 2];
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let name = read("comm");
        let Some(at) = names.iter().position(|begin| name.starts_with(begin)) else { continue };
        sums[at] += read("schedstat").split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    sums
}

/// A look at the cores that this process may use; `nodes_ns` is the CPU time of all nodes up to now, `slow_ns` says for how
/// long a core was slow.
pub fn look(nodes_ns: u64, slow_ns: impl Fn(usize) -> u64) -> io::Result<HostUse> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let allowed = time::allowed_cpus();
    let mut cores = cores(&stat, time::tick_ns());
    cores.retain(|c| allowed.contains(&(c.core as usize)));
    cores.iter_mut().for_each(|c| c.slow_ns = slow_ns(c.core as usize));
    let [emulator_ns, awake_ns] = of_threads([EMULATOR, AWAKE]);
    let (r_ns, own_ns) = (RealNs(time::monotonic_ns()), time::process_cpu_ns());
    Ok(HostUse { r_ns, cores, own_ns, emulator_ns, awake_ns, nodes_ns })
}

/// The lines `cpuN` of /proc/stat: user nice system idle iowait irq softirq steal, in ticks. The times of guests, which
/// follow, are part of user and nice.
fn cores(stat: &str, tick_ns: u64) -> Vec<CoreUse> {
    let core = |line: &str| {
        // The first line is the sum of all: its name has no number.
        let numbered = line.strip_prefix("cpu").filter(|rest| !rest.starts_with(' '))?;
        let mut words = numbered.split_ascii_whitespace();
        let core = words.next()?.parse().ok()?;
        let ticks: Vec<u64> = words.map_while(|w| w.parse().ok()).collect();
        let [user, nice, system, idle, iowait, irq, softirq, stolen, ..] = ticks[..] else { return None };
        Some(CoreUse {
            core,
            busy_ns: (user + nice + system + irq + softirq) * tick_ns,
            idle_ns: (idle + iowait) * tick_ns,
            stolen_ns: stolen * tick_ns,
            slow_ns: 0,
        })
    };
    stat.lines().filter_map(core).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cores_are_read() {
        let stat =
            "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 8 1 2\ncpu12 0 0 0 1 0 0 0 0 0 0\ncpu3 1 2\nintr 5 0\n";
        assert_eq!(
            cores(stat, 10),
            [
                CoreUse { core: 0, busy_ns: 190, idle_ns: 450, stolen_ns: 80, slow_ns: 0 },
                CoreUse { core: 12, busy_ns: 0, idle_ns: 10, stolen_ns: 0, slow_ns: 0 }
            ]
        );
        assert_eq!(cores("", 10), []);
    }

    #[test]
    fn threads_are_told_apart_by_their_names() {
        let burn = |name: &str, ms: u64| {
            let work = move || {
                let until_ns = time::thread_cpu_ns() + ms * 1_000_000;
                while time::thread_cpu_ns() < until_ns {}
                of_threads(["burner-a", "burner-b"])
            };
            std::thread::Builder::new().name(name.into()).spawn(work).unwrap().join().unwrap()
        };
        let ms = |ns: [u64; 2]| ns.map(|ns| ns / 1_000_000);
        let (a, b) = (ms(burn("burner-a1", 30)), ms(burn("burner-b2", 50)));
        assert!((29..45).contains(&a[0]) && a[1] == 0, "{a:?}");
        assert!(b[0] == 0 && (49..65).contains(&b[1]), "{b:?}");
    }

    #[test]
    fn the_cores_of_this_host_pass_their_time() {
        let before = look(7, |_| 0).unwrap();
        let (began_ns, until_ns) = (time::monotonic_ns(), time::thread_cpu_ns() + 300_000_000);
        while time::thread_cpu_ns() < until_ns {}
        let after = look(7, |core| 5 + core as u64).unwrap();
        let took_ns = time::monotonic_ns() - began_ns;
        assert_eq!(before.cores.len(), time::allowed_cpus().len());
        let sum = |u: &HostUse| u.cores.iter().map(|c| c.busy_ns + c.idle_ns + c.stolen_ns).sum::<u64>();
        let passed = (sum(&after) - sum(&before)) / before.cores.len() as u64;
        // Whole ticks, of each kind; a core that sleeps, or that a hypervisor took, may be counted late.
        assert!((took_ns / 10..3 * took_ns + 1_000_000_000).contains(&passed), "{passed} ns a core in {took_ns} ns");
        assert!(after.own_ns - before.own_ns > 100_000_000, "this thread alone used more");
        assert_eq!((after.nodes_ns, after.cores[0].slow_ns), (7, 5 + u64::from(after.cores[0].core)));
    }
}
