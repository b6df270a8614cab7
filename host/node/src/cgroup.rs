//! The cgroups of nodes, on both kinds of host: one v2 tree with all controllers, or v1 hierarchies (with or
//! without an empty v2 tree beside them). The kind is read from the mount table, never assumed.
//!
//! A node's cgroup is `/diecast/<lab>/<node>` in every mounted hierarchy.

use crate::error::{NodeError, file};
use crate::process::ProcessId;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Top of all our cgroups in each hierarchy.
pub(crate) const ROOT: &str = "diecast";

/// How often to try again when a parent vanishes.
const CREATE_RETRIES: u32 = 20;

/// How long to wait for killed processes to leave a cgroup.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(3);

/// The mounted cgroup hierarchies of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchies {
    /// Controller to mount point; empty on a v2 host.
    v1: BTreeMap<String, PathBuf>,
    /// Every mount point, named v1 hierarchies and v2 included.
    all: Vec<PathBuf>,
    /// Mount point of v2.
    v2: Option<PathBuf>,
}

/// CPU bandwidth limit: `quota_us` of CPU time in each `period_us` of real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub quota_us: u64,
    pub period_us: u64,
}

/// How often and how long the kernel has held a cgroup back by its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Throttled {
    pub nr_throttled: u64,
    pub throttled_ns: u64,
}

impl Hierarchies {
    /// Reads the mount table of this process.
    pub fn detect() -> Result<Hierarchies, NodeError> {
        let path = Path::new("/proc/self/mountinfo");
        Ok(Hierarchies::parse(&fs::read_to_string(path).map_err(file("read", path))?))
    }

    fn parse(mountinfo: &str) -> Hierarchies {
        let mut found = Hierarchies { v1: BTreeMap::new(), all: Vec::new(), v2: None };
        for mount in mountinfo.lines().filter_map(Mount::parse) {
            // Only whole hierarchies below the usual place; bind mounts of subtrees are no second home.
            if mount.root != "/" || !mount.point.starts_with("/sys/fs/cgroup") {
                continue;
            }
            match mount.kind.as_str() {
                "cgroup" => {
                    for option in mount.super_options.split(',') {
                        found.v1.entry(option.to_owned()).or_insert_with(|| mount.point.clone());
                    }
                }
                "cgroup2" => found.v2 = found.v2.take().or_else(|| Some(mount.point.clone())),
                _ => continue,
            }
            found.all.push(mount.point);
        }
        found.v1.retain(|option, _| V1_CONTROLLERS.contains(&option.as_str()));
        found
    }

    /// All controllers live in the one v2 tree.
    pub fn is_v2(&self) -> bool {
        self.v1.is_empty()
    }

    /// Root of the v2 tree, which a v1 host may have as well (for BPF programs).
    pub fn v2_root(&self) -> Option<&Path> {
        self.v2.as_deref()
    }

    /// Is there a hierarchy that carries `controller`?
    pub fn has(&self, controller: &str) -> bool {
        match &self.v2 {
            Some(root) if self.is_v2() => fs::read_to_string(root.join("cgroup.controllers"))
                .is_ok_and(|text| text.split_ascii_whitespace().any(|word| word == controller)),
            _ => self.v1.contains_key(controller),
        }
    }

    /// The cgroup at `path` (relative to each hierarchy's root).
    pub fn cgroup(&self, path: impl Into<PathBuf>) -> Cgroup {
        Cgroup { hierarchies: self.clone(), path: path.into() }
    }
}

const V1_CONTROLLERS: [&str; 12] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
];

/// One line of mountinfo.
#[derive(Debug)]
pub(crate) struct Mount {
    pub id: u64,
    pub root: String,
    pub point: PathBuf,
    pub kind: String,
    pub super_options: String,
}

impl Mount {
    pub fn parse(line: &str) -> Option<Mount> {
        let (left, right) = line.split_once(" - ")?;
        let (mut left, mut right) = (left.split(' '), right.split(' '));
        let id = left.next()?.parse().ok()?;
        let mut left = left.skip(2);
        Some(Mount {
            id,
            root: unescape(left.next()?),
            point: unescape(left.next()?).into(),
            kind: right.next()?.to_owned(),
            super_options: right.nth(1)?.to_owned(),
        })
    }

