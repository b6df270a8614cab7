//! Builds the init of container nodes (freestanding/init) for embedding.
//!
//! It has its own target folder (below OUT_DIR) and an environment without what cargo and clippy set for
//! this build: their flags, wrappers and target folders belong to the workspace, not to init.
//! A build that fails stops this one; there is no stub.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set by cargo for this build script, or flags meant for the workspace.
const FOREIGN: [&str; 12] = [
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_MAKEFLAGS",
    "CARGO_TARGET_DIR",
    "MAKEFLAGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTFLAGS",
    "TARGET",
    "HOST",
    "OUT_DIR",
];
const FOREIGN_PREFIXES: [&str; 6] =
    ["CARGO_CFG_", "CARGO_FEATURE_", "CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_PROFILE_", "CARGO_TARGET_"];

fn main() {
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo does not set {name}"));
    let source = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../freestanding/init");
    let source = source.canonicalize().unwrap_or_else(|e| panic!("freestanding/init is not in its place: {e}"));
    for input in ["src", "Cargo.toml", "Cargo.lock", ".cargo/config.toml"] {
        println!("cargo::rerun-if-changed={}", source.join(input).display());
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let target = variable("TARGET");
    let target_dir = out.join("init-target");
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .current_dir(&source)
        .args(["build", "--release", "--locked", "--bin", "diecast-init", "--target", &target, "--target-dir"])
        .arg(&target_dir);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if FOREIGN.contains(&&*text) || FOREIGN_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            cargo.env_remove(&name);
        }
    }
    let output = cargo.output().unwrap_or_else(|e| panic!("cannot run cargo for freestanding/init: {e}"));
    if !output.status.success() {
        panic!(
            "freestanding/init (the static init of nodes) does not build; it needs the static C library \
             (Debian: libc6-dev):\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let built = target_dir.join(&target).join("release/diecast-init");
    let image = std::fs::read(&built).unwrap_or_else(|e| panic!("cannot read {}: {e}", built.display()));
    check_static(&image);
    println!("cargo::rustc-env=DIECAST_INIT={}", built.display());
}

/// Refuses a file that would need a loader inside the node, where there may be none.
fn check_static(image: &[u8]) {
    const PT_INTERP: u32 = 3;
    let field = |offset: usize, size: usize| {
        let bytes = image.get(offset..offset + size).unwrap_or_else(|| panic!("diecast-init is cut short"));
        bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte))
    };
    assert!(image.starts_with(b"\x7fELF\x02\x01"), "diecast-init is no 64-bit little-endian ELF file");
    let (table, entry_size, count) = (field(32, 8) as usize, field(54, 2) as usize, field(56, 2) as usize);
    for index in 0..count {
        let kind = field(table + index * entry_size, 4) as u32;
        assert!(
            kind != PT_INTERP,
            "diecast-init is linked dynamically; freestanding/init/.cargo/config.toml was not used"
        );
    }
}
