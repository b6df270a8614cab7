//! Conformance: the same programs natively and in frames, and what they must agree on.
//!
//! A guest measures itself and prints lines (see `tests/guests/guest.h`). The harness runs it natively and in
//! frames, compares what must be the same, and holds virtual time against two real clocks: the processor's counter,
//! which the guest reads, and the arrival of each line here.

pub mod cost;
mod guests;
mod host;
mod judge;
pub mod net;
mod runs;

pub use guests::{c, c_with, cxx, go, java, musl, rust, tiny, tool};
pub use host::{real_ahead_ns, refuse};
pub use judge::{Finding, judge, same_lines, value, value_in, values};
pub use runs::{Run, World, alone, beside, diecast, full, run, run_with, target_dir};

/// The worlds that every guest must agree in, besides the native one.
pub const FRAMES: [World; 3] = [World::Frame("1"), World::Frame("10"), World::Staying("0.5")];

/// Looks at most at what may be noise.
const LOOKS: usize = 5;

/// Runs a guest natively and in each of these frames, and panics with every disagreement.
///
/// What a loaded machine can cause (a wait that ends late, a helper's signal that comes after one) counts when every look
/// finds it, five of them, each after a lull. What it can't (a wait that ends early, another result) fails at once.
pub fn conforms(command: &[&str], frames: &[World]) {
    conforms_but(command, frames, |_, _| false);
}

/// As [`conforms`], leaving out lines for which `known` holds.
pub fn conforms_but(command: &[&str], frames: &[World], known: fn(World, &str) -> bool) {
    for &world in frames {
        let steal = diecast_quiet::Steal::watch();
        let found = lasting(|n| differences(command, world, known, n), diecast_quiet::wait_for_quiet);
        if !found.is_empty() && found.iter().all(|f| f.may_be_noise) && steal.measured_nothing() {
            continue;
        }
        let text: Vec<&str> = found.iter().map(|f| f.text.as_str()).collect();
        assert!(text.is_empty(), "{command:?}\n{}", text.join("\n"));
    }
}

/// What one look finds that can't be noise, or else what all looks find, as the last of them saw it.
fn lasting(mut look: impl FnMut(usize) -> Vec<Finding>, mut wait: impl FnMut(usize)) -> Vec<Finding> {
    let mut found = look(0);
    for n in 1..LOOKS {
        if found.is_empty() || found.iter().any(|f| !f.may_be_noise) {
            break;
        }
        wait(n);
        let now = look(n);
        found = now.into_iter().filter(|f| !f.may_be_noise || found.iter().any(|b| b.name == f.name)).collect();
    }
    found
}

/// One native run and one in a frame, one after the other: beside other tests in the first look, which may make them late, alone in
/// further ones.
fn differences(command: &[&str], world: World, known: fn(World, &str) -> bool, look: usize) -> Vec<Finding> {
    let run = |world| {
        if look == 0 {
            return run(world, command);
        }
        let _turn = alone();
        run_with(world, &[], command, b"", &[])
    };
    let native = run(World::Native);
    let framed = run(world);
    assert_eq!(native.status, Some(0), "natively: {}", native.stderr);
    assert_eq!(framed.status, Some(0), "{world:?}: {}", framed.stderr);
    let mut found = judge(World::Native, &native.lines(), |_, _| false);
    found.extend(judge(world, &framed.lines(), known));
    let expected = same_lines(world, &native.lines(), known);
    let got = same_lines(world, &framed.lines(), known);
    assert!(!expected.is_empty(), "the guest says nothing");
    let mut differs = |line: &str, what: &str| {
        // A helper's signal that is meant to meet a wait may come too late on a loaded machine, in either world.
        let may_be_noise = [".signal", ".restart", ".stop"].iter().any(|mode| line.contains(mode));
        found.push(Finding::new(line, format!("{world:?}: {what}: {line}"), may_be_noise));
    };
    for line in missing(&expected, &got) {
        differs(&line, "natively, not here");
    }
    for line in missing(&got, &expected) {
        differs(&line, "here, not natively");
    }
    found
}

/// Lines of `a` that `b` does not have as often.
fn missing(a: &[String], b: &[String]) -> Vec<String> {
    let mut rest = b.to_vec();
    let mut lost = Vec::new();
    for line in a {
        match rest.iter().position(|l| l == line) {
            Some(at) => drop(rest.swap_remove(at)),
            None => lost.push(line.clone()),
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(line: &str, may_be_noise: bool) -> Finding {
        Finding::new(line, line.to_owned(), may_be_noise)
    }

    /// What lasts of these looks, and how many were taken.
    fn of(looks: &[Vec<Finding>]) -> (Vec<String>, usize) {
        let mut taken = 0;
        let found = lasting(|_| (looks[taken].clone(), taken += 1).0, |_| {});
        (found.into_iter().map(|f| f.name).collect(), taken)
    }

    #[test]
    fn noise_counts_when_every_look_finds_it_and_the_rest_at_once() {
        let late = |name: &str| finding(&format!("wait {name} 48 117"), true);
        let wrong = finding("= c.plain -4", false);
        assert_eq!(of(&[vec![]]), (vec![], 1));
        assert_eq!(of(&[vec![late("a"), wrong.clone()]]), (vec!["a".into(), "c.plain".into()], 1));
        assert_eq!(of(&[vec![late("a"), late("b")], vec![late("b")], vec![late("a")]]), (vec![], 3));
        assert_eq!(of(&[vec![late("a")], vec![wrong.clone(), late("b")]]), (vec!["c.plain".into()], 2));
        assert_eq!(of(&vec![vec![late("a")]; LOOKS]), (vec!["a".into()], LOOKS));
        // The same wait, told by another of its lines.
        assert_eq!(of(&vec![vec![finding("near d.signal.left 1 9", true)]; 5]), (vec!["d.signal".into()], 5));
    }
}
