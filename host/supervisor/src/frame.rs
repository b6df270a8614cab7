//! A lab's frame, and a node's share of it: the memory that its processes map.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use diecast_core_abi::{ABI_VERSION, NODE_MAGIC, NODE_PAGE_LEN, NodePage, SWITCHES_UNKNOWN, VCPUS_MAX};
use diecast_core_clock::{Discipline, STA_NANO, STA_UNSYNC};
use diecast_core_cpu::Receiver;
use diecast_core_procfs as procfs;
use diecast_core_vtime::{FrameMap, Rate, RealNs, Tdf, VirtNs};
use diecast_host_sys::memory::{self, Shared};
use diecast_host_sys::time;
use diecast_host_tick::{Cadence, CoreTicks};

use crate::exec::OURS;
use crate::image;
use crate::probe::Hits;

/// Million parts of a host core: the unit of `speed`.
pub const SPEED_ONE_PPM: u32 = 1_000_000;

/// The kernel's default timer slack, ns: part of the machine, so stretched by the TDF.
pub(crate) const MACHINE_SLACK_NS: u64 = 50_000;
/// Timer slack of threads in a frame, ns: the machine's own is added by the blob.
pub const FRAME_SLACK_NS: u64 = 1;

/// Lists the processes of a node, as host process ids.
pub type Members = Box<dyn Fn() -> io::Result<Vec<i32>> + Send + Sync>;
/// Reads the CPU time that a node has used, real ns.
pub type Usage = Box<dyn Fn() -> io::Result<u64> + Send + Sync>;

/// The one map of a lab, shared by its nodes, the emulator and the experiment.
#[derive(Debug)]
pub struct LabFrame {
    pub(crate) map: Mutex<FrameMap>,
    offsets: Offsets,
}

/// Virtual clock minus virtual MONOTONIC, ns.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    realtime: i64,
    boottime: i64,
    raw: i64,
}

impl LabFrame {
    /// A frame that starts now, its clocks equal to the host's.
    pub fn start(tdf: Tdf) -> Arc<LabFrame> {
        let ahead = |id: i32| {
            let before = time::monotonic_ns();
            let there = time::clock_ns(id);
            let after = time::monotonic_ns();
            there as i64 - (before + (after - before) / 2) as i64
        };
        let offsets = Offsets {
            realtime: ahead(libc::CLOCK_REALTIME),
            boottime: ahead(libc::CLOCK_BOOTTIME),
            raw: ahead(libc::CLOCK_MONOTONIC_RAW),
        };
        let map = Mutex::new(FrameMap::start(RealNs(time::monotonic_ns()), tdf));
        Arc::new(LabFrame { map, offsets })
    }

