//! Paths by cost, fixed paths, MTU.

use diecast_core_net::{Link, MTU_MAX, NetBuilder, NetError, Network, Routing};
use diecast_core_vtime::{VirtNs, VirtSpan};

use crate::common::{A, B, all, frame, one_pipe};

/// a and b with a quick way over `near` and a slow one over `far`; the slow one costs less.
fn two_ways() -> (NetBuilder, [diecast_core_net::PipeIx; 4]) {
    let mut b = NetBuilder::new(1, 77);
    let (_, va) = b.node("a");
    let (_, vb) = b.node("b");
    let (left, right) = (b.switch("left"), b.switch("right"));
    b.link(va, left, Link::default());
    b.link(right, vb, Link::default());
    let way = |delay_ns| Link { delay_ns, ..Link::default() };
    let (quick, quick_back) = b.link(left, right, way(1000));
    let (slow, slow_back) = b.link(left, right, way(9000));
    (b, [quick, quick_back, slow, slow_back])
}

#[test]
fn paths_are_short_in_delay_or_in_cost() {
    let (mut b, [quick, quick_back, slow, _]) = two_ways();
    b.set_cost(quick, 10);
    let net = Network::new(&b.clone().build().unwrap()).unwrap();
    assert_eq!(net.path(A, B)[1], quick);
    b.set_routing(Routing::Cost);
    let net = Network::new(&b.build().unwrap()).unwrap();
    assert_eq!(net.path(A, B)[1], slow);
    assert_eq!(net.path(B, A)[1], quick_back, "same cost and pipes: the first pipe");
}

#[test]
fn fixed_routes_win_and_bad_ones_are_refused() {
    let (b, [quick, _, slow, slow_back]) = two_ways();
    let (left, right) = (diecast_core_net::VertexIx(2), diecast_core_net::VertexIx(3));
    let with = |routes: &[(diecast_core_net::VertexIx, diecast_core_net::PipeIx)]| {
        let mut b = b.clone();
        routes.iter().for_each(|(at, pipe)| b.route(*at, B, *pipe));
        let spec = b.build().unwrap();
        Network::new(&spec).map(|net| (net, spec))
    };
    let (mut net, spec) = with(&[(left, slow)]).unwrap();
    assert_eq!(net.path(A, B)[1], slow);
    assert_eq!(net.path(B, A).len(), 3);
    net.ingress(VirtNs(0), A, frame(&spec, A, B, 1, 64), VirtSpan(0));
    assert_eq!(net.next_due(), Some(VirtNs(9000)));
    assert_eq!(all(&mut net)[0].due, VirtNs(9000));
    let refused = |routes: &[_]| with(routes).unwrap_err().to_string();
    assert_eq!(refused(&[(left, slow_back)]), "the route at 'left' to 'b' goes through a pipe that begins at 'right'");
    assert_eq!(refused(&[(left, slow), (left, quick)]), "two routes at 'left' to 'b'");
    assert_eq!(refused(&[(right, slow_back)]), "packets from 'a' to 'b' go in a circle at 'left'");
}

#[test]
fn a_jumbo_segment_takes_jumbo_frames_and_no_longer_ones() {
    let mut spec = one_pipe(Link { bandwidth_bps: Some(1_000_000_000), ..Link::default() });
    spec.mtu = MTU_MAX;
    let mut net = Network::new(&spec).unwrap();
    net.ingress(VirtNs(0), A, frame(&spec, A, B, 1, 9014), VirtSpan(0));
    net.ingress(VirtNs(0), A, frame(&spec, A, B, 2, 9015), VirtSpan(0));
    let out = all(&mut net);
    assert_eq!((out.len(), out[0].due), (1, VirtNs(9014 * 8)));
    assert_eq!(net.node_counters()[0].dropped_oversize, 1);
    for mtu in [0, 1279, 9001] {
        spec.mtu = mtu;
        assert_eq!(Network::new(&spec).unwrap_err(), NetError::BadMtu(mtu));
    }
}
