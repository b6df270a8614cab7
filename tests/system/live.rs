//! The network of a running lab: changed, captured, recorded and had again.

use std::process::{Command, Stdio};
use std::time::Duration;

use diecast_tests::diecast;
use serde_json::Value;

use crate::bench::{Bench, CATALOG, LabRun, bench, run, text};

/// `small.yaml` with these faults as `faulty.yaml`.
fn with_faults(b: &Bench, faults: &str) {
    std::fs::write(
        b.folder.join("faulty.yaml"),
        CATALOG.replace("metrics:\n", &format!("faults:\n{faults}metrics:\n")),
    )
    .unwrap();
}

fn journal(b: &Bench) -> Vec<Value> {
    let text = std::fs::read_to_string(b.folder.join("out/journal.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_kind<'a>(journal: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    journal.iter().filter(move |record| record["record"] == kind)
}

/// The last counters of a pipe.
fn pipe(journal: &[Value], from: &str, to: &str) -> Value {
    let all = of_kind(journal, "pipes").flat_map(|record| record["pipes"].as_array().unwrap());
    all.filter(|p| p["from"] == from && p["to"] == to).last().unwrap_or(&Value::Null).clone()
}

/// A packet as tshark reads it.
struct Packet {
    /// Since the epoch.
    ns: u64,
    /// Place in the list of captured places.
    place: usize,
    source: String,
    bytes: u64,
    /// What tells packets of one sender apart.
    identity: String,
}

/// The packets of a file; None where tshark is missing.
fn tshark(file: &std::path::Path) -> Option<Vec<Packet>> {
    let fields = ["frame.time_epoch", "frame.interface_id", "frame.len", "ip.src", "ip.id", "tcp.seq_raw"];
    let mut c = Command::new("tshark");
    c.args(["-n", "-T", "fields", "-r"]).arg(file);
    for field in fields {
        c.args(["-e", field]);
    }
    let o = c.output().ok()?;
    assert!(o.status.success(), "tshark: {}", text(&o.stderr));
    let packet = |line: &str| {
        let f: Vec<&str> = line.split('\t').collect();
        let (seconds, fraction) = f[0].split_once('.').unwrap();
        assert_eq!(fraction.len(), 9, "nanoseconds: {}", f[0]);
        Packet {
            ns: seconds.parse::<u64>().unwrap() * 1_000_000_000 + fraction.parse::<u64>().unwrap(),
            place: f[1].parse().unwrap(),
            source: f[3].to_owned(),
            bytes: f[2].parse().unwrap(),
            identity: format!("{} {}", f[4], f[5]),
        }
    };
    Some(text(&o.stdout).lines().map(packet).collect())
}

/// Faults of the catalog and changes by command take place at their virtual instants, are told, and drop what they
/// should and nothing else; arrivals that were recorded give the same drops again.
#[test]
fn a_running_network_is_changed_and_had_again() {
    let Some(b) = bench("changed") else { return };
    diecast_quiet::look(|| changed(&b));
}

fn changed(b: &Bench) {
    let faults = "  - {at: 1500ms, cut: \"server:s\"}\n  - {at: 1700ms, heal: \"server:s\"}\n  \
                  - {at: 2s, flap: {link: \"server:s\", down: 20ms, up: 80ms, times: 2}}\n  \
                  - {at: 2300ms, partition: [client, server]}\n  - {at: 2400ms, network: join}\n";
    with_faults(b, faults);
    let lab = LabRun::start(b, &["faulty.yaml", "--tdf", "2", "--record-arrivals"]);
    lab.until("warm_up");
    let id = lab.lab();
    let link = |words: &[&str]| run(b, &[&["link", id.as_str()], words].concat());
    let set = link(&["set", "client:s", "loss={every: 10 packets}", "--one-way", "--at", "2500ms"]);
    assert_eq!(set.status.code(), Some(0), "{}", text(&set.stderr));
    assert!(text(&set.stdout).contains("set loss of client:s: takes effect "), "{}", text(&set.stdout));
    assert!(text(&set.stdout).contains(", 2.500000000 s after the load's (virtual)"), "{}", text(&set.stdout));
    let now = link(&["set", "s:client", "delay=6ms", "--one-way", "--json"]);
    let now: Value = serde_json::from_slice(&now.stdout).unwrap();
    assert_eq!((&now["change"], &now["later"]), (&"set delay of s:client".into(), &false.into()));
    // Everything that the catalog can do to a network, the command can.
    let asked = [
        (&["cut", "server:s"][..], "3000ms"),
        (&["heal", "server:s"], "3050ms"),
        (&["flap", "server:s", "--down", "30ms", "--up", "60ms", "--times", "2"], "3100ms"),
        (&["partition", "client", "server"], "3400ms"),
        (&["join"], "3500ms"),
        (&["reroute"], "3550ms"),
        (&["set", "s:client", "duplicate=30%", "corrupt=20%", "jitter=1ms", "--one-way"], "3600ms"),
    ];
    for (words, at) in asked {
        let o = link(&[words, &["--at", at]].concat());
        assert_eq!(o.status.code(), Some(0), "{words:?}: {}{}", text(&o.stdout), text(&o.stderr));
    }
    for (words, expected) in [
        (&["cut", "nobody"][..], "nobody:1:1: no node, group, switch or router 'nobody'"),
        (&["cut", "client:server"], "client:server:1:1: there is no link 'client:server'"),
        (&["set", "client:s", "delay=5"], "delay=5:1:7: '5' has no unit, expected a duration such as 10ms"),
        (&["set", "client:s", "colour=red"], "colour=red:1:1: a link's way back has no key 'colour'"),
        (&["partition", "client", "client"], "on two sides"),
        (&["cut", "client", "--at", "1ns"], "that instant passed"),
    ] {
        let o = link(words);
        assert_eq!(o.status.code(), Some(2), "{words:?}: {}{}", text(&o.stdout), text(&o.stderr));
        assert!(text(&o.stderr).contains(expected), "{words:?}: {}", text(&o.stderr));
    }
    let ended = lab.end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    for words in ["client:s ", "s:server ", " loss", " cut off", "cut s:server, server:s", "set loss of client:s"] {
        assert!(ended.table.contains(words), "no '{words}' in {}", ended.table);
    }
    let journal = journal(b);
    let (client, server) = (pipe(&journal, "client", "s"), pipe(&journal, "s", "server"));
    assert!(client["dropped"]["loss"].as_u64() > Some(3), "{client}");
    assert_eq!(client["dropped"]["down"], 0, "the cut is at the server: {client}");
    assert!(server["dropped"]["down"].as_u64() > Some(0), "{server}");
    assert_eq!(server["dropped"]["loss"], 0, "client:s only: {server}");
    // 4 s of the load at every 250 ms.
    assert!(of_kind(&journal, "pipes").count() >= 16);
    // Every instant is the one that was asked for.
    let begin = of_kind(&journal, "network_change").next().unwrap()["v_ns"].as_u64().unwrap() - 1_500_000_000;
    let at: Vec<(u64, &str)> = of_kind(&journal, "network_change")
        .map(|c| ((c["v_ns"].as_u64().unwrap() - begin) / 1_000_000, c["change"].as_str().unwrap()))
        .collect();
    let (cut, heal) = ("cut s:server, server:s", "heal s:server, server:s");
    let sides = "partition client | server";
    let catalogs = [(1500, cut), (1700, heal), (2000, "flap s:server, server:s: 2 times 20 ms down, 80 ms up")];
    assert_eq!(at[..3], catalogs);
    assert_eq!(at[3..6], [(2300, sides), (2400, "join"), (2500, "set loss of client:s")]);
    assert_eq!(at[6].1, "set delay of s:client");
    let commands = [(3000, cut), (3050, heal), (3100, "flap s:server, server:s: 2 times 30 ms down, 60 ms up")];
    assert_eq!(at[7..10], commands);
    assert_eq!(at[10..13], [(3400, sides), (3500, "join"), (3550, "reroute")]);
    assert_eq!(at[13..], [(3600, "set jitter, duplicate, corrupt of s:client")]);
    let back = pipe(&journal, "s", "client");
    println!("{} twice, {} corrupted of {}", back["duplicated"], back["corrupted"], back["packets_in"]);
    assert!(back["duplicated"].as_u64() > Some(0) && back["corrupted"].as_u64() > Some(0), "{back}");

    let again = run(b, &["replay", "out"]);
    let said = text(&again.stdout);
    assert_eq!(again.status.code(), Some(0), "{said}{}", text(&again.stderr));
    assert!(said.contains("the same drops for the same causes"), "{said}");
    assert_eq!(text(&run(b, &["replay", "out"]).stdout), said, "two replays are one");
}

/// A capture is a file that tshark reads, with the nodes' clock, and sees at a pipe what the pipe sends.
#[test]
fn a_capture_has_virtual_timestamps() {
    let Some(b) = bench("captured") else { return };
    diecast_quiet::look(|| captured(&b));
}

fn captured(b: &Bench) {
    // Of the look before.
    let _ = std::fs::remove_file(b.folder.join("x.pcapng"));
    let lab = LabRun::start(b, &["small.yaml", "--tdf", "4"]);
    lab.until("warm_up");
    let id = lab.lab();
    let wrong = run(b, &["capture", &id, "nobody", "--out", "x.pcapng"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
    assert!(!b.folder.join("x.pcapng").exists());
    // Ctrl-C ends it and leaves a whole file.
    let child = Command::new(diecast())
        .args(["capture", &id, "server", "client:s", "--out", "x.pcapng"])
        .current_dir(&b.folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(4));
    // SAFETY: a signal to a child of ours that nobody has waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let o = child.wait_with_output().unwrap();
    assert_eq!(o.status.code(), Some(0), "{}", text(&o.stderr));
    let said = text(&o.stdout);
    assert!(said.contains(" frames in x.pcapng; 0 dropped by the capture"), "{said}");
    let frames: usize = said.split(' ').next().unwrap().parse().unwrap();
    let ended = lab.end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    let Some(seen) = tshark(&b.folder.join("x.pcapng")) else {
        diecast_quiet::skipped("tshark is missing");
        return;
    };
    assert_eq!(seen.len(), frames);
    assert!(frames > 100, "{said}");
    let first = seen.iter().map(|p| p.ns).min().unwrap();
    let last = seen.iter().map(|p| p.ns).max().unwrap();
    // Four real seconds are one virtual one.
    assert!((500_000_000..1_500_000_000).contains(&(last - first)), "{} ns", last - first);
    let unix = journal(b)[0]["unix_start_ns"].as_u64().unwrap();
    assert!(first > unix && last < unix + 30_000_000_000, "{unix}: {first} to {last}");
    // What the client's pipe begins to send is at the server after two links of 5 ms and 100 Mbit/s, to the nanosecond
    // unless it had to wait for another.
    let (at_server, at_pipe): (Vec<&Packet>, Vec<&Packet>) =
        seen.iter().filter(|p| p.source == "10.99.0.1").partition(|p| p.place == 0);
    let crossed: Vec<(u64, u64)> = at_pipe
        .iter()
        .filter_map(|p| Some((at_server.iter().find(|s| s.identity == p.identity)?.ns - p.ns, p.bytes)))
        .collect();
    let exact = crossed.iter().filter(|(took, bytes)| *took == 10_000_000 + 2 * bytes * 80).count();
    println!("{} packets crossed, {exact} of them exactly as the links say", crossed.len());
    assert!(crossed.len() > 40 && exact * 10 > crossed.len() * 9, "{crossed:?}");
}
