//! Changes of the network: the catalog's list of faults, and the words of `diecast link`.

use super::fields::{Fields, Reader};
use super::links;
use crate::diagnostic::{Diagnostic, Faults, Pos, meant};
use crate::fault::{Fault, NetworkChange, NetworkNames, Part, PipeName};
use crate::grammar_net::{BACK, FAULT, FLAP, FLAPS_MAX, SET};
use crate::quantity::DURATION;
use crate::tree::{self, Kind, Node, Style};

/// The catalog's faults, in the order of their instants.
pub(crate) fn list(r: &mut Reader, node: &Node, names: &NetworkNames, end_ns: u64) -> Vec<Fault> {
    let mut out = Vec::new();
    for item in r.list(node, "faults") {
        let Some(f) = r.open(item, &FAULT) else { continue };
        let at = f.get("at");
        let at_ns = at.and_then(|e| r.quantity(&e.value, &DURATION)).unwrap_or(0);
        if let Some(e) = at.filter(|_| at_ns > end_ns) {
            let message = format!("{}, expected an instant within warm-up and measuring", e.value.describe());
            r.faults.add(e.value.at, message);
        }
        if let Some(change) = change(r, &f, names) {
            out.push(Fault { at_ns, change, place: item.at });
        }
    }
    // Stable: faults of one instant keep their order.
    out.sort_by_key(|fault| fault.at_ns);
    out
}

fn change(r: &mut Reader, f: &Fields<'_>, names: &NetworkNames) -> Option<NetworkChange> {
    let one_way = r.flag(f.get("one_way"));
    if let Some(e) = f.get("cut") {
        return Some(NetworkChange::Cut(pipes(r, &e.value, names, one_way)));
    }
    if let Some(e) = f.get("heal") {
        return Some(NetworkChange::Heal(pipes(r, &e.value, names, one_way)));
    }
    if let Some(e) = f.get("set") {
        let f = r.open(&e.value, &SET)?;
        let pipes = pipes(r, &f.get("link")?.value, names, one_way);
        let values = links::pipe(r, &f, &links::PLAIN);
        let parts: Vec<Part> = parts(&f);
        if parts.is_empty() {
            r.faults.add(e.value.at, format!("nothing to set, expected at least one of {}", part_names()));
        }
        return Some(NetworkChange::Set { pipes, parts, values });
    }
    if let Some(e) = f.get("flap") {
        let f = r.open(&e.value, &FLAP)?;
        let pipes = pipes(r, &f.get("link")?.value, names, one_way);
        let down_ns = r.quantity_above_0(f.get("down"), &DURATION);
        let up_ns = r.quantity_above_0(f.get("up"), &DURATION);
        return Some(NetworkChange::Flap { pipes, down_ns, up_ns, times: r.count(f.get("times"), FLAPS_MAX) });
    }
    if let Some(e) = f.get("partition") {
        let sides = r.list(&e.value, "sides, each a node, a group or a list of them");
        let mut all: Vec<Vec<String>> = Vec::new();
        for node in sides {
            let side = side(r, node, names);
            if let Some(twice) = side.iter().find(|name| all.iter().flatten().any(|other| other == *name)) {
                r.faults.add(node.at, format!("node '{twice}' is on two sides, expected each node on one"));
            }
            all.push(side);
        }
        return Some(NetworkChange::Partition(all));
    }
    match f.get("network").map(|e| r.choice(Some(e), &["join", "reroute"])) {
        Some(0) => Some(NetworkChange::Join),
        Some(_) => Some(NetworkChange::Reroute),
        None => None,
    }
}

fn parts(f: &Fields<'_>) -> Vec<Part> {
    Part::NAMES.iter().filter(|(name, _)| f.get(name).is_some()).map(|(_, part)| *part).collect()
}

fn part_names() -> String {
    Part::NAMES.map(|(name, _)| name).join(", ")
}

/// The pipes that one or more names of links stand for.
fn pipes(r: &mut Reader, node: &Node, names: &NetworkNames, one_way: bool) -> Vec<PipeName> {
    let mut out = Vec::new();
    for (text, at) in r.one_or_more(node, "a link such as app-1:core, or a node or group for its own links") {
        for pipe in link(r, &text, at, names, one_way) {
            if !out.contains(&pipe) {
                out.push(pipe);
            }
        }
    }
    out
}

fn link(r: &mut Reader, text: &str, at: Pos, names: &NetworkNames, one_way: bool) -> Vec<PipeName> {
    let (from, to) = match text.split_once(':') {
        Some((from, to)) => (from, Some(to)),
        None => (text, None),
    };
    let mut known = |name: &str| {
        let found = names.ends(name);
        if found.is_none() {
            let message = format!("no node, group, switch or router '{name}'");
            r.faults.add_with_hint(at, message, meant(name, &names.known()));
        }
        found
    };
    let (Some(from_ends), to_ends) = (known(from), to.map(&mut known)) else { return Vec::new() };
    if to_ends.is_some_and(|to| to.is_none()) {
        return Vec::new();
    }
    let found = names.pipes(from_ends, to_ends.flatten(), one_way);
    if found.is_empty() {
        let message = format!("there is no link '{text}', expected two ends of one link");
        r.faults.add_with_hint(
            at,
            message,
            format!("'{from}' is linked to: {}", names.neighbours(from_ends).join(", ")),
        );
    }
    found
}

