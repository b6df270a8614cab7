//! What virtual machines and drives will stand on. Nothing here changes today's verdict.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::refused;
use crate::report::{Check, Need, Part, Subject};
use crate::sys;

const fn subject(name: &'static str) -> Subject {
    Subject { name, part: Part::Later, need: Need::Information }
}

pub(super) fn all() -> Vec<Check> {
    vec![
        kvm(Path::new("/sys/module")),
        device("FUSE", "/dev/fuse", "drives can't be shown to nodes as files"),
        device("loop devices", "/dev/loop-control", "drives can't carry a container's file system"),
    ]
}

fn open(path: &str) -> io::Result<std::fs::File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// A machine can be made under every kind of KVM; whether a stock guest runs in it depends on the kind.
fn kvm(modules: &Path) -> Check {
    let s = subject("KVM");
    const SLOW: &str = "virtual machines will run by translation (TCG), several times slower";
    if let Err(e) = open("/dev/kvm").and_then(|kvm| sys::make_virtual_machine(kvm.as_fd())) {
        return s.missing(format!("/dev/kvm: {}", refused(&e)), SLOW, "");
    }
    if modules.join("kvm_pvm").exists() {
        return s.degraded(
            "KVM-PVM, which runs no stock guest kernels",
            SLOW,
            "use a machine with hardware virtualisation",
        );
    }
    s.ok("a virtual machine was made, and removed")
}

fn device(name: &'static str, path: &str, lost: &str) -> Check {
    match open(path) {
        Ok(_) => subject(name).ok(path),
        Err(e) => subject(name).missing(format!("{path}: {}", refused(&e)), lost, ""),
    }
}
