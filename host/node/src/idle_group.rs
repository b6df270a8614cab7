//! A cgroup for threads that run only when nothing else on the host wants their core.
//!
//! SCHED_IDLE counts among the members of one cgroup only. One such thread in the group of its session (the kernel's
//! autogroup) or of a service is weighed with all of that against the nodes' cgroup: measured, a program of a node that works
//! for 3 ms and sleeps woke up 1.3 ms late beside one (median, AMD EPYC, Linux 6.18), with this 0.07 ms, as in the thread's own
//! session.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::cgroup::Hierarchies;

/// Beside the nodes' [`crate::cgroup::ROOT`], whose weight it must not share. All labs and frames have the same.
const NAME: &str = "diecast-awake";
/// The least that the kernel takes, where it has no `cpu.idle` (before Linux 5.15).
const LEAST_SHARES: &str = "2";
/// How often to try again when another lab that ends removes it.
const JOIN_RETRIES: u32 = 20;
/// And to remove it, each after 2 ms.
const REMOVE_RETRIES: u32 = 5;

/// The cgroup, which goes with the last that uses it.
#[derive(Debug)]
pub struct IdleGroup {
    directory: PathBuf,
}

impl IdleGroup {
    /// Fails on a v2 host, where a thread can't be apart from its process, and where cgroups may not be made.
    pub fn find() -> io::Result<IdleGroup> {
        let hierarchies = Hierarchies::detect().map_err(io::Error::other)?;
        if hierarchies.is_v2() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "cgroup v2 keeps the threads of a process together",
            ));
        }
        let directory = hierarchies.cgroup(NAME).directory("cpu").map_err(io::Error::other)?;
        let group = IdleGroup { directory };
        group.make()?;
        Ok(group)
    }

    fn make(&self) -> io::Result<()> {
        match fs::create_dir(&self.directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        fs::write(self.directory.join("cpu.idle"), "1")
            .or_else(|_| fs::write(self.directory.join("cpu.shares"), LEAST_SHARES))
    }

    /// Puts the calling thread in it.
    pub fn join(&self) -> io::Result<()> {
        // The kernel takes 0 for whoever writes it.
        let join = || fs::write(self.directory.join("tasks"), "0");
        let mut joined = join();
        for _ in 0..JOIN_RETRIES {
            if !joined.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
                break;
            }
            joined = self.make().and_then(|()| join());
        }
        joined
    }

    /// Removes what one whose process was killed has left.
    pub(crate) fn remove_if_empty(hierarchies: &Hierarchies) {
        hierarchies.cgroup(NAME).remove_if_empty();
    }
}

impl Drop for IdleGroup {
    fn drop(&mut self) {
        // The kernel counts a thread that was just waited for a little longer.
        for _ in 0..REMOVE_RETRIES {
            let _ = fs::remove_dir(&self.directory);
            if !self.directory.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_joins_and_the_last_one_removes_it() {
        let Ok(group) = IdleGroup::find() else {
            diecast_quiet::skipped("no cgroup of v1 may be made here");
            return;
        };
        let directory = group.directory.clone();
        let (asked, asks) = std::sync::mpsc::channel::<()>();
        let (joined, joins) = std::sync::mpsc::channel();
        std::thread::scope(|s| {
            let group = &group;
            s.spawn(move || {
                joined.send(group.join().map(|()| fs::read_to_string("/proc/thread-self/cgroup"))).unwrap();
                let _ = asks.recv();
            });
            let of_thread = joins.recv().unwrap().unwrap().unwrap();
            assert!(of_thread.lines().any(|l| l.ends_with(":/diecast-awake") && l.contains("cpu")), "{of_thread}");
            // Another's end leaves it to those that use it.
            drop(IdleGroup::find().unwrap());
            assert!(directory.exists());
            let idle = fs::read_to_string(directory.join("cpu.idle"));
            assert_eq!(idle.map_or(1, |text| text.trim().parse().unwrap()), 1);
            drop(asked);
        });
        drop(group);
        let in_use = fs::read_to_string(directory.join("tasks")).is_ok_and(|tasks| !tasks.is_empty());
        assert!(in_use || !directory.exists());
    }
}
