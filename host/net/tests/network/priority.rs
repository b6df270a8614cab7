//! Real-time priority from inside a cgroup that has no real-time budget.

use std::fs;
use std::path::Path;

use diecast_core_net::{Link, NetBuilder};
use diecast_host_net::Scheduling;

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
        fs::remove_dir(&self.0).unwrap();
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
