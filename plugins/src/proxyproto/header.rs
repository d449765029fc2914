//! The header of the PROXY protocol, version 1 and 2, as HAProxy's specification has it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What the first bytes of a connection or datagram are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// No header: the bytes are the client's.
    Absent,
    /// The start of a header, or of something else.
    Incomplete,
    /// Bytes that begin like a header and are none.
    Invalid,
    /// A header.
    Complete {
        /// Its length in bytes.
        length: usize,
        /// The version, 1 or 2.
        version: u8,
        /// The client that the proxy names; `None` for a connection of its own, or a client
        /// without an IP address.
        client: Option<SocketAddr>,
        /// Whether the proxy received a datagram.
        is_datagram: bool,
    },
}

impl Header {
    /// Reads the header at the start of these bytes.
    pub fn read(octets: &[u8]) -> Self {
        let is_start = |signature: &[u8]| signature.iter().zip(octets).all(|(one, other)| one == other);
        if is_start(SIGNATURE_1) {
            return if octets.len() < SIGNATURE_1.len() { Self::Incomplete } else { version_1(octets) };
        }
        if is_start(SIGNATURE_2) {
            return if octets.len() < SIGNATURE_2.len() { Self::Incomplete } else { version_2(octets) };
        }
        Self::Absent
    }
}

/// Reads a line such as `PROXY TCP4 192.0.2.1 192.0.2.53 4000 53`.
fn version_1(octets: &[u8]) -> Header {
    let line = &octets[..octets.len().min(LONGEST_1)];
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
        return if line.len() == LONGEST_1 { Header::Invalid } else { Header::Incomplete };
    };
    let complete = |client| Header::Complete { length: end + 1, version: 1, client, is_datagram: false };
    let text = line[..end].strip_suffix(b"\r").and_then(|line| std::str::from_utf8(line).ok());
    let words: Vec<&str> = text.map(|text| text.split(' ').collect()).unwrap_or_default();
    match words[..] {
        ["PROXY", "UNKNOWN", ..] => complete(None),
        ["PROXY", family @ ("TCP4" | "TCP6"), from, to, from_port, to_port] => {
            let address =
                |text: &str| text.parse::<IpAddr>().ok().filter(|ip| ip.is_ipv4() == (family == "TCP4"));
            match (address(from), address(to), port(from_port), port(to_port)) {
                (Some(ip), Some(_), Some(port), Some(_)) => complete(Some(SocketAddr::new(ip, port))),
                _ => Header::Invalid,
            }
        }
        _ => Header::Invalid,
    }
}

fn port(text: &str) -> Option<u16> {
    let is_decimal =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    is_decimal.then(|| text.parse().ok())?
}

