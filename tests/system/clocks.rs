//! Clocks of nodes: wrong from the start, set by a program, changed by a command.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use diecast_tests::real_ahead_ns;
use serde_json::Value;

use crate::bench::{Bench, CATALOG, LabRun, bench, run, text};

/// Prints now and then how far REALTIME is ahead of MONOTONIC, and what files of /proc say beside clocks; the client sets
/// its own clock once.
const WATCH: &str = r#"import os, sys, time
boot = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
def fields(pid):
    return open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()
def look():
    before, up, after = boot(), float(open('/proc/uptime').read().split()[0]), boot()
    stat = [l.split() for l in open('/proc/stat').read().splitlines()]
    btime = [int(l[1]) for l in stat if l[0] == 'btime'][0] - (time.time() - boot())
    whole = sum(map(int, stat[0][1:9])) / 100
    cores = sum(l[0].startswith('cpu') for l in stat) - 1
    own = fields('self')
    used, clock = (int(own[11]) + int(own[12])) / 100, time.process_time()
    then, pid = boot(), os.fork()
    if pid == 0:
        time.sleep(0.05)
        os._exit(0)
    now, began = boot(), int(fields(pid)[19]) / 100
    os.waitpid(pid, 0)
    load = open('/proc/loadavg').read().split()
    print('proc', before, up, after, btime, whole, cores, used, clock, then, began, now, load[2], flush=True)
if sys.argv[1] == 'server':
    # A wait for an instant that only the last step brings.
    import ctypes, threading
    def wait():
        real, mono = int(time.time()) + 6000, time.monotonic()
        ctypes.CDLL(None).clock_nanosleep(0, 1, (ctypes.c_long * 2)(real, 0), None)
        print('waited', time.monotonic() - mono, time.time() - real, flush=True)
    threading.Thread(target=wait, daemon=True).start()
for i in range(80):
    print('ahead', time.clock_gettime_ns(0) - time.clock_gettime_ns(1), flush=True)
    if sys.argv[1] == 'client' and i == 10:
        time.clock_settime(time.CLOCK_REALTIME, time.time() + 3600)
    if i % 5 == 0:
        look()
    time.sleep(0.1)
"#;

fn with_clocks(b: &Bench) {
    let program =
        "  - {on: [client, server], run: [python3, /watch.py, \"${node}\"], files: {/watch.py: watch.py}}\nworkload:\n";
    let text = CATALOG
        .replace("  server: {type: half}", "  server: {type: half, clock: {offset: 90s, drift: -200ppm}}")
        .replace("workload:\n", program);
    std::fs::write(b.folder.join("clocks.yaml"), text).unwrap();
    std::fs::write(b.folder.join("watch.py"), WATCH).unwrap();
}

/// The lines of a node's programs that begin with a word, without it.
fn lines(out: &Path, node: &str, first: &str) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(out.join("logs")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with(node) {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            all.extend(text.lines().filter_map(|l| Some(l.strip_prefix(first)?.to_owned())));
        }
    }
    all
}

/// What the programs of a node saw, in seconds beyond `base_ns`.
fn ahead(out: &Path, node: &str, base_ns: i64) -> Vec<f64> {
    let numbers = lines(out, node, "ahead ");
    numbers.iter().filter_map(|n| Some((n.parse::<i64>().ok()? - base_ns) as f64 / 1e9)).collect()
}

/// The kernel's tick is 10 ms of the host.
const TICK: f64 = 0.01;

/// /proc/uptime, stat, PID/stat and loadavg of a node are those of its own clocks, whatever was done to them.
fn check_proc(out: &Path, node: &str) {
    let looks: Vec<Vec<f64>> = lines(out, node, "proc ")
        .iter()
        .map(|line| line.split(' ').map(|word| word.parse().unwrap()).collect())
        .collect();
    assert!(looks.len() > 4, "{node}: {looks:?}");
    for look in &looks {
        let [before, up, after, btime, _, cores, used, clock, then, began, now, load] = look[..] else {
            panic!("{look:?}")
        };
        assert!((before - TICK..=after).contains(&up), "{node}, uptime: {look:?}");
        assert!((-1.01..=0.01).contains(&btime), "{node}, btime: {look:?}");
        assert!((clock - 5.0 * TICK..=clock + 3.0 * TICK).contains(&used), "{node}, CPU time: {look:?}");
        assert!((then - 3.0 * TICK..=now + TICK).contains(&began), "{node}, start of a process: {look:?}");
        assert!((0.0..0.3).contains(&load), "{node}, load of 15 minutes, seconds after the lab's start: {look:?}");
        assert_eq!(cores, 1.0, "{node}: {look:?}");
    }
    let (first, last) = (&looks[0], &looks[looks.len() - 1]);
    let (passed, counted) = (last[0] - first[0], last[4] - first[4]);
    assert!((passed / 3.0..passed * 2.0).contains(&counted), "{node}, of {passed} s of a core {counted} are in stat");
}

