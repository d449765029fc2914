//! Formats the parts of log lines: numbers, durations, addresses, names. Allocates only to grow the output.

use std::net::IpAddr;

use wire::{Class, Name, RType, Rcode};

/// Appends a number.
#[inline]
pub(crate) fn push_number(out: &mut Vec<u8>, number: u64) {
    if number < 10 {
        out.push(b'0' + number as u8);
        return;
    }
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    while rest >= 10 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
    if rest > 0 {
        at -= 1;
        digits[at] = b'0' + rest as u8;
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends the last two digits of a number.
#[inline]
pub(crate) fn push_pair(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&PAIRS[(number % 100) as usize]);
}

/// Appends nanoseconds as the decimals of a second, with the point and without trailing zeros; nothing for 0.
#[inline]
pub(crate) fn push_fraction(out: &mut Vec<u8>, nanos: u32) {
    if nanos == 0 {
        return;
    }
    let mut digits = *b".000000000";
    let mut rest = nanos;
    for at in [8, 6, 4, 2] {
        digits[at..at + 2].copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
    digits[1] = b'0' + (rest % 10) as u8;
    let mut end = digits.len();
    while digits[end - 1] == b'0' {
        end -= 1;
    }
    out.extend_from_slice(&digits[..end]);
}

/// Appends a duration in seconds, exact and without trailing zeros: `0.00002872`, `1`, `0`.
#[inline]
pub(crate) fn push_seconds(out: &mut Vec<u8>, nanos: u64) {
    push_number(out, nanos / 1_000_000_000);
    push_fraction(out, (nanos % 1_000_000_000) as u32);
}

/// Appends an address; an IPv4-mapped IPv6 address reads as IPv4.
#[inline]
pub(crate) fn push_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            for octet in ip.octets() {
                push_number(out, u64::from(octet));
                out.push(b'.');
            }
            out.pop();
        }
        IpAddr::V6(ip) => push_v6(out, ip.segments()),
    }
}

/// Appends an IPv6 address: `::` replaces the longest run of at least two zero groups, the first of equals (RFC 5952, section 4.2).
fn push_v6(out: &mut Vec<u8>, groups: [u16; 8]) {
    let (mut start, mut length, mut run) = (0, 1, 0);
    for (at, group) in groups.into_iter().enumerate() {
        run = if group == 0 { run + 1 } else { 0 };
        if run > length {
            (start, length) = (at + 1 - run, run);
        }
    }
    if length < 2 {
        return push_groups(out, &groups);
    }
    push_groups(out, &groups[..start]);
    out.extend_from_slice(b"::");
    push_groups(out, &groups[start + length..]);
}

fn push_groups(out: &mut Vec<u8>, groups: &[u16]) {
    for (at, group) in groups.iter().enumerate() {
        if at > 0 {
            out.push(b':');
        }
        let digits = (4 - group.leading_zeros() / 4).max(1);
        for digit in (0..digits).rev() {
            out.push(HEX[usize::from(group >> (4 * digit)) & 15]);
        }
    }
}

/// Appends an address, in brackets if it is IPv6.
#[inline]
pub(crate) fn push_bracketed(out: &mut Vec<u8>, ip: IpAddr) {
    let v6 = ip.to_canonical().is_ipv6();
    if v6 {
        out.push(b'[');
    }
    push_ip(out, ip);
    if v6 {
        out.push(b']');
    }
}

/// Appends a name as in CoreDNS's lines: lower-case, with its final dot, special characters escaped by a backslash, unprintable
/// octets as `\DDD`. No name can end a line or a quoted string.
#[inline]
pub(crate) fn push_name(out: &mut Vec<u8>, name: &Name) {
    let before = out.len();
    let wire = name.as_wire();
    // The text is the wire form without its first octet, with dots in place of the following length octets.
    out.extend_from_slice(&wire[1..]);
    let text = &mut out[before..];
    let mut plain = wire.len() > 1;
    let mut end = usize::from(wire[0]);
    let mut start = 0;
    while plain && start < end {
        plain = text[start..end].iter().all(|&octet| PLAIN[usize::from(octet)]);
        start = end + 1;
        end = start + usize::from(text[start - 1]);
        text[start - 1] = b'.';
    }
    if !plain {
        out.truncate(before);
        push_odd_name(out, name);
    }
}

/// Appends any name, the root and special characters included.
#[cold]
fn push_odd_name(out: &mut Vec<u8>, name: &Name) {
    for label in name.labels() {
        push_label(out, label);
        out.push(b'.');
    }
    if name.label_count() == 0 {
        out.push(b'.');
    }
}

fn push_label(out: &mut Vec<u8>, label: &[u8]) {
    for &octet in label {
        if PLAIN[usize::from(octet)] {
            out.push(octet);
        } else if octet.is_ascii_graphic() || octet == b' ' {
            out.extend_from_slice(&[b'\\', octet]);
        } else {
            out.extend_from_slice(&[b'\\', b'0' + octet / 100]);
            push_pair(out, u64::from(octet));
        }
    }
}

/// Appends a type; one without a mnemonic reads `TYPE123`.
#[inline]
pub(crate) fn push_type(out: &mut Vec<u8>, rtype: RType) {
    let known = match rtype {
        // CoreDNS's library names three types that the registry of query types does not, and does not name WKS.
        RType(0) => Some("None"),
        RType::WKS => None,
        RType(23) => Some("NSAP-PTR"),
        RType(65_535) => Some("Reserved"),
        other => other.mnemonic(),
    };
    push_mnemonic(out, known, "TYPE", rtype.0);
}

