//! What the tests with real containers share. They need root and runc, and say so when they skip.
#![allow(dead_code, reason = "each test file uses its own part")]

use diecast_host_node::{Event, Exit, LabDir, Node, NodeSpec, Output, ProgramId, ProgramSpec};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// No program of these tests runs longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A state directory of one test; labs of other tests and of users are elsewhere.
pub struct State(pub PathBuf);

impl State {
    /// `None`, with the reason printed, where containers can't run.
    pub fn new(test: &str) -> Option<State> {
        let is_root = fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
        let has_runc = std::process::Command::new("runc").arg("--version").output().is_ok();
        if !is_root || !has_runc {
            diecast_quiet::skipped(format_args!(
                "{test}: needs {}",
                if is_root { "runc (apt install runc)" } else { "root" }
            ));
            return None;
        }
        let path = PathBuf::from(format!("/run/diecast-test-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Some(State(path))
    }

    pub fn lab(&self) -> LabDir {
        LabDir::create_in(&self.0).unwrap()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = diecast_host_node::clean_in(&self.0);
        } else {
            assert!(diecast_host_node::labs_in(&self.0).unwrap().is_empty(), "the test leaves a lab in {:?}", self.0);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a program ended, and what it has written to stdout and stderr together.
pub struct Ran {
    pub exit: Exit,
    pub output: String,
}

/// Runs a shell script in a node to its end.
pub fn shell(node: &Node, state: &State, script: &str) -> Ran {
    run(node, state, ProgramSpec::new(["/bin/sh", "-c", script]))
}

pub fn run(node: &Node, state: &State, mut spec: ProgramSpec) -> Ran {
    let log = log_path(&state.0);
    spec.stdout = Output::File(log.clone());
    spec.stderr = Output::File(log.clone());
    let program = node.start_program(spec).unwrap();
    let exit = wait_exit(node, program);
    Ran { exit, output: fs::read_to_string(log).unwrap() }
}

fn log_path(dir: &Path) -> PathBuf {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    dir.join(format!("program-{}.log", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
}

/// Waits for the end of one program; any other news about it is a failure.
pub fn wait_exit(node: &Node, wanted: ProgramId) -> Exit {
    let give_up = Instant::now() + PATIENCE;
    while Instant::now() < give_up {
        match node.next_event(Some(PATIENCE)).unwrap() {
            Some(Event::Exited { program, exit }) if program == wanted => return exit,
            Some(Event::Started { .. }) => {}
            other => panic!("{other:?} while waiting for the end of {wanted:?}"),
        }
    }
    panic!("{wanted:?} did not end in {PATIENCE:?}");
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, patience: Duration, mut condition: impl FnMut() -> bool) {
    let give_up = Instant::now() + patience;
    while !condition() {
        assert!(Instant::now() < give_up, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn node(lab: &LabDir, name: &str) -> Node {
    Node::start(lab, NodeSpec::new(name)).unwrap()
}
