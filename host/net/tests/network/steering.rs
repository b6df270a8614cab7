//! Packets are received on the cores that their NIC is steered to.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;

use diecast_core_net::Link;
use diecast_host_net::{NODE_DEVICE, receive_on};
use diecast_host_sys::time::allowed_cpus;

use crate::lab::{Lab, skip, two};

const FRAMES: u64 = 2000;
/// Others' packets on the same machine.
const OTHERS: u64 = FRAMES / 2;
/// Columns of softnet_stat: frames that the core's stack took, and which core that is.
const TAKEN: usize = 0;
const CORE: usize = 12;

/// Frames that each core has received since the host's start.
fn received() -> BTreeMap<usize, u64> {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let numbers = |line: &str| line.split_whitespace().map(|n| u64::from_str_radix(n, 16).unwrap()).collect::<Vec<_>>();
    text.lines().map(numbers).map(|row| (row[CORE] as usize, row[TAKEN])).collect()
}

/// What each core received while frames went from the first node to the second, one after the other.
fn received_of(lab: &Lab) -> BTreeMap<usize, u64> {
    let (from, to) = (lab.udp(0, 0), lab.udp(1, 9));
    let before = received();
    let mut buffer = [0; 64];
    for _ in 0..FRAMES {
        from.send_to(&[0; 32], lab.v4(1, 9)).unwrap();
        to.recv(&mut buffer).expect("no frame within 20 s");
    }
    received().into_iter().map(|(core, taken)| (core, taken - before[&core])).collect()
}

#[test]
fn a_steered_nic_receives_on_its_cores() {
    if skip() {
        return;
    }
    let cpus = allowed_cpus();
    let [first, second, ..] = cpus[..] else {
        diecast_quiet::skipped("has one core only");
        return;
    };
    let lab = Lab::start(two(Link::default(), false), "1");
    for (here, elsewhere) in [(first, second), (second, first)] {
        receive_on(lab.netns[1].as_fd(), NODE_DEVICE, &[here as u32]).unwrap();
        let by_core = received_of(&lab);
        assert!(by_core[&here] >= FRAMES, "steered to core {here}, frames by core: {by_core:?}");
        assert!(by_core[&elsewhere] < OTHERS, "steered to core {here}, frames by core: {by_core:?}");
    }
}

#[test]
fn what_cannot_be_steered_says_which_device() {
    if skip() {
        return;
    }
    let lab = Lab::start(two(Link::default(), false), "1");
    let refused = receive_on(lab.netns[1].as_fd(), "eth7", &[0]).unwrap_err().to_string();
    assert!(refused.starts_with("can't choose the cores that receive for 'eth7': No such file"), "{refused}");
}
