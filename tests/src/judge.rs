//! What a guest's lines say, held against what they must say.

use crate::World;
use crate::runs::real_ns_of_tsc;

/// Real time that a noisy machine may take away from a program, ns.
const NOISE_REAL_NS: f64 = 60e6;
/// And what no scaling shrinks: CPU work of the guest itself between two readings, virtual ns.
const NOISE_VIRT_NS: f64 = 6e6;
/// Two readings of different clocks that should agree, real ns between them.
const APART_REAL_NS: f64 = 15e6;

/// Something that a guest's output shows to be wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What it is about, the same in each run: the line's second word, without what a wait left over.
    pub name: String,
    pub text: String,
    /// Load on the machine could cause it.
    pub may_be_noise: bool,
}

impl Finding {
    /// `line` is the guest's.
    pub fn new(line: &str, text: String, may_be_noise: bool) -> Finding {
        let name = line.split_whitespace().nth(1).unwrap_or_default();
        Finding { name: name.strip_suffix(".left").unwrap_or(name).to_owned(), text, may_be_noise }
    }
}

fn number(word: Option<&&str>) -> f64 {
    word.and_then(|w| w.parse().ok()).unwrap_or(f64::NAN)
}

/// Whether a comparison does not hold; one with a missing number never does.
fn fails(holds: bool) -> bool {
    !holds
}

/// Socket options count the kernel's ticks, and where a hypervisor keeps a core while one is due, the next wait counts it.
fn in_ticks(wait: &str) -> bool {
    wait.contains("so_rcvtimeo") || wait.contains("so_sndtimeo")
}

/// Judges the lines `wait`, `rate`, `near` and `range`; leaves out those for which `known` holds.
pub fn judge(world: World, lines: &[(u64, String)], known: fn(World, &str) -> bool) -> Vec<Finding> {
    let tdf = world.tdf();
    let noise_v = NOISE_REAL_NS / tdf + NOISE_VIRT_NS;
    let mut found = Vec::new();
    let mut stamp: Option<(u64, f64)> = None;
    for (arrived, line) in lines {
        if known(world, line) {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let (a, b, c) = (number(words.get(2)), number(words.get(3)), number(words.get(4)));
        let mut problem = |what: String, may_be_noise: bool| {
            found.push(Finding::new(line, format!("{world:?}: {line}: {what}"), may_be_noise));
        };
        match words.first().copied() {
            Some("wait") if b < a => {
                problem(format!("{} ns early", a - b), world == World::Native || in_ticks(words[1]))
            }
            // A guest that does something meanwhile tells its own CPU time, which a host that cools caches makes dear.
            Some("wait") if fails(b <= a * 1.02 + noise_v + c.max(0.0)) && !line.contains(".stop ") => {
                problem("late".into(), true);
            }
            Some("rate") => {
                let real = real_ns_of_tsc(b as u64);
                let expected = a * tdf;
                if fails((real - expected).abs() <= APART_REAL_NS + expected * 0.003) {
                    problem(format!("{real} ns passed, {expected} expected"), true);
                }
            }
            Some("near") if fails((a - b).abs() <= noise_v) => problem(format!("{} ns apart", (a - b).abs()), true),
            Some("range") if fails(a <= b && b <= c) => problem("out of range".into(), true),
            // The guest's helper signals at a third of the wait: on a loaded machine it may come too late.
            Some("=") if line.ends_with(" hits=0") && (line.contains(".signal ") || line.contains(".restart ")) => {
                problem("the signal came too late".into(), true);
            }
            Some("stamp") => {
                if let Some((before_r, before_v)) = stamp {
                    let real = (arrived - before_r) as f64;
                    let expected = (a - before_v) * tdf;
                    if fails((real - expected).abs() <= NOISE_REAL_NS + expected * 0.01) {
                        problem(format!("{real} ns passed, {expected} expected"), true);
                    }
                }
                stamp = Some((*arrived, a));
            }
            _ => {}
        }
    }
    found
}

/// Lines that must be the same in every world, sorted: children print in any order.
pub fn same_lines(world: World, lines: &[(u64, String)], known: fn(World, &str) -> bool) -> Vec<String> {
    let mut same: Vec<String> =
        lines.iter().filter(|(_, l)| l.starts_with("= ") && !known(world, l)).map(|(_, l)| l.clone()).collect();
    same.sort();
    same
}

/// Numbers of the lines `value NAME NUMBER`.
pub fn values(lines: &[(u64, String)], name: &str) -> Vec<i64> {
    lines
        .iter()
        .filter_map(|(_, l)| l.strip_prefix("value ")?.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
        .collect()
}

/// The same in the text that a guest left.
pub fn value_in(said: &str, name: &str) -> i64 {
    let lines: Vec<_> = said.lines().map(|l| (0, l.to_owned())).collect();
    value(&lines, name)
}

/// The first of [`values`].
pub fn value(lines: &[(u64, String)], name: &str) -> i64 {
    *values(lines, name).first().unwrap_or_else(|| panic!("no value {name} in {lines:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(world: World, line: &str) -> usize {
        judge(world, &[(0, line.to_owned())], |_, _| false).len()
    }

    #[test]
    fn early_late_and_missing_numbers_are_findings() {
        let ten = World::Frame("10");
        assert_eq!(texts(ten, "wait a 1000 1000"), 0);
        assert_eq!(texts(ten, "wait a 1000 999"), 1, "early");
        assert_eq!(texts(ten, "wait a 1000 50000000"), 1, "late");
        assert_eq!(texts(ten, "wait a 1000 50000000 45000000"), 0, "by its own work");
        assert_eq!(texts(ten, "wait a 1000 50000000 1000000"), 1, "by more than that");
        assert_eq!(texts(ten, "wait a 1000"), 1, "missing");
        assert_eq!(texts(ten, "near a 5 20000000"), 1);
        assert_eq!(texts(ten, "near a 5 6"), 0);
        assert_eq!(texts(ten, "range a 1 2 3"), 0);
        assert_eq!(texts(ten, "range a 1 4 3"), 1);
        assert_eq!(texts(ten, "range a 1 0 3"), 1);
        // A clock of the frame that ran at the host's rate.
        assert_eq!(texts(ten, "rate a 1000000000 1"), 1);
        let lines = [(0, "stamp a 0".to_owned()), (1_000_000_000, "stamp a 100000000".to_owned())];
        assert!(judge(ten, &lines, |_, _| false).is_empty());
        assert_eq!(judge(World::Native, &lines, |_, _| false).len(), 1);
    }

    #[test]
    fn known_differences_are_left_out() {
        let lines = [(0, "= a 1".to_owned()), (0, "= b 1".to_owned()), (0, "other".to_owned())];
        assert_eq!(same_lines(World::Native, &lines, |_, l| l.contains('a')), ["= b 1"]);
    }
}
