//! Receive work: what the kernel does for a node outside of the node's threads.
//!
//! A frame that reaches a node's NIC runs the node's protocol stack in the thread that delivers it, and whatever that
//! stack sends in answer. On the original machine the same work is done by the machine's own processor, before the
//! program that waits for the packet, and instead of one that computes. So it is charged to the node's ledger, on the
//! virtual CPU that is free first.
//!
//! It also takes the original longer, in virtual time, than it takes here: whoever waits for the packet is woken as soon
//! as a TDF-th of it has passed. So a frame is handed over later by the rest, on the average of frames of its size.
//!
//! A machine that is at work is interrupted by the frame first, unless it is at frames that came before; that takes what an
//! interrupt takes on this host. An idle one sees it by itself.
//!
//! It is the colder the longer the node has rested, more than what programs do. So frames are counted by how long that was,
//! for `learn`, and what is cold of them has a table of its own.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

use diecast_core_abi::{GAP_BINS, NodePage};
use diecast_core_vtime::{Rate, RealNs, VirtNs, VirtSpan};

use crate::{LAG_MAX_V_NS, at_usual_speed, gap_bin, warm_ns};

/// The longest that one frame is taken to have kept the kernel busy, real ns. What takes longer was interrupted: a
/// whole window of segments that one acknowledgement lets go takes half as long.
pub const RECEIVE_MAX_NS: u64 = 250_000;

/// Sums that are kept of the frames after a rest of some length: how many, ns, ns²/1024, units of data, their squares, and
/// units times ns.
pub const RECEIVE_SUMS: usize = 6;
/// Frames by how long the node had rested, in bins as [`gap_bin`] has them.
pub type ReceiveCounts = [[u64; RECEIVE_SUMS]; GAP_BINS];
/// Units of data in a frame: so many bytes each, and so many beside.
const DATA_ONE: u64 = 256;
const DATA_BESIDE: u64 = 4;

/// Sizes of frames that are told apart: powers of two, of bytes.
const SIZES: usize = 17;
/// A mean follows what it is of within so many.
const MEAN_OF: u64 = 64;
/// Means are kept in parts of this of a nanosecond.
const MEAN_ONE: u64 = 256;

/// What frames of a size took lately, on the average.
#[derive(Debug, Default)]
struct Lately {
    frames: AtomicU64,
    /// Of the original's work, real CPU ns, and of the time that it took here, real ns; in parts of [`MEAN_ONE`].
    work: AtomicU64,
    took: AtomicU64,
}

impl Lately {
    /// One more. Values stay below 2^32 ns.
    fn add(&self, work_ns: u64, took_ns: u64) {
        let frames = self.frames.fetch_add(1, Relaxed) + 1;
        for (mean, ns) in [(&self.work, work_ns), (&self.took, took_ns)] {
            let (before, of) = (mean.load(Relaxed), frames.min(MEAN_OF));
            mean.store(before - before / of + ns * MEAN_ONE / of, Relaxed);
        }
    }

    /// How much longer, in virtual time, the original works on one than it takes here, none before the first. Rounded down;
    /// `slowness` is virtual CPU time for that of the host, `rate` virtual time for real.
    fn hold(&self, slowness: Rate, rate: Rate) -> Option<VirtSpan> {
        let [work_ns, took_ns] = [&self.work, &self.took].map(|mean| mean.load(Relaxed) / MEAN_ONE);
        let hold_v_ns = slowness.mul_floor(work_ns).saturating_sub(rate.mul_floor(took_ns));
        (self.frames.load(Relaxed) > 0).then_some(VirtSpan(hold_v_ns))
    }
}

fn size_of_frame(bytes: usize) -> usize {
    (bytes | 1).ilog2().min(SIZES as u32 - 1) as usize
}

/// What a frame met on the machine that it reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Met {
    /// Nothing, as far as the ledger knows, or work on frames.
    Idle,
    /// Threads' work on all virtual CPUs.
    Work,
    /// More frames than the machine can take.
    TooMuch,
}