    fn with<R>(&self, f: impl FnOnce(&FrameMap) -> R) -> R {
        f(&self.map.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// A copy of the map as it is now.
    pub fn map(&self) -> FrameMap {
        self.with(Clone::clone)
    }

    /// Virtual time at a real instant.
    pub fn v_of(&self, r: RealNs) -> VirtNs {
        self.with(|m| m.v_of(r))
    }

    /// Smallest real instant with at least this virtual time.
    pub fn r_of(&self, v: VirtNs) -> RealNs {
        self.with(|m| m.r_of(v))
    }

    /// Virtual MONOTONIC now.
    pub fn now(&self) -> VirtNs {
        self.v_of(RealNs(time::monotonic_ns()))
    }

    /// Virtual REALTIME minus virtual MONOTONIC, ns.
    pub fn realtime_offset_ns(&self) -> i64 {
        self.offsets.realtime
    }
}

/// A machine whose clock is as right as the host's: nobody has steered it yet.
fn as_kept_as_the_host() -> Discipline {
    let host = time::kept();
    let mut d = Discipline::start();
    d.status = host.status & (STA_UNSYNC | STA_NANO);
    d.maxerror_us = host.maxerror_us;
    d.esterror_us = host.esterror_us;
    d.since_s = (time::clock_ns(libc::CLOCK_REALTIME) / 1_000_000_000) as i64;
    d.tai_s = host.tai_s;
    d
}

/// Ticks of this host's TSC per ns of CLOCK_MONOTONIC_RAW, measured once, to a few millionths.
fn tsc_rate() -> io::Result<Rate> {
    static RATE: OnceLock<Rate> = OnceLock::new();
    const MEASURE: Duration = Duration::from_millis(50);
    if let Some(rate) = RATE.get() {
        return Ok(*rate);
    }
    let (ticks, raw_ns) = time::tsc();
    std::thread::sleep(MEASURE);
    let (later, later_ns) = time::tsc();
    let (ticks, raw_ns) = (later.wrapping_sub(ticks), later_ns - raw_ns);
    match (u32::try_from(ticks), u32::try_from(raw_ns)) {
        (Ok(ticks), Ok(raw_ns)) if ticks > 0 => Ok(*RATE.get_or_init(|| Rate::ratio_up(ticks, raw_ns))),
        _ => Err(io::Error::other("this host's time stamp counter does not count as a clock does")),
    }
}

/// How a node's CPU is metered.
#[derive(Clone, Copy, Debug)]
pub struct CpuConfig {
    /// Virtual CPUs.
    pub cores: u32,
    /// Speed of each, in millionths of a host core.
    pub speed_ppm: u32,
    /// Real CPU time between two hits, ns.
    pub grain_ns: u64,
    /// The same between two sleeps of a thread whose process contends for locks, since each may be one with a lock held. Packets
    /// leave too early by it, where they don't carry what their senders owe.
    pub contended_grain_ns: u64,
    /// False: no meter, only clocks.
    pub metered: bool,
    /// Count and deliver in kernel mode (needs privilege; see `doctor`).
    pub count_kernel: bool,
    /// rdtsc is trapped and tells virtual time.
    pub trap_tsc: bool,
    /// Trapped calls from one place in a program after which it jumps to the blob instead of being trapped; 0 = never.
    pub site_calls: u32,
}

impl CpuConfig {
    /// One core of the host's speed with clocks only, and the grain of labs: what a trial changes a part of.
    pub const PLAIN: CpuConfig = CpuConfig {
        cores: 1,
        speed_ppm: SPEED_ONE_PPM,
        grain_ns: 500_000,
        contended_grain_ns: 500_000,
        metered: false,
        count_kernel: false,
        trap_tsc: false,
        site_calls: 0,
    };
}

/// A node in a frame.
pub struct NodeFrame {
    pub name: String,
    pub cpu: CpuConfig,
    pub(crate) memfd: OwnedFd,
    page: Shared<NodePage>,
    pub(crate) members: Members,
    pub(crate) usage: Option<Usage>,
    /// What the kernel does for the node in others' threads.
    pub receiver: Receiver,
    /// The clocks of cores by which its threads are hit; without them each thread has an event.
    ticks: OnceLock<Arc<CoreTicks>>,
    /// Process that is no program of the node (its init), 0 = none.
    pub init_pid: AtomicU64,
    /// How far its REALTIME was ahead of its MONOTONIC at the last step that its timers have followed, ns.
    pub(crate) followed_ahead_ns: AtomicI64,
    /// How many steps were told of that nobody has followed to the end.
    pub(crate) steps_told: AtomicU64,
    /// Held by whoever has its timers follow a step, a pause or another rate.
    pub(crate) following: Mutex<()>,
}

impl std::fmt::Debug for NodeFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeFrame").field("name", &self.name).field("cpu", &self.cpu).finish_non_exhaustive()
    }
}

