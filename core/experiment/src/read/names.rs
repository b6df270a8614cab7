//! The one name space of a catalog's network: groups, nodes, switches and routers.

use std::collections::BTreeMap;

use super::Places;
use crate::diagnostic::{Faults, Pos, nearest};

/// Every name that `on`, `from` and `to` can use, with the nodes that it stands for.
#[derive(Default)]
pub(crate) struct Names {
    /// Group or node to its nodes.
    nodes: BTreeMap<String, Vec<String>>,
    /// Switches and routers.
    devices: Places,
    seen: Places,
}

impl Names {
    pub(crate) fn add_group(&mut self, faults: &mut Faults, group: &str, members: &[String], at: Pos) {
        self.claim(faults, group, at);
        self.nodes.insert(group.to_owned(), members.to_vec());
        for member in members.iter().filter(|m| *m != group) {
            self.claim(faults, member, at);
            self.nodes.insert(member.clone(), vec![member.clone()]);
        }
    }

    pub(crate) fn add_device(&mut self, faults: &mut Faults, name: &str, at: Pos) {
        self.claim(faults, name, at);
        self.devices.insert(name.to_owned(), at);
    }

    /// Nodes of a group, or one node. `None` when no node or group has the name.
    pub(crate) fn nodes_of(&self, name: &str) -> Option<&[String]> {
        self.nodes.get(name).map(Vec::as_slice)
    }

    pub(crate) fn is_device(&self, name: &str) -> bool {
        self.devices.contains_key(name)
    }

    /// Whether there is any node; if not, that was reported and no reference to one can be right.
    pub(crate) fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// All switches and routers with their places.
    pub(crate) fn devices(&self) -> &Places {
        &self.devices
    }

    /// A hint for a name that is not known.
    pub(crate) fn meant(&self, wrong: &str, with_devices: bool) -> String {
        let devices = self.devices.keys().filter(|_| with_devices);
        let candidates: Vec<&str> = self.nodes.keys().chain(devices).map(String::as_str).collect();
        match nearest(wrong, candidates.iter().copied()) {
            Some(near) => format!("did you mean '{near}'?"),
            // A few are enough to see what is meant; groups sort before their members.
            None => format!("known: {}", candidates.iter().take(12).copied().collect::<Vec<_>>().join(", ")),
        }
    }

    fn claim(&mut self, faults: &mut Faults, name: &str, at: Pos) {
        if let Some(first) = self.seen.insert(name.to_owned(), at) {
            let message =
                format!("the name '{name}' is taken, expected each node, group, switch and router to have its own");
            faults.add_with_hint(at, message, format!("the other is in line {}, column {}", first.line, first.column));
        }
    }
}