    /// The mount table of this process.
    pub fn table() -> Result<Vec<Mount>, NodeError> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read_to_string(path).map_err(file("read", path))?;
        Ok(text.lines().filter_map(Mount::parse).collect())
    }
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        match rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte as char);
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

/// How long threads may take to stop: until the call they are in can be interrupted.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(10);
const FREEZE_LOOK_EVERY: Duration = Duration::from_micros(100);

/// One cgroup, in all hierarchies.
#[derive(Clone, Debug)]
pub struct Cgroup {
    hierarchies: Hierarchies,
    /// Relative to each hierarchy's root.
    path: PathBuf,
}

impl Cgroup {
    /// As `cgroupsPath` of an OCI configuration.
    pub fn oci_path(&self) -> PathBuf {
        Path::new("/").join(&self.path)
    }

    /// Its directory in the hierarchy of a controller.
    pub fn directory(&self, controller: &'static str) -> Result<PathBuf, NodeError> {
        let root = match self.hierarchies.is_v2() {
            // Accounting of CPU time and membership need no controller there.
            true => self.hierarchies.v2.as_ref().filter(|_| controller != "memory" || self.hierarchies.has(controller)),
            false => self.hierarchies.v1.get(controller),
        };
        Ok(root.ok_or(NodeError::NoController { controller })?.join(&self.path))
    }

    /// The directories (one per mount) of the controllers that programs size themselves by.
    pub(crate) fn visible_directories(&self) -> Vec<PathBuf> {
        let of = |controller| self.directory(controller).ok();
        let unique: BTreeSet<PathBuf> = ["memory", "cpu", "cpuacct", "cpuset"].into_iter().filter_map(of).collect();
        unique.into_iter().collect()
    }