/// The receiving side of a node. Who delivers a frame charges for it, others read, and set what is cold.
#[derive(Debug, Default)]
pub struct Receiver {
    /// Charged, real CPU ns.
    charged_ns: AtomicU64,
    /// Not charged, because it was colder or slower than on the original machine or longer than a frame's work can be.
    cut_ns: AtomicU64,
    /// Not charged, because a machine that did nothing else could not have kept up either.
    beyond_ns: AtomicU64,
    /// The part of what is charged that came while threads of the node were at work on all of its virtual CPUs, real CPU ns.
    amid_ns: AtomicU64,
    /// What BPF programs take at a frame on the average, real CPU ns: not charged, and not cut.
    own_ns: AtomicU64,
    /// What an interrupt takes of a core that is at work, real CPU ns.
    interrupt_ns: AtomicU64,
    /// Virtual instant at which a machine that did nothing else would be done with it.
    free_v_ns: AtomicU64,
    /// When the last of it ended, real.
    last_r_ns: AtomicU64,
    counts: [[AtomicU64; RECEIVE_SUMS]; GAP_BINS],
    /// What a frame costs more than on the original machine, by how long the node had rested.
    cold_discount: [AtomicU32; GAP_BINS],
    /// Frames by size, and all of them.
    sizes: [Lately; SIZES],
    all: Lately,
}

/// What became of a node's receive work, real CPU ns since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Charged to the ledger.
    pub charged_ns: u64,
    /// Taken off: colder or slower than on the original machine, or interrupted.
    pub cut_ns: u64,
    /// More than the original machine can do: it would have lost these frames.
    pub beyond_ns: u64,
}

impl Receiver {
    /// What became of it so far.
    pub fn received(&self) -> Received {
        Received {
            charged_ns: self.charged_ns.load(Relaxed),
            cut_ns: self.cut_ns.load(Relaxed),
            beyond_ns: self.beyond_ns.load(Relaxed),
        }
    }

    /// All frames so far, but those that came while cores were slow or took longer than a frame can.
    pub fn counts(&self) -> ReceiveCounts {
        core::array::from_fn(|bin| core::array::from_fn(|i| self.counts[bin][i].load(Relaxed)))
    }

    /// Frames so far.
    pub fn frames(&self) -> u64 {
        self.all.frames.load(Relaxed)
    }

    /// What was charged so far in the midst of threads' work, real CPU ns.
    pub fn amid_ns(&self) -> u64 {
        self.amid_ns.load(Relaxed)
    }

    /// BPF programs take so much of the work on a frame, real ns.
    pub fn set_own(&self, own_ns: u64) {
        self.own_ns.store(own_ns, Relaxed);
    }

    /// An interrupt takes so much of a core that is at work, real CPU ns; 0 until this is known.
    pub fn set_interrupt(&self, ns: u64) {
        self.interrupt_ns.store(ns, Relaxed);
    }

    /// From here on takes so much off, by how long the node has rested: parts as in the node's page.
    pub fn set_cold_discount(&self, table: &[u32; GAP_BINS]) {
        self.cold_discount.iter().zip(table).for_each(|(cell, part)| cell.store(*part, Relaxed));
    }

    /// Charges the node of `page` for a frame of so many bytes that was delivered from `begun` to `ended` and reached its stack
    /// in between: before that it was the TAP's. `runs` tells whether a thread of the node has a core just then, whose work the
    /// ledger does not know yet.
    pub fn charge(
        &self,
        page: &NodePage,
        bytes: usize,
        [begun, reached, ended]: [RealNs; 3],
        runs: impl FnOnce() -> bool,
    ) {
        let whole_ns = ended.since(begun).0;
        let took_ns = self.kernels_ns(whole_ns, reached.since(begun).0);
        let last_r = RealNs(self.last_r_ns.load(Relaxed).max(page.busy_r_ns.load(Relaxed)));
        self.last_r_ns.store(ended.0, Relaxed);
        // Before its first frame a node has not been watched: no sleep is known.
        let gap_ns = if last_r.0 == 0 { 0 } else { begun.since(last_r).0 };
        let work_ns = self.work_ns(page.slow_discount.load(Relaxed), gap_ns, took_ns, bytes);
        for lately in [&self.sizes[size_of_frame(bytes)], &self.all] {
            lately.add(work_ns, whole_ns.min(RECEIVE_MAX_NS));
        }
        let now = page.segment().v_of(begun);
        let met = self.meets(page.entries(), now);
        if met == Met::TooMuch {
            return add(&self.beyond_ns, work_ns);
        }
        let amid = met == Met::Work || runs();
        let work_ns = work_ns + self.interrupts_ns(now, amid);
        self.book(page.entries(), now, page.slowness().mul_floor(work_ns));
        add(&self.charged_ns, work_ns);
        if amid {
            add(&self.amid_ns, work_ns);
        }
    }

