//! The one place of this crate with unsafe code: what happens between fork and exec.

use crate::rootfs::OverlayMount;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets `command` run in a mount namespace of its own with the overlays mounted in it, and die with the thread
/// that waits for it. The container inherits the mounts; nobody else ever sees them, and nothing of them outlives
/// the container. `held` is inherited open, so that its lock lasts as long as `command`.
pub(crate) fn in_private_mounts(command: &mut Command, overlays: Vec<OverlayMount>, held: File) {
    let parent = rustix::process::getpid();
    let prepare = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| at("set the death signal", e))?;
        if getppid() != Some(parent) {
            // It died before the line above.
            return Err(io::Error::from(Errno::SRCH));
        }
        fcntl_setfd(&held, FdFlags::empty()).map_err(|e| at("pass a lock on", e))?;
        unshare_mounts().map_err(|e| at("unshare the mount namespace", e))?;
        mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(|e| at("make mounts private", e))?;
        for overlay in &overlays {
            mount(c"overlay", overlay.target.as_c_str(), c"overlay", MountFlags::empty(), overlay.options.as_c_str())
                .map_err(|e| at("mount an overlay of the node's root", e))?;
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls on strings that were allocated before the fork; it allocates
    // nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
}

/// Gives the calling process, forked and about to exec, a mount namespace of its own.
pub(crate) fn unshare_mounts() -> Result<(), Errno> {
    // SAFETY: this is the only thread of a process that is about to exec; nothing in it relies on the
    // mount namespace it was forked in.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
}

/// Names the step in the log (our stderr), since only the number of an error crosses to the parent.
fn at(step: &'static str, error: Errno) -> io::Error {
    // A log that can't be written takes nothing from the error itself.
    for text in ["cannot ", step, "\n"] {
        let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
    }
    error.into()
}
