//! When is a run trustworthy, and what is advised.

use crate::common::{self, Made, example, lateness};
use diecast_core_journal::{
    Conservation, Finding, FindingKind, HostSpeed, LatenessSource, MeterFacts, Mode, NicFaults, NodeSample, Record,
    Stall, Stalls, Throttling, to_line,
};
use diecast_core_report::{Budgets, Fidelity, RunSummary, text};
use diecast_core_vtime::{RealNs, Tdf, VirtNs};

fn verdict(fidelity: &Fidelity) -> (Vec<String>, Option<u32>) {
    let verdict = fidelity.verdict(&Budgets::default());
    assert_eq!(verdict.trustworthy, verdict.reasons.is_empty());
    (verdict.reasons.into_iter().map(|reason| reason.what).collect(), verdict.advised_tdf.map(Tdf::num))
}

fn finding(kind: FindingKind) -> Record {
    let Record::Finding(finding) = example("finding") else { panic!() };
    Record::Finding(Finding { kind, ..finding })
}

#[test]
fn a_healthy_run_of_each_mode_is_trustworthy() {
    for mode in [Mode::Baseline, Mode::Native, Mode::Diecast, Mode::Naive] {
        assert_eq!(verdict(&Made::new(mode, 1).fidelity(vec![])), (vec![], None), "{mode}");
    }
}

#[test]
fn findings_count_only_where_an_envelope_is_prescribed() {
    for kind in [FindingKind::ProcessOutsideFrame, FindingKind::ThreadWithoutMeter, FindingKind::ClampedLedger] {
        for (mode, reasons) in [(Mode::Baseline, 1), (Mode::Diecast, 1), (Mode::Native, 0), (Mode::Naive, 0)] {
            let fidelity = Made::new(mode, 1).fidelity(vec![finding(kind)]);
            assert_eq!(verdict(&fidelity).0.len(), reasons, "{kind:?} in {mode}");
        }
    }
    for mode in [Mode::Native, Mode::Diecast] {
        let fidelity = Made::new(mode, 1).fidelity(vec![finding(FindingKind::ProgramDied)]);
        assert_eq!(verdict(&fidelity).0, ["programs that died"]);
        let fidelity = Made::new(mode, 1).fidelity(vec![finding(FindingKind::Warning)]);
        assert_eq!(verdict(&fidelity).0, [""; 0]);
    }
}

#[test]
fn the_advised_tdf_follows_the_worst_lateness() {
    // p99 240 µs against 100 µs: 10 · 2.4 · 1.25 = 30; the ledger's 600 µs against 500 µs asks for 15 only.
    let late = vec![
        lateness(LatenessSource::Emulator, None, 240_000, 300_000),
        lateness(LatenessSource::Ledger, Some("db-1"), 600_000, 700_000),
    ];
    let (reasons, tdf) = verdict(&Made::new(Mode::Diecast, 1).fidelity(late.clone()));
    assert_eq!(reasons, ["ledger lateness p99 (db-1)", "emulator lateness p99"]);
    assert_eq!(tdf, Some(30));
    // A baseline has no TDF to raise.
    assert_eq!(verdict(&Made::new(Mode::Baseline, 1).fidelity(late)).1, None);
}

#[test]
fn the_advice_keeps_the_budget_it_is_made_for() {
    // The property behind the formula: host lateness is real time, so at the advised TDF its virtual length fits.
    for late_ns in [100_001, 130_000, 999_999, 5_000_000] {
        let made = Made::new(Mode::Diecast, 1);
        let fidelity = made.fidelity(vec![lateness(LatenessSource::Emulator, None, late_ns, late_ns)]);
        let tdf = u64::from(verdict(&fidelity).1.unwrap());
        assert!(late_ns * 10 / tdf <= Budgets::default().emulator_p99_ns, "{late_ns} at {tdf}");
        assert!(tdf > 10);
    }
}

#[test]
fn beyond_a_tdf_of_1000_there_is_no_advice() {
    let made = Made::new(Mode::Diecast, 1);
    let fidelity = made.fidelity(vec![lateness(LatenessSource::Emulator, None, 80_000_000, 80_000_000)]);
    let verdict = fidelity.verdict(&Budgets::default());
    assert_eq!(verdict.advised_tdf, None);
    assert!(verdict.reasons.iter().all(|reason| reason.advice.starts_with("no TDF up to 1000 would do")));
}

