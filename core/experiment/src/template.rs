//! Words of a command with `${name}` in them.
//!
//! Parameters are put in while the catalog is read; what differs from node to node (`${node}`, `${index}`)
//! stays open until [`Template::for_node`]. `$$` is a dollar sign; a `$` before anything else stands for itself.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::model::Node;

/// Names that stand for a property of the node or of the workload, not for a parameter.
pub const BUILT_IN: [(&str, &str); 4] = [
    ("node", "name of the node that runs the command"),
    ("index", "place of that node in its group, from 1"),
    ("warm_up", "the workload's warm_up, as written"),
    ("measure", "the workload's measure, as written"),
];

/// A text in which only properties of the node are still open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template(Vec<Piece>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Text(String),
    NodeName,
    NodeIndex,
}

/// A part of a text as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Token<'a> {
    Text(&'a str),
    Name { name: &'a str, offset_chars: usize },
}

/// What is wrong with a `${…}`, and how many characters into the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BadPlace {
    pub offset_chars: usize,
    pub kind: BadKind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BadKind {
    /// `${` without `}`.
    Open,
    /// A name that nothing defines.
    Unknown(String),
}

impl Template {
    /// The text for one node.
    pub fn for_node(&self, node: &Node) -> String {
        self.fill(&node.name, &node.index.to_string())
    }

    /// Replaces every `${name}` by `value(name)`; `${node}` and `${index}` stay open.
    pub(crate) fn parse(text: &str, value: impl Fn(&str) -> Option<String>) -> Result<Template, Vec<BadPlace>> {
        let (mut pieces, mut bad) = (Vec::new(), Vec::new());
        for token in tokens(text).map_err(|b| vec![b])? {
            match token {
                Token::Text(t) => push_text(&mut pieces, t),
                Token::Name { name: "node", .. } => pieces.push(Piece::NodeName),
                Token::Name { name: "index", .. } => pieces.push(Piece::NodeIndex),
                Token::Name { name, offset_chars } => match value(name) {
                    Some(v) => push_text(&mut pieces, &v),
                    None => bad.push(BadPlace { offset_chars, kind: BadKind::Unknown(name.to_owned()) }),
                },
            }
        }
        if bad.is_empty() { Ok(Template(pieces)) } else { Err(bad) }
    }

    fn fill(&self, node: &str, index: &str) -> String {
        self.0
            .iter()
            .map(|p| match p {
                Piece::Text(t) => t.as_str(),
                Piece::NodeName => node,
                Piece::NodeIndex => index,
            })
            .collect()
    }
}

impl fmt::Display for Template {
    /// With `${node}` and `${index}` as they are written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fill("${node}", "${index}"))
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn push_text(pieces: &mut Vec<Piece>, text: &str) {
    match pieces.last_mut() {
        Some(Piece::Text(t)) => t.push_str(text),
        _ => pieces.push(Piece::Text(text.to_owned())),
    }
}

fn tokens(text: &str) -> Result<Vec<Token<'_>>, BadPlace> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push(Token::Text(&rest[..dollar]));
        let after = &rest[dollar + 1..];
        // Subslices share their end with `text`, so the difference of lengths is the offset in bytes.
        let offset_chars = text[..text.len() - after.len() - 1].chars().count();
        if let Some(inner) = after.strip_prefix('{') {
            let Some(end) = inner.find('}') else {
                return Err(BadPlace { offset_chars, kind: BadKind::Open });
            };
            out.push(Token::Name { name: &inner[..end], offset_chars });
            rest = &inner[end + 1..];
        } else {
            out.push(Token::Text("$"));
            rest = after.strip_prefix('$').unwrap_or(after);
        }
    }
    out.push(Token::Text(rest));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate_is_90(name: &str) -> Option<String> {
        (name == "rate").then(|| "90/s".to_owned())
    }

    #[test]
    fn parameters_are_put_in_and_node_properties_stay_open() {
        let t = Template::parse("--r=${rate},$$x,$y,${node}/${index}", rate_is_90).unwrap();
        assert_eq!(t.to_string(), "--r=90/s,$x,$y,${node}/${index}");
        assert_eq!(t.fill("load-2", "2"), "--r=90/s,$x,$y,load-2/2");
    }

    #[test]
    fn faults_have_the_place_in_characters() {
        let bad = Template::parse("é${rat} ${rate} ${}", rate_is_90).unwrap_err();
        let at: Vec<_> = bad.iter().map(|b| (b.offset_chars, b.kind.clone())).collect();
        assert_eq!(at, [(1, BadKind::Unknown("rat".into())), (16, BadKind::Unknown(String::new()))]);
        let open = Template::parse("a ${rate", rate_is_90).unwrap_err();
        assert_eq!(open, [BadPlace { offset_chars: 2, kind: BadKind::Open }]);
    }

    #[test]
    fn a_value_is_not_searched_for_names_again() {
        let t = Template::parse("${a}", |_| Some("${node}$$".to_owned())).unwrap();
        assert_eq!(t.fill("n", "1"), "${node}$$");
    }
}
