//! A container node: from its description to running programs, and back to nothing.

use crate::bundle::{Bundle, DEFAULT_PATH};
use crate::cgroup::{Cgroup, Quota, Throttled};
use crate::channel::{self, Channel, Received, wait_readable};
use crate::error::{NodeError, file};
use crate::lab::{LabDir, LabStatus, NodeStatus, Resource, lock_mutex};
use crate::process::ProcessId;
use crate::rootfs::{self, NodeFile, Overlay, Rootfs};
use crate::{runc, sys, view};
use diecast_init_protocol::{Reply, Request, Start};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use diecast_init_protocol::User;

/// How long init may take to say hello once runc has started it.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a node may take to die of its own before its cgroup is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// What a node is.
#[derive(Debug, Default)]
pub struct NodeSpec {
    /// Unique in the lab; part of paths and cgroup names.
    pub name: String,
    /// The name itself when `None`.
    pub hostname: Option<String>,
    /// The node's network namespace, made by someone else; `None` for a new one with only loopback.
    pub netns: Option<OwnedFd>,
    pub memory_bytes: Option<u64>,
    /// Host CPUs that the node may use; empty for all.
    pub cpus: Vec<u32>,
    /// Numbers of the cores that the node sees in /proc and /sys; empty for the host's own.
    pub cores: Vec<u32>,
    pub quota: Option<Quota>,
    pub rootfs: Rootfs,
    pub files: Vec<NodeFile>,
    /// Address and names for /etc/hosts: usually every node of the lab.
    pub hosts: Vec<(IpAddr, Vec<String>)>,
    /// Content of /etc/resolv.conf; `None` for no name server.
    pub resolv_conf: Option<String>,
    /// For every program of the node.
    pub env: BTreeMap<OsString, OsString>,
    /// Where init's own log goes; the state directory, which does not outlive the lab, when `None`.
    pub log_dir: Option<PathBuf>,
}

impl NodeSpec {
    pub fn new(name: impl Into<String>) -> NodeSpec {
        NodeSpec { name: name.into(), ..NodeSpec::default() }
    }
}

/// Where a program's output goes.
#[derive(Debug, Default)]
pub enum Output {
    #[default]
    Null,
    /// Appended to; made when it does not exist.
    File(PathBuf),
    Fd(OwnedFd),
}

/// Puts a program in a frame: the filter that its first process installs, and the socket by which it hands the
/// listener over (see [`crate::Handshake`]).
#[derive(Debug)]
pub struct Envelope {
    /// A `struct sock_filter` array, raw.
    pub filter: Vec<u8>,
    pub handshake: OwnedFd,
}

/// What to run in a node.
#[derive(Debug)]
pub struct ProgramSpec {
    /// A first word without a slash is looked for in PATH.
    pub argv: Vec<OsString>,
    /// On top of the node's.
    pub env: BTreeMap<OsString, OsString>,
    pub cwd: PathBuf,
    /// `None` is /dev/null.
    pub stdin: Option<OwnedFd>,
    pub stdout: Output,
    pub stderr: Output,
    /// `None` is root.
    pub user: Option<User>,
    pub envelope: Option<Envelope>,
    pub no_new_privs: bool,
    /// Keep all capabilities instead of the usual ones of a container.
    pub keep_caps: bool,
    /// Affinity; the node's CPUs when `None`.
    pub cpus: Option<Vec<u32>>,
    pub timer_slack_ns: Option<u64>,
}

impl ProgramSpec {
    pub fn new<S: Into<OsString>>(argv: impl IntoIterator<Item = S>) -> ProgramSpec {
        ProgramSpec {
            argv: argv.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            cwd: PathBuf::from("/"),
            stdin: None,
            stdout: Output::Null,
            stderr: Output::Null,
            user: None,
            envelope: None,
            no_new_privs: false,
            keep_caps: false,
            cpus: None,
            timer_slack_ns: None,
        }
    }
}

