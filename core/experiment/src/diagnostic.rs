//! A fault in the text of a catalog: where it is, what was found, what was expected, and what to do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A place in the catalog's text. Both numbers start at 1; columns count characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Pos {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// One fault. Its `Display` is `file:line:column: message`, and a second line `  hint: …` if there is one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Diagnostic {
    /// The file's name as the caller gave it, or the text of a command-line override such as `-p rate=5`.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// What was found and what was expected; lower case, no full stop.
    pub message: String,
    /// The next step, if there is an obvious one.
    pub hint: Option<String>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}

/// The faults found so far in one text.
pub(crate) struct Faults {
    file: String,
    found: Vec<Diagnostic>,
}

impl Faults {
    pub(crate) fn new(file: &str) -> Faults {
        Faults { file: file.to_owned(), found: Vec::new() }
    }

    pub(crate) fn add(&mut self, at: Pos, message: impl Into<String>) {
        self.push(at, message.into(), None);
    }

    pub(crate) fn add_with_hint(&mut self, at: Pos, message: impl Into<String>, hint: impl Into<String>) {
        self.push(at, message.into(), Some(hint.into()));
    }

    pub(crate) fn push(&mut self, at: Pos, message: String, hint: Option<String>) {
        let Pos { line, column } = at;
        self.push_elsewhere(Diagnostic { file: self.file.clone(), line, column, message, hint });
    }

    /// A fault that is not in this file (a command-line override).
    pub(crate) fn push_elsewhere(&mut self, diagnostic: Diagnostic) {
        self.found.push(diagnostic);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All faults in the order of the text, without repetitions.
    pub(crate) fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.found.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
        self.found.dedup();
        self.found
    }
}

/// The candidate nearest to `wrong`, if one is near enough to be what was meant.
///
/// Near enough: at most a third of the longer word (at least one edit) must change, a swap of neighbours
/// counting as one edit. Example: `bandwith` is one edit from `bandwidth`; `rate` is not near `delay`.
pub(crate) fn nearest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|c| (strsim::osa_distance(&wrong.to_lowercase(), &c.to_lowercase()), c))
        .filter(|(d, c)| *d <= (wrong.chars().count().max(c.chars().count()) / 3).max(1))
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// `did you mean 'x'?`, or the list of what is known.
pub(crate) fn meant(wrong: &str, known: &[&str]) -> String {
    match nearest(wrong, known.iter().copied()) {
        Some(near) => format!("did you mean '{near}'?"),
        None if known.is_empty() => "nothing is defined there".to_owned(),
        None => format!("known: {}", known.join(", ")),
    }
}
