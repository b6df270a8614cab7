//! Debt at egress, and whom threads wait for: loads the programs of `freestanding/bpf-egress` and hangs them on nodes'
//! NICs.
//!
//! One [`Egress`] per lab. Those at wake-ups and context switches are attached by BPF links, those on NICs live
//! with their device; when the process dies in any way, the kernel removes everything.

mod hands;
mod stalls;
mod waits;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use diecast_core_abi::GAP_BINS;
use diecast_core_cpu::{AGE_CELLS, AGE_SUMS, Ages, Bursts, HIT_SUMS, HitSums, WAIT_KINDS};
use diecast_core_vtime::RealNs;
use diecast_host_bpf::{BpfError, Programs, Source, absent};
use diecast_host_net::{HostNetError, LARGE_KEY_BYTES, TRAILER_BYTES, kernel_hz, netns_cookie};
use diecast_host_sys::memory::Shared;
use libbpf_rs::{MapCore, MapFlags, MapHandle, TC_EGRESS, TcHookBuilder};
use rustix::thread::sched_getcpu;

pub use hands::Handed;
pub use stalls::Stall;
pub use waits::Waits;

/// Programs at wake-ups and context switches, and where frames reach the stack.
const TRACED: [&str; 13] = [
    // Ends before begins: of an interrupt that is under way the end would be missing.
    "hrtimer_ends",
    "softirq_ends",
    "handler_ends",
    "waking",
    "wakeup",
    "wakeup_new",
    "burst",
    "migrate",
    "hit",
    "reached",
    "hrtimer_begins",
    "softirq_begins",
    "handler_begins",
];
/// At what threads receive; Linux before 6.3 has no such tracepoint.
const RECEIVED: &str = "received";
/// At switches and timers of cores, where no thread is watched.
const STALLED: [&str; 3] = ["passed_on", "timer_starts", "timer_ends"];
/// Finds out which process this is.
const LOADER: &str = "loader";
const DEBT: &str = "debt";
const NODES: &str = "nodes";
const LARGE: &str = "large";
const SLOW: &str = "slow";
const HIT_COSTS: &str = "hit_costs";
const METERED: &str = "metered";
const STACKS: &str = "stacks";
const HANDS: &str = "hands";
const LOST_HANDS: &str = "lost_hands";
const CORES: &str = "cores";
const STALLS: &str = "stalls";
const LOST_STALLS: &str = "lost_stalls";
/// `struct node` of the programs: bursts, their CPU time and its squares, their data, its squares and its products with CPU time
/// by kind and bin, sums over their ages and over the hits in them, switches, the programs' own time, wake-ups, then what threads
/// waited for.
const BURST_WORDS: usize = 6 * WAIT_KINDS * GAP_BINS;
const AGE_WORDS: usize = AGE_SUMS * AGE_CELLS;
const HIT_WORDS: usize = HIT_SUMS * WAIT_KINDS;
const SWITCH_WORDS: usize = 3;
const OWN_WORDS: usize = 4;
const WAKE_WORDS: usize = 8;
const NODE_WORDS: usize =
    BURST_WORDS + AGE_WORDS + HIT_WORDS + SWITCH_WORDS + OWN_WORDS + WAKE_WORDS + waits::WAITED_WORDS;

/// Of a struct of the programs of a cache line, for each core: when frames reached a stack (`struct stack`), and what it runs
/// (`struct core`: since when, of which class, of which node).
type OfCores = [[AtomicU64; 8]; CORES_MAX];
const CORES_MAX: usize = 256;
const OF_CORES_BYTES: u64 = size_of::<OfCores>() as u64;
/// What cores run when that is a node's: of `waits.h`.
const CLASS_NODES: u64 = 1;

/// What the programs counted of a node's threads since it was added.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    pub bursts: Bursts,
    pub ages: Ages,
    pub hits: HitSums,
    /// Switches to its threads: from another of the same process; from another of a node; from anything else.
    pub switches: [u64; SWITCH_WORDS],
    pub own: OwnTime,
    pub wakes: WakeTimes,
}

/// What wake-ups take, each as how often and how long in all, real ns: but for ways CPU time, without the programs' own and
/// without hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WakeTimes {
    /// Bursts that began with a receive, up to it.
    pub begins: [u64; 2],
    /// From the last packet before a sleep to that.
    pub ends: [u64; 2],
    /// From a packet to the next receive where there was no sleep between the two.
    pub turns: [u64; 2],
    /// From setting out to wake a thread until it got a core, where nobody had that.
    pub ways: [u64; 2],
}

