//! Receive work: what the kernel does for a node when packets come is the node's, and its programs get that much less.

use serde_json::Value;

use crate::bench::{Bench, bench, run, text};

/// The sink computes and never reads; so all that a packet costs it is the kernel's. It says what its CPU clock shows.
const CATALOG: &str = r#"diecast: 1
name: receive
machine_types:
  half: {cores: 1, speed: 0.5, memory: 128MiB}
  fifth: {cores: 1, speed: 0.2, memory: 128MiB}
nodes:
  sender: {type: half}
  sink: {type: fifth}
topology:
  switches: [s]
  links:
    - {from: [sender, sink], to: s, bandwidth: 1Gbit/s, delay: 1ms}
programs:
  - on: sink
    run: [python3, /sink.py]
    files: {/sink.py: sink.py}
    ready: {log: busy, within: 20s}
workload:
  warm_up: 500ms
  measure: 1s
  run:
    on: sender
    command: [python3, /flood.py]
    files: {/flood.py: flood.py}
metrics:
  sent: {from: sender, regex: 'sent=(\d+)', unit: packets}
"#;
const SINK: &str = "\
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('0.0.0.0', 9))
print('busy', flush=True)
began = time.monotonic()
while True:
    for _ in range(20000):
        pass
    print(f'at={time.monotonic() - began:.3f} used={time.thread_time():.3f}', flush=True)
";
const FLOOD: &str = "\
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('sink', 9))
sent, end = 0, time.monotonic() + 2
while time.monotonic() < end:
    for _ in range(40):
        s.send(b'x' * 200)
    sent += 40
    time.sleep(0.001)
print(f'sent={sent}')
";
/// Of the sink: speed over TDF.
const SHARE: f64 = 0.1;

#[test]
fn a_flooded_node_has_less_cpu_for_its_programs() {
    let Some(b) = bench("receive") else { return };
    for (name, content) in [("receive.yaml", CATALOG), ("sink.py", SINK), ("flood.py", FLOOD)] {
        std::fs::write(b.folder.join(name), content).unwrap();
    }
    diecast_quiet::look(|| flooded(&b));
}

/// What the sink's CPU clock ran in its second second, with the flood still on and known.
fn clock_of_sink(b: &Bench) -> f64 {
    let log = std::fs::read_to_string(b.folder.join("flooded/logs/sink.python3.out")).unwrap();
    let told = |line: &str| {
        let (at, used) = line.strip_prefix("at=")?.split_once(" used=")?;
        Some((at.parse::<f64>().ok()?, used.parse::<f64>().ok()?))
    };
    let all: Vec<_> = log.lines().filter_map(told).filter(|(at, _)| (1.0..2.0).contains(at)).collect();
    let (first, last) = (all.first().unwrap(), all.last().unwrap());
    (last.1 - first.1) / (last.0 - first.0)
}

fn flooded(b: &Bench) {
    // Of the look before.
    let _ = std::fs::remove_dir_all(b.folder.join("flooded"));
    let o = run(b, &["run", "receive.yaml", "--tdf", "2", "--json", "--out", "flooded"]);
    assert!(matches!(o.status.code(), Some(0 | 4)), "{}\n{}", text(&o.stdout), text(&o.stderr));
    let found: Value = serde_json::from_slice(&o.stdout).unwrap();
    let node = |name: &str| {
        let nodes = found["nodes"].as_array().unwrap();
        let node = nodes.iter().find(|n| n["node"] == name).unwrap().clone();
        move |what: &str| node[what].as_f64().unwrap()
    };
    let (sender, sink) = (node("sender"), node("sink"));
    // What the node may use in all, TDF 2.
    let may_ns = sink("v_span_ns") * 2.0 * SHARE;
    let (programs, packets) = (sink("cpu_charged_ns") / may_ns, sink("cpu_received_ns") / may_ns);
    let each_us = sink("cpu_received_ns") / 1e3 / sink("received_packets");
    println!("packets took {packets:.2} of the sink, {each_us:.2} us each, its program {programs:.2}");
    assert!(sink("received_packets") > 5_000.0, "no flood: {found}");
    assert!(packets > 0.05 && (0.3..50.0).contains(&each_us), "{packets} of the sink, {each_us} us for each");
    // Its program is always busy: it gets what the packets leave, no more. Less, where other work on the machine keeps it from its core.
    assert!((0.6..=1.04).contains(&(programs + packets)), "{programs} + {packets} of the sink");
    let clock = clock_of_sink(b);
    println!("its CPU clock shows {clock:.2} of the time");
    // A kernel that counts what interrupts a thread as the thread's shows a busy one's CPU time as if nothing did.
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap();
    let between = programs + packets / 2.0;
    assert_eq!(clock > between, !symbols.contains("irqtime_account_irq"), "{clock} beside {programs} and {packets}");
    assert!(clock <= 1.04, "{clock} of the time that there was");
    assert_eq!(sender("cpu_received_ns"), 0.0, "nothing came to the sender");
    let bytes = sink("received_bytes") / sink("received_packets");
    assert!((200.0..400.0).contains(&bytes), "{bytes} bytes a packet");
    let came = sink("received_bytes") / sender("sent_bytes");
    assert!((0.5..1.05).contains(&came), "{came} of what was sent");
    let mib = sink("memory_max_bytes") / f64::from(1 << 20);
    assert!((1.0..=128.0).contains(&mib), "{mib} MiB of 128");
    // Whom threads waited for is told of each node, and adds up.
    for name in ["sender", "sink"] {
        let all = found["fidelity"]["waits"].as_array().unwrap();
        let waits = all.iter().find(|w| w["node"] == name).unwrap();
        let causes = waits["causes"].as_object().unwrap_or_else(|| panic!("no causes: {waits}"));
        let sum = causes.values().map(|ns| ns.as_u64().unwrap()).sum::<u64>();
        println!("waits of {name}: {waits}");
        assert!(sum > 0 && waits["waited_ns"] == sum, "{waits}");
    }
    // And the threads' account stays what it is without packets.
    for of in found["fidelity"]["conservation"].as_array().unwrap() {
        let ns = |what: &str| of[what].as_f64().unwrap();
        let off = (ns("charged_ns") + ns("cold_ns") + ns("slow_ns") + ns("meter_cost_ns")) / ns("used_ns") - 1.0;
        assert!(off.abs() <= 0.01, "{:.2} % of the CPU time of {} is unexplained", 100.0 * off, of["node"]);
    }
}
