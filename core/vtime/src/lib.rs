//! Real and virtual time, and the one map between them.
//!
//! * [`RealNs`] is an instant on the host's CLOCK_MONOTONIC, in nanoseconds.
//! * [`VirtNs`] is an instant on the frame's virtual CLOCK_MONOTONIC, in nanoseconds.
//!
//! The two never mix: there is no conversion except through a [`Segment`] or a [`FrameMap`].
//! Rounding: real to virtual rounds down ([`Segment::v_of`]), virtual deadline to real instant is the
//! smallest `r` with `v_of(r) >= v` ([`Segment::r_of`]), so a virtual deadline never fires early.
//! No floating point and no 128-bit division on any path that the blob uses.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;

pub mod file_times;
mod map;
mod tdf;

#[cfg(feature = "alloc")]
pub use map::{FrameMap, SegmentError};
pub use map::{Rate, Segment};
pub use tdf::{Tdf, TdfError};

/// One second, in nanoseconds.
pub const NS_PER_S: u64 = 1_000_000_000;

macro_rules! ns_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[repr(transparent)]
        pub struct $name(pub u64);
        impl $name {
            /// The value in nanoseconds.
            pub const fn ns(self) -> u64 { self.0 }
            /// The value in seconds, for people and plots only.
            pub fn as_secs_f64(self) -> f64 { self.0 as f64 / 1e9 }
        }
    };
}

ns_type!(/// Instant on the host's CLOCK_MONOTONIC, nanoseconds.
    RealNs);
ns_type!(/// Instant on the frame's virtual CLOCK_MONOTONIC, nanoseconds.
    VirtNs);
ns_type!(/// Length of real time, nanoseconds.
    RealSpan);
ns_type!(/// Length of virtual time, nanoseconds.
    VirtSpan);

impl RealNs {
    /// An instant that never comes.
    pub const NEVER: RealNs = RealNs(u64::MAX);
    /// This instant plus a span, saturating at [`RealNs::NEVER`].
    pub const fn plus(self, span: RealSpan) -> RealNs {
        RealNs(self.0.saturating_add(span.0))
    }
    /// Time since `earlier`; zero when `earlier` is later.
    pub const fn since(self, earlier: RealNs) -> RealSpan {
        RealSpan(self.0.saturating_sub(earlier.0))
    }
}

impl VirtNs {
    /// An instant that never comes.
    pub const NEVER: VirtNs = VirtNs(u64::MAX);
    /// This instant plus a span, saturating at [`VirtNs::NEVER`].
    pub const fn plus(self, span: VirtSpan) -> VirtNs {
        VirtNs(self.0.saturating_add(span.0))
    }
    /// Time since `earlier`; zero when `earlier` is later.
    pub const fn since(self, earlier: VirtNs) -> VirtSpan {
        VirtSpan(self.0.saturating_sub(earlier.0))
    }
}
