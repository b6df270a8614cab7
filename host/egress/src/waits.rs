//! What a node's threads waited for when they wanted a core, as the BPF programs count it.

/// `CORES_MAX` of freestanding/bpf-egress/waits.h.
const CORES_MAX: usize = 256;
const CAUSES: usize = 6;
/// `struct waited` of the programs.
pub(crate) const WAITED_WORDS: usize = CORES_MAX + CAUSES;

/// How long all threads of a node together were ready to run and did not, by what ran instead, real ns. Sums that only
/// grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Threads of other nodes of the lab.
    pub other_nodes_ns: u64,
    /// Threads of the same node.
    pub siblings_ns: u64,
    /// The node's quota held the thread, whatever ran.
    pub ceiling_ns: u64,
    /// This process: emulator, supervisor, probes.
    pub diecast_ns: u64,
    /// Anything else on this host, the kernel's threads among it.
    pub others_ns: u64,
    /// No thread: the core was on its way, busy with interrupts, or a hypervisor had it.
    pub nobody_ns: u64,
}

impl Waits {
    /// From `struct waited`.
    pub(crate) fn of_words(mut words: impl Iterator<Item = u64>) -> Waits {
        let mut next = |at| words.nth(at).unwrap_or(0);
        Waits {
            other_nodes_ns: next(CORES_MAX),
            siblings_ns: next(0),
            ceiling_ns: next(0),
            diecast_ns: next(0),
            others_ns: next(0),
            nobody_ns: next(0),
        }
    }

    /// All causes together.
    pub fn total_ns(&self) -> u64 {
        let Waits { other_nodes_ns, siblings_ns, ceiling_ns, diecast_ns, others_ns, nobody_ns } = self;
        other_nodes_ns + siblings_ns + ceiling_ns + diecast_ns + others_ns + nobody_ns
    }
}
