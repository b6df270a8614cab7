//! Builds the blob and checks the file that came out: one loadable segment, nothing to relocate.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it"));
    let blob = root.join("freestanding/blob");
    for dir in
        ["freestanding/blob", "core/vtime/src", "core/procfs/src", "core/abi/src", "core/cpu/src", "core/syscalls/src"]
    {
        println!("cargo::rerun-if-changed={}", root.join(dir).display());
    }
    let image = out.join("blob.so");
    let mut build = Command::new("bash");
    build.arg(blob.join("build.sh")).arg(&image).arg(out.join("blob-target"));
    // The blob has flags of its own: nothing of the outer build may leak in.
    for (name, _) in std::env::vars() {
        if name.starts_with("CARGO") && name != "CARGO_HOME" || name == "RUSTFLAGS" || name == "RUSTC_WRAPPER" {
            build.env_remove(name);
        }
    }
    let done = build.status().expect("bash runs");
    assert!(done.success(), "the blob did not build: see the messages above (needs cargo and cc)");
    let bytes = std::fs::read(&image).expect("build.sh made the image");
    if let Err(why) = check(&bytes) {
        panic!("the blob's image breaks a rule: {why}");
    }
}

fn number(b: &[u8], at: usize, len: usize) -> u64 {
    b.get(at..at + len).map_or(0, |s| s.iter().rev().fold(0, |n, x| n << 8 | u64::from(*x)))
}

include!("src/image_check.rs");
