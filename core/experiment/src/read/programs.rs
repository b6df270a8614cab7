//! Programs and commands: where they run, their words, files, environment and readiness.

use super::fields::{Fields, Reader};
use super::names::Names;
use crate::diagnostic::{Pos, meant};
use crate::grammar::{PROGRAM, READY};
use crate::model::{Command, NodeFile, Parameter, Program, Ready, ReadyCheck};
use crate::quantity::DURATION;
use crate::template::{BUILT_IN, BadKind, Template};
use crate::tree::{Entry, Kind, Node};

/// What `${name}` can stand for.
pub(crate) struct Values {
    pub parameters: Vec<Parameter>,
    pub warm_up: String,
    pub measure: String,
}

impl Values {
    fn get(&self, name: &str) -> Option<String> {
        match name {
            "warm_up" => Some(self.warm_up.clone()),
            "measure" => Some(self.measure.clone()),
            _ => self.parameters.iter().find(|p| p.name == name).map(|p| p.text.clone()),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.parameters.iter().map(|p| p.name.as_str()).chain(BUILT_IN.iter().map(|(n, _)| *n)).collect()
    }
}

pub(crate) fn list(r: &mut Reader, node: &Node, names: &Names, values: &Values) -> Vec<Program> {
    let mut out = Vec::new();
    for item in r.list(node, "programs") {
        let Some(f) = r.open(item, &PROGRAM) else { continue };
        let on = f.get("on").map(|e| on(r, &e.value, names)).unwrap_or_default();
        let command = command(r, &f, "run", values);
        let ready = f.get("ready").and_then(|e| ready(r, &e.value));
        out.push(Program { on, command, ready, at: item.at });
    }
    out
}

/// Groups and nodes as a list of nodes, each once.
pub(crate) fn on(r: &mut Reader, node: &Node, names: &Names) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for (name, at) in r.one_or_more(node, "a node group or node") {
        let Some(nodes) = names.nodes_of(&name) else {
            if !names.has_nodes() {
                break;
            }
            let message = format!("no node group or node '{name}'");
            r.faults.add_with_hint(at, message, names.meant(&name, false));
            continue;
        };
        for n in nodes {
            if out.contains(n) {
                r.faults.add(at, format!("node '{n}' is named twice, expected once"));
                break;
            }
            out.push(n.clone());
        }
    }
    out
}

pub(crate) fn command(r: &mut Reader, f: &Fields<'_>, words_key: &str, values: &Values) -> Command {
    let words = f.get(words_key);
    let cwd = f.get("cwd").map(|e| {
        let path = r.text(&e.value);
        r.check_node_path(&path, e.value.at);
        path
    });
    Command {
        argv: words.map(|e| argv(r, &e.value, values)).unwrap_or_default(),
        files: f.get("files").map(|e| files(r, &e.value)).unwrap_or_default(),
        env: f.get("env").map(|e| env(r, &e.value, values)).unwrap_or_default(),
        cwd,
        at: words.map_or(f.at, |e| e.value.at),
    }
}

fn argv(r: &mut Reader, node: &Node, values: &Values) -> Vec<Template> {
    let items = match &node.kind {
        Kind::List(items) if !items.is_empty() => items,
        _ => {
            let message = format!("{}, expected a list of words such as [redis-server, --port, 6379]", node.describe());
            r.faults.add(node.at, message);
            return Vec::new();
        }
    };
    let out: Vec<Template> = items.iter().filter_map(|item| template(r, item, values)).collect();
    if let Some(Kind::Scalar { text, .. }) = items.first().map(|n| &n.kind)
        && text.is_empty()
    {
        r.faults.add(items[0].at, "the first word is empty, expected a program");
    }
    out
}

/// A word, with its parameters put in.
fn template(r: &mut Reader, node: &Node, values: &Values) -> Option<Template> {
    let text = r.scalar(node, "a word (quote it if it is empty)")?;
    if text.contains('\0') {
        r.faults.add(node.at, "a NUL character in a word, which no program can be given");
        return None;
    }
    match Template::parse(text, |name| values.get(name)) {
        Ok(template) => Some(template),
        Err(bad) => {
            for b in bad {
                let at = node.place_in_text(b.offset_chars);
                match b.kind {
                    BadKind::Open => {
                        r.faults.add_with_hint(at, "'${' without '}', expected ${name}", "write $$ for a dollar sign");
                    }
                    BadKind::Unknown(name) => {
                        let hint = meant(&name, &values.names());
                        r.faults.add_with_hint(at, format!("no parameter '{name}' in workload.parameters"), hint);
                    }
                }
            }
            None
        }
    }
}

fn files(r: &mut Reader, node: &Node) -> Vec<NodeFile> {
    let mut out = Vec::new();
    for entry in r.map(node, "files") {
        r.check_node_path(&entry.key, entry.key_at);
        let source = r.text(&entry.value);
        if source.starts_with('/') {
            let message = format!("'{source}' is absolute, expected a path relative to the catalog");
            r.faults.add(entry.value.at, message);
        }
        out.push(NodeFile { path: entry.key.clone(), source, at: entry.value.at });
    }
    out
}

fn env(r: &mut Reader, node: &Node, values: &Values) -> Vec<(String, Template)> {
    let mut out = Vec::new();
    for entry in r.map(node, "values of variables") {
        check_variable(r, entry);
        if let Some(value) = template(r, &entry.value, values) {
            out.push((entry.key.clone(), value));
        }
    }
    out
}

fn check_variable(r: &mut Reader, entry: &Entry) {
    if entry.key.is_empty() || entry.key.contains(['=', '\0']) {
        r.faults.add(entry.key_at, format!("'{}' is no name of a variable, expected one without '='", entry.key));
    }
}

fn ready(r: &mut Reader, node: &Node) -> Option<Ready> {
    let f = r.open(node, &READY)?;
    let within_ns = r.quantity_above_0(f.get("within"), &DURATION);
    let check = if let Some(e) = f.get("tcp") {
        ReadyCheck::Tcp { port: r.whole(&e.value, 1, 65_535).and_then(|p| u16::try_from(p).ok())? }
    } else if let Some(e) = f.get("http") {
        let text = r.text(&e.value);
        http(r, &text, e.value.at)?
    } else {
        ReadyCheck::Log { text: r.text(&f.get("log")?.value) }
    };
    Some(Ready { check, within_ns })
}

/// `:8080/health`
fn http(r: &mut Reader, text: &str, at: Pos) -> Option<ReadyCheck> {
    let (port, path) = text.strip_prefix(':').and_then(|t| t.split_once('/')).unwrap_or(("", ""));
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let clean = !path.contains(|c: char| c.is_whitespace() || c.is_control());
    match port.parse::<u16>() {
        Ok(port) if digits && clean && port != 0 => Some(ReadyCheck::Http { port, path: format!("/{path}") }),
        _ => {
            r.faults.add(at, format!("'{text}' is no place on the node, expected ':port/path' such as ':8080/health'"));
            None
        }
    }
}
