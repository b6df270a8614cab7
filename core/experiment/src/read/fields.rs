//! Readers of single values: each reports a wrong one with its place and what was expected.

use crate::diagnostic::{Faults, Pos, meant};
use crate::grammar::Section;
use crate::quantity::{Dimension, SHARE, split_number};
use crate::tree::{Entry, Kind, Node, Style};

/// Largest speed: a thousand times one core of the host, the largest TDF.
const SPEED_PPM_MAX: u64 = 1_000 * 1_000_000;
/// Largest score, in thousandths.
const SCORE_MILLI_MAX: u64 = 1_000_000_000;

pub(crate) struct Reader {
    pub faults: Faults,
    /// What the caller said about the file of the topology's graph.
    pub graph: GraphFile,
}

/// The file of the topology's graph.
pub(crate) enum GraphFile {
    /// The catalog names none, or the caller does not read files.
    NotRead,
    /// Why it can't be read.
    Failed(String),
    Text(String),
}

/// The keys of one section that are there.
pub(crate) struct Fields<'a> {
    pub at: Pos,
    entries: &'a [Entry],
}

impl<'a> Fields<'a> {
    pub(crate) fn get(&self, key: &str) -> Option<&'a Entry> {
        self.entries.iter().find(|e| e.key == key)
    }
}

