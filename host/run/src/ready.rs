//! Readiness checks, made from inside the node's own network namespace.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use diecast_core_experiment::ReadyCheck;
use diecast_host_net::in_netns;

/// Real time that a connection inside the node may take: it is there at once, or its queue is full and the next attempt
/// follows.
const CONNECT: Duration = Duration::from_secs(1);
/// Real time between two looks whether to wait on for an answer.
const LOOK_EVERY: Duration = Duration::from_millis(50);

fn connect(node: Ipv4Addr, port: u16) -> Option<TcpStream> {
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(node)]
        .into_iter()
        .find_map(|ip| TcpStream::connect_timeout(&SocketAddr::new(ip, port), CONNECT).ok())
}

/// Whether a GET is answered, while `wait_on` says so, with a status from 200 to 399.
fn http_ok(mut stream: TcpStream, path: &str, wait_on: &dyn Fn() -> bool) -> bool {
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    if stream.set_read_timeout(Some(LOOK_EVERY)).is_err() || stream.write_all(request.as_bytes()).is_err() {
        return false;
    }
    let (mut head, mut got) = ([0u8; 12], 0);
    while got < head.len() {
        match stream.read(&mut head[got..]) {
            Ok(0) => return false,
            Ok(n) => got += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                if !wait_on() {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
    let status = std::str::from_utf8(&head[9..12]).ok().and_then(|s| s.parse::<u16>().ok());
    head.starts_with(b"HTTP/1.") && status.is_some_and(|s| (200..400).contains(&s))
}

fn log_has(files: &[&Path], text: &str) -> bool {
    files.iter().any(|f| std::fs::read(f).is_ok_and(|b| String::from_utf8_lossy(&b).contains(text)))
}

/// One attempt, which takes no longer than `wait_on` allows.
pub fn is_ready(
    check: &ReadyCheck,
    netns: BorrowedFd<'_>,
    node: Ipv4Addr,
    logs: &[&Path],
    wait_on: &(dyn Fn() -> bool + Sync),
) -> bool {
    match check {
        ReadyCheck::Tcp { port } => in_netns(netns, || connect(node, *port).is_some()).unwrap_or(false),
        ReadyCheck::Http { port, path } => {
            in_netns(netns, || connect(node, *port).is_some_and(|s| http_ok(s, path, wait_on))).unwrap_or(false)
        }
        ReadyCheck::Log { text } => log_has(logs, text),
    }
}
