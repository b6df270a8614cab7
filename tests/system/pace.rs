//! A lab is paused and goes on while its programs wait in every way, and talk.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::{Bench, CATALOG, LabRun, bench, run, text};

/// `small.yaml` with programs beside the load as `pace.yaml`.
fn with_programs(b: &Bench, measure: &str) {
    let programs = "  - {on: client, run: [/waits.py], files: {/waits.py: waits.py}}
  - {on: server, run: [/tcp.py], files: {/tcp.py: tcp.py}}
  - {on: client, run: [/tcp.py, server], files: {/tcp.py: tcp.py}}
  - {on: client, run: [/sockets.py], files: {/sockets.py: sockets.py}}
workload:
";
    let catalog = CATALOG.replace("workload:\n", programs).replace("measure: 3s", &format!("measure: {measure}"));
    std::fs::write(b.folder.join("pace.yaml"), catalog).unwrap();
    for (name, program) in [
        ("waits.py", include_str!("pace_waits.py")),
        ("tcp.py", include_str!("pace_tcp.py")),
        ("sockets.py", include_str!("pace_sockets.py")),
    ] {
        std::fs::write(b.folder.join(name), program).unwrap();
        std::fs::set_permissions(b.folder.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn pace(b: &Bench, words: &[&str]) -> Value {
    let o = run(b, &[words, &["--json"]].concat());
    assert_eq!(o.status.code(), Some(0), "{words:?}: {}", text(&o.stderr));
    serde_json::from_slice(&o.stdout).unwrap()
}

fn is_paused(b: &Bench, id: &str) -> bool {
    let labs: Value = serde_json::from_slice(&run(b, &["ps", "--json"]).stdout).unwrap();
    let lab = labs.as_array().unwrap().iter().find(|lab| lab["id"] == id).unwrap();
    let table = text(&run(b, &["ps"]).stdout);
    let line = table.lines().find(|line| line.starts_with(id)).unwrap();
    assert_eq!(line.contains("paused"), lab["paused"] == true, "{line}");
    lab["paused"] == true
}

/// The words of the lines of the client's logs that begin so.
fn lines(out: &Path, first: &str) -> Vec<Vec<String>> {
    let logs = std::fs::read_dir(out.join("logs")).unwrap().flatten();
    let all: String = logs
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("client."))
        .map(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default())
        .collect();
    let words = all.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    words.filter(|words| words.first().is_some_and(|word| word == first)).collect()
}

fn number(word: &str) -> f64 {
    word.parse().unwrap()
}

/// Every wait, and every period, ended at its virtual instant or after, and soon; and no clock went back.
fn check_waits(out: &Path) {
    let coarse = lines(out, "coarse");
    assert!(coarse.len() > 3 && coarse.iter().all(|seen| seen[2] == "0"), "{coarse:?}");
    let waits = [lines(out, "wait"), lines(out, "period")].concat();
    let ways: std::collections::BTreeSet<&String> = waits.iter().map(|w| &w[1]).collect();
    assert_eq!(ways.len(), 17, "{ways:?}");
    assert!(waits.len() > 100, "{} waits", waits.len());
    let unread = lines(out, "unread");
    assert!(unread.len() > 3, "{unread:?}");
    for seen in &unread {
        assert!(number(&seen[3]) >= number(&seen[2]), "more expirations than there can be: {seen:?}");
    }
    let mut latest: Vec<(f64, &Vec<String>)> = Vec::new();
    for wait in &waits {
        let late_ms = (number(&wait[3]) - number(&wait[2])) / 1e6;
        assert!(late_ms >= 0.0, "ended {late_ms} ms early: {wait:?}");
        latest.push((late_ms, wait));
    }
    latest.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("{} waits, the latest: {:?}", waits.len(), &latest[..5]);
    assert!(latest[0].0 < 100.0, "{:?}", &latest[..20]);
}

/// The connection's estimate of its round trip is so many answers after the last pause what it was before the first.
fn check_rtt(out: &Path, pauses_v_ns: &[f64], answers: usize) {
    let rtt: Vec<(f64, f64)> = lines(out, "rtt").iter().map(|words| (number(&words[1]), number(&words[2]))).collect();
    let (first, last) = (pauses_v_ns[0], pauses_v_ns[pauses_v_ns.len() - 1]);
    let before: Vec<f64> = rtt.iter().filter(|(at, _)| *at < first).map(|(_, us)| *us).collect();
    let then: Vec<f64> = rtt.iter().filter(|(at, _)| *at > last).map(|(_, us)| *us).take(60).collect();
    assert!(before.len() > 10 && then.len() == 60, "{} and {}", before.len(), then.len());
    let usual = before[before.len() - 10..].iter().sum::<f64>() / 10.0;
    let most = then.iter().copied().fold(0.0, f64::max);
    let is_back = |us: &f64| (usual * 0.9..usual * 1.1).contains(us);
    println!(
        "round trip {usual:.0} us; after the pause at most {most:.0}, after 50 segments {:.0}; within 10 % after {:?}",
        then[50],
        then.iter().rposition(|us| !is_back(us)).map(|at| at + 1)
    );
    assert!(is_back(&then[answers]), "{usual}: {then:?}");
}

#[test]
fn a_lab_is_paused_and_goes_on() {
    let Some(b) = bench("pace") else { return };
    with_programs(&b, "5s");
    diecast_quiet::look(|| pauses(&b));
}

/// By the node's own clock, which a command makes a tenth too fast and too slow in turn.
#[test]
fn waits_end_by_a_clock_that_drifts() {
    let Some(b) = bench("drift") else { return };
    with_programs(&b, "5s");
    diecast_quiet::look(|| drifts(&b));
}

fn drifts(b: &Bench) {
    let lab = LabRun::start(b, &["pace.yaml", "--tdf", "2"]);
    lab.until("warm_up");
    let id = lab.lab();
    for drift in ["100000ppm", "-100000ppm", "100000ppm", "-100000ppm", "0ppm", "-100000ppm", "100000ppm"] {
        pace(b, &["clock", &id, "client", &format!("--drift={drift}")]);
        std::thread::sleep(Duration::from_millis(700));
    }
    let ended = lab.end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    check_waits(&b.folder.join("out"));
}

fn pauses(b: &Bench) {
    let lab = LabRun::start(b, &["pace.yaml", "--tdf", "2"]);
    lab.until("warm_up");
    let id = lab.lab();
    std::thread::sleep(Duration::from_millis(2000));
    let mut pauses = Vec::new();
    for _ in 0..3 {
        let paused = pace(b, &["pause", &id]);
        assert_eq!((&paused["paused"], &paused["tdf"]), (&true.into(), &"2".into()));
        assert!(is_paused(b, &id));
        std::thread::sleep(Duration::from_millis(2500));
        let o = run(b, &["pause", &id]);
        assert_eq!(o.status.code(), Some(2), "{}", text(&o.stderr));
        assert!(text(&o.stderr).contains("the lab is paused already"), "{}", text(&o.stderr));
        let resumed = pace(b, &["resume", &id]);
        assert_eq!(paused["v_ns"], resumed["v_ns"], "virtual time passed");
        assert!(!is_paused(b, &id));
        pauses.extend(paused["v_ns"].as_f64());
        std::thread::sleep(Duration::from_millis(1300));
    }
    let o = run(b, &["resume", &id]);
    assert_eq!(o.status.code(), Some(2), "{}", text(&o.stderr));
    assert!(text(&o.stderr).contains("the lab is running already"), "{}", text(&o.stderr));
    let ended = lab.end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    for words in ["the lab: paused", "the lab: goes on"] {
        assert!(ended.table.contains(words), "{}", ended.table);
    }
    check_waits(&b.folder.join("out"));
    check_rtt(&b.folder.join("out"), &pauses, 50);
}

/// A program sees its sockets' times as it set them, at whatever rate, and a receive does not end before its time. One
/// that a change interrupts begins anew.
fn check_sockets(out: &Path) {
    let options = lines(out, "options");
    assert!(options.len() > 40, "{}", options.len());
    for words in &options {
        // The kernel keeps this one in jiffies.
        assert!((300_000.0..=304_000.0).contains(&number(&words[2])), "{words:?}");
        assert_eq!(words[3..].join(" "), "1 3 5000 20 3500 75");
    }
    let receives: Vec<f64> = lines(out, "receive").iter().map(|words| number(&words[1]) / 1e6).collect();
    let (least, most) =
        (receives.iter().copied().fold(f64::MAX, f64::min), receives.iter().copied().fold(0.0, f64::max));
    println!("{} receives of 300 ms: {least:.1} to {most:.1} ms", receives.len());
    assert!(receives.len() > 6 && least >= 300.0 && most < 1300.0, "{receives:?}");
}

/// What has no TDF has none to change, whether its nodes have frames or not: a fault of the command.
#[test]
fn a_lab_of_another_mode_is_not_retimed() {
    let Some(b) = bench("retime-mode") else { return };
    for mode in [&["--mode", "naive", "--scale", "4"][..], &["--mode", "baseline"]] {
        let lab = LabRun::start(&b, &[&["small.yaml"], mode].concat());
        lab.until("warm_up");
        let o = run(&b, &["retime", &lab.lab(), "--tdf", "2"]);
        assert_eq!(o.status.code(), Some(2), "{mode:?}: {}", text(&o.stderr));
        assert!(text(&o.stderr).contains("--mode diecast"), "{mode:?}: {}", text(&o.stderr));
        lab.end();
    }
}

#[test]
fn a_lab_is_retimed() {
    let Some(b) = bench("retime") else { return };
    with_programs(&b, "4s");
    diecast_quiet::look(|| retimes(&b));
}

fn retimes(b: &Bench) {
    let lab = LabRun::start(b, &["pace.yaml", "--tdf", "2"]);
    lab.until("warm_up");
    let id = lab.lab();
    let quota_us = || lab.cgroup("client").quota().unwrap().unwrap().quota_us;
    assert_eq!(quota_us(), 800_000);
    for (tdf, status, words) in [
        ("1/3", 3, "machine type 'half' has speed 0.40: at TDF 1/3 each core would need 1.20 real cores"),
        ("0.45", 3, "of a core for"),
        ("0", 2, "TDF"),
    ] {
        let o = run(b, &["retime", &id, "--tdf", tdf]);
        assert_eq!(o.status.code(), Some(status), "{}", text(&o.stderr));
        assert!(text(&o.stderr).contains(words), "{}", text(&o.stderr));
    }
    let out = b.folder.join("out");
    // The connection's programs may be slow to start beside others.
    while lines(&out, "rtt").len() < 20 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut changes = Vec::new();
    let mut retime = |tdf: &str, quota: u64| {
        let pace = pace(b, &["retime", &id, "--tdf", tdf]);
        assert_eq!((&pace["paused"], &pace["tdf"]), (&false.into(), &tdf.into()));
        assert_eq!(quota_us(), quota, "at TDF {tdf}");
        changes.extend(pace["v_ns"].as_f64());
        assert!(text(&run(b, &["ps"]).stdout).contains(&format!("runs at TDF {tdf}")));
        std::thread::sleep(Duration::from_millis(1000));
    };
    retime("4", 400_000);
    retime("1", 1_600_000);
    retime("3", 533_334);
    // While it stands still: from the end of the pause on.
    pace(b, &["pause", &id]);
    let waiting = pace(b, &["retime", &id, "--tdf", "3/2"]);
    assert_eq!((&waiting["paused"], &waiting["tdf"]), (&true.into(), &"3/2".into()));
    assert_eq!(quota_us(), 533_334);
    changes.extend(pace(b, &["resume", &id])["v_ns"].as_f64());
    assert_eq!(quota_us(), 1_066_667);
    let ended = lab.end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    assert!(ended.table.contains("the lab: TDF 4"), "{}", ended.table);
    check_waits(&out);
    check_rtt(&out, &changes, 50);
    check_sockets(&out);
    let mut kernel: Vec<String> = lines(&out, "kernel").iter().map(|words| words[1..].join(" ")).collect();
    kernel.dedup();
    let of = |tdf: f64| format!("{} {} {}", 200_000.0 * tdf, 7200.0 * tdf, 1000.0 * tdf);
    assert_eq!(kernel, [of(2.0), of(4.0), of(1.0), of(3.0), of(1.5)]);
}

/// What is on its way when the pause begins is retransmitted all along, and what acknowledges it first echoes a timestamp
/// from before the pause: nobody may take the pause for a round trip.
#[test]
fn a_pause_with_retransmissions_is_no_round_trip() {
    let Some(b) = bench("retransmitted") else { return };
    with_programs(&b, "4s");
    diecast_quiet::look(|| long_pause(&b, 30));
}

#[test]
#[ignore = "sleeps for ten minutes"]
fn a_connection_survives_a_pause_of_ten_minutes() {
    let Some(b) = bench("long") else { return };
    with_programs(&b, "6s");
    long_pause(&b, 600);
}

fn long_pause(b: &Bench, seconds: u64) {
    let lab = LabRun::start(b, &["pace.yaml", "--tdf", "2"]);
    lab.until("warm_up");
    let (id, out) = (lab.lab(), b.folder.join("out"));
    while lines(&out, "rtt").len() < 20 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let paused = pace(b, &["pause", &id]);
    std::thread::sleep(Duration::from_secs(seconds));
    pace(b, &["resume", &id]);
    let ended = lab.end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    let waits = lines(&out, "wait");
    assert!(waits.iter().all(|wait| number(&wait[3]) >= number(&wait[2])), "{waits:?}");
    check_rtt(&out, &[paused["v_ns"].as_f64().unwrap()], 20);
}

#[test]
fn a_paused_lab_can_be_ended() {
    let Some(b) = bench("paused") else { return };
    let lab = LabRun::start(&b, &["small.yaml", "--tdf", "2"]);
    lab.until("warm_up");
    let id = lab.lab();
    pace(&b, &["pause", &id]);
    let labs: Value = serde_json::from_slice(&run(&b, &["ps", "--json"]).stdout).unwrap();
    let lab_now = labs.as_array().unwrap().iter().find(|l| l["id"] == id.as_str()).unwrap();
    // SAFETY: a signal to a process that this test started.
    assert_eq!(unsafe { libc::kill(lab_now["pid"].as_i64().unwrap() as i32, libc::SIGINT) }, 0);
    let begin = Instant::now();
    let ended = lab.end();
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(!text(&run(&b, &["ps"]).stdout).contains(&id), "nothing is left");
}

/// A warm-up of 3.4 virtual seconds at TDF 4, of which 1.02 take place at TDF 1, and none where that was not wanted.
#[test]
fn a_lab_runs_at_a_lower_tdf_for_a_moment_of_its_warm_up() {
    let Some(b) = bench("probe") else { return };
    let catalog = CATALOG.replace("speed: 0.4", "speed: 0.15").replace("warm_up: 1s", "warm_up: 3400ms");
    std::fs::write(b.folder.join("probe.yaml"), catalog.replace("measure: 3s", "measure: 200ms")).unwrap();
    let changes = |flags: &[&str]| -> (Value, Vec<Value>) {
        let _ = std::fs::remove_dir_all(b.folder.join("out"));
        let o = run(&b, &[&["run", "probe.yaml", "--tdf", "4", "--out", "out"], flags].concat());
        assert!(matches!(o.status.code(), Some(0 | 4)), "{}{}", text(&o.stdout), text(&o.stderr));
        let journal = std::fs::read_to_string(b.folder.join("out/journal.jsonl")).unwrap();
        let all: Vec<Value> = journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let warm_up = all.iter().find(|r| r["record"] == "phase" && r["phase"] == "warm_up").unwrap().clone();
        (warm_up, all.into_iter().filter(|r| r["record"] == "network_change").collect())
    };
    let (warm_up, found) = changes(&[]);
    let [down, up] = &found[..] else { panic!("{found:?}") };
    assert!(found.iter().all(|c| c["source"] == "probe"), "{found:?}");
    assert!(down["change"].as_str().unwrap().starts_with("the lab: TDF 1 for a moment"), "{down}");
    assert_eq!(up["change"], "the lab: TDF 4");
    let since = |later: &Value, earlier: &Value, key: &str| {
        (later[key].as_u64().unwrap() - earlier[key].as_u64().unwrap()) as f64 / 1e6
    };
    let begin_ms = since(down, &warm_up, "v_ns");
    assert!((2_040.0..2_300.0).contains(&begin_ms), "{begin_ms} ms after the load began");
    let (virtual_ms, real_ms) = (since(up, down, "v_ns"), since(up, down, "r_ns"));
    assert!((750.0..1_300.0).contains(&virtual_ms), "{virtual_ms} ms");
    assert!((real_ms / virtual_ms - 1.0).abs() < 0.3, "{virtual_ms} ms took {real_ms} ms");
    assert!(changes(&["--no-probe"]).1.is_empty());
}
