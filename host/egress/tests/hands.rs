//! What threads tell as they hand work on within their node, and as they block.

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{core_ticks, nic, poll_ms, skip, spin, two_nodes};
use diecast_core_cpu::Then;
use diecast_core_vtime::RealNs;
use diecast_host_egress::{Egress, Handed, HitCost};
use diecast_host_net::in_netns;
use diecast_host_sys::trap;
use diecast_host_tick::{Cadence, CoreTicks};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

const MS: u64 = 1_000_000;

/// CPU time that counts ten times in the original, in real time.
const AHEAD: HitCost = HitCost { added_ns: 0, period_ns: 900_000, pays_ns: 0, lead: 10 * 1024, by_cores: false };

fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// A thread that hands on, another that is handed to and works, and what was told of the two. `ends` are made in the node's
/// namespace, `wake` hands on and `wait` is handed to.
struct Told {
    by: u32,
    to: u32,
    cookie: u64,
    all: Vec<Handed>,
}

fn told<A: Send, B: Send>(
    cost: HitCost,
    ends: impl FnOnce() -> (A, B) + Send,
    wake: impl Fn(&mut A) + Send + Sync,
    wait: impl Fn(&mut B) + Send + Sync,
) -> Option<Told> {
    let egress = Egress::load().unwrap();
    let ticks = core_ticks(&egress, Cadence::told_by_packets(500_000))?;
    trap::install_handler();
    let (ns, _tap, cookie) = nic(&egress, &two_nodes());
    egress.set_hit_cost(cookie, cost).unwrap();
    let (first, mut second) = in_netns(ns.as_fd(), ends).unwrap();
    let mut first = first;
    let (tell_to, of_to) = channel();
    let (by, to) = std::thread::scope(|s| {
        let waiting = in_thread(
            s,
            &ns,
            move |ticks: &CoreTicks| {
                let _metered = ticks.meter_here().unwrap();
                // Who comes to the node from elsewhere is known from its next sleep on.
                poll_ms(1);
                tell_to.send(thread_id()).unwrap();
                for _ in 0..2 {
                    wait(&mut second);
                    spin(Duration::from_millis(1));
                }
                poll_ms(1);
            },
            &ticks,
        );
        let to = of_to.recv().unwrap();
        let waking = in_thread(
            s,
            &ns,
            move |ticks: &CoreTicks| {
                let _metered = ticks.meter_here().unwrap();
                for _ in 0..2 {
                    poll_ms(20);
                    spin(Duration::from_millis(2));
                    wake(&mut first);
                }
                poll_ms(20);
                thread_id()
            },
            &ticks,
        );
        let by = waking.join().unwrap();
        waiting.join().unwrap();
        (by, to)
    });
    let mut all = Vec::new();
    egress.take_handed(Some(cookie), RealNs(0), |_| panic!("nothing is so old"));
    egress.take_handed(Some(cookie), RealNs(u64::MAX), |handed| all.push(*handed));
    assert_eq!(egress.lost_handed(), 0);
    Some(Told { by, to, cookie, all })
}

fn in_thread<'s, T: Send + 's>(
    s: &'s std::thread::Scope<'s, '_>,
    ns: &std::os::fd::OwnedFd,
    f: impl FnOnce(&CoreTicks) -> T + Send + 's,
    ticks: &'s CoreTicks,
) -> std::thread::ScopedJoinHandle<'s, T> {
    let ns = ns.try_clone().unwrap();
    s.spawn(move || in_netns(ns.as_fd(), || f(ticks)).unwrap())
}

fn pipes() -> (PipeWriter, PipeReader) {
    let (reader, writer) = pipe().unwrap();
    (writer, reader)
}

fn through_pipe(cost: HitCost) -> Option<Told> {
    told(cost, pipes, |to| to.write_all(b"x").unwrap(), |from| from.read_exact(&mut [0]).unwrap())
}

#[test]
fn who_wakes_another_of_its_node_tells_what_it_has_used() {
    if skip() {
        return;
    }
    diecast_quiet::look(|| {
        let Some(Told { by, to, cookie, all }) = through_pipe(AHEAD) else { return };
        holds(by, to, cookie, &all);
    });
}

/// What passes through the loopback device is work of who sent it, on its way too.
#[test]
fn who_sends_to_another_of_its_node_tells_what_it_has_used() {
    if skip() {
        return;
    }
    let ends = || {
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (to, listener.accept().unwrap().0)
    };
    diecast_quiet::look(|| {
        let wake = |to: &mut TcpStream| to.write_all(b"x").unwrap();
        let Some(Told { by, to, cookie, all }) = told(AHEAD, ends, wake, |from| from.read_exact(&mut [0]).unwrap())
        else {
            return;
        };
        holds(by, to, cookie, &all);
    });
}

