//! The service that the tests run, and its folder.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use diecast_host_node::{Cgroup, Hierarchies};
use diecast_tests::{diecast, target_dir};

/// Labs use both cores: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

pub struct Bench {
    pub folder: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A client and a server of 500 µs, 20 ms of links between them; a run takes 4 virtual seconds and a start.
pub const CATALOG: &str = r#"diecast: 1
name: small
machine_types:
  half: {cores: 1, speed: 0.4, memory: 128MiB}
nodes:
  client: {type: half}
  server: {type: half}
topology:
  switches: [s]
  links:
    - {from: [client, server], to: s, bandwidth: 100Mbit/s, delay: 5ms}
programs:
  - on: server
    run: [cpuserver, --listen, "0.0.0.0:80", --service, 500us]
    files: {/usr/local/bin/cpuserver: diecast-cpuserver}
    ready: {tcp: 80, within: 20s}
workload:
  parameters: {rate: 100/s, seed: 3}
  warm_up: 1s
  measure: 3s
  run:
    on: client
    command: [loadgen, "http://server/", "--rate=${rate}", "--seed=${seed}", "--warm-up=${warm_up}", "--measure=${measure}"]
    files: {/usr/local/bin/loadgen: diecast-loadgen}
metrics:
  throughput: {from: client, json: $.rate, unit: 1/s}
  latency: {from: client, samples: latency_ns.bin, unit: ns, show: [p50, p99]}
"#;

/// A folder with the catalog and its programs; None when this is not root.
pub fn bench(name: &str) -> Option<Bench> {
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        diecast_quiet::skipped("labs need root");
        return None;
    }
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = std::env::temp_dir().join(format!("diecast-system-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--package", "diecast-loadgen", "--target-dir"])
        .arg(target_dir())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(built.success());
    for program in ["diecast-cpuserver", "diecast-loadgen"] {
        std::fs::copy(target_dir().join("release").join(program), folder.join(program)).unwrap();
    }
    std::fs::write(folder.join("small.yaml"), CATALOG).unwrap();
    Some(Bench { folder, _alone: alone })
}

/// `diecast` with these arguments, in the folder.
pub fn run(bench: &Bench, arguments: &[&str]) -> Output {
    Command::new(diecast()).args(arguments).current_dir(&bench.folder).stdin(Stdio::null()).output().unwrap()
}

/// The living labs that were started in this bench's folder: others of the machine are nobody's business here.
pub fn labs_of(bench: &Bench) -> Vec<serde_json::Value> {
    let all: Vec<serde_json::Value> = serde_json::from_slice(&run(bench, &["ps", "--json"]).stdout).unwrap();
    let folder = bench.folder.canonicalize().unwrap();
    let started_here = |lab: &serde_json::Value| {
        std::fs::read_link(format!("/proc/{}/cwd", lab["pid"])).is_ok_and(|started| started == folder)
    };
    all.into_iter().filter(started_here).collect()
}

/// A benchmark of `benches/` whose results go to a folder of its name; none are left of the look before.
fn benchmark(bench: &Bench, name: &str, arguments: &[&str]) -> Output {
    let script = format!("{}/../benches/{name}.py", env!("CARGO_MANIFEST_DIR"));
    let _ = std::fs::remove_dir_all(bench.folder.join(name));
    let mut command = Command::new("python3");
    command.arg(script).args(["--out", name]).args(arguments);
    command.env("CARGO_TARGET_DIR", target_dir()).env("DIECAST_BIN", diecast());
    let o = command.current_dir(&bench.folder).stdin(Stdio::null()).output().unwrap();
    println!("{}", text(&o.stdout));
    o
}

/// What was written to this file of the bench's folder, JSON.
pub fn results(bench: &Bench, file: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(bench.folder.join(file)).unwrap()).unwrap()
}

/// Runs a benchmark of `benches/` in its small form, with more arguments; its figures.
pub fn small_bench(bench: &Bench, name: &str, arguments: &[&str]) -> Vec<serde_json::Value> {
    let o = benchmark(bench, name, &[&["--small"], arguments].concat());
    // 1: a bar of the benchmark was missed, which this machine may be too busy to meet.
    assert!(matches!(o.status.code(), Some(0 | 1)), "{}\n{}", text(&o.stdout), text(&o.stderr));
    results(bench, &format!("{name}/bench-{name}.json"))["figures"].as_array().unwrap().clone()
}

/// Runs a benchmark of `benches/` that must find nothing wrong; what it wrote to this file. None where it could not run.
pub fn faultless(bench: &Bench, name: &str, arguments: &[&str], file: &str) -> Option<serde_json::Value> {
    let o = benchmark(bench, name, arguments);
    if o.status.code() == Some(3) {
        diecast_quiet::skipped(text(&o.stdout));
        return None;
    }
    assert_eq!(o.status.code(), Some(0), "{}\n{}", text(&o.stdout), text(&o.stderr));
    Some(results(bench, file))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A run in the background.
pub struct LabRun {
    child: Option<Child>,
    out: PathBuf,
}

impl LabRun {
    /// Starts `diecast run` with these arguments, `--out` added.
    pub fn start(bench: &Bench, arguments: &[&str]) -> LabRun {
        let out = bench.folder.join("out");
        // Of the look before.
        let _ = std::fs::remove_dir_all(&out);
        let child = Command::new(diecast())
            .arg("run")
            .args(arguments)
            .arg("--out")
            .arg(&out)
            .current_dir(&bench.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        LabRun { child: Some(child), out }
    }

    fn journal(&self) -> String {
        std::fs::read_to_string(self.out.join("journal.jsonl")).unwrap_or_default()
    }

    /// Waits until the journal has this text.
    pub fn until(&self, words: &str) {
        let begin = Instant::now();
        while !self.journal().contains(words) {
            assert!(begin.elapsed() < Duration::from_secs(40), "no {words} in {}", self.journal());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The lab's id.
    pub fn lab(&self) -> String {
        let journal = self.journal();
        let header: serde_json::Value = serde_json::from_str(journal.lines().next().unwrap()).unwrap();
        header["lab"].as_str().unwrap().to_owned()
    }

    /// The control group of a node.
    pub fn cgroup(&self, node: &str) -> Cgroup {
        let lab = self.lab();
        Hierarchies::detect().unwrap().cgroup(format!("diecast/{lab}/{node}"))
    }

    /// The process of a node that runs this program.
    pub fn process(&self, node: &str, program: &str) -> u32 {
        let is =
            |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == program);
        self.cgroup(node).procs().unwrap().into_iter().find(is).unwrap_or_else(|| panic!("no {program} on {node}"))
    }

    /// Waits for the end: status, table, verdict.
    pub fn end(mut self) -> Ended {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        let run = std::fs::read(self.out.join("run.json")).unwrap_or_default();
        let run: serde_json::Value = serde_json::from_slice(&run).unwrap_or_default();
        Ended {
            status: output.status.code(),
            table: text(&output.stdout),
            errors: text(&output.stderr),
            reasons: run["verdict"]["reasons"].as_array().cloned().unwrap_or_default(),
        }
    }
}

impl Drop for LabRun {
    /// A test that failed in between: the lab dies with its supervisor.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            let _ = Command::new(diecast()).arg("clean").output();
        }
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    pub status: Option<i32>,
    pub table: String,
    pub errors: String,
    reasons: Vec<serde_json::Value>,
}

impl Ended {
    /// What the verdict advises where it counts `what` as a reason.
    pub fn reason(&self, what: &str) -> Option<&str> {
        self.reasons.iter().find(|reason| reason["what"] == what)?["advice"].as_str()
    }
}
