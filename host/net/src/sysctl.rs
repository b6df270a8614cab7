//! Time constants of a node's TCP/IP stack, stretched for its TDF.
//!
//! The kernel's timers run in real time; every constant that it compares with real time is multiplied by the TDF
//! here, per namespace. Values derived from measured round trips scale by themselves and are left alone. Not set,
//! because they have no effect or no knob: `tcp_rto_max_ms` above TDF 1 (the kernel's limit is its default),
//! `tcp_plb_suspend_rto_sec` (PLB is off), TIME-WAIT and delayed-ACK limits (no knob).
//! Besides these there is one that is no time: TCP asks for ECN where a pipe of the network marks packets.
//! Some values are copied into a socket when it is made, so set them before any socket exists.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use diecast_core_vtime::Tdf;
use serde::Serialize;

use crate::clock::kernel_hz;
use crate::error::HostNetError;
use crate::netns::in_netns;

const ROOT: &str = "/proc/sys/";
const INT_MAX: u64 = i32::MAX as u64;
const CONNTRACK: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// The RTO that no backoff exceeds, ms.
const RTO_MAX_MS: u64 = 120_000;
/// Not set above TDF 1: the kernel's limit is its default.
const RTO_MAX: &str = "net/ipv4/tcp_rto_max_ms";

/// What became of one sysctl.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SysctlOutcome {
    /// Read back as wanted, up to the kernel's rounding.
    Set,
    /// The kernel's range ends before the wanted value; the end of the range is in force.
    Clamped,
    /// The kernel does not have it.
    Missing,
    /// The kernel refused, or kept another value.
    Refused(String),
}

/// One sysctl of a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SysctlRow {
    /// Name with dots, a device's dots as they are.
    pub name: String,
    /// Value that the TDF asks for.
    pub wanted: String,
    /// Value in force afterwards.
    pub got: Option<String>,
    /// What that means.
    pub outcome: SysctlOutcome,
}

/// A value and the largest that the kernel takes.
struct Want {
    path: String,
    value: Value,
}

enum Value {
    Number { wanted: u64, max: u64 },
    Word(&'static str),
}

impl Want {
    /// What the kernel is given.
    fn written(&self) -> String {
        match &self.value {
            Value::Number { wanted, max } => wanted.min(max).to_string(),
            Value::Word(word) => (*word).to_owned(),
        }
    }
}

/// Sets everything of the namespace that needs no device: TCP, ICMP, reassembly, defaults for devices.
pub fn set_namespace_sysctls(netns: BorrowedFd<'_>, tdf: Tdf) -> Result<Vec<SysctlRow>, HostNetError> {
    in_netns(netns, || set_namespace_here(tdf))
}

/// Sets what belongs to one device: neighbour timers, IGMP and MLD, no DAD, no router discovery.
pub fn set_device_sysctls(netns: BorrowedFd<'_>, device: &str, tdf: Tdf) -> Result<Vec<SysctlRow>, HostNetError> {
    in_netns(netns, || set_device_here(device, tdf))
}

/// Has TCP of the namespace ask for ECN in connections to come.
pub fn ask_for_marks(netns: BorrowedFd<'_>) -> Result<SysctlRow, HostNetError> {
    in_netns(netns, ask_for_marks_here)
}

pub(crate) fn set_namespace_here(tdf: Tdf) -> Vec<SysctlRow> {
    namespace_wants(tdf, Path::new(CONNTRACK).exists()).iter().map(set).collect()
}

/// TCP asks for ECN when it connects. The kernel's default only agrees when it is asked, so between nodes nobody would.
pub(crate) fn ask_for_marks_here() -> SysctlRow {
    set(&number("net/ipv4/tcp_ecn", 1, 1))
}

pub(crate) fn set_device_here(device: &str, tdf: Tdf) -> Vec<SysctlRow> {
    device_wants(device, tdf).iter().map(set).collect()
}

/// Moves what belongs to the namespace, and to these devices, from one TDF to another. What is not as the first TDF asks
/// for was changed by a program, and stays.
pub(crate) fn retime_here(devices: &[String], from: Tdf, to: Tdf) -> Vec<SysctlRow> {
    let conntrack = Path::new(CONNTRACK).exists();
    let all = |tdf| {
        let mut wants = namespace_wants(tdf, conntrack);
        devices.iter().for_each(|device| wants.extend(device_wants(device, tdf)));
        wants
    };
    let (before, mut after) = (all(from), all(to));
    let has_rto_max = |wants: &[Want]| wants.iter().any(|w| w.path == RTO_MAX);
    if has_rto_max(&before) && !has_rto_max(&after) {
        after.push(number(RTO_MAX, RTO_MAX_MS, RTO_MAX_MS));
    }
    let own = |want: &&Want| {
        let old = before.iter().find(|b| b.path == want.path).map(Want::written);
        let now = fs::read_to_string(format!("{ROOT}{}", want.path)).unwrap_or_default();
        old.as_ref() != Some(&want.written()) && old.is_none_or(|old| alike(now.trim(), &old))
    };
    after.iter().filter(own).map(set).collect()
}

/// Whether the kernel runs IPv6 in this namespace.
pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6/conf/all").exists()
}

