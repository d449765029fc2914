//! Parses lines of hosts text. Knows no table.

use std::net::IpAddr;

use wire::Name;

use crate::diagnostics::{LineError, MAX_FIELD};

/// Returns the fields of a line without its comment. A `#` starts a comment inside a field, too.
pub fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    // Nearly all bytes are letters and digits, for which the first comparison suffices.
    let ends = |byte: &u8| *byte <= b'#' && matches!(byte, b' ' | b'\t' | 0x0b | 0x0c | b'\r' | b'#');
    let mut rest = line;
    std::iter::from_fn(move || {
        let start = rest.iter().position(|byte| *byte == b'#' || !ends(byte))?;
        let content = &rest[start..];
        let end = content.iter().position(ends).unwrap_or(content.len());
        let (field, behind) = content.split_at(end);
        // The comment is not consumed, so that the iterator stays at its end.
        rest = behind;
        (!field.is_empty()).then_some(field)
    })
}

/// Parses an address without its zone (`%eth0`); an IPv4-mapped IPv6 address becomes the IPv4
/// address.
///
/// # Errors
/// [`LineError::LongAddress`], [`LineError::Address`].
pub fn address(field: &[u8]) -> Result<IpAddr, LineError> {
    if field.len() > MAX_FIELD {
        return Err(LineError::LongAddress);
    }
    let read = |text| str::from_utf8(text).ok()?.parse::<IpAddr>().ok();
    let zoned = || read(&field[..field.iter().position(|&byte| byte == b'%')?]);
    read(field).or_else(zoned).map(|address| address.to_canonical()).ok_or(LineError::Address)
}

/// Parses a name, with or without the final dot.
///
/// # Errors
/// [`LineError::LongName`], [`LineError::Encoding`], [`LineError::Name`].
pub fn name(field: &[u8]) -> Result<Name, LineError> {
    let mut name = Name::ROOT;
    name_into(&mut name, field)?;
    Ok(name)
}

/// Parses a name as [`name`] does, into the buffer of another name.
#[inline]
pub(crate) fn name_into(name: &mut Name, field: &[u8]) -> Result<(), LineError> {
    if field.len() > MAX_FIELD {
        return Err(LineError::LongName);
    }
    if !field.is_ascii() && str::from_utf8(field).is_err() {
        return Err(LineError::Encoding);
    }
    name.fill_text(field).map_err(LineError::Name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::NameError;

    #[test]
    fn splits_lines_into_fields() {
        for (line, want) in [
            ("", &[][..]),
            (" \t\r", &[]),
            ("# 127.0.0.1 a", &[]),
            ("127.0.0.1\ta\x0b b\x0c\r", &["127.0.0.1", "a", "b"]),
            ("  ::1 a#b c", &["::1", "a"]),
            ("::1 a #\u{fffd}", &["::1", "a"]),
        ] {
            let got: Vec<_> = fields(line.as_bytes()).map(|field| str::from_utf8(field).unwrap()).collect();
            assert_eq!(got, want, "{line:?}");
        }
    }

    #[test]
    fn parses_addresses_like_coredns() {
        for (field, want) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1%eth0", Some("192.0.2.1")),
            ("fe80::1%lo0", Some("fe80::1")),
            ("FE80:0:0::1", Some("fe80::1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("::192.0.2.1", Some("::192.0.2.1")),
            ("", None),
            ("%eth0", None),
            ("123.123.123", None),
            ("321.321.321.321", None),
            ("192.0.2.01", None),
            ("0x7f.0.0.1", None),
            ("::1::", None),
            ("[::1]", None),
            ("::1/128", None),
            ("localhost", None),
        ] {
            let want = want.map(|text| text.parse().unwrap()).ok_or(LineError::Address);
            assert_eq!(address(field.as_bytes()), want, "{field:?}");
        }
        assert_eq!(address(b"192.0.2.\xff"), Err(LineError::Address));
    }

    #[test]
    fn refuses_long_fields() {
        let long = [b'1'; MAX_FIELD + 1];
        assert_eq!(address(&long), Err(LineError::LongAddress));
        assert_eq!(address(&long[1..]), Err(LineError::Address));
        assert_eq!(name(&long), Err(LineError::LongName));
        assert_eq!(name(&long[1..]), Err(LineError::Name(NameError::LongLabel)));
    }

    #[test]
    fn parses_domain_names() {
        for (field, want) in [
            (&b"A.Example"[..], Ok("a.example.")),
            (b"a.example.", Ok("a.example.")),
            (b"_x-1.example", Ok("_x-1.example.")),
            (b"*.example", Ok("*.example.")),
            (b".", Ok(".")),
            (b"a..b", Err(LineError::Name(NameError::EmptyLabel))),
            (b"a.\xff", Err(LineError::Encoding)),
        ] {
            assert_eq!(name(field).map(|name| name.to_string()), want.map(str::to_owned), "{field:?}");
        }
    }
}
