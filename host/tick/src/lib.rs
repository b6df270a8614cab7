//! Hits of the meter from a clock of each core: loads the programs of `freestanding/bpf-tick`.
//!
//! One [`CoreTicks`] per lab or frame. When the process dies in any way, the kernel removes everything.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use diecast_host_bpf::{BpfError, Programs, Source};
use diecast_host_sys::{Tid, perf, process};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};

/// Programs at context switches, at new threads, at their ends and at exec.
const TRACED: [&str; 4] = ["switched", "begun", "ended", "executed"];
const TICK: &str = "tick";
const METERED: &str = "metered";
const WORKS: &str = "works";
/// Ticks are so many grains apart, in thousandths. A slice of CPU time begins at any instant between two ticks, so that two
/// grains would hit a busy thread after one in the mean. No round number: a program that wakes up periodically is met at
/// all phases of its period, since 2 / 1.854 is far from all fractions of small numbers (3/2 of the golden section).
const PERIOD_MILLIGRAINS: u64 = 1_854;
/// `struct meter` of a thread without a hit so far, as it lies in memory: no instant of its last, nothing
/// else.
const NEVER: [u64; 10] = [u64::MAX, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Why hits can't come from a clock of each core.
#[derive(Debug, thiserror::Error)]
pub enum TickError {
    /// The kernel or libbpf refused.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// A core's clock can't be opened.
    #[error("can't open the clock of core {core}: {error}")]
    Clock {
        /// The core.
        core: usize,
        /// Why.
        error: io::Error,
    },
}

/// The loaded programs and the clocks. Dropping it ends them.
#[derive(Debug)]
pub struct CoreTicks {
    metered: MapHandle,
    programs: Programs,
}

/// When threads are hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cadence {
    /// Real time between two ticks of a core, ns.
    pub period_ns: u64,
    /// A thread that has used so much since its last hit, ns of CPU time, is hit as it gets a core.
    pub overdue_ns: u64,
}

impl Cadence {
    /// For programs whose hits are all that makes others wait for what they have used. A thread that is always busy is hit
    /// after a grain of its CPU time in the mean; one that gives the core up between ticks after a grain and what it uses
    /// until it does. Rounded down; grains of up to 10 s don't overflow.
    pub fn of_grain(grain_ns: u64) -> Cadence {
        Cadence { period_ns: grain_ns * PERIOD_MILLIGRAINS / 1_000, overdue_ns: grain_ns }
    }

    /// For programs whose packets are held until what their senders have used is paid for: hits only settle it. One that
    /// gives the core up between ticks is hit when a tick is overdue, which makes fewer hits of requests of a grain.
    pub fn told_by_packets(grain_ns: u64) -> Cadence {
        let Cadence { period_ns, .. } = Cadence::of_grain(grain_ns);
        Cadence { period_ns, overdue_ns: period_ns }
    }
}

/// Threads that the host can have (threads-max).
fn threads_max() -> u32 {
    const DEFAULT: u32 = 4_194_304;
    let text = std::fs::read_to_string("/proc/sys/kernel/threads-max");
    text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(DEFAULT)
}

impl CoreTicks {
    /// Loads the programs and starts the clocks of these cores.
    ///
    /// Needs Linux 6.18, BTF, and root or CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN. `shared` is a map for what is known of each
    /// metered thread, where other programs read it too.
    pub fn start(cores: &[usize], cadence: Cadence, shared: Option<BorrowedFd<'_>>) -> Result<CoreTicks, TickError> {
        let Cadence { period_ns, overdue_ns } = cadence;
        let mut programs = Programs::load(Source {
            object: diecast_host_bpf::object!("tick.bpf.o"),
            purpose: "hits from each core's clock",
            constants: [overdue_ns, period_ns].map(u64::to_ne_bytes).as_flattened(),
            without: &[],
            room: &[(WORKS, threads_max())],
            shared: &shared.map(|map| (METERED, map)).into_iter().collect::<Vec<_>>(),
        })?;
        programs.attach_traced(&TRACED)?;
        let mut ticks = CoreTicks { metered: programs.map(METERED)?, programs };
        for core in cores {
            let link = ticks.clock(*core, period_ns)?;
            ticks.programs.keep(link);
        }
        Ok(ticks)
    }

    fn clock(&self, core: usize, period_ns: u64) -> Result<Link, TickError> {
        let clock = perf::core_clock(core as u32, period_ns).map_err(|error| TickError::Clock { core, error })?;
        Ok(self.programs.on_overflow(TICK, clock)?)
    }

    /// From now on a process, which has one thread, is metered, and what it forks.
    pub fn begin(&self, process: Tid) -> io::Result<()> {
        self.meter(&process::pidfd(process)?)
    }

    fn meter(&self, task: &OwnedFd) -> io::Result<()> {
        self.metered
            .update(&task.as_raw_fd().to_ne_bytes(), NEVER.map(u64::to_ne_bytes).as_flattened(), MapFlags::ANY)
            .map_err(io::Error::other)
    }

    /// The calling thread is metered, by the clocks that there are, until the result is dropped.
    pub fn meter_here(&self) -> io::Result<Ticking> {
        self.ticking(None)
    }

    /// The calling thread, which is on this core and stays there, is metered by another clock of this period too until the
    /// result is dropped.
    pub fn tick_here(&self, core: usize, period_ns: u64) -> io::Result<Ticking> {
        self.ticking(Some(self.clock(core, period_ns).map_err(io::Error::other)?))
    }

    fn ticking(&self, clock: Option<Link>) -> io::Result<Ticking> {
        let thread = process::pidfd_of_this_thread()?;
        let metered = MapHandle::try_from(&self.metered).map_err(io::Error::other)?;
        self.meter(&thread)?;
        Ok(Ticking { metered, thread, _clock: clock })
    }
}

/// A thread that is metered for as long as this lives.
#[derive(Debug)]
pub struct Ticking {
    metered: MapHandle,
    thread: OwnedFd,
    _clock: Option<Link>,
}

impl Drop for Ticking {
    fn drop(&mut self) {
        let _ = self.metered.delete(&self.thread.as_raw_fd().to_ne_bytes());
    }
}
