//! A node with several NICs: each in a segment of its own, with its own address, and nothing passes through the node.
//! And NICs that are misused, switched off or removed: results say so.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::bench::{Bench, CATALOG, LabRun, bench, run, text};

/// Asks the server over the second NIC, says what it answers, then serves on the first.
const FRONT: &str = "\
cat /sys/class/net/eth1/mtu
exec 3<>/dev/tcp/server/80
printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3
read -r answer <&3
echo it said $answer
getent hosts server server.eth1 front front.eth1
exec cpuserver --listen 0.0.0.0:80 --service 500us
";
/// Tries to reach the server, which no segment of the client's holds.
const APART: &str = "\
if (exec 3<>/dev/tcp/server/80); then echo reached; else echo apart; fi
exec sleep inf
";

/// The client and the front share one segment, the front and the server another: the front reaches both, with frames
/// of 9000 bytes, the client does not reach the server, and a cut of the front's links is of both.
#[test]
fn a_node_between_two_segments_reaches_both_and_joins_neither() {
    let Some(b) = bench("nics") else { return };
    std::fs::write(b.folder.join("front.sh"), FRONT).unwrap();
    std::fs::write(b.folder.join("apart.sh"), APART).unwrap();
    let link = "    - {from: [client, server], to: s, bandwidth: 100Mbit/s, delay: 5ms}\n";
    let links = "    - {from: [client, front], to: s, bandwidth: 100Mbit/s, delay: 5ms}\n    \
                 - {from: [server, front], to: t, bandwidth: 100Mbit/s, delay: 5ms}\n";
    let programs = "  - on: front\n    run: [bash, /front.sh]\n    files: {/front.sh: front.sh, \
                    /usr/local/bin/cpuserver: diecast-cpuserver}\n    ready: {tcp: 80, within: 20s}\n  \
                    - on: client\n    run: [bash, /apart.sh]\n    files: {/apart.sh: apart.sh}\n    \
                    ready: {log: apart, within: 20s}\nworkload:\n";
    let catalog = CATALOG
        .replace("  server: {type: half}\n", "  server: {type: half}\n  front: {type: half}\n")
        .replace("  switches: [s]\n", "  mtu: 9000B\n  offload: true\n  switches: [s, t]\n")
        .replace(link, links)
        .replace("workload:\n", programs)
        .replace("http://server/", "http://front/");
    std::fs::write(b.folder.join("nics.yaml"), catalog).unwrap();
    let planned = text(&run(&b, &["plan", "nics.yaml", "--tdf", "4"]).stdout);
    assert!(planned.contains("10.99.0.3, 10.100.0.4") && planned.contains("10.100.0.2"), "{planned}");
    let lab = LabRun::start(&b, &["nics.yaml", "--tdf", "4"]);
    lab.until("warm_up");
    let cut = run(&b, &["link", &lab.lab(), "cut", "front", "--at", "20s", "--json"]);
    assert!(text(&cut.stdout).contains("cut front:s, front:t, s:front, t:front"), "{}", text(&cut.stdout));
    let ended = lab.end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    let said = std::fs::read_to_string(b.folder.join("out/logs/front.bash.out")).unwrap();
    let words: Vec<&str> = said.split_whitespace().collect();
    let want = "9000 it said HTTP/1.1 200 OK fd00:dc:1::2 server fd00:dc::3 front front.eth0 fd00:dc:1::4 front.eth1";
    assert!(words.join(" ").starts_with(want), "{said}");
    let apart = std::fs::read_to_string(b.folder.join("out/logs/client.bash.err")).unwrap();
    assert!(apart.contains("Network is unreachable"), "{apart}");
}

/// Four frames from another's MAC and three that say they are longer than they are.
const LIES: &str = "\
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(('eth0', 0))
own = s.getsockname()[4]
for n in range(4): s.send(b'\\xff' * 6 + own[:5] + bytes([own[5] ^ 1]) + b'\\x08\\x00' + bytes(60))
for n in range(3): s.send(b'\\xff' * 6 + own + b'\\x08\\x00' + b'\\x45\\x00\\x0f\\xff' + bytes(60))
";
/// Five datagrams to the node that is given.
const DATAGRAMS: &str = "\
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(5): s.sendto(b'hello', (sys.argv[1], 9))
";

