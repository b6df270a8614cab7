//! Calls of the `runc` program. Its state is kept below the lab's directory.

use crate::error::NodeError;
use std::path::Path;
use std::process::{Command, Stdio};

/// `runc` with the options that every call has.
pub(crate) fn command(root: &Path) -> Command {
    let mut command = Command::new("runc");
    command.arg("--root").arg(root).stdin(Stdio::null());
    command
}

/// Kills and removes a container, whatever its state.
pub(crate) fn delete(root: &Path, id: &str) -> Result<(), NodeError> {
    let output =
        command(root).args(["delete", "--force", id]).output().map_err(|source| NodeError::NoRunc { source })?;
    if output.status.success() {
        return Ok(());
    }
    Err(NodeError::Runc {
        verb: "delete",
        node: id.to_owned(),
        status: output.status.to_string(),
        output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}
