//! Ways between nodes and the host, past the network: they work, and are told as what they are.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use diecast_tests::target_dir;

use crate::bench::{Bench, CATALOG, LabRun, bench, labs_of, run, text};

/// A port of this host that nobody listens at now.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// What the client asks by TCP and then, under the same number, by UDP.
const ASKS: &str = "\
exec 3<>/dev/tcp/host.diecast/700
echo from the node >&3
read -r answer <&3
echo it said $answer
exec 4<>/dev/udp/host.diecast/700
echo from the node again >&4
head -n 1 <&4
exec sleep inf
";

/// `gate.yaml`: the server's port 80 and its UDP port of echoes at `published`, and a client that asks `service` and
/// writes down the answers.
fn with_gateway(b: &Bench, published: SocketAddr, service: SocketAddr) {
    std::fs::write(b.folder.join("asks.sh"), ASKS).unwrap();
    std::fs::copy(target_dir().join("release/diecast-netprobe"), b.folder.join("netprobe")).unwrap();
    let catalog = CATALOG.replace(
        "workload:\n",
        &format!(
            "  - on: server\n    run: [netprobe, serve]\n    files: {{/usr/local/bin/netprobe: netprobe}}\n    \
             ready: {{log: listening, within: 20s}}\n  \
             - on: client\n    run: [bash, /asks.sh]\n    files: {{/asks.sh: asks.sh}}\n    \
             ready: {{log: datagram, within: 20s}}\n\
             gateway:\n  publish:\n    - {{node: server, port: 80, host: \"{published}\"}}\n    \
             - {{node: server, port: 7000, protocol: udp, host: \"{published}\"}}\n  \
             reach:\n    - {{on: client, port: 700, host: \"{service}\"}}\n    \
             - {{on: client, port: 700, protocol: udp, host: \"{service}\"}}\nworkload:\n"
        ),
    );
    std::fs::write(b.folder.join("gate.yaml"), catalog).unwrap();
}

/// How long an echo over UDP took: its first byte is what the server answers to.
fn echo(at: SocketAddr) -> Duration {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let begin = Instant::now();
    socket.send_to(b"\x03hello", at).unwrap();
    let mut answer = [0; 16];
    let (size, from) = socket.recv_from(&mut answer).unwrap();
    assert_eq!((&answer[..size], from), (&b"\x03hello"[..], at));
    begin.elapsed()
}

/// The first line of the answer to a GET; how long it took.
fn get(at: SocketAddr) -> (String, Duration) {
    let begin = Instant::now();
    let mut socket = TcpStream::connect(at).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n").unwrap();
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).unwrap();
    (line, begin.elapsed())
}

/// A published port answers past the links, a node reaches a service of the host, plan and results say that both are
/// outside the frame, and nothing listens when the run is over.
#[test]
fn a_gateway_joins_nodes_and_host_and_is_marked() {
    let Some(b) = bench("gateway") else { return };
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let datagrams = UdpSocket::bind(service.local_addr().unwrap()).unwrap();
    let published = free();
    with_gateway(&b, published, service.local_addr().unwrap());
    let asked = std::thread::spawn(move || {
        let (mut socket, _) = service.accept().unwrap();
        let mut line = String::new();
        BufReader::new(socket.try_clone().unwrap()).read_line(&mut line).unwrap();
        socket.write_all(b"well met\n").unwrap();
        let mut buffer = [0; 64];
        let (size, from) = datagrams.recv_from(&mut buffer).unwrap();
        datagrams.send_to(b"a datagram\n", from).unwrap();
        line + &String::from_utf8_lossy(&buffer[..size])
    });
    let planned = text(&run(&b, &["plan", "gate.yaml", "--tdf", "4"]).stdout);
    assert!(planned.contains("gateway: outside the frame, in real time, past all links\n"), "{planned}");
    let lab = LabRun::start(&b, &["gate.yaml", "--tdf", "4"]);
    lab.until("warm_up");
    let answers: Vec<(String, Duration)> = (0..10).map(|_| get(published)).collect();
    assert!(answers.iter().all(|(line, _)| line.starts_with("HTTP/1.1 200")), "{answers:?}");
    let least = answers.iter().map(|(_, took)| *took).min().unwrap();
    // 20 ms of links at TDF 4 are 80 real ms.
    assert!(least < Duration::from_millis(40), "{least:?}: not past the links");
    let least = (0..10).map(|_| echo(published)).min().unwrap();
    assert!(least < Duration::from_millis(40), "UDP, {least:?}: not past the links");
    let ended = lab.end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    assert_eq!(asked.join().unwrap(), "from the node\nfrom the node again\n");
    let log = std::fs::read_to_string(b.folder.join("out/logs/client.bash.out")).unwrap();
    assert_eq!(log, "it said well met\na datagram\n");
    let told = |words: &str, counts: &str| {
        let line =
            ended.table.lines().find(|l| l.contains(words)).unwrap_or_else(|| panic!("{words}: {}", ended.table));
        assert!(line.contains("outside the frame: ") && line.contains(counts), "{line}");
    };
    told(&format!("node server's port 80 published at {published}"), ": 10 connections, ");
    told("reached from node client as host.diecast:700", ": 1 connections, 23 bytes, 0 refused");
    let bytes = format!(": 10 flows, 20 datagrams, {} bytes, 0 refused", 20 * 6);
    told(&format!("node server's UDP port 7000 published at {published}"), &bytes);
    told("reached from node client as UDP host.diecast:700", ": 1 flows, 2 datagrams, 31 bytes, 0 refused");
    assert!(TcpStream::connect(published).is_err(), "it still listens");
    UdpSocket::bind(published).expect("nobody receives there");
}

/// A port that is taken is the host's fault, with the place in the catalog; nothing stays.
#[test]
fn a_taken_port_is_exit_3() {
    let Some(b) = bench("taken") else { return };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    with_gateway(&b, at, free());
    let o = run(&b, &["run", "gate.yaml", "--tdf", "4", "--out", "out"]);
    let said = text(&o.stderr);
    assert_eq!(o.status.code(), Some(3), "{said}");
    let catalog = std::fs::read_to_string(b.folder.join("gate.yaml")).unwrap();
    let line = catalog.lines().position(|l| l.contains("node: server, port")).unwrap() + 1;
    assert!(
        said.contains(&format!("gate.yaml:{line}:7: gateway: node server's port 80 published at {at}: ")),
        "{said}"
    );
    assert!(said.contains("hint: a port that is free"), "{said}");
    assert!(!b.folder.join("out").exists(), "a directory of results stayed");
    assert_eq!(labs_of(&b), [] as [serde_json::Value; 0], "a lab stayed");
    assert_eq!(text(&run(&b, &["clean"]).stdout), "nothing to remove\n");
    // The listener was not harmed.
    let other = std::thread::spawn(move || taken.accept().unwrap().0.read(&mut [0; 8]).unwrap());
    TcpStream::connect(at).unwrap().write_all(b"x").unwrap();
    assert_eq!(other.join().unwrap(), 1);
}
