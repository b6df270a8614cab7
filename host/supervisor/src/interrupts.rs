//! What does an interrupt take of a core that is at work? A machine that gets a packet is interrupted for it; a node is not, since
//! the emulator's core works on its packets.
//!
//! A thread that does nothing but read the clock on one core finds a gap for each interrupt from another.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use diecast_host_sys::{process, time};

/// Interrupts, and real time from one to the next, ns: 8 ms in all.
const INTERRUPTS: usize = 200;
const BETWEEN_NS: u64 = 40_000;
/// Clock reads by which the usual time between two is known, and how many times as long a gap is.
const READS: usize = 1_000;
const GAP_STEPS: u64 = 4;
/// More is no interrupt, but a core that stood still, ns.
const MOST_NS: u64 = 20_000;

/// CPU time of one, ns: the median. None where there is one core only, or where far fewer or more gaps than interrupts were seen.
pub fn interrupt_cost_ns() -> io::Result<Option<u64>> {
    let cpus = time::allowed_cpus();
    let [from, to, ..] = *cpus.as_slice() else { return Ok(None) };
    let (begins, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    // The first registers the process, which takes long.
    process::interrupt_own_threads()?;
    thread::scope(|s| {
        let sees = thread::Builder::new().spawn_scoped(s, || {
            let seen = time::pin_to(&[to]).map(|()| gaps(&begins, &ends));
            begins.store(true, Ordering::Release);
            seen
        })?;
        let sends = thread::Builder::new().spawn_scoped(s, || {
            let sent = time::pin_to(&[from]).and_then(|()| interrupt(&begins));
            ends.store(true, Ordering::Release);
            sent
        });
        // Nobody else would end the first.
        let sends = sends.inspect_err(|_| ends.store(true, Ordering::Release))?;
        let (Ok(gaps), Ok(sent)) = (sees.join(), sends.join()) else { return Ok(None) };
        sent?;
        Ok(typical(gaps?))
    })
}

fn interrupt(begins: &AtomicBool) -> io::Result<()> {
    while !begins.load(Ordering::Acquire) {
        std::hint::spin_loop();
    }
    for _ in 0..INTERRUPTS {
        process::interrupt_own_threads()?;
        let sent_ns = time::monotonic_ns();
        while time::monotonic_ns() < sent_ns + BETWEEN_NS {
            std::hint::spin_loop();
        }
    }
    Ok(())
}

/// For how much longer than usual each long step between two clock reads took, ns.
fn gaps(begins: &AtomicBool, ends: &AtomicBool) -> Vec<u64> {
    let mut last_ns = time::monotonic_ns();
    let mut step = || {
        let before_ns = std::mem::replace(&mut last_ns, time::monotonic_ns());
        last_ns - before_ns
    };
    let mut usual: Vec<u64> = (0..READS).map(|_| step()).collect();
    usual.sort_unstable();
    let usual_ns = usual[READS / 2].max(1);
    let mut found = Vec::with_capacity(4 * INTERRUPTS);
    begins.store(true, Ordering::Release);
    while !ends.load(Ordering::Acquire) {
        let took_ns = step();
        if took_ns > GAP_STEPS * usual_ns && took_ns < MOST_NS && found.len() < found.capacity() {
            found.push(took_ns - usual_ns);
        }
    }
    found
}

fn typical(mut gaps: Vec<u64>) -> Option<u64> {
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().filter(|_| (INTERRUPTS / 2..INTERRUPTS * 3 / 2).contains(&gaps.len()))
}

#[cfg(test)]
mod tests {
    use diecast_core_vtime::RealNs;

    use super::*;
    use crate::frame::{CpuConfig, LabFrame, NodeFrame};

    #[test]
    fn an_interrupt_takes_some_microseconds() {
        diecast_quiet::look(|| match interrupt_cost_ns().unwrap() {
            Some(ns) => assert!((100..MOST_NS).contains(&ns), "{ns} ns"),
            None => assert!(time::allowed_cpus().len() < 2, "none was seen on a machine of two cores"),
        });
    }

    /// Three frames of 10 µs at a node that is busy for long, the second while it is at the first.
    #[test]
    fn a_busy_node_is_charged_for_being_interrupted() {
        const WORK_NS: u64 = 10_000;
        let lab = LabFrame::start("10".parse().unwrap());
        let cpu = CpuConfig { metered: true, ..CpuConfig::PLAIN };
        let node = NodeFrame::create(&lab, "n", cpu, Box::new(|| Ok(Vec::new())), None).unwrap();
        node.receiver.set_interrupt(5_000);
        let began = time::monotonic_ns();
        let charged = |after_ns: u64| {
            let [at, end] = [began + after_ns, began + after_ns + WORK_NS].map(RealNs);
            let before_ns = node.receiver.received().charged_ns;
            node.receiver.charge(node.page(), 100, [at, at, end], || false);
            node.receiver.received().charged_ns - before_ns
        };
        assert_eq!(charged(0), WORK_NS, "idle");
        node.page().entries()[0].store(lab.now().0 + 1_000_000_000, Ordering::Relaxed);
        assert_eq!([1_000_000, 1_020_000, 2_000_000].map(charged), [WORK_NS + 5_000, WORK_NS, WORK_NS + 5_000]);
    }

    #[test]
    fn few_and_many_gaps_are_no_figure() {
        assert_eq!([20, 400].map(|n| typical(vec![5; n])), [None, None]);
        assert_eq!(typical([vec![5; 150], vec![9; 40]].concat()), Some(5));
    }
}
