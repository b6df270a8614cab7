//! The kernel's own timeouts on sockets when a lab gets another rate: the blob has set them in real time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use diecast_host_sys::socket::{option, set_option};

use crate::descriptors;
use crate::frame::NodeFrame;
use crate::stretch::Stretch;

/// How an option says its time.
#[derive(Clone, Copy)]
enum Form {
    /// Microseconds, as a timeval.
    Timeval,
    /// Seconds, behind the word that switches it on.
    Linger,
    /// An int of any unit, at most so much.
    Number(u64),
}

/// Level, name, form. TCP's are read of TCP sockets only.
const OPTIONS: [(i32, i32, Form); 8] = [
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO, Form::Timeval),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO, Form::Timeval),
    (libc::SOL_SOCKET, libc::SO_LINGER, Form::Linger),
    (libc::SOL_TCP, libc::TCP_KEEPIDLE, Form::Number(32767)),
    (libc::SOL_TCP, libc::TCP_KEEPINTVL, Form::Number(32767)),
    (libc::SOL_TCP, libc::TCP_LINGER2, Form::Number(i32::MAX as u64)),
    (libc::SOL_TCP, libc::TCP_DEFER_ACCEPT, Form::Number(i32::MAX as u64)),
    (libc::SOL_TCP, libc::TCP_USER_TIMEOUT, Form::Number(i32::MAX as u64)),
];

/// The time of an option, in its unit; 0 where there is none.
fn read(socket: BorrowedFd<'_>, at: usize) -> u64 {
    let (level, name, form) = OPTIONS[at];
    let positive = |n: i64| u64::try_from(n).unwrap_or(0);
    let int = |b: &[u8]| b.try_into().map_or(0, i32::from_ne_bytes);
    match form {
        Form::Timeval => option::<16>(socket, level, name).map_or(0, |b| {
            let part = |b: &[u8]| b.try_into().map_or(0, i64::from_ne_bytes);
            positive(part(&b[..8]).saturating_mul(1_000_000).saturating_add(part(&b[8..])))
        }),
        Form::Linger => {
            let on = |b: [u8; 8]| if int(&b[..4]) == 0 { 0 } else { positive(int(&b[4..]).into()) };
            option::<8>(socket, level, name).map_or(0, on)
        }
        Form::Number(_) => option::<4>(socket, level, name).map_or(0, |b| positive(int(&b).into())),
    }
}

fn write(socket: BorrowedFd<'_>, at: usize, value: u64) -> io::Result<()> {
    let (level, name, form) = OPTIONS[at];
    let int = |n: u64| i32::try_from(n).unwrap_or(i32::MAX).to_ne_bytes();
    match form {
        Form::Timeval => {
            let (s, us) = ((value / 1_000_000) as i64, (value % 1_000_000) as i64);
            set_option(socket, level, name, &[s.to_ne_bytes(), us.to_ne_bytes()].concat())
        }
        Form::Linger => set_option(socket, level, name, &[int(1), int(value)].concat()),
        Form::Number(max) => set_option(socket, level, name, &int(value.min(max))),
    }
}

/// A node's socket and its times as they were.
#[derive(Debug)]
pub struct HeldSocket {
    socket: OwnedFd,
    /// Never that of another socket while this one is open.
    inode: u64,
    times: [u64; OPTIONS.len()],
}

/// The sockets of nodes that stand still, each once. Those that no process has accepted yet, and those in messages on
/// their way, are not among them.
pub fn sockets_of(nodes: &[&NodeFrame]) -> io::Result<Vec<HeldSocket>> {
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    let inode = |link: &str| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok();
    for node in nodes {
        for pid in (node.members)()? {
            let wanted = |link: &str| inode(link).is_some_and(|n| seen.insert(n));
            descriptors::of_process(pid, wanted, |link, socket| {
                found.push(HeldSocket::of(socket, inode(link).unwrap_or(0)));
                Ok(())
            })?;
        }
    }
    Ok(found)
}

/// Whether a process is in a call that a timeout of the socket behind its first argument may end.
pub(crate) fn waits_by_socket(pid: i32, number: i64, fd: u64) -> bool {
    const CALLS: [i64; 16] = [
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_preadv2,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_connect,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_pwritev2,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        libc::SYS_sendfile,
    ];
    let Some(fd) = i32::try_from(fd).ok().filter(|_| CALLS.contains(&number)) else { return false };
    descriptors::one(pid, fd, |link| link.starts_with("socket:["))
        .is_some_and(|s| (0..2).any(|at| read(s.as_fd(), at) != 0))
}

