//! YAML text to a tree in which every key and value knows its place.
//!
//! The grammar is deliberately less than YAML: one document, no anchors, aliases or tags, scalar keys only,
//! every key once. All scalars are text here; what a text means is decided by the reader of its field.

use saphyr_parser::{Event, Parser, ScalarStyle};

use crate::diagnostic::{Faults, Pos};

/// Nesting deeper than this is refused: the deepest place of the grammar is six.
const DEPTH_MAX: usize = 32;

/// A value and where it starts.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub at: Pos,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Scalar { text: String, style: Style },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// How a scalar is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    Plain,
    Quoted,
    Block,
}

/// One key of a mapping with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: String,
    pub key_at: Pos,
    pub value: Node,
}

impl Node {
    /// The value of a key, if this is a mapping that has it.
    pub(crate) fn child(&self, key: &str) -> Option<&Node> {
        match &self.kind {
            Kind::Map(entries) => entries.iter().find(|e| e.key == key).map(|e| &e.value),
            _ => None,
        }
    }

    /// The place of the character `offset` characters into a scalar's text, as far as the text shows it:
    /// in a block or over several lines it is the scalar's own place.
    pub(crate) fn place_in_text(&self, offset: usize) -> Pos {
        let shift = match &self.kind {
            Kind::Scalar { text, .. } if text.contains('\n') => return self.at,
            Kind::Scalar { style: Style::Plain, .. } => offset,
            Kind::Scalar { style: Style::Quoted, .. } => offset + 1,
            _ => return self.at,
        };
        Pos { line: self.at.line, column: self.at.column.saturating_add(u32::try_from(shift).unwrap_or(u32::MAX)) }
    }

    /// What this is, for messages: `a list`, `'5 apples'`, `nothing`.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            Kind::Scalar { text, style: Style::Plain } if text.is_empty() => "nothing".to_owned(),
            Kind::Scalar { text, .. } => format!("'{text}'"),
            Kind::List(items) if items.is_empty() => "an empty list".to_owned(),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(entries) if entries.is_empty() => "an empty mapping".to_owned(),
            Kind::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// A collection that is still open.
enum Open {
    List { at: Pos, items: Vec<Node> },
    Map { at: Pos, entries: Vec<Entry>, key: Option<(String, Pos)> },
}

/// Parses one document. `None` when the text is no YAML or empty; the reason is then in `faults`.
pub(crate) fn parse(text: &str, faults: &mut Faults) -> Option<Node> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut stack: Vec<Open> = Vec::new();
    let mut root: Option<Node> = None;
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = match event {
            Ok(pair) => pair,
            Err(e) => {
                let m = e.marker();
                let at = pos(m.line(), m.col());
                // `[gen, ${rate}]` is the likeliest way to write something that is no YAML.
                let line = text.lines().nth(m.line().saturating_sub(1)).unwrap_or("");
                let hint = line.contains("${").then(|| "put words with ${…} in quotes".to_owned());
                faults.push(at, format!("not YAML: {}", e.info()), hint);
                return None;
            }
        };
        let at = pos(span.start.line(), span.start.col());
        if let Some(what) = outside_grammar(&event) {
            faults.add_with_hint(at, format!("{what} are not part of the catalog's grammar"), "write the value out");
            return None;
        }
        let done = match event {
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    faults.add(at, "a second document starts here, expected one catalog per file");
                    return None;
                }
                None
            }
            Event::Scalar(text, style, ..) => {
                Some(Node { at, kind: Kind::Scalar { text: text.into_owned(), style: style_of(style) } })
            }
            Event::SequenceStart(..) => {
                stack.push(Open::List { at, items: Vec::new() });
                None
            }
            Event::MappingStart(..) => {
                stack.push(Open::Map { at, entries: Vec::new(), key: None });
                None
            }
            Event::SequenceEnd | Event::MappingEnd => stack.pop().map(close),
            _ => None,
        };
        if stack.len() > DEPTH_MAX {
            faults.add(at, format!("nested more than {DEPTH_MAX} deep"));
            return None;
        }
        if let Some(node) = done
            && !place(node, &mut stack, &mut root, faults)
        {
            return None;
        }
    }
    if root.is_none() {
        faults.add(pos(1, 0), "empty file, expected a catalog that starts with 'diecast: 1'");
    }
    root
}

/// The parser counts columns from 0.
fn pos(line: usize, column_from_0: usize) -> Pos {
    let n = |x: usize| u32::try_from(x).unwrap_or(u32::MAX);
    Pos { line: n(line.max(1)), column: n(column_from_0.saturating_add(1)) }
}

fn style_of(style: ScalarStyle) -> Style {
    match style {
        ScalarStyle::Plain => Style::Plain,
        ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
        ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
    }
}

fn outside_grammar(event: &Event<'_>) -> Option<&'static str> {
    match event {
        Event::Alias(_) => Some("aliases"),
        Event::Scalar(_, _, anchor, _) | Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _)
            if *anchor != 0 =>
        {
            Some("anchors")
        }
        Event::Scalar(_, _, _, Some(_)) | Event::SequenceStart(_, Some(_)) | Event::MappingStart(_, Some(_)) => {
            Some("tags")
        }
        _ => None,
    }
}

fn close(open: Open) -> Node {
    match open {
        Open::List { at, items } => Node { at, kind: Kind::List(items) },
        Open::Map { at, entries, .. } => Node { at, kind: Kind::Map(entries) },
    }
}

/// Puts a finished node where it belongs. False when parsing can't go on.
fn place(node: Node, stack: &mut [Open], root: &mut Option<Node>, faults: &mut Faults) -> bool {
    match stack.last_mut() {
        None => *root = Some(node),
        Some(Open::List { items, .. }) => items.push(node),
        Some(Open::Map { entries, key, .. }) => match key.take() {
            Some((key, key_at)) => {
                if let Some(first) = entries.iter().find(|e| e.key == key) {
                    faults.add_with_hint(
                        key_at,
                        format!("key '{key}' is given twice, expected once"),
                        format!("the first is in line {}, column {}", first.key_at.line, first.key_at.column),
                    );
                } else {
                    entries.push(Entry { key, key_at, value: node });
                }
            }
            None => match node.kind {
                Kind::Scalar { text, .. } => *key = Some((text, node.at)),
                Kind::List(_) | Kind::Map(_) => {
                    faults.add(node.at, format!("{} as a key, expected a name", node.describe()));
                    return false;
                }
            },
        },
    }
    true
}
