//! Who hands frames to NICs: the emulator's thread, and where it has several, threads beside it.
//!
//! A write runs the receiver's protocol stack, which takes longer than a frame's way through the model. So with more than
//! one thread the first writes what is due alone, as ever, and leaves a backlog to the others while it goes on with the
//! model. Each NIC has one writer, and nothing is left to it or written past it out of turn: frames stay in order.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use diecast_core_net::{OFFLOAD_HEADER_BYTES, Run};
use diecast_core_vtime::{RealNs, RealSpan, VirtNs};
use hdrhistogram::Histogram;

use crate::clock::{FrameClock, monotonic_now};
use crate::egress::ReceiveLedger;
use crate::emulator::settle;
use crate::priority::Scheduling;
use crate::share::{Keeper, thread_cpu};
use crate::stats::lateness_histogram;

const THREAD: &str = "diecast-net-w";

/// What was handed over, and how late.
#[derive(Clone)]
pub(crate) struct Written {
    /// By NIC: real time that writes took.
    pub receive_work: Vec<RealSpan>,
    pub packets: u64,
    pub merged: u64,
    /// By NIC: frames that it did not take.
    pub errors: Vec<u64>,
    pub lateness_ns: Histogram<u64>,
    /// CPU time of the thread, of those beside the emulator's own.
    pub cpu: RealSpan,
    pub yields: u64,
    pub yielded: RealSpan,
}

impl Written {
    fn new(nics: usize) -> Written {
        Written {
            receive_work: vec![RealSpan(0); nics],
            packets: 0,
            merged: 0,
            errors: vec![0; nics],
            lateness_ns: lateness_histogram(),
            cpu: RealSpan(0),
            yields: 0,
            yielded: RealSpan(0),
        }
    }

    /// Counts what another one did too.
    pub fn add(&mut self, other: &Written) {
        for (a, b) in self.receive_work.iter_mut().zip(&other.receive_work) {
            a.0 += b.0;
        }
        self.packets += other.packets;
        self.merged += other.merged;
        for (a, b) in self.errors.iter_mut().zip(&other.errors) {
            *a += b;
        }
        self.cpu.0 += other.cpu.0;
        self.yields += other.yields;
        self.yielded.0 += other.yielded.0;
        // Both have the same bounds.
        let _ = self.lateness_ns.add(&other.lateness_ns);
    }
}

/// What is handed over at once.
pub(crate) struct Parcel {
    pub nic: usize,
    pub due: VirtNs,
    /// Frames that it stands for.
    pub frames: u64,
    /// They were merged, behind a header that says so.
    pub merged: bool,
    pub bytes: Vec<u8>,
}

/// Writes to NICs and counts.
#[derive(Clone)]
pub(crate) struct Hand {
    /// `None` when the device has gone.
    pub taps: Vec<Option<Arc<OwnedFd>>>,
    /// Whether each has a virtio header.
    pub offload: Arc<[bool]>,
    pub clock: Arc<dyn FrameClock>,
    /// Charges receivers for what the kernel does for them in the write.
    pub receivers: Option<Arc<dyn ReceiveLedger>>,
    /// Its thread has real-time priority.
    pub real_time: bool,
    /// Not now, since it has used up its share.
    pub beyond_share: bool,
    pub written: Written,
}

impl Hand {
    pub fn new(
        taps: Vec<OwnedFd>,
        offload: Arc<[bool]>,
        clock: Arc<dyn FrameClock>,
        receivers: Option<Arc<dyn ReceiveLedger>>,
    ) -> Hand {
        let written = Written::new(taps.len());
        Hand {
            taps: taps.into_iter().map(Arc::new).map(Some).collect(),
            offload,
            clock,
            receivers,
            real_time: false,
            beyond_share: false,
            written,
        }
    }

    /// Hands a frame to its NIC, where `now` is when; when that ended.
    pub fn frame(&mut self, nic: usize, due: VirtNs, frame: &[u8], now: RealNs) -> RealNs {
        self.note_lateness(due, 1, now);
        match self.offload[nic] {
            // Nothing is left to the receiver.
            true => self.write(nic, 1, false, &[IoSlice::new(&[0; OFFLOAD_HEADER_BYTES]), IoSlice::new(frame)]),
            false => self.write(nic, 1, false, &[IoSlice::new(frame)]),
        }
    }

