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

/// CPU time of one, ns: the median. None where there is one core only, or where fewer than half were seen.
pub fn interrupt_cost_ns() -> io::Result<Option<u64>> {
    let cpus = time::allowed_cpus();
    let [from, to, ..] = *cpus.as_slice() else { return Ok(None) };
    let (begins, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|s| {
        let sees = s.spawn(|| {
            let seen = time::pin_to(&[to]).map(|()| gaps(&begins, &ends));
            begins.store(true, Ordering::Release);
            seen
        });
        let sends = s.spawn(|| {
            let sent = time::pin_to(&[from]).and_then(|()| interrupt(&begins));
            ends.store(true, Ordering::Release);
            sent
        });
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
    gaps.get(gaps.len() / 2).copied().filter(|_| gaps.len() >= INTERRUPTS / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_takes_some_microseconds() {
        diecast_quiet::look(|| match interrupt_cost_ns().unwrap() {
            Some(ns) => assert!((100..MOST_NS).contains(&ns), "{ns} ns"),
            None => assert!(time::allowed_cpus().len() < 2, "none was seen on a machine of two cores"),
        });
    }

    #[test]
    fn few_gaps_are_no_figure() {
        assert_eq!((typical(vec![5; 20]), typical([vec![5; 150], vec![9; 40]].concat())), (None, Some(5)));
    }
}
