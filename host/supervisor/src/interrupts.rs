//! What does an interrupt take of a core that is at work? A machine that gets a packet is interrupted for it; a node is not, since
//! the emulator's core works on its packets.
//!
//! A thread that does nothing but read the clock on one core loses time to each interrupt from another, often in two pieces: so the
//! sum of what it loses is compared with what it loses in as much time without them.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use diecast_host_sys::{process, time};

/// Stretches with interrupts, each after one without.
const ROUNDS: usize = 15;
/// Interrupts of each, and real time from one to the next, ns: 24 ms in all. Another thread of the core takes as much as many
/// interrupts, so that stretches are short: few have one.
const INTERRUPTS: u64 = 20;
const BETWEEN_NS: u64 = 40_000;
const STRETCH_NS: u64 = INTERRUPTS * BETWEEN_NS;
/// Clock reads by which the usual time between two is known, and how many times as long a gap is.
const READS: usize = 1_000;
const GAP_STEPS: u64 = 4;
/// More is no interrupt, but a core that stood still, ns.
const MOST_NS: u64 = 100_000;

/// What it takes to see that.
pub const INTERRUPTS_NEED: &str = "it needs two cores that are not too busy";

/// How often it is looked for where nothing is seen.
const TRIES: u32 = 3;

/// CPU time of one, ns. None where there is one core only, or where what was lost is none of theirs as far as can be seen.
pub fn interrupt_cost_ns() -> io::Result<Option<u64>> {
    for _ in 0..TRIES {
        if let Some(cost_ns) = look()? {
            return Ok(Some(cost_ns));
        }
    }
    Ok(None)
}

fn look() -> io::Result<Option<u64>> {
    let cpus = time::allowed_cpus();
    let [from, to, ..] = *cpus.as_slice() else { return Ok(None) };
    let stretch = AtomicUsize::new(BEFORE);
    // The first registers the process, which takes long.
    process::interrupt_own_threads()?;
    thread::scope(|s| {
        let sees = thread::Builder::new().spawn_scoped(s, || {
            let pinned = time::pin_to(&[to]);
            let seen = losses(&stretch);
            pinned.map(|()| seen)
        })?;
        let sends = thread::Builder::new().spawn_scoped(s, || {
            let sent = time::pin_to(&[from]).and_then(|()| interrupt(&stretch));
            stretch.store(STRETCHES, Ordering::Release);
            sent
        });
        // Nobody else would end the first.
        let sends = sends.inspect_err(|_| stretch.store(STRETCHES, Ordering::Release))?;
        let (Ok(losses), Ok(sent)) = (sees.join(), sends.join()) else { return Ok(None) };
        sent?;
        Ok(typical(losses?))
    })
}

/// How many stretches there are, which as the number of one is the end: odd ones have interrupts. And before the first.
const STRETCHES: usize = 2 * ROUNDS;
const BEFORE: usize = usize::MAX;

fn interrupt(stretch: &AtomicUsize) -> io::Result<()> {
    while stretch.load(Ordering::Acquire) == BEFORE {
        std::hint::spin_loop();
    }
    for at in 0..STRETCHES {
        stretch.store(at, Ordering::Release);
        for _ in 0..INTERRUPTS {
            let began_ns = time::monotonic_ns();
            if at % 2 == 1 {
                process::interrupt_own_threads()?;
            }
            while time::monotonic_ns() < began_ns + BETWEEN_NS {
                std::hint::spin_loop();
            }
        }
    }
    Ok(())
}

/// What a stretch took, and what of it lay in gaps between two clock reads beyond the usual time, ns.
#[derive(Clone, Copy, Default)]
struct Loss {
    lost_ns: u64,
    of_ns: u64,
}

