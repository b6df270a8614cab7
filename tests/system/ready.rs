//! Readiness checks wait in the time of the node.

use std::fs;

use crate::bench::{Bench, LabRun, bench};

/// A server on port 80 that says of itself when it began.
fn write(b: &Bench, check: &str, server: &str) {
    let catalog = format!(
        r#"diecast: 1
name: ready
machine_types:
  box: {{cores: 1, speed: 0.5, memory: 128MiB}}
nodes:
  server: {{type: box}}
  other: {{type: box}}
topology:
  links:
    - {{from: server, to: other, bandwidth: 100Mbit/s, delay: 1ms}}
programs:
  - on: server
    run: [python3, -u, /srv/server.py]
    files: {{/srv/server.py: server.py}}
    ready: {{{check}}}
workload:
  measure: 100ms
  run: {{on: server, command: [echo, "asked 1"]}}
metrics:
  asked: {{from: server, regex: 'asked (\d+)', unit: n}}
"#
    );
    let whole = format!("import socket, time\ns = socket.create_server(('', 80))\n{server}\ntime.sleep(60)\n");
    fs::write(b.folder.join("ready.yaml"), catalog).unwrap();
    fs::write(b.folder.join("server.py"), whole).unwrap();
}

/// Refuses once, then takes a virtual second for its answer, which is eight of the host's.
const SLOW: &str = "for wait, status in [(0, b'503'), (1, b'200')]:
    c, _ = s.accept(); print(c.recv(1000)); time.sleep(wait)
    c.sendall(b'HTTP/1.1 ' + status + b' x\\r\\n\\r\\n'); c.close()
    print('answered', status)";

#[test]
fn a_health_check_is_answered_as_late_as_on_the_original_machine() {
    let Some(b) = bench("ready") else { return };
    write(&b, r#"http: ":80/health", within: 4s"#, SLOW);
    let ended = LabRun::start(&b, &["ready.yaml", "--tdf", "8"]).end();
    assert!(matches!(ended.status, Some(0 | 4)), "{ended:?}");
    let log = fs::read_to_string(b.folder.join("out/logs/server.python3.out")).unwrap();
    assert_eq!(log.matches("GET /health HTTP/1.0").count(), 2, "{log}");
    assert!(log.contains("answered b'503'") && log.contains("answered b'200'"), "{log}");
}

#[test]
fn a_program_that_is_not_ready_in_time_ends_the_run_with_its_last_lines() {
    let Some(b) = bench("not-ready") else { return };
    // Never answered; never listened to; never written.
    for check in [r#"http: ":80/health", within: 3s"#, "tcp: 81, within: 3s", "log: up and running, within: 3s"] {
        write(&b, check, "print('not today')");
        let ended = LabRun::start(&b, &["ready.yaml", "--tdf", "2"]).end();
        assert_eq!(ended.status, Some(1), "{check}: {ended:?}");
        for words in ["python3 on node server was not ready within 3.0 s virtual", "not today"] {
            assert!(ended.table.contains(words), "{check}: no '{words}' in {}", ended.table);
        }
    }
}
