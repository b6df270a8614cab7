//! Style and layering as rules: what a machine says is not a matter of taste.
//!
//! Every rule is a function from text to findings, and has a test with an input that it rejects: a check that nobody
//! has seen fail may be dead.

mod files;
mod layers;

use std::path::Path;

use anyhow::{Result, bail};

use crate::run;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// File, or package.
    pub place: String,
    /// What is wrong, and what was expected.
    pub problem: String,
}

/// A file of the tree.
pub struct File {
    /// Its path from the root, with `/`.
    pub path: String,
    /// Its text; binary files are left out.
    pub text: String,
}

/// Runs every rule over the tree.
pub fn tidy(root: &Path) -> Result<()> {
    let mut files = Vec::new();
    for path in run::files(root)? {
        // A file that git tracks may be gone from the disk; a link may lead nowhere.
        if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
            files.push(File { path, text });
        }
    }
    let mut packages = layers::packages(&run::cargo_metadata(root)?)?;
    for folder in run::freestanding(root)? {
        packages.extend(layers::packages(&run::cargo_metadata(&folder)?)?);
    }
    let mut findings = layers::check(&root.to_string_lossy(), &packages);
    findings.extend(files::check(&files));
    for finding in &findings {
        eprintln!("{}: {}", finding.place, finding.problem);
    }
    if !findings.is_empty() {
        bail!("tidy: {} rules broken in {} files", findings.len(), files.len());
    }
    println!("tidy: {} files and {} packages keep the rules", files.len(), packages.len());
    Ok(())
}
