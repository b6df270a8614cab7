//! A server whose service is work of a processor: each request costs a given amount, in order of arrival, on one thread or on
//! several, one after another.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::stages::{HandOn, Stages};
use crate::work::{CpuBurner, spin};

const LISTENER: u64 = u64::MAX;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n";
/// A client that sends more than this without the end of a request is cut off.
const REQUEST_BYTES_MAX: usize = 16 * 1024;

/// What a request costs.
#[derive(Clone, Copy, Debug)]
pub enum Service {
    /// So much CPU time by the server's own clock, ns: less work on a slower machine.
    CpuTime(u64),
    /// So many turns of a loop: more CPU time on a slower machine.
    Turns(u64),
}

impl Service {
    /// One of so many equal parts, rounded down.
    pub fn part(self, of: usize) -> Service {
        match self {
            Service::CpuTime(ns) => Service::CpuTime(ns / of.max(1) as u64),
            Service::Turns(turns) => Service::Turns(turns / of.max(1) as u64),
        }
    }

    /// What does it.
    pub fn work(self) -> impl Fn() + Copy + Send {
        let burner = CpuBurner::calibrate();
        move || match self {
            Service::CpuTime(ns) => _ = burner.burn(ns),
            Service::Turns(turns) => _ = spin(turns),
        }
    }
}

struct Client {
    stream: TcpStream,
    held: Vec<u8>,
}

/// Who works on a request, one after another.
#[derive(Clone, Debug)]
pub struct Parts {
    /// How many, 1 at least.
    pub count: usize,
    /// By what.
    pub by: HandOn,
    /// Arguments with which this program is one of them ([`crate::stages::serve_part`]).
    pub of_process: Vec<String>,
}

/// Serves forever; GET requests without a body, any path.
pub fn serve(listener: &TcpListener, service: Service, parts: &Parts) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let work = service.part(parts.count).work();
    let mut others = Stages::start(parts.count, parts.by, work, &parts.of_process)?;
    let mut work = || {
        work();
        others.hand_on().map_err(|error| io::Error::other(format!("the next part of a request is not done: {error}")))
    };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut clients: Vec<Option<Client>> = Vec::new();
    let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
    loop {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let data = event.data.u64();
            if data == LISTENER {
                accept(listener, &epoll, &mut clients)?;
            } else if let Some(client) = &mut clients[data as usize]
                && let Err(error) = answer(client, &mut work)
            {
                // Those of the others who work on a request.
                if error.kind() == io::ErrorKind::Other {
                    return Err(error);
                }
                clients[data as usize] = None;
            }
        }
    }
}

fn accept(listener: &TcpListener, epoll: &impl std::os::fd::AsFd, clients: &mut Vec<Option<Client>>) -> io::Result<()> {
    let stream = match listener.accept() {
        Ok((stream, _)) => stream,
        // The client went away between the event and the call, or a signal came.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
            ) =>
        {
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let slot = clients.iter().position(Option::is_none).unwrap_or(clients.len());
    epoll::add(epoll, &stream, EventData::new_u64(slot as u64), EventFlags::IN)?;
    let client = Some(Client { stream, held: Vec::new() });
    if slot == clients.len() {
        clients.push(client)
    } else {
        clients[slot] = client
    }
    Ok(())
}

/// Reads once, then works and answers for every request that is complete. An error means that the client is gone.
fn answer(client: &mut Client, work: &mut impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let mut received = [0; 4096];
    match client.stream.read(&mut received) {
        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(bytes) => client.held.extend_from_slice(&received[..bytes]),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
        Err(error) => return Err(error),
    }
    while let Some(end) = client.held.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
        client.held.drain(..end + 4);
        work()?;
        // A full send buffer means that the client does not read its answers; it is cut off.
        client.stream.write_all(ANSWER)?;
    }
    if client.held.len() > REQUEST_BYTES_MAX { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
}