/// `base * tdf`, rounded to nearest, at least 1 when `base` is. Bound: the product is below 2^96.
fn stretched(base: u64, tdf: Tdf) -> u64 {
    let (n, d) = (u128::from(tdf.num()), u128::from(tdf.den()));
    let value = (u128::from(base) * n + d / 2) / d;
    u64::try_from(value).unwrap_or(u64::MAX).max(u64::from(base > 0))
}

/// TCP's shortest retransmission timeout, real ms, rounded up. Bound: 200 * 1000 fits.
pub(crate) fn rto_min_ms(tdf: Tdf) -> u32 {
    let (n, d) = (u64::from(tdf.num()), u64::from(tdf.den()));
    u32::try_from((200 * n).div_ceil(d)).unwrap_or(u32::MAX).max(1)
}

fn number(path: &str, wanted: u64, max: u64) -> Want {
    Want { path: path.to_owned(), value: Value::Number { wanted, max } }
}

fn namespace_wants(tdf: Tdf, conntrack: bool) -> Vec<Want> {
    let time = |name: &str, base: u64, max: u64| number(&format!("net/ipv4/{name}"), stretched(base, tdf), max);
    let count = |name: &str, n: u64| number(&format!("net/ipv4/{name}"), n, u64::from(u8::MAX));
    let t_ms = stretched(1000, tdf);
    let mut wants = vec![
        Want { path: "net/ipv4/tcp_congestion_control".to_owned(), value: Value::Word("reno") },
        // The resulting RTO is capped at 120 s.
        time("tcp_rto_min_us", 200_000, 120_000_000),
        number("net/ipv4/tcp_syn_retries", syn_retries(t_ms), 127),
        count("tcp_synack_retries", synack_retries(t_ms)),
        count("tcp_retries1", retries1(t_ms)),
        count("tcp_retries2", retries2(t_ms)),
        time("tcp_keepalive_time", 7200, INT_MAX),
        time("tcp_keepalive_intvl", 75, INT_MAX),
        time("tcp_fin_timeout", 60, INT_MAX),
        time("tcp_tw_reuse_delay", 1000, 60_000),
        time("tcp_comp_sack_delay_ns", 1_000_000, INT_MAX),
        time("tcp_comp_sack_slack_ns", 100_000, INT_MAX),
        time("tcp_min_rtt_wlen", 300, 86_400),
        time("tcp_invalid_ratelimit", 500, INT_MAX),
        time("tcp_probe_interval", 600, INT_MAX),
        number("net/ipv4/tcp_tso_rtt_log", tso_rtt_log(tdf), 31),
        number("net/ipv4/tcp_no_metrics_save", 1, 1),
        number("net/ipv4/tcp_fastopen_blackhole_timeout_sec", 0, INT_MAX),
        time("icmp_ratelimit", 1000, INT_MAX),
        number("net/ipv4/icmp_msgs_per_sec", shrunk(1000, tdf), INT_MAX),
        time("ipfrag_time", 30, INT_MAX),
        time("route/mtu_expires", 600, INT_MAX),
    ];
    if tdf.num() < tdf.den() {
        wants.push(number(RTO_MAX, stretched(RTO_MAX_MS, tdf), RTO_MAX_MS));
    }
    if has_ipv6() {
        wants.push(number("net/ipv6/ip6frag_time", stretched(60, tdf), INT_MAX));
        wants.extend(quiet_ipv6("default"));
    }
    if conntrack {
        // Kept in jiffies in 31 bits.
        let max_s = INT_MAX / u64::from(kernel_hz());
        wants.extend(
            CONNTRACK_S.iter().map(|(name, base)| {
                number(&format!("net/netfilter/nf_conntrack_{name}"), stretched(*base, tdf), max_s)
            }),
        );
    }
    wants
}

