//! The event loop: one thread, one epoll, one timer.
//!
//! Rules:
//! * A request's clock starts at its intended send time, whatever happened to earlier requests.
//! * Idle means asleep: `epoll_wait` without a timeout, woken by a socket or by a timerfd that is set to the nanosecond
//!   of the next event (epoll's own timeout counts in milliseconds).
//! * A connection carries one request at a time. The most recently used idle connection is taken first, a new one is
//!   opened when none is idle, and beyond the limit a request waits for the next connection that falls idle.
//! * A kept connection that the server closes before the first byte of an answer costs one retry, not an error.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::clock::{monotonic_ns, timespec_of};
use crate::response::{Finished, ResponseReader};
use crate::schedule::Arrival;

/// Where and how to send.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    pub address: SocketAddr,
    /// Value of the Host header.
    pub host: String,
    /// A request without an answer this long after its intended send time is an error.
    pub timeout_ns: u64,
    /// How long after `end_ns` outstanding requests are waited for.
    pub drain_ns: u64,
    /// End of the schedule, nanoseconds after its start; at or after the last arrival.
    pub end_ns: u64,
    pub connections_max: usize,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A whole response with a status from 200 to 299; nanoseconds since the intended send time.
    Completed { latency_ns: u64 },
    /// A whole response with another status.
    Refused { status: u16 },
    /// No answer within the timeout or the drain.
    TimedOut,
    /// The connection failed or the answer was not HTTP.
    Broken,
}

/// What a run of the client gave.
#[derive(Clone, Debug)]
pub struct ClientReport {
    /// CLOCK_MONOTONIC at which the schedule started.
    pub start_ns: u64,
    /// One per arrival, in its order.
    pub outcomes: Vec<Outcome>,
    /// How long after its intended time each request was taken up, nanoseconds; one per arrival.
    pub dispatch_late_ns: Vec<u64>,
    pub connections_opened: u64,
    /// The first broken connection or answer in words, for people.
    pub first_fault: Option<String>,
}

/// Sends all arrivals and waits for the answers. An error is a fault of this machine (no descriptor, no epoll), never
/// of the server.
pub fn run(options: &ClientOptions, arrivals: &[Arrival]) -> io::Result<ClientReport> {
    Client::new(options, arrivals)?.run()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    Scheduled,
    /// Waits for a connection.
    Queued,
    InFlight {
        slot: u32,
    },
    Over(Outcome),
}

struct Connection {
    stream: TcpStream,
    /// Tells this connection from earlier ones in its slot.
    generation: u32,
    reader: ResponseReader,
    request: Option<usize>,
    /// The request's bytes, and how many of them are sent.
    out: Vec<u8>,
    sent: usize,
    /// Responses that this connection has carried.
    served: u32,
}

struct Client<'a> {
    options: &'a ClientOptions,
    arrivals: &'a [Arrival],
    epoll: OwnedFd,
    timer: OwnedFd,
    /// CLOCK_MONOTONIC at which the schedule starts.
    start_ns: u64,
    progress: Vec<Progress>,
    dispatch_late_ns: Vec<u64>,
    /// Index of the next arrival to take up.
    next: usize,
    /// All requests before this one are over.
    oldest: usize,
    queue: VecDeque<usize>,
    slots: Vec<Option<Connection>>,
    free_slots: Vec<u32>,
    /// Idle connections by slot and generation; entries of closed ones are skipped when met.
    idle: Vec<(u32, u32)>,
    connections_opened: u64,
    /// What the timer is set to; 0 once it has fired.
    timer_set_ns: u64,
    first_fault: Option<String>,
}

const TIMER: u64 = u64::MAX;
/// Time between the start of the loop and the start of the schedule, so that the first arrival is not late.
const LEAD_NS: u64 = 1_000_000;

impl<'a> Client<'a> {
    fn new(options: &'a ClientOptions, arrivals: &'a [Arrival]) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        // Edge-triggered: each expiry wakes once and need not be read; setting the timer again clears it.
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        Ok(Client {
            options,
            arrivals,
            epoll,
            timer,
            start_ns: 0,
            progress: vec![Progress::Scheduled; arrivals.len()],
            dispatch_late_ns: vec![0; arrivals.len()],
            next: 0,
            oldest: 0,
            queue: VecDeque::new(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            idle: Vec::new(),
            connections_opened: 0,
            timer_set_ns: 0,
            first_fault: None,
        })
    }