impl NodeFrame {
    /// Makes the node's memory: the blob's image, then the page.
    pub fn create(
        lab: &LabFrame,
        name: &str,
        cpu: CpuConfig,
        members: Members,
        usage: Option<Usage>,
    ) -> io::Result<Arc<NodeFrame>> {
        let len = image::mapped_len() + NODE_PAGE_LEN;
        let memfd = memory::memfd(c"diecast-node", len)?;
        {
            use std::os::unix::fs::FileExt;
            let file = std::fs::File::from(memfd.try_clone()?);
            file.write_all_at(image::IMAGE, 0)?;
        }
        let page: Shared<NodePage> = Shared::map(&memfd, image::mapped_len(), NODE_PAGE_LEN)?;
        let p = &*page;
        p.version.store(ABI_VERSION, Ordering::Relaxed);
        p.size.store(NODE_PAGE_LEN as u32, Ordering::Relaxed);
        p.clock.start(&as_kept_as_the_host());
        p.clock.real_ahead_ns.store(lab.offsets.realtime, Ordering::Relaxed);
        p.clock.host_ahead_ns.store(lab.offsets.realtime, Ordering::Relaxed);
        p.clock.boot_ahead_ns.store(lab.offsets.boottime, Ordering::Relaxed);
        p.clock.raw_ahead_ns.store(lab.offsets.raw, Ordering::Relaxed);
        let host = std::fs::read("/proc/stat").map_or((0, 0), |text| procfs::busy_ticks(&text));
        for (cell, ticks) in p.host_ticks.iter().zip([host.0, host.1]) {
            cell.store(ticks, Ordering::Relaxed);
        }
        p.metered.store(u32::from(cpu.metered), Ordering::Relaxed);
        p.site_calls.store(cpu.site_calls, Ordering::Relaxed);
        p.vcpus.store(cpu.cores.clamp(1, VCPUS_MAX as u32), Ordering::Relaxed);
        let slack = lab.map().current().inverse.mul_up(MACHINE_SLACK_NS);
        p.slack_ns.store(slack, Ordering::Relaxed);
        p.grain_ns.store(cpu.grain_ns, Ordering::Relaxed);
        p.contended_grain_ns.store(cpu.contended_grain_ns.max(cpu.grain_ns), Ordering::Relaxed);
        p.switch_part.store(SWITCHES_UNKNOWN, Ordering::Relaxed);
        let speed = Rate::ratio_up(cpu.speed_ppm, SPEED_ONE_PPM);
        let slowness = Rate::ratio_up(SPEED_ONE_PPM, cpu.speed_ppm);
        p.speed_int.store(speed.int, Ordering::Relaxed);
        p.speed_frac.store(speed.frac, Ordering::Relaxed);
        p.slowness_int.store(slowness.int, Ordering::Relaxed);
        p.slowness_frac.store(slowness.frac, Ordering::Relaxed);
        if cpu.trap_tsc {
            let rate = tsc_rate()?;
            p.tsc_rate_int.store(rate.int, Ordering::Relaxed);
            p.tsc_rate_frac.store(rate.frac, Ordering::Relaxed);
        }
        if !p.publish(lab.map().segments()) {
            return Err(io::Error::other("the lab has been re-timed too often for a new node"));
        }
        p.magic.store(NODE_MAGIC, Ordering::Release);
        Ok(Arc::new(NodeFrame {
            name: name.to_owned(),
            cpu,
            memfd,
            page,
            members,
            usage,
            receiver: Receiver::default(),
            ticks: OnceLock::new(),
            init_pid: AtomicU64::new(0),
            followed_ahead_ns: AtomicI64::new(lab.offsets.realtime),
            steps_told: AtomicU64::new(0),
            following: Mutex::new(()),
        }))
    }

    /// The page that the node's processes share. Everything in it is their claim.
    pub fn page(&self) -> &NodePage {
        &self.page
    }

    /// Signals that no thread of the node may block: SIGTRAP and SIGSYS, and SIGSEGV where it is what rdtsc raises.
    pub(crate) fn never_masked(&self) -> u64 {
        const SIGSEGV: u64 = 1 << 10;
        OURS | if self.cpu.trap_tsc { SIGSEGV } else { 0 }
    }

    /// Its threads are hit by clocks of cores: for a node that has none yet, before its first exec.
    pub fn hit_by(&self, ticks: Arc<CoreTicks>) {
        let _ = self.ticks.set(ticks);
    }

    /// The clocks by which its threads are hit; none where each has an event.
    pub fn ticks(&self) -> Option<&Arc<CoreTicks>> {
        self.ticks.get()
    }

    /// What lies between two hits of a thread that is always busy, real CPU ns, but for what waits for them.
    pub fn hits_apart_ns(&self) -> u64 {
        let grain_ns = self.cpu.grain_ns;
        self.ticks().map_or(grain_ns, |_| Cadence::of_grain(grain_ns).period_ns)
    }

