//! The state directory of a lab, which makes everything that a lab leaves on the host findable.
//!
//! `/run/diecast/labs/<id>/` (owner only) holds:
//! * `lab.json`: whose lab it is (pid, start time, boot), written before the directory gets its name;
//! * `record.jsonl`: one line per resource outside of the directory, written **before** the resource is made;
//! * `starting`: locked (flock) by whoever is about to make something of a node;
//! * `control.sock`: the control socket, there from the start;
//! * `runc/`, `nodes/`, `images/`, `init`: state of runc, layers and logs of nodes, what nodes share.
//!
//! Whoever kills `diecast` at any instant leaves only what [`crate::clean()`] finds through these.

use crate::cgroup::{Cgroup, Hierarchies, ROOT};
use crate::clean;
use crate::control::{self, ControlHandler, ControlServer, SharedHandler};
use crate::error::{NodeError, file, system};
use crate::image;
use crate::process::{ProcessId, boot_id};
use crate::rootfs::{self, ResolvedRoot, Rootfs};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where labs are by default.
pub const STATE_DIR: &str = "/run/diecast";

pub(crate) const LAB_FILE: &str = "lab.json";
pub(crate) const RECORD_FILE: &str = "record.jsonl";
pub(crate) const CONTROL_SOCKET: &str = "control.sock";
pub(crate) const STARTING_FILE: &str = "starting";
/// Directories of labs that are being made start so; then follow pid and start time of the maker.
pub(crate) const UNFINISHED: &str = ".new-";

/// Whose lab it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub lab: String,
    pub process: ProcessId,
    pub boot_id: String,
}

impl Owner {
    /// Does the `diecast` of this lab still run?
    pub fn is_alive(&self) -> bool {
        self.boot_id == boot_id() && self.process.is_alive()
    }
}

/// Something outside of the state directory that a lab has made, or is about to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Resource {
    /// A container of runc, whose state is below the lab's `runc/`.
    Container { id: String },
    /// A process to be killed.
    Process { process: ProcessId, what: String },
    /// A cgroup, relative to the root of each hierarchy.
    Cgroup { path: PathBuf },
    /// A mount in the host's own mount namespace.
    Mount { path: PathBuf },
    /// A file or directory, for example a pinned BPF object.
    Path { path: PathBuf },
}

/// One node in the answer of the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub name: String,
    pub init_pid: u32,
    pub cgroup: PathBuf,
}

/// The answer of the control socket to `{"op":"ps"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabStatus {
    pub lab: String,
    pub pid: u32,
    /// What the lab does at the moment, as its runner says.
    pub phase: String,
    pub nodes: Vec<NodeStatus>,
}

/// A lab of this process. Dropping it removes whatever it has made.
#[derive(Debug)]
pub struct LabDir {
    id: String,
    path: PathBuf,
    hierarchies: Hierarchies,
    record: Mutex<File>,
    status: Arc<Mutex<LabStatus>>,
    control: Option<ControlServer>,
    handler: SharedHandler,
    /// Image archive to the directory where it is unpacked; held while unpacking, so that nodes share the work.
    images: Mutex<BTreeMap<PathBuf, PathBuf>>,
    removed: bool,
}

impl LabDir {
    /// A new lab below [`STATE_DIR`].
    pub fn create() -> Result<LabDir, NodeError> {
        LabDir::create_in(Path::new(STATE_DIR))
    }

    /// A new lab below another state directory.
    pub fn create_in(state: &Path) -> Result<LabDir, NodeError> {
        let hierarchies = Hierarchies::detect()?;
        let labs = state.join("labs");
        DirBuilder::new().recursive(true).mode(0o700).create(&labs).map_err(file("create", &labs))?;
        let owner = Owner { lab: random_id()?, process: ProcessId::own(), boot_id: boot_id() };
        let path = labs.join(&owner.lab);
        // The directory appears under its name only once it says whose it is, so nobody takes it for dead.
        let unfinished =
            labs.join(format!("{UNFINISHED}{}-{}-{}", owner.process.pid, owner.process.start_ticks, owner.lab));
        DirBuilder::new().mode(0o700).create(&unfinished).map_err(file("create", &unfinished))?;
        let mut lab_file = private_file(&unfinished.join(LAB_FILE))?;
        serde_json::to_writer(&mut lab_file, &owner).map_err(file("write", &unfinished.join(LAB_FILE)))?;
        let record = private_file(&unfinished.join(RECORD_FILE))?;
        fs::rename(&unfinished, &path).map_err(file("rename", &unfinished))?;

        let status =
            LabStatus { lab: owner.lab.clone(), pid: owner.process.pid, phase: "starting".into(), nodes: Vec::new() };
        let mut lab = LabDir {
            id: owner.lab,
            path,
            hierarchies,
            record: Mutex::new(record),
            status: Arc::new(Mutex::new(status)),
            control: None,
            handler: SharedHandler::default(),
            images: Mutex::default(),
            removed: false,
        };
        lab.control = Some(control::serve(&lab.path.join(CONTROL_SOCKET), lab.status.clone(), lab.handler.clone())?);
        lab.record(&Resource::Cgroup { path: Path::new(ROOT).join(&lab.id) })?;
        lab.cgroup("").create()?;
        rootfs::write_init(&lab.init_file())?;
        Ok(lab)
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The state directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn hierarchies(&self) -> &Hierarchies {
        &self.hierarchies
    }

    /// The control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.path.join(CONTROL_SOCKET)
    }

