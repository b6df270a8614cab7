//! Starting cargo and git.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs cargo in a folder, its output on the terminal.
pub fn cargo(folder: &Path, arguments: &[&str], more: &[&str]) -> Result<()> {
    let status = cargo_command(folder)
        .args(arguments)
        .args(more)
        .status()
        .with_context(|| format!("cargo {} does not start", arguments.join(" ")))?;
    if !status.success() {
        bail!("cargo {} ended with {status}", arguments.join(" "));
    }
    Ok(())
}

/// What `cargo metadata` says about a folder's own packages.
pub fn cargo_metadata(folder: &Path) -> Result<Vec<u8>> {
    let mut command = cargo_command(folder);
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    output(command, "cargo metadata")
}

fn cargo_command(folder: &Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(folder);
    // Set for this package by `cargo run`; another workspace must not see them.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Names of the files in the tree: those that git tracks and those that it would.
pub fn files(root: &Path) -> Result<Vec<String>> {
    let mut command = Command::new("git");
    command.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let bytes = output(command, "git ls-files")?;
    let names = String::from_utf8(bytes).context("a file name is not UTF-8")?;
    let mut names: Vec<String> = names.split_terminator('\0').map(str::to_owned).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// The folders of the freestanding workspaces, in order.
pub fn freestanding(root: &Path) -> Result<Vec<PathBuf>> {
    let folder = root.join("freestanding");
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if path.join("Cargo.toml").exists() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn output(mut command: Command, what: &str) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("{what} does not start"))?;
    if !output.status.success() {
        bail!("{what} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}
