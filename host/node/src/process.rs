//! Which process is meant: a pid together with the time when it started, so that a number which the kernel
//! has given to another process since is never taken for the first one.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs::read_to_string;
use std::os::fd::OwnedFd;

/// One process of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Field 22 of /proc/PID/stat: clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessId {
    /// The process that has this pid now; `None` when there is none, or only a zombie.
    pub fn of(pid: u32) -> Option<ProcessId> {
        let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let Stat { state, threads, start_ticks } = parse_stat(&stat)?;
        // The first thread of a dying process may be a zombie while others still run.
        let dead = matches!(state, 'Z' | 'X') && threads <= 1;
        (!dead).then_some(ProcessId { pid, start_ticks })
    }

    /// The calling process.
    pub fn own() -> ProcessId {
        let pid = std::process::id();
        ProcessId::of(pid).unwrap_or(ProcessId { pid, start_ticks: 0 })
    }

    /// Does exactly this process still run?
    pub fn is_alive(self) -> bool {
        ProcessId::of(self.pid) == Some(self)
    }

    /// A descriptor of exactly this process; `None` when it has ended.
    pub fn open(self) -> Option<OwnedFd> {
        let fd = pidfd_open(Pid::from_raw(self.pid as i32)?, PidfdFlags::empty()).ok()?;
        // The descriptor now pins whatever has the number; only then the comparison is free of races.
        self.is_alive().then_some(fd)
    }

    /// SIGKILL to exactly this process; false when it had ended.
    pub fn kill(self) -> bool {
        self.open().is_some_and(|fd| pidfd_send_signal(fd, Signal::KILL).is_ok())
    }
}

/// Changes with every boot; start times count from it.
pub(crate) fn boot_id() -> String {
    read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    threads: u64,
    start_ticks: u64,
}

/// Fields 3, 20 and 22; the command in parentheses may itself hold spaces and parentheses.
fn parse_stat(stat: &str) -> Option<Stat> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let threads = fields.nth(16)?.parse().ok()?;
    let start_ticks = fields.nth(1)?.parse().ok()?;
    Some(Stat { state, threads, start_ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_and_digits_is_skipped() {
        let stat = "12 (a) R 9) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20 21";
        assert_eq!(parse_stat(stat), Some(Stat { state: 'S', threads: 17, start_ticks: 777 }));
    }

    #[test]
    fn the_own_process_lives_and_its_number_with_another_start_does_not() {
        let own = ProcessId::own();
        assert!(own.is_alive());
        let other = ProcessId { start_ticks: own.start_ticks + 1, ..own };
        assert!(!other.is_alive());
        assert!(other.open().is_none());
        assert!(!other.kill());
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = child.id();
        while ProcessId::of(id).is_some() {
            std::thread::yield_now();
        }
        assert!(child.wait().unwrap().success());
    }
}
