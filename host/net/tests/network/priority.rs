//! Real-time priority: got even inside a cgroup without real-time budget, and bounded.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use diecast_core_net::{Link, NetBuilder};
use diecast_host_net::{NODE_DEVICE, Scheduling, link_counters};

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
        eprintln!("skipped: no cgroup v1 cpu hierarchy with real-time budgets here");
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

/// At real-time priority an overloaded emulator could take a whole core for good; it pauses instead and counts it.
#[test]
fn a_flood_leaves_a_fifth_of_the_core_to_others() {
    if !skip() {
        diecast_quiet::look(flood);
    }
}

fn flood() {
    let mut b = NetBuilder::new(1, 77);
    let s = b.switch("s");
    for name in ["a", "b", "c"] {
        let (_, v) = b.node(name);
        b.link(v, s, Link::default());
    }
    let lab = Lab::start(b.build().unwrap(), "1");
    let sink = lab.udp(2, 7000);
    let senders = [lab.udp(0, 7000), lab.udp(1, 7000)];
    let to = lab.v4(2, 7000);
    let stop = Instant::now() + Duration::from_millis(1500);
    let (first, last) = thread::scope(|scope| {
        for sender in &senders {
            scope.spawn(move || {
                while Instant::now() < stop {
                    // A full socket buffer is part of a flood.
                    let _ = sender.send_to(&[0; 22], to);
                }
            });
        }
        thread::sleep(Duration::from_millis(200));
        let first = lab.emulator.stats().unwrap();
        thread::sleep(Duration::from_millis(1000));
        (first, lab.emulator.stats().unwrap())
    });
    drop(sink);
    let share = (last.cpu.0 - first.cpu.0) as f64 / last.at.since(first.at).0 as f64;
    let (yields, yielded) = (last.yields - first.yields, last.yielded.0 - first.yielded.0);
    println!("flood: {:.1} % of a core, {yields} pauses, together {} ms", share * 100.0, yielded / 1_000_000);
    assert!(share <= 0.85, "the emulator took {:.1} % of a core", share * 100.0);
    // Below the bound only because it paused, or because the flood was no match for it.
    assert!(yields > 0 || share < 0.8, "{share} without a pause");
    let node = last.nodes[0];
    assert!(node.packets_sent > 10_000, "no flood: {node:?}");
    let kernel = link_counters(lab.netns[0].as_fd(), NODE_DEVICE).unwrap();
    println!("flood: {} frames read, {} dropped before the emulator", kernel.sent_packets, kernel.sent_dropped);
}