#[test]
fn one_window_outside_conservation_is_enough() {
    let window = |charged_ns| {
        let v_ns = VirtNs(110_000_000_000);
        Record::Conservation(Conservation {
            node: "app-1".into(),
            v_ns,
            charged_ns,
            escaped_ns: 0,
            used_ns: 20_300_000,
            meter_cost_ns: 300_000,
            cold_ns: 0,
            slow_ns: 0,
        })
    };
    let made = Made::new(Mode::Diecast, 1);
    assert_eq!(verdict(&made.fidelity(vec![window(19_800_000)])).0, [""; 0]);
    let (reasons, tdf) = verdict(&made.fidelity(vec![window(19_799_999)]));
    assert_eq!(reasons, ["conservation error, worst window (app-1)"]);
    assert_eq!(tdf, None, "no TDF mends a wrong charge");
    let too_much = made.fidelity(vec![window(20_000_000), window(20_200_001)]);
    assert_eq!(verdict(&too_much).0.len(), 1, "too much is as wrong as too little");
    // 200 µs were on their way when a window closed.
    assert_eq!(verdict(&made.fidelity(vec![window(20_000_000), window(20_300_000), window(19_800_000)])).0, [""; 0]);
}

#[test]
fn throttling_is_lateness_except_in_naive() {
    let throttled = |mode| verdict(&Made { throttled_ns: 900_000_000, ..Made::new(mode, 1) }.fidelity(vec![]));
    // Asked to shed load, the advice is twice the TDF.
    assert_eq!(throttled(Mode::Diecast), (vec!["time throttled by the ceiling (load-1)".into()], Some(20)));
    assert_eq!(throttled(Mode::Baseline).0.len(), 1);
    assert_eq!(throttled(Mode::Naive).0, [""; 0]);
}

#[test]
fn escaped_cpu_beyond_two_percent_is_named() {
    let mut records = Made::new(Mode::Diecast, 1).fidelity(vec![]);
    records.conservation[0].escaped_ns = records.conservation[0].used_ns / 40;
    assert_eq!(verdict(&records).0, ["CPU time that no meter caught (app-1)"]);
}

/// Half of what was taken off may be wrong, and at a load of 0.9 a queue grows nine times as much.
#[test]
fn what_is_taken_off_a_nearly_full_node_is_in_doubt() {
    let of = |cold_parts: u64, fullness| {
        let mut fidelity = Made::new(Mode::Diecast, 1).fidelity(vec![]);
        let node = &mut fidelity.conservation[0];
        (node.cold_ns, node.fullness) = (node.used_ns / 100 * cold_parts, fullness);
        node.charged_ns -= node.cold_ns;
        node.errors.clear();
        (verdict(&fidelity).0, fidelity.conservation[0].doubt())
    };
    // The meter took 1.5 % of it.
    let (reasons, doubt) = of(20, 0.9);
    assert!((doubt - 0.5 * 0.2148 * 9.0).abs() < 0.01, "{doubt}");
    assert_eq!(reasons, [""; 0]);
    assert_eq!(of(22, 0.9).0, ["latency in doubt for what was taken off (app-1)"]);
    assert_eq!(of(45, 0.7).0, [""; 0]);
    assert_eq!(of(5, 1.2).1, of(5, 0.9).1, "fuller than full");
    // Packets' time that was not charged counts too.
    let mut fidelity = Made::new(Mode::Diecast, 1).fidelity(vec![]);
    let node = &mut fidelity.conservation[0];
    (node.received_ns, node.received_cut_ns, node.fullness) = (node.used_ns / 2, node.used_ns / 2, 0.9);
    assert!((node.doubt() - 0.5 * 0.515 / 2.0 * 9.0).abs() < 0.01, "{}", node.doubt());
    let row =
        |f: &Fidelity| f.checks(&Budgets::default()).into_iter().find(|c| c.what.starts_with("CPU time for packets"));
    assert_eq!(row(&fidelity).unwrap().measured, "50 %");
    // All of it is seen in the samples: 30 % of the machine, and a wave.
    let made = Made::new(Mode::Diecast, 1);
    let mut records = made.records();
    for record in &mut records {
        let Record::Sample(sample) = record else { continue };
        (sample.cpu_received_ns, sample.cpu_received_cut_ns) = (sample.v_ns.0 / 1000, sample.v_ns.0 / 3000);
    }
    let seen = Fidelity::from_records(&made.header(), &records);
    assert_eq!(row(&seen).unwrap().measured, "25 %");
    let fidelity = made.fidelity(vec![]);
    assert!(row(&fidelity).is_none());
    assert!((0.25..0.36).contains(&fidelity.conservation[0].fullness), "{}", fidelity.conservation[0].fullness);
}

