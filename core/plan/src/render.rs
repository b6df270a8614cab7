//! A plan as people read it.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use diecast_core_experiment::{Mode, SpeedPpm};
use diecast_core_net::{Discipline, Distribution, Framing, Link, MTU_DEFAULT, NetSpec, Routing};

use crate::model::{Plan, PlannedNode, Quota, QuotaPurpose, Role};
use crate::ratio::Ratio;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = self.scale.map_or(String::new(), |s| format!(", scale {s}"));
        let speed = if self.speed == SpeedPpm::ONE { String::new() } else { format!(", speed x {}", self.speed) };
        writeln!(
            f,
            "plan of {}: mode {}, TDF {}{scale}{speed}, seed {}",
            self.catalog, self.mode, self.tdf, self.seed
        )?;
        writeln!(f, "\nnodes\n{}", nodes(self))?;
        writeln!(f, "\nlinks (each direction, in virtual time){}\n{}", segment(&self.net), links(&self.net))?;
        writeln!(f, "\nprograms, in start order; the load starts when all are ready\n{}", programs(self))?;
        if !self.faults.is_empty() {
            writeln!(f, "\nfaults, in virtual time after the start of the load\n{}", faults(self))?;
        }
        if !self.gateway.is_empty() {
            writeln!(f, "\ngateway: outside the frame, in real time, past all links\n{}", gateway(self))?;
        }
        writeln!(f, "\ntotals\n{}", totals(self))?;
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}

fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header.iter().copied());
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if i == 0 { 2 } else { 0 }, 2));
        if right.contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn nodes(plan: &Plan) -> String {
    let header = ["node", "role", "type", "cores", "speed", "cpus", "share of a cpu", "quota", "memory", "address"];
    let mut t = table(&header, &[3, 4, 6, 8]);
    for n in &plan.nodes {
        t.add_row([
            n.name.clone(),
            match n.role {
                Role::Load => "load".to_owned(),
                Role::Server => "server".to_owned(),
            },
            n.machine_type.clone(),
            n.cores.to_string(),
            n.speed_ppm.to_string(),
            list(&n.cpus),
            share(n, plan.mode),
            n.quota.map_or("none".to_owned(), quota),
            bytes(n.memory_bytes),
            addresses(plan, n),
        ]);
    }
    let wrong = plan.nodes.iter().filter(|n| !n.clock.is_right());
    wrong.fold(t.trim_fmt(), |text, n| format!("{text}\n  clock of {}: {}", n.name, n.clock))
}

/// One for each NIC.
fn addresses(plan: &Plan, node: &PlannedNode) -> String {
    let all = node.nics.iter().filter_map(|&ix| plan.net.nodes.get(ix as usize));
    all.map(|nic| nic.ipv4.to_string()).collect::<Vec<_>>().join(", ")
}

fn faults(plan: &Plan) -> String {
    let mut t = table(&["at", "change"], &[]);
    for fault in &plan.faults {
        t.add_row([span(fault.at_ns.0), fault.text.clone()]);
    }
    t.trim_fmt()
}

fn gateway(plan: &Plan) -> String {
    plan.gateway.iter().map(|way| format!("  {way}")).collect::<Vec<_>>().join("\n")
}

/// A node without a quota is not held to its share.
fn share(node: &PlannedNode, mode: Mode) -> String {
    match mode {
        Mode::Native => "all".to_owned(),
        _ if node.cores > 1 => format!("{} x {}", node.cores, node.share),
        _ => node.share.to_string(),
    }
}

fn quota(q: Quota) -> String {
    let text = format!("{} / {}", span(q.quota_us * 1000), span(q.period_us * 1000));
    match q.purpose {
        QuotaPurpose::Ceiling => format!("{text} ceiling"),
        QuotaPurpose::Allotment => text,
    }
}

/// What is not as usual about the whole network.
fn segment(net: &NetSpec) -> String {
    let mut out = String::new();
    if net.mtu != MTU_DEFAULT {
        out += &format!(", MTU {}", net.mtu);
    }
    if net.offload {
        out += ", NICs with offload";
    }
    if net.routing == Routing::Cost {
        out += ", paths by cost";
    }
    if net.spread {
        out += ", equal paths shared";
    }
    match net.routes.len() {
        0 => {}
        n => out += &format!(", {n} fixed routes"),
    }
    out
}

/// One line for a link whose directions are alike, else one for each. What a plain pipe does not have follows its loss.
fn links(net: &NetSpec) -> String {
    let mut t = table(&["from", "to", "bandwidth", "delay", "queue", "loss", ""], &[2, 3, 4, 5]);
    // The plan's pipes come in pairs, one per direction.
    for pair in net.pipes.chunks(2) {
        let alike = pair.iter().all(|p| p.link == pair[0].link);
        for pipe in if alike { &pair[..1] } else { pair } {
            let link = &pipe.link;
            t.add_row([
                net.vertices[pipe.from.at()].name.clone(),
                net.vertices[pipe.to.at()].name.clone(),
                link.bandwidth_bps.map_or("unlimited".to_owned(), bandwidth),
                span(link.delay_ns),
                queue(link),
                percent(link.loss),
                effects(link),
            ]);
        }
    }
    t.trim_fmt()
}

fn percent(share: f64) -> String {
    format!("{} %", (share * 1e6).round() / 1e4)
}