fn clocks(b: &Bench, words: &[&str]) -> BTreeMap<String, Value> {
    let o = run(b, &[&["clock"], words, &["--json"]].concat());
    assert_eq!(o.status.code(), Some(0), "{words:?}: {}", text(&o.stderr));
    let list: Vec<Value> = serde_json::from_slice(&o.stdout).unwrap();
    list.into_iter().map(|c| (c["node"].as_str().unwrap().to_owned(), c)).collect()
}

fn seconds(clock: &Value) -> f64 {
    clock["offset_ns"].as_i64().unwrap() as f64 / 1e9
}

fn once_the_client_has_set_its_own(b: &Bench, lab: &str) -> BTreeMap<String, Value> {
    let began = Instant::now();
    loop {
        let all = clocks(b, &[lab]);
        if seconds(&all["client"]) != 0.0 || began.elapsed() > Duration::from_secs(30) {
            return all;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn each_node_has_a_clock_of_its_own() {
    let Some(b) = bench("clocks") else { return };
    with_clocks(&b);
    diecast_quiet::look(|| own_clocks(&b));
}

fn own_clocks(b: &Bench) {
    let base = real_ahead_ns();
    let lab = LabRun::start(b, &["clocks.yaml", "--tdf", "2"]);
    lab.until("warm_up");
    let id = lab.lab();
    let first = once_the_client_has_set_its_own(b, &id);
    let server = &first["server"];
    assert!((seconds(server) - 90.0).abs() < 0.05, "{server}");
    assert_eq!(server["drift_ppb"], -200_000);
    assert!((seconds(&first["client"]) - 3600.0).abs() < 0.01, "its own program set it: {first:?}");
    assert_eq!(first["client"]["synchronised"], false);
    clocks(b, &[&id, "server", "--drift", "100000ppm"]);
    let changed = clocks(b, &[&id, "server", "--step=-100s"]);
    assert!((seconds(&changed["server"]) + 10.0).abs() < 0.3, "{changed:?}");
    for (words, expected) in [
        (&["nobody", "--step", "1s"][..], "no node or group 'nobody'"),
        (&["server", "--drift", "100001ppm"], "expected at most 100000 ppm"),
        (&["server", "--step", "1"], "has no unit"),
        (&["server", "--step=-100000h"], "expected at most ten years"),
    ] {
        let o = run(b, &[&["clock", id.as_str()], words].concat());
        assert_eq!(o.status.code(), Some(2), "{words:?}: {}{}", text(&o.stdout), text(&o.stderr));
        assert!(text(&o.stderr).contains(expected), "{words:?}: {}", text(&o.stderr));
    }
    let line = text(&run(b, &["clock", &id, "server"]).stdout);
    assert!(line.contains("drift +100000.000 ppm"), "{line}");
    std::thread::sleep(Duration::from_secs(2));
    // A tenth of one virtual second and what the commands took.
    let gained = seconds(&clocks(b, &[&id, "server"])["server"]) - seconds(&changed["server"]);
    assert!((0.09..0.4).contains(&gained), "{gained}");
    clocks(b, &[&id, "server", "--step", "2h"]);
    let ended = lab.end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    for words in
        ["clock of server: drift +100000 ppm", "clock of server: step -100000 ms", "clock of server: step +7200000 ms"]
    {
        assert!(ended.table.contains(words), "no '{words}' in {}", ended.table);
    }
    let out = b.folder.join("out");
    // REALTIME and MONOTONIC drift alike: their difference is steps only.
    for (node, expected) in [("client", &[0.0, 3600.0][..]), ("server", &[90.0, -10.0, 7190.0])] {
        let mut seen = ahead(&out, node, base);
        assert!(seen.len() > 20, "{node}: {seen:?}");
        for e in expected {
            let at = seen.iter().take_while(|s| (**s - *e).abs() < 0.05).count();
            assert!(at > 3, "{node}, expected {e}: {seen:?}");
            seen.drain(..at);
        }
        assert!(seen.is_empty(), "{node}: {seen:?}");
        check_proc(&out, node);
    }
    let waited = lines(&out, "server", "waited ");
    let [waited] = &waited[..] else { panic!("{waited:?}") };
    let (took, past) = waited.split_once(' ').unwrap();
    let (took, past): (f64, f64) = (took.parse().unwrap(), past.parse().unwrap());
    assert!((1.0..9.0).contains(&took), "a wait of 6000 s took {took} s");
    assert!((1000.0..1200.0).contains(&past), "a wait of 6000 s that ends with a step of 7100 is {past} s late");
    assert!((real_ahead_ns() - base).abs() < 50_000_000, "the host's clock moved");
}
