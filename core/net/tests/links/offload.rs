//! What a kernel leaves to its NIC: large frames become those of the wire. `host/net` holds the same against Linux's own.

use diecast_core_net::{NetBuilder, Network, OFFLOAD_HEADER_BYTES, OffloadError, SEGMENTS_MAX, Segments};
use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::common::{A, Rng, all, fuzz};

/// A frame before it is cut, with all that was drawn for it.
pub struct Large {
    pub frame: Vec<u8>,
    pub header: [u8; OFFLOAD_HEADER_BYTES],
    tcp: bool,
    ipv4: bool,
    ip: usize,
    transport: usize,
    payload: usize,
    segment: usize,
}

/// Ones' complement sum of big-endian words, the plain way.
fn sum(bytes: &[u8], mut sum: u32) -> u32 {
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// Sum of the pseudo header for so many bytes of transport.
fn pseudo(frame: &[u8], l: &Large, length: usize) -> u32 {
    let addresses = if l.ipv4 { &frame[l.ip + 12..l.ip + 20] } else { &frame[l.ip + 8..l.ip + 40] };
    sum(addresses, sum(&(length as u32).to_be_bytes(), if l.tcp { 6 } else { 17 }))
}

fn put16(frame: &mut [u8], at: usize, value: usize) {
    frame[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}

fn virtio(kind: u8, segment: usize, start: usize, offset: usize) -> [u8; OFFLOAD_HEADER_BYTES] {
    let mut header = [1, kind, 0, 0, 0, 0, 0, 0, 0, 0];
    for (at, value) in [(4, segment), (6, start), (8, offset)] {
        header[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
    }
    header
}

/// At most so many bytes of payload.
pub fn large(g: &mut Rng, most: u64) -> Large {
    let (tcp, ipv4) = (g.below(2) == 0, g.below(2) == 0);
    let tags = g.below(3) as usize;
    let mut frame: Vec<u8> = (0..12).map(|_| g.next() as u8).collect();
    for _ in 0..tags {
        frame.extend([0x81, 0, 0, g.next() as u8]);
    }
    frame.extend(if ipv4 { [8, 0] } else { [0x86, 0xdd] });
    let ip = frame.len();
    // Options of IPv4 or an extension header of IPv6; options of TCP.
    let more = [0, 8][g.below(2) as usize];
    let transport = ip + if ipv4 { 20 } else { 40 } + more;
    let options = if tcp { 4 * g.below(11) as usize } else { 0 };
    let payload = transport + if tcp { 20 + options } else { 8 };
    let range = [200, 1448, 9000][g.below(3) as usize];
    let segment = 48 + g.below(range) as usize;
    let bytes = 1 + g.below(most) as usize;
    frame.extend((0..payload - ip + bytes).map(|_| g.next() as u8));
    let (whole, length) = (frame.len() - ip, frame.len() - transport);
    if ipv4 {
        frame[ip] = 0x40 | (5 + more as u8 / 4);
        put16(&mut frame, ip + 2, whole);
        frame[ip + 9] = if tcp { 6 } else { 17 };
    } else {
        frame[ip] = 0x60;
        put16(&mut frame, ip + 4, whole - 40);
        frame[ip + 6] = if more > 0 {
            60
        } else if tcp {
            6
        } else {
            17
        };
    }
    if tcp {
        frame[transport + 12] = ((20 + options) as u8 / 4) << 4;
    } else {
        put16(&mut frame, transport + 4, length);
    }
    let ecn = 0x80 * g.below(2) as u8;
    let kind = if !tcp {
        5
    } else if ipv4 {
        1 | ecn
    } else {
        4 | ecn
    };
    let offset = if tcp { 16 } else { 6 };
    let header = virtio(kind, segment, transport, offset);
    let mut l = Large { frame, header, tcp, ipv4, ip, transport, payload, segment };
    let partial = pseudo(&l.frame, &l, length) as usize;
    put16(&mut l.frame, transport + offset, partial);
    l
}

fn cut(l: &Large, limit: usize) -> Vec<Vec<u8>> {
    let mut segments = Segments::new(&l.header, &l.frame).unwrap();
    let count = segments.count();
    let mut pieces = Vec::new();
    loop {
        let mut buffer = Vec::new();
        if !segments.next_into(&mut buffer, limit) {
            break;
        }
        pieces.push(buffer);
    }
    assert_eq!(pieces.len(), count);
    pieces
}

#[test]
fn large_frames_become_right_ones_of_their_segments() {
    let (times, seed) = fuzz().map_or((1, 5), |n| (n, n));
    println!("seed {seed}");
    let mut g = Rng(seed);
    for case in 0..150 * times {
        let most = [600, 20_000, 64_000][g.below(3) as usize];
        let l = large(&mut g, most);
        let pieces = cut(&l, usize::MAX);
        let (ip, at) = (l.ip, l.transport);
        let mut data: Vec<u8> = Vec::new();
        for (i, p) in pieces.iter().enumerate() {
            let (first, last) = (i == 0, i + 1 == pieces.len());
            let context = format!("seed {seed} case {case} piece {i} of {}", pieces.len());
            assert!(p.len() - l.payload == l.segment || last && p.len() - l.payload <= l.segment, "{context}");
            // What is not said below is as in the large one.
            let mut like = l.frame[..l.payload].to_vec();
            if l.ipv4 {
                put16(&mut like, ip + 2, p.len() - ip);
                let id = u16::from_be_bytes([l.frame[ip + 4], l.frame[ip + 5]]);
                put16(&mut like, ip + 4, usize::from(id) + i);
                like[ip + 10..ip + 12].copy_from_slice(&p[ip + 10..ip + 12]);
                assert_eq!(sum(&p[ip..at], 0), 0xffff, "{context}: header checksum");
            } else {
                put16(&mut like, ip + 4, p.len() - ip - 40);
            }
            if l.tcp {
                let was = u32::from_be_bytes(l.frame[at + 4..at + 8].try_into().unwrap());
                like[at + 4..at + 8].copy_from_slice(&was.wrapping_add(data.len() as u32).to_be_bytes());
                like[at + 13] &= if last { 0xff } else { !0x09 } & if first { 0xff } else { !0x80 };
                like[at + 16..at + 18].copy_from_slice(&p[at + 16..at + 18]);
            } else {
                put16(&mut like, at + 4, p.len() - at);
                like[at + 6..at + 8].copy_from_slice(&p[at + 6..at + 8]);
                assert_ne!(p[at + 6..at + 8], [0, 0], "{context}: zero is no checksum");
            }
            assert_eq!(p[..l.payload], like, "{context}");
            assert_eq!(sum(&p[at..], pseudo(p, &l, p.len() - at)), 0xffff, "{context}: checksum");
            data.extend(&p[l.payload..]);
        }
        assert_eq!(data, l.frame[l.payload..], "seed {seed} case {case}");
    }
}

/// A whole frame keeps every byte but its checksum; one longer than the limit is cut off, so that it is seen as too long.
#[test]
fn whole_frames_get_their_checksum_and_long_ones_are_cut_off() {
    let mut g = Rng(3);
    for _ in 0..100 {
        let mut l = large(&mut g, 9000);
        let none = [0; OFFLOAD_HEADER_BYTES];
        l.header = none;
        assert_eq!(cut(&l, usize::MAX), [l.frame.clone()]);
        assert_eq!(cut(&l, 60), [l.frame[..60].to_vec()]);
        l.header = virtio(0, 0, l.transport, if l.tcp { 16 } else { 6 });
        let got = cut(&l, usize::MAX).remove(0);
        assert_eq!(sum(&got[l.transport..], pseudo(&got, &l, got.len() - l.transport)), 0xffff);
        let field = l.transport + if l.tcp { 16 } else { 6 };
        assert_eq!((&got[..field], &got[field + 2..]), (&l.frame[..field], &l.frame[field + 2..]));
        assert_eq!(cut(&l, 60), [l.frame[..60].to_vec()]);
    }
    let l = large(&mut g, 9000);
    assert!(cut(&l, l.payload + 20).iter().all(|p| p.len() <= l.payload + 20));
}

#[test]
fn what_no_kernel_says_is_refused() {
    let mut g = Rng(8);
    let l = std::iter::repeat_with(|| large(&mut g, 9000)).find(|l| l.tcp && l.ipv4).unwrap();
    let refused = |header, frame: &[u8]| Segments::new(&header, frame).unwrap_err();
    let (at, length) = (l.transport, l.frame.len());
    assert_eq!(refused(virtio(3, 1000, at, 16), &l.frame), OffloadError::Kind(3));
    let wrong = OffloadError::Headers { kind: 1, length };
    for header in [virtio(1, 1000, at, 6), virtio(1, 1000, at + 1, 16), virtio(1, 1000, 0, 16)] {
        assert_eq!(refused(header, &l.frame), wrong);
    }
    let mut unsummed = virtio(1, 1000, at, 16);
    unsummed[0] = 0;
    assert_eq!(refused(unsummed, &l.frame), wrong);
    assert_eq!(refused(virtio(4, 1000, at, 16), &l.frame), OffloadError::Headers { kind: 4, length });
    let outside = OffloadError::Checksum { start: length, offset: 0, length };
    assert_eq!(refused(virtio(0, 0, length, 0), &l.frame), outside);
    let payload = length - l.payload;
    assert_eq!(refused(virtio(1, 0, at, 16), &l.frame), OffloadError::Segments { payload, segment: 0 });
    let mut long = l.frame.clone();
    long.resize(l.payload + SEGMENTS_MAX + 1, 0);
    let payload = SEGMENTS_MAX + 1;
    assert_eq!(refused(virtio(1, 1, at, 16), &long), OffloadError::Segments { payload, segment: 1 });
    assert_eq!(Segments::new(&virtio(1, 2, at, 16), &long).unwrap().count(), SEGMENTS_MAX / 2 + 1);
}

/// Random headers and frames, and right ones with a byte or two changed; what comes out goes through a network.
#[test]
fn no_offloaded_frame_upsets_the_network() {
    let (times, seed) = fuzz().map_or((1, 21), |n| (n, n));
    println!("seed {seed}");
    let mut g = Rng(seed);
    let mut b = NetBuilder::new(3, 77);
    let (_, va) = b.node("a");
    let (_, vb) = b.node("b");
    b.link(va, vb, diecast_core_net::Link::default());
    let spec = b.build().unwrap();
    let mut net = Network::new(&spec).unwrap();
    let (mut refused, mut sent) = (0u64, 0);
    for k in 0..5_000 * times {
        let mut l = large(&mut g, 1000);
        l.frame[..6].copy_from_slice(&spec.nodes[1].mac.0);
        l.frame[6..12].copy_from_slice(&spec.nodes[0].mac.0);
        match g.below(3) {
            0 => l.header = std::array::from_fn(|_| g.next() as u8 & [0xff, 0x87, 3][g.below(3) as usize]),
            1 => l.frame.truncate(g.below(l.frame.len() as u64 + 1) as usize),
            _ => {}
        }
        for _ in 0..g.below(3) {
            let at = g.below(80) as usize;
            if let Some(byte) = l.frame.get_mut(at) {
                *byte = g.next() as u8;
            }
        }
        let Ok(mut segments) = Segments::new(&l.header, &l.frame) else {
            refused += 1;
            continue;
        };
        loop {
            let mut buffer = net.buffer();
            if !segments.next_into(&mut buffer, 1600) {
                break;
            }
            sent += 1;
            net.ingress(VirtNs(k), A, buffer, VirtSpan(0));
        }
        all(&mut net).into_iter().for_each(|d| net.recycle(d.frame));
    }
    assert!(refused > 1000 && sent > 5_000, "{refused} refused, {sent} sent");
    assert_eq!(net.node_counters()[0].packets_sent, sent);
}
