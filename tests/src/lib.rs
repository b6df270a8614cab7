//! Conformance: the same programs natively and in frames, and what they must agree on.
//!
//! A guest measures itself and prints lines (see `tests/guests/guest.h`). The harness runs it natively and in
//! frames, compares what must be the same, and holds virtual time against two real clocks: the processor's counter,
//! which the guest reads, and the arrival of each line here.

pub mod cost;
mod guests;
mod judge;
mod runs;

pub use guests::{c, go, java, rust, tiny, tool};
pub use judge::{Finding, judge, same_lines, value, values};
pub use runs::{Run, World, alone, beside, diecast, full, run, run_with};

/// The worlds that every guest must agree in, besides the native one.
pub const FRAMES: [World; 3] = [World::Frame("1"), World::Frame("10"), World::Frame("0.5")];

/// Runs a guest natively and in each of these frames, and panics with every disagreement.
///
/// What a loaded machine can cause (a wait that ends late) is looked at again, twice; what it can't (a wait that
/// ends early, another result) fails at once.
pub fn conforms(command: &[&str], frames: &[World]) {
    conforms_but(command, frames, |_, _| false);
}

/// As [`conforms`], leaving out lines for which `known` holds.
pub fn conforms_but(command: &[&str], frames: &[World], known: fn(World, &str) -> bool) {
    let check = |world: World| -> (Run, Vec<Finding>) {
        let mut tries = 0;
        loop {
            let r = run(world, command);
            let found = judge(world, &r.lines(), known);
            tries += 1;
            if tries == 3 || found.iter().all(|f| !f.may_be_noise) {
                return (r, found);
            }
        }
    };
    let (native, mut found) = check(World::Native);
    assert_eq!(native.status, Some(0), "natively: {}", native.stderr);
    let expected = same_lines(World::Native, &native.lines(), known);
    assert!(!expected.is_empty(), "the guest says nothing");
    for &world in frames {
        let (r, f) = check(world);
        assert_eq!(r.status, Some(0), "{world:?}: {}", r.stderr);
        found.extend(f);
        let reference = if world == World::Native { expected.clone() } else { same_lines(world, &native.lines(), known) };
        let got = same_lines(world, &r.lines(), known);
        for line in reference.iter().filter(|l| !got.contains(l)) {
            found.push(Finding { text: format!("{world:?}: natively, not here: {line}"), may_be_noise: false });
        }
        for line in got.iter().filter(|l| !reference.contains(l)) {
            found.push(Finding { text: format!("{world:?}: here, not natively: {line}"), may_be_noise: false });
        }
    }
    let text: Vec<&str> = found.iter().map(|f| f.text.as_str()).collect();
    assert!(text.is_empty(), "{command:?}\n{}", text.join("\n"));
}