/// A program of a node, unique in the node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u32);

/// How the first process of a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

/// What a node reports. Every program gives either `Failed`, or `Started` and later `Exited`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Started {
        program: ProgramId,
        pid_in_node: u32,
    },
    Exited {
        program: ProgramId,
        exit: Exit,
    },
    /// It never ran; `what` is the step that failed, with its operand.
    Failed {
        program: ProgramId,
        errno: i32,
        what: String,
    },
    /// Init is dead, and with it everything in the node. Repeated for ever.
    Gone,
}

/// A running node. Dropping it kills everything in it.
#[derive(Debug)]
pub struct Node {
    name: String,
    cgroup: Cgroup,
    runc_dir: PathBuf,
    init: ProcessId,
    init_fd: OwnedFd,
    channel: Channel,
    program_next: AtomicU32,
    env: BTreeMap<OsString, OsString>,
    cpus: Vec<u32>,
    status: Arc<Mutex<LabStatus>>,
    stopped: bool,
}

impl Node {
    /// Starts a node; returns when its init answers.
    pub fn start(lab: &LabDir, spec: NodeSpec) -> Result<Node, NodeError> {
        check_name(&spec.name)?;
        let name = spec.name.clone();
        let dir = lab.node_dir(&name);
        if dir.exists() {
            return Err(NodeError::Exists { name, lab: lab.id().to_owned() });
        }
        let held = lab.starting()?;
        let root_dir = dir.join("rootfs");
        fs::create_dir_all(&root_dir).map_err(file("create", &root_dir))?;
        let log = spec.log_dir.as_deref().unwrap_or(&dir).join(format!("{name}.init.log"));

        let root = lab.resolve_root(&spec.rootfs)?;
        let overlays = rootfs::prepare(&dir, &root, &all_files(&spec))?;
        lab.record(&Resource::Container { id: name.clone() })?;
        let cgroup = lab.cgroup(&name);
        cgroup.create()?;
        let covers = view::write(&dir.join("view"), &spec.cores)?;
        let bundle = Bundle {
            covers: &covers,
            seen_cores: &spec.cores,
            hostname: spec.hostname.as_deref().unwrap_or(&name),
            root: &root_dir,
            cgroup: &cgroup,
            netns: spec.netns.as_ref().map(|fd| fd.as_raw_fd()),
            memory_bytes: spec.memory_bytes,
            cpus: if lab.hierarchies().has("cpuset") { &spec.cpus } else { &[] },
            init: &lab.init_file(),
            scratch: &dir,
        };
        bundle.write(&dir)?;
        let starting = Starting { name: &name, dir: &dir, root_dir: &root_dir, log: &log, runc_dir: lab.runc_dir() };
        let started = starting.run(&overlays, &held).and_then(|(init, channel)| {
            let init_fd = init.open().ok_or_else(|| starting.no_init("it has ended"))?;
            lab.record(&Resource::Process { process: init, what: format!("init of node {name}") })?;
            cgroup.set_quota(spec.quota)?;
            Ok((init, init_fd, channel))
        });
        let (init, init_fd, channel) = match started {
            Ok(started) => started,
            Err(error) => {
                // What can't be removed now stays recorded, for the end of the lab or for clean.
                let _ = runc::delete(&lab.runc_dir(), &name);
                let _ = cgroup.remove();
                return Err(error);
            }
        };
        lab.add_node(NodeStatus { name: name.clone(), init_pid: init.pid, cgroup: cgroup.oci_path() });
        Ok(Node {
            name,
            cgroup,
            runc_dir: lab.runc_dir(),
            init,
            init_fd,
            channel,
            program_next: AtomicU32::new(1),
            env: spec.env,
            cpus: spec.cpus,
            status: lab.status_handle(),
            stopped: false,
        })
    }