    /// Makes it in every hierarchy, with all controllers; runc finds it and keeps it.
    pub fn create(&self) -> Result<(), NodeError> {
        for root in &self.hierarchies.all {
            let path = root.join(&self.path);
            // Another lab that ends may remove the common parent between its making and its use.
            let mut result = fs::create_dir_all(&path);
            for _ in 0..CREATE_RETRIES {
                if !result.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
                    break;
                }
                result = fs::create_dir_all(&path);
            }
            result.map_err(file("create cgroup", &path))?;
        }
        if let Some(root) = self.hierarchies.v2.as_deref().filter(|_| self.hierarchies.is_v2()) {
            let parents = self.path.ancestors().skip(1).map(|parent| root.join(parent));
            // From the root down: a controller can only be handed on where it is.
            parents.collect::<Vec<_>>().iter().rev().for_each(|parent| hand_controllers_on(parent));
        }
        Ok(())
    }

    /// Processes that the kernel has killed because the memory limit was reached.
    pub fn oom_kills(&self) -> Result<u64, NodeError> {
        let name = if self.hierarchies.is_v2() { "memory.events" } else { "memory.oom_control" };
        field(&self.directory("memory")?.join(name), "oom_kill")
    }

    /// CPU time used since it was made.
    pub fn cpu_usage_ns(&self) -> Result<u64, NodeError> {
        match self.hierarchies.is_v2() {
            true => Ok(self.stat_field("usage_usec")?.saturating_mul(1000)),
            false => read_number(&self.directory("cpuacct")?.join("cpuacct.usage")),
        }
    }

    pub fn throttled(&self) -> Result<Throttled, NodeError> {
        let nr_throttled = self.stat_field("nr_throttled")?;
        let throttled_ns = match self.hierarchies.is_v2() {
            true => self.stat_field("throttled_usec")?.saturating_mul(1000),
            false => self.stat_field("throttled_time")?,
        };
        Ok(Throttled { nr_throttled, throttled_ns })
    }

    /// Bytes charged to it, page cache included.
    pub fn memory_usage(&self) -> Result<u64, NodeError> {
        let name = if self.hierarchies.is_v2() { "memory.current" } else { "memory.usage_in_bytes" };
        read_number(&self.directory("memory")?.join(name))
    }

    /// `None` removes the limit.
    pub fn set_quota(&self, quota: Option<Quota>) -> Result<(), NodeError> {
        if let Some(Quota { quota_us, period_us }) = quota
            && (quota_us < 1000 || !(1000..=1_000_000).contains(&period_us) || quota_us > u64::MAX / 2000)
        {
            return Err(NodeError::Quota { quota_us, period_us });
        }
        if !self.hierarchies.has("cpu") {
            return Err(NodeError::NoController { controller: "cpu" });
        }
        let directory = self.directory("cpu")?;
        let write = |name: &str, text: String| {
            let path = directory.join(name);
            fs::write(&path, text).map_err(file("write", &path))
        };
        match (self.hierarchies.is_v2(), quota) {
            (true, Some(q)) => write("cpu.max", format!("{} {}", q.quota_us, q.period_us)),
            (true, None) => write("cpu.max", "max 100000".into()),
            (false, Some(q)) => {
                // Without a quota any period is accepted, whatever the old pair was.
                write("cpu.cfs_quota_us", "-1".into())?;
                write("cpu.cfs_period_us", q.period_us.to_string())?;
                write("cpu.cfs_quota_us", q.quota_us.to_string())
            }
            (false, None) => write("cpu.cfs_quota_us", "-1".into()),
        }
    }

    pub fn quota(&self) -> Result<Option<Quota>, NodeError> {
        let directory = self.directory("cpu")?;
        if self.hierarchies.is_v2() {
            let path = directory.join("cpu.max");
            let text = fs::read_to_string(&path).map_err(file("read", &path))?;
            let mut words = text.split_ascii_whitespace().map(|word| word.parse::<u64>().ok());
            return Ok(match (words.next().flatten(), words.next().flatten()) {
                (Some(quota_us), Some(period_us)) => Some(Quota { quota_us, period_us }),
                _ => None,
            });
        }
        let path = directory.join("cpu.cfs_quota_us");
        let text = fs::read_to_string(&path).map_err(file("read", &path))?;
        // -1 stands for no quota.
        let Ok(quota_us) = text.trim().parse::<u64>() else { return Ok(None) };
        Ok(Some(Quota { quota_us, period_us: read_number(&directory.join("cpu.cfs_period_us"))? }))
    }

    /// Pids (as this process sees them) of all members, cgroups below included, in ascending order.
    pub fn procs(&self) -> Result<Vec<u32>, NodeError> {
        // Every process is in every hierarchy; one of ours is enough.
        let directory = self.directory("cpu")?;
        let mut pids = BTreeSet::new();
        members(&directory, &mut pids).map_err(file("read members of", &directory))?;
        Ok(pids.into_iter().collect())
    }

    /// Kills all members, once.
    pub(crate) fn kill(&self) {
        self.thaw();
        self.hierarchies.all.iter().for_each(|root| kill_members(&root.join(&self.path)));
    }

    /// Kills all members and removes it everywhere. Tells what was removed; names what stays as an error.
    pub fn remove(&self) -> Result<Vec<String>, Vec<String>> {
        let mut removed = Vec::new();
        let mut left = Vec::new();
        let give_up = Instant::now() + EMPTY_TIMEOUT;
        self.thaw();
        for root in &self.hierarchies.all {
            let path = root.join(&self.path);
            if !path.exists() {
                continue;
            }
            loop {
                kill_members(&path);
                match remove_tree(&path) {
                    Ok(()) => break removed.push(format!("cgroup {}", path.display())),
                    Err(_) if Instant::now() < give_up => std::thread::sleep(Duration::from_millis(2)),
                    Err(error) => break left.push(format!("cgroup {}: {error}", path.display())),
                }
            }
        }
        if left.is_empty() { Ok(removed) } else { Err(left) }
    }

    /// Removes it where it is empty; says nothing where it is not.
    pub(crate) fn remove_if_empty(&self) {
        for root in &self.hierarchies.all {
            let _ = fs::remove_dir(root.join(&self.path));
        }
    }

    /// Stops every thread of all these where it is, and returns when all of them have stopped; else none stays so.
    pub fn freeze_all(all: &[Cgroup]) -> Result<(), NodeError> {
        let frozen = all.iter().try_for_each(Cgroup::begin_freezing).and_then(|()| {
            let give_up = Instant::now() + FREEZE_TIMEOUT;
            all.iter().try_for_each(|cgroup| cgroup.await_frozen(give_up))
        });
        if frozen.is_err() {
            all.iter().for_each(Cgroup::thaw);
        }
        frozen
    }

    fn begin_freezing(&self) -> Result<(), NodeError> {
        let (name, word) = if self.hierarchies.is_v2() { ("cgroup.freeze", "1") } else { ("freezer.state", "FROZEN") };
        let path = self.directory("freezer")?.join(name);
        fs::write(&path, word).map_err(file("write", &path))
    }

    fn await_frozen(&self, give_up: Instant) -> Result<(), NodeError> {
        let (name, stopped) =
            if self.hierarchies.is_v2() { ("cgroup.events", "frozen 1") } else { ("freezer.state", "FROZEN") };
        let path = self.directory("freezer")?.join(name);
        loop {
            let text = fs::read_to_string(&path).map_err(file("read", &path))?;
            if text.lines().any(|line| line == stopped) {
                return Ok(());
            }
            if Instant::now() > give_up {
                return Err(NodeError::NotFrozen { cgroup: self.path.display().to_string() });
            }
            std::thread::sleep(FREEZE_LOOK_EVERY);
            // A v1 cgroup whose threads have not all stopped is told again.
            self.begin_freezing()?;
        }
    }

    /// Lets them go on. A frozen process of v1 does not die; one of v2 does.
    pub fn thaw(&self) {
        let (name, word) = if self.hierarchies.is_v2() { ("cgroup.freeze", "0") } else { ("freezer.state", "THAWED") };
        if let Ok(directory) = self.directory("freezer") {
            // Where there is nothing to thaw, there is no file either.
            let _ = fs::write(directory.join(name), word);
        }
    }

    fn stat_field(&self, field: &str) -> Result<u64, NodeError> {
        self::field(&self.directory("cpu")?.join("cpu.stat"), field)
    }
}

