//! Can container nodes be made here?

use std::ffi::CString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use diecast_host_node::{ProcessId, STATE_DIR};
use diecast_host_sys::process;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Resource, getrlimit};
use rustix::thread::UnshareFlags;

use super::{refused, root_or};
use crate::facts::{bytes, host_facts};
use crate::privileges::{LabPrivileges, lab_privileges};
use crate::report::{Check, Need, Part, Subject};
use crate::sys;
use crate::trial::{self, Failed};

/// Directories of trials are named after their process.
const SCRATCH: &str = ".doctor-";
const GIB: u64 = 1 << 30;
/// Below these a lab of more than a few nodes fails sooner or later.
const DISK_MIN: u64 = GIB;
const MEMORY_MIN: u64 = GIB;
const DESCRIPTORS_MIN: u64 = 4096;

const fn subject(name: &'static str, need: Need) -> Subject {
    Subject { name, part: Part::Nodes, need }
}

pub(super) fn all() -> Vec<Check> {
    vec![privileges(), runc(), namespaces(), overlay(), memory(), disk(), descriptors()]
}

fn privileges() -> Check {
    let s = subject("privileges", Need::Labs);
    let privileges = lab_privileges();
    let found = privileges.fault().unwrap_or_default();
    match privileges {
        LabPrivileges::All => s.ok("root, with all capabilities that labs use"),
        LabPrivileges::User(_) => s.missing(found, "labs need root; 'diecast frame' does not", "run diecast as root"),
        LabPrivileges::Lacking(_) => s.missing(
            found,
            "nodes, their networks or their programs can't be made: no labs, only frames",
            "give this container or unit these capabilities (docker: --privileged)",
        ),
        LabPrivileges::Unknown => s.degraded("root; capabilities unknown", "labs may fail to start", ""),
    }
}

fn runc() -> Check {
    let s = subject("runc", Need::Labs);
    const LOST: &str = "container nodes are started by it: no labs, only frames";
    const FIX: &str = "install runc (Debian: apt install runc)";
    match Command::new("runc").arg("--version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            s.ok(text.lines().next().unwrap_or("no version").trim())
        }
        Ok(output) => s.missing(format!("'runc --version' ended with {}", output.status), LOST, FIX),
        Err(e) => s.missing(format!("'runc --version': {e}"), LOST, FIX),
    }
}

fn namespaces() -> Check {
    let s = subject("node namespaces", Need::Labs);
    let flags = UnshareFlags::NEWNS
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWCGROUP;
    match trial::child(move || trial::at(1, sys::unshare_in_child(flags))) {
        Ok(()) => s.ok("mount, uts, ipc, pid and cgroup ones were made, and removed"),
        Err(f) => s.missing(
            refused(&f.error),
            "nodes can't be separated from the host: no labs, only frames",
            root_or("use a kernel with these namespaces; in a container, allow unshare"),
        ),
    }
}

/// The nearest directory above a path that exists.
fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new("/")).to_path_buf()
}