    /// Starts nodes in parallel; when one fails, none is left.
    pub fn start_all(lab: &LabDir, specs: Vec<NodeSpec>) -> Result<Vec<Node>, NodeError> {
        std::thread::scope(|scope| {
            let starting: Vec<_> = specs.into_iter().map(|spec| scope.spawn(|| Node::start(lab, spec))).collect();
            let finished: Vec<_> = starting
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect();
            finished.into_iter().collect()
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node's pid 1, as the host numbers it.
    pub fn init_pid(&self) -> u32 {
        self.init.pid
    }

    /// Becomes readable when init is dead.
    pub fn init_fd(&self) -> BorrowedFd<'_> {
        self.init_fd.as_fd()
    }

    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Host pids of all processes in the node, init included.
    pub fn cgroup_procs(&self) -> Result<Vec<u32>, NodeError> {
        self.cgroup.procs()
    }

    /// The host pid of a process that has `pid_in_node` in the node.
    pub fn host_pid(&self, pid_in_node: u32) -> Result<Option<u32>, NodeError> {
        let in_node = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_ascii_whitespace().nth(1)?.parse().ok()
        };
        Ok(self.cgroup_procs()?.into_iter().find(|pid| in_node(pid) == Some(pid_in_node)))
    }

    /// CPU time that the node has used since it was made, the kernel's own account.
    pub fn cpu_usage_ns(&self) -> Result<u64, NodeError> {
        self.cgroup.cpu_usage_ns()
    }

    pub fn throttled(&self) -> Result<Throttled, NodeError> {
        self.cgroup.throttled()
    }

    pub fn memory_usage(&self) -> Result<u64, NodeError> {
        self.cgroup.memory_usage()
    }

    /// Processes of the node that the kernel has killed because its memory limit was reached.
    pub fn oom_kills(&self) -> Result<u64, NodeError> {
        self.cgroup.oom_kills()
    }

    pub fn set_quota(&self, quota: Option<Quota>) -> Result<(), NodeError> {
        self.cgroup.set_quota(quota)
    }

    pub fn quota(&self) -> Result<Option<Quota>, NodeError> {
        self.cgroup.quota()
    }

    /// Asks init to start a program and returns at once; [`Event`]s tell what becomes of it.
    pub fn start_program(&self, spec: ProgramSpec) -> Result<ProgramId, NodeError> {
        let mut env = BTreeMap::from([("PATH".into(), DEFAULT_PATH.into()), ("HOME".into(), "/root".into())]);
        env.extend(self.env.iter().map(|(name, value)| (name.clone(), value.clone())));
        env.extend(spec.env);
        let stdin = spec.stdin.map_or_else(|| open_output(Output::Null), Ok)?;
        let mut fds = vec![stdin, open_output(spec.stdout)?, open_output(spec.stderr)?];
        let mut filter = Vec::new();
        if let Some(envelope) = spec.envelope {
            filter = envelope.filter;
            fds.push(envelope.handshake);
        }
        let id = ProgramId(self.program_next.fetch_add(1, Ordering::Relaxed));
        let request = Request::Start(Start {
            id: id.0,
            argv: spec.argv.into_iter().map(OsString::into_vec).collect(),
            env: env.into_iter().map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'=')).collect(),
            cwd: spec.cwd.into_os_string().into_vec(),
            user: spec.user,
            filter,
            no_new_privs: spec.no_new_privs,
            keep_caps: spec.keep_caps,
            cpus: spec.cpus.unwrap_or_else(|| self.cpus.clone()),
            timer_slack_ns: spec.timer_slack_ns,
        });
        let fds: Vec<BorrowedFd> = fds.iter().map(|fd| fd.as_fd()).collect();
        self.channel.send(&request, &fds)?;
        Ok(id)
    }

    /// Sends a signal to the whole process group of a program; one that has ended is no error.
    pub fn signal_program(&self, program: ProgramId, signo: i32) -> Result<(), NodeError> {
        self.channel.send(&Request::Signal { id: program.0, signo, group: true }, &[])
    }

    /// The next event, if there is one. The node's descriptor ([`AsFd`]) is readable while there are any.
    pub fn try_event(&self) -> Result<Option<Event>, NodeError> {
        self.channel.try_receive().map(event)
    }

    /// The next event within `timeout` (`None` for as long as it takes).
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<Event>, NodeError> {
        self.channel.receive(timeout).map(event)
    }

    /// Kills everything in the node and removes its container and cgroups. Its directory stays until the lab ends.
    pub fn stop(mut self) -> Result<(), NodeError> {
        self.shut_down()
    }

    /// Stops nodes in parallel; all are stopped, and the first error is told.
    pub fn stop_all(nodes: Vec<Node>) -> Result<(), NodeError> {
        std::thread::scope(|scope| {
            let stopping: Vec<_> = nodes.into_iter().map(|node| scope.spawn(|| node.stop())).collect();
            let finished: Vec<_> = stopping
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect();
            finished.into_iter().collect()
        })
    }

    fn shut_down(&mut self) -> Result<(), NodeError> {
        self.stopped = true;
        match self.channel.send(&Request::Shutdown, &[]) {
            Ok(()) | Err(NodeError::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
        if !wait_readable(self.init_fd.as_fd(), Some(STOP_TIMEOUT))? {
            self.init.kill();
        }
        lock_mutex(&self.status).nodes.retain(|node| node.name != self.name);
        // The lab may have been removed first, and the container with it.
        let deleted = match self.runc_dir.join(&self.name).exists() {
            true => runc::delete(&self.runc_dir, &self.name),
            false => Ok(()),
        };
        let left = |leftovers| NodeError::Leftovers { lab: self.name.clone(), leftovers };
        self.cgroup.remove().map_err(left)?;
        deleted
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !self.stopped {
            // What this leaves is the lab's to remove.
            let _ = self.shut_down();
        }
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A node between its files and its init's hello.
struct Starting<'a> {
    name: &'a str,
    dir: &'a Path,
    root_dir: &'a Path,
    log: &'a Path,
    runc_dir: PathBuf,
}

impl Starting<'_> {
    fn run(&self, overlays: &[Overlay], held: &File) -> Result<(ProcessId, Channel), NodeError> {
        let (ours, inits) = channel::pair()?;
        let log = OpenOptions::new().create(true).append(true).open(self.log).map_err(file("create", self.log))?;
        let log_too = log.try_clone().map_err(file("duplicate", self.log))?;
        let pid_file = self.dir.join("init.pid");
        let mut command = runc::command(&self.runc_dir);
        command.args(["run", "--detach", "--bundle"]).arg(self.dir).arg("--pid-file").arg(&pid_file).arg(self.name);
        // runc hands its own stdio to a detached container without a terminal.
        command.stdin(Stdio::from(inits)).stdout(log).stderr(log_too);
        let mounts = overlays.iter().map(|overlay| overlay.mount_below(self.root_dir)).collect::<Result<_, _>>()?;
        let held = held.try_clone().map_err(file("duplicate", self.dir))?;
        sys::in_private_mounts(&mut command, mounts, held);
        let status = command.status();
        drop(command);
        let status = match status {
            Ok(status) if status.success() => status,
            Ok(status) => return Err(self.runc_failed(status.to_string())),
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Err(NodeError::NoRunc { source }),
            Err(error) => return Err(self.runc_failed(error.to_string())),
        };
        let channel = Channel::new(self.name, ours);
        match channel.receive(Some(HELLO_TIMEOUT))? {
            Received::Reply(Reply::Hello) => {}
            other => return Err(self.no_init(&format!("{other:?} instead of a hello ({status})"))),
        }
        let text = fs::read_to_string(&pid_file).map_err(file("read", &pid_file))?;
        let pid = text.trim().parse().map_err(|_| NodeError::NotANumber { path: pid_file, text: text.clone() })?;
        Ok((ProcessId::of(pid).ok_or_else(|| self.no_init("it has ended"))?, channel))
    }

    fn runc_failed(&self, status: String) -> NodeError {
        NodeError::Runc { verb: "run", node: self.name.to_owned(), status, output: self.log_tail() }
    }

    fn no_init(&self, detail: &str) -> NodeError {
        NodeError::Init { node: self.name.to_owned(), detail: format!("{detail}: {}", self.log_tail()) }
    }

    fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("; ")
    }
}

