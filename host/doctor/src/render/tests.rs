use expect_test::expect;

use super::*;
use crate::facts::HostFacts;
use crate::report::{Part, Subject, Verdict};

fn host() -> HostFacts {
    HostFacts {
        kernel: "6.1.0-18-amd64".to_owned(),
        architecture: "x86_64".to_owned(),
        cpu_model: "Some Processor".to_owned(),
        cores: 2,
        memory_bytes: 24 << 30,
        memory_available_bytes: 700 << 20,
        cgroups: "v2".to_owned(),
    }
}

fn subject(name: &'static str, part: Part, need: Need) -> Subject {
    Subject { name, part, need }
}

/// One of each rank, best first.
fn planted() -> Vec<Check> {
    vec![
        subject("vdso", Part::Envelope, Need::Frames).ok("there"),
        subject("kvm", Part::Later, Need::Information).missing("no /dev/kvm", "virtual machines will be slow", ""),
        subject("cores alike", Part::Cpu, Need::Accuracy).degraded("12.0 % apart", "results scatter", "quiet host"),
        subject("fifo", Part::Cpu, Need::Accuracy).missing("EPERM", "late packets", "be root"),
        subject("CPU meter", Part::Cpu, Need::Trust).missing("EACCES", "CPU work looks too fast", "lower it"),
        subject("runc", Part::Nodes, Need::Labs).missing("not found", "no labs", "apt install runc"),
    ]
}

#[test]
fn a_planted_report_is_a_table_worst_first_with_the_verdict_last() {
    let text = render(&Report::new(host(), planted()));
    expect![[r#"
        Linux 6.1.0-18-amd64 on x86_64, 2 cores of Some Processor, 24.0 GiB of memory (700 MiB available), cgroups v2

        missing   nodes     runc         not found
                                         costs: no labs
                                         fix:   apt install runc
        missing   cpu       CPU meter    EACCES
                                         costs: CPU work looks too fast
                                         fix:   lower it
        missing   cpu       fifo         EPERM
                                         costs: late packets
                                         fix:   be root
        degraded  cpu       cores alike  12.0 % apart
                                         costs: results scatter
                                         fix:   quiet host
        missing   later     kvm          no /dev/kvm
                                         costs: virtual machines will be slow
        ok        envelope  vdso         there

        verdict: frames only: labs miss runc; every run will say that it is not trustworthy (CPU meter); not at its
                 best: cores alike, fifo
    "#]]
    .assert_eq(&text);
}

#[test]
fn long_texts_wrap_at_words_below_their_column() {
    let words = "word ".repeat(60);
    let check = subject("x", Part::Cpu, Need::Accuracy).degraded("f".repeat(200), words.trim(), "");
    let text = render(&Report::new(host(), vec![check]));
    let body: Vec<&str> = text.lines().skip(2).take_while(|line| !line.is_empty()).collect();
    assert!(body.len() >= 4, "{text}");
    assert!(
        body[1..].iter().all(|line| line.chars().count() <= WIDTH && line.starts_with("                  ")),
        "{text}"
    );
    assert_eq!(text.matches("word").count(), 60);
    assert!(text.contains(&"f".repeat(200)));
}

/// What goes missing decides; what is merely degraded never takes a mode away.
#[test]
fn the_verdict_follows_from_what_is_missing() {
    let missing = |need| subject("x", Part::Cpu, need).missing("gone", "lost", "mend");
    let degraded = |need| subject("y", Part::Cpu, need).degraded("bad", "worse", "mend");
    let all_degraded = [Need::Frames, Need::Labs, Need::Trust, Need::Accuracy, Need::Information].map(degraded);
    for (need, verdict, trustworthy) in [
        (Need::Frames, Verdict::Nothing, true),
        (Need::Labs, Verdict::Frames, true),
        (Need::Trust, Verdict::Labs, false),
        (Need::Accuracy, Verdict::Labs, true),
        (Need::Information, Verdict::Labs, true),
    ] {
        let report = Report::new(host(), vec![missing(need)]);
        assert_eq!((report.verdict, report.trustworthy), (verdict, trustworthy), "{need:?}");
        assert_eq!(report.can_run_labs(), verdict == Verdict::Labs);
    }
    let report = Report::new(host(), all_degraded.into());
    assert_eq!((report.verdict, report.trustworthy), (Verdict::Labs, true));
    assert_eq!(report.summary, "this host can run labs; not at its best: y, y, y, y");
    let report = Report::new(host(), vec![missing(Need::Labs), missing(Need::Frames)]);
    assert_eq!(report.verdict, Verdict::Nothing);
    assert_eq!(report.summary, "nothing: no program can be put in a frame (x)");
    assert_eq!(Report::new(host(), Vec::new()).summary, "this host can run labs");
}

#[test]
fn the_json_of_a_report_is_for_programs() {
    let report =
        Report::new(host(), vec![subject("CPU meter", Part::Cpu, Need::Trust).missing("EACCES", "fast", "root")]);
    let json = serde_json::to_string_pretty(&report).unwrap();
    expect![[r#"
        {
          "host": {
            "kernel": "6.1.0-18-amd64",
            "architecture": "x86_64",
            "cpu_model": "Some Processor",
            "cores": 2,
            "memory_bytes": 25769803776,
            "memory_available_bytes": 734003200,
            "cgroups": "v2"
          },
          "verdict": "labs",
          "trustworthy": false,
          "summary": "this host can run labs; every run will say that it is not trustworthy (CPU meter)",
          "checks": [
            {
              "name": "CPU meter",
              "part": "cpu",
              "status": "missing",
              "need": "trust",
              "found": "EACCES",
              "consequence": "fast",
              "fix": "root"
            }
          ]
        }"#]]
    .assert_eq(&json);
}
