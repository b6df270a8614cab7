//! The project's own tools, one command each.
//!
//! * `cargo xtask check`: format, lints, tidy, generated files; runs all of them and names those that failed.
//! * `cargo xtask tidy`: style and layering only, in a second.
//! * `cargo xtask gen [--check]`: writes the generated files, or says which are stale.
#![forbid(unsafe_code)]

mod generate;
mod run;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask check | tidy | gen [--check]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["check"] => check(),
        ["tidy"] => tidy::tidy(&root()),
        ["gen"] => generate::write(&root()),
        ["gen", "--check"] => generate::check(&root()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace: this package's parent.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Every check, also after one failed.
fn check() -> Result<()> {
    let root = root();
    let mut failed = Vec::new();
    let mut step = |name: String, result: Result<()>| {
        if let Err(error) = result {
            eprintln!("{name}: {error:#}");
            failed.push(name);
        }
    };
    let strict = ["--", "-D", "warnings"];
    step("fmt".into(), run::cargo(&root, &["fmt", "--all", "--check"], &[]));
    step("clippy".into(), run::cargo(&root, &["clippy", "--quiet", "--workspace", "--all-targets"], &strict));
    for folder in run::freestanding(&root)? {
        let name = folder.strip_prefix(&root).unwrap_or(&folder).display().to_string();
        step(format!("fmt in {name}"), run::cargo(&folder, &["fmt", "--check"], &[]));
        step(format!("clippy in {name}"), run::cargo(&folder, &["clippy", "--quiet", "--release"], &strict));
    }
    step("tidy".into(), tidy::tidy(&root));
    step("gen --check".into(), generate::check(&root));
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    println!("check: format, lints, tidy and generated files are fine");
    Ok(())
}
