//! Real-time priority: got even inside a cgroup without real-time budget, and bounded.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use diecast_core_net::{Link, NetBuilder};
use diecast_host_net::{NODE_DEVICE, Scheduling, link_counters};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::lab::{Lab, skip};

const CPU_V1: &str = "/sys/fs/cgroup/cpu";

/// A v1 cpu cgroup with the calling thread in it, removed at the end.
struct Cgroup(String);

impl Cgroup {
    fn enter() -> Cgroup {
        let path = format!("{CPU_V1}/diecast-test-{}", std::process::id());
        fs::create_dir(&path).unwrap();
        move_here(&path);
        Cgroup(path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        move_here(CPU_V1);
        // A thread that was joined leaves its cgroup a moment later.
        let by = Instant::now() + Duration::from_secs(5);
        while let Err(e) = fs::remove_dir(&self.0) {
            assert!(Instant::now() < by, "{}: {e}", self.0);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn move_here(path: &str) {
    fs::write(format!("{path}/tasks"), rustix::thread::gettid().as_raw_pid().to_string()).unwrap();
}

#[test]
fn the_thread_leaves_a_cgroup_without_real_time_budget() {
    if skip() {
        return;
    }
    if !Path::new(CPU_V1).join("cpu.rt_runtime_us").exists() {
        diecast_quiet::skipped("no cgroup v1 cpu hierarchy with real-time budgets here");
        return;
    }
    let start = || {
        let mut b = NetBuilder::new(1, 77);
        let s = b.switch("s");
        for name in ["a", "b"] {
            let (_, v) = b.node(name);
            b.link(v, s, Link::default());
        }
        Lab::start(b.build().unwrap(), "1").emulator.stop().unwrap().scheduling
    };
    assert_eq!(start(), Scheduling::Fifo { priority: 50, moved_to_root_cgroup: false });
    let group = Cgroup::enter();
    assert_eq!(fs::read_to_string(format!("{}/cpu.rt_runtime_us", group.0)).unwrap().trim(), "0");
    assert_eq!(start(), Scheduling::Fifo { priority: 50, moved_to_root_cgroup: true });
}

/// At real-time priority an overloaded emulator could take a whole core for good. Beside somebody who wants it too it leaves
/// a fifth; alone it takes all.
#[test]
fn a_flood_leaves_a_fifth_of_the_core_to_who_wants_it() {
    if !skip() {
        diecast_quiet::look(|| {
            let (emulator, hog) = flood(true);
            assert!(hog >= 0.15, "a busy thread got {:.1} % of the emulator's core", hog * 100.0);
            assert!(emulator <= 0.85, "the emulator took {:.1} % of a core that another wanted", emulator * 100.0);
        });
        diecast_quiet::look(|| {
            let (emulator, _) = flood(false);
            assert!(emulator >= 0.88, "the emulator had {:.1} % of a core that nobody else wanted", emulator * 100.0);
        });
    }
}

/// Shares of a core that an emulator got in a flood, and a busy thread on its core.
fn flood(with_hog: bool) -> (f64, f64) {
    let mut b = NetBuilder::new(1, 77);
    let s = b.switch("s");
    for name in ["a", "b", "c"] {
        let (_, v) = b.node(name);
        b.link(v, s, Link::default());
    }
    let lab = Lab::start(b.build().unwrap(), "1");
    let cores = sched_getaffinity(None).unwrap();
    let core = (0..CpuSet::MAX_CPU).rfind(|c| cores.is_set(*c)).unwrap();
    let pin = |thread| {
        let mut one = CpuSet::new();
        one.set(core);
        sched_setaffinity(thread, &one).unwrap();
    };
    pin(Pid::from_raw(lab.emulator.thread_id()));
    let sink = lab.udp(2, 7000);
    let senders = [lab.udp(0, 7000), lab.udp(1, 7000)];
    let to = lab.v4(2, 7000);
    let stop = Instant::now() + Duration::from_millis(1500);
    let (first, last, hog) = thread::scope(|scope| {
        for sender in &senders {
            scope.spawn(move || {
                if core > 0 {
                    let mut others = cores;
                    others.unset(core);
                    sched_setaffinity(None, &others).unwrap();
                }
                while Instant::now() < stop {
                    // A full socket buffer is part of a flood.
                    let _ = sender.send_to(&[0; 22], to);
                }
            });
        }
        let hog = with_hog.then(|| {
            scope.spawn(move || {
                pin(None);
                let begin = Instant::now();
                while Instant::now() < stop {}
                let used = clock_gettime(ClockId::ThreadCPUTime);
                (used.tv_sec as f64 + used.tv_nsec as f64 / 1e9) / begin.elapsed().as_secs_f64()
            })
        });
        thread::sleep(Duration::from_millis(200));
        let first = lab.emulator.stats().unwrap();
        thread::sleep(Duration::from_millis(1000));
        (first, lab.emulator.stats().unwrap(), hog.map_or(0.0, |hog| hog.join().unwrap()))
    });
    drop(sink);
    let share = (last.cpu.0 - first.cpu.0) as f64 / last.at.since(first.at).0 as f64;
    let (yields, yielded) = (last.yields - first.yields, last.yielded.0 - first.yielded.0);
    print!("flood: {:.1} % of a core, {yields} times beyond its share, ", share * 100.0);
    println!("together {} ms; busy thread {:.1} %", yielded / 1_000_000, hog * 100.0);
    let node = last.nodes[0];
    assert!(node.packets_sent > 10_000, "no flood: {node:?}");
    let kernel = link_counters(lab.netns[0].as_fd(), NODE_DEVICE).unwrap();
    println!("flood: {} frames read, {} dropped before the emulator", kernel.sent_packets, kernel.sent_dropped);
    (share, hog)
}
