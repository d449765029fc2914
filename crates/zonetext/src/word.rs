//! Parses words of a record's data other than names and strings.

use std::sync::LazyLock;

use data_encoding::{BASE32HEX_NOPAD, Encoding, HEXLOWER_PERMISSIVE};
use jiff::civil::DateTime;
use jiff::tz::Offset;

use crate::Token;

/// Bytes in hex.
pub(crate) fn hex(text: &str) -> Option<Vec<u8>> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()
}

/// Bytes in base64 with padding. Bits after the last byte are ignored, as in CoreDNS.
pub(crate) fn base64(text: &str) -> Option<Vec<u8>> {
    static LENIENT: LazyLock<Encoding> = LazyLock::new(|| {
        let mut lenient = data_encoding::BASE64.specification();
        lenient.check_trailing_bits = false;
        lenient.encoding().unwrap_or(data_encoding::BASE64)
    });
    LENIENT.decode(text.as_bytes()).ok()
}

/// Bytes in base32 with the extended hex alphabet.
pub(crate) fn base32hex(text: &str) -> Option<Vec<u8>> {
    BASE32HEX_NOPAD.decode(text.to_ascii_uppercase().as_bytes()).ok()
}

/// Bytes in hex, with this number of digits between separators.
pub(crate) fn groups(text: &str, separator: char, digits: usize) -> Option<Vec<u8>> {
    let groups = text.split(separator).map(|group| hex(group).filter(|_| group.len() == digits));
    groups.collect::<Option<Vec<_>>>().map(|groups| groups.concat())
}

/// Seconds since 1970 modulo 2^32: a number, or a date as `YYYYMMDDHHmmSS` (RFC 4034, section 3.2).
pub(crate) fn time(token: &Token<'_>) -> Option<u32> {
    let date = || {
        let date = DateTime::strptime("%Y%m%d%H%M%S", token.word()?).ok()?;
        Some(Offset::UTC.to_timestamp(date).ok()?.as_second() as u32)
    };
    if token.text.len() == 14 { date() } else { token.number() }
}

/// A number, or its name in `names`.
pub(crate) fn number_or_name<T: TryFrom<u64>>(token: &Token<'_>, names: &[(&str, u64)]) -> Option<T> {
    let is = |name: &str| name.as_bytes().eq_ignore_ascii_case(token.text);
    let named = || names.iter().find(|(name, _)| is(name)).and_then(|(_, number)| T::try_from(*number).ok());
    token.number().or_else(named)
}

/// Types of CERT (RFC 4398, section 2.1).
pub(crate) const CERT_TYPES: [(&str, u64); 10] = [
    ("PKIX", 1),
    ("SPKI", 2),
    ("PGP", 3),
    ("IPKIX", 4),
    ("ISPKI", 5),
    ("IPGP", 6),
    ("ACPKIX", 7),
    ("IACPKIX", 8),
    ("URI", 253),
    ("OID", 254),
];

/// DNSSEC algorithms, by their names in the IANA registry and in CoreDNS.
pub(crate) const ALGORITHMS: [(&str, u64); 16] = [
    ("RSAMD5", 1),
    ("DH", 2),
    ("DSA", 3),
    ("RSASHA1", 5),
    ("DSA-NSEC3-SHA1", 6),
    ("RSASHA1-NSEC3-SHA1", 7),
    ("RSASHA256", 8),
    ("RSASHA512", 10),
    ("ECC-GOST", 12),
    ("ECDSAP256SHA256", 13),
    ("ECDSAP384SHA384", 14),
    ("ED25519", 15),
    ("ED448", 16),
    ("INDIRECT", 252),
    ("PRIVATEDNS", 253),
    ("PRIVATEOID", 254),
];