/// Runs a command in the network of a node.
fn within(lab: &LabRun, node: &str, program: &str, command: &[&str]) {
    let pid = lab.process(node, program).to_string();
    let o = Command::new("nsenter").args(["-t", &pid, "-n"]).args(command).output().unwrap();
    assert!(o.status.success(), "{command:?}: {}", text(&o.stderr));
}

/// Whether every count of a lateness is in its histogram, and every quantile in its bucket.
fn assert_whole(lateness: &Value) {
    let number = |v: &Value| v.as_u64().unwrap_or_else(|| panic!("{lateness}"));
    let events = number(&lateness["events"]);
    let buckets: Vec<(u64, u64)> =
        lateness["v_buckets_ns"].as_array().unwrap().iter().map(|b| (number(&b[0]), number(&b[1]))).collect();
    assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), events, "{lateness}");
    for (key, ppm) in [("v_p50_ns", 500_000), ("v_p99_ns", 990_000), ("v_p999_ns", 999_000), ("v_max_ns", 1_000_000)] {
        let (quantile, mut left) = (number(&lateness[key]), (events * ppm).div_ceil(1_000_000).max(1));
        let at = buckets.iter().position(|(_, count)| {
            let here = *count >= left;
            left = left.saturating_sub(*count);
            here
        });
        let at = at.unwrap_or_else(|| panic!("{key}: {lateness}"));
        let above = at.checked_sub(1).map_or(0, |below| buckets[below].0 + 1);
        assert!((above..=buckets[at].0).contains(&quantile), "{key}: {lateness}");
    }
}

/// What a third node sends in vain, what its NIC does not take and that it goes away stands in results by cause, and the
/// verdict says that the network was not what was asked for. Lateness has its histogram.
#[test]
fn results_tell_what_nics_lost_and_how_late_packets_were() {
    let Some(b) = bench("faulty-nic") else { return };
    faulty(&b);
}

fn faulty(b: &Bench) {
    let third = "  - on: third\n    run: [sleep, inf]\nworkload:\n";
    let catalog = CATALOG
        .replace("  server: {type: half}\n", "  server: {type: half}\n  third: {type: half}\n")
        .replace("[client, server]", "[client, server, third]")
        .replace("workload:\n", third);
    std::fs::write(b.folder.join("third.yaml"), catalog).unwrap();
    let lab = LabRun::start(b, &["third.yaml", "--mode", "baseline"]);
    lab.until("\"phase\":\"measure\"");
    // What a node did in the measured time begins with the first sample in it, 250 ms later at most.
    std::thread::sleep(Duration::from_millis(500));
    within(&lab, "third", "sleep", &["python3", "-c", LIES]);
    within(&lab, "third", "sleep", &["ip", "link", "set", "eth0", "down"]);
    within(&lab, "client", "loadgen", &["python3", "-c", DATAGRAMS, "10.99.0.3"]);
    std::thread::sleep(Duration::from_millis(300));
    within(&lab, "third", "sleep", &["ip", "link", "delete", "eth0"]);
    let ended = lab.end();
    assert_eq!(ended.status, Some(4), "{ended:?}");
    let gone = ended.reason("NICs that went away").unwrap_or_else(|| panic!("{ended:?}"));
    assert!(gone.starts_with("eth0 of node third went away"), "{gone}");
    let words =
        ["third eth0 ", "3 malformed", "4 from another's MAC", "5 not taken by its device", "frames never reached"];
    for words in words.into_iter().chain(["the device went away", "p99.9"]) {
        assert!(ended.table.contains(words), "no '{words}' in {}", ended.table);
    }
    let run: Value = serde_json::from_slice(&std::fs::read(b.folder.join("out/run.json")).unwrap()).unwrap();
    for (node, nics) in [(0, 0), (1, 0), (2, 1)] {
        assert_eq!(run["nodes"][node]["nic_faults"].as_array().unwrap().len(), nics, "{}", run["nodes"][node]);
    }
    let third = &run["nodes"][2];
    assert_eq!((&third["nic_faults"][0]["gone"], &third["dropped_packets"]), (&true.into(), &12.into()), "{third}");
    let fidelity = &run["fidelity"];
    assert!(fidelity["emulator"]["events"].as_u64() > Some(100), "{fidelity}");
    assert_whole(&fidelity["emulator"]);
    let ledgers = fidelity["ledgers"].as_array().unwrap();
    assert_eq!(ledgers.len(), 3);
    ledgers.iter().for_each(assert_whole);
}
