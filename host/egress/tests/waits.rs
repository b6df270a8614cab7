//! What threads waited for when they wanted a core, split by cause on the real kernel. Shares, since others use this
//! machine too, who make all causes of a case longer.

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{Ended, busy, on_core};
use diecast_host_egress::{Egress, Waits};
use diecast_host_net::{create_netns, in_netns};
use diecast_host_node::{Cgroup, Hierarchies, Quota};
use diecast_host_sys::time::pin_to;

const CORE: usize = 0;
/// Long enough for many turns of the scheduler.
const LOOK: Duration = Duration::from_millis(250);

/// One that sleeps for 2 ms again and again.
fn sleepy() -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", "import time\nwhile True: time.sleep(0.002)"]);
    command
}

/// A namespace that is watched as a node, with busy processes.
struct Node {
    cookie: u64,
    busy: Vec<Ended>,
}

fn node(egress: &Egress, n: usize) -> Node {
    let ns = create_netns().unwrap();
    let cookie = egress.add_node(ns.as_fd()).unwrap();
    Node { cookie, busy: in_netns(ns.as_fd(), || (0..n).map(|_| on_core(CORE, busy())).collect()).unwrap() }
}

/// What a node waited for during a look, and what schedstat has for the same time.
fn look(egress: &Egress, node: &Node) -> (Waits, u64) {
    let delay = || node.busy.iter().map(|p| diecast_quiet::run_delay_ns(p.0.id())).sum::<u64>();
    std::thread::sleep(Duration::from_millis(50));
    let (a, delay_a) = (egress.waits(node.cookie).unwrap(), delay());
    std::thread::sleep(LOOK);
    let (b, delay_b) = (egress.waits(node.cookie).unwrap(), delay());
    let waits = Waits {
        other_nodes_ns: b.other_nodes_ns - a.other_nodes_ns,
        siblings_ns: b.siblings_ns - a.siblings_ns,
        ceiling_ns: b.ceiling_ns - a.ceiling_ns,
        diecast_ns: b.diecast_ns - a.diecast_ns,
        others_ns: b.others_ns - a.others_ns,
        nobody_ns: b.nobody_ns - a.nobody_ns,
    };
    (waits, delay_b - delay_a)
}

/// The cause is at least nine tenths of it and of what the nodes could have caused. Others on this machine, and what this
/// process does by the way, may come on top.
fn mostly(what: &str, (waits, delay_ns): (Waits, u64), cause: fn(&Waits) -> u64) {
    eprintln!("{what}: {waits:?}, schedstat {delay_ns}");
    let by_nodes = waits.other_nodes_ns + waits.siblings_ns + waits.ceiling_ns;
    let cause_ns = cause(&waits);
    assert!(cause_ns * 10 >= cause_ns.max(by_nodes) * 9 && cause_ns > 3_000_000, "{what}: {waits:?}");
    // The same waits as the kernel counts, but for those that are under way at either look.
    assert!(waits.total_ns().abs_diff(delay_ns) <= delay_ns / 2, "{what}: {waits:?}, schedstat has {delay_ns}");
}

/// A cgroup that goes with the test.
struct Held(Cgroup);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.remove();
    }
}

#[test]
fn waits_are_split_by_cause() {
    let Some(_core) = core() else { return };
    diecast_quiet::look(causes);
}

/// The core for one test; none where nothing can be seen.
fn core() -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        diecast_quiet::skipped("needs root and a kernel with BTF");
        return None;
    }
    Some(ONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A thread that wakes up on an idle core was on its way to it for so long; one that waits for another is not counted.
#[test]
fn ways_to_idle_cores_are_counted() {
    let Some(_core) = core() else { return };
    diecast_quiet::look(ways);
}

fn ways() {
    let egress = Egress::load().unwrap();
    let ns = create_netns().unwrap();
    let cookie = egress.add_node(ns.as_fd()).unwrap();
    let _sleepy = in_netns(ns.as_fd(), || on_core(CORE, sleepy())).unwrap();
    // Python starts meanwhile.
    std::thread::sleep(Duration::from_millis(500));
    let seen = || {
        let before = egress.counted(cookie).unwrap().wakes;
        std::thread::sleep(LOOK);
        egress.counted(cookie).unwrap().wakes.since(&before).ways
    };
    let [count, ns] = seen();
    eprintln!("{count} ways of {} ns to an idle core", ns / count.max(1));
    assert!((20..=130).contains(&count), "{count} ways");
    assert!((300..100_000).contains(&(ns / count)), "{} ns each", ns / count);
    let _busy = on_core(CORE, busy());
    std::thread::sleep(Duration::from_millis(50));
    let [count, _] = seen();
    assert!(count <= 5, "{count} ways to a busy core");
}

/// Two busy nodes have one core in turns.
fn run_in_turns(egress: &Egress, nodes: [&Node; 2]) {
    let mut seen = [0; 2];
    for _ in 0..200 {
        let runs = nodes.map(|node| egress.runs(node.cookie));
        seen.iter_mut().zip(runs).for_each(|(n, runs)| *n += u32::from(runs));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(seen.iter().all(|n| (10..190).contains(n)), "seen on their core: {seen:?} of 200");
    assert!(!egress.runs(0), "nobody's cookie");
}

fn causes() {
    let egress = Egress::load().unwrap();
    let (one, other) = (node(&egress, 1), node(&egress, 1));
    run_in_turns(&egress, [&one, &other]);
    mostly("two nodes, the first", look(&egress, &one), |w| w.other_nodes_ns);
    mostly("two nodes, the second", look(&egress, &other), |w| w.other_nodes_ns);
    drop((one, other));

    let crowded = node(&egress, 2);
    mostly("two threads of a node", look(&egress, &crowded), |w| w.siblings_ns);
    drop(crowded);

    let alone = node(&egress, 1);
    let outside = on_core(CORE, busy());
    mostly("a program outside", look(&egress, &alone), |w| w.others_ns);
    drop(outside);

    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            pin_to(&[CORE]).unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let looked = look(&egress, &alone);
        stop.store(true, Ordering::Relaxed);
        mostly("this process itself", looked, |w| w.diecast_ns);
    });
    drop(alone);

    let held = node(&egress, 1);
    let hierarchies = Hierarchies::detect().unwrap();
    if !hierarchies.has("cpu") {
        eprintln!("the ceiling is left out: no cpu controller");
        return;
    }
    let cgroup = Held(hierarchies.cgroup(format!("diecast-test-waits-{}", std::process::id())));
    cgroup.0.create().unwrap();
    cgroup.0.set_quota(Some(Quota { quota_us: 2_000, period_us: 50_000 })).unwrap();
    let procs = cgroup.0.directory("cpu").unwrap().join("cgroup.procs");
    std::fs::write(procs, held.busy[0].0.id().to_string()).unwrap();
    mostly("a small part of a core", look(&egress, &held), |w| w.ceiling_ns);
    drop(held);
}
