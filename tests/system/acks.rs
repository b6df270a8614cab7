//! TCP leaves acknowledgements to answers for 40 ms, which are those of the node.

use std::fs;

use serde_json::Value;

use crate::bench::{Bench, LabRun, bench};

/// One connection asks each 30 ms and is answered after 15. Another asks in two writes, of which Nagle's algorithm holds
/// the second until the first is acknowledged: nothing answers that.
const CATALOG: &str = r#"diecast: 1
name: acks
machine_types:
  box: {cores: 1, speed: 0.2, memory: 128MiB}
nodes:
  asks: {type: box}
  answers: {type: box}
topology:
  links:
    - {from: asks, to: answers, bandwidth: 100Mbit/s, delay: 1ms}
programs:
  - on: answers
    run: [python3, -u, /srv/answer.py]
    files: {/srv/answer.py: answer.py}
    ready: {log: listening, within: 20s}
workload:
  warm_up: 1s
  measure: 3s
  run:
    on: asks
    command: [python3, -u, /srv/ask.py, "5"]
    files: {/srv/ask.py: ask.py}
metrics:
  stall: {from: asks, regex: 'stall ([\d.]+)', unit: ms}
"#;

const ANSWER: &str = "import socket, threading, time
def whole(c):
    got = b''
    while len(got) < 8:
        new = c.recv(8 - len(got))
        if not new:
            return False
        got += new
    return True
def serve(s, think):
    c, _ = s.accept()
    while whole(c):
        time.sleep(think); c.sendall(b'answer')
doors = [(socket.create_server(('', 7000)), 0.015), (socket.create_server(('', 7001)), 0)]
print('listening')
for door in doors:
    threading.Thread(target=serve, args=door).start()
time.sleep(60)
";

const ASK: &str = "import socket, statistics, sys, threading, time
begin = time.monotonic(); stalls = []
def ask(port, every, writes):
    c = socket.create_connection(('answers', port)); asked = 0
    while time.monotonic() < begin + float(sys.argv[1]):
        at = time.monotonic()
        for part in writes:
            c.sendall(part)
        c.recv(100); asked += 1
        if len(writes) > 1:
            stalls.append(time.monotonic() - at)
        time.sleep(max(0, begin + asked * every - time.monotonic()))
all = [threading.Thread(target=ask, args=a) for a in [(7000, 0.03, [b'question']), (7001, 0.1, [b'ques', b'tion'])]]
[t.start() for t in all]; [t.join() for t in all]
print('stall', 1000 * statistics.median(stalls[1:]))
";

/// Packets of both ways in the measured time, and how long a question in two writes took, virtual ms.
fn seen(b: &Bench, mode: &[&str]) -> ([u64; 2], f64) {
    for (name, text) in [("acks.yaml", CATALOG), ("answer.py", ANSWER), ("ask.py", ASK)] {
        fs::write(b.folder.join(name), text).unwrap();
    }
    let ended = LabRun::start(b, &[&["acks.yaml"], mode].concat()).end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    let run: Value = serde_json::from_slice(&fs::read(b.folder.join("out/run.json")).unwrap()).unwrap();
    let pipes = run["pipes"].as_array().unwrap();
    let packets = ["asks", "answers"].map(|from| {
        let pipe = pipes.iter().find(|p| p["from"] == from).unwrap_or_else(|| panic!("{run}"));
        pipe["packets_sent"].as_u64().unwrap()
    });
    let stall = &run["metrics"][0]["data"]["scalar"]["value"];
    (packets, stall.as_f64().unwrap_or_else(|| panic!("{}", run["metrics"])))
}

/// 40 ms of real time are 10 at TDF 4: an empty segment would precede each answer and each next question, and the second
/// write would wait for a fourth of what it waits for outside.
#[test]
fn acknowledgements_wait_for_answers_as_long_as_outside() {
    let Some(b) = bench("acks") else { return };
    diecast_quiet::look(|| as_long(&b));
}

fn as_long(b: &Bench) {
    let (baseline, baseline_stall) = seen(b, &["--mode", "baseline"]);
    let (dilated, dilated_stall) = seen(b, &["--tdf", "4"]);
    println!("packets: baseline {baseline:?}, dilated {dilated:?}");
    println!("two writes: baseline {baseline_stall:.1} ms, dilated {dilated_stall:.1} ms");
    for (before, after) in baseline.into_iter().zip(dilated) {
        assert!(after.abs_diff(before) <= 25, "{before} packets in the baseline, {after} in the dilated lab");
    }
    assert!((40.0..60.0).contains(&baseline_stall), "{baseline_stall} ms");
    assert!((40.0..60.0).contains(&dilated_stall), "{dilated_stall} ms in the dilated lab");
}
