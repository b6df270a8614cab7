//! The messages between `diecast` and the init of a node.
//!
//! One message is one packet on a SOCK_SEQPACKET unix socket: a version byte, a kind byte, then the
//! fields in order. Integers are little-endian, byte strings and lists carry a u32 count in front.
//! Both ends are built from this file; raise [`VERSION`] whenever the bytes of a message change.
//! Init refuses to work for a `diecast` of another version (it says hello first, with its own).
#![forbid(unsafe_code)]

/// Version of the messages below, the first byte of each.
pub const VERSION: u8 = 1;

/// No message is longer, so one fixed buffer receives any (below the default socket buffer of 208 KiB).
pub const MESSAGE_BYTES_MAX: usize = 160 * 1024;

/// First bytes of the packet by which a child hands over its seccomp listener; the pid of the child in
/// the node's pid namespace follows as a little-endian u32, the listener comes by SCM_RIGHTS.
/// The child then waits for one byte before it drops its capabilities and runs the program.
pub const HANDSHAKE_MAGIC: [u8; 4] = *b"dch1";

/// From `diecast` to init.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Start a program. Descriptors stdin, stdout, stderr and, when there is a filter, the handshake
    /// socket come with the same packet by SCM_RIGHTS.
    Start(Start),
    /// Send a signal to a program: to its whole process group (`group`) or to its first process.
    Signal { id: u32, signo: i32, group: bool },
    /// Kill everything in the node and exit.
    Shutdown,
}

/// What to start, and in which state.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Start {
    /// Chosen by `diecast`; every later message about the program carries it.
    pub id: u32,
    pub argv: Vec<Vec<u8>>,
    /// `NAME=value` strings, the whole environment.
    pub env: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    pub user: Option<User>,
    /// A `struct sock_filter` array, raw; empty for no filter.
    pub filter: Vec<u8>,
    pub no_new_privs: bool,
    /// Keep every capability instead of the usual set of a container.
    pub keep_caps: bool,
    /// For sched_setaffinity; empty leaves the affinity alone.
    pub cpus: Vec<u32>,
    /// For PR_SET_TIMERSLACK; `None` leaves the slack alone.
    pub timer_slack_ns: Option<u64>,
}

/// Identity of a program; numbers only, since names belong to the node's own passwd file.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// From init to `diecast`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The first message: init runs.
    Hello,
    /// The program's exec succeeded; `pid` counts in the node's pid namespace.
    Started { id: u32, pid: u32 },
    /// The program's first process ended with an exit code.
    Exited { id: u32, code: i32 },
    /// The program's first process was ended by a signal.
    Killed { id: u32, signo: i32 },
    /// The program never ran; `what` is the step that failed, with its operand.
    Failed { id: u32, errno: i32, what: String },
}

/// Why a packet is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Sent by another version of this file.
    Version(u8),
    UnknownKind(u8),
    /// Ends in the middle of a field.
    Truncated,
    /// Goes on after the last field.
    TrailingBytes(usize),
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DecodeError::Version(v) => write!(f, "message of version {v}, expected version {VERSION}"),
            DecodeError::UnknownKind(k) => write!(f, "message of unknown kind {k}"),
            DecodeError::Truncated => write!(f, "message ends in the middle of a field"),
            DecodeError::TrailingBytes(n) => write!(f, "{n} bytes after the last field of a message"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Request::Start(s) => {
                let mut w = Writer::new(1);
                w.u32(s.id);
                w.list(&s.argv);
                w.list(&s.env);
                w.bytes(&s.cwd);
                w.u8(s.user.is_some() as u8);
                if let Some(user) = &s.user {
                    w.u32(user.uid);
                    w.u32(user.gid);
                    w.u32s(&user.groups);
                }
                w.bytes(&s.filter);
                w.u8(s.no_new_privs as u8);
                w.u8(s.keep_caps as u8);
                w.u32s(&s.cpus);
                w.u8(s.timer_slack_ns.is_some() as u8);
                w.u64(s.timer_slack_ns.unwrap_or(0));
                w.0
            }
            Request::Signal { id, signo, group } => {
                let mut w = Writer::new(2);
                w.u32(*id);
                w.u32(*signo as u32);
                w.u8(*group as u8);
                w.0
            }
            Request::Shutdown => Writer::new(3).0,
        }
    }

    pub fn decode(packet: &[u8]) -> Result<Request, DecodeError> {
        let (kind, mut r) = Reader::new(packet)?;
        let request = match kind {
            1 => Request::Start(Start {
                id: r.u32()?,
                argv: r.list()?,
                env: r.list()?,
                cwd: r.bytes()?,
                user: match r.u8()? {
                    0 => None,
                    _ => Some(User { uid: r.u32()?, gid: r.u32()?, groups: r.u32s()? }),
                },
                filter: r.bytes()?,
                no_new_privs: r.u8()? != 0,
                keep_caps: r.u8()? != 0,
                cpus: r.u32s()?,
                timer_slack_ns: match (r.u8()?, r.u64()?) {
                    (0, _) => None,
                    (_, slack_ns) => Some(slack_ns),
                },
            }),
            2 => Request::Signal { id: r.u32()?, signo: r.u32()? as i32, group: r.u8()? != 0 },
            3 => Request::Shutdown,
            other => return Err(DecodeError::UnknownKind(other)),
        };
        r.end()?;
        Ok(request)
    }
}