impl WakeTimes {
    /// What came after an earlier reading.
    pub fn since(&self, before: &WakeTimes) -> WakeTimes {
        let grown = |now: [u64; 2], before: [u64; 2]| std::array::from_fn(|i| now[i].saturating_sub(before[i]));
        WakeTimes {
            begins: grown(self.begins, before.begins),
            ends: grown(self.ends, before.ends),
            turns: grown(self.turns, before.turns),
            ways: grown(self.ways, before.ways),
        }
    }
}

/// What the programs themselves took of a node's CPU time, real ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OwnTime {
    /// At switches to its threads, wake-ups by them and their receives.
    pub threads_ns: u64,
    /// At packets that its threads sent, with what it took them to wake the emulator, and how many those were.
    pub packets_ns: u64,
    pub packets: u64,
    /// In the emulator's threads while these delivered frames to it.
    pub frames_ns: u64,
}

impl OwnTime {
    /// What came after an earlier reading.
    pub fn since(&self, before: &OwnTime) -> OwnTime {
        OwnTime {
            threads_ns: self.threads_ns.saturating_sub(before.threads_ns),
            packets_ns: self.packets_ns.saturating_sub(before.packets_ns),
            packets: self.packets.saturating_sub(before.packets),
            frames_ns: self.frames_ns.saturating_sub(before.frames_ns),
        }
    }
}

/// What the meter adds to a node's bursts of work, real CPU ns: a hit, and a sleep in which a thread pays before a wait; what
/// lies between two hits; and how the node is metered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HitCost {
    pub added_ns: u64,
    pub period_ns: u64,
    pub pays_ns: u64,
    /// How long the original takes for so much CPU time, in real time, in 1/1024: TDF / speed.
    pub lead: u64,
    /// Whether clocks of cores meter the node. Threads that these do not know make its containers: their bursts tell nothing.
    pub by_cores: bool,
}

/// Why packets can't tell their senders' CPU time.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The kernel or libbpf refused.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The node's namespace has no cookie to tell.
    #[error(transparent)]
    Netns(#[from] HostNetError),
}

impl EgressError {
    /// What a user can do about it.
    pub fn hint(&self) -> &'static str {
        "needs root or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and a kernel with BTF (6.2 or later); without it the \
         grain is what bounds the error of a latency"
    }
}

/// The loaded programs. Dropping it detaches those at wake-ups and context switches.
#[derive(Debug)]
pub struct Egress {
    nodes: MapHandle,
    large: MapHandle,
    slow: MapHandle,
    hit_costs: MapHandle,
    metered: MapHandle,
    stacks: Shared<OfCores>,
    cores: Shared<OfCores>,
    hands: hands::Hands,
    lost_hands: MapHandle,
    stalls: Option<stalls::Stalls>,
    lost_stalls: MapHandle,
    /// So many of them there are.
    cpus: usize,
    debt: OwnedFd,
    programs: Programs,
}

impl Egress {
    /// Loads the programs and attaches those at wake-ups and context switches.
    pub fn load() -> Result<Egress, EgressError> {
        let with_data: Vec<&str> = TRACED.into_iter().chain([RECEIVED]).collect();
        Egress::load_with(&with_data).or_else(|_| Egress::load_with(&TRACED))
    }

    /// Loads the programs for a lab in which nobody is charged: frames tell when they left, and no thread is watched.
    pub fn load_stamps() -> Result<Egress, EgressError> {
        Egress::load_with(&[])
    }

    /// The same for one in which nothing holds threads back either: cores tell when they were kept from it.
    pub fn load_stalls() -> Result<Egress, EgressError> {
        Egress::load_with(&STALLED)
    }

