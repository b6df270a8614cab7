//! Random calls with random arguments: each gives natively what it gives in a frame of TDF 1.

use std::collections::{BTreeMap, BTreeSet};

use diecast_core_syscalls::{Action, ROWS};
use diecast_tests::{World, c, run};

/// Episodes of 40 calls of one run.
const EPISODES: &str = "25";
/// Seeds of an ordinary test run.
const SEEDS: u64 = 4;

/// DIECAST_FUZZ=N: N seeds, from N on (`make fuzz`).
fn seeds() -> std::ops::Range<u64> {
    match std::env::var("DIECAST_FUZZ").ok().and_then(|n| n.parse().ok()) {
        Some(n) => n..2 * n,
        None => 1..1 + SEEDS,
    }
}

/// What each call gave: by episode, number and name.
type Answers = BTreeMap<String, String>;

fn answers(world: World, guest: &str, seed: u64) -> Answers {
    let r = run(world, &[guest, &seed.to_string(), EPISODES]);
    assert_eq!(r.status, Some(0), "seed {seed} in {world:?}: {}", r.stderr);
    let parts = |line: &str| {
        let mut words = line.strip_prefix("= ")?.splitn(3, ' ');
        Some((format!("{} {}", words.next()?, words.next()?), words.next()?.to_owned()))
    };
    r.lines().iter().filter_map(|(_, line)| parts(line)).collect()
}

/// Calls whose answers differ, and those that only one side has.
fn apart(a: &Answers, b: &Answers) -> BTreeSet<String> {
    a.keys().chain(b.keys()).filter(|call| a.get(*call) != b.get(*call)).cloned().collect()
}

/// One seed: how many calls there were, which of them are not the same natively twice, and what differs in a frame,
/// twice.
fn look(guest: &str, seed: u64) -> (usize, BTreeSet<String>, Vec<String>) {
    let native = answers(World::Native, guest, seed);
    let mut unsure = apart(&native, &answers(World::Native, guest, seed));
    let framed = answers(World::Frame("1"), guest, seed);
    let mut differs = apart(&native, &framed);
    if !differs.is_subset(&unsure) {
        unsure.extend(apart(&native, &answers(World::Native, guest, seed)));
        let again = apart(&native, &answers(World::Frame("1"), guest, seed));
        differs.retain(|call| again.contains(call) && !unsure.contains(call));
    } else {
        differs.clear();
    }
    let side = |answers: &Answers, call: &str| answers.get(call).map_or("nothing", String::as_str).to_owned();
    let texts = differs.iter().map(|call| format!("{call}: {}, framed {}", side(&native, call), side(&framed, call)));
    (native.len(), unsure, texts.collect())
}

#[test]
fn random_calls_are_answered_as_natively() {
    let guest = c("fuzz", false);
    let (mut calls, mut unsure) = (0, 0);
    let mut found = Vec::new();
    for seed in seeds() {
        let (all, differ_natively, texts) = look(&guest, seed);
        calls += all;
        unsure += differ_natively.len();
        if !texts.is_empty() {
            let text = format!("seed {seed} ({guest} {seed} {EPISODES}):\n  {}", texts.join("\n  "));
            println!("{text}");
            found.push(text);
        }
        // Calls that hang take their time.
        if found.len() == 3 {
            break;
        }
    }
    println!("{calls} calls, {unsure} left out: not the same natively twice");
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(calls > 500 * seeds().count() && unsure * 50 < calls, "{unsure} of {calls} calls say nothing");
}

/// Each call that the blob serves is among those that are made; what is left out is said.
#[test]
fn random_calls_are_those_of_the_table() {
    let text = include_str!("../guests/fuzz.c");
    let head = text.lines().take_while(|l| l.starts_with("//")).collect::<Vec<_>>().join(" ");
    let (covers, left_out) = head.split_once("Left out:").expect("what is left out");
    let names = |part: &str, name: &str| part.split_whitespace().any(|w| w.trim_matches(['(', ')', ',']) == name);
    for row in ROWS {
        let made = text.contains(&format!("X({})", row.name)) || text.contains(&format!("SYS_{},", row.name));
        let served = matches!(row.action, Action::Trap(_));
        assert_eq!(names(covers, row.name) && made, served, "{}", row.name);
        assert_eq!(names(left_out, row.name), !served, "{}", row.name);
    }
}
