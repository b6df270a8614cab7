//! Nodes with several cores, and with more of them than the host has.

use diecast_tests::{c, value_in};

use crate::bench::{bench, run, text};

/// A server on a core of its own; two on a node of two cores; two on a node of one; and a node of four for threads alone.
const CATALOG: &str = r#"diecast: 1
name: cores
machine_types:
  one:  {cores: 1, speed: 1, memory: 128MiB}
  two:  {cores: 2, speed: 1, memory: 128MiB}
  four: {cores: 4, speed: 1, memory: 128MiB}
nodes:
  client: {type: one, count: 5}
  alone:  {type: one}
  wide:   {type: two}
  narrow: {type: one}
  threads: {type: four}
topology:
  switches: [s]
  links:
    - {from: [client, alone, wide, narrow, threads], to: s, bandwidth: 1Gbit/s, delay: 100us}
programs:
  - on: [alone, wide, narrow]
    run: [cpuserver, --listen, "0.0.0.0:80", --service, 500us]
    files: {/usr/local/bin/cpuserver: diecast-cpuserver}
    ready: {tcp: 80, within: 20s}
  - on: [wide, narrow]
    run: [cpuserver, --listen, "0.0.0.0:81", --service, 500us]
    ready: {tcp: 81, within: 20s}
workload:
  warm_up: 500ms
  measure: 1500ms
  run:
    on: [client, threads]
    command:
      - sh
      - -c
      - |
        case ${node} in
          threads)  sleep 0.3; exec /parallel;;
          client-1) to=alone:80;;
          client-2) to=wide:80;;
          client-3) to=wide:81;;
          client-4) to=narrow:80;;
          client-5) to=narrow:81;;
        esac
        n=${node}
        exec loadgen "http://$$to/" --rate=800/s --seed=$${n#client-} --warm-up=${warm_up} --measure=${measure}
    files: {/usr/local/bin/loadgen: diecast-loadgen, /parallel: parallel}
metrics:
  latency: {from: client, samples: latency_ns.bin, unit: ns, show: [mean, p50, p99]}
"#;

fn mean_ns(samples: &[u8]) -> f64 {
    let all: Vec<f64> = samples.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap()) as f64).collect();
    assert!(all.len() > 1000, "{} requests", all.len());
    all.iter().sum::<f64>() / all.len() as f64
}

#[test]
fn cores_of_a_node_work_at_once() {
    let Some(b) = bench("cores") else { return };
    std::fs::write(b.folder.join("cores.yaml"), CATALOG).unwrap();
    std::fs::copy(c("parallel", false), b.folder.join("parallel")).unwrap();
    diecast_quiet::look(|| {
        let _ = std::fs::remove_dir_all(b.folder.join("run"));
        let o = run(&b, &["run", "cores.yaml", "--tdf", "10", "--out", "run"]);
        // 4: a machine that is too busy to be trusted.
        assert!(matches!(o.status.code(), Some(0 | 4)), "{}", text(&o.stderr));
        let said = std::fs::read_to_string(b.folder.join("run/logs/threads.sh.out")).unwrap();
        let found = |name: &str| value_in(&said, name) as f64;
        assert_eq!((found("cores"), found("may")), (4.0, 4.0), "{said}");
        let times = [1, 2, 4, 8].map(|n| found(&format!("threads-{n}")) / 100e6);
        let of = |n: u32| std::fs::read(b.folder.join(format!("run/samples/latency.client-{n}.bin"))).unwrap();
        let [alone, wide, wide_too, narrow, narrow_too] = [1, 2, 3, 4, 5].map(|n| mean_ns(&of(n)) / 1e3);
        println!("1, 2, 4, 8 threads on four cores took {times:.3?} of one's CPU time");
        println!(
            "requests took {alone:.0} us; two cores {wide:.0}, {wide_too:.0}; two servers on one {narrow:.0}, {narrow_too:.0}"
        );
        for (time, expected) in times.into_iter().zip([1.0, 1.0, 1.0, 2.0]) {
            assert!((time / expected - 1.0).abs() < 0.08, "{times:?}\n{said}");
        }
        for two in [wide, wide_too] {
            assert!((two / alone - 1.0).abs() < 0.12, "{two} us on two cores, {alone} on one");
        }
        // At 0.8 of its core a queue is three times as long as at 0.4.
        for queued in [narrow, narrow_too] {
            assert!(queued > 1.4 * alone, "{queued} us beside another server, {alone} alone");
        }
    });
}