/// The nodes of one side of a partition.
fn side(r: &mut Reader, node: &Node, names: &NetworkNames) -> Vec<String> {
    let mut out = Vec::new();
    for (text, at) in r.one_or_more(node, "a node or group") {
        match names.nodes(&text) {
            Some(nodes) => out.extend(nodes.iter().cloned()),
            None => {
                r.faults.add_with_hint(at, format!("no node or group '{text}'"), meant(&text, &names.known_nodes()));
            }
        }
    }
    out
}

/// A change as a command states it.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ChangeWords {
    /// Some parameters of links.
    Set {
        /// `FROM:TO`, or a node or group.
        links: Vec<String>,
        /// `KEY=VALUE`, as in a catalog.
        settings: Vec<String>,
        /// Not the ways back.
        one_way: bool,
    },
    /// Links break.
    Cut {
        /// Which.
        links: Vec<String>,
        /// Not the ways back.
        one_way: bool,
    },
    /// Links work again.
    Heal {
        /// Which.
        links: Vec<String>,
        /// Not the ways back.
        one_way: bool,
    },
    /// Links break and work again.
    Flap {
        /// Which.
        links: Vec<String>,
        /// Not the ways back.
        one_way: bool,
        /// How long they are cut.
        down_ns: u64,
        /// How long they work in between.
        up_ns: u64,
        /// How often.
        times: u32,
    },
    /// Sides of a partition, names separated by commas.
    Partition {
        /// Each side.
        sides: Vec<String>,
    },
    /// The partition ends.
    Join,
    /// Paths are searched anew.
    Reroute,
}

/// Reads the words of a command; each fault names the word that it is in.
pub fn parse_change(words: &ChangeWords, names: &NetworkNames) -> Result<NetworkChange, Vec<Diagnostic>> {
    let mut faults = Vec::new();
    let mut links = |words: &[String], one_way: bool| {
        let mut out = Vec::new();
        for word in words {
            out.extend(in_word(word, &mut faults, |r| link(r, word, Pos { line: 1, column: 1 }, names, one_way)));
        }
        out.sort();
        out.dedup();
        out
    };
    let change = match words {
        ChangeWords::Cut { links: of, one_way } => NetworkChange::Cut(links(of, *one_way)),
        ChangeWords::Heal { links: of, one_way } => NetworkChange::Heal(links(of, *one_way)),
        ChangeWords::Flap { links: of, one_way, down_ns, up_ns, times } => NetworkChange::Flap {
            pipes: links(of, *one_way),
            down_ns: *down_ns,
            up_ns: *up_ns,
            times: (*times).min(FLAPS_MAX),
        },
        ChangeWords::Set { links: of, settings, one_way } => {
            let pipes = links(of, *one_way);
            let (mut values, mut found) = (links::PLAIN, Vec::new());
            for word in settings {
                (values, found) = setting(word, &values, found, &mut faults);
            }
            NetworkChange::Set { pipes, parts: found, values }
        }
        ChangeWords::Partition { sides } => {
            let mut all = Vec::new();
            for word in sides {
                let items = word.split(',').map(word_node).collect();
                let node = Node { at: Pos { line: 1, column: 1 }, kind: Kind::List(items) };
                all.push(in_word(word, &mut faults, |r| side(r, &node, names)));
            }
            NetworkChange::Partition(all)
        }
        ChangeWords::Join => NetworkChange::Join,
        ChangeWords::Reroute => NetworkChange::Reroute,
    };
    if faults.is_empty() { Ok(change) } else { Err(faults) }
}

fn word_node(text: &str) -> Node {
    Node { at: Pos { line: 1, column: 1 }, kind: Kind::Scalar { text: text.to_owned(), style: Style::Plain } }
}

/// Reads one word of a command, which is the file of its faults.
fn in_word<T>(word: &str, faults: &mut Vec<Diagnostic>, read: impl FnOnce(&mut Reader) -> T) -> T {
    let mut r = Reader { faults: Faults::new(word), graph: super::fields::GraphFile::NotRead };
    let value = read(&mut r);
    faults.extend(r.faults.into_sorted());
    value
}

/// One `KEY=VALUE`, read as the line `KEY: VALUE` of a catalog.
fn setting(
    word: &str,
    base: &crate::network::Pipe,
    mut parts: Vec<Part>,
    faults: &mut Vec<Diagnostic>,
) -> (crate::network::Pipe, Vec<Part>) {
    let at = Pos { line: 1, column: 1 };
    let mut found = Vec::new();
    let values = in_word(word, &mut found, |r| {
        let Some((key, value)) = word.split_once('=') else {
            r.faults.add_with_hint(at, format!("'{word}' is no setting, expected KEY=VALUE"), "such as delay=10ms");
            return *base;
        };
        let Some(root) = tree::parse(&format!("{key}: {value}\n"), &mut r.faults) else { return *base };
        let Some(f) = r.open(&root, &BACK) else { return *base };
        parts.extend(self::parts(&f));
        links::pipe(r, &f, base)
    });
    // The text that was read has a blank more.
    let key_columns = word.split('=').next().unwrap_or(word).chars().count() as u32;
    for fault in &mut found {
        if fault.column > key_columns + 1 {
            fault.column -= 1;
        }
    }
    faults.extend(found);
    (values, parts)
}
