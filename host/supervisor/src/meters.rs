//! What the meter's hits come from on this host.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::sync::Arc;

use diecast_host_sys::{Tid, perf, time};
use diecast_host_tick::{Cadence, CoreTicks, TickError};

/// What the user wants them to come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HitsFrom {
    /// Clocks of cores where the kernel can, else events of threads.
    #[default]
    Auto,
    /// A clock of each core.
    Cores,
    /// An event of each thread.
    Threads,
}

impl HitsFrom {
    const NAMES: [(&str, HitsFrom); 3] =
        [("auto", HitsFrom::Auto), ("cores", HitsFrom::Cores), ("threads", HitsFrom::Threads)];
}

impl fmt::Display for HitsFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = HitsFrom::NAMES.iter().find(|(_, from)| from == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for HitsFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<HitsFrom, String> {
        let known = HitsFrom::NAMES.iter().find(|(name, _)| *name == text);
        known
            .map(|(_, from)| *from)
            .ok_or_else(|| format!("'{text}' is no source of hits, expected auto, cores or threads"))
    }
}

/// What the kernel lets this process count of a thread by perf events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PerfEvents {
    /// Nothing.
    None,
    /// Time in user mode.
    UserOnly,
    /// All CPU time.
    KernelToo,
}

impl PerfEvents {
    fn find() -> PerfEvents {
        let opens = |kernel| perf::Meter::open(Tid(0), 1_000_000, 0, kernel).is_ok();
        if opens(true) {
            PerfEvents::KernelToo
        } else if opens(false) {
            PerfEvents::UserOnly
        } else {
            PerfEvents::None
        }
    }
}

/// What this process meters by.
#[derive(Clone, Debug)]
pub enum Meters {
    /// Clocks of cores, which tick while this lives.
    Cores(Arc<CoreTicks>),
    /// An event of each thread.
    Threads(PerfEvents),
}

impl Meters {
    /// Starts the clocks where that is asked for; with why there are none where events of threads had to do. An error only
    /// where clocks were asked for and can't be. `shared`: see [`CoreTicks::start`].
    pub fn start(
        from: HitsFrom,
        cadence: Cadence,
        shared: Option<BorrowedFd<'_>>,
    ) -> Result<(Meters, Option<TickError>), TickError> {
        match from {
            HitsFrom::Threads => Ok((Meters::of_threads(), None)),
            HitsFrom::Auto => Ok(Meters::best(cadence, shared)),
            HitsFrom::Cores => Ok((Meters::of_cores(cadence, shared)?, None)),
        }
    }

    /// The first of the two that works here, and why it is the second.
    pub fn best(cadence: Cadence, shared: Option<BorrowedFd<'_>>) -> (Meters, Option<TickError>) {
        match Meters::of_cores(cadence, shared) {
            Ok(meters) => (meters, None),
            Err(why) => (Meters::of_threads(), Some(why)),
        }
    }

    fn of_cores(cadence: Cadence, shared: Option<BorrowedFd<'_>>) -> Result<Meters, TickError> {
        // A program may have itself run where this process does not.
        CoreTicks::start(&time::online_cpus(), cadence, shared).map(|ticks| Meters::Cores(Arc::new(ticks)))
    }

    /// Without clocks of cores.
    pub fn of_threads() -> Meters {
        Meters::Threads(PerfEvents::find())
    }

    /// The clocks of cores, where hits come from them.
    pub fn ticks(&self) -> Option<Arc<CoreTicks>> {
        if let Meters::Cores(ticks) = self { Some(ticks.clone()) } else { None }
    }

    /// Whether there is a meter at all.
    pub fn any(&self) -> bool {
        !matches!(self, Meters::Threads(PerfEvents::None))
    }

    /// Whether time in kernel mode counts.
    pub fn count_kernel(&self) -> bool {
        matches!(self, Meters::Cores(_) | Meters::Threads(PerfEvents::KernelToo))
    }

    /// Cores or threads; none where there is no meter.
    pub fn hits_from(&self) -> Option<HitsFrom> {
        match self {
            Meters::Cores(_) => Some(HitsFrom::Cores),
            Meters::Threads(PerfEvents::None) => None,
            Meters::Threads(_) => Some(HitsFrom::Threads),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_have_names() {
        for (name, from) in HitsFrom::NAMES {
            assert_eq!((name.parse(), from.to_string().as_str()), (Ok(from), name));
        }
        assert!("perf".parse::<HitsFrom>().unwrap_err().contains("expected auto, cores or threads"));
    }
}
