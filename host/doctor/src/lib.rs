//! `diecast doctor`: what this host can do, found by trying it, and what follows for the user.
//!
//! [`examine`] makes one small trial per piece of the host that DieCast stands on: it opens a meter, puts a process in
//! a frame, makes a TAP device in a namespace of its own, attaches the BPF program, sets a quota on a cgroup. Rules:
//! * A trial never fails the program and never waits without bound; what goes wrong becomes a [`Check`].
//! * Every trial removes what it makes. Namespaces, mounts, BPF links and events hang on descriptors and processes
//!   that are gone when it returns; a cgroup and a directory carry this process's id in their names.
//! * It works for root and for ordinary users, on cgroup v1, hybrid and v2.
//! * A check says what its absence costs ([`Need`]); the [`Verdict`] follows from that alone.
//!
//! All unsafe code of this crate is in `sys`.

mod checks;
mod facts;
mod machine;
mod privileges;
mod render;
mod report;
mod score;
mod sys;
mod trial;

pub use facts::{HostFacts, host_facts};
pub use machine::{Disk, Machine, Nic, machine, render_machine};
pub use privileges::{LabPrivileges, lab_privileges};
pub use render::render;
pub use report::{Check, Need, Part, Report, Status, Verdict};
pub use score::{Kernel, Score, score};

/// Examines this host, in about a second. Trials that move threads or set their priority run on threads of their own.
///
/// Two things of the calling process stay changed: its soft limit of descriptors is raised to the hard one, and
/// SIGTRAP has a handler that counts the probe's own hits.
pub fn examine() -> Report {
    let host = host_facts();
    Report::new(host, checks::all())
}
