//! A server block's keys: scheme, zones and port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::error::SyntaxError;
use crate::go_values;
use crate::location::Located;
use crate::token::Word;

/// One key of a server block: `[scheme://]zone[:port]`.
#[derive(Debug, Clone)]
pub struct BlockKey {
    /// The word in the file, with variables replaced and without its comma.
    pub written: Word,
    /// The clients' protocol; default `dns`.
    pub scheme: Scheme,
    /// The zones, at least one: in lower case, with the final dot, escapes (RFC 1035, section 5.1)
    /// kept. More than one (at most 128) for a network with a mask that ends inside a label of the
    /// reverse zone.
    pub zones: Vec<String>,
    /// The port as written; `None` means the server's default port for `dns`, and the scheme's for
    /// other schemes.
    pub port: Option<u16>,
}

impl BlockKey {
    /// # Errors
    /// An unknown scheme, an invalid port or zone.
    pub(crate) fn parse(written: Word) -> Result<Self, Located<SyntaxError>> {
        match parts(&written) {
            Ok((scheme, zones, port)) => Ok(Self { written, scheme, zones, port }),
            Err(error) => Err(Located::new(&written.at, error)),
        }
    }
}

/// The protocol of a server block's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// DNS over UDP and TCP.
    Dns,
    /// DNS over TLS (RFC 7858).
    Tls,
    /// DNS in CoreDNS's gRPC service.
    Grpc,
    /// DNS over HTTPS (RFC 8484).
    Https,
    /// DNS over HTTP/3.
    Https3,
    /// DNS over QUIC (RFC 9250).
    Quic,
}

impl Scheme {
    /// Every scheme.
    pub const ALL: [Self; 6] = [Self::Dns, Self::Tls, Self::Grpc, Self::Https, Self::Https3, Self::Quic];

