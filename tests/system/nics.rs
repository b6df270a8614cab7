//! A node with several NICs: each in a segment of its own, with its own address, and nothing passes through the node.

use crate::bench::{CATALOG, LabRun, bench, run, text};

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