/// Of each round, without interrupts and with them.
fn losses(stretch: &AtomicUsize) -> [[Loss; 2]; ROUNDS] {
    let mut last_ns = time::monotonic_ns();
    let mut step = || {
        let before_ns = std::mem::replace(&mut last_ns, time::monotonic_ns());
        last_ns - before_ns
    };
    let mut usual: Vec<u64> = (0..READS).map(|_| step()).collect();
    usual.sort_unstable();
    let usual_ns = usual[READS / 2].max(1);
    // That took longer than a gap.
    step();
    let mut seen = [[Loss::default(); 2]; ROUNDS];
    let _ = stretch.compare_exchange(BEFORE, 0, Ordering::AcqRel, Ordering::Acquire);
    while let Some(loss) = seen.as_flattened_mut().get_mut(stretch.load(Ordering::Acquire)) {
        let took_ns = step();
        if took_ns >= MOST_NS {
            continue;
        }
        loss.of_ns += took_ns;
        if took_ns > GAP_STEPS * usual_ns {
            loss.lost_ns += took_ns - usual_ns;
        }
    }
    seen
}

/// The median of what each interrupt took, rounded down, where a stretch without them loses its median too. None where most
/// stretches were not seen, or where they agree on nothing: the middle half of them lost something to interrupts, within a factor of
/// three. Stretches are of milliseconds.
fn typical(rounds: [[Loss; 2]; ROUNDS]) -> Option<u64> {
    const PPM: u64 = 1_000_000;
    // In others the core had something else to do, and lost nothing that counts.
    let seen = |with: bool| rounds.iter().map(move |r| &r[usize::from(with)]).filter(|l| l.of_ns >= STRETCH_NS / 2);
    let quiet_ppm = most_sorted(seen(false).map(|l| l.lost_ns * PPM / l.of_ns))?;
    let quiet_ppm = quiet_ppm[quiet_ppm.len() / 2];
    let lost = |l: &Loss| l.lost_ns.saturating_sub(quiet_ppm * l.of_ns / PPM) / INTERRUPTS;
    let each = most_sorted(seen(true).map(lost))?;
    let quarter = each.len() / 4;
    let [least, typical, most] = [quarter, each.len() / 2, each.len() - 1 - quarter].map(|at| each[at]);
    (least > 0 && most <= 3 * least).then_some(typical)
}

/// The figures of stretches in order, where most stretches have one.
fn most_sorted(figures: impl Iterator<Item = u64>) -> Option<Vec<u64>> {
    let mut sorted: Vec<u64> = figures.collect();
    sorted.sort_unstable();
    (sorted.len() > ROUNDS / 2).then_some(sorted)
}

#[cfg(test)]
mod tests {
    use diecast_core_vtime::RealNs;

    use super::*;
    use crate::frame::{CpuConfig, LabFrame, NodeFrame};

    #[test]
    fn an_interrupt_takes_some_microseconds() {
        diecast_quiet::look(|| match interrupt_cost_ns().unwrap() {
            Some(ns) => assert!((100..20_000).contains(&ns), "{ns} ns"),
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

    /// Without interrupts a hundredth of the time is lost, with them 5 µs to each beside. Three rounds of fifteen may be disturbed.
    #[test]
    fn what_is_lost_without_interrupts_is_none_of_theirs() {
        let quiet = Loss { lost_ns: 8_000, of_ns: 800_000 };
        let with = Loss { lost_ns: 9_000 + INTERRUPTS * 5_000, of_ns: 900_000 };
        let disturbed = Loss { lost_ns: 500_000, ..with };
        let of = |others: usize, other: [Loss; 2]| {
            let mut rounds = [[quiet, with]; ROUNDS];
            rounds[..others].fill(other);
            typical(rounds)
        };
        assert_eq!(of(0, [quiet, with]), Some(5_000));
        assert_eq!(of(3, [quiet, disturbed]), Some(5_000));
        assert_eq!(of(7, [disturbed, with]), Some(5_000), "beside less than half of them something else ran");
        assert_eq!(of(4, [quiet, quiet]), None, "nothing was lost in a quarter");
        assert_eq!(of(4, [quiet, disturbed]), None, "five times as much in a quarter");
        assert_eq!(of(ROUNDS, [quiet, quiet]), None);
        let unseen = Loss { lost_ns: 0, of_ns: 100_000 };
        assert_eq!(of(7, [unseen, unseen]), Some(5_000), "less than half of the stretches were not seen");
        assert_eq!(of(8, [unseen, unseen]), None);
        let mixed = [[quiet, quiet], [quiet, disturbed], [disturbed, quiet], [disturbed, disturbed]];
        assert_eq!(typical(std::array::from_fn(|at| mixed[at % 4])), None, "something else ran beside half of all");
    }
}
