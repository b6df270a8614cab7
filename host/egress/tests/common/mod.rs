//! What several tests of these programs use.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use diecast_core_net::{Link, NetBuilder, NetSpec};
use diecast_core_vtime::Tdf;
use diecast_host_egress::Egress;
use diecast_host_net::{NicKind, create_netns, in_netns, prepare_node_with};
use diecast_host_sys::time::pin_to;
use diecast_host_tick::{Cadence, CoreTicks};

/// A process that ends with the test.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What keeps a core busy.
pub fn busy() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    command
}

/// A process of this thread's namespace on that core.
pub fn on_core(core: usize, mut command: Command) -> Ended {
    command.stdin(Stdio::null());
    // SAFETY: only a system call.
    unsafe { command.pre_exec(move || pin_to(&[core])) };
    Ended(command.spawn().unwrap())
}

/// CPU time of the calling thread, ns.
pub fn thread_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Works for so much CPU time.
pub fn spin(cpu: Duration) {
    let until = thread_cpu_ns() + cpu.as_nanos() as u64;
    while thread_cpu_ns() < until {}
}

pub fn poll_ms(ms: i32) {
    // SAFETY: no file is asked about.
    unsafe { libc::poll(std::ptr::null_mut(), 0, ms) };
}

/// Sleeps as a meter does; `which` of its sleeps.
pub fn meter_sleep(length: Duration, which: u64) {
    let end_ns = diecast_host_sys::time::monotonic_ns() + length.as_nanos() as u64;
    let (s, ns) = (end_ns / 1_000_000_000, end_ns % 1_000_000_000);
    let (word, t) = (0u32, libc::timespec { tv_sec: s as i64, tv_nsec: ns as i64 });
    let (op, any) = (libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG, u32::MAX);
    // SAFETY: a live word and timespec; the kernel does not look at the fifth argument.
    unsafe { libc::syscall(libc::SYS_futex, &raw const word, op, 0, &raw const t, which, any) };
}

pub fn two_nodes() -> NetSpec {
    let mut net = NetBuilder::new(1, 9);
    let (_, a) = net.node("a");
    let (_, b) = net.node("b");
    net.link(a, b, Link::default());
    net.build().unwrap()
}

/// True, and a printed reason, where these programs can't be loaded.
pub fn skip() -> bool {
    let (root, btf) = (rustix::process::geteuid().is_root(), std::path::Path::new("/sys/kernel/btf/vmlinux").exists());
    if !root {
        diecast_quiet::skipped("needs root for BPF and network namespaces");
    }
    if !btf {
        diecast_quiet::skipped("this kernel has no BTF");
    }
    !root || !btf
}

/// Clocks of cores that share what they know of threads with the programs; none, and a printed reason, where there are none.
pub fn core_ticks(egress: &Egress, cadence: Cadence) -> Option<CoreTicks> {
    CoreTicks::start(&[], cadence, Some(egress.metered())).map_err(|e| diecast_quiet::skipped(e.to_string())).ok()
}

/// The namespace of the first of them, its TAP, and what the programs know it by.
pub fn nic(egress: &Egress, spec: &NetSpec) -> (OwnedFd, OwnedFd, u64) {
    let ns = create_netns().unwrap();
    let cookie = egress.add_node(ns.as_fd()).unwrap();
    let up = |nic| egress.attach_here(nic);
    let kind = NicKind::of(spec);
    let prepared = prepare_node_with(ns.as_fd(), &spec.nodes[0], &spec.subnet, kind, Tdf::ONE, &up).unwrap();
    // No neighbour answers: a static entry lets datagrams out.
    in_netns(ns.as_fd(), || {
        let (to, mac) = (spec.nodes[1].ipv4.to_string(), spec.nodes[1].mac.to_string());
        let done = std::process::Command::new("ip").args(["neigh", "add", &to, "lladdr", &mac, "dev", "eth0"]).status();
        assert!(done.unwrap().success());
    })
    .unwrap();
    (ns, prepared.tap, cookie)
}
