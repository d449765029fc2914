//! Checks which addresses may become hosts entries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is refused: a public name with an internal address is an attack (DNS rebinding) or a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// 0.0.0.0/8 or ::, which Linux treats as itself.
    #[error("unspecified")]
    Unspecified,
    /// 127.0.0.0/8 or ::1.
    #[error("loopback")]
    Loopback,
    /// 224.0.0.0/4, ff00::/8 or 255.255.255.255.
    #[error("multicast or broadcast")]
    Multicast,
    /// 169.254.0.0/16 or fe80::/10.
    #[error("link-local")]
    LinkLocal,
    /// An IPv4-mapped IPv6 address: ::ffff:0:0/96 (RFC 4291, section 2.5.5.2).
    #[error("IPv4-mapped")]
    Mapped,
    /// A configured sinkhole: the answer of a DNS filter.
    #[error("a sinkhole")]
    Sinkhole,
}

/// Whether `address` may become an entry; `sinkholes` may not.
///
/// # Errors
/// [`Refused`].
pub fn usable(address: IpAddr, sinkholes: &[IpAddr]) -> Result<(), Refused> {
    let refused = match address {
        IpAddr::V4(address) if address.octets()[0] == 0 => Refused::Unspecified,
        IpAddr::V4(address) if address.is_loopback() => Refused::Loopback,
        IpAddr::V4(address) if address.is_multicast() || address == Ipv4Addr::BROADCAST => Refused::Multicast,
        IpAddr::V4(address) if address.is_link_local() => Refused::LinkLocal,
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Refused::Unspecified,
        IpAddr::V6(address) if address.is_loopback() => Refused::Loopback,
        IpAddr::V6(address) if address.is_multicast() => Refused::Multicast,
        IpAddr::V6(address) if address.is_unicast_link_local() => Refused::LinkLocal,
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => Refused::Mapped,
        _ if sinkholes.contains(&address) => Refused::Sinkhole,
        _ => return Ok(()),
    };
    Err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_addresses_are_refused() {
        let sinkholes = ["192.0.2.66".parse().unwrap()];
        for (address, expected) in [
            ("0.0.0.0", Err(Refused::Unspecified)),
            ("0.1.2.3", Err(Refused::Unspecified)),
            ("::", Err(Refused::Unspecified)),
            ("127.0.0.1", Err(Refused::Loopback)),
            ("127.255.255.254", Err(Refused::Loopback)),
            ("::1", Err(Refused::Loopback)),
            ("224.0.0.1", Err(Refused::Multicast)),
            ("255.255.255.255", Err(Refused::Multicast)),
            ("ff02::1", Err(Refused::Multicast)),
            ("169.254.10.10", Err(Refused::LinkLocal)),
            ("fe80::1", Err(Refused::LinkLocal)),
            ("febf::1", Err(Refused::LinkLocal)),
            ("::ffff:127.0.0.1", Err(Refused::Mapped)),
            ("::ffff:192.0.2.1", Err(Refused::Mapped)),
            ("192.0.2.66", Err(Refused::Sinkhole)),
            ("192.0.2.67", Ok(())),
            // Private addresses are allowed: many nodes must use private endpoints of public names.
            ("10.0.0.1", Ok(())),
            ("fd00::1", Ok(())),
            ("20.61.99.68", Ok(())),
            ("2603:1061:1002::2", Ok(())),
        ] {
            assert_eq!(usable(address.parse().unwrap(), &sinkholes), expected, "{address}");
        }
    }
}
