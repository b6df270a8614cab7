//! The records of a journal, one type each.

use std::collections::BTreeMap;

use diecast_core_experiment::{Combine, Mode};
use diecast_core_vtime::{RealNs, Tdf, VirtNs, VirtSpan};
use serde::{Deserialize, Serialize};

use crate::metrics::Statistic;
use crate::pipes::{ChangeSource, Drops, NetworkChange, NicFaults, PipeSample, PipesSample};
use crate::stalls::{Stall, Stalls};
use crate::wire;

/// The version that this crate writes, and the only one that it reads.
pub const JOURNAL_VERSION: u32 = 16;
/// The journal's name in a run directory.
pub const JOURNAL_FILE: &str = "journal.jsonl";

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// What runs, where: always the first line.
    Header(Header),
    /// The run enters a phase.
    Phase(PhaseChange),
    /// A program starts, becomes ready or ends.
    Program(ProgramEvent),
    /// A node's counters at one instant.
    Sample(NodeSample),
    /// Counters of the pipes at one instant.
    Pipes(PipesSample),
    /// The network, or the clock of a node, was changed while the lab ran.
    NetworkChange(NetworkChange),
    /// One closed conservation window of a node.
    Conservation(Conservation),
    /// How late packets left or threads came back, over the measured time.
    Lateness(Lateness),
    /// One turn of the fixed-work probe on one host core.
    HostSpeed(HostSpeed),
    /// Who had the host's cores, up to one instant.
    HostUse(HostUse),
    /// A node's quota counters at one instant.
    Throttling(Throttling),
    /// What a node's threads waited for when they wanted a core, up to one instant.
    Waits(Waits),
    /// When cores were kept from a lab without meters, since the last such look.
    Stalls(Stalls),
    /// Something that a reader of the results must know.
    Finding(Finding),
    /// A metric of the catalog.
    Metric(MetricValue),
    /// How the run ended: always the last line of a finished run.
    End(End),
}

/// What runs, where and since when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`JOURNAL_VERSION`].
    pub journal_version: u32,
    /// The version of the `diecast` that ran.
    pub diecast_version: String,
    /// The lab's id.
    pub lab: String,
    /// How the catalog was run.
    pub mode: Mode,
    /// The time dilation factor of the lab's frame.
    #[serde(with = "wire::tdf")]
    pub tdf: Tdf,
    /// The scale factor S.
    pub scale: f64,
    /// By what the speeds of nodes that generate no load were multiplied (`--speed`).
    pub speed: f64,
    /// The seed of everything random.
    pub seed: u64,
    /// The catalog's `name`.
    pub catalog: String,
    /// [`hash_text`](crate::hash_text) of the catalog's text.
    pub catalog_hash: String,
    /// The workload's parameters after overrides.
    pub parameters: BTreeMap<String, String>,
    /// The machine that it ran on.
    pub host: HostFacts,
    /// How the nodes' CPU time is metered; missing where none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter: Option<MeterFacts>,
    /// The nodes, in the plan's order.
    pub nodes: Vec<NodeFacts>,
    /// Start on the host's CLOCK_MONOTONIC.
    #[serde(with = "wire::real_ns")]
    pub r_start_ns: RealNs,
    /// Start on the lab's virtual CLOCK_MONOTONIC.
    #[serde(with = "wire::virt_ns")]
    pub v_start_ns: VirtNs,
    /// Start on the nodes' wall clocks, ns since the Unix epoch: what captures and programs' logs count from. It was the host's
    /// as the lab got its clock, a moment before.
    pub unix_start_ns: u64,
}

/// What is worth knowing about the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFacts {
    /// Kernel release.
    pub kernel: String,
    /// Model name of the processor.
    pub cpu_model: String,
    /// Cores that the run might use.
    pub cores: u32,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// Layout of control groups: `v1`, `v2` or `hybrid`.
    pub cgroups: String,
}