/// Conntrack timeouts, seconds.
const CONNTRACK_S: [(&str, u64); 16] = [
    ("tcp_timeout_syn_sent", 120),
    ("tcp_timeout_syn_recv", 60),
    ("tcp_timeout_established", 432_000),
    ("tcp_timeout_fin_wait", 120),
    ("tcp_timeout_close_wait", 60),
    ("tcp_timeout_last_ack", 30),
    ("tcp_timeout_time_wait", 120),
    ("tcp_timeout_close", 10),
    ("tcp_timeout_max_retrans", 300),
    ("tcp_timeout_unacknowledged", 300),
    ("udp_timeout", 30),
    ("udp_timeout_stream", 120),
    ("icmp_timeout", 30),
    ("icmpv6_timeout", 30),
    ("generic_timeout", 600),
    ("frag6_timeout", 60),
];

/// No duplicate address detection, no router discovery, link-local addresses from the MAC (the emulator knows those).
fn quiet_ipv6(device: &str) -> Vec<Want> {
    [("dad_transmits", 0), ("accept_dad", 0), ("accept_ra", 0), ("router_solicitations", 0), ("addr_gen_mode", 0)]
        .map(|(name, value)| number(&format!("net/ipv6/conf/{device}/{name}"), value, value))
        .into()
}

fn device_wants(device: &str, tdf: Tdf) -> Vec<Want> {
    let mut wants = Vec::new();
    let families: &[&str] = if has_ipv6() { &["ipv4", "ipv6"] } else { &["ipv4"] };
    for family in families {
        // The last three are in hundredths of a second.
        for (name, base) in [
            ("base_reachable_time_ms", 30_000),
            ("retrans_time_ms", 1000),
            ("delay_first_probe_time", 5),
            ("gc_stale_time", 60),
            ("interval_probe_time_ms", 5000),
            ("anycast_delay", 100),
            ("locktime", if *family == "ipv4" { 100 } else { 0 }),
            ("proxy_delay", 80),
        ] {
            wants.push(number(&format!("net/{family}/neigh/{device}/{name}"), stretched(base, tdf), INT_MAX));
        }
    }
    for (name, base) in [("igmpv2_unsolicited_report_interval", 10_000), ("igmpv3_unsolicited_report_interval", 1000)] {
        wants.push(number(&format!("net/ipv4/conf/{device}/{name}"), stretched(base, tdf), INT_MAX));
    }
    if has_ipv6() {
        for (name, base) in [("mldv1_unsolicited_report_interval", 10_000), ("mldv2_unsolicited_report_interval", 1000)]
        {
            wants.push(number(&format!("net/ipv6/conf/{device}/{name}"), stretched(base, tdf), INT_MAX));
        }
        wants.extend(quiet_ipv6(device));
    }
    wants
}

/// `base / tdf`, rounded to nearest, at least 1. Bound: the product is below 2^96.
fn shrunk(base: u64, tdf: Tdf) -> u64 {
    let (n, d) = (u128::from(tdf.num()), u128::from(tdf.den()));
    u64::try_from((u128::from(base) * d + n / 2) / n).unwrap_or(u64::MAX).max(1)
}

/// The n whose `total` is nearest to `wanted`; `total` rises with n.
fn nearest(wanted: u64, total: impl Fn(u64) -> u64) -> u64 {
    let above = (0..=u64::from(u8::MAX)).find(|n| total(*n) >= wanted).unwrap_or(u64::from(u8::MAX));
    match above.checked_sub(1) {
        Some(below) if wanted - total(below) < total(above).saturating_sub(wanted) => below,
        _ => above,
    }
}

/// Sum of `first_ms * 2^k` for k = 0..=n, each at most 120 s.
fn backoff_ms(first_ms: u64, n: u64) -> u64 {
    (0..=n).map(|k| first_ms.saturating_mul(1u64.checked_shl(k as u32).unwrap_or(u64::MAX)).min(RTO_MAX_MS)).sum()
}

/// Retries that keep a connect's total time: original 131 s = four linear second, then 1, 2, 4 ... 64 s.
/// `t_ms` is one virtual second in real milliseconds.
fn syn_retries(t_ms: u64) -> u64 {
    let first = t_ms.min(RTO_MAX_MS);
    nearest(131 * t_ms, |n| 4 * first + backoff_ms(first, n)).max(1)
}

