//! The thread that moves packets between TAP devices when the model says so.
//!
//! One turn: deliver what is due, wait for a frame or the next deadline, read a few frames from each ready TAP.
//! A frame enters the network when its node sent it, which its trailer tells, or where it has none when it was read;
//! everything later happens in virtual time, so a late turn delays deliveries (which is lateness, measured) but never
//! shifts the schedule.

mod acks;
mod hand_over;
mod hold;
mod intake;
mod stale;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use diecast_core_net::{
    BUFFER_ROOM_BYTES, Change, DelayedAcks, Due, ETHERNET_HEADER_BYTES, Holding, LARGE_BYTES, NetError, NetSpec,
    Network, NodeIx, OFFLOAD_HEADER_BYTES, Recorded, StaleEchoes,
};
use diecast_core_vtime::{NS_PER_S, RealNs, RealSpan, VirtNs, VirtSpan};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::thread::CpuSet;

use crate::capture::{Capture, CapturePoint, Direction, Tap, Taps, capture};
use crate::clock::{FrameClock, monotonic_now};
use crate::egress::{EgressLedger, ReceiveLedger, TRAILER_BYTES};
use crate::error::HostNetError;
use crate::lookout::Lookout;
use crate::priority::{Scheduling, become_fifo};
use crate::share::{Keeper, Share, thread_cpu};
use crate::stats::EmulatorStats;
use crate::surplus::Surplus;
use crate::sys;
use crate::writers::{Hand, Writers};
use intake::{READS_MAX, Read};

const THREAD: &str = "diecast-net";
/// Epoll tag of the eventfd; TAPs use their node's index.
const WAKE: u64 = u64::MAX;
/// Of what the ledger has to take.
const HANDED: u64 = u64::MAX - 1;
/// The first of several frames that merge waits at most so long for those behind it.
const MERGE_NS: u64 = 10_000;
/// Deliveries before TAPs are looked at again.
const DELIVER_BATCH: usize = 64;
/// A frame that wakes the thread costs more than its way through the model, its sender included. So after `GATHER_AFTER`
/// waits in a row that were shorter than that, frames may gather for half of the least that any is on its way, within these
/// bounds, as at a NIC that moderates its interrupts; no delivery waits for that.
const GATHER_MIN_NS: u64 = 20_000;
const GATHER_MAX_NS: u64 = 100_000;
const GATHER_AFTER: u32 = 4;
/// A timer wakes the thread late. So it has itself woken before a delivery is due, by the most that wake-ups were late of
/// late, and polls until then: at most for `POLL_NS`, and in all for `POLL_SHARE_NS` of each `WINDOW_NS`; for twice as much
/// in a lab that is not dilated, where a wake-up's lateness counts in full. Where deliveries come more often than that pays
/// for, it sleeps.
const POLL_NS: u64 = 80_000;
const POLL_SHARE_NS: u64 = 500_000;
/// The most that wake-ups were late falls by this part of itself with each.
const FORGET: u64 = 128;
/// The longest wait. Frames that come while the thread is kept from running are read late, with a late time, and no
/// delivery need be due then: only a wait that should have ended tells. A look that is late by `LATE_LOOK_NS` or more
/// counts as an event that was.
const LOOK_EVERY_NS: u64 = 10_000_000;
const LATE_LOOK_NS: u64 = 1_000_000;
/// So long after what was handed on within nodes there is a look for more.
const LISTEN_NS: u64 = 1_000_000;
/// Looks in a row that found nothing, after which they come more seldom, and after which the thread sleeps until there is
/// something to do: between two packets of a quiet lab it still notices that it was kept from running for long.
const IDLE_LOOKS: u32 = 3;
const SELDOM_NS: u64 = 40_000_000;
const IDLE_LOOKS_MAX: u32 = IDLE_LOOKS + 20;
/// Deliveries before a snapshot or a change is made although more is due: an emulator that is so late says so itself.
const CATCH_UP_BATCHES: usize = 64;
/// Room behind the largest legal frame, so that a longer one is seen to be longer.
const OVERSIZE_ROOM: usize = 64;
const _: () = assert!(OVERSIZE_ROOM + TRAILER_BYTES <= BUFFER_ROOM_BYTES, "no buffer grows for a frame");
const _: () = assert!(LARGE_BYTES >= OFFLOAD_HEADER_BYTES + ETHERNET_HEADER_BYTES + 8 + 65_535 + TRAILER_BYTES);

