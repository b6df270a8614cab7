//! May this process make labs? Read from its credentials, nothing is tried.

use crate::facts::{read, status_field};

/// Capabilities that labs use, by the kernel's numbers.
const CAPABILITIES: [(&str, u32); 11] = [
    ("CHOWN", 0),
    ("DAC_OVERRIDE", 1),
    ("KILL", 5),
    ("SETGID", 6),
    ("SETUID", 7),
    ("SETPCAP", 8),
    ("NET_ADMIN", 12),
    ("SYS_CHROOT", 18),
    ("SYS_PTRACE", 19),
    ("SYS_ADMIN", 21),
    ("SYS_NICE", 23),
];

/// What a process is to labs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LabPrivileges {
    /// Root with every capability that labs use.
    All,
    /// An ordinary user: labs need root.
    User(u32),
    /// Root without these capabilities.
    Lacking(Vec<&'static str>),
    /// Root, but the kernel does not tell its capabilities.
    Unknown,
}

impl LabPrivileges {
    /// Who the process is, where that is not enough for labs.
    pub fn fault(&self) -> Option<String> {
        match self {
            LabPrivileges::All | LabPrivileges::Unknown => None,
            LabPrivileges::User(uid) => Some(format!("ordinary user {uid}")),
            LabPrivileges::Lacking(names) => Some(format!("root without {}", names.join(", "))),
        }
    }
}

/// Reads this process's own.
pub fn lab_privileges() -> LabPrivileges {
    let uid = rustix::process::geteuid().as_raw();
    if uid != 0 {
        return LabPrivileges::User(uid);
    }
    let status = read("/proc/self/status").unwrap_or_default();
    match status_field(&status, "CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok()).map(lacking) {
        Some(names) if names.is_empty() => LabPrivileges::All,
        Some(names) => LabPrivileges::Lacking(names),
        None => LabPrivileges::Unknown,
    }
}

/// Names of the capabilities that a mask lacks.
fn lacking(mask: u64) -> Vec<&'static str> {
    CAPABILITIES.iter().filter(|(_, bit)| mask >> bit & 1 == 0).map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_that_a_container_lacks_are_named() {
        assert_eq!(lacking(u64::MAX), [""; 0]);
        // Docker's default set.
        assert_eq!(lacking(0xa80425fb), ["NET_ADMIN", "SYS_PTRACE", "SYS_ADMIN", "SYS_NICE"]);
        assert_eq!(LabPrivileges::Lacking(vec!["SYS_ADMIN"]).fault().as_deref(), Some("root without SYS_ADMIN"));
        assert_eq!(LabPrivileges::All.fault(), None);
    }
}