impl Reader {
    /// Checks a section's keys against its table. `None` when it is no mapping.
    pub(crate) fn open<'a>(&mut self, node: &'a Node, section: &Section) -> Option<Fields<'a>> {
        let known: Vec<&str> = section.fields.iter().map(|f| f.name).collect();
        let Kind::Map(entries) = &node.kind else {
            let message = format!("{} where {} was expected: a mapping", node.describe(), section.name);
            self.faults.add_with_hint(node.at, message, format!("its keys are: {}", known.join(", ")));
            return None;
        };
        for entry in entries.iter().filter(|e| !known.contains(&e.key.as_str())) {
            let message = format!("{} has no key '{}'", section.name, entry.key);
            self.faults.add_with_hint(entry.key_at, message, meant(&entry.key, &known));
        }
        let has = |key: &str| entries.iter().any(|e| e.key == key);
        for field in section.fields.iter().filter(|f| f.required && !has(f.name)) {
            let message = format!("{} lacks the key '{}': {}", section.name, field.name, field.about);
            self.faults.add(node.at, message);
        }
        if !section.one_of.is_empty() {
            let given: Vec<&str> = section.one_of.iter().copied().filter(|k| has(k)).collect();
            if given.len() != 1 {
                let given = if given.is_empty() { "none".to_owned() } else { given.join(" and ") };
                let message =
                    format!("{} needs exactly one of {}, found {given}", section.name, section.one_of.join(", "));
                self.faults.add(node.at, message);
            }
        }
        if !section.any_of.is_empty() && !section.any_of.iter().any(|k| has(k)) {
            let message = format!("{} needs at least one of {}", section.name, section.any_of.join(", "));
            self.faults.add(node.at, message);
        }
        Some(Fields { at: node.at, entries })
    }

    /// Entries of a mapping with free keys; it must have at least one.
    pub(crate) fn map<'a>(&mut self, node: &'a Node, what: &str) -> &'a [Entry] {
        match &node.kind {
            Kind::Map(entries) if !entries.is_empty() => entries,
            _ => {
                self.faults.add(node.at, format!("{}, expected a mapping from names to {what}", node.describe()));
                &[]
            }
        }
    }

    /// Items of a list.
    pub(crate) fn list<'a>(&mut self, node: &'a Node, what: &str) -> &'a [Node] {
        match &node.kind {
            Kind::List(items) => items,
            _ => {
                self.faults.add(node.at, format!("{}, expected a list of {what}", node.describe()));
                &[]
            }
        }
    }

    /// A text that is not empty.
    pub(crate) fn text(&mut self, node: &Node) -> String {
        match &node.kind {
            Kind::Scalar { text, .. } if !text.is_empty() => text.clone(),
            _ => {
                self.faults.add(node.at, format!("{}, expected a text", node.describe()));
                String::new()
            }
        }
    }

    /// Any scalar, the quoted empty text included.
    pub(crate) fn scalar<'a>(&mut self, node: &'a Node, what: &str) -> Option<&'a str> {
        match &node.kind {
            Kind::Scalar { text, style } if !text.is_empty() || *style != Style::Plain => Some(text),
            _ => {
                self.faults.add(node.at, format!("{}, expected {what}", node.describe()));
                None
            }
        }
    }

    pub(crate) fn host_name(&mut self, node: &Node) -> String {
        let text = self.text(node);
        if !text.is_empty() {
            self.check_host_name(&text, node.at);
        }
        text
    }

    /// Host names: RFC 1123 labels in lower case, with room for a `-10000`.
    pub(crate) fn check_host_name(&mut self, name: &str, at: Pos) {
        let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let edge = name.starts_with('-') || name.ends_with('-');
        if name.is_empty() || name.len() > 57 || edge || !name.bytes().all(good) || name == "localhost" {
            let message = format!(
                "'{name}' can't be a host name, expected at most 57 lower-case letters, digits and '-', \
                 no '-' at either end, not 'localhost'"
            );
            self.faults.add(at, message);
        }
    }

    /// Names that are only referred to: they start with a letter.
    pub(crate) fn check_name(&mut self, name: &str, at: Pos) {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(good) || name.len() > 64 {
            let message =
                format!("'{name}' is no name, expected a letter, then letters, digits, '_' and '-', at most 64");
            self.faults.add(at, message);
        }
    }

    /// A whole number from 1 to `max`; 1 when the key is not there.
    pub(crate) fn count(&mut self, entry: Option<&Entry>, max: u32) -> u32 {
        let Some(entry) = entry else { return 1 };
        self.whole(&entry.value, 1, max).unwrap_or(1)
    }

    pub(crate) fn whole(&mut self, node: &Node, min: u32, max: u32) -> Option<u32> {
        if let Kind::Scalar { text, .. } = &node.kind {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            if let Some(n) = text.parse().ok().filter(|n| digits && (min..=max).contains(n)) {
                return Some(n);
            }
        }
        self.faults.add(node.at, format!("{}, expected a whole number from {min} to {max}", node.describe()));
        None
    }

    /// A speed in millionths of a core of the host.
    pub(crate) fn speed(&mut self, node: &Node) -> u64 {
        if let Kind::Scalar { text, .. } = &node.kind {
            let ppm = match split_number(text) {
                Some((Ok(number), "")) => number.millionths(),
                _ => None,
            };
            if let Some(ppm) = ppm.filter(|ppm| (1..=SPEED_PPM_MAX).contains(ppm)) {
                return ppm;
            }
        }
        let message = format!(
            "{}, expected a speed: a number above 0, at most 1000, with at most six places; 1.0 is one core of the host",
            node.describe()
        );
        self.faults.add(node.at, message);
        1
    }

    /// A score in thousandths.
    pub(crate) fn score(&mut self, node: &Node) -> u64 {
        if let Kind::Scalar { text, .. } = &node.kind
            && let Some((Ok(number), "")) = split_number(text)
            && let Some(milli) = number.millionths().filter(|millionths| millionths % 1000 == 0).map(|m| m / 1000)
            && (1..=SCORE_MILLI_MAX).contains(&milli)
        {
            return milli;
        }
        let message = format!(
            "{}, expected a score as `diecast catalog host` prints it: a number above 0, at most 1000000, with at most \
             three places",
            node.describe()
        );
        self.faults.add(node.at, message);
        1
    }

    /// A quantity in base units, 0 included.
    pub(crate) fn quantity(&mut self, node: &Node, dimension: &Dimension) -> Option<u64> {
        let text = match &node.kind {
            Kind::Scalar { text, .. } if !text.is_empty() => text,
            _ => {
                let message = format!("{}, expected {} such as {}", node.describe(), dimension.name, dimension.example);
                self.faults.add(node.at, message);
                return None;
            }
        };
        match dimension.parse(text) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.faults.push(node.at, wrong.message, wrong.hint);
                None
            }
        }
    }

    /// A quantity that must not be 0; 1 when the key is not there or wrong.
    pub(crate) fn quantity_above_0(&mut self, entry: Option<&Entry>, dimension: &Dimension) -> u64 {
        let Some(entry) = entry else { return 1 };
        match self.quantity(&entry.value, dimension) {
            Some(0) => {
                let message = format!(
                    "{}, expected {} above 0, such as {}",
                    entry.value.describe(),
                    dimension.name,
                    dimension.example
                );
                self.faults.add(entry.value.at, message);
                1
            }
            Some(value) => value,
            None => 1,
        }
    }

    /// A quantity with a sign or without; 0 when the key is not there or wrong.
    pub(crate) fn signed(
        &mut self,
        entry: Option<&Entry>,
        dimension: &Dimension,
        parse: fn(&str) -> Result<i64, String>,
    ) -> i64 {
        let Some(node) = entry.map(|e| &e.value) else { return 0 };
        let read = match &node.kind {
            Kind::Scalar { text, .. } if !text.is_empty() => parse(text),
            _ => Err(format!("{}, expected {} such as {}", node.describe(), dimension.name, dimension.example)),
        };
        read.unwrap_or_else(|message| {
            self.faults.add(node.at, message);
            0
        })
    }

    /// A quantity of one of several kinds: which of them, and its base units, not 0.
    pub(crate) fn any_quantity(&mut self, node: &Node, dimensions: &[&Dimension]) -> Option<(usize, u64)> {
        let expected: Vec<String> = dimensions.iter().map(|d| format!("{} such as {}", d.name, d.example)).collect();
        let expected = expected.join(" or ");
        let Kind::Scalar { text, .. } = &node.kind else {
            self.faults.add(node.at, format!("{}, expected {expected}", node.describe()));
            return None;
        };
        let unit = split_number(text).map_or("", |(_, rest)| rest.trim());
        let Some(which) = dimensions.iter().position(|d| d.has_unit(unit)) else {
            let units: Vec<String> = dimensions.iter().map(|d| d.accepted()).collect();
            let message = match unit {
                "" => format!("'{text}' has no unit, expected {expected}"),
                _ => format!("'{unit}' in '{text}' is no accepted unit, expected {expected}"),
            };
            self.faults.add_with_hint(node.at, message, format!("accepted units: {}", units.join("; ")));
            return None;
        };
        let value = self.quantity(node, dimensions[which])?;
        if value == 0 {
            self.faults.add(node.at, format!("{}, expected more than 0", node.describe()));
            return None;
        }
        Some((which, value))
    }

    /// A share below or up to all, in millionths.
    pub(crate) fn share(&mut self, entry: &Entry, what: &str, all_allowed: bool) -> u32 {
        let most = if all_allowed { 1_000_000 } else { 999_999 };
        match self.quantity(&entry.value, &SHARE) {
            Some(ppm) if ppm > most => {
                let bound = if all_allowed { "at most" } else { "below" };
                self.faults.add(entry.value.at, format!("{}, expected {what} {bound} 100%", entry.value.describe()));
                0
            }
            Some(ppm) => u32::try_from(ppm).unwrap_or(0),
            None => 0,
        }
    }

    /// true or false; false when the key is not there.
    pub(crate) fn flag(&mut self, entry: Option<&Entry>) -> bool {
        let Some(entry) = entry else { return false };
        match &entry.value.kind {
            Kind::Scalar { text, style: Style::Plain } if text == "true" => true,
            Kind::Scalar { text, style: Style::Plain } if text == "false" => false,
            _ => {
                self.faults.add(entry.value.at, format!("{}, expected true or false", entry.value.describe()));
                false
            }
        }
    }

    /// The place of one of a few words in their list; 0 when the key is not there.
    pub(crate) fn choice(&mut self, entry: Option<&Entry>, words: &[&str]) -> usize {
        let Some(entry) = entry else { return 0 };
        let found = match &entry.value.kind {
            Kind::Scalar { text, .. } => words.iter().position(|w| w == text),
            _ => None,
        };
        found.unwrap_or_else(|| {
            let message = format!("{}, expected one of {}", entry.value.describe(), words.join(", "));
            self.faults.add(entry.value.at, message);
            0
        })
    }

    /// An absolute path in a node.
    pub(crate) fn check_node_path(&mut self, path: &str, at: Pos) {
        let bad_part = path.split('/').any(|p| p == "..");
        if !path.starts_with('/') || bad_part {
            self.faults.add(at, format!("'{path}' is no path in a node, expected an absolute one without '..'"));
        }
    }

    /// One text or a list of texts, with the place of each.
    pub(crate) fn one_or_more(&mut self, node: &Node, what: &str) -> Vec<(String, Pos)> {
        match &node.kind {
            Kind::List(items) if !items.is_empty() => {
                items.iter().map(|item| (self.text(item), item.at)).filter(|(text, _)| !text.is_empty()).collect()
            }
            Kind::Scalar { text, .. } if !text.is_empty() => vec![(text.clone(), node.at)],
            _ => {
                self.faults.add(node.at, format!("{}, expected {what} or a list of them", node.describe()));
                Vec::new()
            }
        }
    }
}