    /// Returns the scheme's name, which precedes `://`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Tls => "tls",
            Self::Grpc => "grpc",
            Self::Https => "https",
            Self::Https3 => "https3",
            Self::Quic => "quic",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the zone follows RFC 1035's preferred syntax (section 2.3.1), as CoreDNS interprets it:
/// the root and all reverse zones do.
pub(crate) fn is_preferred(zone: &str) -> bool {
    let is_label = |label: &str| {
        label.starts_with(|c: char| c.is_ascii_alphabetic())
            && label.ends_with(|c: char| c.is_ascii_alphanumeric())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    zone == "."
        || zone.ends_with(".in-addr.arpa.")
        || zone.ends_with(".ip6.arpa.")
        || zone.trim_end_matches('.').split('.').all(is_label)
}

/// Returns the zones of a key without scheme and port: for a network in CIDR notation the reverse
/// zones that cover it, for any other text one zone in lower case with its final dot.
///
/// # Errors
/// The [`SyntaxError`]s of a zone or network.
pub fn zones_of(text: &str) -> Result<Vec<String>, SyntaxError> {
    if let Some((address, mask_bits)) = network(text)? {
        return Ok(reverse_zones(address, mask_bits));
    }
    Ok(vec![zone_name(text)?])
}

fn parts(written: &Word) -> Result<(Scheme, Vec<String>, Option<u16>), SyntaxError> {
    let text = written.text.as_str();
    if text.is_empty() {
        return Err(SyntaxError::EmptyKey);
    }
    if !written.quoted && (text.starts_with('{') || text.ends_with('{')) {
        return Err(SyntaxError::GluedBrace { word: text.to_owned() });
    }
    let (scheme, rest) = split_scheme(text)?;
    let (zone, port) = split_port(rest)?;
    if zone.is_empty() {
        return Err(SyntaxError::NoZone { key: text.to_owned() });
    }
    let zones = zones_of(zone)?;
    Ok((scheme, zones, port))
}

fn split_scheme(text: &str) -> Result<(Scheme, &str), SyntaxError> {
    let Some((found, rest)) = text.split_once("://") else { return Ok((Scheme::Dns, text)) };
    match Scheme::ALL.into_iter().find(|scheme| scheme.name().eq_ignore_ascii_case(found)) {
        Some(scheme) => Ok((scheme, rest)),
        None => Err(SyntaxError::UnknownScheme { found: found.to_owned() }),
    }
}

/// Splits at the last colon, unless it is part of a network such as `2001:db8::/32`.
fn split_port(text: &str) -> Result<(&str, Option<u16>), SyntaxError> {
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(SyntaxError::AddressAsZone { found: text.to_owned() });
    }
    match text.rsplit_once(':') {
        Some((zone, port)) if !port.contains('/') => match go_values::parse_int(port).map(u16::try_from) {
            Ok(Ok(port)) => Ok((zone, Some(port))),
            _ => Err(SyntaxError::BadPort { found: port.to_owned() }),
        },
        _ => Ok((text, None)),
    }
}

/// Reads `address/bits`; `None` if it is no network but may be a zone, such as RFC 2317's
/// `0/25.2.0.192.in-addr.arpa`.
fn network(zone: &str) -> Result<Option<(IpAddr, u32)>, SyntaxError> {
    let Some((address, mask)) = zone.split_once('/') else { return Ok(None) };
    let Ok(address) = address.parse::<IpAddr>() else { return Ok(None) };
    let max = if address.is_ipv4() { 32 } else { 128 };
    let digits = mask.bytes().all(|byte| byte.is_ascii_digit());
    match mask.parse() {
        Ok(bits) if digits && bits <= max => Ok(Some((address, bits))),
        _ => Err(SyntaxError::BadMask { found: mask.to_owned(), max }),
    }
}

/// Returns the reverse zones that hold exactly the network's addresses. A label stands for 8 bits
/// of an IPv4 address (RFC 1035, section 3.5) or 4 bits of an IPv6 address (RFC 3596, section 2.5).
/// A mask that ends inside a label results in one zone for each possible value of the label: at
/// most 128 or 8 zones.
fn reverse_zones(address: IpAddr, mask_bits: u32) -> Vec<String> {
    let (address, address_bits, label_bits, suffix) = match address {
        IpAddr::V4(address) => (address.to_bits().into(), 32, 8, "in-addr.arpa."),
        IpAddr::V6(address) => (address.to_bits(), 128, 4, "ip6.arpa."),
    };
    let zone_bits = mask_bits.next_multiple_of(label_bits);
    let extra_bits = zone_bits - mask_bits;
    // A mask of 0 shifts by all bits, which `>>` cannot do for IPv6.
    let network: u128 = address.checked_shr(address_bits - mask_bits).unwrap_or(0) << extra_bits;
    let zone = |prefix: u128| {
        let labels = (0..zone_bits / label_bits).map(|label| {
            let value = (prefix >> (label * label_bits)) & ((1 << label_bits) - 1);
            if label_bits == 8 { format!("{value}.") } else { format!("{value:x}.") }
        });
        labels.chain([suffix.to_owned()]).collect()
    };
    (0..1 << extra_bits).map(|value: u128| zone(network | value)).collect()
}

/// Returns the zone in lower case with its final dot.
fn zone_name(zone: &str) -> Result<String, SyntaxError> {
    if zone == "." {
        return Ok(zone.to_owned());
    }
    let zone_text = || zone.to_owned();
    let mut octets_before = 0;
    let mut label = 0;
    let mut rest = zone.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'.' if label == 0 => return Err(SyntaxError::EmptyLabel { zone: zone_text() }),
            b'.' => {
                octets_before += label + 1;
                label = 0;
            }
            b'\\' => {
                rest = after_escape(rest).ok_or_else(|| SyntaxError::BadEscape { zone: zone_text() })?;
                label += 1;
            }
            _ => label += 1,
        }
        if label > MAX_LABEL_OCTETS && matches!(rest.first(), None | Some(b'.')) {
            return Err(SyntaxError::LabelTooLong { zone: zone_text(), octets: label });
        }
    }
    let ends_in_dot = label == 0;
    let octets = octets_before + if ends_in_dot { 1 } else { label + 2 };
    if octets > MAX_NAME_OCTETS {
        return Err(SyntaxError::ZoneTooLong { zone: zone_text(), octets });
    }
    let mut name = zone.to_ascii_lowercase();
    if !ends_in_dot {
        name.push('.');
    }
    Ok(name)
}