    fn load_with(traced: &[&str]) -> Result<Egress, EgressError> {
        let mut programs = Programs::load(Source {
            object: diecast_host_bpf::object!("debt.bpf.o"),
            purpose: "debt at egress",
            constants: &u64::from(kernel_hz()).to_ne_bytes(),
            without: &[RECEIVED].into_iter().chain(STALLED).filter(|name| !traced.contains(name)).collect::<Vec<_>>(),
            room: &[],
            shared: &[],
        })?;
        programs.run(LOADER)?;
        programs.attach_traced(traced)?;
        let (nodes, large) = (programs.map(NODES)?, programs.map(LARGE)?);
        let (slow, hit_costs) = (programs.map(SLOW)?, programs.map(HIT_COSTS)?);
        let metered = programs.map(METERED)?;
        let of_cores = |name: &str| {
            let map = programs.map(name)?.as_fd().try_clone_to_owned();
            let mapped = map.and_then(|map| Shared::map(&map, 0, OF_CORES_BYTES));
            mapped.map_err(|e| programs.error("map", libbpf_rs::Error::from(e)))
        };
        let (stacks, cores) = (of_cores(STACKS)?, of_cores(CORES)?);
        let hands = hands::Hands::new(programs.map(HANDS)?).map_err(|e| programs.error("map", e))?;
        let lost_hands = programs.map(LOST_HANDS)?;
        let stalls = traced
            .contains(&STALLED[0])
            .then(|| stalls::Stalls::new(&programs.map(STALLS)?).map_err(|e| programs.error("map", e)));
        let (stalls, lost_stalls) = (stalls.transpose()?, programs.map(LOST_STALLS)?);
        let cpus = libbpf_rs::num_possible_cpus().unwrap_or(CORES_MAX).min(CORES_MAX);
        let debt = programs.descriptor(DEBT)?;
        Ok(Egress {
            nodes,
            large,
            slow,
            hit_costs,
            metered,
            stacks,
            cores,
            hands,
            lost_hands,
            stalls,
            lost_stalls,
            cpus,
            debt,
            programs,
        })
    }

