//! The view of cores for a program that has no container: the files of `view`, bound over the host's in a mount
//! namespace of its own. All else that it mounts goes the way it would go without.

use crate::cgroup::Mount;
use crate::error::{NodeError, file, system};
use crate::{sys, view};
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_bind, mount_change,
    move_mount, unmount,
};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where the files are mounted until they are bound to their places; every sysfs has it.
const STAGE: &str = "/sys/kernel";
const MAKE: &str = "make a file system in memory";

/// Files that show other cores than the host's, on a file system that is mounted nowhere.
#[derive(Debug)]
pub struct CoreView {
    files: OwnedFd,
    stage: CString,
    /// Mounts that must not hand on what is bound in them.
    quiet: Vec<CString>,
    /// From, to.
    binds: Vec<(CString, CString)>,
}

impl CoreView {
    /// Of cores 0 to `cores` - 1; None where the host's files show just these. Needs CAP_SYS_ADMIN.
    pub fn of(cores: u32) -> Result<Option<CoreView>, NodeError> {
        let cores: Vec<u32> = (0..cores).collect();
        let online = fs::read_to_string(view::ONLINE).unwrap_or_default();
        if online == view::line(&view::list(&cores)) {
            return Ok(None);
        }
        if !Path::new(STAGE).is_dir() {
            return Err(NodeError::Path { path: STAGE.into(), problem: "is missing: no sysfs" });
        }
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(system(MAKE))?;
        fsconfig_set_string(context.as_fd(), "mode", "755").map_err(system(MAKE))?;
        fsconfig_create(context.as_fd()).map_err(system(MAKE))?;
        let attributes =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let files = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(system(MAKE))?;
        let directory = PathBuf::from(format!("/proc/self/fd/{}", files.as_raw_fd()));
        let mut covers = view::write(&directory, &cores)?;
        covers.retain(|cover| cover.destination.exists());
        open_to_all(&directory)?;
        fsconfig_set_flag(context.as_fd(), "ro").map_err(system(MAKE))?;
        fsconfig_reconfigure(context.as_fd()).map_err(system(MAKE))?;

        let table = Mount::table()?;
        let places = covers.iter().map(|cover| cover.destination.as_path()).chain([Path::new(STAGE)]);
        let quiet: BTreeSet<&Path> = places.filter_map(|place| mount_of(place, &table)).collect();
        let staged = |source: &Path| Path::new(STAGE).join(source.strip_prefix(&directory).unwrap_or(source));
        Ok(Some(CoreView {
            files,
            stage: c_path(STAGE),
            quiet: quiet.into_iter().map(c_path).collect(),
            binds: covers.iter().map(|c| (c_path(staged(&c.source)), c_path(&c.destination))).collect(),
        }))
    }

    /// Gives the calling process, its only thread and about to exec, a mount namespace with this view. Allocates nothing.
    pub fn enter(&self) -> io::Result<()> {
        sys::unshare_mounts()?;
        for point in &self.quiet {
            mount_change(point.as_c_str(), MountPropagationFlags::DOWNSTREAM)?;
        }
        move_mount(&self.files, c"", CWD, self.stage.as_c_str(), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        for (from, to) in &self.binds {
            mount_bind(from.as_c_str(), to.as_c_str())?;
        }
        Ok(unmount(self.stage.as_c_str(), UnmountFlags::DETACH)?)
    }
}

/// The mount that `place` lies in: the longest of its beginnings that is a mount point.
fn mount_of<'a>(place: &Path, table: &'a [Mount]) -> Option<&'a Path> {
    let around = table.iter().map(|mount| mount.point.as_path()).filter(|point| place.starts_with(point));
    around.max_by_key(|point| point.components().count())
}

/// Readable for whoever the program becomes, whatever our umask is.
fn open_to_all(path: &Path) -> Result<(), NodeError> {
    let is_directory = path.is_dir();
    if is_directory {
        for entry in fs::read_dir(path).map_err(file("read", path))?.flatten() {
            open_to_all(&entry.path())?;
        }
    }
    let mode = if is_directory { 0o755 } else { 0o444 };
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(file("change", path))
}

/// Paths of ours and of mountinfo have no NUL.
fn c_path(path: impl Into<PathBuf>) -> CString {
    CString::new(path.into().into_os_string().into_vec()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_lies_in_its_innermost_mount() {
        let line = |point: &str| format!("24 1 0:22 / {point} rw shared:7 - sysfs sysfs rw");
        let table: Vec<Mount> =
            ["/", "/sys", "/sys/fs/cgroup", "/system"].iter().filter_map(|p| Mount::parse(&line(p))).collect();
        let of = |place: &str| mount_of(Path::new(place), &table);
        assert_eq!(of("/sys/devices/system/cpu"), Some(Path::new("/sys")));
        assert_eq!(of("/proc/cpuinfo"), Some(Path::new("/")));
        assert_eq!(mount_of(Path::new("/proc"), &[]), None);
    }
}
