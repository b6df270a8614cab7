//! /proc/PID/stat, status and schedstat, and the same of threads.

use crate::{Sink, begins, lines, same, words};

/// Times of a process in /proc/PID/stat, ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidTimes {
    pub user: u64,
    pub system: u64,
    pub children_user: u64,
    pub children_system: u64,
    /// Since the boot.
    pub started: u64,
}

/// The fields after the name, which may hold spaces and brackets itself; the first of them has number 3.
fn fields(stat: &[u8]) -> Option<(usize, &[u8])> {
    let end = stat.iter().rposition(|byte| *byte == b')')? + 2;
    Some((end, stat.get(end..)?))
}

/// What the kernel says.
pub fn parse_times(stat: &[u8]) -> Option<PidTimes> {
    let mut times = PidTimes::default();
    let (mut number, mut value) = (3, 0u64);
    for byte in fields(stat)?.1 {
        if byte.is_ascii_digit() {
            value = value.wrapping_mul(10).wrapping_add((*byte - b'0') as u64);
            continue;
        }
        match number {
            14 => times.user = value,
            15 => times.system = value,
            16 => times.children_user = value,
            17 => times.children_system = value,
            22 => times.started = value,
            _ => {}
        }
        value = 0;
        if *byte == b' ' || *byte == b'\n' {
            number += 1;
        }
    }
    if number > 22 { Some(times) } else { None }
}

/// How a thread is scheduled, where the node says so and not the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedView {
    /// How many cores the node has, up to 64.
    pub cpus: u32,
    /// Those of them that the thread may run on, as bits, and the one on which it last ran.
    pub cores: u64,
    pub core: u32,
    /// A real-time policy and its priority; 0 for the policy that the kernel knows.
    pub policy: u8,
    pub priority: u8,
}

impl SchedView {
    /// A bit for each core as the kernel prints it: 32 to a group, the highest group no wider than the number of cores.
    fn mask<S: Sink>(&self, out: &mut S) {
        let digits = self.cpus.clamp(1, 64).div_ceil(4);
        for at in (0..digits).rev() {
            out.hex_digit(self.cores >> (4 * at));
            if at == 8 {
                out.push(b',');
            }
        }
    }

    /// The same as ranges: 0-2,5.
    fn list<S: Sink>(&self, out: &mut S) {
        let has = |core: u32| core < 64 && self.cores >> core & 1 == 1;
        let (mut core, mut first) = (0, true);
        while core < 64 {
            if has(core) {
                let mut last = core;
                while has(last + 1) {
                    last += 1;
                }
                if !first {
                    out.push(b',');
                }
                first = false;
                out.number(core.into());
                if last > core {
                    out.push(b'-');
                    out.number(last.into());
                }
                core = last;
            }
            core += 1;
        }
    }
}

/// /proc/PID/stat with these times and signals, and as the node schedules it where the kernel does not.
pub fn pid_stat<S: Sink>(host: &[u8], out: &mut S, times: &PidTimes, signals: &SignalView, sched: Option<&SchedView>) {
    // Sets are shown as far as they fit in 31 bits.
    let shown =
        |field: &[u8], own: u64| Some((crate::first_number(field).unwrap_or(0) & !signals.ours | own) & 0x7fff_ffff);
    let real_time = sched.filter(|view| view.policy != 0);
    let Some((end, rest)) = fields(host) else { return out.text(host) };
    out.text(host.get(..end).unwrap_or(host));
    for (number, field) in (3..).zip(words(rest)) {
        let value = match number {
            14 => Some(times.user),
            15 => Some(times.system),
            16 => Some(times.children_user),
            17 => Some(times.children_system),
            // The kernel's own scale of priorities: real-time ones lie below zero.
            18 => real_time.map(|view| {
                out.push(b'-');
                u64::from(view.priority) + 1
            }),
            22 => Some(times.started),
            32 => shown(field, signals.blocked),
            33 => shown(field, signals.ignored),
            34 => shown(field, signals.caught),
            39 => sched.map(|view| view.core.into()),
            40 => real_time.map(|view| view.priority.into()),
            41 => real_time.map(|view| view.policy.into()),
            _ => None,
        };
        match value {
            Some(value) => {
                out.number(value);
                out.push(b' ');
            }
            None => out.text(field),
        }
    }
}

