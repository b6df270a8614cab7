//! The processes of a single frame, which has no cgroup that lists them and counts their CPU time: all descendants of this
//! one, which is their subreaper.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use diecast_core_procfs::parse_times;
use diecast_host_supervisor::{DeadSlots, LabFrame, Monitor, NodeFrame};
use diecast_host_sys::{Tid, time};

use crate::host_watch::Beside;

/// Real time between two looks, at least, and how many times as long as a look takes.
const REST: Duration = Duration::from_millis(20);
const REST_LOOKS: u32 = 30;
/// The last looks come after the command: the first may doubt what nobody seems to have charged, the second charges it.
const LAST_LOOKS: u32 = 2;
const LAST_REST: Duration = Duration::from_millis(5);
/// Real time after which slots of threads that have ended are looked for, whether the monitor closes a window or not: fork storms
/// need some thousands of those that there are meanwhile.
const SLOTS_EVERY: Duration = Duration::from_secs(1);

/// Goes through all descendants, parents before their children, whose ids `visit` is told.
fn visit(mut visit: impl FnMut(i32)) {
    let mut seen: Vec<i32> = Vec::new();
    let mut todo = vec![std::process::id() as i32];
    while let Some(pid) = todo.pop() {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for t in tasks.flatten() {
            let Ok(text) = std::fs::read_to_string(t.path().join("children")) else { continue };
            for child in text.split_whitespace().filter_map(|c| c.parse().ok()) {
                if !seen.contains(&child) {
                    seen.push(child);
                    visit(child);
                    todo.push(child);
                }
            }
        }
    }
}

/// Their ids.
pub(crate) fn descendants() -> io::Result<Vec<i32>> {
    let mut all = Vec::new();
    visit(|pid| all.push(pid));
    Ok(all)
}

/// CPU time that they have used, those included that have ended, real ns.
///
/// What a process has of children that it waited for, the kernel shows in ticks, rounded down: up to two ticks are missing for
/// each that lives. A process that ends meanwhile is missed, never counted twice: what its parent has of it is read before it.
/// Children of who ignores SIGCHLD go to nobody's account when they end.
pub(crate) fn used_ns() -> io::Result<u64> {
    let (user_ns, kernel_ns) = time::children_cpu_ns();
    let (mut sum_ns, tick_ns) = (user_ns + kernel_ns, time::tick_ns());
    visit(|pid| {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        let of_children = parse_times(&stat).map_or(0, |t| t.children_user + t.children_system);
        sum_ns += of_children * tick_ns + time::process_cpu_ns_of(Tid(pid));
    });
    Ok(sum_ns)
}

/// Charges what no meter catches of them: processes that end between two hits, what an exec and an end take. Ends with a last
/// look, when dropped.
pub(crate) fn watch(lab: Arc<LabFrame>, node: Arc<NodeFrame>) -> io::Result<Beside> {
    let mut monitor = Monitor::new(node.clone());
    // There is none of them yet.
    monitor.tick(&lab)?;
    Beside::spawn("watch", move |stop| {
        let (mut dead, mut slots_at) = (DeadSlots::default(), Instant::now());
        while !stop.load(Ordering::Acquire) {
            let began = Instant::now();
            // A process that is gone is no fault of the look.
            let _ = monitor.tick(&lab);
            if slots_at.elapsed() >= SLOTS_EVERY {
                let _ = dead.free_of(&node);
                slots_at = Instant::now();
            }
            std::thread::park_timeout(REST.max(began.elapsed() * REST_LOOKS));
        }
        for _ in 0..LAST_LOOKS {
            let _ = monitor.tick(&lab);
            std::thread::sleep(LAST_REST);
        }
    })
}
