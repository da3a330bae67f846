//! Peers: addresses that share quotas.

use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address, or a /64 network of IPv6, which one host may have to itself.
pub(crate) type Peer = IpAddr;

/// Returns the peer of an address.
pub(crate) fn of(address: IpAddr) -> Peer {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}