#[test]
fn a_silent_monitor_is_no_good_news() {
    let without = |drop: fn(&Record) -> bool, mode| {
        let made = Made::new(mode, 1);
        let records: Vec<Record> = made.records().into_iter().filter(|record| !drop(record)).collect();
        let Ok(run) = common::load("x", &made.directory()) else { panic!() };
        verdict(&Fidelity::from_records(&run.summary.header, &records)).0
    };
    let emulator = |record: &Record| matches!(record, Record::Lateness(l) if l.source == LatenessSource::Emulator);
    let ledger = |record: &Record| matches!(record, Record::Lateness(l) if l.source == LatenessSource::Ledger);
    assert_eq!(without(emulator, Mode::Naive), ["emulator lateness"]);
    assert_eq!(without(ledger, Mode::Diecast), ["ledger lateness"]);
    assert_eq!(without(|record| matches!(record, Record::HostSpeed(_)), Mode::Native), ["host speed"]);
    assert_eq!(without(|record| matches!(record, Record::HostUse(_)), Mode::Native), ["use of the host's cores"]);
    let windows = without(|record| matches!(record, Record::Conservation(_)), Mode::Diecast);
    assert_eq!(windows, ["conservation of app-1", "conservation of load-1"]);
}

#[test]
fn a_wavering_host_is_named() {
    let mut fidelity = Made::new(Mode::Native, 1).fidelity(vec![]);
    fidelity.host_speed[1].probe_ns = [400_000, 400_000, 400_000, 900_000].repeat(5);
    assert_eq!(verdict(&fidelity).0, ["host speed spread (core 1)"]);
}

#[test]
fn cores_that_others_had_are_named() {
    let made = Made::new(Mode::Diecast, 1);
    let shares = made.fidelity(vec![]).host_use.unwrap();
    assert_eq!((shares.stolen[&0], shares.stolen[&1]), (0.01, 0.01));
    // 98 % busy on each of two cores: 40 % of a core the nodes, 150 % diecast.
    assert!((shares.nodes - 0.2).abs() < 1e-9 && (shares.own - 0.75).abs() < 1e-9, "{shares:?}");
    assert!((shares.others - 0.03).abs() < 1e-9, "{shares:?}");
    assert_eq!((shares.slow[&0], shares.slow[&1]), (0.0, 0.005));
    for (stolen_ns_per_s, slow_ns_per_s, others_ns_per_s, expected) in [
        (9_000_000, 9_000_000, 30_000_000, None),
        (11_000_000, 0, 0, Some("time stolen by a hypervisor (core 1)")),
        (0, 11_000_000, 0, Some("time at less than a third of its speed (core 1)")),
        (0, 0, 50_000_000, Some("cores used by others on this host")),
    ] {
        for mode in [Mode::Diecast, Mode::Native] {
            let made = Made { stolen_ns_per_s, slow_ns_per_s, others_ns_per_s, ..Made::new(mode, 1) };
            let (reasons, tdf) = verdict(&made.fidelity(vec![]));
            assert_eq!(reasons, expected.into_iter().collect::<Vec<_>>(), "{mode}");
            assert_eq!(tdf, None, "no TDF keeps others away");
            let spoiled = made.fidelity(vec![]).spoiled_by_others(&Budgets::default());
            assert_eq!(spoiled.len(), expected.iter().len(), "{spoiled:?}");
        }
    }
    // What was taken before and after the measured phase is nobody's measurement.
    let look = |v_s: u64| {
        made.records().into_iter().filter_map(move |record| match record {
            Record::HostUse(look) if look.r_ns == RealNs((100 + 10 * v_s) * 1_000_000_000) => Some(look),
            _ => None,
        })
    };
    let mut late = look(27).next().unwrap();
    late.r_ns = RealNs(late.r_ns.0 + 1);
    late.cores[1].stolen_ns += 60_000_000_000;
    assert_eq!(verdict(&made.fidelity(vec![Record::HostUse(late)])).0, [""; 0]);
}