    /// What a frame meets now.
    fn meets(&self, entries: &[AtomicU64], now: VirtNs) -> Met {
        let alone = self.free_v_ns.load(Relaxed).max(now.0);
        if alone - now.0 > LAG_MAX_V_NS {
            return Met::TooMuch;
        }
        // Frames before it keep a machine that has nothing else busy, too.
        if entries.iter().all(|e| e.load(Relaxed) > alone) { Met::Work } else { Met::Idle }
    }

    /// What the interrupt takes by which the machine learns of a frame, real CPU ns: it is at work, and not at frames.
    fn interrupts_ns(&self, now: VirtNs, amid: bool) -> u64 {
        let learns = amid && self.free_v_ns.load(Relaxed) <= now.0;
        if learns { self.interrupt_ns.load(Relaxed) } else { 0 }
    }

    /// For how much longer than our kernel the original's works on a frame of so many bytes, on the average of late.
    pub fn hold(&self, page: &NodePage, bytes: usize) -> VirtSpan {
        self.hold_at(page.slowness(), page.segment().rate, bytes)
    }

    fn hold_at(&self, slowness: Rate, rate: Rate, bytes: usize) -> VirtSpan {
        let of_size = self.sizes[size_of_frame(bytes)].hold(slowness, rate);
        of_size.or_else(|| self.all.hold(slowness, rate)).unwrap_or_default()
    }

    /// The least that this is for a frame of any size; none before the first.
    pub fn least_hold(&self, page: &NodePage) -> Option<VirtSpan> {
        self.least_hold_at(page.slowness(), page.segment().rate)
    }

    fn least_hold_at(&self, slowness: Rate, rate: Rate) -> Option<VirtSpan> {
        self.sizes.iter().filter_map(|lately| lately.hold(slowness, rate)).min()
    }

    /// What of a frame's work is neither the TAP's nor a BPF program's: half at least, whatever the average says.
    fn kernels_ns(&self, took_ns: u64, taps_ns: u64) -> u64 {
        took_ns - (taps_ns + self.own_ns.load(Relaxed)).min(took_ns / 2)
    }

    /// What of a frame's work after a rest is the original machine's; counts the frame.
    fn work_ns(&self, slow_discount: u32, gap_ns: u64, took_ns: u64, bytes: usize) -> u64 {
        let usual_ns = at_usual_speed(slow_discount, took_ns).min(RECEIVE_MAX_NS);
        if gap_ns > 0 && usual_ns == took_ns {
            self.count(gap_ns, took_ns, bytes as u64 / DATA_ONE + DATA_BESIDE);
        }
        let work_ns = warm_ns(&self.cold_discount, gap_ns, 0, usual_ns);
        add(&self.cut_ns, took_ns - work_ns);
        work_ns
    }

    /// Sums stay below 2^63 for 10^10 frames.
    fn count(&self, gap_ns: u64, ns: u64, data: u64) {
        let Some(sums) = self.counts.get(gap_bin(gap_ns)) else { return };
        for (sum, more) in sums.iter().zip([1, ns, ns * ns / 1024, data, data * data, data * ns]) {
            add(sum, more);
        }
    }

    /// Does the work.
    fn book(&self, entries: &[AtomicU64], now: VirtNs, work_v_ns: u64) {
        let alone = self.free_v_ns.load(Relaxed).max(now.0);
        self.free_v_ns.store(alone.saturating_add(work_v_ns), Relaxed);
        interrupt(entries, now, work_v_ns);
    }
}

fn add(to: &AtomicU64, ns: u64) {
    to.fetch_add(ns, Relaxed);
}

