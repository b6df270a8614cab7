//! Readiness checks, made from inside the node's own network namespace.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use diecast_core_experiment::ReadyCheck;
use diecast_host_net::in_netns;

/// Real time that one attempt may take per second of virtual patience: an attempt is short, the next one follows.
const ATTEMPT: Duration = Duration::from_secs(5);

fn connect(node: Ipv4Addr, port: u16) -> Option<TcpStream> {
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(node)]
        .into_iter()
        .find_map(|ip| TcpStream::connect_timeout(&SocketAddr::new(ip, port), ATTEMPT).ok())
}

fn http_ok(mut stream: TcpStream, path: &str) -> bool {
    let _ = stream.set_read_timeout(Some(ATTEMPT));
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut head = [0u8; 12];
    if stream.write_all(request.as_bytes()).is_err() || stream.read_exact(&mut head).is_err() {
        return false;
    }
    let status = std::str::from_utf8(&head[9..12]).ok().and_then(|s| s.parse::<u16>().ok());
    head.starts_with(b"HTTP/1.") && status.is_some_and(|s| (200..400).contains(&s))
}

fn log_has(files: &[&Path], text: &str) -> bool {
    files.iter().any(|f| std::fs::read(f).is_ok_and(|b| String::from_utf8_lossy(&b).contains(text)))
}

/// One attempt.
pub fn is_ready(check: &ReadyCheck, netns: BorrowedFd<'_>, node: Ipv4Addr, logs: &[&Path]) -> bool {
    match check {
        ReadyCheck::Tcp { port } => in_netns(netns, || connect(node, *port).is_some()).unwrap_or(false),
        ReadyCheck::Http { port, path } => {
            in_netns(netns, || connect(node, *port).is_some_and(|s| http_ok(s, path))).unwrap_or(false)
        }
        ReadyCheck::Log { text } => log_has(logs, text),
    }
}