fn holds(by: u32, to: u32, cookie: u64, all: &[Handed]) {
    assert!(all.iter().all(|h| h.cookie == cookie), "{all:?}");
    let handed: Vec<_> = all.iter().filter(|h| h.by.tid == by && h.then == Then::Wakes(to)).collect();
    assert_eq!(handed.len(), 2, "{all:?}");
    for h in &handed {
        let burst_ns = h.by.cpu_ns - h.by.burst_cpu_ns;
        assert!((2 * MS..4 * MS).contains(&burst_ns), "{burst_ns} ns of two ms: {all:?}");
        assert!(h.by.at.0 - h.by.woke.0 >= burst_ns, "{all:?}");
    }
    let between = handed[1].by.cpu_ns - handed[0].by.cpu_ns;
    assert!((2 * MS..4 * MS).contains(&between), "{between} ns");
    // The other works for a millisecond each time, and blocks.
    let left: Vec<_> = all.iter().filter(|h| h.by.tid == to && h.by.cpu_ns - h.by.burst_cpu_ns > MS / 2).collect();
    assert_eq!(left.iter().map(|h| h.then).collect::<Vec<_>>(), [Then::Blocks; 2], "{all:?}");
    for h in left {
        let burst_ns = h.by.cpu_ns - h.by.burst_cpu_ns;
        assert!((MS..3 * MS).contains(&burst_ns), "{burst_ns} ns of one ms: {all:?}");
    }
    // Whom a timer wakes, nobody has handed anything on to, whoever had the core then.
    assert_eq!(all.iter().filter(|h| matches!(h.then, Then::Wakes(_))).count(), 2, "{all:?}");
}

/// What is told of a metered thread that has worked for 2 ms as it ends, which a metered thread of the first or the second
/// of two nodes waits for. The ending one is of the first.
fn told_at_end(of_same_node: bool) -> Option<Told> {
    let egress = Egress::load().unwrap();
    let ticks = core_ticks(&egress, Cadence::told_by_packets(500_000))?;
    trap::install_handler();
    let (ns, _tap, of_first) = nic(&egress, &two_nodes());
    let (other_ns, _other_tap, of_second) = nic(&egress, &two_nodes());
    let waits_in = if of_same_node { &ns } else { &other_ns };
    for cookie in [of_first, of_second] {
        egress.set_hit_cost(cookie, AHEAD).unwrap();
    }
    let (tell_by, of_by) = channel();
    let (tell_to, of_to) = channel();
    let (by, to) = std::thread::scope(|s| {
        let waiting = in_thread(
            s,
            waits_in,
            move |ticks: &CoreTicks| {
                let _metered = ticks.meter_here().unwrap();
                poll_ms(1);
                let by: u32 = of_by.recv().unwrap();
                // Of a thread (PIDFD_THREAD): Linux 6.9.
                let of_thread = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
                let thread = pidfd_open(Pid::from_raw(by as i32).unwrap(), of_thread).ok();
                tell_to.send(thread_id()).unwrap();
                let thread = thread?;
                poll(&mut [PollFd::new(&thread, PollFlags::IN)], None).unwrap();
                Some((by, thread_id()))
            },
            &ticks,
        );
        let ending = in_thread(
            s,
            &ns,
            move |ticks: &CoreTicks| {
                // It is metered to its end.
                std::mem::forget(ticks.meter_here().unwrap());
                tell_by.send(thread_id()).unwrap();
                of_to.recv().unwrap();
                poll_ms(20);
                spin(Duration::from_millis(2));
            },
            &ticks,
        );
        ending.join().unwrap();
        waiting.join().unwrap()
    })?;
    let mut all = Vec::new();
    for cookie in [of_first, of_second] {
        egress.take_handed(Some(cookie), RealNs(u64::MAX), |handed| all.push(*handed));
    }
    Some(Told { by, to, cookie: of_first, all })
}