/// Has the virtual CPU that is free first do `work_v_ns` more, before whatever it is charged next.
///
/// Where it seems to have been idle the work is done as early as that, not now: a thread that computes is charged when
/// its slice ends, and may be late by [`LAG_MAX_V_NS`], so the time since may be the thread's, and work that began now
/// would lose it to both. Frames at a node that was idle indeed are thereby taken for done early.
fn interrupt(entries: &[AtomicU64], now: VirtNs, work_v_ns: u64) {
    let floor = now.0.saturating_sub(LAG_MAX_V_NS);
    loop {
        let Some(entry) = entries.iter().min_by_key(|e| e.load(Relaxed)) else { return };
        let free = entry.load(Relaxed);
        let after = free.max(floor).saturating_add(work_v_ns);
        if entry.compare_exchange_weak(free, after, AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;

    fn ledger(free: &[u64]) -> Vec<AtomicU64> {
        free.iter().map(|f| AtomicU64::new(*f)).collect()
    }

    fn free(entries: &[AtomicU64]) -> Vec<u64> {
        entries.iter().map(|e| e.load(Relaxed)).collect()
    }

    /// What a frame meets, whose work is done unless that is too much.
    fn booked(receiver: &Receiver, entries: &[AtomicU64], now: VirtNs, work_v_ns: u64) -> Met {
        let met = receiver.meets(entries, now);
        if met != Met::TooMuch {
            receiver.book(entries, now, work_v_ns);
        }
        met
    }

    /// A thread that computes is charged a slice of 500 µs every 500 µs, one of 20 frames in between takes 10 µs: all of
    /// both is done by the ledger, none twice and no time is lost between them.
    #[test]
    fn frames_and_a_busy_thread_share_the_cpu_without_a_gap() {
        let (entries, receiver) = (ledger(&[0]), Receiver::default());
        let mut finish = 0;
        for slice in 1..=1000u64 {
            // The slice ran up to now; its frames came while it did.
            let began = finish.max((slice - 1) * 500 * US);
            for frame in 0..20 {
                assert_ne!(booked(&receiver, &entries, VirtNs(began + frame * 25 * US), 10 * US), Met::TooMuch);
            }
            finish = charge(&entries, 0, VirtNs(began + 500 * US), VirtNs(finish), 500 * US).finish.0;
        }
        assert_eq!(finish, 1000 * (500 + 20 * 10) * US);
    }

    #[test]
    fn a_thread_that_sleeps_off_its_slice_sleeps_longer() {
        let (entries, receiver) = (ledger(&[7 * MS]), Receiver::default());
        assert_eq!(booked(&receiver, &entries, VirtNs(5 * MS), 40 * US), Met::Work);
        assert_eq!(free(&entries), [7 * MS + 40 * US]);
    }

    #[test]
    fn frames_alone_keep_a_cpu_as_busy_as_they_are() {
        let (entries, receiver) = (ledger(&[0]), Receiver::default());
        // 60 % of the CPU for a second: it was idle for the rest, and a thread need not wait.
        for frame in 0..10_000u64 {
            assert_eq!(booked(&receiver, &entries, VirtNs(frame * 100 * US), 60 * US), Met::Idle);
        }
        assert_eq!(free(&entries), [999_900 * US - LAG_MAX_V_NS + 60 * US]);
    }

    /// Of three frames in 30 µs of work on them the first interrupts a thread; the next does when that is over.
    #[test]
    fn a_machine_at_work_is_interrupted_once_for_what_comes_meanwhile() {
        let (entries, receiver) = (ledger(&[7 * MS]), Receiver::default());
        receiver.set_interrupt(5 * US);
        let mut took = |at_us: u64| {
            let now = VirtNs(MS + at_us * US);
            let ns = receiver.interrupts_ns(now, receiver.meets(&entries, now) == Met::Work);
            assert_ne!(booked(&receiver, &entries, now, 10 * US + ns), Met::TooMuch);
            ns / US
        };
        assert_eq!([0, 1, 20, 36].map(&mut took), [5, 0, 0, 5]);
        // An idle one is not.
        assert_eq!(receiver.interrupts_ns(VirtNs(9 * MS), receiver.meets(&entries, VirtNs(9 * MS)) == Met::Work), 0);
        let idle = Receiver::default();
        idle.set_interrupt(5 * US);
        assert_eq!((idle.interrupts_ns(VirtNs(MS), false), idle.interrupts_ns(VirtNs(MS), true)), (0, 5 * US));
    }

    #[test]
    fn the_cpu_that_is_free_first_takes_the_frame() {
        let (entries, receiver) = (ledger(&[9 * MS, 8 * MS]), Receiver::default());
        // It met no work, and the next, while the machine is still at it, meets that of frames only: one virtual CPU is idle.
        for frame in 1..=2 {
            assert_eq!(booked(&receiver, &entries, VirtNs(8 * MS), 10 * US), Met::Idle);
            assert_eq!(free(&entries), [9 * MS, 8 * MS + frame * 10 * US]);
        }
    }

    #[test]
    fn what_no_machine_can_do_is_not_charged() {
        let (entries, receiver) = (ledger(&[0]), Receiver::default());
        // Twice the CPU for a second.
        let taken = (0..10_000u64)
            .filter(|f| booked(&receiver, &entries, VirtNs(f * 100 * US), 200 * US) != Met::TooMuch)
            .count();
        let free = free(&entries)[0];
        assert!((free - (999 * MS + 900 * US)) <= LAG_MAX_V_NS + 200 * US, "{free}");
        assert!((5_000..5_400).contains(&taken), "{taken}");
    }

    #[test]
    fn what_bpf_programs_take_of_a_frame_is_not_the_nodes() {
        let receiver = Receiver::default();
        assert_eq!(receiver.kernels_ns(20 * US, 0), 20 * US);
        receiver.set_own(3 * US);
        assert_eq!([20 * US, 4 * US].map(|ns| receiver.kernels_ns(ns, 0)), [17 * US, 2 * US]);
        assert_eq!([20 * US, 12 * US].map(|ns| receiver.kernels_ns(ns, 5 * US)), [12 * US, 6 * US]);
    }

    #[test]
    fn a_size_takes_what_it_took_lately() {
        let lately = Lately::default();
        let means = |l: &Lately| [&l.work, &l.took].map(|mean| mean.load(Relaxed) / MEAN_ONE);
        (0..5).for_each(|_| lately.add(20 * US, 30 * US));
        assert_eq!(means(&lately), [20 * US, 30 * US]);
        lately.add(80 * US, 30 * US);
        assert_eq!(means(&lately), [30 * US, 30 * US]);
        (0..1000).for_each(|_| lately.add(40 * US, 50 * US));
        assert!(means(&lately).iter().zip([40 * US, 50 * US]).all(|(mean, all)| all.abs_diff(*mean) < 100));
        assert_eq!([0, 1, 63, 64, 65_600, 1 << 20].map(size_of_frame), [0, 0, 5, 6, 16, 16]);
    }

    /// 20 µs of work that took 30 here: at TDF 10 the original works 17 µs longer, at half the speed 37; at TDF 1 it has ended
    /// before.
    #[test]
    fn a_frame_is_held_for_what_the_original_works_longer() {
        let lately = Lately::default();
        let hold = |slowness, tdf| lately.hold(Rate { int: slowness, frac: 0 }, Rate::ratio_up(1, tdf));
        assert_eq!(hold(1, 10), None);
        lately.add(20 * US, 30 * US);
        assert_eq!([hold(1, 10), hold(2, 10), hold(1, 1)], [17, 37, 0].map(|us| Some(VirtSpan(us * US))));
        let receiver = Receiver::default();
        receiver.sizes[7].add(20 * US, 20 * US);
        receiver.sizes[9].add(60 * US, 60 * US);
        receiver.all.add(40 * US, 40 * US);
        let (one, tenth) = (Rate { int: 1, frac: 0 }, Rate::ratio_up(1, 10));
        let hold = |bytes| receiver.hold_at(one, tenth, bytes);
        assert_eq!([128, 600, 100, 9_000].map(hold), [18, 54, 36, 36].map(|us| VirtSpan(us * US)));
        assert_eq!(receiver.least_hold_at(one, tenth), Some(VirtSpan(18 * US)));
    }

    /// 20 µs of work each after rests of 1 and 16 ms, of which the latter are to cost half.
    #[test]
    fn what_is_cold_of_a_frame_is_not_charged() {
        let receiver = Receiver::default();
        let mut table = [0; GAP_BINS];
        table[gap_bin(16 * MS)] = 1 << 15;
        receiver.set_cold_discount(&table);
        let work = |gap_ns| receiver.work_ns(0, gap_ns, 20 * US, 600);
        assert_eq!([MS, 16 * MS, MS, 16 * MS].map(work), [20 * US, 10 * US, 20 * US, 10 * US]);
        assert_eq!(work(0), 20 * US);
        assert_eq!(receiver.work_ns(0, MS, 2 * RECEIVE_MAX_NS, 600), RECEIVE_MAX_NS);
        assert_eq!(receiver.received().cut_ns, 2 * 10 * US + RECEIVE_MAX_NS);
        // No evidence: no rest was known before the one, and the other took longer than a frame can.
        let of_two = [2, 40 * US, 2 * (20 * US * 20 * US / 1024), 12, 72, 12 * 20 * US];
        let mut all = [[0; RECEIVE_SUMS]; GAP_BINS];
        (all[gap_bin(MS)], all[gap_bin(16 * MS)]) = (of_two, of_two);
        assert_eq!(receiver.counts(), all);
    }
}
