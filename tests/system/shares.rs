//! `benches/shares.py` in its small form: what a fork storm, senders in the kernel and thousands of threads use is charged, and a
//! node's speed is what its requests feel, at any TDF.

use crate::bench::{Bench, bench, small_bench};

#[test]
fn what_escapes_the_meter_is_charged() {
    judged("shares", conserved);
}

fn conserved(b: &Bench) {
    // The bar is 1 %, of all that a node used and of each window.
    let figures = part(b, "conservation", 0.03);
    let nodes: Vec<&str> = figures.iter().map(|f| f["what"].as_str().unwrap().split(':').next().unwrap()).collect();
    assert_eq!(nodes, ["crowd", "files", "forks", "sender", "threads"].map(|node| [node; 2]).concat());
    for pair in figures.chunks(2) {
        assert!(pair[0]["used_ns"].as_f64().unwrap() > 30e6, "{}", pair[0]);
        assert!(pair[1]["what"].as_str().unwrap().contains("worst of"), "{}", pair[1]);
    }
}

#[test]
fn busy_threads_keep_their_share_though_they_queue_for_cores() {
    judged("share", kept);
}

fn kept(b: &Bench) {
    // The bar is 0.5 %. Where what a thread is behind is forgotten whenever an interrupt takes a few microseconds of its
    // slice, four threads on two cores lose 6 to 10 %.
    assert_eq!(part(b, "share", 0.04).len(), 2);
}

#[test]
fn speeds_decide_how_much_a_server_does() {
    judged("futures", futures);
}

fn futures(b: &Bench) {
    // The bars are 3 and 5 %; a factor that is not applied is off by half or more, a TDF too.
    assert_eq!(part(b, "futures", 0.35).len(), 4);
}

#[test]
fn a_contended_mutex_costs_what_it_does_natively() {
    judged("mutex", locked);
}

fn locked(b: &Bench) {
    // The bar is 5 %. Where nobody asks those who sleep to go on it is off by 17 and 12 %.
    assert_eq!(part(b, "mutex", 0.12).len(), 2);
}

#[test]
fn a_sink_takes_as_many_datagrams_as_natively() {
    judged("receive", received);
}

fn received(b: &Bench) {
    // The bar is 5 %. Where interrupts are not charged they are off by 13 and 15 %.
    assert_eq!(part(b, "receive", 0.12).len(), 2);
}

/// Looks, in a folder of this name, where the test is root.
fn judged(name: &str, judge: fn(&Bench)) {
    let Some(b) = bench(name) else { return };
    diecast_quiet::look(|| judge(&b));
}

/// The figures of one part of the benchmark, none of which is off by `most` or more. It judges its own bars.
fn part(b: &Bench, name: &str, most: f64) -> Vec<serde_json::Value> {
    let figures = small_bench(b, "shares", &["--part", name]);
    for f in &figures {
        assert!(f["error"].as_f64().unwrap().abs() < most, "{f}");
    }
    figures
}