#[test]
fn a_packet_lost_before_the_emulator_is_no_loss_of_the_model() {
    for mode in [Mode::Baseline, Mode::Diecast, Mode::Naive] {
        let (reasons, tdf) = verdict(&Made { ring_dropped: 40, ..Made::new(mode, 1) }.fidelity(vec![]));
        assert_eq!(reasons, ["packets lost between TAP and emulator (load-1)"], "{mode}");
        assert_eq!(tdf, (mode == Mode::Diecast).then_some(20));
    }
}

#[test]
fn a_nic_that_went_away_is_a_reason_in_every_mode() {
    for mode in [Mode::Baseline, Mode::Native, Mode::Diecast, Mode::Naive] {
        let lost = Made::new(mode, 1).fidelity(vec![finding(FindingKind::NicLost)]);
        assert_eq!(verdict(&lost), (vec!["NICs that went away".into()], None), "{mode}");
    }
}

/// The nodes' use as at the end of a run, with these faults of load-1's NIC at the end.
fn told_of_nic(faults: NicFaults) -> (Vec<NicFaults>, String) {
    let made = Made::new(Mode::Diecast, 1);
    let mut directory = made.directory();
    let journal = diecast_core_journal::read(directory["journal.jsonl"].as_slice()).unwrap();
    let earlier = NicFaults { nic: "eth1".into(), malformed: 2, ..NicFaults::default() };
    let mut lines = to_line(&Record::Header(journal.header));
    for mut record in journal.records {
        if let Record::Sample(sample) = &mut record {
            let last = sample.v_ns == VirtNs(127_000_000_000);
            sample.nic_faults =
                (sample.node == "load-1").then(|| if last { &faults } else { &earlier }.clone()).into_iter().collect();
        }
        lines += &to_line(&record);
    }
    directory.insert("journal.jsonl".into(), lines.into_bytes());
    let Ok(run) = common::load("x", &directory) else { panic!() };
    let text = diecast_core_report::text::run(&run.summary, &Budgets::default());
    (run.summary.nodes[0].nic_faults.clone(), text)
}

#[test]
fn what_a_nic_lost_is_told_by_cause_where_it_lost_something() {
    let begun = NicFaults { nic: "eth1".into(), malformed: 2, ..NicFaults::default() };
    let (faults, told) = told_of_nic(begun.clone());
    assert_eq!(faults, [], "before measuring, not in it");
    assert!(!told.contains("NIC "), "{told}");
    let (faults, told) = told_of_nic(NicFaults { malformed: 5, oversize: 7, not_taken: 4, ..begun.clone() });
    assert_eq!(faults[0].causes().map(|(count, _)| count), [3, 7, 0, 0, 0, 0, 4]);
    let row = "load-1 eth1       14  3 malformed, 7 longer than the MTU, 4 not taken by its device\n";
    assert!(told.contains(row), "{told}");
    let (_, told) = told_of_nic(NicFaults { gone: true, ..begun });
    assert!(told.contains("load-1 eth1        0  the device went away\n"), "{told}");
}

#[test]
fn reasons_name_the_first_findings_and_count_the_rest() {
    let made = Made::new(Mode::Diecast, 1);
    let Record::Finding(first) = finding(FindingKind::ProcessOutsideFrame) else { panic!() };
    let detail = |pid: u32| format!("node app-1: process {pid} (sleep) runs outside the frame");
    let outside = |pid| Record::Finding(Finding { detail: detail(pid), ..first.clone() });
    let reason = |pids: &[u32]| {
        let verdict = made.fidelity(pids.iter().copied().map(outside).collect()).verdict(&Budgets::default());
        let reason = verdict.reasons.into_iter().next().unwrap();
        (reason.measured, reason.advice)
    };
    let what_to_do = ": these keep the host's clocks and speed: start programs by the catalog or `diecast exec`; LIMITS.md says what \
                      can't be in a frame";
    let advice = |details: String| details + what_to_do;
    assert_eq!(reason(&[7]), ("1".into(), advice(detail(7))));
    assert_eq!(reason(&[7, 7]), ("2".into(), advice(detail(7))), "the same words once");
    let (count, words) = reason(&[7, 8, 9, 10, 11]);
    assert_eq!(count, "5");
    assert_eq!(words, advice(format!("{}; {}; {}; and 2 more, see the journal", detail(7), detail(8), detail(9))));
}