/// How a run's nodes are metered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeterFacts {
    /// What hits come from: clocks of `cores` or events of `threads`.
    pub hits_from: String,
    /// CPU time from one hit of a thread to its next (the grain), real ns.
    pub grain_ns: u64,
    /// Hits come of time in the kernel too.
    pub counts_kernel: bool,
    /// Packets tell what their senders have used (debt at egress); without it a packet is up to a grain early.
    pub packets_tell: bool,
}

/// A node as the plan made it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its machine type.
    pub machine_type: String,
    /// Its virtual CPUs.
    pub cores: u32,
    /// Their speed, 1.0 being a core of this host.
    pub speed: f64,
    /// The host cores it is pinned to.
    pub host_cores: Vec<u32>,
    /// Whether it runs the workload's generator.
    pub generates_load: bool,
}

/// The parts of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Network, nodes and files are made.
    SetUp,
    /// Programs start and become ready.
    Start,
    /// The workload runs, nothing counts yet.
    WarmUp,
    /// What happens now counts.
    Measure,
    /// The workload comes to its end.
    Drain,
    /// Everything stops, files are collected.
    TearDown,
}

/// The run enters a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseChange {
    /// The phase that begins.
    pub phase: Phase,
    /// When, virtual.
    #[serde(with = "wire::virt_ns")]
    pub v_ns: VirtNs,
    /// When, real.
    #[serde(with = "wire::real_ns")]
    pub r_ns: RealNs,
}

/// Something happened to a program of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramEvent {
    /// The node it runs on.
    pub node: String,
    /// The program's name, as in its log files.
    pub program: String,
    /// What happened.
    pub change: ProgramChange,
    /// When, virtual.
    #[serde(with = "wire::virt_ns")]
    pub v_ns: VirtNs,
    /// When, real.
    #[serde(with = "wire::real_ns")]
    pub r_ns: RealNs,
}

/// What can happen to a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ProgramChange {
    /// It was started.
    Started {
        /// With this argument vector.
        argv: Vec<String>,
    },
    /// Its readiness check succeeded.
    Ready,
    /// It ended.
    Exited(Exit),
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// With a status.
    Status(i32),
    /// By a signal.
    Signal(i32),
}

/// A node's counters, all since its start. They only grow, except memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSample {
    /// The node.
    pub node: String,
    /// When, virtual.
    #[serde(with = "wire::virt_ns")]
    pub v_ns: VirtNs,
    /// Real CPU time that its ledger was charged for its threads; 0 where there is no meter.
    pub cpu_charged_ns: u64,
    /// Real CPU time that its ledger was charged for what the kernel did for it when packets came.
    pub cpu_received_ns: u64,
    /// Real CPU time that the kernel took for it when packets came and that was not charged: colder or slower than on the
    /// original machine, or interrupted.
    pub cpu_received_cut_ns: u64,
    /// Real CPU time that the kernel counted for it.
    pub cpu_used_ns: u64,
    /// Memory in use.
    pub memory_bytes: u64,
    /// Bytes it sent, Ethernet header included.
    pub sent_bytes: u64,
    /// Packets it sent.
    pub sent_packets: u64,
    /// Bytes it received, Ethernet header included.
    pub received_bytes: u64,
    /// Packets it received.
    pub received_packets: u64,
    /// Packets to or from it that the queues or the loss model of its own links dropped, or that were lost at its NICs.
    pub dropped_packets: u64,
    /// Packets that it sent and that the emulator did not take from its TAP in time: errors of the run.
    pub ring_dropped_packets: u64,
    /// System calls that trapped.
    pub trapped_calls: u64,
    /// Hits of threads for which its page had no slot: nobody was charged.
    pub slotless_hits: u64,
    /// Its NICs with which something was not right.
    pub nic_faults: Vec<NicFaults>,
}

