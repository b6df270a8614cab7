//! A thread that is stopped or frozen goes on with what it was at: what it does before and after is one burst.

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use common::{meter_sleep, nic, poll_ms, skip, spin, two_nodes};
use diecast_core_abi::METER_SLEEP;
use diecast_host_egress::Egress;
use diecast_host_net::in_netns;
use diecast_host_node::Hierarchies;

const ROUNDS: u32 = 20;

/// A child process of the node that does this as often and then waits; its number.
fn child_of(ns: &OwnedFd, round: impl Fn() + Sync) -> i32 {
    let forks = || {
        // SAFETY: the child calls nothing that takes a lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            for _ in 0..ROUNDS {
                round();
                poll_ms(1);
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        child
    };
    in_netns(ns.as_fd(), forks).unwrap()
}

/// Lets a child that stops itself go on 1 ms later each time, until it ends; how often.
fn continues(child: i32) -> u32 {
    for stopped in 0.. {
        let mut status = 0;
        // SAFETY: a child of this process's, and a live int.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) }, child);
        if !libc::WIFSTOPPED(status) {
            return stopped;
        }
        std::thread::sleep(Duration::from_millis(1));
        // SAFETY: the child has not been reaped.
        assert_eq!(unsafe { libc::kill(child, libc::SIGCONT) }, 0);
    }
    unreachable!("for ever")
}

/// A cgroup that can be frozen, and goes with its test, however that ends.
struct Freezer {
    folder: PathBuf,
    /// The file that freezes and thaws, and what is written to it for either; the one that tells, and its line where all are frozen.
    sets: (&'static str, &'static str, &'static str),
    tells: (&'static str, &'static str),
}

impl Freezer {
    /// One of each version that there is.
    fn all() -> Vec<Freezer> {
        let hierarchies = Hierarchies::detect().unwrap();
        let name = format!("diecast-test-stops-{}", std::process::id());
        let v1 = hierarchies.cgroup(&name).directory("freezer").ok().filter(|_| hierarchies.has("freezer"));
        let v2 = hierarchies.v2_root().map(|root| root.join(&name));
        let of_v1 = v1.map(|folder| Freezer {
            folder,
            sets: ("freezer.state", "FROZEN", "THAWED"),
            tells: ("freezer.state", "FROZEN"),
        });
        let of_v2 = v2.map(|folder| Freezer {
            folder,
            sets: ("cgroup.freeze", "1", "0"),
            tells: ("cgroup.events", "frozen 1"),
        });
        let all: Vec<Freezer> = of_v1.into_iter().chain(of_v2).collect();
        all.iter().for_each(|freezer| std::fs::create_dir(&freezer.folder).unwrap());
        all
    }

    fn freezes_and_thaws(&self) {
        let (file, freezes, thaws) = self.sets;
        std::fs::write(self.folder.join(file), freezes).unwrap();
        let frozen = || std::fs::read_to_string(self.folder.join(self.tells.0)).unwrap();
        while !frozen().lines().any(|line| line == self.tells.1) {
            std::thread::yield_now();
        }
        std::fs::write(self.folder.join(file), thaws).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(self.folder.join(self.sets.0), self.sets.2);
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// How many bursts were counted while a node did this, and what one used on average, µs.
fn bursts_of(work: impl FnOnce(&OwnedFd)) -> (f64, f64) {
    let egress = Egress::load().unwrap();
    let (ns, _tap, cookie) = nic(&egress, &two_nodes());
    let before = egress.counted(cookie).unwrap().bursts;
    work(&ns);
    let new = egress.counted(cookie).unwrap().bursts.since(&before);
    let sum = |cells: &[[f64; diecast_core_abi::GAP_BINS]]| cells.iter().flatten().sum::<f64>();
    let n = sum(&new.count);
    (n, sum(&new.cpu_ns) / 1e3 / n.max(1.0))
}

/// A child that does this, by which it stops, between two halves of 100 µs has as many bursts as rounds, each of both.
fn assert_whole_around(stops: impl Fn() + Sync) {
    let (n, mean_us) = bursts_of(|ns| {
        let child = child_of(ns, || {
            spin(Duration::from_micros(100));
            stops();
            spin(Duration::from_micros(100));
        });
        assert_eq!(continues(child), ROUNDS);
    });
    assert!((15.0..=25.0).contains(&n) && mean_us > 170.0, "{n} bursts of {mean_us} us, {ROUNDS} of 200");
}

/// As by a tracer or a shell.
#[test]
fn a_stop_ends_no_burst() {
    if skip() {
        return;
    }
    assert_whole_around(|| {
        // SAFETY: has no handler.
        unsafe { libc::raise(libc::SIGSTOP) };
    });
}

/// The kernel restarts the sleep by another call.
#[test]
fn a_sleep_of_the_meter_that_is_stopped_stays_one() {
    if skip() {
        return;
    }
    assert_whole_around(|| {
        // SAFETY: live arguments; a timer's signal needs no handler.
        unsafe {
            let (mut event, mut timer) = (std::mem::zeroed::<libc::sigevent>(), std::ptr::null_mut());
            event.sigev_notify = libc::SIGEV_SIGNAL;
            event.sigev_signo = libc::SIGSTOP;
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
            let mut once = std::mem::zeroed::<libc::itimerspec>();
            once.it_value.tv_nsec = 1_000_000;
            assert_eq!(libc::timer_settime(timer, 0, &raw const once, std::ptr::null_mut()), 0);
            meter_sleep(Duration::from_millis(20), METER_SLEEP);
            libc::timer_delete(timer);
        }
    });
}

/// As a pause of a lab does it.
#[test]
fn a_pause_ends_no_burst() {
    if skip() {
        return;
    }
    for freezer in Freezer::all() {
        let mut ends = [0; 2];
        // SAFETY: a live array.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let [reads, writes] = ends;
        let (n, _) = bursts_of(|ns| {
            let child = child_of(ns, || {
                // SAFETY: a live byte.
                unsafe { libc::write(writes, [0u8].as_ptr().cast(), 1) };
                spin(Duration::from_millis(20));
            });
            std::fs::write(freezer.folder.join("cgroup.procs"), child.to_string()).unwrap();
            for _ in 0..ROUNDS {
                let mut byte = 0u8;
                // SAFETY: a live byte.
                assert_eq!(unsafe { libc::read(reads, (&raw mut byte).cast(), 1) }, 1);
                std::thread::sleep(Duration::from_millis(2));
                freezer.freezes_and_thaws();
            }
            assert_eq!(continues(child), 0);
        });
        for end in ends {
            // SAFETY: nobody else has it.
            unsafe { libc::close(end) };
        }
        assert!((15.0..=25.0).contains(&n), "{n} bursts, {ROUNDS} of 20 ms: {}", freezer.folder.display());
    }
}
