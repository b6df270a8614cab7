//! What `kill -9` of the process that runs a lab leaves, and that clean removes it.

mod common;

use common::{State, eventually, node, shell};
use diecast_host_node::{Exit, LabDir, Node, NodeSpec, ProgramSpec, clean_in, labs_in};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Set for the helper process that is to be killed: the state directory it uses.
const HELPER: &str = "DIECAST_TEST_HELPER";

/// Not a test of its own: with [`HELPER`] set, this process runs a lab until it is killed.
#[test]
fn helper() {
    let Some(state) = std::env::var_os(HELPER) else { return };
    let lab = LabDir::create_in(Path::new(&state)).unwrap();
    println!("LAB {}", lab.id());
    let nodes = Node::start_all(&lab, vec![NodeSpec::new("one"), NodeSpec::new("two")]).unwrap();
    for node in &nodes {
        // A process that hides from its parent, and one that ignores what it can.
        node.start_program(ProgramSpec::new([
            "sh",
            "-c",
            "trap '' TERM HUP; setsid sleep 1000 & while :; do sleep 1; done",
        ]))
        .unwrap();
        node.next_event(Some(common::PATIENCE)).unwrap();
        println!("INIT {}", node.init_pid());
    }
    println!("READY");
    std::thread::sleep(Duration::from_secs(600));
}

struct Helper {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Helper {
    fn start(state: &State) -> Helper {
        Helper::start_with_path(state, &std::env::var("PATH").unwrap())
    }

    fn start_with_path(state: &State, path: &str) -> Helper {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper", "--nocapture"])
            .env(HELPER, &state.0)
            .env("PATH", path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Helper { child, lines }
    }

    /// The values of lines that start with `word`, up to and with the first one that starts with `last`.
    fn read_to(&mut self, last: &str) -> Vec<(String, String)> {
        let mut read = Vec::new();
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            let (word, value) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
            read.push((word.to_owned(), value.to_owned()));
            if word == last {
                return read;
            }
        }
        panic!("the helper ended: {read:?}");
    }

    /// Kills it and leaves it a zombie, which must count as dead.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn value(read: &[(String, String)], wanted: &str) -> String {
    read.iter().find(|(word, _)| word == wanted).map(|(_, value)| value.clone()).unwrap()
}

/// Every cgroup directory of a lab, and every process in one.
fn cgroups(lab: &str) -> (Vec<PathBuf>, Vec<u32>) {
    let found =
        Command::new("find").args(["/sys/fs/cgroup", "-path", &format!("*/diecast/{lab}*"), "-type", "d"]).output();
    let directories: Vec<PathBuf> =
        String::from_utf8(found.unwrap().stdout).unwrap().lines().map(PathBuf::from).collect();
    let members = |directory: &PathBuf| fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<u32> =
        directories.iter().flat_map(|d| members(d).lines().map(|l| l.parse().unwrap()).collect::<Vec<_>>()).collect();
    pids.sort();
    pids.dedup();
    (directories, pids)
}

#[test]
fn a_killed_supervisor_takes_its_nodes_along_and_clean_removes_the_rest() {
    let Some(state) = State::new("killed") else { return };
    let mut helper = Helper::start(&state);
    let read = helper.read_to("READY");
    let lab = value(&read, "LAB");
    eventually("both sleepers", Duration::from_secs(5), || cgroups(&lab).1.len() >= 8);

    // A lab of ours lives beside it.
    let ours = state.lab();
    let beside = node(&ours, "beside");
    let killed = Instant::now();
    helper.kill();
    eventually("no process left", Duration::from_secs(1), || cgroups(&lab).1.is_empty());
    println!("dead after {:?}", killed.elapsed());
    let listed = labs_in(&state.0).unwrap();
    assert_eq!(listed.iter().filter(|l| l.alive).map(|l| l.id.as_str()).collect::<Vec<_>>(), [ours.id()]);

    let removed = clean_in(&state.0).unwrap();
    assert!(removed.iter().any(|line| line.contains("container one")), "{removed:?}");
    assert_eq!(cgroups(&lab).0, Vec::<PathBuf>::new());
    assert!(!state.0.join("labs").join(&lab).exists());
    assert_eq!(clean_in(&state.0).unwrap(), Vec::<String>::new(), "a second clean has nothing to do");
    // Ours is as it was.
    assert_eq!(shell(&beside, &state, "exit 4").exit, Exit::Code(4));
}

#[test]
fn clean_kills_an_init_that_did_not_notice() {
    let Some(state) = State::new("stuck") else { return };
    let mut helper = Helper::start(&state);
    let read = helper.read_to("READY");
    let lab = value(&read, "LAB");
    // A stopped init can't see its socket close.
    for (_, pid) in read.iter().filter(|(word, _)| word == "INIT") {
        assert!(Command::new("kill").args(["-STOP", pid]).status().unwrap().success());
    }
    helper.kill();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!cgroups(&lab).1.is_empty());
    let removed = clean_in(&state.0).unwrap();
    assert!(removed.iter().any(|line| line.contains("init of node one")), "{removed:?}");
    assert_eq!(cgroups(&lab), (Vec::new(), Vec::new()));
}

