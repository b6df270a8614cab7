//! What the host's kernel counts in real time on behalf of the nodes, and what they get of the host: all of it follows
//! the lab's TDF.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use diecast_core_journal::FindingKind;
use diecast_core_net::{NodeSpec, Subnet};
use diecast_core_plan::{Plan, Refusal};
use diecast_core_vtime::Tdf;
use diecast_host_net::{ask_for_marks, retime_node};
use diecast_host_node::{Cgroup, Quota};
use diecast_host_supervisor::{HeldSocket, SocketTimes, Stretch};
use diecast_host_tcp::InitialRto;

use crate::recorder::Recorder;
use crate::sysctls::SysctlNotes;

/// A lab's nodes as the kernel has them.
pub struct KernelTimes {
    pub plan: Plan,
    pub cgroups: Vec<Cgroup>,
    pub netns: Vec<Arc<OwnedFd>>,
    pub initial_rto: Option<InitialRto>,
    pub journal: Recorder,
}

/// What earlier changes of the TDF have left.
#[derive(Default)]
pub struct Followed {
    sockets: SocketTimes,
    changes: u32,
}

impl KernelTimes {
    /// What the nodes would get of the host at this TDF.
    pub fn quotas(&self, tdf: Tdf) -> Result<Vec<Quota>, Refusal> {
        let quotas = self.plan.retimed(tdf)?;
        Ok(quotas.iter().map(|q| Quota { quota_us: q.quota_us, period_us: q.period_us }).collect())
    }

    /// From now on another TDF, while the nodes stand still. What the kernel refuses is a finding: the lab goes on.
    pub fn follow(&self, quotas: &[Quota], sockets: &[HeldSocket], followed: &mut Followed, stretch: Stretch) {
        followed.changes += 1;
        let mut notes = SysctlNotes::default();
        for (at, node) in self.plan.nodes.iter().enumerate() {
            let failed = |what: &str, e: &dyn std::fmt::Display| {
                let text = format!("node {}: {what} is still that of TDF {}: {e}", node.name, stretch.from);
                self.journal.finding(FindingKind::MissingFeature, Some(&node.name), 1, text);
            };
            if let Err(e) = self.cgroups[at].set_quota(Some(quotas[at])) {
                failed("the CPU quota", &e);
            }
            if let Some(Err(e)) = self.initial_rto.as_ref().map(|rto| rto.set(self.netns[at].as_fd(), stretch.to)) {
                failed("the initial RTO", &e);
            }
            match retime_node(self.netns[at].as_fd(), &self.nics(at), stretch.from, stretch.to, followed.changes) {
                Ok(rows) => notes.add(&rows, stretch.to),
                Err(e) => failed("the network stack", &e),
            }
        }
        notes.write(&self.journal);
        match followed.sockets.follow(sockets, stretch) {
            0 => {}
            n => {
                let text = format!("{n} timeouts of sockets are still those of TDF {}", stretch.from);
                self.journal.finding(FindingKind::MissingFeature, None, n, text);
            }
        }
    }

    /// A link has come to mark packets: TCP of the nodes asks for that in connections to come.
    pub fn ask_for_marks(&self, tdf: Tdf) {
        let mut notes = SysctlNotes::default();
        for (node, netns) in self.plan.nodes.iter().zip(&self.netns) {
            match ask_for_marks(netns.as_fd()) {
                Ok(row) => notes.add(&[row], tdf),
                Err(e) => {
                    let text = format!("node {}: its TCP does not ask for ECN: {e}", node.name);
                    self.journal.finding(FindingKind::MissingFeature, Some(&node.name), 1, text);
                }
            }
        }
        notes.write(&self.journal);
    }

    fn nics(&self, node: usize) -> Vec<(&NodeSpec, Subnet)> {
        let net = &self.plan.net;
        let nics = self.plan.nodes[node].nics.iter().map(|&ix| &net.nodes[ix as usize]);
        nics.map(|nic| (nic, net.subnet.of_segment(nic.segment))).collect()
    }
}