/// What an emulator needs.
pub struct EmulatorConfig {
    /// The network.
    pub spec: NetSpec,
    /// The emulator's end of each node's NIC, in the order of the spec, non-blocking. Those that have a virtio header
    /// before each frame are told by themselves.
    pub taps: Vec<OwnedFd>,
    /// The lab's frame.
    pub clock: Arc<dyn FrameClock>,
    /// Charges senders for the packets they send; every frame then carries a trailer (see [`crate::EgressLedger`]), which
    /// also tells when it left.
    pub ledger: Option<Arc<dyn EgressLedger>>,
    /// Charges receivers for what the kernel does for them in the emulator's thread.
    pub receivers: Option<Arc<dyn ReceiveLedger>>,
    /// TCP of nodes counts its 40 ms before an acknowledgement in real time, which is not theirs.
    pub delays_acks: bool,
    /// SCHED_FIFO priority, 1 to 99; `None` stays at normal priority.
    pub priority: Option<u8>,
    /// The core to stay on.
    pub cpu: Option<usize>,
    /// Threads: one that does everything, or more, of which all but the first write to NICs (see `writers`).
    pub threads: usize,
    /// Gets everything that comes in, in order, for [`diecast_core_net::replay`].
    pub record: Option<Sender<Vec<Recorded>>>,
}

enum Command {
    Stats(Sender<EmulatorStats>),
    Stop(Sender<EmulatorStats>),
    Change { at: Option<VirtNs>, changes: Vec<Change>, reply: Sender<Result<VirtNs, HostNetError>> },
    Capture(Tap),
}

/// A running emulator. Dropping it stops the thread.
#[derive(Debug)]
pub struct Emulator {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    thread_id: i32,
}

impl Emulator {
    /// Starts the thread. Returns when it has its priority and watches every TAP.
    pub fn start(config: EmulatorConfig) -> Result<Emulator, HostNetError> {
        if config.taps.len() != config.spec.nodes.len() {
            return Err(HostNetError::Taps { nodes: config.spec.nodes.len(), taps: config.taps.len() });
        }
        let mut net = Network::new(&config.spec)?;
        if config.record.is_some() {
            net.record();
        }
        let failed = |action| move |e: Errno| HostNetError::Emulator { action, error: io::Error::from(e) };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed("make an eventfd"))?;
        let wake = Arc::new(wake);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("make an epoll set"))?;
        let watch =
            |fd: BorrowedFd<'_>, tag| epoll::add(&epoll, fd, epoll::EventData::new_u64(tag), epoll::EventFlags::IN);
        watch(wake.as_fd(), WAKE).map_err(failed("watch its eventfd"))?;
        if let Some(handed) = config.ledger.as_ref().and_then(|ledger| ledger.handed()) {
            watch(handed, HANDED).map_err(failed("watch what is handed on"))?;
        }
        for (node, tap) in config.taps.iter().enumerate() {
            watch(tap.as_fd(), node as u64).map_err(failed("watch a TAP device"))?;
        }
        let (commands, inbox) = channel();
        let (ready, started) = channel();
        let offload: Arc<[bool]> =
            config.taps.iter().map(|t| sys::tap_has_header(t.as_fd()).unwrap_or(false)).collect();
        let lookouts = config.taps.iter().zip(offload.iter());
        let lookouts: Vec<_> = lookouts.map(|(tap, on)| on.then(|| Lookout::new(tap.as_fd()).ok())?).collect();
        let hand = Hand::new(config.taps, offload, config.clock.clone(), config.receivers);
        let (priority, cpu) = (config.priority, config.cpu);
        let writers = match config.threads {
            0 | 1 => None,
            n => Some(
                Writers::start(n - 1, &hand, priority).map_err(|error| HostNetError::Thread { name: THREAD, error })?,
            ),
        };
        let mut runner = Runner {
            net,
            holding: Holding::default(),
            least_hold: VirtSpan(0),
            least_hold_at: RealNs(0),
            merges: lookouts.iter().any(Option::is_some),
            lookouts,
            hand,
            writers,
            head: Vec::new(),
            clock: config.clock,
            ledger: config.ledger,
            epoll,
            wake: wake.clone(),
            inbox,
            captures: Taps::default(),
            acks: config.delays_acks.then(DelayedAcks::default),
            echoes: StaleEchoes::default(),
            stands_still: false,
            record: config.record,
            frame_room: config.spec.mtu as usize + ETHERNET_HEADER_BYTES + OVERSIZE_ROOM + TRAILER_BYTES,
            keeper: Keeper::new(None),
            polling: Share::new(POLL_SHARE_NS),
            wakes_late_ns: POLL_NS,
            gather_ns: GATHER_MIN_NS,
            gather_at: RealNs(0),
            short_waits: 0,
            reads: Vec::new(),
            idle_looks: 0,
            entered: VirtNs(0),
            backlog: false,
            unread: false,
            listens: false,
            tally: Tally::default(),
        };
        let thread = thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || {
                let (scheduling, keeper) = settle(priority, cpu);
                (runner.hand.real_time, runner.keeper) = (matches!(scheduling, Scheduling::Fifo { .. }), keeper);
                runner.tally.scheduling = Some(scheduling);
                // The starter waits for this, so it can't be gone.
                let _ = ready.send(rustix::thread::gettid().as_raw_pid());
                runner.run();
            })
            .map_err(|error| HostNetError::Thread { name: THREAD, error })?;
        let thread_id = started.recv().map_err(|_| HostNetError::Ended)?;
        Ok(Emulator { commands, wake, thread: Some(thread), thread_id })
    }

    /// Kernel id of the thread, for accounting of host CPU.
    pub fn thread_id(&self) -> i32 {
        self.thread_id
    }

    /// Makes the thread look at the clock again, after a pause, resume or change of the TDF.
    pub fn kick(&self) {
        // The only failure is a counter near 2^64, and then the thread is awake.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// A snapshot.
    pub fn stats(&self) -> Result<EmulatorStats, HostNetError> {
        self.ask(Command::Stats)
    }

    /// A handle that other threads may keep; it outlives the emulator and then reports that it ended.
    pub fn handle(&self) -> EmulatorHandle {
        EmulatorHandle { commands: self.commands.clone(), wake: self.wake.clone() }
    }

    /// Ends the thread, closes the TAPs and returns the last snapshot. Packets on their way are gone.
    pub fn stop(mut self) -> Result<EmulatorStats, HostNetError> {
        let last = self.ask(Command::Stop)?;
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| HostNetError::Panicked)?;
        }
        Ok(last)
    }

    fn ask(&self, command: impl FnOnce(Sender<EmulatorStats>) -> Command) -> Result<EmulatorStats, HostNetError> {
        self.handle().ask(command)
    }
}

