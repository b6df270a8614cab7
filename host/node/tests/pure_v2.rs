//! A host with cgroup v2 alone, made in a mount namespace of the test's own: detection, membership, accounting and
//! removal on the real kernel. Controllers that v1 holds can't be had there: limits are tested on recorded files, in
//! `src/cgroup.rs`.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use diecast_host_node::{Hierarchies, NodeError, Quota};

const MOUNT: &str = "umount -l /sys/fs/cgroup/* 2>/dev/null; umount -l /sys/fs/cgroup; \
                     mount -t cgroup2 none /sys/fs/cgroup || exit 77; exec \"$@\"";

#[test]
fn a_host_with_v2_alone() {
    let me = std::env::current_exe().unwrap();
    let inner = ["--exact", "inside", "--ignored", "--nocapture"];
    let o = Command::new("unshare").args(["--mount", "sh", "-c", MOUNT, "sh"]).arg(me).args(inner).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
    if o.status.code() == Some(77) || said.contains("unshare failed") {
        diecast_quiet::skipped(format_args!("no cgroup2 mount in a namespace of its own: {said}"));
        return;
    }
    assert!(o.status.success() && said.contains("1 passed"), "{said}");
}

/// Runs in the namespace that the test above makes.
#[test]
#[ignore = "part of a_host_with_v2_alone"]
fn inside() {
    let hierarchies = Hierarchies::detect().unwrap();
    assert!(hierarchies.is_v2(), "{hierarchies:?}");
    let cgroup = hierarchies.cgroup(format!("diecast-test-v2-{}/lab/node", std::process::id()));
    cgroup.create().unwrap();
    let directory = cgroup.directory("cpu").unwrap();
    // Every controller that the root has was handed down to the node.
    let controllers = |path: &std::path::Path| std::fs::read_to_string(path.join("cgroup.controllers")).unwrap();
    assert_eq!(controllers(&directory), controllers(hierarchies.v2_root().unwrap()));

    let join_and_burn = format!("echo $$ > {}/cgroup.procs; while :; do :; done", directory.display());
    let mut busy = Command::new("sh").args(["-c", &join_and_burn]).stdin(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while cgroup.cpu_usage_ns().unwrap() < 50_000_000 {
        assert!(begin.elapsed() < Duration::from_secs(20), "no CPU time was counted");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(u128::from(cgroup.cpu_usage_ns().unwrap()) < 2 * begin.elapsed().as_nanos());
    assert_eq!(cgroup.procs().unwrap(), [busy.id()]);
    assert_eq!(cgroup.throttled().unwrap().nr_throttled, 0);

    let quota = Quota { quota_us: 10_000, period_us: 100_000 };
    match cgroup.set_quota(Some(quota)) {
        Ok(()) => assert_eq!(cgroup.quota().unwrap(), Some(quota)),
        Err(e) => {
            assert!(!hierarchies.has("cpu") && matches!(e, NodeError::NoController { controller: "cpu" }), "{e}");
        }
    }
    match cgroup.memory_usage() {
        Ok(bytes) => assert!(bytes > 0),
        Err(e) => {
            assert!(!hierarchies.has("memory"), "{e}");
            assert!(matches!(e, NodeError::NoController { controller: "memory" }), "{e}");
        }
    }

    // It is killed and gone, whatever it was doing.
    cgroup.remove().unwrap();
    assert!(!directory.exists());
    assert!(!busy.wait().unwrap().success());
    for parent in directory.ancestors().skip(1).take(2) {
        std::fs::remove_dir(parent).unwrap();
    }
}
