//! The emulator from outside, without nodes' programs: what it carries, how exactly, how late, and what idle costs.
//!
//! `benches/net.py` prints these beside what programs in nodes see. Frames are injected at the NIC, so that no sender's
//! protocol stack is the limit, and counted at the receiving NIC.

mod figure;
mod inject;
mod link;
mod measure;

pub use figure::Figure;
pub use measure::{carried, delay, idle, rate, shaper, shaper_speed, star, throughput, throughput_with_offload};

/// Real time of one window, and how many there are: a benchmark's, or a test's.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Seconds of one window.
    pub window_s: f64,
    /// Blocks that alternate.
    pub blocks: usize,
    /// NICs of the idle network.
    pub nics: usize,
    /// Nodes of the star in which all pairs talk.
    pub star: usize,
}

impl Size {
    /// What the bars are judged with.
    pub const FULL: Size = Size { window_s: 1.5, blocks: 7, nics: 1000, star: 200 };
    /// Long enough to see that everything works.
    pub const SMALL: Size = Size { window_s: 0.3, blocks: 2, nics: 50, star: 20 };
}
