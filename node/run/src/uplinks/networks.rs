//! Decides whether the networks routed over a link lead out of the cluster.

use ipnet::IpNet;

/// Whether a network counts for [`lead_out`]: it is large, and neither multicast nor in a range
/// that is used only inside a cluster or on a link (240.0.0.0/4, fc00::/7, fe80::/10).
pub(super) fn counts(network: &IpNet) -> bool {
    match network {
        IpNet::V4(network) => network.prefix_len() <= LONGEST_V4 && network.network().octets()[0] < 224,
        IpNet::V6(network) => network.prefix_len() <= LONGEST_V6 && network.network().octets()[0] < 0xfc,
    }
}

/// Whether these networks, all of which [count](counts), together have so many addresses that they
/// amount to a default route, such as 0.0.0.0/1 with 128.0.0.0/1, 2000::/3, or all networks but the
/// private ones.
pub(super) fn lead_out(networks: &Vec<IpNet>) -> bool {
    let (mut v4, mut v6) = (0, 0);
    // Neither equal nor overlapping networks count twice.
    for network in IpNet::aggregate(networks) {
        let addresses = 1_u64 << (32 - u32::from(network.prefix_len()).min(32));
        match network {
            IpNet::V4(_) => v4 += addresses,
            IpNet::V6(_) => v6 += addresses,
        }
    }
    v4 >= LARGE_V4 || v6 >= LARGE_V6
}

/// Longest prefixes that count: a router's table may have a million routes with longer prefixes.
const LONGEST_V4: u8 = 16;
const LONGEST_V6: u8 = 32;
/// Minimum of IPv4 addresses that lead out, those of a /6: three times all private networks (RFC
/// 1918, RFC 6598), since a cluster may also use one or two public /8.
const LARGE_V4: u64 = 1 << (32 - 6);
/// Minimum of IPv6 addresses that lead out, those of a /12, the largest block of a regional
/// registry; in units of a /32.
const LARGE_V6: u64 = 1 << (32 - 12);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_default_route_lead_out() {
        for (networks, expected) in [
            ("0.0.0.0/0", true),
            ("::/0", true),
            ("0.0.0.0/1", true),
            ("128.0.0.0/1", true),
            ("::/1", true),
            ("8000::/1", true),
            ("2000::/3", true),
            ("192.0.0.0/2", true),
            // Many small networks that together are as large as a /6.
            ("1.0.0.0/8 2.0.0.0/7 4.0.0.0/8 6.0.0.0/9 6.128.0.0/9", true),
            ("2400::/13 2600::/13", true),
            // Clusters' networks.
            ("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10", false),
            ("10.0.0.0/8 11.0.0.0/8 30.0.0.0/8", false),
            ("10.0.0.0/8 10.0.0.0/8 10.0.0.0/9 10.128.0.0/9 10.64.0.0/10", false),
            ("2001:db8::/32 2a00:1450::/29", false),
            // Multicast, class E and local addresses.
            ("224.0.0.0/4 240.0.0.0/4", false),
            ("fc00::/7 fe80::/10 ff00::/8", false),
        ] {
            let networks = networks.split(' ').map(|text| text.parse::<IpNet>().expect("a network"));
            let counted: Vec<_> = networks.clone().filter(counts).collect();
            assert_eq!(lead_out(&counted), expected, "{:?}", networks.collect::<Vec<_>>());
        }
    }
}