/// Returns the text after an escape; `None` if it is invalid. `rest` begins behind the backslash,
/// with three digits or one character that is no digit.
fn after_escape(rest: &[u8]) -> Option<&[u8]> {
    match rest {
        [b'0'..=b'9', ..] => {
            let (digits, tail) = rest.split_at_checked(3)?;
            let value: u16 = std::str::from_utf8(digits).ok()?.parse().ok()?;
            (value <= 255).then_some(tail)
        }
        [_, tail @ ..] => Some(tail),
        [] => None,
    }
}

const MAX_LABEL_OCTETS: usize = 63;
const MAX_NAME_OCTETS: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::Location;

    fn key(text: &str) -> Result<BlockKey, Located<SyntaxError>> {
        BlockKey::parse(Word { text: text.to_owned(), at: Location::file_only("key"), quoted: false })
    }

    #[test]
    fn split_keys() {
        use Scheme::{Dns, Grpc, Https, Https3, Quic, Tls};
        for (text, scheme, zone, port) in [
            (".", Dns, ".", None),
            (".:53", Dns, ".", Some(53)),
            (".:0", Dns, ".", Some(0)),
            (".:+1053", Dns, ".", Some(1053)),
            ("dns://.:1053", Dns, ".", Some(1053)),
            ("TLS://Example.ORG", Tls, "example.org.", None),
            ("tls://example.org.:853", Tls, "example.org.", Some(853)),
            ("grpc://a.b", Grpc, "a.b.", None),
            ("https://a.b:443", Https, "a.b.", Some(443)),
            ("https3://a.b", Https3, "a.b.", None),
            ("quic://a.b", Quic, "a.b.", None),
            ("health-check.localdns.local:53", Dns, "health-check.localdns.local.", Some(53)),
            ("169.254.10.10", Dns, "169.254.10.10.", None),
            ("0/25.2.0.192.in-addr.arpa", Dns, "0/25.2.0.192.in-addr.arpa.", None),
            (r"a\.b.c", Dns, r"a\.b.c.", None),
            (r"a\046b.c\.", Dns, r"a\046b.c\..", None),
            ("a,b", Dns, "a,b.", None),
        ] {
            let key = key(text).unwrap();
            assert_eq!((key.scheme, key.port), (scheme, port), "{text}");
            assert_eq!(key.zones, [zone], "{text}");
        }
    }

    #[test]
    fn networks_become_reverse_zones() {
        let db8 = "8.b.d.0.1.0.0.2.ip6.arpa.";
        let rows: &[(&str, usize, &str, &str)] = &[
            ("10.0.0.0/24", 1, "0.0.10.in-addr.arpa.", "0.0.10.in-addr.arpa."),
            ("10.0.0.0/8:53", 1, "10.in-addr.arpa.", "10.in-addr.arpa."),
            ("10.1.2.3/32", 1, "3.2.1.10.in-addr.arpa.", "3.2.1.10.in-addr.arpa."),
            ("0.0.0.0/0", 1, "in-addr.arpa.", "in-addr.arpa."),
            ("10.0.0.128/25", 128, "128.0.0.10.in-addr.arpa.", "255.0.0.10.in-addr.arpa."),
            ("10.0.0.0/15", 2, "0.10.in-addr.arpa.", "1.10.in-addr.arpa."),
            ("10.9.3.0/18", 64, "0.9.10.in-addr.arpa.", "63.9.10.in-addr.arpa."),
            ("255.255.255.255/1", 128, "128.in-addr.arpa.", "255.in-addr.arpa."),
            ("2001:db8::/32", 1, db8, db8),
            ("2001:DB8::/32:5300", 1, db8, db8),
            ("2001:db8::/29", 8, db8, "f.b.d.0.1.0.0.2.ip6.arpa."),
            ("2001:db8::/30", 4, db8, "b.b.d.0.1.0.0.2.ip6.arpa."),
            ("::/0", 1, "ip6.arpa.", "ip6.arpa."),
        ];
        for (text, count, first, last) in rows {
            let zones = key(text).unwrap().zones;
            assert_eq!(zones.len(), *count, "{text}");
            assert_eq!((zones[0].as_str(), zones[count - 1].as_str()), (*first, *last), "{text}");
        }
        assert_eq!(key("2001:db8::1/128").unwrap().zones[0].matches('.').count(), 34);
    }

    #[test]
    fn bad_keys_are_named() {
        let label = "a".repeat(64);
        let name = "abcdefg.".repeat(32);
        for (text, expected) in [
            ("", "expected a server block's key such as `.:53`, found an empty word"),
            ("http://a.org", "unknown scheme `http`, expected dns, tls, grpc, https, https3 or quic"),
            ("://a.org", "unknown scheme ``, expected dns, tls, grpc, https, https3 or quic"),
            ("a.org:", "bad port ``, expected a number from 0 to 65535"),
            ("a.org:65536", "bad port `65536`, expected a number from 0 to 65535"),
            ("a.org:-1", "bad port `-1`, expected a number from 0 to 65535"),
            ("a.org:dns", "bad port `dns`, expected a number from 0 to 65535"),
            (":53", "expected a zone such as `.` before the port in `:53`"),
            ("dns://", "expected a zone such as `.` before the port in `dns://`"),
            ("fd00::1", "found the address `fd00::1`, expected a zone or a network such as `fd00::1/128`"),
            ("10.0.0.0/33", "bad network mask `33`, expected a number from 0 to 32"),
            ("10.0.0.0/+8", "bad network mask `+8`, expected a number from 0 to 32"),
            ("10.0.0.0/", "bad network mask ``, expected a number from 0 to 32"),
            ("fd00::/129", "bad network mask `129`, expected a number from 0 to 128"),
            ("a..b", "the zone `a..b` has an empty label"),
            (".a", "the zone `.a` has an empty label"),
            ("..", "the zone `..` has an empty label"),
            (
                r"a\",
                r"the zone `a\` has a bad escape, expected `\` and a character or three digits up to 255",
            ),
            (
                r"a\256",
                r"the zone `a\256` has a bad escape, expected `\` and a character or three digits up to 255",
            ),
            (
                r"a\1",
                r"the zone `a\1` has a bad escape, expected `\` and a character or three digits up to 255",
            ),
            (&label, &format!("the zone `{label}` has a label of 64 octets, expected at most 63")),
            (&name, &format!("the zone `{name:.120}` is 257 octets long, expected at most 255")),
            (".:53{", "found `.:53{`, expected the brace as a word of its own"),
            ("{a.b", "found `{a.b`, expected the brace as a word of its own"),
            ("{}", "found `{}`, expected the brace as a word of its own"),
        ] {
            assert_eq!(key(text).unwrap_err().error.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn the_longest_names_are_taken() {
        let label = "a".repeat(63);
        let longest = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        assert!(key(&label).is_ok());
        assert!(key(&longest).is_ok());
        assert!(key(&format!("{longest}.")).is_ok());
        assert!(key(&format!("{longest}a")).is_err());
    }

    #[test]
    fn preferred_syntax_is_coredns_s() {
        for (zone, expected) in [
            (".", true),
            ("example.org.", true),
            ("a-1.b.", true),
            ("0.0.10.in-addr.arpa.", true),
            ("8.b.d.0.1.0.0.2.ip6.arpa.", true),
            ("169.254.10.10.", false),
            ("_tcp.example.org.", false),
            ("a-.org.", false),
            ("ä.org.", false),
        ] {
            assert_eq!(is_preferred(zone), expected, "{zone}");
        }
    }
}
