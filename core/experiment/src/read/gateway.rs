//! Published ports and services of the host.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use super::fields::{Fields, Reader};
use super::names::Names;
use super::programs;
use crate::diagnostic::Pos;
use crate::gateway::{Gateway, Protocol, Publish, Reach};
use crate::grammar::{GATEWAY, PROTOCOLS, PUBLISH, REACH};
use crate::tree::Node;

pub(crate) fn read(r: &mut Reader, node: &Node, names: &Names) -> Gateway {
    let Some(f) = r.open(node, &GATEWAY) else { return Gateway::default() };
    let (mut publish, mut reach): (Vec<Publish>, Vec<Reach>) = (Vec::new(), Vec::new());
    let mut listening: BTreeMap<(Protocol, SocketAddr), Pos> = BTreeMap::new();
    for item in f.get("publish").map_or(&[][..], |e| r.list(&e.value, "published ports")) {
        let Some(f) = r.open(item, &PUBLISH) else { continue };
        let protocol = protocol(r, &f);
        let node = f.get("node").map(|e| one_node(r, &e.value, names)).unwrap_or_default();
        let (Some(port), Some(host)) = (port(r, &f), host(r, &f)) else { continue };
        if let Some(first) = listening.insert((protocol, host), item.at) {
            let message = format!("'{host}' is published twice, expected a place of its own for each port");
            r.faults.add_with_hint(item.at, message, place(first));
        }
        publish.push(Publish { node, protocol, port, host, at: item.at });
    }
    let mut serving: BTreeMap<(Protocol, String, u16), Pos> = BTreeMap::new();
    for item in f.get("reach").map_or(&[][..], |e| r.list(&e.value, "services of the host")) {
        let Some(f) = r.open(item, &REACH) else { continue };
        let protocol = protocol(r, &f);
        let on = f.get("on").map(|e| programs::on(r, &e.value, names)).unwrap_or_default();
        let (Some(port), Some(host)) = (port(r, &f), host(r, &f)) else { continue };
        for node in &on {
            if let Some(first) = serving.insert((protocol, node.clone(), port), item.at) {
                let message = format!("port {port} of host.diecast on node '{node}' is given twice, expected once");
                r.faults.add_with_hint(item.at, message, place(first));
            }
        }
        reach.push(Reach { on, protocol, port, host, at: item.at });
    }
    Gateway { publish, reach }
}

fn place(first: Pos) -> String {
    format!("the other is in line {}, column {}", first.line, first.column)
}

fn one_node(r: &mut Reader, node: &Node, names: &Names) -> String {
    let name = r.text(node);
    match names.nodes_of(&name) {
        Some([one]) => return one.clone(),
        Some(many) => {
            let message = format!("'{name}' is a group of {} nodes, expected one node", many.len());
            r.faults.add_with_hint(node.at, message, format!("its first node is '{}'", many[0]));
        }
        None if names.has_nodes() && !name.is_empty() => {
            r.faults.add_with_hint(node.at, format!("no node '{name}'"), names.meant(&name, false));
        }
        None => {}
    }
    name
}

fn protocol(r: &mut Reader, f: &Fields<'_>) -> Protocol {
    [Protocol::Tcp, Protocol::Udp][r.choice(f.get("protocol"), &PROTOCOLS)]
}

fn port(r: &mut Reader, f: &Fields<'_>) -> Option<u16> {
    let port = r.whole(&f.get("port")?.value, 1, u16::MAX.into())?;
    u16::try_from(port).ok()
}

fn host(r: &mut Reader, f: &Fields<'_>) -> Option<SocketAddr> {
    let entry = f.get("host")?;
    let text = r.text(&entry.value);
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => Some(address),
        _ if text.is_empty() => None,
        _ => {
            let message =
                format!("'{text}' is no place on the host, expected an IP address and a port such as '127.0.0.1:8080'");
            r.faults.add(entry.value.at, message);
            None
        }
    }
}
