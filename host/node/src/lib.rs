//! Container nodes and the state of a lab on the host.
//!
//! A [`LabDir`] is the lab's state directory: it says whose lab it is, records every resource before it is made,
//! and serves the control socket. A [`Node`] is an OCI bundle run by `runc`: new pid, mount, uts, ipc and cgroup
//! namespaces, a network namespace made by someone else, an overlay over the host's own root. Its pid 1 is our
//! static init (`freestanding/init`), which starts programs, reports how they end, and dies with this process.
//! [`clean()`] removes what labs leave whose process was killed.
//!
//! Rules:
//! * Mounts exist in mount namespaces of containers and programs ([`CoreView`]) only, never in the host's.
//! * What could outlive this process is recorded before it is made.
//! * Nothing of a lab whose process lives is touched by anyone else.

mod bundle;
mod cgroup;
mod channel;
mod clean;
mod control;
mod core_view;
mod error;
mod idle_group;
mod image;
mod lab;
mod node;
mod process;
mod rootfs;
mod runc;
mod sys;
mod view;

pub use cgroup::{Cgroup, Hierarchies, Quota, Throttled};
pub use channel::{HandedOver, Handshake};
pub use clean::{LabInfo, clean, clean_in, labs, labs_in};
pub use control::{ControlHandler, control_request};
pub use core_view::CoreView;
pub use error::NodeError;
pub use idle_group::IdleGroup;
pub use lab::{LabDir, LabStatus, NodeStatus, Owner, Resource, STATE_DIR};
pub use node::{Envelope, Event, Exit, Node, NodeSpec, Output, ProgramId, ProgramSpec, User};
pub use process::ProcessId;
pub use rootfs::{Content, NodeFile, Rootfs};