/// Talks to a running emulator.
#[derive(Clone, Debug)]
pub struct EmulatorHandle {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
}

impl EmulatorHandle {
    /// A snapshot.
    pub fn stats(&self) -> Result<EmulatorStats, HostNetError> {
        self.ask(Command::Stats)
    }

    /// Has changes take place together, at once or at a virtual instant that has not passed; the instant. All take
    /// place or none.
    pub fn change(&self, at: Option<VirtNs>, changes: Vec<Change>) -> Result<VirtNs, HostNetError> {
        self.ask(|reply| Command::Change { at, changes, reply })?
    }

    /// Starts a capture at these places.
    pub fn capture(&self, points: Vec<CapturePoint>) -> Result<Capture, HostNetError> {
        let (tap, looker) = capture(points);
        self.tell(Command::Capture(tap))?;
        Ok(looker)
    }

    /// As [`Emulator::kick`].
    pub fn kick(&self) {
        // The only failure is a counter near 2^64, and then the thread is awake.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, HostNetError> {
        let (reply, answer) = channel();
        self.tell(command(reply))?;
        answer.recv().map_err(|_| HostNetError::Ended)
    }

    fn tell(&self, command: Command) -> Result<(), HostNetError> {
        self.commands.send(command).map_err(|_| HostNetError::Ended)?;
        self.kick();
        Ok(())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let (reply, _) = channel();
        // A thread that has ended does not take the command, and is joined all the same.
        let _ = self.commands.send(Command::Stop(reply));
        self.kick();
        let _ = thread.join();
    }
}

/// Prepares the calling thread: no signals, no timer slack, its core, its priority, and what keeps it to its share.
pub(crate) fn settle(priority: Option<u8>, cpu: Option<usize>) -> (Scheduling, Keeper) {
    sys::block_signals();
    // Real-time threads have no slack; this is for the fallback, and a refusal only costs lateness, which is measured.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let mut pinned = Ok(());
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu);
        pinned = rustix::thread::sched_setaffinity(None, &set);
    }
    let scheduling = match (pinned, priority) {
        (Err(e), _) => Scheduling::Normal { reason: format!("can't stay on core {}: {e}", cpu.unwrap_or_default()) },
        (Ok(()), Some(p)) => become_fifo(p),
        (Ok(()), None) => Scheduling::Normal { reason: "not asked for".to_owned() },
    };
    let surplus = match scheduling {
        Scheduling::Fifo { priority, .. } => Surplus::new(priority),
        Scheduling::Normal { .. } => None,
    };
    (scheduling, Keeper::new(surplus))
}

