//! Networks of clients: limits count a network, not an address, where a client can choose addresses freely.

use std::net::{IpAddr, Ipv6Addr};

/// The network that counts as one client: an IPv4 address, or the /64 of an IPv6 address, within which a
/// client can choose addresses freely.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}