fn event(received: Received) -> Option<Event> {
    Some(match received {
        // A second hello says nothing new.
        Received::Empty | Received::Reply(Reply::Hello) => return None,
        Received::Closed => Event::Gone,
        Received::Reply(Reply::Started { id, pid }) => Event::Started { program: ProgramId(id), pid_in_node: pid },
        Received::Reply(Reply::Exited { id, code }) => Event::Exited { program: ProgramId(id), exit: Exit::Code(code) },
        Received::Reply(Reply::Killed { id, signo }) => {
            Event::Exited { program: ProgramId(id), exit: Exit::Signal(signo) }
        }
        Received::Reply(Reply::Failed { id, errno, what }) => Event::Failed { program: ProgramId(id), errno, what },
    })
}

fn open_output(output: Output) -> Result<OwnedFd, NodeError> {
    let (path, options) = match output {
        Output::Fd(fd) => return Ok(fd),
        Output::File(path) => (path, OpenOptions::new().create(true).append(true).clone()),
        Output::Null => ("/dev/null".into(), OpenOptions::new().read(true).write(true).clone()),
    };
    Ok(options.open(&path).map_err(file("open", &path))?.into())
}

/// The catalog's files, and before them those that every node needs (so that the catalog's win).
fn all_files(spec: &NodeSpec) -> Vec<NodeFile> {
    let hostname = spec.hostname.as_deref().unwrap_or(&spec.name);
    let mut hosts = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    let own = |names: &[String]| names.iter().any(|name| name == hostname);
    if !spec.hosts.iter().any(|(_, names)| own(names)) {
        // A program that asks for its own name gets an answer without any network.
        hosts += &format!("127.0.1.1 {hostname}\n");
    }
    for (address, names) in &spec.hosts {
        hosts += &format!("{address} {}\n", names.join(" "));
    }
    let resolv_conf =
        spec.resolv_conf.clone().unwrap_or_else(|| "# No name server: all names are in /etc/hosts.\n".into());
    let mut files = vec![
        NodeFile::text("/etc/hosts", hosts),
        NodeFile::text("/etc/hostname", format!("{hostname}\n")),
        NodeFile::text("/etc/resolv.conf", resolv_conf),
    ];
    files.extend(spec.files.iter().cloned());
    files
}

fn check_name(name: &str) -> Result<(), NodeError> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let good = name.len() <= 63 && name.chars().all(inner) && ends(name.chars().next()) && ends(name.chars().last());
    if good { Ok(()) } else { Err(NodeError::Name { name: name.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_their_directory_are_refused() {
        for good in ["a", "web-1", "db_2.site", "0"] {
            check_name(good).unwrap();
        }
        for bad in ["", "..", "a/b", "-a", "a-", "a b", "ä", &"x".repeat(64)] {
            assert!(matches!(check_name(bad), Err(NodeError::Name { .. })), "{bad}");
        }
    }

    #[test]
    fn every_node_knows_its_own_name_once() {
        let mut spec = NodeSpec::new("web-1");
        let hosts = |spec: &NodeSpec| match &all_files(spec)[0].content {
            rootfs::Content::Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
            other => panic!("{other:?}"),
        };
        assert!(hosts(&spec).contains("127.0.1.1 web-1\n"));
        spec.hosts = vec![("10.0.0.1".parse().unwrap(), vec!["web-1".into(), "web".into()])];
        assert!(hosts(&spec).ends_with("10.0.0.1 web-1 web\n"));
        assert!(!hosts(&spec).contains("127.0.1.1"));
    }
}
