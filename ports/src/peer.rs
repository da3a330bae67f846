//! Who shares quotas.

use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address, or a /64 of IPv6, which one host may have whole.
pub(crate) type Peer = IpAddr;

/// The peer that has this address.
pub(crate) fn of(address: IpAddr) -> Peer {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}