/// The table of waits, line by line, in the words at the end of a run.
fn lines(summary: &RunSummary) -> Option<Vec<String>> {
    let text = diecast_core_report::text::run(summary, &Budgets::default());
    let shown = text.split("threads that waited").nth(1)?.lines().skip(1);
    Some(shown.map(|line| line.trim_end().to_owned()).collect())
}

#[test]
fn waits_are_told_by_cause_and_without() {
    let mut summary = Made::new(Mode::Diecast, 1).run("x").summary;
    let waits = &summary.fidelity.waits;
    assert_eq!(waits.iter().map(|w| w.node.as_str()).collect::<Vec<_>>(), ["app-1", "load-1"]);
    // What happened while measuring, not since the node's start.
    assert_eq!((waits[1].waited_ns, waits[1].shares().unwrap()[..2].to_vec()), (250_000_000, vec![0.8, 0.2]));
    let told = lines(&summary).unwrap();
    assert!(told[1].starts_with("load-1") && told[1].contains("250 ms") && told[1].contains("80 %"), "{told:?}");
    summary.fidelity.waits[1].causes = None;
    let told = lines(&summary).unwrap();
    assert!(told[1].ends_with("250 ms"), "{told:?}");
    assert_eq!(told[2], "without causes: one sum from schedstat, since BPF programs can't tell on this host");
    // Not worth a table.
    summary.fidelity.waits.iter_mut().for_each(|w| w.waited_ns = 1_000_000);
    assert_eq!(lines(&summary), None);
    assert_eq!(Made::new(Mode::Naive, 1).fidelity(vec![]).waits, []);
}

#[test]
fn what_has_no_budget_is_still_told() {
    let Record::Finding(first) = finding(FindingKind::ClampedSysctl) else { panic!() };
    let detail = "net.ipv4.tcp_rto_min_us is 120000000, TDF 1000 asks for 200000000".to_owned();
    let mut summary = Made::new(Mode::Diecast, 1).run("x").summary;
    let without = diecast_core_report::text::run(&summary, &Budgets::default());
    assert!(!without.contains("notes"), "{without}");
    let more = vec![Record::Finding(Finding { detail: detail.clone(), ..first })];
    summary.fidelity = Made::new(Mode::Diecast, 1).fidelity(more);
    let told = diecast_core_report::text::run(&summary, &Budgets::default());
    assert!(told.ends_with(&format!("\nnotes\n  {detail}\n")), "{told}");
    assert!(summary.fidelity.verdict(&Budgets::default()).trustworthy);
}

#[test]
fn a_long_grain_is_a_reason_where_packets_do_not_tell() {
    let grain = "the grain, without debt at egress";
    for (packets_tell, grain_ns, expected) in
        [(true, 500_000, None), (false, 100_000, None), (false, 100_001, Some(grain))]
    {
        let mut fidelity = Made::new(Mode::Diecast, 1).fidelity(vec![]);
        fidelity.meter = Some(MeterFacts { hits_from: "cores".into(), grain_ns, counts_kernel: true, packets_tell });
        let expected: Vec<&str> = expected.into_iter().collect();
        assert_eq!(verdict(&fidelity), (expected.iter().map(|&what| what.to_owned()).collect(), None));
    }
}

#[test]
fn what_a_run_did_without_is_said_with_its_verdict() {
    let Record::Finding(Finding { detail, .. }) = finding(FindingKind::MissingFeature) else { panic!() };
    let twice = vec![finding(FindingKind::MissingFeature), finding(FindingKind::MissingFeature)];
    let verdict = Made::new(Mode::Diecast, 1).fidelity(twice).verdict(&Budgets::default());
    assert_eq!((verdict.trustworthy, &verdict.without), (true, &vec![detail.clone()]));
    let said = text::verdict(&verdict);
    assert_eq!(said, format!("trustworthy: every fidelity budget was kept\n  without, on this host:\n    {detail}\n"));
}

