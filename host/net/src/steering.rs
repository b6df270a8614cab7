//! Which cores receive a node's packets: Receive Packet Steering of its NICs.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::error::HostNetError;
use crate::netns::in_netns;

/// CPUs in a word of the kernel's masks.
const WORD: u32 = 32;
/// What each core received, in columns: frames that found no place, and which core that is.
const SOFTNET: &str = "/proc/net/softnet_stat";
const DROPPED: usize = 1;
const CORE: usize = 12;

/// Has the stack behind `device` run on `cpus`, of which each connection keeps to one, as on a machine whose NIC interrupts
/// these. Without, it runs on the core that writes to the TAP.
pub fn receive_on(netns: BorrowedFd<'_>, device: &str, cpus: &[u32]) -> Result<(), HostNetError> {
    let path = format!("class/net/{device}/queues/rx-0/rps_cpus");
    in_netns(netns, || std::fs::File::from(open_in_sysfs(&path)?).write_all(mask(cpus).as_bytes()))?
        .map_err(|error| HostNetError::Steering { device: device.to_owned(), error })
}

/// Opens a file of the sysfs that knows the devices of the calling thread's namespace; it is mounted nowhere.
fn open_in_sysfs(path: &str) -> io::Result<OwnedFd> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let root = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(openat(root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// What waited for its core to receive it and found no place: the kernel keeps `net.core.netdev_max_backlog` frames a core.
#[derive(Debug)]
pub struct Backlog {
    cpus: BTreeSet<u32>,
    before: u64,
}

impl Backlog {
    /// Of these cores, from now on.
    pub fn of(cpus: impl IntoIterator<Item = u32>) -> Backlog {
        let cpus: BTreeSet<u32> = cpus.into_iter().collect();
        Backlog { before: dropped_at(&cpus), cpus }
    }

    /// Frames lost since, of everybody whom these cores receive for; 0 where the kernel does not tell.
    pub fn dropped(&self) -> u64 {
        dropped_at(&self.cpus).saturating_sub(self.before)
    }
}

fn dropped_at(cpus: &BTreeSet<u32>) -> u64 {
    dropped_in(&std::fs::read_to_string(SOFTNET).unwrap_or_default(), cpus)
}

fn dropped_in(text: &str, cpus: &BTreeSet<u32>) -> u64 {
    let numbers = |line: &str| line.split_whitespace().map_while(|n| u64::from_str_radix(n, 16).ok()).collect();
    let rows = text.lines().map(numbers).enumerate();
    // Kernels before 5.10 have a line for each core that is on, in order.
    let core = |(at, row): &(usize, Vec<u64>)| row.get(CORE).map_or(*at as u64, |core| *core);
    let wanted = |row: &(usize, Vec<u64>)| u32::try_from(core(row)).is_ok_and(|core| cpus.contains(&core));
    rows.filter(wanted).filter_map(|(_, row)| row.get(DROPPED).copied()).sum()
}

/// As the kernel reads it: hexadecimal words with commas, the highest first.
fn mask(cpus: &[u32]) -> String {
    let last = cpus.iter().max().map_or(0, |cpu| cpu / WORD);
    let word = |at| cpus.iter().filter(|&&cpu| cpu / WORD == at).fold(0u32, |word, cpu| word | 1 << (cpu % WORD));
    (0..=last).rev().map(|at| format!("{:08x}", word(at))).collect::<Vec<String>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_words_from_the_highest() {
        assert_eq!(mask(&[0]), "00000001");
        assert_eq!(mask(&[1, 3]), "0000000a");
        assert_eq!(mask(&[2, 31, 64]), "00000001,00000000,80000004");
        assert_eq!(mask(&[]), "00000000");
    }

    #[test]
    fn dropped_frames_are_those_of_the_cores() {
        let row = |dropped: &str, core: &str| {
            format!("00547ce4 {dropped} {}{core} 00000000 00000000\n", "00000000 ".repeat(10))
        };
        let text = row("00000001", "00000000") + &row("00000010", "00000002") + &row("00000100", "00000003");
        assert_eq!(dropped_in(&text, &BTreeSet::from([0, 2])), 0x11);
        assert_eq!(dropped_in(&text, &BTreeSet::from([1])), 0, "it is off");
        // Of a kernel that does not say which core a line is of.
        let old = "00547ce4 00000001 00000000\n00547ce4 00000010 00000000\n";
        assert_eq!(dropped_in(old, &BTreeSet::from([1])), 0x10);
        assert_eq!(dropped_in("", &BTreeSet::from([0])), 0);
    }
}
