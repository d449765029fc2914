//! Converts reverse names to addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Name;

/// The address of a name below `in-addr.arpa` (RFC 1035, section 3.5) or `ip6.arpa` (RFC 3596,
/// section 2.5).
///
/// An IPv4-mapped address is returned as IPv4. `None` for every other name, including those above
/// and below an address.
#[inline]
pub fn address(name: &Name) -> Option<IpAddr> {
    let wire = name.as_wire();
    if let Some(labels) = wire.strip_suffix(IN_ADDR_ARPA) {
        return ipv4(labels).map(IpAddr::V4);
    }
    ipv6(wire.strip_suffix(IP6_ARPA)?).map(|address| IpAddr::V6(address).to_canonical())
}

/// Whether a name is within `in-addr.arpa` or `ip6.arpa`.
pub fn is_reverse(name: &Name) -> bool {
    name.suffixes().any(|suffix| suffix == IN_ADDR_ARPA || suffix == IP6_ARPA)
}

/// Four labels of decimal digits, the last octet first.
fn ipv4(mut labels: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    for octet in octets.iter_mut().rev() {
        let (&length, rest) = labels.split_first()?;
        let (label, rest) = rest.split_at_checked(usize::from(length))?;
        *octet = decimal(label)?;
        labels = rest;
    }
    labels.is_empty().then(|| Ipv4Addr::from(octets))
}

/// A number up to 255 without a leading zero.
fn decimal(label: &[u8]) -> Option<u8> {
    if label.is_empty() || label.len() > 3 || (label.len() > 1 && label[0] == b'0') {
        return None;
    }
    let mut value = 0u32;
    for &digit in label {
        value = value * 10 + char::from(digit).to_digit(10)?;
    }
    u8::try_from(value).ok()
}

/// Thirty-two labels of one hexadecimal digit, the last nibble first.
fn ipv6(labels: &[u8]) -> Option<Ipv6Addr> {
    let labels: &[u8; 64] = labels.try_into().ok()?;
    let mut bits = 0u128;
    for label in labels.chunks_exact(2).rev() {
        let &[1, digit] = label else { return None };
        bits = bits << 4 | u128::from(char::from(digit).to_digit(16)?);
    }
    Some(Ipv6Addr::from(bits))
}

const IN_ADDR_ARPA: &[u8] = b"\x07in-addr\x04arpa\0";
const IP6_ARPA: &[u8] = b"\x03ip6\x04arpa\0";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Option<IpAddr> {
        address(&Name::from_text(text).unwrap())
    }

    fn reverse_name(address: IpAddr) -> String {
        match address {
            IpAddr::V4(v4) => {
                let [a, b, c, d] = v4.octets();
                format!("{d}.{c}.{b}.{a}.IN-ADDR.arpa")
            }
            IpAddr::V6(v6) => {
                let digits = format!("{:032X}", v6.to_bits());
                digits.chars().rev().map(|digit| format!("{digit}.")).collect::<String>() + "ip6.arpa"
            }
        }
    }

    #[test]
    fn partial_reverse_names() {
        let nibbles = "1.".repeat(32);
        for text in [
            ".",
            "arpa",
            "in-addr.arpa",
            "ip6.arpa",
            "0.0.127.in-addr.arpa",
            "9.1.0.0.127.in-addr.arpa",
            "01.0.0.127.in-addr.arpa",
            "256.0.0.127.in-addr.arpa",
            "1000.0.0.127.in-addr.arpa",
            "a.0.0.127.in-addr.arpa",
            "1.0.0.127.in-addr.arpa.org",
            "1.0.0.127\\007in-addr.arpa",
            "1\\.0.0.127.in-addr.arpa",
            &format!("{}ip6.arpa", &nibbles[2..]),
            &format!("1.{nibbles}ip6.arpa"),
            &format!("g.{}ip6.arpa", &nibbles[2..]),
            &format!("11.{}ip6.arpa", &nibbles[4..]),
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn mapped_address_is_ipv4() {
        let mapped = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(read(&reverse_name(mapped)), Some("192.0.2.1".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn reverse_name_roundtrip(bits in any::<u128>(), v4 in any::<u32>()) {
            for address in [IpAddr::from(Ipv6Addr::from(bits)), IpAddr::from(Ipv4Addr::from(v4))] {
                prop_assert_eq!(read(&reverse_name(address)), Some(address.to_canonical()));
            }
        }
    }
}
