//! What `diecast-netprobe` sends and counts: datagrams at a constant rate, echoes, and TCP in bulk.
//!
//! The first byte of a datagram says what it is for, so that one socket of the server counts, echoes and reports:
//! there is one thread to wake, and a probe's answer waits for no other. All times are CLOCK_MONOTONIC of the node.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU64;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use crate::clock::{monotonic_ns, thread_cpu_ns, timespec_of};
use crate::work::spin;

/// Headers of IPv4 and UDP, and the 14 bytes of Ethernet that a link's rate counts.
pub const UDP_OVERHEAD_BYTES: usize = 20 + 8 + 14;
/// Length of a bin of a bulk receiver's series. All nodes share the lab's clock, so bins of different nodes line up.
pub const BIN_NS: u64 = 100_000_000;

const WARM_UP: u8 = 0;
const COUNT: u8 = 1;
const REPORT: u8 = 2;
const ECHO: u8 = 3;
/// In place of the instant that a probe was sent: it warms up.
const UNCOUNTED: u64 = 0;

/// Sleep of a sender that is not even: datagrams that are due meanwhile leave together.
const TICK_NS: u64 = 1_000_000;
/// How long a report may take before it is asked for again: one of the two datagrams was lost.
const ASK_AGAIN: Duration = Duration::from_millis(200);
const ASKED_MAX: usize = 50;
/// Time for what still waits in queues when the last datagram is sent.
const DRAIN: Duration = Duration::from_millis(100);

/// What a server received since the last report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Received {
    /// Counted datagrams.
    pub datagrams: u64,
    /// Bytes on the link of the counted datagrams but the first, whose arrival only starts the clock.
    pub bytes_after_first: u64,
    /// From the first to the last of them.
    pub span_ns: u64,
    /// Echoes sent.
    pub echoes: u64,
    /// CPU time of the serving thread.
    pub cpu_ns: u64,
}

/// Counts, echoes and reports until an error, and does so many turns of work for each datagram of a stream.
pub fn serve_udp(socket: &UdpSocket, turns: u64) -> io::Result<()> {
    let mut buffer = [0; 9216];
    let mut seen = Received::default();
    let (mut first_ns, mut cpu_from_ns) = (0, thread_cpu_ns());
    loop {
        let (bytes, from) = match socket.recv_from(&mut buffer) {
            Ok(got) => got,
            // An ICMP error of an earlier answer: its receiver has gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error),
        };
        if let Some(&(WARM_UP | COUNT)) = buffer[..bytes].first() {
            spin(turns);
        }
        match buffer[..bytes].first() {
            Some(&COUNT) => {
                let now_ns = monotonic_ns();
                if seen.datagrams == 0 {
                    first_ns = now_ns;
                } else {
                    seen.bytes_after_first += (bytes + UDP_OVERHEAD_BYTES) as u64;
                }
                seen.datagrams += 1;
                seen.span_ns = now_ns - first_ns;
            }
            Some(&ECHO) => {
                seen.echoes += 1;
                socket.send_to(&buffer[..bytes], from)?;
            }
            Some(&REPORT) => {
                seen.cpu_ns = thread_cpu_ns() - cpu_from_ns;
                socket.send_to(&serde_json::to_vec(&seen)?, from)?;
                cpu_from_ns = thread_cpu_ns();
            }
            _ => {}
        }
    }
}

/// A constant rate of datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Bytes of payload of each.
    pub payload_bytes: usize,
    /// Datagrams a second.
    pub per_second: f64,
    /// Before counting.
    pub warm_up_ns: u64,
    /// Counted.
    pub measure_ns: u64,
    /// Each leaves when it is due; else those of a millisecond leave together.
    pub even: bool,
}

impl Stream {
    /// Bits a second on the link, as its rate counts.
    pub fn rate_bps(&self) -> f64 {
        self.per_second * (self.payload_bytes + UDP_OVERHEAD_BYTES) as f64 * 8.0
    }

    /// Datagrams that are due after so long.
    fn due(&self, ns: u64) -> u64 {
        (ns as f64 * self.per_second / 1e9) as u64
    }

    /// After how long so many are due, rounded up.
    fn due_ns(&self, datagrams: u64) -> u64 {
        (datagrams as f64 * 1e9 / self.per_second).ceil() as u64
    }
}

/// What came of a [`Stream`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Streamed {
    /// Counted datagrams that were sent.
    pub sent: u64,
    /// And that arrived.
    pub received: u64,
    /// Bits a second that arrived, from the first to the last counted datagram.
    pub rate_bps: f64,
    /// Datagrams a second that arrived, in the same time.
    pub rate: f64,
    /// CPU time of the sender for each datagram.
    pub cpu_per_datagram_ns: u64,
}

