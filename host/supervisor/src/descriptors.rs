//! Descriptors of processes that stand still, had from outside: no process has to do anything for it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Gives `take` a copy of each descriptor of the process whose link is `wanted` (`socket:[17]`), with the link. A process
/// that has ended has none.
pub(crate) fn of_process(
    pid: i32,
    mut wanted: impl FnMut(&str) -> bool,
    mut take: impl FnMut(&str, OwnedFd) -> io::Result<()>,
) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Ok(()) };
    let mut process = None;
    for entry in entries.flatten() {
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        let Some(link) = link.to_str().filter(|link| wanted(link)) else { continue };
        let (Some(pid), Some(fd)) = (Pid::from_raw(pid), entry.file_name().to_str().and_then(|n| n.parse().ok()))
        else {
            continue;
        };
        if process.is_none() {
            process = Some(pidfd_open(pid, PidfdFlags::empty())?);
        }
        let Some(process) = &process else { continue };
        take(link, pidfd_getfd(process, fd, PidfdGetfdFlags::empty())?)?;
    }
    Ok(())
}

/// A copy of one descriptor, if there is one with such a link.
pub(crate) fn one(pid: i32, fd: i32, wanted: impl FnOnce(&str) -> bool) -> Option<OwnedFd> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    if !link.to_str().is_some_and(wanted) {
        return None;
    }
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).ok()
}