    /// What clocks of cores know of each metered thread, for them to keep: packets tell some of it.
    pub fn metered(&self) -> BorrowedFd<'_> {
        self.metered.as_fd()
    }

    /// When the frame that this thread began to deliver at `begun` reached its node's stack: what came before is the TAP's.
    /// `None` where the thread has come to another core meanwhile. Asked once for each frame.
    pub fn reached_stack(&self, begun: RealNs) -> Option<RealNs> {
        let here = self.stacks.get(sched_getcpu())?;
        let reached = RealNs(here[0].swap(0, Relaxed));
        (reached > begun).then_some(reached)
    }

    /// Whether a thread of a node has a core just now; `cookie` is what `add_node` gave.
    pub fn runs(&self, cookie: u64) -> bool {
        let of_node = |core: &[AtomicU64; 8]| core[1].load(Relaxed) == CLASS_NODES && core[2].load(Relaxed) == cookie;
        self.cores.iter().take(self.cpus).any(of_node)
    }

    /// From now on threads in this namespace are watched. Gives the namespace's cookie.
    pub fn add_node(&self, netns: BorrowedFd<'_>) -> Result<u64, EgressError> {
        let cookie = netns_cookie(netns)?;
        self.nodes
            .update(&cookie.to_ne_bytes(), &vec![0; 8 * NODE_WORDS], MapFlags::ANY)
            .map_err(|error| self.programs.error("configure", error))?;
        Ok(cookie)
    }

    /// The bursts and switches of a node's threads, counted since the node was added; `cookie` is what `add_node` gave.
    pub fn counted(&self, cookie: u64) -> Result<Counted, EgressError> {
        let words = self.words(cookie)?;
        let mut words = words.iter().map(|w| *w as f64);
        let mut bursts = Bursts::default();
        let Bursts { count, cpu_ns, square_us2, data, data_square, data_us } = &mut bursts;
        for (kind, bin) in (0..WAIT_KINDS).flat_map(|kind| (0..GAP_BINS).map(move |bin| (kind, bin))) {
            for sums in [&mut *count, cpu_ns, square_us2, data, data_square, data_us] {
                sums[kind][bin] = words.next().unwrap_or(0.0);
            }
        }
        let (mut ages, mut hits) = (Ages::default(), HitSums::default());
        for sum in ages.0.iter_mut().flatten().chain(hits.0.iter_mut().flatten()) {
            *sum = words.next().unwrap_or(0.0);
        }
        let switches = std::array::from_fn(|_| words.next().unwrap_or(0.0) as u64);
        let [threads_ns, packets_ns, packets, frames_ns] = std::array::from_fn(|_| words.next().unwrap_or(0.0) as u64);
        let own = OwnTime { threads_ns, packets_ns, packets, frames_ns };
        let [begins, ends, turns, ways] =
            std::array::from_fn(|_| std::array::from_fn(|_| words.next().unwrap_or(0.0) as u64));
        let wakes = WakeTimes { begins, ends, turns, ways };
        Ok(Counted { bursts, ages, hits, switches, own, wakes })
    }

    /// The trailer of a frame with several segments that a NIC has just sent, by what it is known by; `None` when there is
    /// none, or too many came after it.
    pub fn trailer_of(&self, key: &[u8; LARGE_KEY_BYTES]) -> Option<[u8; TRAILER_BYTES]> {
        self.large.lookup(key, MapFlags::ANY).ok()??.try_into().ok()
    }

    /// What threads have handed on within a node, or all of them, up to that instant and since it was last taken, in order; whether
    /// there was anything, or may be: nothing is taken while another thread is at it. `cookie` is what `add_node` gave.
    pub fn take_handed(&self, cookie: Option<u64>, until: RealNs, each: impl FnMut(&Handed)) -> bool {
        self.hands.take(cookie, until, each)
    }

    /// What threads have handed on within a node and nobody has taken yet, in order.
    pub fn peek_handed(&self, cookie: u64) -> Vec<Handed> {
        self.hands.peek(cookie)
    }

    /// Readable now and then while there is some.
    pub fn handed(&self) -> BorrowedFd<'_> {
        self.hands.readable()
    }

    /// How much found no room, since nobody took it for too long.
    pub fn lost_handed(&self) -> u64 {
        word(&self.lost_hands)
    }

    /// Whether cores tell when they were kept from the lab.
    pub fn watches_stalls(&self) -> bool {
        self.stalls.is_some()
    }

    /// When cores were kept from the lab since this was last asked; none where that is not watched.
    pub fn take_stalls(&self) -> Option<Vec<Stall>> {
        self.stalls.as_ref().map(stalls::Stalls::take)
    }

    /// How long those were together that found no room, real ns.
    pub fn lost_stalls_ns(&self) -> u64 {
        word(&self.lost_stalls)
    }

    /// While the host's cores are slow, no burst is counted: it would teach nothing of what sleeps do.
    pub fn set_slow(&self, slow: bool) -> Result<(), EgressError> {
        self.slow
            .update(&0u32.to_ne_bytes(), &u32::from(slow).to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| self.programs.error("configure", error).into())
    }

    /// What the meter adds to a burst of this node is no part of what grows with sleeps.
    pub fn set_hit_cost(&self, cookie: u64, cost: HitCost) -> Result<(), EgressError> {
        let cost = [cost.added_ns, cost.period_ns, cost.pays_ns, cost.lead, cost.by_cores.into()].map(u64::to_ne_bytes);
        self.hit_costs
            .update(&cookie.to_ne_bytes(), cost.as_flattened(), MapFlags::ANY)
            .map_err(|error| self.programs.error("configure", error).into())
    }

    /// What a node's threads waited for since the node was added; `cookie` is what `add_node` gave.
    pub fn waits(&self, cookie: u64) -> Result<Waits, EgressError> {
        Ok(Waits::of_words(self.words(cookie)?.into_iter().skip(NODE_WORDS - waits::WAITED_WORDS)))
    }

    /// What the programs keep of a node.
    fn words(&self, cookie: u64) -> Result<Vec<u64>, EgressError> {
        let node = self
            .nodes
            .lookup(&cookie.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| self.programs.error("read", error))?
            .ok_or_else(|| self.programs.error("find the node in", absent()))?;
        Ok(node.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap_or_default())).collect())
    }

    /// Makes a NIC append the trailer to everything that it sends. For a thread in the NIC's namespace.
    pub fn attach_here(&self, index: u32) -> io::Result<()> {
        let nic = index as i32;
        let mut hook = TcHookBuilder::new(self.debt.as_fd()).ifindex(nic).handle(1).priority(1).hook(TC_EGRESS);
        hook.create().and_then(|mut h| h.attach()).map(drop).map_err(io::Error::other)
    }
}

/// The only number of a map.
fn word(map: &MapHandle) -> u64 {
    let found = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
    found.and_then(|v| Some(u64::from_ne_bytes(*v.first_chunk()?))).unwrap_or(0)
}
