//! Made-up run directories: a journal as a run writes it, with samples from a seed.

use std::collections::BTreeMap;
use std::io;

use diecast_core_journal::metrics::{Statistic, figures, to_sample_bytes};
use diecast_core_journal::{
    Combine, Conservation, CoreUse, End, Header, HostFacts, HostSpeed, HostUse, JOURNAL_VERSION, Lateness,
    LatenessSource, MetricData, MetricValue, Mode, NodeFacts, NodeSample, Outcome, Phase, PhaseChange, Record,
    Throttling, WaitCauses, Waits, examples, hash_text, to_line,
};
use diecast_core_report::{Budgets, Fidelity, Run, load_run, samples_file};
use diecast_core_vtime::{RealNs, Tdf, VirtNs, VirtSpan};

pub const S: u64 = 1_000_000_000;

/// What differs between made-up runs.
#[derive(Clone)]
pub struct Made {
    pub mode: Mode,
    pub tdf: u64,
    pub seed: u64,
    pub rate: f64,
    /// Mean of the exponential part of the latency.
    pub mean_ns: f64,
    pub probe_ns: u64,
    pub throttled_ns: u64,
    /// By each node.
    pub ring_dropped: u64,
    pub samples: usize,
    /// Real ns of core 1 in each second.
    pub stolen_ns_per_s: u64,
    /// The same.
    pub slow_ns_per_s: u64,
    /// Real ns of both cores together in each second.
    pub others_ns_per_s: u64,
}

impl Made {
    pub fn new(mode: Mode, seed: u64) -> Made {
        let tdf = if mode == Mode::Diecast { 10 } else { 1 };
        let throttled_ns = if mode == Mode::Naive { 9 * S } else { 0 };
        Made {
            mode,
            tdf,
            seed,
            rate: 180.0,
            mean_ns: 2e6,
            probe_ns: 400_000,
            throttled_ns,
            ring_dropped: 0,
            samples: 1000,
            stolen_ns_per_s: 0,
            slow_ns_per_s: 5_000_000,
            others_ns_per_s: 0,
        }
    }

    pub fn header(&self) -> Header {
        let node = |name: &str, speed, core, generates_load| NodeFacts {
            name: name.into(),
            machine_type: name.trim_end_matches("-1").into(),
            cores: 1,
            speed,
            host_cores: vec![core],
            generates_load,
        };
        Header {
            journal_version: JOURNAL_VERSION,
            diecast_version: "0.1.0".into(),
            lab: format!("web-{}", self.seed),
            mode: self.mode,
            tdf: Tdf::new(self.tdf, 1).unwrap(),
            scale: if self.mode == Mode::Baseline { 1.0 } else { 10.0 },
            speed: 1.0,
            seed: 7,
            catalog: "web".into(),
            catalog_hash: hash_text("diecast: 1"),
            parameters: BTreeMap::from([("rate".into(), "90/s".into())]),
            host: HostFacts::default(),
            meter: None,
            nodes: vec![node("load-1", 0.1, 0, true), node("app-1", 0.15, 1, false)],
            r_start_ns: RealNs(100 * S),
            v_start_ns: VirtNs(100 * S),
            unix_start_ns: 0,
        }
    }

