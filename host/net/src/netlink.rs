//! The few routing netlink requests that a node's NIC needs, synchronous, in the caller's namespace.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Bit of a metric that the kernel must not learn anew, and the one for TCP's shortest retransmission timeout.
const LOCK_RTO_MIN: u32 = 1 << 13;

/// A socket for requests in the namespace in which it was opened.
pub(crate) struct RouteSocket {
    socket: Socket,
    sequence: u32,
}

impl RouteSocket {
    /// Opens it in the calling thread's namespace.
    pub(crate) fn open() -> io::Result<RouteSocket> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(RouteSocket { socket, sequence: 0 })
    }

    /// Sends one request and waits for the kernel's verdict.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let (reply, _) = self.socket.recv_from_full()?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&reply)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            if let NetlinkPayload::Error(verdict) = answer.payload {
                return if verdict.code.is_none() { Ok(()) } else { Err(verdict.to_io()) };
            }
        }
    }

    /// Sets MAC, MTU and transmit queue length. `whole` has TCP send packets of one segment: where the kernel cuts larger
    /// ones it does so behind the program at egress.
    pub(crate) fn set_link(
        &mut self,
        index: u32,
        mac: [u8; 6],
        mtu: u32,
        queue_packets: u32,
        whole: bool,
    ) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes = vec![
            LinkAttribute::Address(mac.to_vec()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::TxQueueLen(queue_packets),
        ];
        link.attributes.extend(whole.then_some(LinkAttribute::GsoMaxSegs(1)));
        self.request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Switches an interface on.
    pub(crate) fn link_up(&mut self, index: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Adds an address without duplicate address detection.
    pub(crate) fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.prefix_len = prefix;
        message.header.index = index;
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes = vec![
            AddressAttribute::Local(address),
            AddressAttribute::Address(address),
            AddressAttribute::Flags(AddressFlags::Nodad),
        ];
        if let IpAddr::V4(v4) = address {
            let host_bits = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
            message.attributes.push(AddressAttribute::Broadcast((u32::from(v4) | host_bits).into()));
        }
        self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sends what has no better way to these addresses through the interface, from this one.
    pub(crate) fn add_route(&mut self, index: u32, source: IpAddr, to: (IpAddr, u8)) -> io::Result<()> {
        self.add_route_with(index, source, to, Vec::new())
    }

    /// Gives connections through the interface to this subnet a shortest retransmission timeout, open ones too: a
    /// route's comes before the socket's. Of routes to one subnet that of the lowest priority counts.
    pub(crate) fn add_rto_min(
        &mut self,
        index: u32,
        address: IpAddr,
        subnet: (IpAddr, u8),
        priority: u32,
        ms: u32,
    ) -> io::Result<()> {
        let metrics = RouteAttribute::Metrics(vec![RouteMetric::Lock(LOCK_RTO_MIN), RouteMetric::RtoMin(ms)]);
        self.add_route_with(index, address, subnet, vec![RouteAttribute::Priority(priority), metrics])
    }

    fn add_route_with(
        &mut self,
        index: u32,
        source: IpAddr,
        (to, prefix): (IpAddr, u8),
        more: Vec<RouteAttribute>,
    ) -> io::Result<()> {
        let mut route = RouteMessage::default();
        route.header.destination_prefix_length = prefix;
        route.header.table = RouteHeader::RT_TABLE_MAIN;
        route.header.protocol = RouteProtocol::Static;
        route.header.kind = RouteType::Unicast;
        route.attributes = more;
        route.attributes.extend([RouteAttribute::Destination(to.into()), RouteAttribute::Oif(index)]);
        if source.is_ipv4() {
            route.header.address_family = AddressFamily::Inet;
            route.header.scope = RouteScope::Link;
            route.attributes.push(RouteAttribute::PrefSource(source.into()));
        } else {
            route.header.address_family = AddressFamily::Inet6;
            route.header.scope = RouteScope::Universe;
        }
        self.request(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_EXCL)
    }
}