/// Gives the children of a v2 cgroup every controller that it has itself. One that can't be handed on is missed,
/// with a message, by whoever needs its files.
fn hand_controllers_on(cgroup: &Path) {
    let have = fs::read_to_string(cgroup.join("cgroup.controllers")).unwrap_or_default();
    for controller in have.split_ascii_whitespace() {
        let _ = fs::write(cgroup.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// The value of a line `name value`; zero without such a line, since the kernel leaves out the fields of a mechanism
/// that is switched off.
fn field(path: &Path, name: &str) -> Result<u64, NodeError> {
    let text = fs::read_to_string(path).map_err(file("read", path))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let wrong = |value: &str| NodeError::NotANumber { path: path.to_path_buf(), text: value.to_owned() };
    value.map_or(Ok(0), |value| value.parse().map_err(|_| wrong(value)))
}

/// Kills one recorded process and waits until it is gone.
pub(crate) fn kill_and_wait(process: ProcessId) -> bool {
    let killed = process.kill();
    let give_up = Instant::now() + EMPTY_TIMEOUT;
    while process.is_alive() && Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(2));
    }
    killed
}

fn kill_members(directory: &Path) {
    let mut pids = BTreeSet::new();
    // A cgroup, or a member, that has just gone is what the caller wants.
    if members(directory, &mut pids).is_ok() {
        for pid in pids.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn members(directory: &Path, pids: &mut BTreeSet<u32>) -> std::io::Result<()> {
    let text = fs::read_to_string(directory.join("cgroup.procs"))?;
    pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid != 0));
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            members(&entry.path(), pids)?;
        }
    }
    Ok(())
}

fn remove_tree(directory: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(directory)
}

