//! A run with a process without blob, or a thread without meter, says so. Both are made from outside the lab.

use std::process::{Command, Stdio};
use std::time::Duration;

use diecast_host_node::Cgroup;
use diecast_host_sys::Tid;
use diecast_host_sys::ptrace::{self, Wait, Why};
use diecast_tests::{diecast, refuse};
use serde_json::Value;

use crate::bench::{Bench, Ended, LabRun, bench, text};

const OUTSIDE: &str = "processes outside the frame";
const UNMETERED: &str = "threads without a meter";

/// The verdict counts exactly `what` of the two, in these words, at the top of the table, with status 4.
fn distrusted(ended: &Ended, what: &str, words: &str) {
    assert_eq!(ended.status, Some(4), "{}", ended.errors);
    assert!(ended.table.starts_with("NOT TRUSTWORTHY"), "{}", ended.table);
    let advice = ended.reason(what).unwrap_or_else(|| panic!("no reason of {what}: {ended:?}"));
    assert!(advice.contains(words), "{what}: {advice}, expected {words}");
    assert!(ended.table.contains(words), "{}", ended.table);
    let other = if what == OUTSIDE { UNMETERED } else { OUTSIDE };
    assert_eq!(ended.reason(other), None, "{other}");
}

/// A process that enters a node's namespaces and control group without passing its supervisor.
#[test]
fn a_process_without_the_blob_is_named() {
    let Some(b) = bench("outside") else { return };
    let lab = LabRun::start(&b, &["small.yaml", "--mode", "baseline"]);
    lab.until("warm_up");
    let (cgroup, server): (Cgroup, u32) = (lab.cgroup("server"), lab.process("server", "cpuserver"));
    let procs = cgroup.directory("cpu").unwrap().join("cgroup.procs");
    let enter = format!("exec nsenter --target {server} --mount --net --ipc --uts sleep 100");
    let mut stranger = Command::new("sh").args(["-c", &enter]).stdin(Stdio::null()).spawn().unwrap();
    // Once it is what it will be: the watch takes its name from what it sees first.
    while std::fs::read_to_string(format!("/proc/{}/comm", stranger.id())).unwrap() != "sleep\n" {
        assert!(stranger.try_wait().unwrap().is_none(), "nsenter failed");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::write(procs, stranger.id().to_string()).unwrap();
    let ended = lab.end();
    // It was a member: it ends with its node.
    let status = stranger.wait().unwrap();
    assert!(!status.success(), "{status}");
    distrusted(&ended, OUTSIDE, &format!("node server: process {} (sleep) runs outside the frame", stranger.id()));
}

/// Blocks SIGTRAP in every thread of a process, in the kernel's mask, where no frame can see it.
fn block_meter(pid: u32) {
    const SIGTRAP: u64 = 1 << (libc::SIGTRAP - 1);
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let tid = Tid(task.file_name().to_str().unwrap().parse().unwrap());
        ptrace::seize(tid).unwrap();
        ptrace::interrupt(tid).unwrap();
        let Wait::Stopped(stopped) = ptrace::wait().unwrap() else { panic!("{tid:?} died") };
        stopped.set_sigmask(stopped.sigmask().unwrap() | SIGTRAP).unwrap();
        // A signal that it was stopped at instead is its own.
        let signal = if let Why::Signal(signal, _) = stopped.why { signal } else { 0 };
        stopped.detach(signal).unwrap();
    }
}

#[test]
fn a_thread_without_a_meter_is_named() {
    let Some(b) = bench("unmetered") else { return };
    let lab = LabRun::start(&b, &["small.yaml", "--mode", "baseline"]);
    lab.until("warm_up");
    let server = lab.process("server", "cpuserver");
    block_meter(server);
    let ended = lab.end();
    distrusted(&ended, UNMETERED, &format!("of process {server} (cpuserver) used "));
    assert!(ended.reason(UNMETERED).unwrap().starts_with("node server: thread "), "{ended:?}");
}

/// Status and table of a run on a kernel that refuses a call. What goes to stderr is shown where the test fails.
fn run_without(b: &Bench, call: libc::c_long, errno: i32) -> (Option<i32>, String) {
    let mut command = Command::new(diecast());
    command.args(["run", "small.yaml", "--mode", "baseline", "--out", "out"]).current_dir(&b.folder);
    refuse(&mut command, call, errno);
    let o = command.output().unwrap();
    println!("{}", text(&o.stderr));
    (o.status.code(), text(&o.stdout))
}

/// Where the kernel refuses meters, no thread of any node has one.
#[test]
fn a_host_without_meters_is_no_silent_fallback() {
    let Some(b) = bench("meterless") else { return };
    let (status, table) = run_without(&b, libc::SYS_perf_event_open, libc::EACCES);
    assert_eq!(status, Some(4), "{table}");
    assert!(table.starts_with("NOT TRUSTWORTHY") && table.contains(UNMETERED), "{table}");
    for node in ["client", "server"] {
        assert!(table.contains(&format!("node {node}: no thread has a meter")), "{table}");
    }
}

/// Where the kernel refuses BPF, hits come from events of each thread and packets don't tell what their senders owe.
#[test]
fn a_host_without_bpf_gives_what_it_can_and_says_so() {
    let Some(b) = bench("bpfless") else { return };
    let (status, table) = run_without(&b, libc::SYS_bpf, libc::EPERM);
    assert!(matches!(status, Some(0 | 4)), "{table}");
    for less in [
        "hits come from an event of each thread",
        "the initial RTO is not dilated",
        "latencies below the grain are not emulated",
    ] {
        assert!(table.contains(less), "{less}: {table}");
    }
    // How long threads waited is known, why is not; the table has those that waited for long, on a quiet host none.
    let run: Value = serde_json::from_slice(&std::fs::read(b.folder.join("out/run.json")).unwrap()).unwrap();
    let waits = run["fidelity"]["waits"].as_array().unwrap();
    assert_eq!(waits.iter().map(|w| &w["node"]).collect::<Vec<_>>(), ["client", "server"]);
    assert!(waits.iter().all(|w| w["causes"].is_null()), "{waits:?}");
    assert!(waits[1]["waited_ns"].as_u64() > Some(0), "{waits:?}");
    let listed = table.contains("threads that waited for a core");
    assert_eq!(table.contains("without causes: one sum from schedstat"), listed, "{table}");
    // The meter works all the same.
    assert!(table.contains("latency     p50") && !table.contains("no thread has a meter"), "{table}");
}