/// Sends the stream on a connected socket and asks the server what arrived.
pub fn stream(socket: &UdpSocket, stream: Stream) -> io::Result<Streamed> {
    let mut data = vec![0; stream.payload_bytes.max(1)];
    if stream.even {
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    }
    let (start_ns, cpu_ns) = (monotonic_ns(), thread_cpu_ns());
    let (warm, all) = (stream.due(stream.warm_up_ns), stream.due(stream.warm_up_ns + stream.measure_ns));
    let mut sent = 0;
    while sent < all {
        let due = stream.due(monotonic_ns() - start_ns).min(all);
        while sent < due {
            data[0] = if sent < warm { WARM_UP } else { COUNT };
            socket.send(&data)?;
            sent += 1;
        }
        let wait_ns = match stream.even {
            true => (start_ns + stream.due_ns(due + 1)).saturating_sub(monotonic_ns()),
            false => TICK_NS,
        };
        std::thread::sleep(Duration::from_nanos(wait_ns));
    }
    let cpu_per_datagram_ns = (thread_cpu_ns() - cpu_ns) / all.max(1);
    std::thread::sleep(DRAIN);
    let received = ask(socket)?;
    let a_second = 1e9 / received.span_ns.max(1) as f64;
    let rate_bps = received.bytes_after_first as f64 * 8.0 * a_second;
    let rate = received.datagrams.saturating_sub(1) as f64 * a_second;
    Ok(Streamed { sent: all - warm, received: received.datagrams, rate_bps, rate, cpu_per_datagram_ns })
}

/// The server's report; asked for again while it does not come.
fn ask(socket: &UdpSocket) -> io::Result<Received> {
    let mut buffer = [0; 9216];
    socket.set_read_timeout(Some(ASK_AGAIN))?;
    for _ in 0..ASKED_MAX {
        socket.send(&[REPORT])?;
        while let Ok(bytes) = socket.recv(&mut buffer) {
            // Echoes that are still on their way are no reports.
            if let Ok(report) = serde_json::from_slice(&buffer[..bytes]) {
                return Ok(report);
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not report"))
}

/// Echoes asked for at a constant interval; answers are waited for meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Probes {
    /// Bytes of payload, 9 or more.
    pub payload_bytes: usize,
    /// From one to the next.
    pub interval_ns: u64,
    /// Before counting.
    pub warm_up_ns: u64,
    /// Counted.
    pub measure_ns: u64,
}

/// What came of [`Probes`].
#[derive(Clone, Debug, Serialize)]
pub struct Echoed {
    /// Counted probes that were sent.
    pub sent: u64,
    /// CPU time of both ends for each probe: it is part of every round trip.
    pub cpu_per_probe_ns: u64,
    /// Round trips in the order of their ends.
    #[serde(skip)]
    pub round_trips_ns: Vec<u64>,
}

/// Sends probes on a connected socket and takes the time of each round trip.
pub fn echo(socket: &UdpSocket, probes: Probes) -> io::Result<Echoed> {
    let mut data = vec![0; probes.payload_bytes.max(9)];
    data[0] = ECHO;
    let mut buffer = [0; 9216];
    socket.set_nonblocking(true)?;
    let (start_ns, cpu_ns) = (monotonic_ns(), thread_cpu_ns());
    let until_ns = start_ns + probes.warm_up_ns + probes.measure_ns;
    let warm_ns = start_ns + probes.warm_up_ns;
    let last_ns = until_ns + 2 * DRAIN.as_nanos() as u64;
    let (mut next_ns, mut all) = (start_ns, 0);
    let mut found = Echoed { sent: 0, cpu_per_probe_ns: 0, round_trips_ns: Vec::new() };
    loop {
        let now_ns = monotonic_ns();
        if now_ns >= last_ns {
            break;
        }
        if now_ns >= next_ns && next_ns < until_ns {
            // A late probe belongs to the time that it was due: the count does not depend on how busy the machine is.
            let counted = next_ns >= warm_ns;
            let stamp_ns = if counted { now_ns } else { UNCOUNTED };
            data[1..9].copy_from_slice(&stamp_ns.to_le_bytes());
            socket.send(&data)?;
            all += 1;
            found.sent += u64::from(counted);
            next_ns += probes.interval_ns;
        }
        let wake_ns = if next_ns < until_ns { next_ns } else { last_ns };
        let wait = timespec_of(wake_ns.saturating_sub(monotonic_ns()));
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        while let Ok(bytes) = socket.recv(&mut buffer) {
            let now_ns = monotonic_ns();
            let sent_ns =
                buffer[..bytes].get(1..9).map_or(UNCOUNTED, |at| u64::from_le_bytes(at.try_into().unwrap_or_default()));
            if sent_ns != UNCOUNTED {
                found.round_trips_ns.push(now_ns - sent_ns);
            }
        }
    }
    let cpu_ns = thread_cpu_ns() - cpu_ns;
    socket.set_nonblocking(false)?;
    let server = ask(socket)?;
    found.cpu_per_probe_ns = cpu_ns / all.max(1) + server.cpu_ns / server.echoes.max(1);
    Ok(found)
}

/// Bytes of payload that a bulk receiver got, by bin of [`BIN_NS`] since the node's clock was zero.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Series {
    /// Length of a bin.
    pub bin_ns: u64,
    /// Number of the bin to its bytes.
    pub bytes: BTreeMap<u64, u64>,
}

/// Takes one connection after another, each on a thread of its own, and reports to it what came on it.
pub fn serve_tcp(listener: &TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        std::thread::spawn(move || {
            if let Err(error) = take_bulk(stream) {
                eprintln!("a connection ended: {error}");
            }
        });
    }
}

