//! What a link does to packets.

use super::fields::{Fields, Reader};
use crate::diagnostic::Pos;
use crate::grammar::Section;
use crate::grammar_net::{BACK, BURST, CODEL, COST_MAX, DISCIPLINE, FQ_CODEL, JITTER, LOSS, RED};
use crate::network::{Burst, Codel, Discipline, FqCodel, Framing, Jitter, Pipe, QueueLimit, Red};
use crate::quantity::{BANDWIDTH, DURATION, PACKETS, SHARE, SIZE};
use crate::tree::{Entry, Kind};

/// Most packets in a queue.
const QUEUE_PACKETS_MAX: u64 = 1_000_000;
/// Most bytes in a queue.
const QUEUE_BYTES_MAX: u64 = 1 << 30;
/// Packets in a queue when the link names no limit: what Linux gives an Ethernet device.
const QUEUE_PACKETS_DEFAULT: u32 = 1000;
/// The same for FQ-CoDel (RFC 8290).
const FQ_QUEUE_PACKETS_DEFAULT: u32 = 10_240;

/// Both directions of a link, and its cost.
#[derive(Clone, Copy)]
pub(crate) struct Parameters {
    pub forward: Pipe,
    pub back: Pipe,
    pub cost: u32,
}

/// A pipe that does nothing to packets.
pub(crate) const PLAIN: Pipe = Pipe {
    bandwidth_bps: None,
    framing: Framing::Frame,
    delay_ns: 0,
    jitter: None,
    loss_ppm: 0,
    loss_every: None,
    loss_burst: None,
    duplicate_ppm: 0,
    corrupt_ppm: 0,
    queue: QueueLimit::Packets(QUEUE_PACKETS_DEFAULT),
    discipline: Discipline::DropTail,
};

/// Reads a mapping with a link's parameters alone.
pub(crate) fn described(r: &mut Reader, entry: Option<&Entry>, section: &Section) -> Option<Parameters> {
    let f = r.open(&entry?.value, section)?;
    Some(parameters(r, &f))
}

pub(crate) fn parameters(r: &mut Reader, f: &Fields<'_>) -> Parameters {
    let forward = pipe(r, f, &PLAIN);
    let back = match f.get("back").and_then(|e| r.open(&e.value, &BACK)) {
        Some(back) => pipe(r, &back, &forward),
        None => forward,
    };
    let cost = r.count(f.get("cost"), COST_MAX);
    Parameters { forward, back, cost }
}

/// A pipe like `base` where nothing else is said.
pub(crate) fn pipe(r: &mut Reader, f: &Fields<'_>, base: &Pipe) -> Pipe {
    let mut p = *base;
    if let Some(e) = f.get("bandwidth") {
        p.bandwidth_bps = Some(r.quantity_above_0(Some(e), &BANDWIDTH));
    }
    if let Some(e) = f.get("delay") {
        p.delay_ns = r.quantity(&e.value, &DURATION).unwrap_or(0);
    }
    if let Some(e) = f.get("framing") {
        p.framing = [Framing::Ip, Framing::Frame, Framing::Wire][r.choice(Some(e), &["ip", "frame", "wire"])];
    }
    if let Some(e) = f.get("jitter") {
        p.jitter = jitter(r, e);
    }
    if let Some(e) = f.get("loss") {
        (p.loss_ppm, p.loss_every, p.loss_burst) = loss(r, e);
    }
    if let Some(e) = f.get("duplicate") {
        p.duplicate_ppm = r.share(e, "a share", true);
    }
    if let Some(e) = f.get("corrupt") {
        p.corrupt_ppm = r.share(e, "a share", true);
    }
    if let Some(e) = f.get("discipline") {
        p.discipline = discipline(r, e);
        // A limit that nobody named is the discipline's own.
        if p.queue == default_limit(&base.discipline) {
            p.queue = default_limit(&p.discipline);
        }
    }
    if let Some(e) = f.get("queue") {
        p.queue = queue(r, e).unwrap_or(p.queue);
    }
    p
}

fn default_limit(discipline: &Discipline) -> QueueLimit {
    QueueLimit::Packets(match discipline {
        Discipline::FqCodel(_) => FQ_QUEUE_PACKETS_DEFAULT,
        _ => QUEUE_PACKETS_DEFAULT,
    })
}

fn jitter(r: &mut Reader, e: &Entry) -> Option<Jitter> {
    if !matches!(e.value.kind, Kind::Map(_)) {
        let spread_ns = r.quantity(&e.value, &DURATION)?;
        return (spread_ns > 0).then_some(Jitter { normal: false, spread_ns, reorder: false });
    }
    let f = r.open(&e.value, &JITTER)?;
    let spread_ns = r.quantity(&f.get("spread")?.value, &DURATION)?;
    let normal = r.choice(f.get("distribution"), &["uniform", "normal"]) == 1;
    let reorder = r.flag(f.get("reorder"));
    (spread_ns > 0).then_some(Jitter { normal, spread_ns, reorder })
}

