//! /proc/uptime, /proc/stat, /proc/loadavg and /proc/cpuinfo.

use crate::{NS_PER_S, Sink, TICK_NS, begins, lines, words};

/// A node as a machine, at one instant. All times virtual.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub uptime_ns: u64,
    /// REALTIME at the boot, whole seconds.
    pub booted_s: i64,
    pub cpus: u32,
    /// CPU time that its programs have used.
    pub user_ns: u64,
    pub system_ns: u64,
    /// Averages over 1, 5 and 15 minutes in 1/2048.
    pub loads: [u64; 3],
}

impl Machine {
    fn idle_ns(&self) -> u64 {
        (self.uptime_ns.saturating_mul(self.cpus as u64)).saturating_sub(self.user_ns + self.system_ns)
    }
}

fn seconds<S: Sink>(out: &mut S, ns: u64) {
    out.number(ns / NS_PER_S);
    out.push(b'.');
    out.hundredths(ns % NS_PER_S / TICK_NS);
}

/// Seconds since the boot, and idle seconds of all cores together.
pub fn uptime<S: Sink>(out: &mut S, machine: &Machine) {
    seconds(out, machine.uptime_ns);
    out.push(b' ');
    seconds(out, machine.idle_ns());
    out.push(b'\n');
}

/// One line of CPU times in ticks: user, nice, system, idle, and six that are zero.
fn cpu<S: Sink>(out: &mut S, machine: &Machine, among: u64) {
    for (i, ns) in [machine.user_ns, 0, machine.system_ns, machine.idle_ns()].iter().enumerate() {
        if i > 0 {
            out.push(b' ');
        }
        out.number((*ns / TICK_NS).checked_div(among).unwrap_or(0));
    }
    out.text(b" 0 0 0 0 0 0\n");
}

fn is_core(line: &[u8]) -> bool {
    begins(line, b"cpu") && line.get(3).is_some_and(u8::is_ascii_digit)
}

/// /proc/stat with the instant of the boot replaced, and the cores by those of the node unless `keep_cores`. Which core
/// of several did the work is not known: each shows its part.
pub fn stat<S: Sink>(host: &[u8], out: &mut S, machine: &Machine, keep_cores: bool) {
    for line in lines(host) {
        if begins(line, b"btime ") {
            out.text(b"btime ");
            out.number(machine.booted_s.max(0) as u64);
            out.push(b'\n');
        } else if keep_cores || !begins(line, b"cpu") {
            out.text(line);
        } else if !is_core(line) {
            out.text(b"cpu  ");
            cpu(out, machine, 1);
            for core in 0..machine.cpus as u64 {
                out.text(b"cpu");
                out.number(core);
                out.push(b' ');
                cpu(out, machine, machine.cpus as u64);
            }
        }
    }
}

/// CPU time of all cores of a /proc/stat in ticks: of programs, and of the kernel.
pub fn busy_ticks(host: &[u8]) -> (u64, u64) {
    let total = lines(host).find(|line| begins(line, b"cpu ")).unwrap_or(host);
    let (mut user, mut system) = (0u64, 0u64);
    // Two spaces follow the name.
    for (i, field) in words(total).enumerate() {
        let ticks = crate::first_number(field).unwrap_or(0);
        match i {
            2 | 3 => user = user.wrapping_add(ticks),
            4 | 7 | 8 => system = system.wrapping_add(ticks),
            _ => {}
        }
    }
    (user, system)
}

/// How many cores a /proc/stat shows.
pub fn cores_of(host: &[u8]) -> u32 {
    lines(host).filter(|line| is_core(line)).count() as u32
}

/// The averages replaced; how many tasks there are and the newest number stay the kernel's.
pub fn loadavg<S: Sink>(host: &[u8], out: &mut S, machine: &Machine) {
    for load in machine.loads {
        // As the kernel rounds it.
        let load = load + 2048 / 200;
        out.number(load >> 11);
        out.push(b'.');
        out.hundredths(((load & 2047) * 100) >> 11);
        out.push(b' ');
    }
    let mut spaces = 0;
    for byte in host {
        if spaces == 3 {
            out.push(*byte);
        } else if *byte == b' ' {
            spaces += 1;
        }
    }
}

