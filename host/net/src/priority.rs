//! Real-time priority for the emulator thread, on any cgroup set-up.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde::Serialize;

use crate::sys;

/// How the emulator thread is scheduled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "policy", rename_all = "lowercase")]
pub enum Scheduling {
    /// Before every ordinary thread.
    Fifo {
        /// 1 to 99.
        priority: u8,
        /// The thread had to leave its cgroup, which had no real-time budget.
        moved_to_root_cgroup: bool,
    },
    /// Like any other thread: lateness depends on what else runs.
    Normal {
        /// Why it is not FIFO.
        reason: String,
    },
}

/// Makes the calling thread SCHED_FIFO. In a v1 cpu cgroup below the root the real-time budget is 0 and the kernel
/// answers EPERM: then this thread alone moves to the root of that hierarchy.
pub fn become_fifo(priority: u8) -> Scheduling {
    match sys::set_fifo(i32::from(priority)) {
        Ok(()) => Scheduling::Fifo { priority, moved_to_root_cgroup: false },
        Err(first) if first.raw_os_error() == Some(libc::EPERM) => match retry_in_root(priority) {
            Ok(()) => Scheduling::Fifo { priority, moved_to_root_cgroup: true },
            Err(second) => {
                Scheduling::Normal { reason: format!("SCHED_FIFO refused ({first}; in the root cgroup: {second})") }
            }
        },
        Err(error) => Scheduling::Normal { reason: format!("SCHED_FIFO refused ({error})") },
    }
}

fn retry_in_root(priority: u8) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let root =
        cpu_v1_root(&mounts).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no cgroup v1 cpu hierarchy"))?;
    fs::write(root.join("tasks"), rustix::thread::gettid().as_raw_pid().to_string())?;
    sys::set_fifo(i32::from(priority))
}

/// Mount point of the v1 hierarchy with the cpu controller. A line of mountinfo: id, parent, device, root, mount
/// point, options, optional fields, `-`, type, source, super options.
fn cpu_v1_root(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let is_v1 = right.next()? == "cgroup";
        let has_cpu = right.nth(1)?.split(',').any(|o| o == "cpu");
        (is_v1 && has_cpu).then(|| left.split(' ').nth(4).map(PathBuf::from))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_hierarchy_is_told_from_cpuset_and_v2() {
        let text = "30 25 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                    31 25 0:28 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 cgroup2 rw,cpu\n\
                    32 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:6 - cgroup cgroup rw,cpu,cpuacct\n";
        assert_eq!(cpu_v1_root(text), Some(PathBuf::from("/sys/fs/cgroup/cpu,cpuacct")));
        assert_eq!(cpu_v1_root("31 25 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"), None);
    }
}