/// Removes what doctors have left that were killed in the middle of this trial, one of this number included.
fn remove_stale(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(SCRATCH)?.parse().ok());
        if pid.is_some_and(|pid| pid == std::process::id() || ProcessId::of(pid).is_none()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A directory that goes with the trial.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> io::Result<Scratch> {
        let place = existing(Path::new(STATE_DIR));
        remove_stale(&place);
        let path = place.join(format!("{SCRATCH}{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An overlay over the host's root with its upper layer where labs keep theirs, in a child's mount namespace.
fn mount_overlay(scratch: &Path) -> Result<(), Failed> {
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let part = |name: &str| {
        let path = scratch.join(name);
        DirBuilder::new().create(&path).map(|()| path)
    };
    let (upper, work, merged) =
        (trial::at(1, part("upper"))?, trial::at(1, part("work"))?, trial::at(1, part("merged"))?);
    let options = format!("lowerdir=/,upperdir={},workdir={}", upper.display(), work.display());
    let target = trial::at(1, text(&merged))?;
    let options = trial::at(1, CString::new(options).map_err(io::Error::from))?;
    trial::child(move || {
        trial::at(2, sys::unshare_in_child(UnshareFlags::NEWNS))?;
        trial::at(3, mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC))?;
        trial::at(4, mount(c"overlay", target.as_c_str(), c"overlay", MountFlags::empty(), options.as_c_str()))
    })
}

fn overlay() -> Check {
    let s = subject("overlayfs", Need::Labs);
    let made = Scratch::make().map_err(|error| Failed { step: 1, error }).and_then(|scratch| mount_overlay(&scratch.0));
    match made {
        Ok(()) => s.ok("one was mounted over the host's root in a namespace, and removed"),
        Err(Failed { step, error }) => {
            let what = match step {
                0 => "forking",
                1 => "making a directory for layers",
                2 | 3 => "making a mount namespace",
                _ => "mounting",
            };
            s.missing(
                format!("{what}: {}", refused(&error)),
                "nodes can't have a root file system: no labs, only frames",
                root_or(&format!(
                    "use a kernel with CONFIG_OVERLAY_FS, and a file system below {STATE_DIR} that overlays can write to \
                     (inside a container: not its own overlay)"
                )),
            )
        }
    }
}

fn memory() -> Check {
    let s = subject("memory", Need::Accuracy);
    let facts = host_facts();
    let found = format!("{} available", bytes(facts.memory_available_bytes));
    if facts.memory_available_bytes < MEMORY_MIN {
        return s.degraded(
            found,
            "nodes are killed when the host runs out, and a host that swaps has no steady speed",
            "end other programs, or plan fewer and smaller nodes",
        );
    }
    s.ok(found)
}

fn disk() -> Check {
    let s = subject("disk", Need::Accuracy);
    let place = existing(Path::new(STATE_DIR));
    match rustix::fs::statvfs(&place) {
        Ok(fs) => {
            let free = fs.f_bavail.saturating_mul(fs.f_frsize);
            let found = format!("{} free at {}, for what nodes write", bytes(free), place.display());
            if free < DISK_MIN {
                return s.degraded(
                    found,
                    "programs in nodes fail when it is full; images are unpacked there too",
                    format!("free some, or mount a larger file system at {STATE_DIR}"),
                );
            }
            s.ok(found)
        }
        Err(e) => s.degraded(format!("{}: {e}", place.display()), "whether nodes can write is not known", ""),
    }
}

fn descriptors() -> Check {
    let s = subject("descriptors", Need::Accuracy);
    // The soft limit is raised to it.
    let Some(limit) = getrlimit(Resource::Nofile).maximum else { return s.ok("no limit") };
    if limit < DESCRIPTORS_MIN {
        return s.degraded(
            format!("at most {limit}"),
            "each metered program holds one: labs with many processes lose meters",
            if process::is_root() { "ulimit -Hn 65536" } else { "raise the hard limit (limits.conf, LimitNOFILE=)" },
        );
    }
    s.ok(format!("at most {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_existing_directory() {
        assert_eq!(existing(Path::new("/proc/no such thing/x")), Path::new("/proc"));
        assert_eq!(existing(Path::new("/")), Path::new("/"));
    }

    #[test]
    fn a_scratch_directory_goes_with_its_trial() {
        let Ok(scratch) = Scratch::make() else {
            assert!(!process::is_root());
            return;
        };
        let path = scratch.0.clone();
        fs::write(path.join("x"), "x").unwrap();
        drop(scratch);
        assert!(!path.exists());
        // No process has this number: it is above the kernel's limit.
        let stale = path.with_file_name(format!("{SCRATCH}4194305"));
        fs::create_dir(&stale).unwrap();
        drop(Scratch::make().unwrap());
        assert!(!stale.exists());
    }
}