impl Reply {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Hello => Writer::new(1).0,
            Reply::Started { id, pid } => {
                let mut w = Writer::new(2);
                w.u32(*id);
                w.u32(*pid);
                w.0
            }
            Reply::Exited { id, code } => {
                let mut w = Writer::new(3);
                w.u32(*id);
                w.u32(*code as u32);
                w.0
            }
            Reply::Killed { id, signo } => {
                let mut w = Writer::new(4);
                w.u32(*id);
                w.u32(*signo as u32);
                w.0
            }
            Reply::Failed { id, errno, what } => {
                let mut w = Writer::new(5);
                w.u32(*id);
                w.u32(*errno as u32);
                w.bytes(what.as_bytes());
                w.0
            }
        }
    }

    pub fn decode(packet: &[u8]) -> Result<Reply, DecodeError> {
        let (kind, mut r) = Reader::new(packet)?;
        let reply = match kind {
            1 => Reply::Hello,
            2 => Reply::Started { id: r.u32()?, pid: r.u32()? },
            3 => Reply::Exited { id: r.u32()?, code: r.u32()? as i32 },
            4 => Reply::Killed { id: r.u32()?, signo: r.u32()? as i32 },
            5 => Reply::Failed {
                id: r.u32()?,
                errno: r.u32()? as i32,
                what: String::from_utf8_lossy(&r.bytes()?).into_owned(),
            },
            other => return Err(DecodeError::UnknownKind(other)),
        };
        r.end()?;
        Ok(reply)
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Writer {
        Writer(vec![VERSION, kind])
    }
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    /// Counts saturate; such a message is far over [`MESSAGE_BYTES_MAX`] and refused by its sender.
    fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }
    fn bytes(&mut self, value: &[u8]) {
        self.count(value.len());
        self.0.extend_from_slice(value);
    }
    fn u32s(&mut self, values: &[u32]) {
        self.count(values.len());
        values.iter().for_each(|v| self.u32(*v));
    }
    fn list(&mut self, values: &[Vec<u8>]) {
        self.count(values.len());
        values.iter().for_each(|v| self.bytes(v));
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn new(packet: &'a [u8]) -> Result<(u8, Reader<'a>), DecodeError> {
        let mut r = Reader(packet);
        match r.u8()? {
            VERSION => Ok((r.u8()?, r)),
            other => Err(DecodeError::Version(other)),
        }
    }
    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        self.take(N)?.try_into().map_err(|_| DecodeError::Truncated)
    }
    fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }
    fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    fn bytes(&mut self) -> Result<Vec<u8>, DecodeError> {
        let count = self.u32()? as usize;
        Ok(self.take(count)?.to_vec())
    }
    fn u32s(&mut self) -> Result<Vec<u32>, DecodeError> {
        let count = self.u32()?;
        (0..count).map(|_| self.u32()).collect()
    }
    fn list(&mut self) -> Result<Vec<Vec<u8>>, DecodeError> {
        let count = self.u32()?;
        (0..count).map(|_| self.bytes()).collect()
    }
    fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes(self.0.len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<Request> {
        vec![
            Request::Start(Start {
                id: 7,
                argv: vec![b"sh".to_vec(), b"-c".to_vec(), Vec::new()],
                env: vec![b"A=b".to_vec()],
                cwd: b"/".to_vec(),
                user: Some(User { uid: 1, gid: u32::MAX, groups: vec![4, 5] }),
                filter: vec![1, 2, 3, 4, 5, 6, 7, 8],
                no_new_privs: true,
                keep_caps: false,
                cpus: vec![0, 3],
                timer_slack_ns: Some(u64::MAX),
            }),
            Request::Start(Start::default()),
            Request::Signal { id: 1, signo: 15, group: true },
            Request::Shutdown,
        ]
    }

    #[test]
    fn every_message_survives_the_wire() {
        for request in requests() {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        for reply in [
            Reply::Hello,
            Reply::Started { id: 1, pid: 2 },
            Reply::Exited { id: 1, code: -1 },
            Reply::Killed { id: 1, signo: 9 },
            Reply::Failed { id: 1, errno: 2, what: "execve of 'x'".into() },
        ] {
            assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
        }
    }

    #[test]
    fn every_cut_and_every_extension_is_refused() {
        for request in requests() {
            let packet = request.encode();
            for length in 0..packet.len() {
                assert_eq!(Request::decode(&packet[..length]), Err(DecodeError::Truncated), "{length}");
            }
            let longer = [packet.as_slice(), &[0]].concat();
            assert_eq!(Request::decode(&longer), Err(DecodeError::TrailingBytes(1)));
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut packet = Reply::Hello.encode();
        packet[0] = VERSION + 1;
        assert_eq!(Reply::decode(&packet), Err(DecodeError::Version(VERSION + 1)));
    }

    #[test]
    fn a_count_larger_than_the_packet_allocates_nothing() {
        let packet = [vec![VERSION, 1], vec![0; 4], vec![0xff; 4]].concat();
        assert_eq!(Request::decode(&packet), Err(DecodeError::Truncated));
    }
}
