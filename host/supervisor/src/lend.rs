//! Lending the node's memory to a process: a descriptor in its table until the blob is mapped, or the exec has failed.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use diecast_host_sys::Tid;
use diecast_host_sys::process::{self, Limit, RLIMIT_NOFILE};
use diecast_host_sys::seccomp::{self, Notification};
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::frame::NodeFrame;

/// Lends it to the process that waits, also where its limit leaves no room and may be raised.
pub(crate) fn lend(listener: &OwnedFd, n: &Notification, node: &NodeFrame) -> io::Result<i32> {
    let add = || seccomp::add_fd(listener, n, &node.memfd);
    match add() {
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
            let Ok(_room) = Room::make(n.tid()) else { return Err(e) };
            add()
        }
        done => done,
    }
}

/// Raised while a descriptor is lent: the thread waits meanwhile, and no other has it in its process but by chance.
struct Room {
    tid: Tid,
    own: Limit,
    raised: Limit,
}

impl Room {
    fn make(tid: Tid) -> io::Result<Room> {
        let own = process::limit(tid, RLIMIT_NOFILE, None)?;
        // The hard limit only the superuser raises.
        let all = Limit { rlim_cur: own.rlim_max.max(most()), rlim_max: own.rlim_max.max(most()) };
        let most_of_own = Limit { rlim_cur: own.rlim_max, rlim_max: own.rlim_max };
        let set =
            |raised: Limit| process::limit(tid, RLIMIT_NOFILE, Some(&raised)).map(|own| Room { tid, own, raised });
        set(all).or_else(|_| set(most_of_own))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let found = process::limit(self.tid, RLIMIT_NOFILE, Some(&self.own));
        // Another of its threads has set it meanwhile.
        if let Ok(found) = found
            && (found.rlim_cur, found.rlim_max) != (self.raised.rlim_cur, self.raised.rlim_max)
        {
            let _ = process::limit(self.tid, RLIMIT_NOFILE, Some(&found));
        }
    }
}

/// The kernel's own bound on that limit.
fn most() -> u64 {
    static MOST: OnceLock<u64> = OnceLock::new();
    *MOST.get_or_init(|| {
        fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|t| t.trim().parse().ok()).unwrap_or(1 << 20)
    })
}

/// What is to be known of a process before it execs, in one look.
pub(crate) struct Household {
    /// 0 where it can't be known.
    pub parent: Tid,
    /// It has one thread.
    pub alone: bool,
}

pub(crate) fn household(tid: Tid) -> Household {
    let stat = fs::read_to_string(format!("/proc/{}/stat", tid.0)).unwrap_or_default();
    let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let parent = fields.nth(1).and_then(|pid| pid.parse().ok()).unwrap_or(0);
    Household { parent: Tid(parent), alone: fields.nth(15) == Some("1") }
}

/// Whether a process has seccomp filters of its own, besides the frame's and those that this process has too.
pub(crate) fn has_own_filters(tid: Tid) -> bool {
    let count = |of: String| {
        let status = fs::read_to_string(format!("/proc/{of}/status")).unwrap_or_default();
        let filters = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"));
        filters.and_then(|n| n.trim().parse::<u32>().ok())
    };
    // An old kernel doesn't tell.
    count(tid.0.to_string()).is_none_or(|filters| filters > 1 + count("self".into()).unwrap_or(0))
}

/// Whether this process may look into those that the kernel calls not dumpable.
pub(crate) fn may_look_into_all() -> bool {
    const CAP_SYS_PTRACE: u64 = 1 << 19;
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let caps = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
        caps.is_some_and(|caps| caps & CAP_SYS_PTRACE != 0)
    })
}

/// Whether a program can be executed but not read.
pub(crate) fn is_unreadable(tid: Tid, path: &Path) -> bool {
    let there = match path.strip_prefix("/") {
        Ok(below) => PathBuf::from(format!("/proc/{}/root", tid.0)).join(below),
        Err(_) => PathBuf::from(format!("/proc/{}/cwd", tid.0)).join(path),
    };
    access(&there, Access::EXEC_OK).is_ok() && access(&there, Access::READ_OK) == Err(Errno::ACCESS)
}
