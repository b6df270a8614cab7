//! What can go wrong with nodes and labs.

use std::path::{Path, PathBuf};

/// An operation on a node or a lab failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("{action} {path}: {source}")]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{action}: {source}")]
    System { action: &'static str, source: std::io::Error },
    #[error("runc {verb} for node '{node}' failed ({status}): {output}")]
    Runc { verb: &'static str, node: String, status: String, output: String },
    #[error("cannot run runc: {source}")]
    NoRunc { source: std::io::Error },
    #[error("node name '{name}' is not made of 1 to 63 letters, digits and inner '-', '_', '.'")]
    Name { name: String },
    #[error("node '{name}' exists already in lab {lab}")]
    Exists { name: String, lab: String },
    #[error("path '{path}' {problem}")]
    Path { path: PathBuf, problem: &'static str },
    #[error("the init of node '{node}' did not answer: {detail}")]
    Init { node: String, detail: String },
    #[error("node '{node}' is gone")]
    Gone { node: String },
    #[error("start request for node '{node}' has {bytes} bytes, at most {bytes_max} are possible")]
    RequestTooLong { node: String, bytes: usize, bytes_max: usize },
    #[error("message from the init of node '{node}': {source}")]
    Protocol { node: String, source: diecast_init_protocol::DecodeError },
    #[error("no cgroup hierarchy with a {controller} controller")]
    NoController { controller: &'static str },
    #[error("{path}: expected a number, found '{text}'")]
    NotANumber { path: PathBuf, text: String },
    #[error("the threads of {cgroup} did not all stop: one is in a call that can't be interrupted")]
    NotFrozen { cgroup: String },
    #[error("quota of {quota_us} us in {period_us} us is outside of what the kernel accepts")]
    Quota { quota_us: u64, period_us: u64 },
    #[error("image {path}: {detail}")]
    Image { path: PathBuf, detail: String },
    #[error("handshake of an envelope: {detail}")]
    Handshake { detail: String },
    #[error("{leftovers:?} of lab {lab} could not be removed")]
    Leftovers { lab: String, leftovers: Vec<String> },
}

impl NodeError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            NodeError::NoRunc { .. } => "install runc (Debian: apt install runc)",
            NodeError::NoController { .. } => "mount the cgroup file systems, or enable the controller at the root",
            NodeError::Quota { .. } => "the period is 1000 to 1000000 us, the quota at least 1000 us",
            NodeError::Leftovers { .. } => "run 'diecast clean' as root",
            NodeError::File { source, .. } | NodeError::System { source, .. }
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                "container nodes need root"
            }
            _ => return None,
        })
    }
}

/// Names file and action in an I/O error.
pub(crate) fn file<'a, E: Into<std::io::Error>>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(E) -> NodeError + 'a {
    move |source| NodeError::File { action, path: path.to_path_buf(), source: source.into() }
}

/// Names the action in a system error.
pub(crate) fn system<E: Into<std::io::Error>>(action: &'static str) -> impl FnOnce(E) -> NodeError {
    move |source| NodeError::System { action, source: source.into() }
}
