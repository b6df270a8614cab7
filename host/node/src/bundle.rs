//! The OCI configuration of a node.

use crate::cgroup::Cgroup;
use crate::error::{NodeError, file};
use crate::rootfs::INIT_PATH;
use crate::view::{self, Cover};
use serde_json::{Value, json};
use std::fs;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

/// The PATH of programs that bring none.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// More descriptors than any server of the catalog's kind wants; programs that loop over all possible ones at
/// their start stay quick.
const FILES_MAX: u64 = 65_536;

/// What the configuration depends on.
pub(crate) struct Bundle<'a> {
    pub hostname: &'a str,
    pub root: &'a Path,
    pub cgroup: &'a Cgroup,
    /// In this process; `None` gives the node a new, unconnected namespace.
    pub netns: Option<RawFd>,
    pub memory_bytes: Option<u64>,
    /// For the cpuset controller; empty where there is none.
    pub cpus: &'a [u32],
    /// The init program on the host.
    pub init: &'a Path,
    /// What covers the host's files.
    pub covers: &'a [Cover],
    /// Numbers of the cores that the node sees; empty where it sees the host's.
    pub seen_cores: &'a [u32],
    /// Where files that the node sees in place of its own limits may be put.
    pub scratch: &'a Path,
}

impl Bundle<'_> {
    /// Writes config.json into `directory`.
    pub fn write(&self, directory: &Path) -> Result<(), NodeError> {
        fs::create_dir_all(directory).map_err(file("create", directory))?;
        let path = directory.join("config.json");
        let text = serde_json::to_vec_pretty(&self.config()?).map_err(file("write", &path))?;
        fs::write(&path, text).map_err(file("write", &path))
    }

    fn config(&self) -> Result<Value, NodeError> {
        let capabilities = own_capabilities()?;
        let files_max =
            rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
        let mut namespaces: Vec<Value> =
            ["pid", "mount", "uts", "ipc", "cgroup"].iter().map(|kind| json!({"type": kind})).collect();
        namespaces.push(match self.netns {
            Some(fd) => json!({"type": "network", "path": format!("/proc/{}/fd/{fd}", std::process::id())}),
            None => json!({"type": "network"}),
        });
        let mut resources = json!({"devices": [{"allow": false, "access": "rwm"}]});
        if let Some(bytes) = self.memory_bytes {
            resources["memory"] = json!({"limit": bytes});
            let swap_files = ["memory.memsw.limit_in_bytes", "memory.swap.max"];
            let directory = self.cgroup.directory("memory")?;
            if swap_files.iter().any(|name| directory.join(name).exists()) {
                // Memory and swap together: no swap, which would be the host's disk at its own speed.
                resources["memory"]["swap"] = json!(bytes);
            }
        }
        if !self.cpus.is_empty() {
            let list: Vec<String> = self.cpus.iter().map(u32::to_string).collect();
            resources["cpu"] = json!({"cpus": list.join(",")});
        }
        Ok(json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false,
                "user": {"uid": 0, "gid": 0},
                "args": [INIT_PATH],
                "env": [format!("PATH={DEFAULT_PATH}")],
                "cwd": "/",
                "capabilities": {
                    "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
                },
                "rlimits": [{"type": "RLIMIT_NOFILE", "hard": files_max, "soft": files_max}],
                "noNewPrivileges": false,
            },
            "root": {"path": self.root, "readonly": false},
            "hostname": self.hostname,
            "mounts": self.mounts()?,
            "linux": {
                "namespaces": namespaces,
                "resources": resources,
                "cgroupsPath": self.cgroup.oci_path(),
                // Root without capabilities could still write these.
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
                "maskedPaths": ["/proc/kcore"],
            },
        }))
    }

    fn mounts(&self) -> Result<Vec<Value>, NodeError> {
        let mount = |destination: &str, kind: &str, options: &[&str]| json!({"destination": destination, "type": kind, "source": kind, "options": options});
        let mut mounts = vec![
            mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
            mount("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777"]),
            mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
            mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        ];
        let executable = ["bind", "ro", "nosuid", "nodev"];
        mounts.push(json!({"destination": INIT_PATH, "type": "bind", "source": self.init, "options": executable}));
        mounts.extend(self.covers.iter().map(|cover| bind(&cover.source, &cover.destination)));
        let directories = self.cgroup.visible_directories();
        if directories.len() > 1 {
            mounts.push(mount("/sys/fs/cgroup", "tmpfs", &["nosuid", "noexec", "nodev", "mode=755", "size=64k"]));
        }
        for directory in &directories {
            // /sys/fs/cgroup/<hierarchy>/diecast/<lab>/<node>, or without <hierarchy> on v2.
            let hierarchy = directory.ancestors().nth(3).and_then(|root| root.strip_prefix("/sys/fs/cgroup").ok());
            let seen = Path::new("/sys/fs/cgroup").join(hierarchy.unwrap_or(Path::new("")));
            mounts.push(bind(directory, &seen));
            // Runtimes (JVM, Go) take the quota for the number of CPUs. It is our means of enforcement and differs
            // between modes, the machine that the node stands for has none: show none.
            // Runtimes (hwloc, and with it MPI) leave out cores that the node's set does not have: it is the node's cores.
            let cores = view::line(&view::list(self.seen_cores));
            let sets = ["cpuset.cpus", "cpuset.effective_cpus", "cpuset.cpus.effective"].map(|name| (name, &*cores));
            let quotas = [("cpu.cfs_quota_us", "-1\n"), ("cpu.max", "max 100000\n")];
            let seen_sets = sets.iter().filter(|_| !self.seen_cores.is_empty());
            for (name, text) in quotas.iter().chain(seen_sets) {
                if directory.join(name).exists() {
                    let source = self.scratch.join(name);
                    fs::write(&source, text).map_err(file("write", &source))?;
                    mounts.push(bind(&source, &seen.join(name)));
                }
            }
        }
        Ok(mounts)
    }
}

fn bind(source: &Path, destination: &Path) -> Value {
    json!({"destination": destination, "type": "bind", "source": source, "options": ["bind", "ro", "nosuid", "noexec", "nodev"]})
}

/// Names in the order of their numbers (linux/capability.h).
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// All that this process may pass on; runc fails on one that it does not have itself.
fn own_capabilities() -> Result<Vec<String>, NodeError> {
    let path = PathBuf::from("/proc/self/status");
    let status = fs::read_to_string(&path).map_err(file("read", &path))?;
    let set = |name: &str| {
        let text = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
        u64::from_str_radix(text, 16).map_err(|_| NodeError::NotANumber { path: path.clone(), text: text.to_owned() })
    };
    let have = set("CapPrm:")? & set("CapBnd:")?;
    let named = CAPABILITIES.iter().enumerate().filter(|(bit, _)| have >> bit & 1 == 1);
    Ok(named.map(|(_, name)| format!("CAP_{name}")).collect())
}
