//! Compiles a BPF program with clang and leaves the object for `include_bytes!`. Stops when it can't: there is no stub.
//! Shared by the build scripts of the crates that load one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// From `source`, relative to the crate, to `object` in OUT_DIR.
pub fn bpf(source: &str, object: &str) {
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(object);
    if !Path::new("/usr/include/bpf/bpf_helpers.h").exists() {
        fail("bpf/bpf_helpers.h is missing", "apt-get install libbpf-dev");
    }
    let mut command = Command::new(&clang);
    command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-c", source, "-o"]).arg(&object);
    // Debian keeps asm/types.h in a folder per architecture, which clang does not search for the bpf target.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    command.arg(format!("-I/usr/include/{arch}-linux-gnu"));
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => fail(
            &format!("clang can't compile {source}:\n{}", String::from_utf8_lossy(&output.stderr)),
            "apt-get install clang libbpf-dev linux-libc-dev",
        ),
        Err(error) => fail(&format!("can't run '{clang}': {error}"), "apt-get install clang (or set CLANG)"),
    }
}

fn fail(what: &str, hint: &str) -> ! {
    for line in what.lines() {
        println!("cargo::error={line}");
    }
    println!("cargo::error=hint: {hint}");
    exit(1)
}
