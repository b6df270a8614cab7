//! Cgroups: layout, controllers, quota; real-time priority beside them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use diecast_host_node::{Cgroup, Hierarchies, ProcessId, Quota};

use super::{on_thread, refused, root_or};
use crate::facts::{cgroup_paths, layout, read, read_number};
use crate::report::{Check, Need, Part, Subject};
use crate::sys;

/// Cgroups of trials are named after their process, so that those of killed ones are known.
const TRIAL: &str = "diecast-doctor-";
/// Priority of the emulator's thread.
const FIFO_PRIORITY: i32 = 50;

const fn subject(name: &'static str, need: Need) -> Subject {
    Subject { name, part: Part::Cpu, need }
}

pub(super) fn all() -> Vec<Check> {
    let groups = subject("cgroups", Need::Labs);
    let hierarchies = match Hierarchies::detect() {
        Ok(h) if layout(&h) != "none" => h,
        Ok(_) => return vec![no_cgroups(groups, "no cgroup file system is mounted below /sys/fs/cgroup"), fifo(None)],
        Err(e) => return vec![no_cgroups(groups, &e.to_string()), fifo(None)],
    };
    vec![
        groups.ok(describe(&hierarchies)),
        controllers(&hierarchies),
        quota(&hierarchies),
        fifo(v1_directory(&hierarchies, "cpu").as_deref()),
    ]
}

fn no_cgroups(s: Subject, found: &str) -> Check {
    s.missing(
        found,
        "nodes have nothing to be held in: no labs, only frames",
        "mount them: mount -t cgroup2 none /sys/fs/cgroup",
    )
}

fn describe(hierarchies: &Hierarchies) -> String {
    match (layout(hierarchies), hierarchies.v2_root()) {
        ("v2", Some(root)) => format!("v2 at {}", root.display()),
        (kind, Some(root)) => format!("{kind}, v2 at {}", root.display()),
        (kind, None) => kind.to_owned(),
    }
}

/// Where a v1 host has a controller.
fn v1_directory(hierarchies: &Hierarchies, controller: &'static str) -> Option<PathBuf> {
    if hierarchies.is_v2() { None } else { hierarchies.cgroup("").directory(controller).ok() }
}

fn controllers(hierarchies: &Hierarchies) -> Check {
    let s = subject("controllers", Need::Labs);
    // In v2 every cgroup counts its CPU time.
    let needed: &[&str] = if hierarchies.is_v2() { &["cpu", "memory"] } else { &["cpu", "cpuacct", "memory"] };
    let have = |names: &[&'static str]| -> Vec<&'static str> {
        names.iter().copied().filter(|name| hierarchies.has(name)).collect()
    };
    let found = have(&["cpu", "cpuacct", "cpuset", "memory", "pids", "freezer"]);
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    let lacking: Vec<&str> = needed.iter().copied().filter(|name| !hierarchies.has(name)).collect();
    if !lacking.is_empty() {
        return s.missing(
            format!("{found}; not {}", lacking.join(", ")),
            "nodes can't be limited and accounted: no labs, only frames",
            "mount or enable them (boot without cgroup_disable=; in a container, delegate them)",
        );
    }
    if !hierarchies.has("cpuset") {
        return s.degraded(
            format!("{found}; not cpuset"),
            "nodes are not pinned to the cores that the plan gives them: results scatter",
            "mount or enable the cpuset controller",
        );
    }
    s.ok(found)
}

/// What a v2 root hands on to its children; making a node's cgroup adds to it.
fn handed_on(hierarchies: &Hierarchies) -> Option<(PathBuf, String)> {
    let file = hierarchies.v2_root().filter(|_| hierarchies.is_v2())?.join("cgroup.subtree_control");
    let text = fs::read_to_string(&file).ok()?;
    Some((file, text))
}

/// Takes back what a trial has added, unless labs rely on it: then the kernel refuses, or their cgroup is there.
fn take_back(file: &Path, before: &str) {
    let labs = file.parent().is_some_and(|root| root.join("diecast").exists());
    let now = fs::read_to_string(file).unwrap_or_default();
    for added in added_controllers(before, &now).iter().filter(|_| !labs) {
        // Refused while a sibling uses it: then it is needed.
        let _ = fs::write(file, format!("-{added}"));
    }
}

fn added_controllers<'a>(before: &str, now: &'a str) -> Vec<&'a str> {
    now.split_ascii_whitespace().filter(|name| !before.split_ascii_whitespace().any(|old| old == *name)).collect()
}

/// Removes what doctors have left that were killed in the middle of this trial.
fn remove_stale(hierarchies: &Hierarchies) {
    let Ok(root) = hierarchies.cgroup("").directory("cpu") else { return };
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(TRIAL).and_then(|pid| pid.parse().ok());
        if pid.is_some_and(|pid| ProcessId::of(pid).is_none()) {
            let _ = hierarchies.cgroup(name).remove();
        }
    }
}

/// A cgroup that goes with the trial.
struct Trial {
    cgroup: Cgroup,
    handed_on: Option<(PathBuf, String)>,
}

impl Drop for Trial {
    fn drop(&mut self) {
        // What stays is removed by the next doctor.
        let _ = self.cgroup.remove();
        if let Some((file, before)) = &self.handed_on {
            take_back(file, before);
        }
    }
}

