//! Conversion of IPv4-mapped networks to the IPv4 networks that Go takes them for.

use ipnet::{IpNet, Ipv4Net};

/// Returns the IPv4 network of an IPv4-mapped one (`::ffff:192.0.2.0/120`, RFC 4291, section
/// 2.5.5.2); `None` for any other network.
pub fn mapped(network: &IpNet) -> Option<Ipv4Net> {
    let IpNet::V6(network) = network else { return None };
    let length = network.prefix_len().checked_sub(96)?;
    Ipv4Net::new(network.network().to_ipv4_mapped()?, length).ok()
}

/// Returns the network that Go's `net.IPNet` compares with addresses: an IPv4-mapped network
/// becomes an IPv4 network.
pub fn canonical(network: IpNet) -> IpNet {
    mapped(&network).map_or(network, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_networks_become_ipv4() {
        for (written, expected) in [
            ("::ffff:192.0.2.9/120", "192.0.2.0/24"),
            ("::ffff:192.0.2.9/128", "192.0.2.9/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::ffff:192.0.2.0/95", "::ffff:192.0.2.0/95"),
            ("::/0", "::/0"),
            ("::192.0.2.0/120", "::192.0.2.0/120"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("192.0.2.0/24", "192.0.2.0/24"),
        ] {
            assert_eq!(canonical(written.parse().unwrap()), expected.parse().unwrap(), "{written}");
        }
    }
}