/// Random loss, loss by count, loss in bursts.
fn loss(r: &mut Reader, e: &Entry) -> (u32, Option<u32>, Option<Burst>) {
    // A pipe that loses everything is a missing link.
    if !matches!(e.value.kind, Kind::Map(_)) {
        return (r.share(e, "a loss", false), None, None);
    }
    let Some(f) = r.open(&e.value, &LOSS) else { return (0, None, None) };
    let random = f.get("random").map_or(0, |e| r.share(e, "a loss", false));
    let every = f.get("every").map(|e| match r.quantity(&e.value, &PACKETS) {
        Some(n @ 2..=1_000_000_000) => n as u32,
        Some(_) => {
            r.faults.add(e.value.at, format!("{}, expected 2 packets or more, at most 10^9", e.value.describe()));
            2
        }
        None => 2,
    });
    let burst = f.get("burst").and_then(|e| r.open(&e.value, &BURST)).map(|f| {
        let mut share = |key, default| f.get(key).map_or(default, |e| r.share(e, "a share", true));
        Burst {
            enter_ppm: share("enter", 0),
            leave_ppm: share("leave", 0),
            loss_ppm: share("loss", 1_000_000),
            between_ppm: share("between", 0),
        }
    });
    (random, every, burst)
}

fn queue(r: &mut Reader, e: &Entry) -> Option<QueueLimit> {
    let (kind, limit) = r.any_quantity(&e.value, &[&PACKETS, &SIZE, &DURATION])?;
    let mut too_much = |limit: u64, max: u64, what: &str| {
        if limit > max {
            r.faults.add(e.value.at, format!("{limit} {what} in a queue, expected at most {max}"));
        }
        limit.min(max)
    };
    Some(match kind {
        0 => QueueLimit::Packets(too_much(limit, QUEUE_PACKETS_MAX, "packets") as u32),
        1 => QueueLimit::Bytes(too_much(limit, QUEUE_BYTES_MAX, "bytes")),
        _ => QueueLimit::DelayNs(limit),
    })
}

fn discipline(r: &mut Reader, e: &Entry) -> Discipline {
    const CODEL_DEFAULT: Codel = Codel { target_ns: 5_000_000, interval_ns: 100_000_000, ecn: false };
    const FQ_DEFAULT: FqCodel = FqCodel { codel: CODEL_DEFAULT, flows: 1024, quantum_bytes: 1514 };
    if let Kind::Scalar { text, .. } = &e.value.kind {
        if text == "red" {
            let message =
                "'red' needs its thresholds, expected a mapping such as {red: {min: 20 packets, max: 60 packets}}";
            r.faults.add(e.value.at, message);
            return Discipline::DropTail;
        }
        let plain = [Discipline::DropTail, Discipline::Codel(CODEL_DEFAULT), Discipline::FqCodel(FQ_DEFAULT)];
        return plain[r.choice(Some(e), &["drop-tail", "codel", "fq-codel"])];
    }
    let Some(f) = r.open(&e.value, &DISCIPLINE) else { return Discipline::DropTail };
    if let Some(f) = f.get("red").and_then(|e| r.open(&e.value, &RED)) {
        return Discipline::Red(red(r, &f));
    }
    if let Some(f) = f.get("codel").and_then(|e| r.open(&e.value, &CODEL)) {
        return Discipline::Codel(codel(r, &f, CODEL_DEFAULT));
    }
    let Some(f) = f.get("fq-codel").and_then(|e| r.open(&e.value, &FQ_CODEL)) else { return Discipline::DropTail };
    let codel = codel(r, &f, CODEL_DEFAULT);
    let flows = f.get("flows").map_or(FQ_DEFAULT.flows, |e| r.count(Some(e), 65_536));
    let quantum_bytes = f.get("quantum").map_or(FQ_DEFAULT.quantum_bytes, |e| {
        let bytes = r.quantity_above_0(Some(e), &SIZE);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    });
    Discipline::FqCodel(FqCodel { codel, flows, quantum_bytes })
}

fn codel(r: &mut Reader, f: &Fields<'_>, base: Codel) -> Codel {
    let target_ns = f.get("target").map_or(base.target_ns, |e| r.quantity_above_0(Some(e), &DURATION));
    let interval_ns = f.get("interval").map_or(base.interval_ns, |e| r.quantity_above_0(Some(e), &DURATION));
    Codel { target_ns, interval_ns, ecn: r.flag(f.get("ecn")) }
}

fn red(r: &mut Reader, f: &Fields<'_>) -> Red {
    let mut packets = |key: &str| -> (u32, Pos) {
        let Some(e) = f.get(key) else { return (1, f.at) };
        let n = r.quantity_above_0(Some(e), &PACKETS).min(QUEUE_PACKETS_MAX);
        (n as u32, e.value.at)
    };
    let (min_packets, _) = packets("min");
    let (max_packets, max_at) = packets("max");
    if max_packets <= min_packets && f.get("max").is_some() && f.get("min").is_some() {
        r.faults.add(
            max_at,
            format!("a maximum of {max_packets} packets, expected more than the minimum of {min_packets}"),
        );
    }
    let probability_ppm = f.get("probability").map_or(20_000, |e| r.share(e, "a probability", true));
    let weight_ppm = f.get("weight").map_or(2_000, |e| {
        let weight = r.quantity_above_0(Some(e), &SHARE);
        if weight > 1_000_000 {
            r.faults.add(e.value.at, format!("{}, expected a weight at most 100%", e.value.describe()));
        }
        weight.min(1_000_000) as u32
    });
    Red {
        min_packets,
        max_packets,
        probability_ppm,
        weight_ppm,
        gentle: r.flag(f.get("gentle")),
        ecn: r.flag(f.get("ecn")),
    }
}
