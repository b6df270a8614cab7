//! Two nodes with pipes between them, and who moves their frames: the emulator or a plain forwarder.

use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use diecast_core_net::{Link, NetBuilder, NetSpec};
use diecast_core_vtime::{FrameMap, Tdf};
use diecast_host_net::{
    Emulator, EmulatorConfig, HostNetError, NicKind, SharedFrame, create_netns, in_netns, monotonic_now, prepare_node,
};
use diecast_host_sys::idle;
use diecast_host_sys::time::{allowed_cpus, only_when_idle, pin_to};

use super::inject::{Counters, Injector, PORT, become_fifo, forward, frame, large_frame};

/// Priority of the emulator, and of the forwarder that it is compared with.
const PRIORITY: u8 = 50;

/// Two nodes of a network, their NICs ready; more nodes only fill the network.
pub struct Nodes {
    pub spec: NetSpec,
    pub netns: Vec<OwnedFd>,
    pub tdf: Tdf,
    taps: Vec<OwnedFd>,
    _awake: Awake,
}

/// A thread that ends when this is dropped.
pub struct Task {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Task {
    pub fn start(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Task {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        Task { stop, thread: Some(std::thread::spawn(move || work(&seen))) }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn spin(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// Keeps the cores from halting, as every lab does.
enum Awake {
    /// Idle cores poll while this is open.
    Polls {
        _file: File,
    },
    Spins {
        _tasks: Vec<Task>,
    },
}

fn awake() -> Awake {
    if let (Some(_), Ok(file)) = (idle::driver(), idle::have_cores_poll()) {
        return Awake::Polls { _file: file };
    }
    let on = |cpu: usize| {
        Task::start(move |stop| {
            if pin_to(&[cpu]).is_ok() && only_when_idle().is_ok() {
                spin(stop);
            }
        })
    };
    Awake::Spins { _tasks: cores().iter().copied().map(on).collect() }
}

/// So many busy threads on the emulator's core.
pub fn hogs(count: usize) -> Vec<Task> {
    let hog = |_| {
        Task::start(|stop| {
            if pin_to(&[emulator_cpu()]).is_ok() {
                spin(stop);
            }
        })
    };
    (0..count).map(hog).collect()
}

/// The cores that this process had when this was asked first: a thread that is pinned has one.
pub fn cores() -> &'static [usize] {
    static CORES: OnceLock<Vec<usize>> = OnceLock::new();
    CORES.get_or_init(allowed_cpus)
}

/// The last core is the emulator's, the first the generator's.
pub fn emulator_cpu() -> usize {
    cores().last().copied().unwrap_or(0)
}

/// A link between the first two nodes: an access pipe, the one in the middle, an access pipe.
pub fn three_pipes(access: Link, middle: Link) -> NetSpec {
    let mut b = NetBuilder::new(1, 78);
    let (s, t) = (b.switch("s"), b.switch("t"));
    let (_, from) = b.node("a");
    let (_, to) = b.node("b");
    b.link(from, s, access);
    b.link(s, t, middle);
    b.link(t, to, access);
    b.build().expect("two nodes")
}

impl Nodes {
    pub fn new(spec: NetSpec, tdf: Tdf) -> Result<Nodes, HostNetError> {
        let (mut netns, mut taps) = (Vec::new(), Vec::new());
        for node in &spec.nodes {
            let ns = create_netns()?;
            taps.push(prepare_node(ns.as_fd(), node, &spec.subnet, NicKind::of(&spec), tdf)?.tap);
            netns.push(ns);
        }
        Ok(Nodes { spec, netns, tdf, taps, _awake: awake() })
    }

    /// The emulator between the NICs, at its priority, on its core.
    pub fn emulate(&self) -> Result<Emulator, HostNetError> {
        Emulator::start(EmulatorConfig {
            spec: self.spec.clone(),
            taps: self.taps.iter().map(|t| t.try_clone().expect("a descriptor to spare")).collect(),
            clock: Arc::new(SharedFrame::new(FrameMap::start(monotonic_now(), self.tdf))),
            ledger: None,
            receivers: None,
            delays_acks: false,
            priority: Some(PRIORITY),
            cpu: Some(emulator_cpu()),
            threads: 1,
            record: None,
        })
    }

    /// A plain forwarder from the first NIC to the second, at the same priority on the same core.
    pub fn forward(&self) -> Task {
        let clone = |at: usize| self.taps[at].try_clone().expect("a descriptor to spare");
        let (from, to) = (clone(0), clone(1));
        Task::start(move |stop| {
            pin_to(&[emulator_cpu()]).expect("a core of this process");
            become_fifo(i32::from(PRIORITY)).expect("root");
            forward(&from, &to, stop);
        })
    }

    pub fn within<T: Send>(&self, node: usize, work: impl FnOnce() -> T + Send) -> T {
        in_netns(self.netns[node].as_fd(), work).expect("a namespace of ours")
    }

    /// Frames of this length from the first node to the second.
    pub fn injector(&self, bytes: usize, past_qdisc: bool) -> Injector {
        let frame = frame(&self.spec.nodes[0], &self.spec.nodes[1], bytes);
        self.within(0, || Injector::new(frame, past_qdisc)).expect("root")
    }

    /// Frames of many segments from the first node to the second, whose NICs have offload.
    pub fn large_injector(&self) -> Injector {
        let frame = large_frame(&self.spec.nodes[0], &self.spec.nodes[1]);
        self.within(0, || Injector::new(frame, true).and_then(Injector::with_header)).expect("root")
    }

    /// Counters of the second node's NIC.
    pub fn counters(&self) -> Counters {
        self.within(1, Counters::open).expect("procfs")
    }

    /// A socket of a node's at the port that frames go to. Nobody has to read it: a full buffer drops the rest.
    pub fn socket(&self, node: usize) -> UdpSocket {
        self.within(node, || UdpSocket::bind(("0.0.0.0", PORT))).expect("a fresh namespace")
    }
}