/// One conservation window of a node, closed once it used 20 ms of CPU, or as measuring begins, and a look at it is exact, at the
/// latest after 40. All times are real CPU time of this window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conservation {
    /// The node.
    pub node: String,
    /// End of the window.
    #[serde(with = "wire::virt_ns")]
    pub v_ns: VirtNs,
    /// Charged to the ledger, by meters and by the supervisor together.
    pub charged_ns: u64,
    /// The part of `charged_ns` that no meter caught and the supervisor charged.
    pub escaped_ns: u64,
    /// What the kernel counted.
    pub used_ns: u64,
    /// The part of `used_ns` that is the meter's own cost, as estimated.
    pub meter_cost_ns: u64,
    /// The part of `used_ns` that was not charged because the work was colder than on the original machine.
    pub cold_ns: u64,
    /// The part of `used_ns` that was not charged because the host's cores were slow.
    pub slow_ns: u64,
}

impl Conservation {
    /// What should have been charged, real ns: what was used without the meter's cost and what is not to be charged.
    pub fn due_ns(&self) -> u64 {
        let used_ns = self.used_ns.saturating_sub(self.meter_cost_ns);
        used_ns.saturating_sub(self.cold_ns).saturating_sub(self.slow_ns)
    }

    /// `|charged - due| / due`; 1 when nothing was due and something was charged.
    ///
    /// Example: 19.9 ms charged of 20.3 ms used with 0.3 ms of cost is an error of 0.5 %.
    pub fn error(&self) -> f64 {
        let due = self.due_ns();
        let off = self.charged_ns.abs_diff(due);
        match (off, due) {
            (0, _) => 0.0,
            (_, 0) => 1.0,
            _ => off as f64 / due as f64,
        }
    }
}

/// Who is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatenessSource {
    /// Packets: delivered after the model's time. One record for the lab.
    Emulator,
    /// Threads: back from the meter after the ledger's time. One record for each node.
    Ledger,
}

/// How late something was over the measured time, in virtual time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lateness {
    /// Who.
    pub source: LatenessSource,
    /// On which node; none for the emulator.
    pub node: Option<String>,
    /// Packets or waits seen.
    pub events: u64,
    /// Those later than the source tolerates: for a ledger, than its bounded catch-up can make good.
    pub late_events: u64,
    /// Half were at most this late.
    #[serde(with = "wire::virt_span")]
    pub v_p50_ns: VirtSpan,
    /// 99 % were at most this late.
    #[serde(with = "wire::virt_span")]
    pub v_p99_ns: VirtSpan,
    /// 99.9 % were at most this late.
    #[serde(with = "wire::virt_span")]
    pub v_p999_ns: VirtSpan,
    /// The worst.
    #[serde(with = "wire::virt_span")]
    pub v_max_ns: VirtSpan,
    /// The histogram: the greatest lateness of each bucket and how many fell into it, ascending, empty ones left out. Eight
    /// buckets to a doubling; the counts add up to `events`.
    pub v_buckets_ns: Vec<(u64, u64)>,
}

/// One turn of the fixed-work probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpeed {
    /// The host core.
    pub core: u32,
    /// When, real: the host is its subject.
    #[serde(with = "wire::real_ns")]
    pub r_ns: RealNs,
    /// CPU time that the fixed work took.
    pub probe_ns: u64,
}

/// Who had the host's cores, in sums that only grow. All times are real.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostUse {
    /// When.
    #[serde(with = "wire::real_ns")]
    pub r_ns: RealNs,
    /// Each core that the lab may use, since the host's start.
    pub cores: Vec<CoreUse>,
    /// CPU time of `diecast` itself: supervisor, emulator, probes, the threads that keep cores awake.
    pub own_ns: u64,
    /// The emulator's part of that.
    pub emulator_ns: u64,
    /// The part of the threads that keep cores awake, which others can have at any time.
    pub awake_ns: u64,
    /// CPU time of the nodes.
    pub nodes_ns: u64,
}

/// A host core's time since the host's start, in ticks of the kernel. Source: `/proc/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreUse {
    /// The core.
    pub core: u32,
    /// Something of this host ran.
    pub busy_ns: u64,
    /// Nothing ran, by the host's own choice.
    pub idle_ns: u64,
    /// A hypervisor ran something else.
    pub stolen_ns: u64,
    /// The core ran at less than a third of its usual speed in this run, since the run's start. Source: a thread that
    /// repeats the same work on it whenever nothing else runs there.
    pub slow_ns: u64,
}

