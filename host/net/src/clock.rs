//! The emulator's view of time.

use std::sync::{PoisonError, RwLock};

use diecast_core_vtime::{FrameMap, NS_PER_S, RealNs, Segment, VirtNs};
use rustix::time::{ClockId, clock_getres, clock_gettime};

/// CLOCK_MONOTONIC.
pub fn monotonic_now() -> RealNs {
    let t = clock_gettime(ClockId::Monotonic);
    RealNs(t.tv_sec as u64 * NS_PER_S + t.tv_nsec as u64)
}

/// The kernel's tick rate: a coarse clock advances once per tick, and its resolution says so (4 ms is 250 Hz).
pub fn kernel_hz() -> u32 {
    let tick_ns = clock_getres(ClockId::MonotonicCoarse).tv_nsec as u64;
    // Rounded to nearest: 1/300 s is 3,333,333 ns. A tick is between 1 and 10 ms, so this fits.
    ((NS_PER_S + tick_ns / 2) / tick_ns.max(1)) as u32
}

/// A frame's map from real to virtual time and back. It may change while the emulator runs: whoever changes it
/// calls [`crate::Emulator::kick`] afterwards.
pub trait FrameClock: Send + Sync {
    /// Virtual time at a real instant, past ones included, rounded down.
    fn v_of(&self, r: RealNs) -> VirtNs;
    /// The smallest real instant whose virtual time is at least `v`; [`RealNs::NEVER`] while paused.
    fn r_of(&self, v: VirtNs) -> RealNs;
}

impl FrameClock for Segment {
    fn v_of(&self, r: RealNs) -> VirtNs {
        Segment::v_of(self, r)
    }
    fn r_of(&self, v: VirtNs) -> RealNs {
        Segment::r_of(self, v)
    }
}

impl FrameClock for FrameMap {
    fn v_of(&self, r: RealNs) -> VirtNs {
        FrameMap::v_of(self, r)
    }
    fn r_of(&self, v: VirtNs) -> RealNs {
        FrameMap::r_of(self, v)
    }
}

/// A map that is replaced now and then. Readers share the lock, so they wait only while it is being replaced.
#[derive(Debug)]
pub struct SharedFrame(RwLock<FrameMap>);

impl SharedFrame {
    /// Starts with `map`.
    pub fn new(map: FrameMap) -> SharedFrame {
        SharedFrame(RwLock::new(map))
    }

    /// Changes the map, for example by [`FrameMap::pause`].
    pub fn update<T>(&self, change: impl FnOnce(&mut FrameMap) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl FrameClock for SharedFrame {
    fn v_of(&self, r: RealNs) -> VirtNs {
        self.0.read().unwrap_or_else(PoisonError::into_inner).v_of(r)
    }
    fn r_of(&self, v: VirtNs) -> RealNs {
        self.0.read().unwrap_or_else(PoisonError::into_inner).r_of(v)
    }
}