/// CPU time and waiting of a thread in ns, and how often it ran; times go through `cpu` and `wait`.
pub fn schedstat<S: Sink>(host: &[u8], out: &mut S, cpu: impl Fn(u64) -> u64, wait: impl Fn(u64) -> u64) {
    for (i, field) in words(host).enumerate() {
        match (i, crate::first_number(field)) {
            (0, Some(ns)) => out.number(cpu(ns)),
            (1, Some(ns)) => out.number(wait(ns)),
            _ => {
                out.text(field);
                continue;
            }
        }
        out.push(b' ');
    }
}

/// What a program did with the frame's two signals, as bits of signal sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct SignalView {
    /// The bits that are the frame's: what the kernel says of them is not the program's doing.
    pub ours: u64,
    pub pending: u64,
    pub blocked: u64,
    pub ignored: u64,
    pub caught: u64,
}

/// What a process sees in its status besides what the kernel says.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatusView {
    pub signals: SignalView,
    /// Filters that are the frame's own.
    pub filters: u64,
    /// Where the node schedules it.
    pub sched: Option<SchedView>,
}

fn hex(text: &[u8]) -> u64 {
    let mut value = 0u64;
    for byte in text {
        if let Some(digit) = (*byte as char).to_digit(16) {
            value = value << 4 | digit as u64;
        }
    }
    value
}

/// /proc/PID/status: signal sets and seccomp filters as the program made them, and the node's cores. A node has one memory node.
pub fn status<S: Sink>(host: &[u8], out: &mut S, view: &StatusView) {
    // The mode comes before the count that decides it.
    let filters = lines(host).find(|line| begins(line, b"Seccomp_filters:")).and_then(crate::first_number);
    let filters = filters.map(|count| count.saturating_sub(view.filters));
    for line in lines(host) {
        let at = line.iter().position(|byte| *byte == b'\t').unwrap_or(line.len());
        let (key, value) = (line.get(..at).unwrap_or(line), line.get(at..).unwrap_or(&[]));
        let own = &view.signals;
        let is = |name: &[u8]| same(key, name);
        let set = match () {
            () if is(b"ShdPnd:") => Some(own.pending),
            () if is(b"SigBlk:") => Some(own.blocked),
            () if is(b"SigIgn:") => Some(own.ignored),
            () if is(b"SigCgt:") => Some(own.caught),
            () => None,
        };
        let number = match () {
            () if is(b"Seccomp:") && filters == Some(0) => filters,
            () if is(b"Seccomp_filters:") => filters,
            () => None,
        };
        match (set, number) {
            (Some(set), _) => as_told(key, out, |out| out.hex16(hex(value) & !own.ours | set)),
            (_, Some(number)) => as_told(key, out, |out| out.number(number)),
            _ => match &view.sched {
                Some(sched) if is(b"Cpus_allowed:") => as_told(key, out, |out| sched.mask(out)),
                Some(sched) if is(b"Cpus_allowed_list:") => as_told(key, out, |out| sched.list(out)),
                Some(_) if is(b"Mems_allowed:") => as_told(key, out, |out| first_of_all(value, out)),
                Some(_) if is(b"Mems_allowed_list:") => as_told(key, out, |out| out.push(b'0')),
                _ => out.text(line),
            },
        }
    }
}

fn as_told<S: Sink>(key: &[u8], out: &mut S, value: impl FnOnce(&mut S)) {
    out.text(key);
    out.push(b'\t');
    value(out);
    out.push(b'\n');
}

