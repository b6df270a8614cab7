//! TCP's first retransmission timeout, stretched per node by one BPF program.
//!
//! [`InitialRto::attach`] loads the program of `freestanding/bpf-tcp` and hangs it at the root of the cgroup v2
//! hierarchy, beside those of other labs. It is attached by a BPF link: when the [`InitialRto`] is dropped or its
//! process dies in any way, the kernel removes program and map.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;

use diecast_core_vtime::Tdf;
use diecast_host_bpf::{BpfError, Programs, Source};
use diecast_host_net::{HostNetError, kernel_hz, netns_cookie};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde::Serialize;

/// Names in the BPF object.
const PROGRAM: &str = "initial_rto";
const MAP: &str = "rto_jiffies";
/// The kernel caps a timeout at this (TCP_RTO_MAX).
const RTO_MAX_S: u64 = 120;

/// Why first timeouts can't be stretched.
#[derive(Debug, thiserror::Error)]
pub enum InitialRtoError {
    /// No cgroup v2 is mounted.
    #[error("no cgroup v2 hierarchy is mounted")]
    NoCgroup2,
    /// A file could not be read or opened.
    #[error("can't open {path}: {error}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The kernel or libbpf refused.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The namespace could not be entered, or has no cookie to tell.
    #[error(transparent)]
    Netns(#[from] HostNetError),
}

impl InitialRtoError {
    /// What a user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            InitialRtoError::NoCgroup2 => "mount one: mount -t cgroup2 none /sys/fs/cgroup/unified",
            InitialRtoError::Bpf(_) | InitialRtoError::Open { .. } => {
                "needs root or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and a kernel with CONFIG_CGROUP_BPF (5.15 or later)"
            }
            InitialRtoError::Netns(_) => "needs root or CAP_SYS_ADMIN, and Linux 5.14 or later",
        }
    }
}

/// The first timeout of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Applied {
    /// Real milliseconds that the TDF asks for, rounded up.
    pub wanted_ms: u64,
    /// Real milliseconds in force: whole jiffies, at most 120 s.
    pub in_force_ms: u64,
    /// The kernel's limit is in force instead of the wanted value.
    pub clamped: bool,
}

/// The attached program. Dropping it detaches.
#[derive(Debug)]
pub struct InitialRto {
    map: MapHandle,
    hz: u32,
    programs: Programs,
}

impl InitialRto {
    /// Loads and attaches. Programs of other labs and of anybody else at the same cgroup go on working.
    pub fn attach() -> Result<InitialRto, InitialRtoError> {
        let path = cgroup2_root()?;
        let root = fs::File::open(&path).map_err(|error| InitialRtoError::Open { path, error })?;
        let object = diecast_host_bpf::object!("initial_rto.bpf.o");
        let purpose = "TCP's initial RTO";
        let mut programs =
            Programs::load(Source { object, purpose, constants: &[], without: &[], room: &[], shared: &[] })?;
        programs.attach_cgroup(PROGRAM, root.as_raw_fd())?;
        Ok(InitialRto { map: programs.map(MAP)?, hz: kernel_hz(), programs })
    }

    /// From now on connections of the namespace start with a timeout of one virtual second at `tdf`.
    pub fn set(&self, netns: BorrowedFd<'_>, tdf: Tdf) -> Result<Applied, InitialRtoError> {
        let jiffies = jiffies(self.hz, tdf);
        self.map
            .update(&netns_cookie(netns)?.to_ne_bytes(), &jiffies.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| self.programs.error("configure", error))?;
        Ok(applied(self.hz, tdf, jiffies))
    }

    /// Forgets a namespace; its next connections start with one real second.
    pub fn unset(&self, netns: BorrowedFd<'_>) -> Result<(), InitialRtoError> {
        let key = netns_cookie(netns)?.to_ne_bytes();
        match self.map.delete(&key) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => Err(self.programs.error("configure", e).into()),
            _ => Ok(()),
        }
    }
}

/// One virtual second in jiffies, rounded up, at most what the kernel takes. Bound: 1000 Hz * 1000 s fits 32 bits.
fn jiffies(hz: u32, tdf: Tdf) -> u32 {
    let wanted = (u64::from(hz) * u64::from(tdf.num())).div_ceil(u64::from(tdf.den()));
    wanted.min(RTO_MAX_S * u64::from(hz)).max(1) as u32
}

fn applied(hz: u32, tdf: Tdf, jiffies: u32) -> Applied {
    let wanted_ms = (1000 * u64::from(tdf.num())).div_ceil(u64::from(tdf.den()));
    Applied { wanted_ms, in_force_ms: u64::from(jiffies) * 1000 / u64::from(hz), clamped: wanted_ms > RTO_MAX_S * 1000 }
}

/// Where cgroup v2 is mounted: /sys/fs/cgroup, or a folder of it beside v1 hierarchies.
fn cgroup2_root() -> Result<PathBuf, InitialRtoError> {
    let path = PathBuf::from("/proc/self/mountinfo");
    let mounts = fs::read_to_string(&path).map_err(|error| InitialRtoError::Open { path, error })?;
    cgroup2_mount(&mounts).ok_or(InitialRtoError::NoCgroup2)
}

/// A line of mountinfo: id, parent, device, root, mount point, options, optional fields, `-`, type, ... A mount of a
/// part of the hierarchy (a container's) is only taken when there is none of all of it.
fn cgroup2_mount(mountinfo: &str) -> Option<PathBuf> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        right.starts_with("cgroup2 ").then(|| (root != "/", PathBuf::from(point)))
    });
    // The first of the whole ones, else the first.
    mounts.min_by_key(|(partial, _)| *partial).map(|(_, point)| point)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tdf(text: &str) -> Tdf {
        text.parse().unwrap()
    }

    #[test]
    fn one_virtual_second_in_jiffies() {
        assert_eq!([jiffies(250, tdf("1")), jiffies(250, tdf("10")), jiffies(250, tdf("3/2"))], [250, 2500, 375]);
        assert_eq!(jiffies(100, tdf("0.01")), 1);
        assert_eq!(jiffies(300, tdf("1/7")), 43, "never too short");
        assert_eq!(jiffies(250, tdf("1000")), 30_000);
        let a = applied(250, tdf("150"), jiffies(250, tdf("150")));
        assert_eq!(a, Applied { wanted_ms: 150_000, in_force_ms: 120_000, clamped: true });
        let a = applied(250, tdf("10"), 2500);
        assert_eq!(a, Applied { wanted_ms: 10_000, in_force_ms: 10_000, clamped: false });
    }

    #[test]
    fn the_whole_hierarchy_is_preferred() {
        let text = "31 25 0:28 /pod /inner rw shared:5 - cgroup2 cgroup2 rw\n\
                    32 25 0:28 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw\n\
                    33 25 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        assert_eq!(cgroup2_mount(text), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(cgroup2_mount(text.lines().next().unwrap()), Some(PathBuf::from("/inner")));
        assert_eq!(cgroup2_mount(text.lines().last().unwrap()), None);
    }
}
