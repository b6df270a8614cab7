//! A report for people.

use crate::facts::bytes;
use crate::report::{Check, Need, Report, Status};

/// Columns that lines are wrapped at.
const WIDTH: usize = 110;

/// A table, worst first, what each shortcoming costs and how to mend it below its row, and the verdict at the end.
pub fn render(report: &Report) -> String {
    let host = &report.host;
    let mut out = format!(
        "Linux {} on {}, {} core{} of {}, {} of memory ({} available), cgroups {}\n\n",
        host.kernel,
        host.architecture,
        host.cores,
        if host.cores == 1 { "" } else { "s" },
        host.cpu_model,
        bytes(host.memory_bytes),
        bytes(host.memory_available_bytes),
        host.cgroups,
    );
    let mut rows: Vec<&Check> = report.checks.iter().collect();
    // Stable: within one rank the order of the parts stays.
    rows.sort_by_key(|check| rank(check));
    let name_width = rows.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
    let part_width = rows.iter().map(|c| c.part.name().len()).max().unwrap_or(0);
    // Status, part and name with two spaces after each.
    let indent = 8 + 2 + part_width + 2 + name_width + 2;
    for check in rows {
        let head = format!("{:<8}  {:<part_width$}  {:<name_width$}  ", label(check), check.part.name(), check.name);
        paragraph(&mut out, &head, indent, &check.found);
        if !check.consequence.is_empty() {
            paragraph(&mut out, &format!("{:indent$}costs: ", ""), indent + 7, &check.consequence);
        }
        if let Some(fix) = &check.fix {
            paragraph(&mut out, &format!("{:indent$}fix:   ", ""), indent + 7, fix);
        }
    }
    out.push('\n');
    paragraph(&mut out, "verdict: ", 9, &report.summary);
    out
}

/// Worst first; what costs nothing today comes after everything that costs something.
fn rank(check: &Check) -> u8 {
    match (check.status, check.need) {
        (Status::Missing, Need::Frames) => 0,
        (Status::Missing, Need::Labs) => 1,
        (Status::Missing, Need::Trust) => 2,
        (Status::Missing, Need::Accuracy) => 3,
        (Status::Degraded, Need::Frames | Need::Labs | Need::Trust | Need::Accuracy) => 4,
        (Status::Missing | Status::Degraded, Need::Information) => 5,
        (Status::Ok, _) => 6,
    }
}

fn label(check: &Check) -> &'static str {
    match check.status {
        Status::Ok => "ok",
        Status::Degraded => "degraded",
        Status::Missing => "missing",
    }
}

/// `head`, then the text, wrapped at words, further lines indented. A word longer than a line stays whole.
fn paragraph(out: &mut String, head: &str, indent: usize, text: &str) {
    out.push_str(head);
    let mut column = head.chars().count();
    let mut first = true;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if !first && column + 1 + length > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if !first {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
        first = false;
    }
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}

#[cfg(test)]
mod tests;