/// How many cores a /proc/cpuinfo shows.
pub fn processors_of(host: &[u8]) -> u32 {
    lines(host).filter(|line| begins(line, b"processor\t")).count() as u32
}

/// The host's first block for each of these cores, `count` of one package, with the numbers that tell cores apart.
pub fn cpuinfo<S: Sink>(host: &[u8], out: &mut S, cores: impl Iterator<Item = u32>, count: u32) {
    for core in cores {
        // A block ends with an empty line.
        for line in lines(host).take_while(|line| line.len() > 1) {
            let is = |name: &[u8]| begins(line, name) && line.get(name.len()) == Some(&b'\t');
            let value = if is(b"processor") || is(b"core id") || is(b"apicid") || is(b"initial apicid") {
                core
            } else if is(b"siblings") || is(b"cpu cores") {
                count
            } else if is(b"physical id") {
                0
            } else {
                out.text(line);
                continue;
            };
            let key = line.iter().position(|byte| *byte == b':').and_then(|at| line.get(..at)).unwrap_or(&[]);
            out.text(key);
            out.text(b": ");
            out.number(value as u64);
            out.push(b'\n');
        }
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine {
        uptime_ns: 100_039_999_999,
        booted_s: 1234,
        cpus: 2,
        user_ns: 3_000_000_000,
        system_ns: 40_000_000,
        loads: [0, 2048, 3 * 2048 + 1024],
    };

    #[test]
    fn uptime_is_rounded_down_and_idle_is_the_rest_of_all_cores() {
        let mut out = String::new();
        uptime(&mut out, &MACHINE);
        assert_eq!(out, "100.03 197.03\n");
    }

    const HOST: &[u8] = b"cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4\nintr 5 0 1\nctxt 7\nbtime 99\nprocesses 4\n";

    #[test]
    fn a_machine_has_its_own_cores_and_boot() {
        let mut out = String::new();
        stat(HOST, &mut out, &MACHINE, false);
        let zeros = "0 0 0 0 0 0";
        assert_eq!(
            out,
            format!(
                "cpu  300 0 4 19703 {zeros}\ncpu0 150 0 2 9851 {zeros}\ncpu1 150 0 2 9851 {zeros}\n\
                 intr 5 0 1\nctxt 7\nbtime 1234\nprocesses 4\n"
            )
        );
        assert_eq!((cores_of(HOST), busy_ticks(HOST)), (1, (3, 16)));
    }

    #[test]
    fn a_frame_with_the_hosts_own_cores_shows_them() {
        let mut out = String::new();
        stat(HOST, &mut out, &MACHINE, true);
        assert_eq!(out, String::from_utf8_lossy(HOST).replace("btime 99", "btime 1234"));
    }

    #[test]
    fn cpuinfo_has_a_block_a_core() {
        let host =
            b"processor\t: 0\nmodel name\t: X: Y\nsiblings\t: 2\ncore id\t\t: 9\n\nprocessor\t: 1\nmodel name\t: Z\n\n";
        let block = |i| format!("processor\t: {i}\nmodel name\t: X: Y\nsiblings\t: 2\ncore id\t\t: {i}\n\n");
        let mut out = String::new();
        cpuinfo(host, &mut out, [0, 3].into_iter(), 2);
        assert_eq!(out, block(0) + &block(3));
        assert_eq!(processors_of(host), 2);
    }

    #[test]
    fn loads_are_written_as_the_kernel_does() {
        let mut out = String::new();
        loadavg(b"9.10 9.20 9.30 2/321 4567\n", &mut out, &MACHINE);
        assert_eq!(out, "0.00 1.00 3.50 2/321 4567\n");
    }
}
