//! What became of the sysctls that stretch the kernel's time constants: what differs from the wish goes into the
//! journal once, for all nodes together.

use std::collections::BTreeMap;

use diecast_core_journal::FindingKind;
use diecast_core_vtime::Tdf;
use diecast_host_net::{SysctlOutcome, SysctlRow};

use crate::recorder::Recorder;

/// Sysctls that are not as the TDF asks for, by what is wrong and in how many nodes.
#[derive(Default)]
pub struct SysctlNotes {
    notes: BTreeMap<(FindingKind, String), u64>,
}

impl SysctlNotes {
    /// Takes the rows of one node.
    pub fn add(&mut self, rows: &[SysctlRow], tdf: Tdf) {
        for note in rows.iter().filter_map(|row| note(row, tdf)) {
            *self.notes.entry(note).or_default() += 1;
        }
    }

    /// Writes a finding for each.
    pub fn write(self, journal: &Recorder) {
        for ((kind, text), nodes) in self.notes {
            journal.finding(kind, None, nodes, format!("{text} (in {nodes} nodes)"));
        }
    }
}

/// What a reader must know of one sysctl; nothing when it is as wanted.
fn note(row: &SysctlRow, tdf: Tdf) -> Option<(FindingKind, String)> {
    let (name, wanted) = (&row.name, &row.wanted);
    let got = row.got.as_deref().unwrap_or("unknown");
    match &row.outcome {
        SysctlOutcome::Set => None,
        // At TDF 1 a kernel's fixed constant is the machine's own.
        SysctlOutcome::Missing if tdf == Tdf::ONE => None,
        SysctlOutcome::Missing => {
            Some((FindingKind::MissingFeature, format!("this kernel has no {name}: its time is not stretched")))
        }
        SysctlOutcome::Clamped => Some((
            FindingKind::ClampedSysctl,
            format!("{name} is {got}, TDF {tdf} asks for {wanted}: the kernel's range ends there"),
        )),
        SysctlOutcome::Refused(why) => {
            Some((FindingKind::Warning, format!("{name} is {got}, TDF {tdf} asks for {wanted}: {why}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, outcome: SysctlOutcome) -> SysctlRow {
        SysctlRow { name: name.into(), wanted: "200000000".into(), got: Some("120000000".into()), outcome }
    }

    #[test]
    fn what_differs_is_noted_once_for_all_nodes() {
        let tdf: Tdf = "1000".parse().unwrap();
        let mut notes = SysctlNotes::default();
        let rows = [
            row("net.ipv4.tcp_rto_min_us", SysctlOutcome::Clamped),
            row("net.ipv4.tcp_keepalive_time", SysctlOutcome::Set),
        ];
        notes.add(&rows, tdf);
        notes.add(&rows, tdf);
        let text = "net.ipv4.tcp_rto_min_us is 120000000, TDF 1000 asks for 200000000: the kernel's range ends there";
        assert_eq!(notes.notes, BTreeMap::from([((FindingKind::ClampedSysctl, text.to_owned()), 2)]));
    }

    #[test]
    fn a_constant_that_the_kernel_lacks_is_right_at_tdf_1_only() {
        let missing = row("net.ipv4.tcp_rto_min_us", SysctlOutcome::Missing);
        assert_eq!(note(&missing, Tdf::ONE), None);
        assert_eq!(note(&missing, "2".parse().unwrap()).map(|n| n.0), Some(FindingKind::MissingFeature));
    }
}
