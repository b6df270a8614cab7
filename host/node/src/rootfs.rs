//! The root file system of a node: overlays whose upper layers lie in the lab's state directory.
//!
//! The catalog's files and an empty /run are put into the upper layer before it is mounted; below is the root that
//! the node was given. (A lower layer of their own can't lie below the host's root, which is a lower layer itself:
//! overlayfs refuses that with ELOOP, but accepts the upper one there.) The host's own root does not include file
//! systems mounted below it, so each of those (a separate /usr or /home) is an overlay of its own.

use crate::cgroup::Mount;
use crate::error::{NodeError, file};
use rustix::fs::XattrFlags;
use std::ffi::{CString, OsString};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Component, Path, PathBuf};

/// The init of nodes, a static program.
const INIT: &[u8] = include_bytes!(env!("DIECAST_INIT"));
/// Where a node sees it.
pub(crate) const INIT_PATH: &str = "/.diecast-init";

/// Directories of the host's /run that belong to the host's own services or to us.
const RUN_SKIPPED: [&str; 5] = ["diecast", "user", "systemd", "udev", "credentials"];

/// File systems that hold installed programs; a kind that is not here is not passed on to nodes.
const DISK_KINDS: [&str; 12] =
    ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "overlay", "nfs", "nfs4", "erofs"];
/// Mount points that are the host's own business.
const HOST_ONLY: [&str; 6] = ["/boot", "/dev", "/efi", "/proc", "/run", "/sys"];

/// What a node's root directory is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rootfs {
    /// The host's own root, with an empty /run; whatever the node writes stays in the node.
    #[default]
    Host,
    /// A directory with a root file system; it is not written to.
    Directory(PathBuf),
    /// An image: the output of `docker export` or `docker save`, or any tar archive of a root file system.
    Tarball(PathBuf),
}

/// A file to be put into a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFile {
    /// Absolute, in the node.
    pub path: PathBuf,
    pub content: Content,
    /// Permission bits; the owner is root.
    pub mode: u32,
}

/// Where the bytes of a file come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Bytes(Vec<u8>),
    /// Copied from this file of the host.
    HostFile(PathBuf),
}

impl NodeFile {
    /// A readable text file.
    pub fn text(path: impl Into<PathBuf>, text: impl Into<String>) -> NodeFile {
        NodeFile { path: path.into(), content: Content::Bytes(text.into().into_bytes()), mode: 0o644 }
    }
}

/// One overlay of a node.
#[derive(Clone, Debug)]
pub(crate) struct Overlay {
    /// In the node; `/` comes first.
    point: PathBuf,
    lower: PathBuf,
    upper: PathBuf,
    work: PathBuf,
}

/// Arguments of mount(2).
pub(crate) struct OverlayMount {
    pub target: CString,
    pub options: CString,
}

/// Writes the init program, which every node of a lab gets as a bind mount.
pub(crate) fn write_init(path: &Path) -> Result<(), NodeError> {
    write_file(path, 0o755, INIT)
}

