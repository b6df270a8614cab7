//! The load generator against servers on loopback, with nothing of DieCast in between.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use diecast_loadgen::client::{self, ClientOptions, ClientReport, Outcome};
use diecast_loadgen::schedule::{Paths, ScheduleSpec};

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const MS: u64 = 1_000_000;

/// Ends the server when the test ends, however it ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may be gone already, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server with these arguments, and its address.
fn cpuserver(arguments: &[&str]) -> (Running, String) {
    let mut server = Running(
        Command::new(env!("CARGO_BIN_EXE_diecast-cpuserver"))
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts"),
    );
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").expect("the server names its address").to_owned();
    (server, address)
}

#[test]
fn programs_work_together() {
    diecast_quiet::look(work_together);
}

fn work_together() {
    let (_server, address) = cpuserver(&["--service", "500us"]);

    let directory = std::env::temp_dir().join(format!("diecast-loadgen-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_diecast-loadgen"))
        .args([format!("http://{address}/").as_str(), "--rate", "200/s", "--seed", "7", "--stream", "load-1"])
        .args(["--warm-up", "500ms", "--measure", "2s"])
        .current_dir(&directory)
        .output()
        .unwrap();
    let samples = std::fs::read(directory.join("latency_ns.bin"));
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    // The schedule that the program says it used, computed here again.
    let paths = Paths::Items(1000);
    let spec = ScheduleSpec {
        rate_per_s: 200.0,
        seed: 7,
        stream: "load-1".to_owned(),
        length_ns: 2500 * MS,
        skip_ns: 0,
        ramp_ns: 0,
        paths,
    };
    let arrivals = spec.arrivals();
    let measured = arrivals.iter().filter(|arrival| arrival.at_ns >= 500 * MS).count();
    assert_eq!(lines[0], format!("seed=7 stream=load-1 rate=200/s requests={}", arrivals.len()));
    assert!(lines.contains(&"errors=0"), "{text}");
    let summary: serde_json::Value = serde_json::from_str(lines.last().unwrap()).expect("the last line is JSON");
    let number = |key: &str| summary[key].as_f64().unwrap_or_else(|| panic!("{key} in {summary}"));
    assert_eq!((number("sent"), number("completed")), (measured as f64, measured as f64));
    assert!((number("rate") - number("offered")).abs() < 0.05 * number("offered"), "{summary}");
    assert!(number("p50_ns") >= 500_000.0, "the service alone takes 500 us: {summary}");
    assert!(number("p99_ns") < 1e9, "{summary}");

    let mut samples_ns: Vec<u64> =
        samples.unwrap().chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
    samples_ns.sort_unstable();
    assert_eq!(samples_ns.len(), measured);
    assert_eq!(samples_ns[measured.div_ceil(2) - 1] as f64, number("p50_ns"));

    // 2.5 s of a busy wait would be 4.8 ms for each of some 520 requests.
    let cpu_ns: u64 = lines.iter().find_map(|l| l.strip_prefix("cpu_per_request_ns=")).unwrap().parse().unwrap();
    assert!(cpu_ns < 1_000_000, "{cpu_ns} ns of CPU per request: is something polling?");
}

