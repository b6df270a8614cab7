//! The first timeout as the kernel uses it, several labs side by side, and that nothing stays attached.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use diecast_core_net::{Link, NetBuilder, NetSpec};
use diecast_core_vtime::{FrameMap, Tdf};
use diecast_host_net::{Emulator, EmulatorConfig, NicKind, create_netns, in_netns, monotonic_now, prepare_node};
use diecast_host_tcp::{Applied, InitialRto};
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

static TURN: Mutex<()> = Mutex::new(());

/// A guard that keeps these tests apart, or `None` with a printed reason.
fn turn() -> Option<MutexGuard<'static, ()>> {
    if !rustix::process::geteuid().is_root() {
        diecast_quiet::skipped("needs root for BPF and network namespaces");
        return None;
    }
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn tdf(text: &str) -> Tdf {
    text.parse().unwrap()
}

/// Ids of all cgroup links of the host.
fn cgroup_links() -> BTreeSet<u32> {
    LinkInfoIter::default().filter(|l| matches!(l.info, LinkTypeInfo::Cgroup(_))).map(|l| l.id).collect()
}

/// The kernel frees a link after the last reference is gone, a little later.
fn wait_until_gone(ids: &BTreeSet<u32>) {
    let until = Instant::now() + Duration::from_secs(5);
    while !cgroup_links().is_disjoint(ids) {
        assert!(Instant::now() < until, "links {ids:?} are still attached");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Nodes on a switch, with everything lost on the pipes from node i to the switch where `mute` says so. Pipe 2·i
/// counts what node i sends.
struct Net {
    spec: NetSpec,
    netns: Vec<OwnedFd>,
    emulator: Emulator,
}

impl Net {
    fn start(mute: &[bool]) -> Net {
        let mut b = NetBuilder::new(1, 77);
        let s = b.switch("s");
        for i in 0..mute.len() {
            let (_, v) = b.node(&format!("n{i}"));
            b.link(v, s, Link::default());
        }
        let mut spec = b.build().unwrap();
        for (i, m) in mute.iter().enumerate() {
            spec.pipes[2 * i].link.loss = f64::from(u8::from(*m));
        }
        let (mut netns, mut taps) = (Vec::new(), Vec::new());
        for node in &spec.nodes {
            let ns = create_netns().unwrap();
            taps.push(prepare_node(ns.as_fd(), node, &spec.subnet, NicKind::of(&spec), Tdf::ONE).unwrap().tap);
            netns.push(ns);
        }
        let clock = Arc::new(FrameMap::start(monotonic_now(), Tdf::ONE));
        let config = EmulatorConfig {
            spec: spec.clone(),
            taps,
            clock,
            ledger: None,
            receivers: None,
            delays_acks: false,
            priority: None,
            cpu: None,
            threads: 1,
            record: None,
        };
        Net { emulator: Emulator::start(config).unwrap(), spec, netns }
    }

    /// Starts a connection from one node to port 80 of another and leaves it.
    fn connect(&self, from: usize, to: usize) -> OwnedFd {
        let to = std::net::SocketAddr::from((self.spec.nodes[to].ipv4, 80));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let ns = self.netns[from].as_fd();
        let socket =
            in_netns(ns, || socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)).unwrap().unwrap();
        assert_eq!(connect(&socket, &to), Err(rustix::io::Errno::INPROGRESS));
        socket
    }

    /// What `ss` says of the only connection that a node is opening: `rto:` in ms.
    fn rto_ms(&self, node: usize) -> f64 {
        let run =
            || Command::new("ss").args(["-tinH", "state", "syn-sent"]).output().expect("ss is in package iproute2");
        let text = String::from_utf8(in_netns(self.netns[node].as_fd(), run).unwrap().stdout).unwrap();
        let word = text.split_whitespace().find_map(|w| w.strip_prefix("rto:"));
        word.unwrap_or_else(|| panic!("no rto in '{text}'")).parse().unwrap()
    }

    fn sent(&self, node: usize) -> u64 {
        self.emulator.stats().unwrap().pipes[2 * node].packets_in
    }
}

/// Long enough for an unstretched node to send twice more (after 1 s and 2 s), too short for 10 s.
const WATCH: Duration = Duration::from_millis(2600);

#[test]
fn a_syn_to_a_silent_address_waits_one_virtual_second() {
    let Some(_turn) = turn() else { return };
    diecast_quiet::look(silent_address);
}

fn silent_address() {
    let net = Net::start(&[true, true, true]);
    let rto = InitialRto::attach().unwrap();
    let stretched = rto.set(net.netns[0].as_fd(), tdf("10")).unwrap();
    assert_eq!(stretched, Applied { wanted_ms: 10_000, in_force_ms: 10_000, clamped: false });
    rto.set(net.netns[2].as_fd(), tdf("10")).unwrap();
    rto.unset(net.netns[2].as_fd()).unwrap();
    rto.unset(net.netns[2].as_fd()).unwrap();
    let sockets = [net.connect(0, 1), net.connect(1, 0), net.connect(2, 0)];
    assert_eq!([net.rto_ms(0), net.rto_ms(1), net.rto_ms(2)], [10_000.0, 1000.0, 1000.0]);
    thread::sleep(WATCH);
    assert_eq!(net.sent(0), 1, "SYNs in 2.6 s at TDF 10");
    assert_eq!(net.sent(1), 3, "SYNs in 2.6 s of a node that is not in the map");
    assert_eq!(net.sent(2), 3, "SYNs in 2.6 s of a node that was forgotten");
    drop(sockets);
}

#[test]
fn a_syn_ack_waits_one_virtual_second_too() {
    let Some(_turn) = turn() else { return };
    diecast_quiet::look(lost_answers);
}

fn lost_answers() {
    // Clients reach servers, answers are lost.
    let net = Net::start(&[false, true, true]);
    let rto = InitialRto::attach().unwrap();
    rto.set(net.netns[0].as_fd(), tdf("10")).unwrap();
    rto.set(net.netns[1].as_fd(), tdf("10")).unwrap();
    let listen =
        |n: usize| in_netns(net.netns[n].as_fd(), || std::net::TcpListener::bind(("0.0.0.0", 80)).unwrap()).unwrap();
    let servers = [listen(1), listen(2)];
    let sockets = [net.connect(0, 1), net.connect(0, 2)];
    thread::sleep(WATCH);
    assert_eq!(net.sent(1), 1, "SYN-ACKs in 2.6 s at TDF 10");
    assert!(net.sent(2) >= 2, "a server that is not in the map sent {} SYN-ACKs in 2.6 s", net.sent(2));
    drop((servers, sockets));
}

#[test]
fn labs_side_by_side_keep_their_own_nodes() {
    let Some(_turn) = turn() else { return };
    let net = Net::start(&[true, true, true]);
    let first = InitialRto::attach().unwrap();
    let second = InitialRto::attach().unwrap();
    first.set(net.netns[0].as_fd(), tdf("10")).unwrap();
    second.set(net.netns[1].as_fd(), tdf("20")).unwrap();
    let both = [net.connect(0, 1), net.connect(1, 0), net.connect(2, 0)];
    assert_eq!([net.rto_ms(0), net.rto_ms(1), net.rto_ms(2)], [10_000.0, 20_000.0, 1000.0]);
    drop(both);
    // The end of one lab leaves the other's nodes alone.
    drop(first);
    let rest = [net.connect(0, 1), net.connect(1, 0)];
    assert_eq!([net.rto_ms(0), net.rto_ms(1)], [1000.0, 20_000.0]);
    drop(rest);
}

#[test]
fn nothing_stays_attached_after_a_drop() {
    let Some(_turn) = turn() else { return };
    let before = cgroup_links();
    let rto = InitialRto::attach().unwrap();
    let ours: BTreeSet<u32> = cgroup_links().difference(&before).copied().collect();
    assert_eq!(ours.len(), 1, "one link per lab");
    drop(rto);
    wait_until_gone(&ours);
}

#[test]
fn nothing_stays_attached_after_kill_9() {
    let Some(_turn) = turn() else { return };
    let before = cgroup_links();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "attach_and_wait", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|l| l.unwrap().contains("attached")), "the child did not attach");
    let ours: BTreeSet<u32> = cgroup_links().difference(&before).copied().collect();
    assert_eq!(ours.len(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until_gone(&ours);
}

/// Not a test: the process that the one above kills.
#[test]
#[ignore = "run by nothing_stays_attached_after_kill_9"]
fn attach_and_wait() {
    let rto = InitialRto::attach().unwrap();
    println!("attached");
    thread::sleep(Duration::from_secs(20));
    drop(rto);
}