/// By then it has no namespaces any more, whatever node it was of. What it has used is told in any case.
#[test]
fn who_ends_hands_on_to_its_own_node_alone_and_tells_what_it_used() {
    if skip() {
        return;
    }
    diecast_quiet::look(|| {
        let Some(Told { by, to, cookie, all }) = told_at_end(true) else {
            return diecast_quiet::skipped("needs clocks of cores, and Linux 6.9 to wait for a thread's end");
        };
        let handed: Vec<_> = all.iter().filter(|h| h.by.tid == by && h.then == Then::Wakes(to)).collect();
        assert!(handed.len() == 1 && handed[0].cookie == cookie, "{all:?}");
        let Told { by, cookie, all, .. } = told_at_end(false).expect("the same as before");
        let told: Vec<_> = all.iter().filter(|h| h.by.tid == by).collect();
        let [.., end] = &told[..] else { panic!("{all:?}") };
        assert!(told.iter().all(|h| h.cookie == cookie && !matches!(h.then, Then::Wakes(_))), "{all:?}");
        let burst_ns = end.by.cpu_ns - end.by.burst_cpu_ns;
        assert!(end.then == Then::Ends && (2 * MS..4 * MS).contains(&burst_ns), "{burst_ns} ns of two ms: {all:?}");
    });
}

/// It has lost its number by then, as all but the first thread of a process have. What is only looked at is still to be taken, and
/// whoever waits for it is told.
#[test]
fn who_never_told_anything_tells_at_its_end_what_it_used() {
    if skip() {
        return;
    }
    diecast_quiet::look(|| {
        let egress = Egress::load().unwrap();
        let Some(ticks) = core_ticks(&egress, Cadence::told_by_packets(500_000)) else { return };
        trap::install_handler();
        let (ns, _tap, cookie) = nic(&egress, &two_nodes());
        egress.set_hit_cost(cookie, HitCost { lead: 1024, ..AHEAD }).unwrap();
        let works = |ticks: &CoreTicks| {
            // It is metered to its end.
            std::mem::forget(ticks.meter_here().unwrap());
            poll_ms(20);
            spin(Duration::from_millis(2));
            thread_id()
        };
        let by = std::thread::scope(|s| in_thread(s, &ns, works, &ticks).join().unwrap());
        // Its join is woken before its last switch.
        std::thread::sleep(Duration::from_millis(20));
        let handed = egress.handed();
        let is_readable = || poll(&mut [PollFd::new(&handed, PollFlags::IN)], Some(&Timespec::default())).unwrap();
        assert_eq!(is_readable(), 1, "the ring");
        let seen = egress.peek_handed(cookie);
        let readable = is_readable();
        let mut all = Vec::new();
        egress.take_handed(Some(cookie), RealNs(u64::MAX), |handed| all.push(*handed));
        let burst_ns = |h: &Handed| h.by.cpu_ns - h.by.burst_cpu_ns;
        assert!(matches!(&all[..], [h] if h.by.tid == by && h.then == Then::Ends), "{all:?}");
        assert!((2 * MS..4 * MS).contains(&burst_ns(&all[0])), "{} ns of two ms: {all:?}", burst_ns(&all[0]));
        assert_eq!((seen, readable), (all, 1));
        assert_eq!(is_readable(), 0);
    });
}

/// Where a CPU nanosecond here is one there who wakes another is not ahead. What it leaves is told all the same.
#[test]
fn who_is_not_ahead_hands_nothing_on() {
    if skip() {
        return;
    }
    let Some(Told { by, all, .. }) = through_pipe(HitCost { lead: 1024, ..AHEAD }) else { return };
    assert!(all.iter().all(|h| !matches!(h.then, Then::Wakes(_))), "{all:?}");
    let bursts = all.iter().filter(|h| h.by.tid == by && h.by.cpu_ns - h.by.burst_cpu_ns > MS);
    assert_eq!(bursts.count(), 2, "{all:?}");
}

/// What makes a container is in its node's namespace, and no clock of a core knows it.
#[test]
fn where_cores_meter_only_bursts_of_the_metered_teach() {
    if skip() {
        return;
    }
    let egress = Egress::load().unwrap();
    let Some(ticks) = core_ticks(&egress, Cadence::told_by_packets(500_000)) else { return };
    trap::install_handler();
    let (ns, _tap, cookie) = nic(&egress, &two_nodes());
    let bursts = |by_cores, is_metered: bool| {
        egress.set_hit_cost(cookie, HitCost { by_cores, ..AHEAD }).unwrap();
        let before = egress.counted(cookie).unwrap().bursts;
        in_netns(ns.as_fd(), || {
            let _metered = is_metered.then(|| ticks.meter_here().unwrap());
            for _ in 0..20 {
                spin(Duration::from_micros(200));
                poll_ms(1);
            }
        })
        .unwrap();
        egress.counted(cookie).unwrap().bursts.since(&before).count.iter().flatten().sum::<f64>()
    };
    for (by_cores, is_metered) in [(false, false), (false, true), (true, true)] {
        let n = bursts(by_cores, is_metered);
        assert!((15.0..=25.0).contains(&n), "{n} bursts of 20, by cores {by_cores}, metered {is_metered}");
    }
    assert_eq!(bursts(true, false), 0.0);
}
