//! GraphML: keys declare attributes, data elements hold their values.

use std::collections::BTreeMap;

use roxmltree::{Document, Node, ParsingOptions};

use super::{Fault, Raw, RawGraph};
use crate::diagnostic::Pos;

/// Elements, texts and comments of a file; a graph of the largest size has about a million.
const XML_NODES_MAX: u32 = 4_000_000;

/// An attribute that a file declares.
struct Key<'a> {
    name: &'a str,
    /// Value where an element has none.
    default: Option<(&'a str, Pos)>,
    /// `node`, `edge`, `graph` or `all`.
    of: &'a str,
}

pub(super) fn read(text: &str) -> Result<RawGraph, Fault> {
    // Without a DTD there are no entities to expand.
    let options = ParsingOptions { allow_dtd: false, nodes_limit: XML_NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|e| {
        let pos = e.pos();
        let at = Pos { line: pos.row.max(1), column: pos.col.max(1) };
        (at, format!("not XML: {}", lower_first(&e.to_string())), None)
    })?;
    let place = |node: Node<'_, '_>| {
        let pos = document.text_pos_at(node.range().start);
        Pos { line: pos.row, column: pos.col }
    };
    let root = document.root_element();
    if root.tag_name().name() != "graphml" {
        let found = root.tag_name().name();
        return Err((place(root), format!("the element '{found}', expected 'graphml'"), None));
    }
    let mut keys: BTreeMap<&str, Key<'_>> = BTreeMap::new();
    for key in elements(root, "key") {
        let (Some(id), Some(name)) = (key.attribute("id"), key.attribute("attr.name")) else { continue };
        let default = elements(key, "default").next().map(|d| (d.text().unwrap_or(""), place(d)));
        keys.insert(id, Key { name, default, of: key.attribute("for").unwrap_or("all") });
    }
    let mut graphs = elements(root, "graph");
    let Some(graph) = graphs.next() else {
        return Err((place(root), "no 'graph' element in the file".to_owned(), None));
    };
    if let Some(second) = graphs.next() {
        return Err((place(second), "a second graph, expected one".to_owned(), None));
    }
    let element = |node: Node<'_, '_>, own: &[&str]| -> Result<Raw, Fault> {
        let at = place(node);
        let mut attributes = BTreeMap::new();
        for name in own {
            if let Some(value) = node.attribute(*name) {
                attributes.insert((*name).to_owned(), (value.to_owned(), at));
            }
        }
        for data in elements(node, "data") {
            let id = data.attribute("key").unwrap_or("");
            let Some(key) = keys.get(id) else {
                return Err((place(data), format!("data for a key '{id}' that is not declared"), None));
            };
            // An element's own identity is no attribute, whatever the file calls one.
            if !own.contains(&key.name) {
                let text = data.text().unwrap_or("").trim().to_owned();
                attributes.entry(key.name.to_owned()).or_insert((text, place(data)));
            }
        }
        for key in keys.values().filter(|k| k.of == node.tag_name().name() || k.of == "all") {
            if let Some((text, at)) = key.default {
                attributes.entry(key.name.to_owned()).or_insert((text.trim().to_owned(), at));
            }
        }
        Ok(Raw { at, attributes })
    };
    let mut out = RawGraph { directed: graph.attribute("edgedefault") == Some("directed"), ..RawGraph::default() };
    for child in graph.children().filter(Node::is_element) {
        match child.tag_name().name() {
            "node" => {
                if let Some(inner) = elements(child, "graph").next() {
                    return Err((place(inner), "a graph within a node, which is not supported".to_owned(), None));
                }
                out.vertices.push(element(child, &["id"])?);
            }
            "edge" => {
                if let Some(own) = child.attribute("directed").filter(|d| (*d == "true") != out.directed) {
                    let message = format!("an edge with directed=\"{own}\" in a graph of the other kind");
                    return Err((place(child), format!("{message}, which is not supported"), None));
                }
                out.edges.push(element(child, &["source", "target"])?);
            }
            "hyperedge" => {
                return Err((place(child), "a hyperedge, which is not supported".to_owned(), None));
            }
            _ => {}
        }
    }
    Ok(out)
}

fn elements<'a, 'i>(parent: Node<'a, 'i>, name: &'static str) -> impl Iterator<Item = Node<'a, 'i>> {
    parent.children().filter(move |n| n.is_element() && n.tag_name().name() == name)
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_lowercase().chain(chars).collect())
}