/// A mask as wide as this one of which only the first bit is set.
fn first_of_all<S: Sink>(value: &[u8], out: &mut S) {
    let is_digit = |byte: &u8| byte.is_ascii_hexdigit();
    let last = value.iter().rposition(is_digit);
    for (at, byte) in value.iter().enumerate().filter(|(_, byte)| is_digit(byte) || **byte == b',') {
        let digit = if Some(at) == last { b'1' } else { b'0' };
        out.push(if *byte == b',' { b',' } else { digit });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "7 (a) R (b) S 1 7 7 0 -1 4194560 10 20 0 0 111 222 333 444 20 0 1 0 555 9 1 18446744073709551615 1 2 3 4 5 0 6 7 1073741840 8\n";

    #[test]
    fn times_are_found_behind_any_name_and_replaced() {
        let times = parse_times(STAT.as_bytes()).unwrap();
        let expected = PidTimes { user: 111, system: 222, children_user: 333, children_system: 444, started: 555 };
        assert_eq!(times, expected);
        let mut same = String::new();
        let none = SignalView::default();
        pid_stat(STAT.as_bytes(), &mut same, &times, &none, None);
        assert_eq!(same, STAT);
        let mut out = String::new();
        pid_stat(STAT.as_bytes(), &mut out, &PidTimes { user: 0, started: 10_000, ..times }, &none, None);
        assert_eq!(out, STAT.replace(" 111 ", " 0 ").replace(" 555 ", " 10000 "));
        let (mut out, signals) = (String::new(), SignalView { ours: 0x4000_0010, ignored: 0x10, ..none });
        pid_stat(STAT.as_bytes(), &mut out, &times, &signals, None);
        assert_eq!(out, STAT.replace(" 0 6 7 1073741840 ", " 0 6 23 0 "));
        assert_eq!(parse_times(b"7 (a) S 1"), None);
    }

    #[test]
    fn stat_tells_the_nodes_core_and_policy() {
        let stat = "7 (a) R 1 7 7 0 -1 4194560 10 20 0 0 1 2 3 4 20 0 1 0 5 9 1 18446744073709551615 1 2 3 4 5 0 6 7 8 \
                    0 0 0 17 1 0 0 0 0 0 1 2 3 4 5 6 7 0\n";
        let shown = |sched: SchedView| {
            let mut out = String::new();
            pid_stat(
                stat.as_bytes(),
                &mut out,
                &parse_times(stat.as_bytes()).unwrap(),
                &SignalView::default(),
                Some(&sched),
            );
            out
        };
        assert_eq!(shown(SchedView { core: 3, ..SchedView::default() }), stat.replace(" 17 1 0 0 ", " 17 3 0 0 "));
        // SCHED_FIFO of priority 10, as Linux shows it: -11, 10, 1.
        let fifo = SchedView { core: 2, policy: 1, priority: 10, ..SchedView::default() };
        assert_eq!(shown(fifo), stat.replace(" 4 20 0 ", " 4 -11 0 ").replace(" 17 1 0 0 ", " 17 2 10 1 "));
    }

    #[test]
    fn status_tells_the_nodes_cores() {
        let host = "Threads:\t1\nCpus_allowed:\tffff\nCpus_allowed_list:\t0-15\nMems_allowed:\t00000000,00000003\n\
                    Mems_allowed_list:\t0-1\nvoluntary_ctxt_switches:\t1\n";
        let shown = |cpus: u32, cores: u64| {
            let sched = Some(SchedView { cpus, cores, ..SchedView::default() });
            let mut out = String::new();
            status(host.as_bytes(), &mut out, &StatusView { sched, ..StatusView::default() });
            out
        };
        let expected = |mask: &str, list: &str| {
            host.replace("ffff", mask).replace("0-15", list).replace(",00000003", ",00000001").replace("0-1\nv", "0\nv")
        };
        for (cpus, cores, mask, list) in [
            (1, 1, "1", "0"),
            (5, 0b1_0110, "16", "1-2,4"),
            (32, 0xffff_ffff, "ffffffff", "0-31"),
            (33, 0x1_0000_0001, "1,00000001", "0,32"),
            (64, u64::MAX, "ffffffff,ffffffff", "0-63"),
        ] {
            assert_eq!(shown(cpus, cores), expected(mask, list), "{cpus} cores");
        }
        let mut out = String::new();
        status(host.as_bytes(), &mut out, &StatusView::default());
        assert_eq!(out, host, "of no node");
    }

    #[test]
    fn schedstat_keeps_its_count() {
        let mut out = String::new();
        schedstat(b"1000 2000 3\n", &mut out, |ns| ns / 2, |ns| ns / 10);
        assert_eq!(out, "500 200 3\n");
    }

    #[test]
    fn status_shows_what_the_program_did() {
        let host = "Name:\tx\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000000000\n\
                    SigCgt:\t0000000040000010\nNoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let signals = SignalView { ours: 0x4000_0010, blocked: 0x10, ignored: 0x4000_0000, ..SignalView::default() };
        let mut out = String::new();
        status(host.as_bytes(), &mut out, &StatusView { signals, filters: 1, sched: None });
        let expected = host
            .replace("SigBlk:\t0000000000000002", "SigBlk:\t0000000000000012")
            .replace("SigIgn:\t0000000000000000", "SigIgn:\t0000000040000000")
            .replace("SigCgt:\t0000000040000010", "SigCgt:\t0000000000000000")
            .replace("Seccomp:\t2", "Seccomp:\t0")
            .replace("filters:\t1", "filters:\t0");
        assert_eq!(out, expected);
        let mut own = String::new();
        status(
            host.replace("filters:\t1", "filters:\t2").as_bytes(),
            &mut own,
            &StatusView { signals, filters: 1, sched: None },
        );
        assert!(own.ends_with("Seccomp:\t2\nSeccomp_filters:\t1\n"), "{own}");
    }
}