    /// Hands frames to their NIC as one, each as late as the first.
    pub fn run(&mut self, run: &Run, parts: &[IoSlice<'_>], now: RealNs) -> RealNs {
        self.note_lateness(run.due, run.count() as u64, now);
        self.write(run.to.at(), run.count() as u64, true, parts)
    }

    fn parcel(&mut self, parcel: &Parcel) {
        let now = monotonic_now();
        if parcel.merged {
            self.note_lateness(parcel.due, parcel.frames, now);
            self.write(parcel.nic, parcel.frames, true, &[IoSlice::new(&parcel.bytes)]);
        } else {
            self.frame(parcel.nic, parcel.due, &parcel.bytes, now);
        }
    }

    fn note_lateness(&mut self, due: VirtNs, frames: u64, now: RealNs) {
        let late = now.since(self.clock.r_of(due));
        self.written.lateness_ns.saturating_record_n(late.0.max(1), frames);
    }

    /// A write runs the node's stack: that is the node's work.
    fn write(&mut self, nic: usize, frames: u64, merged: bool, parts: &[IoSlice<'_>]) -> RealNs {
        let begun = monotonic_now();
        // Where others may run meanwhile, what they took is none of the node's.
        let interrupted = !self.real_time || self.beyond_share;
        let cpu = interrupted.then(thread_cpu);
        let done = self.taps[nic].as_ref().is_some_and(|tap| match parts {
            [one] => rustix::io::write(tap, one).is_ok(),
            _ => rustix::io::writev(tap, parts).is_ok(),
        });
        let ended = monotonic_now();
        if done {
            self.written.packets += frames;
            self.written.merged += if merged { frames } else { 0 };
        } else {
            self.written.errors[nic] += frames;
        }
        let took = cpu.map_or(ended.since(begun), |cpu| RealSpan(thread_cpu().0 - cpu.0));
        self.written.receive_work[nic].0 += took.0;
        if let Some(receivers) = &self.receivers {
            let bytes = parts.iter().map(|part| part.len()).sum();
            receivers.charge_receiver(nic, bytes, begun, begun.plus(took));
        }
        ended
    }
}

enum Order {
    Write(Parcel),
    Tell(Sender<Written>),
}

struct Writer {
    orders: Sender<Order>,
    /// Parcels that are not written yet.
    left: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// The threads beside the emulator's own.
pub(crate) struct Writers {
    all: Vec<Writer>,
    back: Receiver<Vec<u8>>,
}

impl Writers {
    /// Starts so many, each with a copy of `hand`, at the priority of the emulator's thread.
    pub fn start(count: usize, hand: &Hand, priority: Option<u8>) -> std::io::Result<Writers> {
        let (give_back, back) = channel();
        let all: std::io::Result<Vec<Writer>> = (0..count)
            .map(|_| {
                let (orders, inbox) = channel();
                let left = Arc::new(AtomicUsize::new(0));
                let (hand, left_there, give_back) = (hand.clone(), left.clone(), give_back.clone());
                let thread = thread::Builder::new().name(THREAD.to_owned()).spawn(move || {
                    let (scheduling, keeper) = settle(priority, None);
                    let mut hand = hand;
                    hand.real_time = matches!(scheduling, Scheduling::Fifo { .. });
                    serve(hand, keeper, &inbox, &left_there, &give_back);
                })?;
                Ok(Writer { orders, left, thread: Some(thread) })
            })
            .collect();
        Ok(Writers { all: all?, back })
    }

    fn of(&self, nic: usize) -> &Writer {
        &self.all[nic % self.all.len()]
    }

    /// Whether everything that was left to the writer of this NIC is written.
    pub fn is_idle(&self, nic: usize) -> bool {
        self.of(nic).left.load(Ordering::Acquire) == 0
    }

    /// Leaves a parcel to the writer of its NIC.
    pub fn leave(&self, parcel: Parcel) {
        let writer = self.of(parcel.nic);
        writer.left.fetch_add(1, Ordering::AcqRel);
        // It ends only when this is dropped.
        let _ = writer.orders.send(Order::Write(parcel));
    }

    /// Buffers of single frames that are written.
    pub fn given_back(&self) -> impl Iterator<Item = Vec<u8>> {
        self.back.try_iter()
    }

    /// What all have done, once everything that was left to them is written.
    pub fn written(&self) -> impl Iterator<Item = Written> {
        let asked = self.all.iter().filter_map(|w| {
            let (reply, answer) = channel();
            w.orders.send(Order::Tell(reply)).ok().map(|()| answer)
        });
        let asked: Vec<Receiver<Written>> = asked.collect();
        asked.into_iter().filter_map(|answer| answer.recv().ok())
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        for writer in &mut self.all {
            // Without a sender it ends.
            writer.orders = channel().0;
            if let Some(thread) = writer.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

fn serve(mut hand: Hand, mut keeper: Keeper, inbox: &Receiver<Order>, left: &AtomicUsize, give_back: &Sender<Vec<u8>>) {
    loop {
        let order = inbox.try_recv().ok().or_else(|| {
            let order = inbox.recv().ok();
            keeper.busy_since = monotonic_now();
            order
        });
        match order {
            Some(Order::Write(parcel)) => {
                hand.parcel(&parcel);
                left.fetch_sub(1, Ordering::AcqRel);
                if !parcel.merged {
                    // An emulator that has ended needs it no more.
                    let _ = give_back.send(parcel.bytes);
                }
            }
            Some(Order::Tell(reply)) => {
                hand.written.cpu = thread_cpu();
                // Whoever asked waits for it.
                let _ = reply.send(hand.written.clone());
            }
            None => return,
        }
        keeper.keep();
        hand.beyond_share = keeper.is_beyond();
        (hand.written.yields, hand.written.yielded) = (keeper.yields, keeper.yielded);
    }
}