fn version_2(octets: &[u8]) -> Header {
    let Some(&[command, kind, high, low]) = octets.get(SIGNATURE_2.len()..FIXED_2) else {
        return Header::Incomplete;
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    let addresses = match kind {
        0x00 => 0,
        0x11 | 0x12 => 12,
        0x21 | 0x22 => 36,
        0x31 | 0x32 => 216,
        _ => return Header::Invalid,
    };
    let is_local = command == LOCAL;
    let is_known = is_local || command == PROXY && kind != 0;
    if !is_known || length > LONGEST_2 || length < addresses && !is_local {
        return Header::Invalid;
    }
    let Some(body) = octets.get(FIXED_2..FIXED_2 + length) else { return Header::Incomplete };
    let fits = length >= addresses;
    let client = match (kind, body) {
        _ if is_local => None,
        (0x11 | 0x12, &[a, b, c, d, _, _, _, _, high, low, ..]) => {
            Some((Ipv4Addr::new(a, b, c, d).into(), u16::from_be_bytes([high, low])))
        }
        (0x21 | 0x22, body) => body.first_chunk::<34>().and_then(|addresses| {
            let ip = Ipv6Addr::from(*addresses.first_chunk::<16>()?);
            Some((ip.into(), u16::from_be_bytes([addresses[32], addresses[33]])))
        }),
        _ => None,
    };
    Header::Complete {
        length: FIXED_2 + length,
        version: 2,
        client: client.map(|(ip, port): (IpAddr, u16)| SocketAddr::new(ip, port)),
        is_datagram: kind & 0x0f == 2 && fits && kind != 0x32,
    }
}

const SIGNATURE_1: &[u8] = b"PROXY";
const SIGNATURE_2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of a line of version 1, with its end.
const LONGEST_1: usize = 107;
/// Bytes before the addresses of version 2.
const FIXED_2: usize = 16;
/// The most bytes of addresses and options of version 2 that are accepted.
const LONGEST_2: usize = 4096;
/// The most bytes of a header.
pub const LONGEST: usize = FIXED_2 + LONGEST_2;
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v2(command: u8, kind: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u16).to_be_bytes();
        [SIGNATURE_2, &[command, kind], &length, body, b"rest"].concat()
    }

    const FOUR: &[u8] = &[192, 0, 2, 1, 192, 0, 2, 53, 0x0f, 0xa0, 0, 53];
    const SIX: [u8; 36] = {
        let mut body = [0; 36];
        (body[0], body[1], body[15], body[32], body[33]) = (0x20, 0x01, 7, 0x0f, 0xa0);
        body
    };

    /// The length, the client and whether it is a datagram's, or the kind of the result.
    fn read(octets: &[u8]) -> String {
        match Header::read(octets) {
            Header::Complete { length, client, is_datagram, version } => {
                let client = client.map_or_else(|| "-".to_owned(), |client| client.to_string());
                format!("v{version} {length} {client}{}", if is_datagram { " datagram" } else { "" })
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn lines_of_version_1() {
        for (line, expected) in [
            ("PROXY TCP4 192.0.2.1 192.0.2.53 4000 53\r\nrest", "v1 41 192.0.2.1:4000"),
            ("PROXY TCP6 2001:db8::1 ::1 65535 0\r\n", "v1 36 [2001:db8::1]:65535"),
            ("PROXY UNKNOWN\r\n", "v1 15 -"),
            ("PROXY UNKNOWN what ever\r\n", "v1 25 -"),
            ("PROXY TCP4 192.0.2.1 192.0.2.53 4000", "Incomplete"),
            ("PRO", "Incomplete"),
            ("PROXY TCP4 192.0.2.1 192.0.2.53 4000 53\n", "Invalid"),
            ("PROXY TCP4 192.0.2.1 192.0.2.53 04000 53\r\n", "Invalid"),
            ("PROXY TCP4 192.0.2.1 192.0.2.53 65536 53\r\n", "Invalid"),
            ("PROXY TCP4 192.0.2.1 192.0.2.53 +1 53\r\n", "Invalid"),
            ("PROXY TCP4 2001:db8::1 192.0.2.53 1 53\r\n", "Invalid"),
            ("PROXY TCP6 192.0.2.1 ::1 1 53\r\n", "Invalid"),
            ("PROXY TCP4 192.0.2.1 192.0.2.53 1\r\n", "Invalid"),
            ("PROXY UDP4 192.0.2.1 192.0.2.53 1 53\r\n", "Invalid"),
            ("PROXYTCP4\r\n", "Invalid"),
            ("PROX!", "Absent"),
            ("", "Incomplete"),
        ] {
            assert_eq!(read(line.as_bytes()), expected, "{line:?}");
        }
        let long = format!("PROXY UNKNOWN {}", "x".repeat(200));
        assert_eq!(read(&long.as_bytes()[..106]), "Incomplete");
        assert_eq!(read(long.as_bytes()), "Invalid");
    }

    #[test]
    fn headers_of_version_2() {
        for (octets, expected) in [
            (v2(PROXY, 0x11, FOUR), "v2 28 192.0.2.1:4000"),
            (v2(PROXY, 0x12, FOUR), "v2 28 192.0.2.1:4000 datagram"),
            (v2(PROXY, 0x12, &[FOUR, b"\x05\0\x01x"].concat()), "v2 32 192.0.2.1:4000 datagram"),
            (v2(PROXY, 0x22, &SIX), "v2 52 [2001::7]:4000 datagram"),
            (v2(LOCAL, 0x12, FOUR), "v2 28 - datagram"),
            (v2(LOCAL, 0x11, b""), "v2 16 -"),
            (v2(LOCAL, 0x00, b"more"), "v2 20 -"),
            (v2(PROXY, 0x31, &[0; 216]), "v2 232 -"),
            (v2(PROXY, 0x11, &FOUR[1..]), "Invalid"),
            (v2(PROXY, 0x00, b""), "Invalid"),
            (v2(PROXY, 0x13, FOUR), "Invalid"),
            (v2(LOCAL, 0x13, FOUR), "Invalid"),
            (v2(0x22, 0x11, FOUR), "Invalid"),
            (v2(0x11, 0x11, FOUR), "Invalid"),
            (v2(PROXY, 0x11, &[0; 4097]), "Invalid"),
        ] {
            assert_eq!(read(&octets), expected, "{octets:?}");
        }
        let whole = v2(PROXY, 0x21, &SIX);
        for end in 0..52 {
            assert_eq!(read(&whole[..end]), "Incomplete", "{end}");
        }
        assert_eq!(read(b"\r\n\r\n\0\r\nQUIX\n"), "Absent");
        assert_eq!(read(b"\0\x1d"), "Absent");
    }

    proptest! {
        /// No bytes make a panic, and a header is never longer than the bytes or the limit.
        #[test]
        fn header_is_within_bytes(start in 0_usize..3, octets in prop::collection::vec(any::<u8>(), 0..80)) {
            let octets = [[&b""[..], SIGNATURE_1, SIGNATURE_2][start], &octets].concat();
            if let Header::Complete { length, .. } = Header::read(&octets) {
                prop_assert!(length <= octets.len() && length <= LONGEST);
            }
        }
    }
}