impl HeldSocket {
    fn of(socket: OwnedFd, inode: u64) -> HeldSocket {
        let fd = socket.as_fd();
        let protocol = option::<4>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL).map_or(0, i32::from_ne_bytes);
        let has = |at: usize| OPTIONS[at].0 == libc::SOL_SOCKET || protocol == libc::IPPROTO_TCP;
        let times = std::array::from_fn(|at| if has(at) { read(fd, at) } else { 0 });
        HeldSocket { socket, inode, times }
    }
}

/// What programs asked for, as far as real times in whole units don't say it any more, by socket and option: real, as
/// the kernel has it, and virtual.
#[derive(Debug, Default)]
pub struct SocketTimes(BTreeMap<(u64, usize), (u64, u64)>);

impl SocketTimes {
    /// Sets the times by the new rate, once the sysctls have followed: a time that did so by itself is none of the
    /// socket's own. Gives how many the kernel refused.
    pub fn follow(&mut self, sockets: &[HeldSocket], stretch: Stretch) -> u64 {
        let before = std::mem::take(&mut self.0);
        let mut refused = 0;
        for held in sockets {
            let fd = held.socket.as_fd();
            for (at, real) in held.times.iter().copied().enumerate() {
                if real == 0 || read(fd, at) != real {
                    continue;
                }
                let virt = match before.get(&(held.inode, at)) {
                    Some((then, virt)) if *then == real => *virt,
                    _ => stretch.asked(real).max(1),
                };
                match write(fd, at, stretch.lasts(virt).max(1)) {
                    Ok(()) => _ = self.0.insert((held.inode, at), (read(fd, at), virt)),
                    Err(_) => refused += 1,
                }
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn held(fd: OwnedFd) -> HeldSocket {
        HeldSocket::of(fd, 7)
    }

    fn times(h: &HeldSocket) -> [u64; OPTIONS.len()] {
        std::array::from_fn(|at| read(h.socket.as_fd(), at))
    }

    #[test]
    fn times_follow_there_and_back_and_defaults_stay_defaults() {
        let h = held(TcpListener::bind("127.0.0.1:0").unwrap().into());
        let defaults = times(&h);
        assert_eq!(defaults[3..6], [7200, 75, 60]);
        for (at, value) in [(0, 1_000_000), (2, 3), (3, 5000), (7, 2500)] {
            write(h.socket.as_fd(), at, value).unwrap();
        }
        let mut known = SocketTimes::default();
        let mut go = |from: &str, to: &str| {
            let mut now = held(h.socket.try_clone().unwrap());
            // The sysctls' own, which follow by themselves: as if they had just done so.
            now.times[4..6].copy_from_slice(&[1, 1]);
            let stretch = Stretch { from: from.parse().unwrap(), to: to.parse().unwrap() };
            assert_eq!(known.follow(&[now], stretch), 0);
            times(&h)
        };
        assert_eq!(go("1", "2"), [2_000_000, 0, 6, 10_000, 75, 60, 0, 5000]);
        // Five thousand seconds at this TDF are more than the kernel takes, and come back all the same.
        assert_eq!(go("2", "10"), [10_000_000, 0, 30, 32_767, 75, 60, 0, 25_000]);
        assert_eq!(go("10", "1/2"), [500_000, 0, 2, 2500, 75, 60, 0, 1250]);
        assert_eq!(go("1/2", "1"), [1_000_000, 0, 3, 5000, 75, 60, 0, 2500]);
    }

    #[test]
    fn sockets_of_other_kinds_have_receive_timeouts() {
        for fd in [OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap()), UnixDatagram::unbound().unwrap().into()] {
            let fresh = held(fd);
            assert_eq!(fresh.times, [0; OPTIONS.len()]);
            write(fresh.socket.as_fd(), 0, 400_000).unwrap();
            let stretch = Stretch { from: "2".parse().unwrap(), to: "5".parse().unwrap() };
            let h = held(fresh.socket);
            SocketTimes::default().follow(std::slice::from_ref(&h), stretch);
            assert_eq!(times(&h)[..2], [1_000_000, 0]);
        }
    }
}