fn read_number(path: &Path) -> Result<u64, NodeError> {
    let text = fs::read_to_string(path).map_err(file("read", path))?;
    text.trim().parse().map_err(|_| NodeError::NotANumber { path: path.to_path_buf(), text: text.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_host_is_a_v1_host_with_a_v2_tree_beside() {
        let found = Hierarchies::parse(
            "30 20 0:25 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
             31 30 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
             32 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             33 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
             34 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
             35 30 0:27 /x /mnt/bind rw - cgroup cgroup rw,memory\n",
        );
        assert!(!found.is_v2());
        assert_eq!(found.v2_root(), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(found.all.len(), 4);
        let cgroup = found.cgroup("diecast/l/n");
        assert_eq!(cgroup.directory("cpuacct").unwrap(), Path::new("/sys/fs/cgroup/cpu,cpuacct/diecast/l/n"));
        assert!(matches!(cgroup.directory("pids"), Err(NodeError::NoController { controller: "pids" })));
        assert_eq!(cgroup.visible_directories().len(), 2);
    }

    #[test]
    fn a_v2_host_has_one_directory_for_all() {
        // As systemd mounts it.
        let found = Hierarchies::parse(
            "24 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
             28 22 0:25 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 \
             rw,nsdelegate,memory_recursiveprot\n",
        );
        assert!(found.is_v2());
        assert_eq!(found.v2_root(), Some(Path::new("/sys/fs/cgroup")));
        let cgroup = found.cgroup("diecast/l/n");
        assert_eq!(cgroup.directory("cpuacct").unwrap(), Path::new("/sys/fs/cgroup/diecast/l/n"));
        assert_eq!(cgroup.visible_directories().len(), 1);
    }

    #[test]
    fn escapes_of_the_mount_table_are_undone() {
        assert_eq!(unescape(r"/a\040b\134c\x"), r"/a b\c\x");
    }

    /// The v2 half on ordinary files, since this kind of host may have no v2 controllers.
    #[test]
    fn v2_files_are_read_and_written() {
        let root = std::env::temp_dir().join(format!("diecast-cgroup-test-{}", std::process::id()));
        let directory = root.join("diecast/l/n");
        fs::create_dir_all(&directory).unwrap();
        let all = Hierarchies { v1: BTreeMap::new(), all: vec![root.clone()], v2: Some(root.clone()) };
        let cgroup = all.cgroup("diecast/l/n");
        fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
        // The fields and their order are those of Linux 6.18.
        let stat = "usage_usec 12\nuser_usec 8\nsystem_usec 4\nnice_usec 0\ncore_sched.force_idle_usec 0\n\
                    nr_periods 9\nnr_throttled 3\nthrottled_usec 4\nnr_bursts 0\nburst_usec 0\n";
        fs::write(directory.join("cpu.stat"), stat).unwrap();
        fs::write(directory.join("memory.current"), "4096\n").unwrap();
        assert!(all.has("memory") && !all.has("cpuset"));
        assert_eq!(cgroup.cpu_usage_ns().unwrap(), 12_000);
        assert_eq!(cgroup.throttled().unwrap(), Throttled { nr_throttled: 3, throttled_ns: 4000 });
        assert_eq!(cgroup.memory_usage().unwrap(), 4096);
        let events = "low 0\nhigh 0\nmax 7\noom 5\noom_kill 2\noom_group_kill 1\n";
        fs::write(directory.join("memory.events"), events).unwrap();
        assert_eq!(cgroup.oom_kills().unwrap(), 2);
        fs::write(root.join("diecast/l/cgroup.controllers"), "memory\n").unwrap();
        cgroup.create().unwrap();
        let handed = |parent: &str| fs::read_to_string(root.join(parent).join("cgroup.subtree_control")).unwrap();
        assert_eq!((handed("").as_str(), handed("diecast/l").as_str()), ("+memory", "+memory"));
        assert!(!directory.join("cgroup.subtree_control").exists(), "a node's own children get none");
        let quota = Quota { quota_us: 20_000, period_us: 100_000 };
        cgroup.set_quota(Some(quota)).unwrap();
        assert_eq!(cgroup.quota().unwrap(), Some(quota));
        cgroup.set_quota(None).unwrap();
        assert_eq!(cgroup.quota().unwrap(), None);
        assert!(matches!(
            cgroup.set_quota(Some(Quota { quota_us: 999, period_us: 1000 })),
            Err(NodeError::Quota { .. })
        ));
        // A kernel whose controllers are elsewhere, or switched off.
        fs::write(root.join("cgroup.controllers"), "hugetlb\n").unwrap();
        let lacks = |result: Result<(), NodeError>| matches!(result, Err(NodeError::NoController { .. }));
        assert!(lacks(cgroup.set_quota(Some(quota))));
        assert!(lacks(cgroup.memory_usage().map(drop)));
        assert_eq!(cgroup.cpu_usage_ns().unwrap(), 12_000, "needs no controller");
        fs::remove_dir_all(root).unwrap();
    }
}
