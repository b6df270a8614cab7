//! The table as a page for people.

use alloc::format;
use alloc::string::String;

use crate::{Action, ROWS};

/// Markdown table of every row, for LIMITS.md.
pub fn limits_table() -> String {
    let mut out = String::from("| system call | nr | what happens | note |\n|---|---|---|---|\n");
    for r in ROWS {
        let what = match r.action {
            Action::Trap(_) => String::from("translated by the blob"),
            Action::Notify | Action::NotifyIf(_) => String::from("seen by the supervisor"),
            Action::Refuse(e) => format!("refused (errno {e})"),
        };
        out.push_str(&format!("| {} | {} | {} | {} |\n", r.name, r.nr, what, r.note));
    }
    out
}