/// Appends a class; one without a mnemonic reads `CLASS123`. So does ANY, as in CoreDNS, where that is the name of a type.
#[inline]
pub(crate) fn push_class(out: &mut Vec<u8>, class: Class) {
    let known = class.mnemonic().filter(|_| class != Class::ANY);
    push_mnemonic(out, known, "CLASS", class.0);
}

/// Appends an rcode; one without a mnemonic is a bare number.
#[inline]
pub(crate) fn push_rcode(out: &mut Vec<u8>, rcode: Rcode) {
    push_mnemonic(out, rcode.mnemonic(), "", rcode.0);
}

#[inline]
fn push_mnemonic(out: &mut Vec<u8>, known: Option<&str>, prefix: &str, number: u16) {
    match known {
        Some(text) => out.extend_from_slice(text.as_bytes()),
        None => {
            out.extend_from_slice(prefix.as_bytes());
            push_number(out, u64::from(number));
        }
    }
}

/// The digits of hexadecimal numbers.
pub(crate) const HEX: [u8; 16] = *b"0123456789abcdef";
/// `00` to `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};
/// Whether an octet of a label is printed unescaped.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut octet = 0x21;
    while octet <= 0x7e {
        plain[octet] = !matches!(octet as u8, b'.' | b'\'' | b'@' | b';' | b'(' | b')' | b'"' | b'\\');
        octet += 1;
    }
    plain
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv6Addr;

    fn text(push: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        push(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn durations() {
        for (nanos, expected) in [
            (0, "0"),
            (1, "0.000000001"),
            (28_720, "0.00002872"),
            (37_000, "0.000037"),
            (115_518, "0.000115518"),
            (1_000_000_000, "1"),
            (2_500_000_000, "2.5"),
            (12_000_000_001, "12.000000001"),
        ] {
            assert_eq!(text(|out| push_seconds(out, nanos)), expected);
        }
    }

    #[test]
    fn bracketed_addresses() {
        for (ip, expected) in [
            ("127.0.0.1", "127.0.0.1"),
            ("169.254.10.255", "169.254.10.255"),
            ("::1", "[::1]"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("2001:db8::1", "[2001:db8::1]"),
        ] {
            assert_eq!(text(|out| push_bracketed(out, ip.parse().unwrap())), expected);
        }
    }

    #[test]
    fn escaped_names() {
        for (wire, expected) in [
            (&b"\0"[..], "."),
            (b"\x01A\x07example\x03ORG\0", "a.example.org."),
            (b"\x09.$\"();@ \\\0", r#"\.$\"\(\)\;\@\ \\."#),
            (b"\x08\x00\x7f\xc3\xa9~!*_\0", r"\000\127\195\169~!*_."),
            (b"\x06'`|<>&\0", r"\'`|<>&."),
        ] {
            let name = Name::from_wire(wire).unwrap();
            assert_eq!(text(|out| push_name(out, &name)), expected);
        }
    }

    #[test]
    fn unknown_types_classes_and_rcodes() {
        for (rtype, expected) in [
            (1, "A"),
            (0, "None"),
            (11, "TYPE11"),
            (23, "NSAP-PTR"),
            (65_280, "TYPE65280"),
            (65_535, "Reserved"),
        ] {
            assert_eq!(text(|out| push_type(out, RType(rtype))), expected);
        }
        assert_eq!(text(|out| push_class(out, Class(77))), "CLASS77");
        assert_eq!(text(|out| push_class(out, Class::ANY)), "CLASS255");
        assert_eq!(text(|out| push_rcode(out, Rcode(24))), "24");
        assert_eq!(text(|out| push_rcode(out, Rcode(3))), "NXDOMAIN");
    }

    proptest! {
        #[test]
        fn numbers_match_std(number: u64, shift in 0..64) {
            let number = number >> shift;
            prop_assert_eq!(text(|out| push_number(out, number)), number.to_string());
        }

        #[test]
        fn ipv6_matches_std(groups in prop::array::uniform8(0u16..3), bits: u128) {
            for ip in [Ipv6Addr::from(groups), Ipv6Addr::from(bits)] {
                prop_assume!(ip.to_ipv4_mapped().is_none());
                prop_assert_eq!(text(|out| push_ip(out, ip.into())), ip.to_string());
            }
        }

        #[test]
        fn fast_and_slow_names_agree(labels in proptest::collection::vec("[a-z0-9_.-]{1,20}", 0..6)) {
            let mut wire = Vec::new();
            for label in &labels {
                wire.push(label.len() as u8);
                wire.extend_from_slice(label.as_bytes());
            }
            wire.push(0);
            let name = Name::from_wire(&wire).unwrap();
            prop_assert_eq!(text(|out| push_name(out, &name)), text(|out| push_odd_name(out, &name)));
        }

        #[test]
        fn seconds_round_trip(nanos: u64) {
            let text = text(|out| push_seconds(out, nanos));
            let (seconds, decimals) = text.split_once('.').unwrap_or((&text, ""));
            prop_assert!(!decimals.ends_with('0'));
            prop_assert_eq!(format!("{seconds}{decimals:0<9}").parse(), Ok(nanos));
        }

        #[test]
        fn labels_cannot_forge_lines(label in proptest::collection::vec(any::<u8>(), 1..=63)) {
            let mut wire = vec![label.len() as u8];
            wire.extend_from_slice(&label);
            wire.push(0);
            let text = text(|out| push_name(out, &Name::from_wire(&wire).unwrap()));
            prop_assert!(text.bytes().all(|octet| (b' '..=b'~').contains(&octet)));
            prop_assert!(!text.replace("\\\\", "").replace("\\\"", "").contains('"'));
        }
    }
}
