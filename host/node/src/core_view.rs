//! The view of cores for a program that has no container: the files of `view` for /sys, bound over the host's in a
//! mount namespace of its own. What else is mounted shared stays so. (/proc/cpuinfo is the blob's, as all of /proc.)

use crate::cgroup::Mount;
use crate::error::{NodeError, file, system};
use crate::{sys, view};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
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
    /// Of cores 0 to `cores` - 1; None where those of the host are online, or there is no sysfs. Needs CAP_SYS_ADMIN.
    pub fn of(cores: u32) -> Result<Option<CoreView>, NodeError> {
        let cores: Vec<u32> = (0..cores).collect();
        let online = fs::read_to_string(Path::new(view::SYS_CPU).join("online"));
        if online.map_or(true, |online| online == view::line(&view::list(&cores))) {
            return Ok(None);
        }
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(system(MAKE))?;
        fsconfig_set_string(context.as_fd(), "mode", "755").map_err(system(MAKE))?;
        fsconfig_create(context.as_fd()).map_err(system(MAKE))?;
        let attributes =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let files = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(system(MAKE))?;
        let directory = PathBuf::from(format!("/proc/self/fd/{}", files.as_raw_fd()));
        // Of /sys alone: a procfs with something bound in it could not be mounted anew by an ordinary user's container.
        let covers = view::write_sys(&directory, &cores)?;
        open_to_all(&directory)?;
        fsconfig_set_flag(context.as_fd(), "ro").map_err(system(MAKE))?;
        fsconfig_reconfigure(context.as_fd()).map_err(system(MAKE))?;

        let table = Mount::table()?;
        let places = covers.iter().map(|cover| cover.destination.as_path()).chain([Path::new(STAGE)]);
        let quiet: BTreeSet<&Path> = places.map(|place| mount_of(place, &table)).collect::<Result<_, _>>()?;
        let staged = |source: &Path| Path::new(STAGE).join(source.strip_prefix(&directory).unwrap_or(source));
        Ok(Some(CoreView {
            files,
            stage: c_path(STAGE),
            quiet: quiet.into_iter().map(c_path).collect(),
            binds: covers.iter().map(|c| (c_path(staged(&c.source)), c_path(&c.destination))).collect(),
        }))
    }

    /// Gives the calling process, its only thread and about to exec, a mount namespace with this view, or with no trace
    /// of it when that fails. Allocates nothing.
    pub fn enter(&self) -> io::Result<()> {
        sys::unshare_mounts()?;
        for point in &self.quiet {
            mount_change(point.as_c_str(), MountPropagationFlags::DOWNSTREAM)?;
        }
        move_mount(&self.files, c"", CWD, self.stage.as_c_str(), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        let bind = |(at, (from, to)): (usize, &(CString, CString))| Some((at, mount_bind(&**from, &**to).err()?));
        let failed = self.binds.iter().enumerate().find_map(bind);
        for (_, to) in self.binds.iter().take(failed.map_or(0, |(at, _)| at)) {
            let _ = unmount(to.as_c_str(), UnmountFlags::DETACH);
        }
        unmount(self.stage.as_c_str(), UnmountFlags::DETACH)?;
        failed.map_or(Ok(()), |(_, error)| Err(error.into()))
    }
}

/// The point of the mount that `place` lies in, of several on one point the one on top.
fn mount_of<'a>(place: &Path, table: &'a [Mount]) -> Result<&'a Path, NodeError> {
    let id = statx(CWD, place, AtFlags::empty(), StatxFlags::MNT_ID).map_err(file("look at", place))?.stx_mnt_id;
    let found = table.iter().find(|mount| mount.id == id).map(|mount| mount.point.as_path());
    found.ok_or(NodeError::Path { path: place.to_owned(), problem: "lies in no mount that mountinfo shows" })
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
