//! GML (Himsolt 1996): nested lists of keys and values.

use std::collections::BTreeMap;

use super::{Fault, Raw, RawGraph};
use crate::diagnostic::Pos;

/// Lists nested deeper than this are refused; a graph needs two, drawing attributes a few more.
const DEPTH_MAX: usize = 32;

#[derive(Debug)]
enum Token<'a> {
    Word(&'a str),
    Text(String),
    Open,
    Close,
}

struct Tokens<'a> {
    rest: &'a str,
    at: Pos,
}

impl<'a> Tokens<'a> {
    fn advance(&mut self, bytes: usize) -> &'a str {
        let (done, rest) = self.rest.split_at(bytes);
        for c in done.chars() {
            if c == '\n' {
                self.at = Pos { line: self.at.line.saturating_add(1), column: 1 };
            } else {
                self.at.column = self.at.column.saturating_add(1);
            }
        }
        self.rest = rest;
        done
    }

    /// The next token with its place; `None` at the end.
    fn next(&mut self) -> Result<Option<(Token<'a>, Pos)>, Fault> {
        loop {
            let blank = self.rest.find(|c: char| !c.is_whitespace()).unwrap_or(self.rest.len());
            self.advance(blank);
            if !self.rest.starts_with('#') {
                break;
            }
            let line = self.rest.find('\n').unwrap_or(self.rest.len());
            self.advance(line);
        }
        let at = self.at;
        let token = match self.rest.chars().next() {
            None => return Ok(None),
            Some('[') => {
                self.advance(1);
                Token::Open
            }
            Some(']') => {
                self.advance(1);
                Token::Close
            }
            Some('"') => {
                self.advance(1);
                let Some(end) = self.rest.find('"') else {
                    return Err((at, "a text without an end, expected '\"'".to_owned(), None));
                };
                let text = decoded(self.advance(end));
                self.advance(1);
                Token::Text(text)
            }
            Some(_) => {
                let end = self.rest.find(|c: char| c.is_whitespace() || "[]\"#".contains(c)).unwrap_or(self.rest.len());
                Token::Word(self.advance(end))
            }
        };
        Ok(Some((token, at)))
    }
}

/// Entities of the kind `&quot;` and `&#228;`.
fn decoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let entity = rest.find(';').map(|end| &rest[1..end]);
        let decoded = match entity {
            Some("quot") => Some('"'),
            Some("amp") => Some('&'),
            Some("lt") => Some('<'),
            Some("gt") => Some('>'),
            Some("apos") => Some('\''),
            Some(code) => code.strip_prefix('#').and_then(|n| n.parse().ok()).and_then(char::from_u32),
            None => None,
        };
        match (decoded, entity) {
            (Some(c), Some(entity)) => {
                out.push(c);
                rest = &rest[entity.len() + 2..];
            }
            _ => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// What an open list is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Graph,
    Vertex,
    Edge,
    Other,
}

pub(super) fn read(text: &str) -> Result<RawGraph, Fault> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut tokens = Tokens { rest: text, at: Pos { line: 1, column: 1 } };
    let mut graph = RawGraph::default();
    let mut open: Vec<(Place, Pos)> = Vec::new();
    let mut found = false;
    while let Some((token, at)) = tokens.next()? {
        let key = match token {
            Token::Close => {
                if open.pop().is_none() {
                    return Err((at, "']' without a '['".to_owned(), None));
                }
                continue;
            }
            Token::Word(word) if word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') => word,
            Token::Word(word) => return Err((at, format!("'{word}', expected a key"), None)),
            Token::Text(text) => return Err((at, format!("the text '{text}', expected a key"), None)),
            Token::Open => return Err((at, "'[', expected a key before it".to_owned(), None)),
        };
        let place = open.last().map(|(place, _)| *place);
        let (value, value_at) = match tokens.next()? {
            Some((Token::Open, _)) => {
                let inner = match (place, key) {
                    (None, "graph") if found => return Err((at, "a second graph, expected one".to_owned(), None)),
                    (None, "graph") => {
                        found = true;
                        Place::Graph
                    }
                    (Some(Place::Graph), "node") => Place::Vertex,
                    (Some(Place::Graph), "edge") => Place::Edge,
                    _ => Place::Other,
                };
                let raw = Raw { at, attributes: BTreeMap::new() };
                match inner {
                    Place::Vertex => graph.vertices.push(raw),
                    Place::Edge => graph.edges.push(raw),
                    _ => {}
                }
                open.push((inner, at));
                if open.len() > DEPTH_MAX {
                    return Err((at, format!("nested more than {DEPTH_MAX} deep"), None));
                }
                continue;
            }
            Some((Token::Word(word), value_at)) => (word.to_owned(), value_at),
            Some((Token::Text(text), value_at)) => (text, value_at),
            Some((Token::Close, value_at)) => {
                return Err((value_at, format!("']', expected a value of '{key}'"), None));
            }
            None => return Err((at, format!("'{key}' without a value"), None)),
        };
        let attributes = match place {
            Some(Place::Graph) => {
                if key == "directed" {
                    graph.directed = value.trim() == "1";
                }
                continue;
            }
            Some(Place::Vertex) => graph.vertices.last_mut().map(|v| &mut v.attributes),
            Some(Place::Edge) => graph.edges.last_mut().map(|e| &mut e.attributes),
            Some(Place::Other) | None => continue,
        };
        if let Some(attributes) = attributes {
            // Some files repeat a key; the first is the one that other readers take.
            attributes.entry(key.to_owned()).or_insert((value, value_at));
        }
    }
    if let Some((_, at)) = open.pop() {
        return Err((at, "a list without an end, expected ']'".to_owned(), None));
    }
    if !found {
        return Err((Pos { line: 1, column: 1 }, "no 'graph [' in the file".to_owned(), None));
    }
    Ok(graph)
}