/// The same for the passive side: 63 s, without linear ones.
fn synack_retries(t_ms: u64) -> u64 {
    nearest(63 * t_ms, |n| backoff_ms(t_ms.min(RTO_MAX_MS), n)).max(1)
}

/// The kernel turns R1 and R2 into a time as if the RTO began at 200 ms: the n whose time is nearest to 924.6 s
/// of virtual time.
fn retries2(t_ms: u64) -> u64 {
    nearest(924_600 * t_ms / 1000, |n| backoff_ms(200, n))
}

/// The largest n whose time is at most 3 s of virtual time.
fn retries1(t_ms: u64) -> u64 {
    (0..=u64::from(u8::MAX)).take_while(|n| backoff_ms(200, *n) <= 3 * t_ms).last().unwrap_or(0).max(1)
}

/// 9 + log2(tdf), rounded: the exponent of the RTT (in us) for which a TSO burst halves.
fn tso_rtt_log(tdf: Tdf) -> u64 {
    (9.0 + tdf.as_f64().log2()).round() as u64
}

fn set(want: &Want) -> SysctlRow {
    let path = format!("{ROOT}{}", want.path);
    let written = want.written();
    let (wanted, clamped) = match &want.value {
        Value::Number { wanted, max } => (wanted.to_string(), wanted > max),
        Value::Word(word) => ((*word).to_owned(), false),
    };
    let written_to = fs::write(&path, &written);
    let got = fs::read_to_string(&path).ok().map(|s| s.trim().to_owned());
    let outcome = match (written_to, &got) {
        (Err(e), None) if e.kind() == io::ErrorKind::NotFound => SysctlOutcome::Missing,
        (Err(e), _) => SysctlOutcome::Refused(e.to_string()),
        (Ok(()), Some(value)) if !alike(value, &written) => {
            SysctlOutcome::Refused("another value is in force".to_owned())
        }
        (Ok(()), _) if clamped => SysctlOutcome::Clamped,
        (Ok(()), _) => SysctlOutcome::Set,
    };
    SysctlRow { name: want.path.replace('/', "."), wanted, got, outcome }
}

/// Equal, or numbers that differ by what rounding to a jiffy does (at most 1 %, or 10 of a fine unit).
fn alike(got: &str, wanted: &str) -> bool {
    match (got.parse::<u64>(), wanted.parse::<u64>()) {
        (Ok(g), Ok(w)) => g == w || (w >= 100 && g.abs_diff(w) <= (w / 100).max(10)),
        _ => got == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t_ms(text: &str) -> u64 {
        stretched(1000, text.parse().unwrap())
    }

    #[test]
    fn retry_counts_of_the_reference_table() {
        for (t, syn, r1, r2) in [("1", 6, 3, 15), ("10", 12, 6, 84), ("100", 105, 9, 255)] {
            assert_eq!((syn_retries(t_ms(t)), retries1(t_ms(t)), retries2(t_ms(t))), (syn, r1, r2), "TDF {t}");
        }
        for (t, r2) in [("2", 23), ("5", 46), ("20", 161), ("30", 238)] {
            assert_eq!(retries2(t_ms(t)), r2, "TDF {t}");
        }
        assert_eq!((synack_retries(t_ms("1")), synack_retries(t_ms("10"))), (5, 7));
        // A tenth: 92.46 s lies between 51 s (n = 7) and 102.2 s (n = 8).
        assert_eq!(retries2(t_ms("0.1")), 8);
    }

    #[test]
    fn values_at_tdf_1_are_linux_defaults_and_scale_with_it() {
        assert_eq!(stretched(200_000, Tdf::ONE), 200_000);
        assert_eq!(stretched(5, "0.5".parse().unwrap()), 3);
        assert_eq!(stretched(1, "0.01".parse().unwrap()), 1);
        assert_eq!(shrunk(1000, "10".parse().unwrap()), 100);
        assert_eq!(
            [tso_rtt_log(Tdf::ONE), tso_rtt_log("10".parse().unwrap()), tso_rtt_log("100".parse().unwrap())],
            [9, 12, 16]
        );
    }

    #[test]
    fn rounding_to_a_jiffy_is_alike_other_values_are_not() {
        assert!(alike("1004", "1000") && alike("reno", "reno") && alike("7", "7"));
        assert!(!alike("1020", "1000") && !alike("cubic", "reno") && !alike("7", "8"));
    }
}