fn take_bulk(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    let mut series = Series { bin_ns: BIN_NS, bytes: BTreeMap::new() };
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            bytes => *series.bytes.entry(monotonic_ns() / BIN_NS).or_default() += bytes as u64,
        }
    }
    stream.write_all(&serde_json::to_vec(&series)?)
}

/// Sends as much as the connection takes for so long; the receiver's series.
pub fn bulk(to: SocketAddr, length_ns: u64) -> io::Result<Series> {
    let mut stream = TcpStream::connect(to)?;
    let data = vec![7; 64 * 1024];
    let until_ns = monotonic_ns() + length_ns;
    while monotonic_ns() < until_ns {
        stream.write_all(&data)?;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::CpuBurner;

    fn pair(turns: u64) -> UdpSocket {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        std::thread::spawn(move || serve_udp(&server, turns));
        client
    }

    /// A server that works some 10 ms for each of a stream is busy all the time at most, whatever comes; the rest is lost or waits.
    #[test]
    fn an_even_stream_arrives_one_by_one_and_may_be_too_much() {
        let even =
            |per_second| Stream { payload_bytes: 200, per_second, warm_up_ns: 0, measure_ns: 400_000_000, even: true };
        let turns = CpuBurner::calibrate().turns_for(10_000_000);
        diecast_quiet::look(|| {
            let seen = stream(&pair(0), even(500.0)).unwrap();
            assert_eq!((seen.sent, seen.received), (200, 200));
            assert!((seen.rate / 500.0 - 1.0).abs() < 0.1, "{seen:?}");
            // Cores may be faster now than as it was calibrated.
            let work_s = || {
                let began_ns = monotonic_ns();
                crate::work::spin(turns);
                (monotonic_ns() - began_ns) as f64 / 1e9
            };
            let before_s = work_s().min(work_s());
            let seen = stream(&pair(turns), even(200.0)).unwrap();
            let busy = seen.rate * before_s.min(work_s()).min(work_s());
            assert!((0.5..1.15).contains(&busy), "{busy} of a core: {seen:?}");
        });
    }

    #[test]
    fn a_stream_arrives_at_its_rate() {
        let plan = Stream {
            payload_bytes: 458,
            per_second: 1000.0,
            warm_up_ns: 100_000_000,
            measure_ns: 500_000_000,
            even: false,
        };
        assert_eq!(plan.rate_bps(), 4e6);
        diecast_quiet::look(|| {
            let seen = stream(&pair(0), plan).unwrap();
            assert_eq!((seen.sent, seen.received), (500, 500));
            assert!((seen.rate_bps / 4e6 - 1.0).abs() < 0.1, "{seen:?}");
        });
    }

    #[test]
    fn probes_come_back() {
        let plan =
            Probes { payload_bytes: 64, interval_ns: 5_000_000, warm_up_ns: 50_000_000, measure_ns: 200_000_000 };
        let seen = echo(&pair(0), plan).unwrap();
        assert_eq!(seen.sent as usize, seen.round_trips_ns.len());
        assert_eq!(seen.sent, 40, "one each 5 ms for 200 ms");
        assert!(seen.cpu_per_probe_ns > 0);
    }

    #[test]
    fn bulk_bytes_are_all_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        std::thread::spawn(move || serve_tcp(&listener));
        let from = monotonic_ns() / BIN_NS;
        let series = bulk(to, 200_000_000).unwrap();
        let bytes: u64 = series.bytes.values().sum();
        assert!(bytes > 0 && bytes % (64 * 1024) == 0, "{bytes}");
        assert!(series.bytes.keys().all(|bin| (from..=monotonic_ns() / BIN_NS).contains(bin)), "{series:?}");
    }
}
