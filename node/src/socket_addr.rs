//! Parses socket addresses in configurations: `IP[:PORT]`. Uses the host only to look up a link's
//! index.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::link_index;

/// Parses `IP`, `IP:PORT`, `[IP]` or `[IP]:PORT`; an IPv6 address without a port may have a scope,
/// as in [`address`].
///
/// `port` is the default. `None` for other text, for port 0 and for a link that does not exist.
pub fn socket_address(text: &str, port: u16) -> Option<SocketAddr> {
    let (ip, port) = host_and_port(text, port)?;
    address(ip, port)
}

/// Parses `HOST` or `HOST:PORT`, for any host; `port` is the default.
///
/// `None` for brackets without end, and for a port that is not 1 to 65535.
pub fn host_and_port(text: &str, port: u16) -> Option<(&str, u16)> {
    let (host, own) = split_port(text)?;
    Some((host, own.map_or(Some(port), port_number)?))
}

/// Splits off the port: returns the host without brackets, and the text in the port's place.
/// Several colons belong to an IPv6 address, which has a port only after brackets.
pub fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return if rest.is_empty() {
            Some((host, None))
        } else {
            Some((host, Some(rest.strip_prefix(':')?)))
        };
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => Some((host, Some(port))),
        _ => Some((text, None)),
    }
}

/// Parses a port, 1 to 65535, in digits.
pub fn port_number(digits: &str) -> Option<u16> {
    let digits = digits.bytes().all(|octet| octet.is_ascii_digit()).then_some(digits)?;
    digits.parse().ok().filter(|port| *port > 0)
}

/// Parses `IP`, or `fe80::1%LINK` with the name or the index of an interface of this machine, with
/// that port. An IPv4-mapped IPv6 address is the IPv4 address, as in Go: an IPv6-only socket cannot
/// reach it.
pub fn address(text: &str, port: u16) -> Option<SocketAddr> {
    address_by(text, port, link_index)
}

/// Does the same as [`address`]; `index` resolves link names.
pub(crate) fn address_by(text: &str, port: u16, index: impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let Some((ip, link)) = text.split_once('%') else {
        return text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip.to_canonical(), port));
    };
    let scope = link.parse().ok().or_else(|| index(link))?;
    Some(SocketAddrV6::new(ip.parse::<Ipv6Addr>().ok()?, port, 0, scope).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_ports_and_links() {
        for (text, address) in [
            ("192.0.2.1", Some("192.0.2.1:53")),
            ("192.0.2.1:5353", Some("192.0.2.1:5353")),
            ("2001:db8::1", Some("[2001:db8::1]:53")),
            ("[2001:db8::1]", Some("[2001:db8::1]:53")),
            ("[2001:db8::1]:5353", Some("[2001:db8::1]:5353")),
            ("fe80::1%7", Some("[fe80::1%7]:53")),
            ("[fe80::1%7]", Some("[fe80::1%7]:53")),
            ("[fe80::1%7]:54", Some("[fe80::1%7]:54")),
            ("[192.0.2.1]:54", Some("192.0.2.1:54")),
            ("::ffff:192.0.2.1", Some("192.0.2.1:53")),
            ("[::ffff:c000:201]:54", Some("192.0.2.1:54")),
            ("192.0.2.1:", None),
            ("192.0.2.1:+53", None),
            ("[2001:db8::1", None),
            ("2001:db8::1]:53", None),
            ("[2001:db8::1]53", None),
            ("[2001:db8::1]:0", None),
            ("[2001:db8::1]:5:3", None),
            ("", None),
            ("192.0.2.256", None),
            ("192.0.2.1:0", None),
            ("192.0.2.1:65536", None),
            ("192.0.2.1%7", None),
            ("fe80::1%no-such-link", None),
            ("dns.example:53", None),
        ] {
            assert_eq!(
                socket_address(text, 53).map(|found| found.to_string()).as_deref(),
                address,
                "{text:?}"
            );
        }
        assert_eq!(address("192.0.2.1:53", 0), None);
        let lo = address("fe80::1%lo", 0).expect("every machine has it");
        assert!(matches!(lo, SocketAddr::V6(lo) if lo.scope_id() > 0), "{lo}");
    }
}
