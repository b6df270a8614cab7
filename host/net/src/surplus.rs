//! What nobody else wants of a core, for a real-time thread that has used up its share of it.
//!
//! A thread of SCHED_IDLE runs when nothing else would, and time that it spends so is none of a real-time thread's. It
//! could not come back to its priority by itself while others are busy, so a thread beside it does both for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use diecast_core_vtime::{RealNs, RealSpan};

use crate::clock::monotonic_now;
use crate::priority::{Scheduling, become_fifo};
use crate::sys;

const THREAD: &str = "diecast-net-p";
/// In place of the instant at which it ended.
const LASTS: u64 = u64::MAX;

/// Lends a thread what is left of its core.
pub(crate) struct Surplus {
    orders: Option<Sender<RealNs>>,
    /// When the last one ended; `LASTS` from its order until then.
    ended_ns: Arc<AtomicU64>,
    lender: Option<JoinHandle<()>>,
}

impl Surplus {
    /// For the calling thread, which has that priority. `None` where the host does not let the lender do it, or the thread
    /// is none of real time.
    pub fn new(priority: u8) -> Option<Surplus> {
        let (orders, inbox) = channel();
        let (ready, started) = channel();
        let ended_ns = Arc::new(AtomicU64::new(0));
        let (borrower, ended) = (rustix::thread::gettid().as_raw_pid(), ended_ns.clone());
        let lender = thread::Builder::new().name(THREAD.to_owned()).spawn(move || {
            sys::block_signals();
            // Before its borrower where they meet on a core.
            let above = matches!(become_fifo(priority.saturating_add(1).min(99)), Scheduling::Fifo { .. });
            let able = above && lower(borrower) && raise(borrower, priority);
            // The starter waits for this.
            let _ = ready.send(able);
            if able {
                lend(borrower, priority, &inbox, &ended);
            }
        });
        let surplus = Surplus { orders: Some(orders), ended_ns, lender: Some(lender.ok()?) };
        started.recv().unwrap_or(false).then_some(surplus)
    }

    /// From now until that instant the thread has what nobody else wants.
    pub fn begin(&self, until: RealNs) {
        self.ended_ns.store(LASTS, Ordering::Release);
        // The lender lives as long as this.
        let _ = self.orders.as_ref().map(|orders| orders.send(until));
    }

    /// When that ended; `None` while it lasts.
    pub fn ended(&self) -> Option<RealNs> {
        Some(self.ended_ns.load(Ordering::Acquire)).filter(|at| *at != LASTS).map(RealNs)
    }
}

impl Drop for Surplus {
    fn drop(&mut self) {
        // Without a sender the lender ends.
        self.orders = None;
        if let Some(lender) = self.lender.take() {
            let _ = lender.join();
        }
    }
}

fn lend(borrower: i32, priority: u8, inbox: &Receiver<RealNs>, ended: &AtomicU64) {
    while let Ok(until) = inbox.recv() {
        let lent = lower(borrower);
        let RealSpan(left_ns) = until.since(monotonic_now());
        thread::sleep(Duration::from_nanos(left_ns));
        // What was allowed at the start still is. If it were not: as any other thread, which shows as lateness.
        if lent && !raise(borrower, priority) {
            let _ = sys::set_policy(borrower, libc::SCHED_OTHER, 0);
        }
        ended.store(monotonic_now().0, Ordering::Release);
    }
}

fn lower(thread: i32) -> bool {
    sys::set_policy(thread, libc::SCHED_IDLE, 0).is_ok()
}

fn raise(thread: i32, priority: u8) -> bool {
    sys::set_policy(thread, libc::SCHED_FIFO, i32::from(priority)).is_ok()
}