/// Counts of the thread, besides what it hands over.
#[derive(Default)]
struct Tally {
    packets_read: u64,
    without_trailer: u64,
    wakeups: u64,
    scheduling: Option<Scheduling>,
}

/// The end of a wait.
#[derive(Clone, Copy)]
struct Until {
    at: RealNs,
    /// A delivery may be due then.
    delivery: bool,
}

struct Runner {
    net: Network,
    /// What has reached its node and is handed over later.
    holding: Holding,
    /// Everything is held for at least so long, as of that instant.
    least_hold: VirtSpan,
    least_hold_at: RealNs,
    hand: Hand,
    /// Those to whom a backlog is left.
    writers: Option<Writers>,
    /// For each TAP with one: whether somebody in its namespace would see that frames were merged.
    lookouts: Vec<Option<Lookout>>,
    /// Some TAPs take merged frames.
    merges: bool,
    /// Headers of a run, while it is written.
    head: Vec<u8>,
    clock: Arc<dyn FrameClock>,
    ledger: Option<Arc<dyn EgressLedger>>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    inbox: Receiver<Command>,
    captures: Taps,
    acks: Option<DelayedAcks>,
    /// Empty in a lab that was never paused.
    echoes: StaleEchoes,
    /// As of the last kick: no virtual time passes.
    stands_still: bool,
    record: Option<Sender<Vec<Recorded>>>,
    frame_room: usize,
    keeper: Keeper,
    /// How much of its core it polls.
    polling: Share,
    /// The most that wake-ups were late, the latest ones first of all.
    wakes_late_ns: u64,
    /// For how long frames may gather, as of that instant.
    gather_ns: u64,
    gather_at: RealNs,
    /// Waits in a row that ended sooner than that.
    short_waits: u32,
    /// What was read and has not entered the network yet.
    reads: Vec<Read>,
    /// Waits in a row that ended without a frame.
    idle_looks: u32,
    /// When the last frame entered the network: the next one does no earlier.
    entered: VirtNs,
    /// What is delivered now is not the first in its turn.
    backlog: bool,
    /// Nobody has seen yet whether a TAP has more frames.
    unread: bool,
    /// Threads handed work on within their nodes of late: more of it may come that nobody is woken for.
    listens: bool,
    tally: Tally,
}

