//! Copies of frames for whoever looks at a NIC or a pipe while the lab runs.
//!
//! The emulator's thread never waits for a looker: a copy that finds the channel full is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use diecast_core_net::{NodeIx, PipeIx, Seen};
use diecast_core_vtime::VirtNs;

/// Frames that may wait for the looker.
const WAITING_FRAMES_MAX: usize = 16_384;

/// A place where frames are seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CapturePoint {
    /// A node's NIC: what it sends, when its emulated CPU has sent it, and what it receives, when it is due.
    Nic(NodeIx),
    /// A pipe: what it sends, when the transmission begins. What its queue drops is not seen, what is lost on the way is.
    Pipe(PipeIx),
}

/// Which way a frame goes, seen from a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Into the node.
    Received,
    /// Out of the node, or through a pipe.
    Sent,
}

/// A copy of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedFrame {
    /// When.
    pub at: VirtNs,
    /// Where: a position in the list of points that the capture was started with.
    pub point: usize,
    /// Which way.
    pub direction: Direction,
    /// Its bytes.
    pub frame: Vec<u8>,
}

/// A running capture; dropping it ends it.
#[derive(Debug)]
pub struct Capture {
    /// What was seen, in the order in which the emulator saw it: times of different points may step back a little.
    pub frames: Receiver<CapturedFrame>,
    dropped: Arc<AtomicU64>,
}

impl Capture {
    /// Frames that were seen and not kept, because the channel was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The emulator's end of a capture.
#[derive(Debug)]
pub(crate) struct Tap {
    points: Vec<CapturePoint>,
    frames: SyncSender<CapturedFrame>,
    dropped: Arc<AtomicU64>,
    gone: bool,
}

/// Both ends.
pub(crate) fn capture(points: Vec<CapturePoint>) -> (Tap, Capture) {
    let (sender, frames) = sync_channel(WAITING_FRAMES_MAX);
    let dropped = Arc::new(AtomicU64::new(0));
    let tap = Tap { points, frames: sender, dropped: dropped.clone(), gone: false };
    (tap, Capture { frames, dropped })
}

/// All captures of an emulator.
#[derive(Debug, Default)]
pub(crate) struct Taps(Vec<Tap>);

impl Taps {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a capture; the pipes that must be watched for it.
    pub(crate) fn add(&mut self, tap: Tap) -> Vec<PipeIx> {
        let pipes = pipes(&tap.points);
        self.0.push(tap);
        pipes
    }

    /// A frame at a node's NIC.
    pub(crate) fn at_nic(&mut self, node: usize, at: VirtNs, direction: Direction, frame: &[u8]) {
        self.at(CapturePoint::Nic(NodeIx(node as u32)), at, direction, frame);
    }

    /// What pipes have sent.
    pub(crate) fn at_pipes(&mut self, seen: Vec<Seen>) {
        for s in seen {
            self.at(CapturePoint::Pipe(s.pipe), s.at, Direction::Sent, &s.frame);
        }
    }

    fn at(&mut self, here: CapturePoint, at: VirtNs, direction: Direction, frame: &[u8]) {
        for tap in &mut self.0 {
            let Some(point) = tap.points.iter().position(|p| *p == here) else { continue };
            match tap.frames.try_send(CapturedFrame { at, point, direction, frame: frame.to_vec() }) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => drop(tap.dropped.fetch_add(1, Ordering::Relaxed)),
                Err(TrySendError::Disconnected(_)) => tap.gone = true,
            }
        }
    }

    /// Forgets captures that nobody looks at any more; the pipes that need not be watched now.
    pub(crate) fn prune(&mut self) -> Vec<PipeIx> {
        if !self.0.iter().any(|tap| tap.gone) {
            return Vec::new();
        }
        let (gone, kept): (Vec<Tap>, Vec<Tap>) = std::mem::take(&mut self.0).into_iter().partition(|tap| tap.gone);
        self.0 = kept;
        let wanted: Vec<PipeIx> = self.0.iter().flat_map(|tap| pipes(&tap.points)).collect();
        gone.iter().flat_map(|tap| pipes(&tap.points)).filter(|pipe| !wanted.contains(pipe)).collect()
    }
}

fn pipes(points: &[CapturePoint]) -> Vec<PipeIx> {
    let pipe = |point: &CapturePoint| match point {
        CapturePoint::Pipe(pipe) => Some(*pipe),
        CapturePoint::Nic(_) => None,
    };
    points.iter().filter_map(pipe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_channel_drops_and_counts_and_a_gone_looker_is_forgotten() {
        let mut taps = Taps::default();
        let (tap, looker) = capture(vec![CapturePoint::Nic(NodeIx(1)), CapturePoint::Pipe(PipeIx(4))]);
        let (other, other_looker) = capture(vec![CapturePoint::Pipe(PipeIx(4)), CapturePoint::Pipe(PipeIx(5))]);
        assert_eq!(taps.add(tap), [PipeIx(4)]);
        assert_eq!(taps.add(other), [PipeIx(4), PipeIx(5)]);
        for i in 0..WAITING_FRAMES_MAX as u64 + 3 {
            taps.at_nic(1, VirtNs(i), Direction::Received, b"x");
        }
        taps.at_nic(0, VirtNs(9), Direction::Received, b"of nobody's interest");
        assert_eq!(looker.dropped(), 3);
        assert_eq!(looker.frames.try_iter().count(), WAITING_FRAMES_MAX);
        assert_eq!(other_looker.frames.try_iter().count(), 0);
        drop(other_looker);
        assert!(taps.prune().is_empty(), "nobody has noticed yet");
        taps.at_pipes(vec![Seen { pipe: PipeIx(4), at: VirtNs(1), frame: vec![7] }]);
        assert_eq!(taps.prune(), [PipeIx(5)], "pipe 4 has a looker left");
        let seen: Vec<CapturedFrame> = looker.frames.try_iter().collect();
        let expected = CapturedFrame { at: VirtNs(1), point: 1, direction: Direction::Sent, frame: vec![7] };
        assert_eq!(seen, [expected]);
    }
}
