//! Two or more namespaces, their TAPs and an emulator, for tests that need root.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use diecast_core_net::{Link, NetBuilder, NetSpec, Recorded};
use diecast_core_vtime::{FrameMap, Tdf};
use diecast_host_net::{
    Emulator, EmulatorConfig, NicKind, ReceiveLedger, SharedFrame, SysctlRow, create_netns, in_netns, monotonic_now,
    prepare_node,
};
use diecast_host_sys::idle;
use diecast_host_sys::time::{allowed_cpus, only_when_idle, pin_to};

static TURN: Mutex<()> = Mutex::new(());

/// A running network without nodes' programs.
pub struct Lab {
    pub spec: NetSpec,
    pub netns: Vec<OwnedFd>,
    pub emulator: Emulator,
    pub frame: Arc<SharedFrame>,
    pub sysctls: Vec<SysctlRow>,
    pub tdf: Tdf,
    _awake: Awake,
    _turn: MutexGuard<'static, ()>,
}

/// Keeps the cores from halting, as a lab does: waking a halted virtual CPU took up to 0.2 ms here, a round trip has four
/// such wake-ups, and they are the host's, not the emulator's.
struct Awake {
    stop: Arc<AtomicBool>,
    _polls: Option<File>,
}

impl Awake {
    /// Where idle cores can't be asked to poll, threads that want nothing but an idle core do.
    fn start() -> Awake {
        let stop = Arc::new(AtomicBool::new(false));
        let polls = idle::driver().and_then(|_| idle::have_cores_poll().ok());
        let spinners = if polls.is_some() { Vec::new() } else { allowed_cpus() };
        for cpu in spinners {
            let seen = stop.clone();
            thread::spawn(move || {
                if pin_to(&[cpu]).is_ok() && only_when_idle().is_ok() {
                    while !seen.load(Ordering::Relaxed) {
                        // Before an emulator that is beyond its share, too.
                        thread::yield_now();
                    }
                }
            });
        }
        Awake { stop, _polls: polls }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Changes the calling thread's scheduling with chrt; false, and said, when that fails.
fn set_priority(arguments: &[&str]) -> bool {
    let tid = rustix::thread::gettid().as_raw_pid().to_string();
    match std::process::Command::new("chrt").args(arguments).arg(&tid).status() {
        Ok(s) if s.success() => true,
        other => {
            eprintln!("chrt {arguments:?} said {other:?}");
            false
        }
    }
}

/// Two nodes, `a` and `b`, with a link between them; their kernels leave segmentation and checksums to the NIC, or don't.
pub fn two(link: Link, offload: bool) -> NetSpec {
    let mut b = NetBuilder::new(1, 77);
    let (_, va) = b.node("a");
    let (_, vb) = b.node("b");
    b.link(va, vb, link);
    b.set_offload(offload);
    b.build().unwrap()
}

/// True, and a printed reason, when this process may not make namespaces and TAP devices.
pub fn skip() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        diecast_quiet::skipped("needs root for network namespaces and TAP devices");
    }
    !root
}

impl Lab {
    pub fn start(spec: NetSpec, tdf: &str) -> Lab {
        Lab::start_with(spec, tdf, None, 1)
    }

    /// As [`Lab::start`], with so many threads of the emulator.
    pub fn start_threads(spec: NetSpec, tdf: &str, threads: usize) -> Lab {
        Lab::start_with(spec, tdf, None, threads)
    }

    /// As [`Lab::start`], with everything that comes in sent to `record`.
    pub fn start_with(spec: NetSpec, tdf: &str, record: Option<Sender<Vec<Recorded>>>, threads: usize) -> Lab {
        Lab::start_all(spec, tdf, record, None, threads)
    }

    /// As [`Lab::start`], with receivers charged.
    pub fn start_receivers(spec: NetSpec, tdf: &str, receivers: Arc<dyn ReceiveLedger>) -> Lab {
        Lab::start_all(spec, tdf, None, Some(receivers), 1)
    }

    fn start_all(
        spec: NetSpec,
        tdf: &str,
        record: Option<Sender<Vec<Recorded>>>,
        receivers: Option<Arc<dyn ReceiveLedger>>,
        threads: usize,
    ) -> Lab {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let tdf: Tdf = tdf.parse().unwrap();
        let frame = Arc::new(SharedFrame::new(FrameMap::start(monotonic_now(), tdf)));
        let mut netns = Vec::new();
        let mut taps = Vec::new();
        let mut sysctls = Vec::new();
        for node in &spec.nodes {
            let ns = create_netns().unwrap();
            let prepared = prepare_node(ns.as_fd(), node, &spec.subnet, NicKind::of(&spec), tdf).unwrap();
            taps.push(prepared.tap);
            sysctls = prepared.sysctls;
            netns.push(ns);
        }
        let config = EmulatorConfig {
            spec: spec.clone(),
            taps,
            clock: frame.clone(),
            ledger: None,
            receivers,
            delays_acks: false,
            priority: Some(50),
            cpu: None,
            threads,
            record,
        };
        let emulator = Emulator::start(config).unwrap();
        Lab { spec, netns, emulator, frame, sysctls, tdf, _awake: Awake::start(), _turn }
    }

    /// A UDP socket inside a node, usable from any thread.
    pub fn udp(&self, node: usize, port: u16) -> UdpSocket {
        let socket = self.within(node, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    pub fn within<T: Send>(&self, node: usize, work: impl FnOnce() -> T + Send) -> T {
        in_netns(self.netns[node].as_fd(), work).unwrap()
    }

    pub fn v4(&self, node: usize, port: u16) -> SocketAddr {
        (self.spec.nodes[node].ipv4, port).into()
    }

    /// Real time as virtual milliseconds.
    pub fn virtual_ms(&self, real: Duration) -> f64 {
        real.as_secs_f64() * 1e3 / self.tdf.as_f64()
    }

    /// Virtual time as real time.
    pub fn real(&self, virtual_ms: f64) -> Duration {
        Duration::from_secs_f64(virtual_ms / 1e3 * self.tdf.as_f64())
    }
}

/// Puts the calling thread before ordinary ones, behind the emulator: these tests judge the emulator, not how long a
/// measuring thread waits for a core on a busy machine.
pub fn measure_at_priority() {
    set_priority(&["-f", "-p", "40"]);
}

/// Sends `bytes` of payload and waits for the echo; returns the round trip in real time.
pub fn echo(socket: &UdpSocket, to: SocketAddr, payload: &mut [u8], id: u64) -> Duration {
    payload[..8].copy_from_slice(&id.to_be_bytes());
    let mut buffer = [0; 2048];
    let start = Instant::now();
    socket.send_to(payload, to).unwrap();
    loop {
        let (n, _) = socket.recv_from(&mut buffer).expect("no echo within 20 s");
        let took = start.elapsed();
        if n == payload.len() && buffer[..8] == payload[..8] {
            return took;
        }
    }
}

/// Answers every datagram until one of a single byte comes.
pub fn echo_server(socket: &UdpSocket) {
    measure_at_priority();
    let mut buffer = [0; 2048];
    while let Ok((n, from)) = socket.recv_from(&mut buffer) {
        if n == 1 {
            return;
        }
        socket.send_to(&buffer[..n], from).unwrap();
    }
}

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