/// An empty /run in the upper layer, but for the directories that packages keep there for their services.
fn make_run(upper: &Path) -> Result<(), NodeError> {
    let run = upper.join("run");
    make_dir(&run, 0o755)?;
    // An opaque directory hides what the layers below have under its name.
    rustix::fs::setxattr(&run, "trusted.overlay.opaque", b"y", XattrFlags::empty())
        .map_err(file("mark as opaque", &run))?;
    for entry in fs::read_dir("/run").into_iter().flatten().flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_dir && !RUN_SKIPPED.iter().any(|name| entry.file_name().as_bytes().starts_with(name.as_bytes())) {
            make_like(&entry.path(), &run.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Makes the layers of one node below `node_dir`.
pub(crate) fn prepare(node_dir: &Path, rootfs: &ResolvedRoot, files: &[NodeFile]) -> Result<Vec<Overlay>, NodeError> {
    let (root, points) = match rootfs {
        ResolvedRoot::Host => (Path::new("/"), host_submounts(&Mount::table()?)),
        ResolvedRoot::Directory(path) => (path.as_path(), Vec::new()),
    };
    let mut overlays = Vec::new();
    for (index, point) in [PathBuf::from("/")].into_iter().chain(points).enumerate() {
        let layer = node_dir.join("layers").join(index.to_string());
        let lower = root.join(point.strip_prefix("/").unwrap_or(&point));
        let overlay = Overlay { upper: layer.join("upper"), work: layer.join("work"), lower, point };
        make_dir(&overlay.work, 0o700)?;
        // A merged directory looks like its topmost part.
        make_like(&overlay.lower, &overlay.upper)?;
        if index == 0 && matches!(rootfs, ResolvedRoot::Host) {
            make_run(&overlay.upper)?;
        }
        overlays.push(overlay);
    }
    for entry in files {
        put(root, &overlays, entry)?;
    }
    Ok(overlays)
}

/// A [`Rootfs`] after its image, if it is one, was unpacked.
pub(crate) enum ResolvedRoot {
    Host,
    Directory(PathBuf),
}

impl Overlay {
    /// The mount below the directory `target`.
    pub fn mount_below(&self, target: &Path) -> Result<OverlayMount, NodeError> {
        let mut options = OsString::from("lowerdir=");
        options.push(escape(&self.lower));
        options.push(",upperdir=");
        options.push(escape(&self.upper));
        options.push(",workdir=");
        options.push(escape(&self.work));
        let target = target.join(self.point.strip_prefix("/").unwrap_or(&self.point));
        let c_string = |bytes: Vec<u8>| {
            CString::new(bytes).map_err(|_| NodeError::Path { path: target.clone(), problem: "holds a zero byte" })
        };
        let too_long = options.len() >= rustix::param::page_size();
        if too_long {
            return Err(NodeError::Path { path: target, problem: "needs overlay options longer than a page" });
        }
        Ok(OverlayMount {
            target: c_string(target.as_os_str().as_bytes().to_vec())?,
            options: c_string(options.into_vec())?,
        })
    }
}

/// In overlay options, backslash escapes the separators of layers and of options.
fn escape(path: &Path) -> OsString {
    let special = |byte: u8| matches!(byte, b'\\' | b':' | b',');
    let bytes = path.as_os_str().as_bytes().iter();
    OsString::from_vec(bytes.flat_map(|b| special(*b).then_some(b'\\').into_iter().chain([*b])).collect())
}

fn host_submounts(table: &[Mount]) -> Vec<PathBuf> {
    let wanted = |mount: &&Mount| {
        DISK_KINDS.contains(&mount.kind.as_str())
            && mount.point != Path::new("/")
            && !HOST_ONLY.iter().any(|prefix| mount.point.starts_with(prefix))
            // Roots of containers on this host are no part of its own root.
            && !(mount.kind == "overlay" && mount.point.starts_with("/var/lib"))
    };
    let mut points: Vec<PathBuf> = table.iter().filter(wanted).map(|mount| mount.point.clone()).collect();
    points.retain(|point| point.is_dir());
    // Parents before children.
    points.sort();
    points.dedup();
    points
}

/// Puts one file into the upper layer of the overlay that covers it.
fn put(root: &Path, overlays: &[Overlay], entry: &NodeFile) -> Result<(), NodeError> {
    let wrong = |problem| NodeError::Path { path: entry.path.clone(), problem };
    if !entry.path.is_absolute() {
        return Err(wrong("is not absolute"));
    }
    let name = entry.path.file_name().ok_or_else(|| wrong("names no file"))?;
    let parent = entry.path.parent().unwrap_or(Path::new("/"));
    // A link on the way (/bin, /var/run) must stay a link: what it points to gets the file.
    let parent = resolve(root, parent).ok_or_else(|| wrong("goes through too many symbolic links"))?;
    let covers = |overlay: &&Overlay| parent.starts_with(&overlay.point);
    let overlay = overlays.iter().rev().find(covers).ok_or_else(|| wrong("is in no file system of the node"))?;
    let inside = parent.strip_prefix(&overlay.point).unwrap_or(&parent);
    let mut made = overlay.upper.clone();
    let mut model = root.join(overlay.point.strip_prefix("/").unwrap_or(&overlay.point));
    for component in inside.components() {
        made.push(component);
        model.push(component);
        if made.is_dir() {
            continue;
        }
        match model.symlink_metadata() {
            Ok(found) if found.is_dir() => make_like(&model, &made)?,
            Ok(_) => return Err(wrong("has a parent that is not a directory")),
            Err(_) => make_dir(&made, 0o755)?,
        }
    }
    let target = made.join(name);
    if target.is_dir() || model.join(name).is_dir() && !model.join(name).is_symlink() {
        return Err(wrong("is a directory"));
    }
    match &entry.content {
        Content::Bytes(bytes) => write_file(&target, entry.mode, bytes),
        Content::HostFile(source) => write_file(&target, entry.mode, &fs::read(source).map_err(file("read", source))?),
    }
}

/// Follows the symbolic links of `path` as a process with the root directory `root` would; the result has none, as
/// far as its components exist. `None` after forty links.
pub(crate) fn resolve(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut resolved = PathBuf::from("/");
    let mut rest: Vec<OsString> = path.components().rev().map(|c| c.as_os_str().to_owned()).collect();
    let mut links = 0;
    while let Some(component) = rest.pop() {
        match Path::new(&component).components().next() {
            Some(Component::RootDir) => resolved = PathBuf::from("/"),
            Some(Component::ParentDir) => drop(resolved.pop()),
            Some(Component::Normal(name)) => {
                let candidate = resolved.join(name);
                let real = root.join(candidate.strip_prefix("/").unwrap_or(&candidate));
                match fs::read_link(real) {
                    Ok(target) => {
                        links += 1;
                        if links > 40 {
                            return None;
                        }
                        rest.extend(target.components().rev().map(|c| c.as_os_str().to_owned()));
                    }
                    Err(_) => resolved = candidate,
                }
            }
            _ => {}
        }
    }
    Some(resolved)
}

fn make_dir(path: &Path, mode: u32) -> Result<(), NodeError> {
    fs::create_dir_all(path).map_err(file("create", path))?;
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(file("chmod", path))
}

/// Makes a directory with the owner and mode of another.
fn make_like(model: &Path, path: &Path) -> Result<(), NodeError> {
    let found = model.metadata().map_err(file("look at", model))?;
    fs::create_dir_all(path).map_err(file("create", path))?;
    chown(path, Some(found.uid()), Some(found.gid())).map_err(file("chown", path))?;
    fs::set_permissions(path, Permissions::from_mode(found.mode() & 0o7777)).map_err(file("chmod", path))
}

fn write_file(path: &Path, mode: u32, content: &[u8]) -> Result<(), NodeError> {
    let mut out = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)
        .map_err(file("create", path))?;
    out.write_all(content).map_err(file("write", path))?;
    // Not subject to the umask of whoever runs us.
    out.set_permissions(Permissions::from_mode(mode)).map_err(file("chmod", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("diecast-rootfs-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn links_are_followed_inside_the_root_only() {
        let root = scratch("links");
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        symlink("usr/bin", root.join("bin")).unwrap();
        symlink("/usr/../../../bin", root.join("up")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        assert_eq!(resolve(&root, Path::new("/bin/x")), Some("/usr/bin/x".into()));
        assert_eq!(resolve(&root, Path::new("/up/y")), Some("/usr/bin/y".into()));
        assert_eq!(resolve(&root, Path::new("/loop/z")), None);
        assert_eq!(resolve(&root, Path::new("/new/dir")), Some("/new/dir".into()));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn submounts_are_disks_outside_of_the_hosts_own_places_parents_first() {
        let line = |point: &str, kind: &str| format!("1 2 0:3 / {point} rw - {kind} none rw");
        let table: Vec<Mount> = [
            ("/usr/bin", "ext4"),
            ("/usr", "xfs"),
            ("/dev/shm", "tmpfs"),
            ("/run/x", "ext4"),
            ("/", "ext4"),
            ("/etc", "tmpfs"),
        ]
        .iter()
        .filter_map(|(point, kind)| Mount::parse(&line(point, kind)))
        .collect();
        assert_eq!(table.len(), 6);
        assert_eq!(host_submounts(&table), [PathBuf::from("/usr"), PathBuf::from("/usr/bin")]);
    }

    #[test]
    fn separators_in_paths_do_not_split_options() {
        assert_eq!(escape(Path::new("/a:b,c\\d")), r"/a\:b\,c\\d");
    }

    #[test]
    fn a_file_goes_below_the_target_of_a_link_with_its_parents_alike() {
        let root = scratch("put");
        fs::create_dir_all(root.join("lower/usr/bin")).unwrap();
        fs::set_permissions(root.join("lower/usr/bin"), Permissions::from_mode(0o1777)).unwrap();
        symlink("usr/bin", root.join("lower/bin")).unwrap();
        let overlay = Overlay {
            point: "/".into(),
            lower: root.join("lower"),
            upper: root.join("upper"),
            work: root.join("work"),
        };
        fs::create_dir_all(&overlay.upper).unwrap();
        let entry = NodeFile { mode: 0o755, ..NodeFile::text("/bin/tool", "x") };
        put(&root.join("lower"), std::slice::from_ref(&overlay), &entry).unwrap();
        assert_eq!(fs::read(root.join("upper/usr/bin/tool")).unwrap(), b"x");
        assert_eq!(root.join("upper/usr/bin").metadata().unwrap().mode() & 0o7777, 0o1777);
        assert!(!root.join("upper/bin").exists());
        let directory = put(&root.join("lower"), std::slice::from_ref(&overlay), &NodeFile::text("/usr/bin", "x"));
        assert!(matches!(directory, Err(NodeError::Path { problem: "is a directory", .. })));
        let relative = put(&root.join("lower"), std::slice::from_ref(&overlay), &NodeFile::text("etc/x", "x"));
        assert!(matches!(relative, Err(NodeError::Path { problem: "is not absolute", .. })));
        fs::remove_dir_all(root).unwrap();
    }
}
