//! Raw frames into a NIC, and the clock and counters around them. The unsafe calls of the network benchmark are here.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use diecast_core_net::NodeSpec;
use diecast_host_net::NODE_DEVICE;

/// From `linux/if_packet.h`: frames go to the device past its queueing discipline.
const PACKET_QDISC_BYPASS: libc::c_int = 20;
/// From the same: a virtio header comes before each frame.
const PACKET_VNET_HDR: libc::c_int = 15;
/// From `linux/sockios.h`: when the last datagram of a socket came, by CLOCK_REALTIME.
const SIOCGSTAMPNS: libc::c_ulong = 0x8907;
/// Frames for one system call.
const BATCH: usize = 64;
/// IPv4, UDP and Ethernet headers.
pub const HEADERS_BYTES: usize = 42;
pub const PORT: u16 = 7000;
/// As many full segments as a frame of 64 KiB takes.
pub const SEGMENTS: usize = 44;
const SEGMENT_BYTES: usize = 1514 - HEADERS_BYTES;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A UDP frame from one node to another, Ethernet header included.
pub fn frame(from: &NodeSpec, to: &NodeSpec, bytes: usize) -> Vec<u8> {
    let ip_bytes = (bytes - 14) as u16;
    let mut f = Vec::with_capacity(bytes);
    f.extend(to.mac.0);
    f.extend(from.mac.0);
    f.extend([0x08, 0x00, 0x45, 0]);
    f.extend(ip_bytes.to_be_bytes());
    // No fragment, 64 hops, UDP.
    f.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    f.extend(from.ipv4.octets());
    f.extend(to.ipv4.octets());
    let mut sum: u32 = f[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    f[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    f.extend(PORT.to_be_bytes());
    f.extend(PORT.to_be_bytes());
    f.extend((ip_bytes - 20).to_be_bytes());
    // A UDP checksum of 0 is none.
    f.resize(bytes, 0);
    f
}

/// A frame of UDP that stands for `SEGMENTS` of a full MTU, behind the virtio header that says so.
pub fn large_frame(from: &NodeSpec, to: &NodeSpec) -> Vec<u8> {
    let mut f = frame(from, to, HEADERS_BYTES + SEGMENTS * SEGMENT_BYTES);
    let length = (f.len() - 34) as u16;
    // The kernel leaves the sum of the pseudo header.
    let sum: u32 = f[26..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = sum + 17 + u32::from(length);
    f[40..42].copy_from_slice(&(((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    // Checksum to come, UDP; length of headers, payload of a segment, where the checksum starts and goes.
    let mut large = vec![1, 5];
    [HEADERS_BYTES as u16, SEGMENT_BYTES as u16, 34, 6].iter().for_each(|w| large.extend(w.to_ne_bytes()));
    large.extend(f);
    large
}

/// A packet socket on the NIC of the namespace in which it was made.
pub struct Injector {
    socket: OwnedFd,
    frame: Vec<u8>,
}

impl Injector {
    /// Call it inside the namespace. `past_qdisc` leaves the device's queueing discipline out.
    pub fn new(frame: Vec<u8>, past_qdisc: bool) -> io::Result<Injector> {
        // SAFETY: no pointer argument; the descriptor is new and owned from here on.
        let socket = unsafe {
            OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0))?)
        };
        let name = format!("{NODE_DEVICE}\0");
        // SAFETY: a NUL-terminated name that lives during the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr().cast()) };
        // SAFETY: zeros are a valid sockaddr_ll.
        let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        at.sll_family = libc::AF_PACKET as u16;
        at.sll_ifindex = index as i32;
        let on: libc::c_int = past_qdisc.into();
        // SAFETY: both calls read live values of the lengths given.
        unsafe {
            check(libc::bind(socket.as_raw_fd(), (&raw const at).cast(), size_of_val(&at) as u32))?;
            let length = size_of_val(&on) as u32;
            let option = (&raw const on).cast();
            check(libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, PACKET_QDISC_BYPASS, option, length))?;
        }
        Ok(Injector { socket, frame })
    }

    /// From now on its frame begins with a virtio header.
    pub fn with_header(self) -> io::Result<Injector> {
        let on: libc::c_int = 1;
        let (option, length) = ((&raw const on).cast(), size_of_val(&on) as u32);
        // SAFETY: a live value of that length.
        let set =
            unsafe { libc::setsockopt(self.socket.as_raw_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, option, length) };
        check(set).map(|_| self)
    }

    /// From now on it sends this frame.
    pub fn load(&mut self, frame: Vec<u8>) {
        self.frame = frame;
    }

    /// Sends so many frames; how many the device took. What it refuses is lost: its ring is full.
    pub fn send(&mut self, frames: u64) -> u64 {
        let mut taken = 0;
        let mut left = frames;
        while left > 0 {
            let batch = left.min(BATCH as u64);
            taken += self.batch(batch as u32);
            left -= batch;
        }
        taken
    }

    fn batch(&mut self, frames: u32) -> u64 {
        let part = libc::iovec { iov_base: self.frame.as_mut_ptr().cast(), iov_len: self.frame.len() };
        // SAFETY: zeros are a valid mmsghdr.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        for message in &mut messages {
            message.msg_hdr.msg_iov = (&raw const part).cast_mut();
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: `messages` has at least `frames` entries, all of which point to `part`, which points to the frame;
        // the kernel reads all of them during the call only.
        let sent =
            unsafe { libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), frames, libc::MSG_DONTWAIT) };
        u64::try_from(sent).unwrap_or(0)
    }
}

/// When the last datagram read from this socket came to the node, ns of CLOCK_REALTIME. The first call asks the kernel
/// to look from then on.
pub fn arrived_ns(socket: &UdpSocket) -> io::Result<u64> {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSTAMPNS, &raw mut at) })?;
    Ok(at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64)
}