fn queue(link: &Link) -> String {
    match (link.queue_bytes, link.queue_delay_ns) {
        (Some(limit), _) => bytes(limit),
        (None, Some(ns)) => span(ns),
        (None, None) => format!("{} packets", link.queue_packets),
    }
}

/// What a link has beyond bandwidth, delay, a queue and random loss.
fn effects(link: &Link) -> String {
    let mut out = Vec::new();
    if let Some(j) = link.jitter {
        let shape = match j.distribution {
            Distribution::Uniform => "uniform",
            Distribution::Normal => "normal",
        };
        out.push(format!("{shape} jitter {}{}", span(j.spread_ns), if j.reorder { ", reordering" } else { "" }));
    }
    out.extend(link.loss_every.map(|n| format!("1 of {n} lost by count")));
    if let Some(b) = link.loss_burst {
        out.push(format!(
            "bursts: enter {}, leave {}, lose {}",
            percent(b.enter),
            percent(b.leave),
            percent(b.loss_bad)
        ));
    }
    if link.duplicate > 0.0 {
        out.push(format!("{} twice", percent(link.duplicate)));
    }
    if link.corrupt > 0.0 {
        out.push(format!("{} corrupted", percent(link.corrupt)));
    }
    if link.discipline != Discipline::DropTail {
        out.push(link.discipline.name().to_owned());
    }
    match link.framing {
        Framing::Frame => {}
        Framing::Ip => out.push("counts IP bytes".to_owned()),
        Framing::Wire => out.push("counts wire bytes".to_owned()),
    }
    out.join("; ")
}

fn programs(plan: &Plan) -> String {
    let mut t = table(&["on", "command"], &[]);
    for (node, program) in plan.programs_in_start_order() {
        t.add_row([node.name.clone(), command(&program.argv)]);
    }
    for (node, load) in plan.nodes.iter().filter_map(|n| n.load.as_ref().map(|l| (n, l))) {
        t.add_row([format!("{} (load)", node.name), command(&load.argv)]);
    }
    t.trim_fmt()
}

/// Words as a shell would take them, where they need quotes.
fn command(argv: &[String]) -> String {
    let plain = |w: &str| !w.is_empty() && w.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c));
    let word = |w: &String| if plain(w) { w.clone() } else { format!("'{}'", w.replace('\'', r"'\''")) };
    argv.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn totals(plan: &Plan) -> String {
    let mut lines = Vec::new();
    for cpu in &plan.cpus {
        let nodes = if cpu.nodes.is_empty() { "no node".to_owned() } else { cpu.nodes.join(", ") };
        let share = match plan.mode {
            Mode::Native => String::new(),
            _ => format!("{} of {} for ", cpu.share, plan.core_limit),
        };
        lines.push(format!("  cpu {}: {share}{nodes}", cpu.cpu));
    }
    if plan.mode != Mode::Native {
        let sum = plan.cpus.iter().fold(Ratio::ZERO, |sum, c| sum.plus(c.share));
        lines.push(format!("  all cpus: {sum} of {} cores", plan.cpus.len()));
    }
    if plan.nodes.iter().any(|n| n.envelope && n.metered) {
        let cost = plan.host.hit_cost_ns.map_or(String::new(), |ns| {
            let part = ns as f64 * 100.0 / plan.grain_ns.max(1) as f64;
            format!(", which takes {} here: {part:.0} % of it, that no node is charged", span(ns))
        });
        lines.push(format!("  meter: a hit for each {} of CPU time (the grain){cost}", span(plan.grain_ns)));
    }
    lines.push(format!("  memory: {} of {}", bytes(plan.memory_bytes), bytes(plan.host.memory_bytes)));
    lines.push(format!(
        "  time: {} virtual ({} warm-up, {} measured), {} real after start-up",
        span(plan.virtual_ns.0),
        span(plan.workload.warm_up_ns.0),
        span(plan.workload.measure_ns.0),
        span(plan.expected_real_ns.0)
    ));
    lines.join("\n")
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// A number with at most three places, without trailing zeros.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The largest unit in which the value is at least 1.
fn in_unit(value: u64, units: &[(u64, &str)]) -> String {
    let (factor, name) = units.iter().find(|(factor, _)| value >= *factor).unwrap_or(&units[units.len() - 1]);
    format!("{} {name}", short(value as f64 / *factor as f64))
}

/// A span of time, for people.
fn span(ns: u64) -> String {
    in_unit(ns, &[(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")])
}

fn bandwidth(bps: u64) -> String {
    in_unit(bps, &[(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1_000, "kbit/s"), (1, "bit/s")])
}

/// A size, for people.
pub(crate) fn bytes(bytes: u64) -> String {
    in_unit(bytes, &[(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_for_people() {
        assert_eq!(
            [span(0), span(50_000), span(1_500_000), span(250_000_000_000)],
            ["0 ns", "50 us", "1.5 ms", "250 s"]
        );
        assert_eq!([bytes(256 << 20), bytes(3840 << 20), bytes(512)], ["256 MiB", "3.75 GiB", "512 B"]);
        assert_eq!([bandwidth(1_000_000_000), bandwidth(56_000)], ["1 Gbit/s", "56 kbit/s"]);
        let argv = ["a", "b c", "it's", "", "--x=1"].map(str::to_owned);
        assert_eq!(command(&argv), r"a 'b c' 'it'\''s' '' --x=1");
    }
}