impl Runner {
    fn run(&mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(self.hand.taps.len() + 1);
        let mut first = 0;
        self.look_at_pace();
        loop {
            let more = self.deliver().is_none() || std::mem::take(&mut self.unread);
            self.hand_over_record();
            self.keep_to_share();
            events.clear();
            let waiting_since = monotonic_now();
            self.keep_to_way(waiting_since);
            let until = if more { Until { at: waiting_since, delivery: false } } else { self.until(waiting_since) };
            let waited = self.wait(&mut events, waiting_since, until);
            self.idle_looks = if events.is_empty() { self.idle_looks.saturating_add(1) } else { 0 };
            let woke = monotonic_now();
            let late = woke.since(until.at.max(waiting_since)).0;
            if late >= LATE_LOOK_NS {
                self.hand.written.lateness_ns.saturating_record(late);
            }
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                // No other error is possible with valid arguments; ending here makes every later call report it.
                Err(_) => return,
            }
            // Another TAP comes first in each turn.
            first = (first + 1) % events.len().max(1);
            for i in 0..events.len() {
                let tag = events[(i + first) % events.len()].data.u64();
                if tag == WAKE {
                    self.take_in();
                    if self.obey().is_break() {
                        return;
                    }
                } else if tag != HANDED {
                    self.read_batch(tag as usize);
                    if self.reads.len() >= READS_MAX {
                        self.take_in();
                    }
                }
            }
            self.take_in();
            // After what left nodes before.
            let listens = self.listens || events.iter().any(|event| event.data.u64() == HANDED);
            if listens && !self.unread {
                self.listens = self.ledger.as_ref().is_some_and(|ledger| ledger.take_handed(None, woke, woke));
            }
        }
    }

    fn keep_to_share(&mut self) {
        self.keeper.keep();
        self.hand.beyond_share = self.keeper.is_beyond();
    }

    /// Waits for a frame, a command or that instant.
    fn wait(&mut self, events: &mut Vec<epoll::Event>, begin: RealNs, until: Until) -> Result<usize, Errno> {
        let timeout = until.at.since(begin);
        if timeout.0 == 0 {
            self.keeper.busy_since = begin;
            return self.look(events);
        }
        self.tally.wakeups += 1;
        let polls = until.delivery && self.may_poll(begin);
        let early = if polls { self.wakes_late_ns } else { 0 };
        let (sleep_ns, gathers) = (timeout.0.saturating_sub(early), self.short_waits >= GATHER_AFTER);
        let nap_ns = if gathers { sleep_ns.min(self.gather_ns) } else { sleep_ns };
        let mut found = Ok(0);
        self.keeper.busy_since = begin;
        if nap_ns > 0 {
            if gathers {
                thread::sleep(Duration::from_nanos(nap_ns));
                self.keeper.busy_since = monotonic_now();
                found = self.look(events);
            } else {
                let limit = Timespec { tv_sec: (nap_ns / NS_PER_S) as _, tv_nsec: (nap_ns % NS_PER_S) as _ };
                found = epoll::wait(&self.epoll, spare_capacity(events), Some(&limit));
                self.keeper.busy_since = monotonic_now();
            }
            if found == Ok(0) {
                let late_ns = self.keeper.busy_since.since(begin).0.saturating_sub(nap_ns);
                self.wakes_late_ns = late_ns.max(self.wakes_late_ns - self.wakes_late_ns / FORGET).min(POLL_NS);
            }
        }
        if early > 0 && nap_ns == sleep_ns && found == Ok(0) {
            found = self.poll(events, until.at);
        }
        let goes_on = if gathers { found != Ok(0) } else { monotonic_now().since(begin).0 < self.gather_ns };
        self.short_waits = if goes_on { GATHER_AFTER.min(self.short_waits + 1) } else { 0 };
        found
    }

    fn may_poll(&mut self, now: RealNs) -> bool {
        let v_ns = self.clock.v_of(now.plus(RealSpan(POLL_NS))).since(self.clock.v_of(now)).0;
        self.polling.set(if v_ns < POLL_NS { POLL_SHARE_NS } else { 2 * POLL_SHARE_NS });
        self.polling.used_up(now).is_none()
    }

    /// Looks again and again, until that instant.
    fn poll(&mut self, events: &mut Vec<epoll::Event>, until: RealNs) -> Result<usize, Errno> {
        let begin = self.keeper.busy_since;
        loop {
            let found = self.look(events);
            let now = monotonic_now();
            if found != Ok(0) || now >= until {
                self.polling.book(now.since(begin), now);
                return found;
            }
        }
    }

    /// What is there at once.
    fn look(&self, events: &mut Vec<epoll::Event>) -> Result<usize, Errno> {
        epoll::wait(&self.epoll, spare_capacity(events), Some(&Timespec::default()))
    }

    /// Until when to wait: the next deadline, and while there is traffic at most the next look.
    fn until(&mut self, now: RealNs) -> Until {
        let due = self.next_due(now).into_iter().chain(self.acks.as_ref().and_then(DelayedAcks::next_due)).min();
        let due = due.map_or(RealNs::NEVER, |due| self.clock.r_of(due));
        let look_ns = match self.idle_looks {
            _ if self.listens => LISTEN_NS,
            ..IDLE_LOOKS => LOOK_EVERY_NS,
            IDLE_LOOKS..IDLE_LOOKS_MAX => SELDOM_NS,
            _ => u64::MAX,
        };
        let look = now.plus(RealSpan(look_ns));
        Until { at: due.min(look), delivery: due <= look }
    }

    /// Writes what is due, at most a batch; the instant at which nothing more was due, none when there may be more.
    fn deliver(&mut self) -> Option<RealNs> {
        let done = self.deliver_batch();
        if !self.captures.is_empty() {
            self.captures.at_pipes(self.net.take_seen());
            self.captures.prune().into_iter().for_each(|pipe| self.net.watch(pipe, false));
        }
        done
    }

    fn deliver_batch(&mut self) -> Option<RealNs> {
        let mut now = monotonic_now();
        let mut v = self.clock.v_of(now);
        if let Some(writers) = &self.writers {
            writers.given_back().for_each(|frame| self.net.recycle(frame));
        }
        let patience = if self.merges { self.clock.v_of(now.plus(RealSpan(MERGE_NS))).since(v) } else { VirtSpan(0) };
        self.send_due_acks(v);
        for i in 0..DELIVER_BATCH {
            self.backlog = i > 0;
            let due = self.pop_due(v, patience).or_else(|| {
                // More may have become due during the writes.
                v = self.clock.v_of(now);
                self.pop_due(v, patience)
            });
            now = match due {
                Some(Due::Frame(delivery)) => self.hand_over(delivery, now),
                Some(Due::Run(run)) => self.hand_over_run(run, now),
                None => return Some(now),
            };
        }
        None
    }

    /// A frame enters the network.
    fn ingress(&mut self, node: usize, frame: Vec<u8>, v: VirtNs, debt: VirtSpan) {
        if !self.captures.is_empty() {
            self.captures.at_nic(node, v.plus(debt), Direction::Sent, &frame);
        }
        self.net.ingress(v, NodeIx(node as u32), frame, debt);
    }

    /// The device has gone with its namespace.
    fn lose(&mut self, node: usize) {
        if let Some(tap) = self.hand.taps[node].take() {
            // Closing removes it from the set too; this keeps a duplicate of the descriptor from staying watched.
            let _ = epoll::delete(&self.epoll, tap.as_fd());
            self.lookouts[node] = None;
        }
    }

    fn obey(&mut self) -> std::ops::ControlFlow<()> {
        let mut count = [0; 8];
        // Empties the counter; nothing to do when it was empty already.
        let _ = rustix::io::read(&*self.wake, &mut count);
        self.look_at_pace();
        while let Ok(command) = self.inbox.try_recv() {
            // Whoever asked may have gone away: a reply that nobody takes is none.
            match command {
                Command::Stats(reply) => drop(reply.send(self.snapshot())),
                Command::Change { at, changes, reply } => drop(reply.send(self.change(at, changes))),
                Command::Capture(tap) => {
                    // What was sent before is not part of it.
                    self.catch_up();
                    self.captures.add(tap).into_iter().for_each(|pipe| self.net.watch(pipe, true));
                }
                Command::Stop(reply) => {
                    let last = self.snapshot();
                    self.hand_over_record();
                    drop(reply.send(last));
                    return std::ops::ControlFlow::Break(());
                }
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    /// Has everything happen that is due by the instant that it returns.
    fn catch_up(&mut self) -> RealNs {
        (0..CATCH_UP_BATCHES).find_map(|_| self.deliver()).unwrap_or_else(monotonic_now)
    }

    fn change(&mut self, at: Option<VirtNs>, changes: Vec<Change>) -> Result<VirtNs, HostNetError> {
        let now = self.catch_up();
        let now = self.clock.v_of(now);
        let at = at.unwrap_or(now);
        if at < now {
            return Err(HostNetError::Past { at, now });
        }
        let checked: Result<(), NetError> = changes.iter().try_for_each(|change| self.net.check_change(change));
        checked?;
        for change in changes {
            self.net.schedule(at, change)?;
        }
        self.catch_up();
        Ok(at)
    }

    /// What came in goes to whoever records it; the channel has no bound, so this never waits.
    fn hand_over_record(&mut self) {
        let Some(record) = &self.record else { return };
        let recorded = self.net.take_recorded();
        if !recorded.is_empty() {
            // A recorder that has ended has said why to its own.
            let _ = record.send(recorded);
        }
    }

    fn snapshot(&mut self) -> EmulatorStats {
        let at = self.catch_up();
        let v_at = self.clock.v_of(at);
        self.net.looked(v_at);
        let t = &self.tally;
        let mut written = self.hand.written.clone();
        self.writers.iter().flat_map(Writers::written).for_each(|by| written.add(&by));
        EmulatorStats {
            at,
            v_at,
            pipes: self.net.pipe_counters(),
            nodes: self.net.node_counters(),
            receive_work: written.receive_work,
            in_flight: self.net.in_flight() + self.holding.frames(),
            packets_read: t.packets_read,
            packets_written: written.packets,
            packets_merged: written.merged,
            write_errors: written.errors,
            taps_lost: self.hand.taps.iter().map(Option::is_none).collect(),
            without_trailer: t.without_trailer,
            lateness_ns: written.lateness_ns,
            cpu: RealSpan(thread_cpu().0 + written.cpu.0),
            wakeups: t.wakeups,
            yields: self.keeper.yields + written.yields,
            yielded: RealSpan(self.keeper.yielded.0 + written.yielded.0),
            scheduling: t.scheduling.clone().unwrap_or(Scheduling::Normal { reason: "not started".to_owned() }),
        }
    }
}