    /// Who answers requests that this directory can't.
    pub fn set_control(&self, handler: ControlHandler) {
        *lock_mutex(&self.handler.0) = Some(handler);
    }

    /// Writes a resource down; call it before the resource is made.
    pub fn record(&self, resource: &Resource) -> Result<(), NodeError> {
        let path = self.path.join(RECORD_FILE);
        let mut line = serde_json::to_vec(resource).map_err(file("write", &path))?;
        line.push(b'\n');
        // One write, so that a killed process leaves whole lines or one cut line at the end.
        lock_mutex(&self.record).write_all(&line).map_err(file("write", &path))
    }

    /// What `ps` shows as the lab's phase.
    pub fn set_phase(&self, phase: impl Into<String>) {
        lock_mutex(&self.status).phase = phase.into();
    }

    pub fn status(&self) -> LabStatus {
        lock_mutex(&self.status).clone()
    }

    /// Removes the lab with everything that it has made; the same steps as for a dead one.
    pub fn remove(mut self) -> Result<Vec<String>, NodeError> {
        self.tear_down()
    }

    fn tear_down(&mut self) -> Result<Vec<String>, NodeError> {
        self.control = None;
        let removed = clean::remove_lab(&self.path, &self.id, &self.hierarchies, true)?;
        self.hierarchies.cgroup(ROOT).remove_if_empty();
        self.removed = true;
        Ok(removed)
    }

    pub(crate) fn add_node(&self, node: NodeStatus) {
        lock_mutex(&self.status).nodes.push(node);
    }

    pub(crate) fn status_handle(&self) -> Arc<Mutex<LabStatus>> {
        self.status.clone()
    }

    pub(crate) fn cgroup(&self, node: &str) -> Cgroup {
        self.hierarchies.cgroup(Path::new(ROOT).join(&self.id).join(node))
    }

    pub(crate) fn node_dir(&self, node: &str) -> PathBuf {
        self.path.join("nodes").join(node)
    }

    /// Held while a node starts, by this process and by the runc that it calls; clean waits for it.
    pub(crate) fn starting(&self) -> Result<File, NodeError> {
        let path = self.path.join(STARTING_FILE);
        let starting = private_file(&path)?;
        flock(&starting, FlockOperation::LockShared).map_err(file("lock", &path))?;
        Ok(starting)
    }

    pub(crate) fn init_file(&self) -> PathBuf {
        self.path.join("init")
    }

    /// Where the root file system of a node is; unpacks an image the first time it is asked for.
    pub(crate) fn resolve_root(&self, rootfs: &Rootfs) -> Result<ResolvedRoot, NodeError> {
        let archive = match rootfs {
            Rootfs::Host => return Ok(ResolvedRoot::Host),
            Rootfs::Directory(path) => {
                let path = path.canonicalize().map_err(file("look at", path))?;
                return match path.is_dir() {
                    true => Ok(ResolvedRoot::Directory(path)),
                    false => Err(NodeError::Path { path, problem: "is no directory" }),
                };
            }
            Rootfs::Tarball(path) => path.canonicalize().map_err(file("look at", path))?,
        };
        let mut images = lock_mutex(&self.images);
        if let Some(root) = images.get(&archive) {
            return Ok(ResolvedRoot::Directory(root.clone()));
        }
        let root = self.path.join("images").join(images.len().to_string());
        // What an earlier attempt may have left.
        if root.exists() {
            fs::remove_dir_all(&root).map_err(file("remove", &root))?;
        }
        image::unpack(&archive, &root)?;
        images.insert(archive, root.clone());
        Ok(ResolvedRoot::Directory(root))
    }

    pub(crate) fn runc_dir(&self) -> PathBuf {
        self.path.join("runc")
    }
}

impl Drop for LabDir {
    fn drop(&mut self) {
        if !self.removed {
            // Whatever this leaves is dead with this process, and clean's.
            let _ = self.tear_down();
        }
    }
}

/// One clean at a time.
pub(crate) fn lock(state: &Path) -> Result<File, NodeError> {
    let path = state.join("lock");
    let lock = private_file(&path)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(file("lock", &path))?;
    Ok(lock)
}

/// The value is plain data, valid whatever a panicking holder did.
pub(crate) fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn private_file(path: &Path) -> Result<File, NodeError> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(file("create", path))
}

fn random_id() -> Result<String, NodeError> {
    let mut bytes = [0u8; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(system("get random bytes"))?;
    Ok(format!("{:08x}", u32::from_le_bytes(bytes)))
}