#[test]
fn what_happens_after_measuring_is_no_reason() {
    let made = Made::new(Mode::Diecast, 1);
    let (v_ns, r_ns) = (VirtNs(128 * common::S), RealNs((100 + 28 * made.tdf) * common::S));
    let node = || "app-1".to_owned();
    let Record::Sample(sample) = example("sample") else { panic!() };
    let after = vec![
        Record::Throttling(Throttling {
            node: node(),
            v_ns,
            periods: 9,
            throttled_periods: 9,
            r_throttled_ns: 50 * common::S,
        }),
        Record::HostSpeed(HostSpeed { core: 0, r_ns, probe_ns: made.probe_ns * 20 }),
        Record::Sample(NodeSample { node: node(), v_ns, ring_dropped_packets: 3, ..sample.clone() }),
    ];
    let fidelity = made.fidelity(after);
    assert_eq!(verdict(&fidelity), (vec![], None));
    assert_eq!(fidelity.host_speed, made.fidelity(vec![]).host_speed);
    // Hits that nobody was charged for count whenever they came.
    let unslotted = Record::Sample(NodeSample { node: node(), v_ns, slotless_hits: 2, ..sample });
    assert_eq!(verdict(&made.fidelity(vec![unslotted])).0, ["hits that were charged to nobody (app-1)"]);
}

#[test]
fn who_had_the_cores_is_told() {
    let fidelity = Made::new(Mode::Diecast, 1).fidelity(vec![]);
    let told: Vec<(String, String)> = (fidelity.checks(&Budgets::default()).into_iter())
        .filter(|check| check.what.starts_with("cores ") && check.budget == "told only")
        .map(|check| (check.what, check.measured))
        .collect();
    // Of two cores' time.
    let expected = [
        ("cores used by the nodes", "20 %"),
        ("cores used by the emulator", "10 %"),
        ("cores used by the supervisor", "10 %"),
        ("cores kept awake, which others can have", "55 %"),
    ];
    assert_eq!(told, expected.map(|(what, share)| (what.to_owned(), share.to_owned())));
}

fn stalls(end_s: u64, found: &[(u32, u64, u64, Option<&str>)], lost_ns: u64) -> Record {
    let at = |ms: u64| RealNs(ms * 1_000_000);
    let stall = |&(core, from_ms, to_ms, by): &(u32, u64, u64, Option<&str>)| Stall {
        core,
        r_from_ns: at(from_ms),
        r_to_ns: at(to_ms),
        by: by.map(str::to_owned),
    };
    Record::Stalls(Stalls { r_ns: at(end_s * 1000), stalls: found.iter().map(stall).collect(), r_lost_ns: lost_ns })
}

/// The measured phase of these runs is from 107 to 127 s of real time.
#[test]
fn cores_that_others_have_for_a_hundredth_of_the_time_spoil_a_run_without_meters() {
    let made = Made::new(Mode::Native, 1);
    let judged = |records| {
        let fidelity = made.fidelity(records);
        let told = fidelity.checks(&Budgets::default()).into_iter().find(|check| check.what.starts_with("the longest"));
        (verdict(&fidelity).0, told.map(|check| (check.what, check.measured)))
    };
    assert_eq!(judged(vec![]), (vec![], None), "nobody watched");
    assert_eq!(judged(vec![stalls(110, &[], 0)]).1, Some(("the longest of that".into(), "0 ns".into())));
    // 200 ms of 20 s are no more than a hundredth; what came before and after is none of them, nor are cores of no node.
    let almost = [
        (1, 100_000, 107_100, Some("backup")),
        (0, 110_000, 110_150, Some("backup")),
        (1, 120_000, 120_090, None),
        (1, 126_990, 130_000, None),
        (7, 110_000, 120_000, Some("backup")),
    ];
    let told = Some(("the longest of that (core 0, backup)".into(), "150 ms".into()));
    assert_eq!(judged(vec![stalls(130, &almost, 0)]), (vec![], told.clone()));
    let what = |core: u32| vec![format!("time kept from the lab, 100 us and more at once (core {core})")];
    let more = [&almost[..], &[(1, 121_000, 121_010, Some("cron"))]].concat();
    assert_eq!(judged(vec![stalls(115, &more[..2], 0), stalls(130, &more[2..], 0)]), (what(1), told.clone()));
    // What was too much to be told counts as the worst core's.
    assert_eq!(judged(vec![stalls(106, &[], 500_000_000), stalls(126, &almost, 510_000_000)]), (what(1), told));
}