    /// Latencies: 20 ms of wire plus an exponential part.
    pub fn latencies(&self) -> Vec<u64> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        (0..self.samples).map(|_| (20e6 - self.mean_ns * (1.0 - random.f64()).ln()) as u64).collect()
    }

    /// The records up to the verdict.
    pub fn records(&self) -> Vec<Record> {
        let real = |v_s: u64| RealNs((100 + v_s * self.tdf) * S);
        let phase =
            |phase, v_s: u64| Record::Phase(PhaseChange { phase, v_ns: VirtNs((100 + v_s) * S), r_ns: real(v_s) });
        let mut records = vec![phase(Phase::SetUp, 0), phase(Phase::Start, 1), phase(Phase::WarmUp, 2)];
        records.push(phase(Phase::Measure, 7));
        for v_s in 7..=27 {
            let v_ns = VirtNs((100 + v_s) * S);
            for (node, speed, bytes) in [("load-1", 100_000_000, 90_000), ("app-1", 150_000_000, 120_000)] {
                // 30 % of the machine plus a wave, so that the plot shows one.
                let used = v_s * speed * 3 / 10 + (v_s % 5) * speed / 20;
                let metered = self.mode.has_envelope();
                records.push(Record::Sample(NodeSample {
                    node: node.into(),
                    v_ns,
                    cpu_charged_ns: if metered { used * 997 / 1000 } else { 0 },
                    cpu_received_ns: 0,
                    cpu_received_cut_ns: 0,
                    cpu_used_ns: used,
                    memory_bytes: (64 + v_s) << 20,
                    sent_bytes: v_s * bytes,
                    sent_packets: v_s * 300,
                    received_bytes: v_s * bytes * 2,
                    received_packets: v_s * 290,
                    dropped_packets: 0,
                    ring_dropped_packets: self.ring_dropped / 20 * (v_s - 7),
                    trapped_calls: v_s * 10,
                    slotless_hits: 0,
                    nic_faults: vec![],
                }));
                if metered {
                    records.push(Record::Conservation(Conservation {
                        node: node.into(),
                        v_ns,
                        charged_ns: 19_900_000 + v_s * 1_000,
                        escaped_ns: 100_000,
                        used_ns: 20_300_000,
                        meter_cost_ns: 300_000,
                        cold_ns: 0,
                        slow_ns: 0,
                    }));
                }
                if metered {
                    let other_nodes_ns = v_s * speed / 10;
                    let causes =
                        WaitCauses { other_nodes_ns, siblings_ns: other_nodes_ns / 4, ..WaitCauses::default() };
                    records.push(Record::Waits(Waits {
                        node: node.into(),
                        v_ns,
                        waited_ns: other_nodes_ns + causes.siblings_ns,
                        causes: Some(causes),
                    }));
                }
                let r_throttled_ns = self.throttled_ns / 20 * (v_s - 7);
                let (node, throttled_periods) = (node.to_owned(), r_throttled_ns / 50_000_000);
                records.push(Record::Throttling(Throttling {
                    node,
                    v_ns,
                    periods: 10 * v_s,
                    throttled_periods,
                    r_throttled_ns,
                }));
            }
            for core in 0..2 {
                let probe_ns = self.probe_ns * (100 + v_s % 3) / 100;
                records.push(Record::HostSpeed(HostSpeed { core, r_ns: real(v_s), probe_ns }));
            }
            let all_ns = v_s * self.tdf * S;
            let core = |core| CoreUse {
                core,
                busy_ns: all_ns * 98 / 100 - self.stolen_ns_per_s * v_s * self.tdf * u64::from(core),
                idle_ns: all_ns / 100,
                stolen_ns: all_ns / 100 + self.stolen_ns_per_s * v_s * self.tdf * u64::from(core),
                slow_ns: self.slow_ns_per_s * v_s * self.tdf * u64::from(core),
            };
            records.push(Record::HostUse(HostUse {
                r_ns: real(v_s),
                cores: vec![core(0), core(1)],
                own_ns: all_ns * 150 / 100 - self.others_ns_per_s * v_s * self.tdf,
                emulator_ns: all_ns * 20 / 100,
                awake_ns: all_ns * 110 / 100,
                nodes_ns: all_ns * 40 / 100,
            }));
        }
        records.push(phase(Phase::Drain, 27));
        records.push(lateness(LatenessSource::Emulator, None, 1_500, 190_000));
        if self.mode.has_envelope() {
            records.push(lateness(LatenessSource::Ledger, Some("app-1"), 40_000, 900_000));
        }
        records.push(Record::Metric(MetricValue {
            name: "throughput".into(),
            unit: "1/s".into(),
            data: MetricData::Scalar {
                value: Some(self.rate),
                combine: Combine::Sum,
                per_node: BTreeMap::from([("load-1".into(), Some(self.rate))]),
            },
        }));
        let latencies = self.latencies();
        let mut sorted = latencies.clone();
        sorted.sort_unstable();
        let show = [Statistic::Mean, Statistic::P50, Statistic::P99];
        records.push(Record::Metric(MetricValue {
            name: "latency".into(),
            unit: "ns".into(),
            data: MetricData::Samples {
                count: latencies.len() as u64,
                show: figures(&show, &sorted),
                files: BTreeMap::from([("load-1".into(), samples_file("latency", "load-1"))]),
            },
        }));
        records.push(phase(Phase::TearDown, 28));
        records
    }

    /// The whole run directory, file by file.
    pub fn directory(&self) -> BTreeMap<String, Vec<u8>> {
        let header = self.header();
        let mut records = self.records();
        let verdict = Fidelity::from_records(&header, &records).verdict(&Budgets::default());
        let (v_ns, r_ns) = (VirtNs(128 * S), RealNs((100 + 28 * self.tdf) * S));
        records.push(Record::End(End { v_ns, r_ns, outcome: Outcome::Completed, verdict }));
        let lines = [Record::Header(header)].iter().chain(&records).map(to_line).collect::<String>();
        BTreeMap::from([
            ("journal.jsonl".into(), lines.into_bytes()),
            (samples_file("latency", "load-1"), to_sample_bytes(&self.latencies())),
        ])
    }

    /// The run as loaded from its directory.
    pub fn run(&self, label: &str) -> Run {
        load(label, &self.directory()).unwrap()
    }

    /// The monitor's numbers, with more records.
    pub fn fidelity(&self, more: Vec<Record>) -> Fidelity {
        let mut records = self.records();
        records.extend(more);
        Fidelity::from_records(&self.header(), &records)
    }
}

pub fn load(label: &str, directory: &BTreeMap<String, Vec<u8>>) -> Result<Run, diecast_core_report::LoadError> {
    load_run(label, &Budgets::default(), |name| {
        directory.get(name).cloned().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))
    })
}

pub fn lateness(source: LatenessSource, node: Option<&str>, p99: u64, max: u64) -> Record {
    Record::Lateness(Lateness {
        source,
        node: node.map(str::to_owned),
        events: 10_000,
        late_events: 3,
        v_p50_ns: VirtSpan(400),
        v_p99_ns: VirtSpan(p99),
        v_p999_ns: VirtSpan(max / 2),
        v_max_ns: VirtSpan(max),
        v_buckets_ns: vec![(400, 9_000), (p99, 980), (max, 20)],
    })
}

/// The example record of a kind, to be changed.
pub fn example(kind: &str) -> Record {
    let starts = format!("{{\"record\":\"{kind}\"");
    examples().into_iter().find(|record| to_line(record).starts_with(&starts)).unwrap()
}