/// A node's quota counters since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttling {
    /// The node.
    pub node: String,
    /// When, virtual.
    #[serde(with = "wire::virt_ns")]
    pub v_ns: VirtNs,
    /// Quota periods that passed.
    pub periods: u64,
    /// Periods in which it was throttled.
    pub throttled_periods: u64,
    /// Real time for which it was throttled.
    pub r_throttled_ns: u64,
}

/// How long a node's threads were ready to run and did not, all together, since its start. Sums only grow; times are real.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waits {
    /// The node.
    pub node: String,
    /// When, virtual.
    #[serde(with = "wire::virt_ns")]
    pub v_ns: VirtNs,
    /// In all. Without causes it is schedstat's run delay of threads that the watch saw: short-lived ones are missing.
    pub waited_ns: u64,
    /// What ran instead; none where BPF programs can't tell.
    pub causes: Option<WaitCauses>,
}

/// What ran while threads waited for a core. The causes add up to the whole wait, nearly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitCauses {
    /// Threads of other nodes of the lab.
    pub other_nodes_ns: u64,
    /// Threads of the same node.
    pub siblings_ns: u64,
    /// The node's quota held the thread, whatever ran.
    pub ceiling_ns: u64,
    /// `diecast` itself: emulator, supervisor, probes.
    pub diecast_ns: u64,
    /// Anything else on this host, the kernel's threads among it.
    pub others_ns: u64,
    /// No thread: the core was on its way, busy with interrupts, or a hypervisor had it.
    pub nobody_ns: u64,
}

/// Something that a reader of the results must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// What kind of thing.
    pub kind: FindingKind,
    /// The node, where there is one.
    pub node: Option<String>,
    /// How many of them this record stands for; records of one kind add up.
    pub count: u64,
    /// One sentence, with the operands.
    pub detail: String,
    /// When, virtual.
    #[serde(with = "wire::virt_ns")]
    pub v_ns: VirtNs,
    /// When, real.
    #[serde(with = "wire::real_ns")]
    pub r_ns: RealNs,
}

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A process of a node lives without the blob.
    ProcessOutsideFrame,
    /// A thread of a node runs without a meter.
    ThreadWithoutMeter,
    /// A ledger value was out of bounds and clamped.
    ClampedLedger,
    /// A kernel feature is absent and a lesser way was taken.
    MissingFeature,
    /// A time constant of the kernel could not be stretched as far as the TDF asks for.
    ClampedSysctl,
    /// A program ended that should not have.
    ProgramDied,
    /// A NIC of a node went away: the network was not what the catalog asks for.
    NicLost,
    /// Worth reading, does not touch the verdict.
    Warning,
}

/// A metric of the catalog, with its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricValue {
    /// Its name in the catalog.
    pub name: String,
    /// Its unit, as the catalog says.
    pub unit: String,
    /// The value or values.
    pub data: MetricData,
}

/// What a metric measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MetricData {
    /// One number from each node's output, combined.
    Scalar {
        /// Over all nodes; none where one has none.
        value: Option<f64>,
        /// How.
        combine: Combine,
        /// Node to its number; none where its program said null.
        per_node: BTreeMap<String, Option<f64>>,
    },
    /// Raw samples, pooled over the nodes.
    Samples {
        /// How many.
        count: u64,
        /// The figures that the catalog asks for, in its order; empty where there are no samples.
        show: Vec<Shown>,
        /// Node to the name of its raw file in the run directory.
        files: BTreeMap<String, String>,
    },
}

/// A figure of pooled samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shown {
    /// Which.
    pub statistic: Statistic,
    /// Its value.
    pub value: f64,
}

