//! A server whose service is work of a processor: each request costs a given amount, in order of arrival, on one thread.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::event::epoll::{self, EventData, EventFlags};

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

struct Client {
    stream: TcpStream,
    held: Vec<u8>,
}

/// Serves forever; GET requests without a body, any path.
pub fn serve(listener: &TcpListener, service: Service) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let burner = CpuBurner::calibrate();
    let work = || match service {
        Service::CpuTime(ns) => _ = burner.burn(ns),
        Service::Turns(turns) => _ = spin(turns),
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
                && answer(client, work).is_err()
            {
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
fn answer(client: &mut Client, work: impl Fn()) -> io::Result<()> {
    let mut received = [0; 4096];
    match client.stream.read(&mut received) {
        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(bytes) => client.held.extend_from_slice(&received[..bytes]),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
        Err(error) => return Err(error),
    }
    while let Some(end) = client.held.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
        client.held.drain(..end + 4);
        work();
        // A full send buffer means that the client does not read its answers; it is cut off.
        client.stream.write_all(ANSWER)?;
    }
    if client.held.len() > REQUEST_BYTES_MAX { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
}
