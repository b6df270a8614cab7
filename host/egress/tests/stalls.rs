//! When cores were kept from a lab, as switches on the real kernel tell it.

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use std::os::fd::AsFd;
use std::time::Duration;

use common::{Ended, busy, on_core, skip};
use diecast_host_egress::{Egress, Stall};
use diecast_host_net::{create_netns, in_netns};
use diecast_host_sys::time::allowed_cpus;

const LOOK: Duration = Duration::from_millis(300);

/// For how long others of that name had the core, of the look.
fn kept_ns(stalls: &[Stall], core: usize, name: &str) -> u64 {
    let of = stalls.iter().filter(|s| s.core as usize == core && s.by.as_deref() == Some(name));
    of.map(|s| s.to.since(s.from).0).sum()
}

fn looked(egress: &Egress, meanwhile: impl FnOnce() -> Ended) -> Vec<Stall> {
    let _ = egress.take_stalls();
    let process = meanwhile();
    std::thread::sleep(LOOK);
    drop(process);
    egress.take_stalls().expect("it is watched")
}

#[test]
fn a_core_tells_when_others_have_it_and_not_when_a_node_has() {
    if skip() {
        return;
    }
    let egress = Egress::load_stalls().unwrap();
    let ns = create_netns().unwrap();
    egress.add_node(ns.as_fd()).unwrap();
    let core = *allowed_cpus().last().unwrap();
    let most_ns = LOOK.as_nanos() as u64 * 6 / 10;
    // Others want the core too, and a hypervisor may have it: a look that shows less is taken again, three times.
    let seen = (0..3).any(|_| kept_ns(&looked(&egress, || on_core(core, busy())), core, "sh") > most_ns);
    assert!(seen, "nobody told that a shell had core {core} for most of {LOOK:?}");
    let of_node = looked(&egress, || in_netns(ns.as_fd(), || on_core(core, busy())).unwrap());
    assert_eq!(kept_ns(&of_node, core, "sh"), 0, "{of_node:?}");
    for s in &of_node {
        assert!(s.to.since(s.from).0 >= 100_000, "{s:?}");
    }
    assert_eq!(egress.lost_stalls_ns(), 0);
}

#[test]
fn nothing_is_watched_where_nobody_asks() {
    if !skip() {
        assert_eq!(Egress::load_stamps().unwrap().take_stalls(), None);
    }
}