/// SCHED_FIFO for the calling thread.
pub fn become_fifo(priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: a live sched_param.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) }).map(|_| ())
}

/// As many descriptors as this process may have.
pub fn raise_descriptors() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live rlimit, written and then read.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)).map(|_| ())
    }
}

/// Moves frames from one TAP to another until `stop`: what any emulator has to do at least.
pub fn forward(from: &OwnedFd, to: &OwnedFd, stop: &std::sync::atomic::AtomicBool) {
    let mut buffer = vec![0u8; 70_000];
    let mut poll = libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 10) };
        loop {
            // SAFETY: reads at most as many bytes as the buffer has, and writes as many as were read.
            let moved = unsafe {
                let got = libc::read(from.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len());
                if got > 0 { libc::write(to.as_raw_fd(), buffer.as_ptr().cast(), got as usize) } else { got }
            };
            if moved <= 0 || stop.load(std::sync::atomic::Ordering::Relaxed) {
                break;
            }
        }
    }
}

/// Counters of the NIC of the namespace in which it was opened.
pub struct Counters(File);

impl Counters {
    pub fn open() -> io::Result<Counters> {
        File::open("/proc/thread-self/net/dev").map(Counters)
    }

    /// Frames that the node got.
    pub fn received(&self) -> u64 {
        self.column(1)
    }

    /// Their bytes.
    pub fn received_bytes(&self) -> u64 {
        self.column(0)
    }

    fn column(&self, at: usize) -> u64 {
        let mut text = [0; 4096];
        let bytes = self.0.read_at(&mut text, 0).expect("a file of the kernel's");
        let text = String::from_utf8_lossy(&text[..bytes]);
        let line = text.lines().find_map(|l| l.trim_start().strip_prefix(NODE_DEVICE)?.strip_prefix(':'));
        line.and_then(|l| l.split_whitespace().nth(at)?.parse().ok()).expect("a line of the NIC")
    }
}