    fn run(mut self) -> io::Result<ClientReport> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let mut received = vec![0_u8; 64 * 1024];
        self.start_ns = monotonic_ns() + LEAD_NS;
        loop {
            // Expiry first: it frees connections for requests that wait.
            self.expire(monotonic_ns());
            let now_ns = self.take_up_due();
            if self.oldest == self.arrivals.len() && now_ns >= self.start_ns + self.options.end_ns {
                return Ok(self.report());
            }
            self.set_timer()?;
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    TIMER => self.timer_set_ns = 0,
                    data => self.serve(data as u32, (data >> 32) as u32, event.flags, &mut received),
                }
            }
        }
    }

    /// Sends what waits and every arrival whose time has come, and returns the time at which none was left.
    fn take_up_due(&mut self) -> u64 {
        loop {
            self.send_queued();
            let now_ns = monotonic_ns();
            if self.next == self.arrivals.len() || self.intended_ns(self.next) > now_ns {
                return now_ns;
            }
            self.dispatch_late_ns[self.next] = now_ns - self.intended_ns(self.next);
            self.progress[self.next] = Progress::Queued;
            self.queue.push_back(self.next);
            self.next += 1;
        }
    }

    /// Gives up on requests whose time is over. Deadlines have the order of arrivals, so the oldest decides.
    fn expire(&mut self, now_ns: u64) {
        while self.oldest < self.next {
            match self.progress[self.oldest] {
                Progress::Over(_) => {}
                _ if self.deadline_ns(self.oldest) > now_ns => return,
                Progress::InFlight { slot } => {
                    self.close(slot);
                    self.end(self.oldest, Outcome::TimedOut);
                }
                Progress::Queued | Progress::Scheduled => self.end(self.oldest, Outcome::TimedOut),
            }
            self.oldest += 1;
        }
    }

    fn set_timer(&mut self) -> io::Result<()> {
        let end_ns = self.start_ns + self.options.end_ns;
        let next_ns = if self.next < self.arrivals.len() { self.intended_ns(self.next) } else { u64::MAX };
        let deadline_ns = if self.oldest < self.next { self.deadline_ns(self.oldest) } else { u64::MAX };
        // With nothing left to send or to wait for, the end of the schedule is the next event.
        let target_ns = match next_ns.min(deadline_ns) {
            u64::MAX => end_ns,
            soonest => soonest,
        };
        // A target that came due since the last look at the clock fires at once.
        if target_ns != self.timer_set_ns {
            let value = Itimerspec { it_interval: timespec_of(0), it_value: timespec_of(target_ns.max(1)) };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value)?;
            self.timer_set_ns = target_ns;
        }
        Ok(())
    }

    /// Sends the requests that wait, the oldest first, as long as there are connections for them.
    fn send_queued(&mut self) {
        while let Some(&request) = self.queue.front() {
            if self.progress[request] == Progress::Queued {
                match self.vacancy() {
                    Ok(None) => return,
                    Ok(Some(slot)) => {
                        self.queue.pop_front();
                        self.send_on(slot, request);
                        continue;
                    }
                    Err(error) => {
                        self.fault(format!("connect to {}: {error}", self.options.address));
                        self.end(request, Outcome::Broken);
                    }
                }
            }
            self.queue.pop_front();
        }
    }

    /// The most recently used idle connection, or a new one, or none when all that are allowed are busy.
    fn vacancy(&mut self) -> io::Result<Option<u32>> {
        while let Some((slot, generation)) = self.idle.pop() {
            if self.connection(slot, generation).is_some() {
                return Ok(Some(slot));
            }
        }
        if self.slots.len() - self.free_slots.len() < self.options.connections_max {
            return self.open().map(Some);
        }
        Ok(None)
    }

    /// Starts a connection; it is usable at once, its first request leaves when the peer has accepted.
    fn open(&mut self) -> io::Result<u32> {
        let family = if self.options.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &self.options.address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        let slot = self.free_slots.last().copied().unwrap_or(self.slots.len() as u32);
        let generation = self.connections_opened as u32;
        let data = EventData::new_u64(u64::from(generation) << 32 | u64::from(slot));
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &stream, data, interest)?;
        self.connections_opened += 1;
        let connection = Connection {
            stream,
            generation,
            reader: ResponseReader::default(),
            request: None,
            out: Vec::with_capacity(256),
            sent: 0,
            served: 0,
        };
        if self.free_slots.pop().is_none() {
            self.slots.push(None);
        }
        self.slots[slot as usize] = Some(connection);
        Ok(slot)
    }

    fn send_on(&mut self, slot: u32, request: usize) {
        let (path, host) = (&self.arrivals[request].path, &self.options.host);
        let connection = self.slots[slot as usize].as_mut().expect("the slot was just found open");
        connection.request = Some(request);
        connection.sent = 0;
        connection.out.clear();
        for part in ["GET ", path, " HTTP/1.1\r\nHost: ", host, "\r\nUser-Agent: diecast-loadgen\r\n\r\n"] {
            connection.out.extend_from_slice(part.as_bytes());
        }
        self.progress[request] = Progress::InFlight { slot };
        self.flush(slot);
    }

    /// Writes what is left of the request. Before the connection stands the kernel says NotConnected or WouldBlock, and
    /// an event follows.
    fn flush(&mut self, slot: u32) {
        let connection = self.slots[slot as usize].as_mut().expect("only open slots are flushed");
        while connection.sent < connection.out.len() {
            match connection.stream.write(&connection.out[connection.sent..]) {
                Ok(bytes) => connection.sent += bytes,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected => return,
                    io::ErrorKind::Interrupted => {}
                    _ => return self.lost(slot, &format!("write: {error}")),
                },
            }
        }
    }

    /// Acts on an event of a connection.
    fn serve(&mut self, slot: u32, generation: u32, flags: EventFlags, received: &mut [u8]) {
        let Some(connection) = self.connection(slot, generation) else { return };
        if flags.contains(EventFlags::OUT) && connection.sent < connection.out.len() {
            self.flush(slot);
        }
        let closing = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        if !closing && !flags.contains(EventFlags::IN) {
            return;
        }
        while let Some(connection) = self.connection(slot, generation) {
            match connection.stream.read(received) {
                Ok(0) => return self.closed_by_peer(slot),
                Ok(bytes) => {
                    self.received(slot, &received[..bytes]);
                    // A short read emptied the socket; without a pending close nothing more can be there.
                    if bytes < received.len() && !closing {
                        return;
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => {}
                    _ => return self.lost(slot, &format!("read: {error}")),
                },
            }
        }
    }

    fn received(&mut self, slot: u32, bytes: &[u8]) {
        let connection = self.slots[slot as usize].as_mut().expect("only open slots receive");
        if connection.request.is_none() {
            return self.lost(slot, "bytes without a request");
        }
        match connection.reader.feed(bytes) {
            Ok(None) => {}
            Ok(Some(finished)) => self.answered(slot, finished),
            Err(error) => self.lost(slot, &error.to_string()),
        }
    }

    fn answered(&mut self, slot: u32, finished: Finished) {
        let now_ns = monotonic_ns();
        let connection = self.slots[slot as usize].as_mut().expect("only open slots answer");
        let request = connection.request.take().expect("a response ends a request");
        let fully_sent = connection.sent == connection.out.len();
        let generation = connection.generation;
        connection.served += 1;
        let outcome = match finished.status {
            200..300 => Outcome::Completed { latency_ns: now_ns - self.intended_ns(request) },
            status => {
                self.fault(format!("status {status} for {}", self.arrivals[request].path));
                Outcome::Refused { status }
            }
        };
        self.end(request, outcome);
        if finished.keep_alive && fully_sent {
            self.idle.push((slot, generation));
        } else {
            self.close(slot);
        }
    }

    fn closed_by_peer(&mut self, slot: u32) {
        let connection = self.slots[slot as usize].as_mut().expect("only open slots are closed");
        match connection.reader.close() {
            Ok(Some(finished)) if connection.request.is_some() => self.answered(slot, finished),
            Ok(_) => self.lost(slot, "connection closed before an answer"),
            Err(error) => self.lost(slot, &error.to_string()),
        }
    }

    /// The connection is of no more use; its request, if any, is tried again or over.
    fn lost(&mut self, slot: u32, why: &str) {
        let connection = self.slots[slot as usize].as_ref().expect("only open slots are lost");
        let untouched = connection.served > 0 && !connection.reader.is_within();
        let request = connection.request;
        self.close(slot);
        match request {
            // The server closed a kept connection while the request was on its way. A retry on another kept connection
            // can meet the same, at most once per connection, so this ends.
            Some(request) if untouched => {
                self.progress[request] = Progress::Queued;
                self.queue.push_front(request);
            }
            Some(request) => {
                self.fault(why.to_owned());
                self.end(request, Outcome::Broken);
            }
            None => {}
        }
    }

    fn close(&mut self, slot: u32) {
        // Dropping the stream closes it, and epoll forgets it.
        if self.slots[slot as usize].take().is_some() {
            self.free_slots.push(slot);
        }
    }

    fn connection(&mut self, slot: u32, generation: u32) -> Option<&mut Connection> {
        self.slots[slot as usize].as_mut().filter(|connection| connection.generation == generation)
    }

    fn end(&mut self, request: usize, outcome: Outcome) {
        self.progress[request] = Progress::Over(outcome);
    }

    fn fault(&mut self, why: String) {
        self.first_fault.get_or_insert(why);
    }

    fn intended_ns(&self, request: usize) -> u64 {
        self.start_ns + self.arrivals[request].at_ns
    }

    /// When to give up on a request: its timeout, or the end of the drain if that is earlier.
    fn deadline_ns(&self, request: usize) -> u64 {
        let drained_ns = self.start_ns.saturating_add(self.options.end_ns).saturating_add(self.options.drain_ns);
        self.intended_ns(request).saturating_add(self.options.timeout_ns).min(drained_ns)
    }

    fn report(self) -> ClientReport {
        let outcome = |progress: &Progress| match progress {
            Progress::Over(outcome) => *outcome,
            unfinished => unreachable!("the loop ended with a request {unfinished:?}"),
        };
        ClientReport {
            start_ns: self.start_ns,
            outcomes: self.progress.iter().map(outcome).collect(),
            dispatch_late_ns: self.dispatch_late_ns,
            connections_opened: self.connections_opened,
            first_fault: self.first_fault,
        }
    }
}
