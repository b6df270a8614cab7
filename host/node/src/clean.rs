//! Removing what labs leave behind.
//!
//! The order matters: first whatever could still act (processes), then what they hold (cgroups, mounts), last
//! the directory with the record, so that an interrupted clean can be run again.

use crate::cgroup::{Hierarchies, Mount, ROOT, kill_and_wait};
use crate::error::{NodeError, file};
use crate::idle_group::IdleGroup;
use crate::lab::{LAB_FILE, Owner, RECORD_FILE, Resource, STARTING_FILE, STATE_DIR, UNFINISHED, lock};
use crate::process::ProcessId;
use crate::runc;
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a dying start may take.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// A lab as its directory tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabInfo {
    pub id: String,
    pub path: PathBuf,
    /// Process that runs it, or ran it.
    pub pid: u32,
    pub alive: bool,
}

/// All labs below [`STATE_DIR`], living and dead.
pub fn labs() -> Result<Vec<LabInfo>, NodeError> {
    labs_in(Path::new(STATE_DIR))
}

/// All labs below another state directory.
pub fn labs_in(state: &Path) -> Result<Vec<LabInfo>, NodeError> {
    let mut found = Vec::new();
    for path in lab_dirs(state)? {
        let name = file_name(&path);
        // One that is being made shows up when it has its name; a directory without an owner is nobody's.
        if name.starts_with(UNFINISHED) {
            continue;
        }
        let owner = read_owner(&path);
        found.push(LabInfo {
            pid: owner.as_ref().map_or(0, |owner| owner.process.pid),
            alive: owner.is_some_and(|owner| owner.is_alive()),
            id: name,
            path,
        });
    }
    Ok(found)
}

/// Removes everything of every dead lab below [`STATE_DIR`]; living labs are not touched. Tells what was removed.
pub fn clean() -> Result<Vec<String>, NodeError> {
    clean_in(Path::new(STATE_DIR))
}

/// As [`clean`] for another state directory.
pub fn clean_in(state: &Path) -> Result<Vec<String>, NodeError> {
    if !state.join("labs").exists() {
        return Ok(Vec::new());
    }
    let _lock = lock(state)?;
    let hierarchies = Hierarchies::detect()?;
    let mut removed = Vec::new();
    let mut first_error = None;
    for lab in labs_in(state)?.iter().filter(|lab| !lab.alive) {
        // One lab that resists must not keep the others.
        match remove_lab(&lab.path, &lab.id, &hierarchies, false) {
            Ok(of_lab) => removed.extend(of_lab),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    for path in lab_dirs(state)? {
        let maker = file_name(&path).strip_prefix(UNFINISHED).and_then(parse_maker);
        if maker.is_some_and(|maker| !maker.is_alive()) {
            fs::remove_dir_all(&path).map_err(file("remove", &path))?;
            removed.push(format!("directory {}", path.display()));
        }
    }
    hierarchies.cgroup(ROOT).remove_if_empty();
    IdleGroup::remove_if_empty(&hierarchies);
    first_error.map_or(Ok(removed), Err)
}

/// Removes one lab, which must be dead or (`own`) the caller's.
pub(crate) fn remove_lab(
    path: &Path,
    id: &str,
    hierarchies: &Hierarchies,
    own: bool,
) -> Result<Vec<String>, NodeError> {
    let owner = read_owner(path);
    let record = read_record(path);
    let mut removed = Vec::new();
    let mut left = Vec::new();

    // Pids of another boot mean nothing.
    let this_boot = owner.as_ref().is_none_or(|owner| owner.boot_id == crate::process::boot_id());
    for resource in record.iter().filter(|_| this_boot) {
        if let Resource::Process { process, what } = resource
            && kill_and_wait(*process)
        {
            removed.push(format!("process {} ({what})", process.pid));
        }
    }
    wait_for_starts(path, id, hierarchies);
    for resource in &record {
        if let Resource::Container { id: node } = resource
            && path.join("runc").join(node).exists()
        {
            match runc::delete(&path.join("runc"), node) {
                Ok(()) => removed.push(format!("container {node} of lab {id}")),
                // Its state may be half written; cgroup and directory below are enough to remove it.
                Err(error) => removed.push(format!("container {node} of lab {id} without runc ({error})")),
            }
        }
    }
    for resource in &record {
        if let Resource::Cgroup { path } = resource {
            // A record is trusted only as far as it stays in our part of the tree.
            if !path.starts_with(ROOT)
                || path.components().count() < 2
                || path.components().any(|c| c.as_os_str() == "..")
            {
                left.push(format!("cgroup {} is not below {ROOT}", path.display()));
                continue;
            }
            match hierarchies.cgroup(path).remove() {
                Ok(cgroups) => removed.extend(cgroups),
                Err(cgroups) => left.extend(cgroups),
            }
        }
    }
    let recorded = |point: &Path| record.iter().any(|r| matches!(r, Resource::Mount { path } if path == point));
    for mount in Mount::table()?.iter().rev().filter(|mount| mount.point.starts_with(path) || recorded(&mount.point)) {
        match unmount(&mount.point, UnmountFlags::DETACH) {
            Ok(()) => removed.push(format!("mount {}", mount.point.display())),
            Err(error) => left.push(format!("mount {}: {error}", mount.point.display())),
        }
    }
    for resource in &record {
        if let Resource::Path { path } = resource {
            let result = match path.symlink_metadata() {
                Ok(found) if found.is_dir() => fs::remove_dir_all(path),
                Ok(_) => fs::remove_file(path),
                Err(_) => continue,
            };
            match result {
                Ok(()) => removed.push(format!("path {}", path.display())),
                Err(error) => left.push(format!("path {}: {error}", path.display())),
            }
        }
    }
    if !left.is_empty() {
        // The directory stays, so that the next clean knows what to look for.
        return Err(NodeError::Leftovers { lab: id.to_owned(), leftovers: left });
    }
    fs::remove_dir_all(path).map_err(file("remove", path))?;
    if !own {
        removed.push(format!("directory {}", path.display()));
    }
    Ok(removed)
}

/// A start that was under way when the lab died ends soon: its runc is killed with the thread that waits for it, and
/// what runc has started dies with runc or here. Only then it is certain that nothing more appears.
fn wait_for_starts(path: &Path, id: &str, hierarchies: &Hierarchies) {
    let Ok(starting) = File::open(path.join(STARTING_FILE)) else { return };
    let give_up = Instant::now() + START_TIMEOUT;
    while flock(&starting, FlockOperation::NonBlockingLockExclusive).is_err() && Instant::now() < give_up {
        hierarchies.cgroup(Path::new(ROOT).join(id)).kill();
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn lab_dirs(state: &Path) -> Result<Vec<PathBuf>, NodeError> {
    let labs = state.join("labs");
    let entries = match fs::read_dir(&labs) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(file("read", &labs))?,
    };
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    Ok(found)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn read_owner(lab: &Path) -> Option<Owner> {
    serde_json::from_slice(&fs::read(lab.join(LAB_FILE)).ok()?).ok()
}

/// A line that was cut by the death of its writer records something that was never made.
fn read_record(lab: &Path) -> Vec<Resource> {
    let text = fs::read_to_string(lab.join(RECORD_FILE)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn parse_maker(rest: &str) -> Option<ProcessId> {
    let mut numbers = rest.split('-');
    Some(ProcessId { pid: numbers.next()?.parse().ok()?, start_ticks: numbers.next()?.parse().ok()? })
}