#[test]
fn a_kill_at_any_moment_of_the_start_is_cleaned() {
    let Some(state) = State::new("moments") else { return };
    for delay_ms in [0, 5, 15, 30, 45, 60, 80, 100, 130, 160] {
        let mut helper = Helper::start(&state);
        let lab = value(&helper.read_to("LAB"), "LAB");
        std::thread::sleep(Duration::from_millis(delay_ms));
        helper.kill();
        eventually("a dead lab", Duration::from_secs(5), || labs_in(&state.0).unwrap().iter().all(|lab| !lab.alive));
        clean_in(&state.0).unwrap();
        assert_eq!(cgroups(&lab), (Vec::new(), Vec::new()), "killed after {delay_ms} ms");
        assert!(labs_in(&state.0).unwrap().is_empty());
    }
}

/// The end of a start that was under way is awaited, whatever it still makes: here a runc that leaves a process
/// behind which makes a cgroup half a second later.
#[test]
fn clean_waits_for_a_start_under_way() {
    let Some(state) = State::new("late") else { return };
    let bin = state.0.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let runc = "#!/bin/sh\nlab=$(basename $(dirname $2))\n\
        (sleep 0.5; for h in /sys/fs/cgroup/cpu /sys/fs/cgroup; do [ -d $h ] && mkdir -p $h/diecast/$lab/late && break; done) &\n\
        echo x > $(dirname $2)/called\nexec sleep 100\n";
    fs::write(bin.join("runc"), runc).unwrap();
    assert!(Command::new("chmod").arg("755").arg(bin.join("runc")).status().unwrap().success());
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut helper = Helper::start_with_path(&state, &path);
    let lab = value(&helper.read_to("LAB"), "LAB");
    let called = state.0.join("labs").join(&lab).join("called");
    eventually("a call of runc", Duration::from_secs(5), || called.exists());
    let killed = Instant::now();
    helper.kill();
    eventually("a dead lab", Duration::from_secs(5), || labs_in(&state.0).unwrap().iter().all(|lab| !lab.alive));
    clean_in(&state.0).unwrap();
    // The late process has ended by now, and cannot have made anything since.
    std::thread::sleep(Duration::from_millis(700).saturating_sub(killed.elapsed()));
    assert_eq!(cgroups(&lab), (Vec::new(), Vec::new()));
}

#[test]
fn half_made_labs_and_foreign_records_do_no_harm() {
    let Some(state) = State::new("half") else { return };
    let labs = state.0.join("labs");
    // Killed between mkdir and rename, by a process that is long gone.
    fs::create_dir_all(labs.join(".new-4194304-1-abc")).unwrap();
    // Killed in the middle of a line; and a record that points outside of our cgroups and at a process that
    // isn't the one it names.
    let dead = labs.join("dead0000");
    fs::create_dir_all(&dead).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let lab =
        format!(r#"{{"lab":"dead0000","process":{{"pid":1,"start_ticks":99999999999}},"boot_id":"{}"}}"#, boot.trim());
    fs::write(dead.join("lab.json"), lab).unwrap();
    let own = std::process::id();
    let record = format!(
        "{{\"kind\":\"process\",\"process\":{{\"pid\":{own},\"start_ticks\":1}},\"what\":\"x\"}}\n{{\"kind\":\"cgr"
    );
    fs::write(dead.join("record.jsonl"), record).unwrap();
    let removed = clean_in(&state.0).unwrap();
    assert_eq!(removed.len(), 2, "{removed:?}");
    assert!(labs_in(&state.0).unwrap().is_empty());

    fs::create_dir_all(&dead).unwrap();
    fs::write(dead.join("record.jsonl"), "{\"kind\":\"cgroup\",\"path\":\"diecast/../user\"}\n").unwrap();
    assert!(clean_in(&state.0).unwrap_err().to_string().contains("not below diecast"));
    fs::remove_dir_all(&dead).unwrap();
}
