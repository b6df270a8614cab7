//! Which file it is, by the path that the kernel gives for a descriptor.

use crate::same;

/// A file whose times or cores are replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Uptime,
    Stat,
    Loadavg,
    Cpuinfo,
    /// Of a process, or of a thread where that is not 0.
    PidStat {
        pid: u32,
        tid: u32,
    },
    PidStatus {
        pid: u32,
        tid: u32,
    },
    Schedstat {
        pid: u32,
        tid: u32,
    },
}

/// The number that a component is, as /proc writes it.
fn number(component: &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for byte in component {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add((*byte - b'0') as u32)?;
    }
    if component.is_empty() { None } else { Some(value) }
}

/// A path's last component, and what is before its slash.
fn last(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = path.iter().rposition(|byte| *byte == b'/')?;
    Some((path.get(..at)?, path.get(at + 1..)?))
}

/// The kind of the file at a path below /proc; None for all that pass as they are.
pub fn kind_of(path: &[u8]) -> Option<Kind> {
    let (path, name) = last(path)?;
    let (path, above) = last(path)?;
    let is = |text: &[u8]| same(name, text);
    let Some(number_above) = number(above) else {
        return match same(above, b"proc") {
            true if is(b"uptime") => Some(Kind::Uptime),
            true if is(b"stat") => Some(Kind::Stat),
            true if is(b"loadavg") => Some(Kind::Loadavg),
            true if is(b"cpuinfo") => Some(Kind::Cpuinfo),
            _ => None,
        };
    };
    let (path, higher) = last(path)?;
    let (pid, tid) = if same(higher, b"task") { (number(last(path)?.1)?, number_above) } else { (number_above, 0) };
    if is(b"stat") {
        Some(Kind::PidStat { pid, tid })
    } else if is(b"status") {
        Some(Kind::PidStatus { pid, tid })
    } else if is(b"schedstat") {
        Some(Kind::Schedstat { pid, tid })
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_machine_of_processes_and_of_threads() {
        assert_eq!(kind_of(b"/proc/uptime"), Some(Kind::Uptime));
        assert_eq!(kind_of(b"/proc/stat"), Some(Kind::Stat));
        assert_eq!(kind_of(b"/proc/cpuinfo"), Some(Kind::Cpuinfo));
        assert_eq!(kind_of(b"/proc/12/stat"), Some(Kind::PidStat { pid: 12, tid: 0 }));
        assert_eq!(kind_of(b"/proc/12/task/13/stat"), Some(Kind::PidStat { pid: 12, tid: 13 }));
        assert_eq!(kind_of(b"/proc/12/task/13/status"), Some(Kind::PidStatus { pid: 12, tid: 13 }));
        for other in ["/proc/fs/xfs/stat", "/proc/12/fd/stat", "/proc/12/statm", "/proc/99999999999/stat", "stat", ""] {
            assert_eq!(kind_of(other.as_bytes()), None, "{other}");
        }
    }
}
