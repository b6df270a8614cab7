//! Load averages of a node, in its own minutes: how many threads run or wait for a core or a disk, looked at every five
//! virtual seconds as the kernel does.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use diecast_core_vtime::{RealNs, VirtNs};
use diecast_host_sys::{Tid, process, time};

use crate::frame::NodeFrame;

const EVERY_V_NS: u64 = 5_000_000_000;
const ONE: u64 = 2048;
/// What is left of an average over 1, 5 and 15 minutes after five seconds, in 1/2048.
const KEPT: [u64; 3] = [1884, 2014, 2037];
/// Looks that are made up for at most: three virtual hours.
const MISSED_MAX: u32 = 2160;

/// Looks at one node.
#[derive(Debug, Default)]
pub(crate) struct LoadWatch {
    next: Option<VirtNs>,
}

impl LoadWatch {
    /// Looks when it is time to. What was missed is taken to have been as it is now.
    pub fn tick(&mut self, node: &NodeFrame) {
        let now = node.page().v_now(|| RealNs(time::monotonic_ns()));
        let next = self.next.get_or_insert(VirtNs(now.0.saturating_add(EVERY_V_NS)));
        if now < *next {
            return;
        }
        // A node whose processes can't be listed is ending.
        let active = active_threads(node, now).unwrap_or(0);
        for _ in 0..MISSED_MAX {
            for (load, kept) in node.page().loads.iter().zip(KEPT) {
                load.store(averaged(load.load(Relaxed), kept, active), Relaxed);
            }
            *next = VirtNs(next.0.saturating_add(EVERY_V_NS));
            if now < *next {
                return;
            }
        }
        self.next = None;
    }
}

/// One step, rounded as the kernel does: up while the load rises.
fn averaged(load: u64, kept: u64, active: u64) -> u64 {
    let active = active * ONE;
    let sum = load.min(ONE << 20) * kept + active * (ONE - kept);
    (if active >= load { sum + ONE - 1 } else { sum }) / ONE
}

/// Threads that run, wait for a disk, or sleep only because the meter has them pay for what they ran.
fn active_threads(node: &NodeFrame, now: VirtNs) -> io::Result<u64> {
    let init = node.init_pid.load(Relaxed);
    let mut active = 0;
    for pid in (node.members)()?.into_iter().filter(|pid| *pid as u64 != init) {
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            let runs = matches!(state, Some('R' | 'D')) || node.cpu.metered && pays(node, &task, now);
            active += u64::from(runs);
        }
    }
    Ok(active)
}

/// Whether the work that a thread was charged for is not over yet.
fn pays(node: &NodeFrame, task: &std::fs::DirEntry, now: VirtNs) -> bool {
    let number = task.file_name().to_str().and_then(|tid| tid.parse().ok()).map(Tid).and_then(process::number_inside);
    number.and_then(|tid| node.page().slot(tid)).is_some_and(|slot| slot.finish_v_ns.load(Relaxed) > now.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_of_one_thread_is_almost_two_thirds() {
        let after = |looks: usize, kept| (0..looks).fold(0, |load, _| averaged(load, kept, 1)) as f64 / ONE as f64;
        assert!((after(12, KEPT[0]) - 0.632).abs() < 0.01);
        assert!((after(60, KEPT[1]) - 0.632).abs() < 0.02);
        assert!((after(180, KEPT[2]) - 0.632).abs() < 0.03);
        assert_eq!((0..2000).fold(ONE, |load, _| averaged(load, KEPT[0], 0)), 0);
    }
}
