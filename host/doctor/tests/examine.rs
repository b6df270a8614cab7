//! Examining this machine: quick, right, and without a trace. Works as root and as an ordinary user.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use diecast_host_doctor::{Need, Report, Status, Verdict, examine, render};

/// The user `nobody` of every distribution.
const NOBODY: u32 = 65534;
const LIMIT: Duration = Duration::from_secs(3);

fn lines(path: &str) -> BTreeSet<String> {
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

fn links(directory: &str) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    // The descriptor that reads the directory is gone again.
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).filter(|to| !to.starts_with("/proc")).collect()
}

/// Everything through which this process could keep a namespace, mount, BPF link, event, cgroup or child alive, and
/// what a killed trial could leave.
#[derive(PartialEq, Eq, Debug)]
struct Traces {
    mounts: BTreeSet<String>,
    namespaces: BTreeSet<PathBuf>,
    cgroups: BTreeSet<String>,
    /// Sockets, events and files by what they lead to.
    descriptors: BTreeSet<PathBuf>,
    threads: usize,
    children: BTreeSet<String>,
    scheduling: Vec<String>,
    left: BTreeSet<PathBuf>,
}

fn names_with(directory: &Path, part: &str, depth: usize, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().contains(part) {
            found.insert(entry.path());
        } else if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names_with(&entry.path(), part, depth - 1, found);
        }
    }
}

fn traces() -> Traces {
    let mut left = BTreeSet::new();
    let own = std::process::id().to_string();
    for (directory, depth) in [("/sys/fs/cgroup", 2), ("/run", 1), ("/tmp", 0)] {
        let mut found = BTreeSet::new();
        names_with(Path::new(directory), "doctor-", depth, &mut found);
        // Another doctor may be at work at the same time.
        left.extend(found.into_iter().filter(|path| path.to_string_lossy().ends_with(&format!("doctor-{own}"))));
    }
    if let Ok(pinned) = fs::read_dir("/sys/fs/bpf") {
        left.extend(pinned.flatten().map(|entry| entry.path()));
    }
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let scheduling = status.lines().filter(|line| line.starts_with("Cpus_allowed_list") || line.starts_with("Seccomp"));
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let children = tasks.flat_map(|task| fs::read_to_string(task.path().join("children")));
    Traces {
        mounts: lines("/proc/self/mountinfo"),
        namespaces: links("/proc/thread-self/ns"),
        cgroups: lines("/proc/thread-self/cgroup"),
        descriptors: links("/proc/self/fd"),
        threads: fs::read_dir("/proc/self/task").unwrap().count(),
        children: children.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect(),
        scheduling: scheduling.map(str::to_owned).collect(),
        left,
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

fn on_path(program: &str) -> bool {
    std::env::var("PATH").unwrap_or_default().split(':').any(|dir| Path::new(dir).join(program).exists())
}

fn status(report: &Report, name: &str) -> Status {
    report.check(name).unwrap_or_else(|| panic!("no check '{name}'")).status
}

/// The report of this machine, held against what can be seen without it.
fn judge(report: &Report, root: bool) {
    let text = render(report);
    let kernel: Vec<u32> = report.host.kernel.split(['.', '-']).take(2).map(|n| n.parse().unwrap()).collect();
    let is_ok = |name: &str| assert_eq!(status(report, name), Status::Ok, "{name}\n{text}");
    assert_eq!(status(report, "architecture") == Status::Ok, cfg!(target_arch = "x86_64"));
    if kernel >= vec![6, 12] {
        // What every such kernel has, for everyone, unless somebody switched it off.
        for name in ["kernel vDSO", "seccomp notifications", "ptrace", "a frame", "call sites", "mseal", "run delay"] {
            is_ok(name);
        }
        let paranoid: i32 = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap().trim().parse().unwrap();
        if root || paranoid <= 1 {
            is_ok("CPU meter");
            is_ok("delivery of hits");
        }
    }
    assert_eq!(status(report, "runc") == Status::Ok, on_path("runc"), "{text}");
    assert_eq!(status(report, "BTF") == Status::Ok, Path::new("/sys/kernel/btf/vmlinux").exists());
    assert_eq!(status(report, "privileges") == Status::Ok, root, "{text}");
    if root {
        for name in ["network namespaces", "TAP devices", "cgroups", "CPU quota", "node namespaces", "overlayfs"] {
            is_ok(name);
        }
        is_ok("real-time priority");
        is_ok("Reno");
        if Path::new("/proc/sys/net/ipv4/tcp_rto_min_us").exists() {
            is_ok("minimum RTO");
        }
        if fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" - cgroup2 ") {
            is_ok("initial RTO");
        }
        assert_eq!(report.verdict, if on_path("runc") { Verdict::Labs } else { Verdict::Frames }, "{text}");
    } else {
        assert_eq!(report.verdict, Verdict::Frames, "{text}");
    }
    for check in &report.checks {
        assert!(!check.found.is_empty(), "{}", check.name);
        assert_eq!(check.consequence.is_empty(), check.status == Status::Ok, "{}: {}", check.name, check.consequence);
        let mendable = check.status == Status::Missing && check.need != Need::Information;
        assert!(!mendable || check.fix.is_some(), "{}", check.name);
    }
    let names: BTreeSet<_> = report.checks.iter().map(|c| c.name).collect();
    assert_eq!(names.len(), report.checks.len(), "names are unique");
    assert!(text.lines().last().is_some_and(|line| line.contains("verdict") || line.starts_with("   ")), "{text}");
}

/// Examines this host as whoever runs the test.
fn examine_here() {
    diecast_quiet::look_at_each(examine_once);
}

fn examine_once(claims: &diecast_quiet::Claims) {
    let before = traces();
    let began = Instant::now();
    let report = examine();
    let took = began.elapsed();
    let after = traces();
    eprintln!("{}examined in {} ms", render(&report), took.as_millis());
    assert_eq!(before, after);
    claims.claim("quickly", took < LIMIT, format!("took {took:?}"));
    judge(&report, is_root());
}

/// The same test again in a process of user `nobody`.
fn examine_as_an_ordinary_user() {
    // Where the path to this program is closed to others, the path to a copy is not.
    let copy = std::env::temp_dir().join(format!("diecast-test-of-doctor-{}", std::process::id()));
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let output = Command::new(&copy).arg("--nocapture").current_dir("/").uid(NOBODY).gid(NOBODY).output();
    fs::remove_file(&copy).unwrap();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("verdict: frames only"), "{text}");
    eprintln!("{text}");
}

/// One test, because it looks at threads and descriptors of the whole process.
#[test]
fn this_host_is_examined_quickly_rightly_and_without_a_trace_as_root_and_as_an_ordinary_user() {
    examine_here();
    if is_root() {
        examine_as_an_ordinary_user();
    }
}