    /// How the meter's hits come to a thread of this node that is always busy.
    pub fn hits(&self) -> Hits {
        let grain_ns = self.cpu.grain_ns;
        let slice_v_ns = Rate::ratio_up(SPEED_ONE_PPM, self.cpu.speed_ppm).mul_floor(grain_ns);
        let slice_ns = self.page.running().inverse.mul_floor(slice_v_ns);
        Hits { grain_ns, pause_ns: slice_ns.saturating_sub(grain_ns) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use diecast_core_abi::{compete, slot_hash};
    use diecast_core_cpu::{Sent, Then, charge_handing};

    use super::*;

    #[test]
    fn a_thread_that_execs_takes_its_slot_to_its_new_number() {
        let cpu = CpuConfig { metered: true, ..CpuConfig::PLAIN };
        let lab = LabFrame::start("10".parse().unwrap());
        let node = NodeFrame::create(&lab, "n", cpu, Box::new(|| Ok(vec![])), None).unwrap();
        let page = node.page();
        let slot = |tid: u32, charged: u64, shown: u64| {
            let at = slot_hash(tid);
            page.slots[at].tid.store(tid, Relaxed);
            page.slots[at].charged_ns.store(charged, Relaxed);
            page.slots[at].burst_ns.store(charged + 1, Relaxed);
            page.shown[at].thread_ns.store(shown, Relaxed);
            page.shown[at].process_ns.store(shown + 1, Relaxed);
        };
        let get = |a: &AtomicU64| a.load(Relaxed);
        let seen = |tid| {
            let (slot, shown) = (page.slot(tid)?, page.shown(tid)?);
            Some((get(&slot.charged_ns), get(&slot.burst_ns), get(&shown.thread_ns), get(&shown.process_ns)))
        };
        slot(7, 700, 70);
        slot(9, 900, 90);
        compete(&page.rivals, 7, 1024, 0, 1_000);
        page.renumber(9, 7);
        assert_eq!((seen(7), seen(9)), (Some((900, 901, 90, 71)), None));
        assert!(page.rivals.iter().all(|r| r.at(0).is_none()));
        // A first thread that was never hit; a thread that was not, in the place of one that was.
        page.renumber(7, 8);
        assert_eq!((seen(8).map(|s| s.0), seen(7)), (Some(900), None));
        page.renumber(12, 8);
        assert_eq!(seen(8), None);
        // Who comes to its place finds nothing of it, and one place however often it asks.
        let at = |tid| page.slots.iter().position(|s| s.tid.load(Relaxed) == tid);
        assert!(page.claim_slot(8).is_some() && page.claim_slot(8).is_some());
        assert_eq!((seen(8), page.slots.iter().filter(|s| s.tid.load(Relaxed) == 8).count()), (Some((0, 0, 0, 0)), 1));
        page.free_slot(at(8).unwrap());
        assert_eq!((seen(8), at(8)), (None, None));
    }

    /// Ten seconds of earlier bursts are others' to charge; 30 ms in one call of the system are work and no pause of the core.
    #[test]
    fn what_is_handed_on_is_charged_from_its_burst_and_the_next_begins_then() {
        const MS: u64 = 1_000_000;
        let cpu = CpuConfig { metered: true, ..CpuConfig::PLAIN };
        let lab = LabFrame::start("10".parse().unwrap());
        let node = NodeFrame::create(&lab, "n", cpu, Box::new(|| Ok(vec![])), None).unwrap();
        let page = node.page();
        // Clocks of cores hit its threads.
        page.hit_rest_ns.store(1, Relaxed);
        let woke = RealNs(time::monotonic_ns() + 100 * MS);
        let (burst_cpu_ns, at) = (10_000 * MS, woke.plus(diecast_core_vtime::RealSpan(30 * MS)));
        let by = Sent {
            tid: 7,
            at,
            cpu_ns: burst_cpu_ns + 30 * MS,
            burst_cpu_ns,
            woke,
            run_delay_ns: 0,
            gap_ns: 0,
            switches: 0,
            paused_ns: 0,
        };
        charge_handing(page, &by, Then::Wakes(8), at);
        let (first, second) = (page.slot(7).unwrap(), page.slot(8).unwrap());
        let ends = first.finish_v_ns.load(Relaxed);
        assert_eq!(page.counters.charged_ns.load(Relaxed), 30 * MS);
        assert_eq!(ends - page.segment().v_of(woke).0, 30 * MS);
        assert_eq!(first.last_cpu_ns.load(Relaxed), by.cpu_ns);
        assert_eq!((second.finish_v_ns.load(Relaxed), second.is_handed(), first.is_handed()), (ends, true, false));
        // It blocks with a millisecond more.
        charge_handing(page, &Sent { cpu_ns: by.cpu_ns + MS, ..by }, Then::Blocks, at);
        assert_eq!(page.counters.charged_ns.load(Relaxed), 31 * MS);
        assert_eq!(second.finish_v_ns.load(Relaxed), ends);
        // It has ended, and it was 3 ms less in all, as far as the kernel counted: nothing else is.
        let free = || page.entries().iter().map(|e| e.load(Relaxed)).max().unwrap();
        let (used, before) = (Sent { cpu_ns: by.cpu_ns - 2 * MS, ..by }, free());
        for (then, given_back_ns) in [(Then::Blocks, 0), (Then::Ends, 3 * MS), (Then::Ends, 3 * MS)] {
            charge_handing(page, &used, then, at);
            assert_eq!(page.counters.charged_ns.load(Relaxed), 31 * MS - given_back_ns);
            assert_eq!(first.charged_ns.load(Relaxed), 31 * MS - given_back_ns);
            assert_eq!(first.last_cpu_ns.load(Relaxed), by.cpu_ns + MS - given_back_ns);
            assert_eq!(before - free(), given_back_ns);
        }
        // The slot of a dead thread of the same number is not its own.
        charge_handing(page, &Sent { cpu_ns: MS, burst_cpu_ns: 0, ..by }, Then::Ends, at);
        assert_eq!(page.counters.charged_ns.load(Relaxed), 28 * MS);
    }
}