fn set_quota(hierarchies: &Hierarchies) -> Result<String, String> {
    remove_stale(hierarchies);
    let handed_on = handed_on(hierarchies);
    let cgroup = hierarchies.cgroup(format!("{TRIAL}{}", std::process::id()));
    let trial = Trial { cgroup, handed_on };
    trial.cgroup.create().map_err(|e| refused(&e))?;
    let quota = Quota { quota_us: 20_000, period_us: 100_000 };
    trial.cgroup.set_quota(Some(quota)).map_err(|e| refused(&e))?;
    match trial.cgroup.quota() {
        Ok(Some(q)) if q == quota => {}
        Ok(other) => return Err(format!("a quota of {quota:?} became {other:?}")),
        Err(e) => return Err(e.to_string()),
    }
    trial.cgroup.cpu_usage_ns().and_then(|_| trial.cgroup.throttled()).map_err(|e| e.to_string())?;
    trial.cgroup.memory_usage().map_err(|e| e.to_string())?;
    Ok("a cgroup was made; 20 ms in 100 ms set and read back; usage, throttling and memory readable".to_owned())
}

fn quota(hierarchies: &Hierarchies) -> Check {
    let s = subject("CPU quota", Need::Labs);
    match set_quota(hierarchies) {
        Ok(found) => s.ok(found),
        Err(why) => s.missing(
            why,
            "a node's cgroup can't be made or limited: no labs (naive mode is a quota, the others have one as their \
             ceiling), only frames",
            root_or("use a kernel with CONFIG_CFS_BANDWIDTH; in a container, mount cgroups writable"),
        ),
    }
}

/// How the trial thread got its priority.
enum Fifo {
    AsItWas,
    InRootCgroup,
}

/// As the emulator's thread does it: where it is, else in the root of v1's cpu hierarchy. Ends with its thread.
fn become_fifo(v1_cpu: Option<&Path>) -> io::Result<Fifo> {
    let first = match sys::set_fifo(FIFO_PRIORITY) {
        Ok(()) => return Ok(Fifo::AsItWas),
        Err(e) => e,
    };
    let (Some(root), Some(libc::EPERM)) = (v1_cpu, first.raw_os_error()) else { return Err(first) };
    let tid = rustix::thread::gettid().as_raw_pid().to_string();
    if fs::write(root.join("tasks"), tid).is_err() {
        return Err(first);
    }
    sys::set_fifo(FIFO_PRIORITY).map(|()| Fifo::InRootCgroup)
}

/// The real-time budget of this process's own cgroup, where the kernel has one for each.
fn group_budget(v1_cpu: &Path) -> Option<i64> {
    let paths = cgroup_paths(&read("/proc/self/cgroup")?);
    let own = v1_cpu.join(paths.get("cpu")?.trim_start_matches('/'));
    read_number(own.join("cpu.rt_runtime_us").to_str()?)
}

fn fifo(v1_cpu: Option<&Path>) -> Check {
    let s = subject("real-time priority", Need::Accuracy);
    let period = read_number("/proc/sys/kernel/sched_rt_period_us").unwrap_or(1_000_000);
    let budget = match read_number("/proc/sys/kernel/sched_rt_runtime_us") {
        Some(-1) => "no limit".to_owned(),
        Some(n) => format!("budget {} of {} ms", n / 1000, period / 1000),
        None => "budget unknown".to_owned(),
    };
    let group = v1_cpu.and_then(group_budget).map_or(String::new(), |us| format!(", this cgroup's {} ms", us / 1000));
    let root = v1_cpu.map(Path::to_path_buf);
    match on_thread(move || become_fifo(root.as_deref())) {
        Ok(Fifo::AsItWas) => s.ok(format!("SCHED_FIFO granted; {budget}{group}")),
        Ok(Fifo::InRootCgroup) => s.ok(format!("SCHED_FIFO granted in the root cgroup; {budget}{group}")),
        Err(e) => s.missing(
            format!("SCHED_FIFO: {}; {budget}{group}", refused(&e)),
            "the emulator runs at ordinary priority: packets leave up to milliseconds late while nodes are busy \
             (measured: p99 1.9 ms instead of 15 us), which the verdict of a run counts against it",
            root_or("sysctl kernel.sched_rt_runtime_us=950000; give this cgroup a real-time budget, or leave it"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_trial_added_is_taken_back() {
        assert_eq!(added_controllers("cpu memory\n", "cpuset cpu memory pids\n"), ["cpuset", "pids"]);
        assert_eq!(added_controllers("", "cpu\n"), ["cpu"]);
        assert_eq!(added_controllers("cpu\n", "cpu\n"), [""; 0]);
    }

    #[test]
    fn controllers_that_a_trial_switched_on_are_switched_off_unless_labs_run() {
        let root = std::env::temp_dir().join(format!("diecast-doctor-v2-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let file = root.join("cgroup.subtree_control");
        fs::write(&file, "cpu cpuset\n").unwrap();
        fs::create_dir(root.join("diecast")).unwrap();
        take_back(&file, "cpu\n");
        assert_eq!(fs::read_to_string(&file).unwrap(), "cpu cpuset\n");
        fs::remove_dir(root.join("diecast")).unwrap();
        take_back(&file, "cpu\n");
        assert_eq!(fs::read_to_string(&file).unwrap(), "-cpuset");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_killed_doctors_cgroup_goes_with_the_next_trial() {
        let hierarchies = Hierarchies::detect().unwrap();
        // No process has this number: it is above the kernel's limit.
        let stale = hierarchies.cgroup(format!("{TRIAL}4194305"));
        if let Err(e) = stale.create() {
            diecast_quiet::skipped(format_args!("{e}"));
            return;
        }
        assert!(stale.directory("cpu").unwrap().exists());
        set_quota(&hierarchies).unwrap();
        assert!(!stale.directory("cpu").unwrap().exists());
        assert!(!stale.directory("memory").unwrap().exists());
    }
}