/// The others end with the server, however that ends.
#[test]
fn a_request_passes_through_processes() {
    let (server, address) = cpuserver(&["--service", "300us", "--parts", "3", "--by", "process"]);
    let mut stream = TcpStream::connect(address).unwrap();
    for _ in 0..10 {
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok\n") {
            let mut part = [0; 256];
            let length = stream.read(&mut part).unwrap();
            assert!(length > 0, "cut off after {answer:?}");
            answer.extend_from_slice(&part[..length]);
        }
    }
    let pid = server.0.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    assert_eq!(children.split_whitespace().count(), 2, "{children}");
    for child in children.split_whitespace() {
        let schedstat = std::fs::read_to_string(format!("/proc/{child}/schedstat")).unwrap();
        let cpu_ns: u64 = schedstat.split(' ').next().unwrap().parse().unwrap();
        assert!(cpu_ns > 10 * 100_000, "{cpu_ns} ns of CPU time for ten requests");
    }
    drop(server);
    let gone = Instant::now();
    for child in children.split_whitespace() {
        while std::fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|s| !s.contains(") Z ")) {
            assert!(gone.elapsed() < Duration::from_secs(10), "process {child} lives on");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn wrong_words_are_refused() {
    for (url, rate, word) in
        [("lb", "9/s", "lb"), ("http://lb/item", "9/s", "--path-list"), ("http://lb/", "9/h", "90/s")]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_diecast-loadgen"))
            .args([url, "--rate", rate, "--seed", "1"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn spin_reports_what_it_did() {
    let output = Command::new(env!("CARGO_BIN_EXE_diecast-spin")).args(["--turns", "1000000"]).output().unwrap();
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["turns"], 1_000_000);
    let (cpu_ns, wall_ns) = (line["thread_cpu_ns"].as_u64().unwrap(), line["wall_ns"].as_u64().unwrap());
    assert!(cpu_ns > 100_000 && wall_ns + 100_000 >= cpu_ns, "{line}");
}

#[test]
fn threads_work_for_a_given_time() {
    let arguments = ["--last", "100ms", "--threads", "3", "--locked"];
    let output = Command::new(env!("CARGO_BIN_EXE_diecast-spin")).args(arguments).output().unwrap();
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ns = |what: &str| line[what].as_u64().unwrap();
    assert!(ns("wall_ns") >= 100_000_000 && ns("rounds") > 10 && ns("cpu_ns") > 1_000_000, "{line}");
}

/// One connection, a server that stalls once for 400 ms, 200 requests/s. All 60 or so requests of the stall's first
/// 300 ms wait for more than 100 ms; a generator that waits for the answer before its next clock starts would see one.
#[test]
fn a_stall_is_seen_by_every_request_it_delays() {
    diecast_quiet::look(stall);
}

fn stall() {
    let mut answered = 0;
    let address = serve_with(move |mut stream| {
        while read_request(&mut stream) {
            answered += 1;
            if answered == 50 {
                thread::sleep(Duration::from_millis(400));
            }
            if stream.write_all(ANSWER.as_bytes()).is_err() {
                return;
            }
        }
    });
    let report = load(address, 200.0, 1000 * MS, |options| options.connections_max = 1);
    let slow = |outcome: &&Outcome| matches!(outcome, Outcome::Completed { latency_ns } if *latency_ns > 100 * MS);
    let delayed = report.outcomes.iter().filter(slow).count();
    assert_eq!(report.connections_opened, 1);
    assert!(delayed >= 35, "{delayed} requests were delayed by the stall");
    assert!(report.outcomes.iter().all(|o| matches!(o, Outcome::Completed { .. })), "{:?}", report.first_fault);
}

#[test]
fn a_silent_server_is_timeouts_and_the_run_ends() {
    let address = serve_with(|mut stream| while read_request(&mut stream) {});
    let began = Instant::now();
    let report = load(address, 100.0, 300 * MS, |options| options.timeout_ns = 200 * MS);
    assert!(!report.outcomes.is_empty() && report.outcomes.iter().all(|o| *o == Outcome::TimedOut));
    assert!(began.elapsed() >= Duration::from_millis(300) && began.elapsed() < Duration::from_secs(2));
}

#[test]
fn the_drain_is_bounded() {
    let address = serve_with(|mut stream| while read_request(&mut stream) {});
    let began = Instant::now();
    let report = load(address, 100.0, 300 * MS, |options| options.drain_ns = 100 * MS);
    assert!(report.outcomes.iter().all(|o| *o == Outcome::TimedOut));
    assert!(began.elapsed() < Duration::from_secs(2), "the timeout of 5 s must not hold the run");
}

/// The server answers once per connection and closes it without a word, as servers do with idle connections.
#[test]
fn a_closed_idle_connection_is_not_an_error() {
    let address = serve_with(|mut stream| {
        if read_request(&mut stream) {
            let _ = stream.write_all(ANSWER.as_bytes());
        }
    });
    let report = load(address, 200.0, 500 * MS, |_| {});
    assert!(report.outcomes.iter().all(|o| matches!(o, Outcome::Completed { .. })), "{:?}", report.first_fault);
    assert_eq!(report.connections_opened as usize, report.outcomes.len());
}

#[test]
fn other_statuses_and_garbage_are_errors() {
    let unavailable = serve_with(|mut stream| {
        while read_request(&mut stream) {
            if stream.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    });
    let report = load(unavailable, 100.0, 200 * MS, |_| {});
    assert!(report.outcomes.iter().all(|o| *o == Outcome::Refused { status: 503 }));

    let garbage = serve_with(|mut stream| {
        if read_request(&mut stream) {
            let _ = stream.write_all(b"220 mail ready\r\n");
        }
    });
    let report = load(garbage, 100.0, 200 * MS, |_| {});
    assert!(report.outcomes.iter().all(|o| *o == Outcome::Broken));
    assert!(report.first_fault.unwrap().starts_with("response head"));
}

#[test]
fn nobody_listening_is_an_error_of_each_request() {
    // The port was free a moment ago; nothing else binds an ephemeral port by number.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let report = load(address, 100.0, 200 * MS, |_| {});
    assert!(!report.outcomes.is_empty() && report.outcomes.iter().all(|o| *o == Outcome::Broken));
}

/// Runs the client in this process; the schedule is that of seed 1.
fn load(address: SocketAddr, rate_per_s: f64, length_ns: u64, change: impl FnOnce(&mut ClientOptions)) -> ClientReport {
    let spec = ScheduleSpec {
        rate_per_s,
        seed: 1,
        stream: String::new(),
        skip_ns: 0,
        length_ns,
        ramp_ns: 0,
        paths: Paths::Items(10),
    };
    let mut options = ClientOptions {
        address,
        host: address.to_string(),
        timeout_ns: 5000 * MS,
        drain_ns: 5000 * MS,
        end_ns: length_ns,
        connections_max: 64,
    };
    change(&mut options);
    client::run(&options, &spec.arrivals()).unwrap()
}

/// A server with a thread per connection, which lives until the test program ends.
fn serve_with(handle: impl FnMut(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut handle = handle.clone();
            thread::spawn(move || handle(stream));
        }
    });
    address
}

/// Reads up to the end of one request; false when the client has closed.
fn read_request(stream: &mut TcpStream) -> bool {
    let mut held = Vec::new();
    let mut byte = [0];
    while !held.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => held.push(byte[0]),
            _ => return false,
        }
    }
    true
}