/// How the run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// When, virtual.
    #[serde(with = "wire::virt_ns")]
    pub v_ns: VirtNs,
    /// When, real.
    #[serde(with = "wire::real_ns")]
    pub r_ns: RealNs,
    /// Whether the experiment did what the catalog says.
    pub outcome: Outcome,
    /// Whether its numbers may be believed.
    pub verdict: Verdict,
}

/// Whether the experiment did what the catalog says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// It ran to its end.
    Completed,
    /// It did not.
    Failed {
        /// One sentence.
        reason: String,
    },
}

/// Whether a run's numbers may be believed; made by `core/report` from the records before it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// No budget was exceeded.
    pub trustworthy: bool,
    /// One for each budget that was exceeded.
    pub reasons: Vec<Reason>,
    /// The TDF that would keep the budgets, where a TDF can.
    #[serde(with = "wire::tdf_option")]
    pub advised_tdf: Option<Tdf>,
    /// What this host can't do and the run did without, in words: no budget says what that costs.
    pub without: Vec<String>,
}

/// A budget that was exceeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// What was measured.
    pub what: String,
    /// Its value, with its unit.
    pub measured: String,
    /// What was expected, in words: `at most 100 µs`.
    pub budget: String,
    /// What to do.
    pub advice: String,
}

/// One record of every kind, as a run might write them: for the reference page and for tests.
pub fn examples() -> Vec<Record> {
    let (v_ns, r_ns) = (VirtNs(7_000_000_000), RealNs(70_000_000_000));
    let node = || "app-1".to_owned();
    let ten = Tdf::new(10, 1).unwrap_or(Tdf::ONE);
    vec![
        Record::Header(Header {
            journal_version: JOURNAL_VERSION,
            diecast_version: "0.1.0".into(),
            lab: "web-tier-3f2a".into(),
            mode: Mode::Diecast,
            tdf: ten,
            scale: 10.0,
            speed: 1.0,
            seed: 7,
            catalog: "web-tier".into(),
            catalog_hash: crate::hash_text("diecast: 1\n"),
            parameters: BTreeMap::from([("rate".into(), "90/s".into())]),
            host: HostFacts {
                kernel: "6.18.5".into(),
                cpu_model: "a processor".into(),
                cores: 2,
                memory_bytes: 24 << 30,
                cgroups: "hybrid".into(),
            },
            meter: Some(MeterFacts {
                hits_from: "cores".into(),
                grain_ns: 500_000,
                counts_kernel: true,
                packets_tell: true,
            }),
            nodes: vec![NodeFacts {
                name: node(),
                machine_type: "app".into(),
                cores: 1,
                speed: 0.15,
                host_cores: vec![1],
                generates_load: false,
            }],
            r_start_ns: RealNs(1_000_000_000),
            v_start_ns: VirtNs(1_000_000_000),
            unix_start_ns: 1_800_000_000_000_000_000,
        }),
        Record::Phase(PhaseChange { phase: Phase::Measure, v_ns, r_ns }),
        Record::Program(ProgramEvent {
            node: node(),
            program: "app-server".into(),
            change: ProgramChange::Started { argv: vec!["app-server".into(), "--db".into(), "db".into()] },
            v_ns,
            r_ns,
        }),
        Record::Sample(NodeSample {
            node: node(),
            v_ns,
            cpu_charged_ns: 41_000_000,
            cpu_received_ns: 2_000_000,
            cpu_received_cut_ns: 700_000,
            cpu_used_ns: 42_000_000,
            memory_bytes: 64 << 20,
            sent_bytes: 120_000,
            sent_packets: 400,
            received_bytes: 90_000,
            received_packets: 390,
            dropped_packets: 3,
            ring_dropped_packets: 0,
            trapped_calls: 5_120,
            slotless_hits: 0,
            nic_faults: vec![NicFaults { nic: "eth0".into(), malformed: 2, not_taken: 1, ..NicFaults::default() }],
        }),
        Record::Pipes(PipesSample {
            v_ns,
            pipes: vec![PipeSample {
                pipe: 3,
                from: "core".into(),
                to: node(),
                packets_in: 412,
                bytes_in: 96_000,
                packets_sent: 402,
                bytes_sent: 91_000,
                v_busy_ns: VirtSpan(7_280_000),
                dropped: Drops { queue_full: 10, loss: 2, ..Drops::default() },
                queue_packets_max: 100,
                queue_bytes_max: 40_000,
                ..PipeSample::default()
            }],
        }),
        Record::NetworkChange(NetworkChange {
            v_ns,
            r_ns,
            source: ChangeSource::Command,
            change: "cut core:app-1 and back".into(),
        }),
        Record::Conservation(Conservation {
            node: node(),
            v_ns,
            charged_ns: 19_900_000,
            escaped_ns: 100_000,
            used_ns: 20_300_000,
            meter_cost_ns: 300_000,
            cold_ns: 250_000,
            slow_ns: 90_000,
        }),
        Record::Lateness(Lateness {
            source: LatenessSource::Emulator,
            node: None,
            events: 40_000,
            late_events: 2,
            v_p50_ns: VirtSpan(400),
            v_p99_ns: VirtSpan(1_500),
            v_p999_ns: VirtSpan(21_000),
            v_max_ns: VirtSpan(190_000),
            v_buckets_ns: vec![(415, 23_000), (1_535, 16_900), (22_527, 90), (196_607, 10)],
        }),
        Record::HostSpeed(HostSpeed { core: 1, r_ns, probe_ns: 412_000 }),
        Record::HostUse(HostUse {
            r_ns,
            cores: vec![CoreUse {
                core: 1,
                busy_ns: 4_210_000_000,
                idle_ns: 65_000_000_000,
                stolen_ns: 60_000_000,
                slow_ns: 75_000_000,
            }],
            own_ns: 2_300_000_000,
            emulator_ns: 1_100_000_000,
            awake_ns: 700_000_000,
            nodes_ns: 1_800_000_000,
        }),
        Record::Throttling(Throttling { node: node(), v_ns, periods: 700, throttled_periods: 0, r_throttled_ns: 0 }),
        Record::Waits(Waits {
            node: node(),
            v_ns,
            waited_ns: 1_200_000_000,
            causes: Some(WaitCauses {
                other_nodes_ns: 840_000_000,
                siblings_ns: 310_000_000,
                ceiling_ns: 0,
                diecast_ns: 30_000_000,
                others_ns: 15_000_000,
                nobody_ns: 5_000_000,
            }),
        }),
        Record::Stalls(Stalls {
            r_ns,
            stalls: vec![
                Stall {
                    core: 1,
                    r_from_ns: RealNs(69_900_000_000),
                    r_to_ns: RealNs(69_901_300_000),
                    by: Some("kdamond.0".into()),
                },
                Stall { core: 0, r_from_ns: RealNs(69_950_000_000), r_to_ns: RealNs(69_957_600_000), by: None },
            ],
            r_lost_ns: 0,
        }),
        Record::Finding(Finding {
            kind: FindingKind::ThreadWithoutMeter,
            node: Some(node()),
            count: 1,
            detail: "thread 4242 of app-server has no meter: perf_event_open gave EMFILE".into(),
            v_ns,
            r_ns,
        }),
        Record::Metric(MetricValue {
            name: "latency".into(),
            unit: "ns".into(),
            data: MetricData::Samples {
                count: 2,
                show: vec![Shown { statistic: Statistic::P50, value: 21_000_000.0 }],
                files: BTreeMap::from([("load-1".into(), "samples/latency.load-1.bin".into())]),
            },
        }),
        Record::End(End {
            v_ns,
            r_ns,
            outcome: Outcome::Completed,
            verdict: Verdict {
                trustworthy: false,
                reasons: vec![Reason {
                    what: "threads without a meter".into(),
                    measured: "1".into(),
                    budget: "none".into(),
                    advice: "raise the limit of open files".into(),
                }],
                advised_tdf: None,
                without: vec!["the initial RTO is not dilated: Operation not permitted (os error 1)".into()],
            },
        }),
    ]
}
