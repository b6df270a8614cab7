//! Small networks and frames.

use diecast_core_net::{Delivery, Link, NetBuilder, NetSpec, Network, NodeIx, PipeCounters, PipeIx};
use diecast_core_vtime::{VirtNs, VirtSpan};

pub const A: NodeIx = NodeIx(0);
pub const B: NodeIx = NodeIx(1);
/// The pipe that tests look at: from a to the switch. All others do nothing.
pub const PIPE: PipeIx = PipeIx(0);

/// SplitMix64; the seed is in every failure message.
pub struct Rng(pub u64);
impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Nodes a and b on a switch; the link's parameters are those of a's way to the switch.
pub fn one_pipe(link: Link) -> NetSpec {
    let mut b = NetBuilder::new(7, 77);
    let s = b.switch("s");
    let (_, va) = b.node("a");
    let (_, vb) = b.node("b");
    b.pipe(va, s, link);
    b.pipe(s, va, Link::default());
    b.link(vb, s, Link::default());
    b.build().unwrap()
}

/// A frame of an experimental ethertype that carries its number.
pub fn frame(spec: &NetSpec, from: NodeIx, to: NodeIx, id: u64, bytes: usize) -> Vec<u8> {
    let mut f = vec![0; bytes];
    f[..6].copy_from_slice(&spec.nodes[to.at()].mac.0);
    f[6..12].copy_from_slice(&spec.nodes[from.at()].mac.0);
    f[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    f[14..22].copy_from_slice(&id.to_be_bytes());
    f
}

/// An IPv4 UDP packet from a to b with these ECN bits and source port; its number is in the payload.
pub fn udp(spec: &NetSpec, tos: u8, port: u16, id: u64, bytes: usize) -> Vec<u8> {
    let mut f = frame(spec, A, B, 0, bytes);
    f[12..16].copy_from_slice(&[8, 0, 0x45, tos]);
    f[16..18].copy_from_slice(&((bytes - 14) as u16).to_be_bytes());
    f[18..24].copy_from_slice(&[0, 1, 0, 0, 64, 17]);
    f[26..30].copy_from_slice(&spec.nodes[0].ipv4.octets());
    f[30..34].copy_from_slice(&spec.nodes[1].ipv4.octets());
    f[34..36].copy_from_slice(&port.to_be_bytes());
    f[42..50].copy_from_slice(&id.to_be_bytes());
    f
}

pub fn id_of(f: &[u8]) -> u64 {
    let at = if f[12..14] == [8, 0] { 42 } else { 14 };
    u64::from_be_bytes(f[at..at + 8].try_into().unwrap())
}

pub fn all(net: &mut Network) -> Vec<Delivery> {
    std::iter::from_fn(|| net.pop_due(VirtNs::NEVER)).collect()
}

/// Packets of one size at fixed intervals through [`PIPE`]: (due, number) of what arrives, and the pipe's counters.
pub fn train(link: Link, packets: u64, bytes: usize, every_ns: u64) -> (Vec<(u64, u64)>, PipeCounters) {
    let spec = one_pipe(link);
    let mut net = Network::new(&spec).unwrap();
    let mut out = Vec::new();
    for id in 0..packets {
        let now = VirtNs(id * every_ns);
        net.ingress(now, A, frame(&spec, A, B, id, bytes), VirtSpan(0));
        out.extend(std::iter::from_fn(|| net.pop_due(now)).map(|d| (d.due.0, id_of(&d.frame))));
    }
    out.extend(all(&mut net).iter().map(|d| (d.due.0, id_of(&d.frame))));
    let counters = net.pipe_counters()[PIPE.at()];
    balanced(&counters);
    (out, counters)
}

/// Every packet is accounted for exactly once.
pub fn balanced(c: &PipeCounters) {
    let gone = c.dropped_queue_full + c.dropped_early + c.dropped_down;
    assert_eq!(c.packets_in, c.packets_sent + gone + u64::from(c.queue_packets), "{c:?}");
}

/// DIECAST_FUZZ=N: N times as many random cases, from seed N (`make fuzz`).
#[expect(clippy::disallowed_methods, reason = "a test takes its size from whoever runs it")]
pub fn fuzz() -> Option<u64> {
    std::env::var("DIECAST_FUZZ").ok()?.parse().ok()
}
