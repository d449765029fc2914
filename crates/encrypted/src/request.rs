//! The DNS message of an HTTP request (RFC 8484, section 4.1), as CoreDNS reads it: neither
//! Content-Type nor Accept is looked at.

use std::borrow::Cow;
use std::sync::LazyLock;

use data_encoding::{BASE64URL_NOPAD, Encoding};

/// Whether this path of a request is the one that is served.
pub(crate) fn is_served(path: &str) -> bool {
    decoded(path, false).is_some_and(|path| *path == *PATH)
}

/// Returns the message of a GET request's query string; `None` without exactly one `dns`, or if it
/// is no base64url without padding.
pub(crate) fn message(query: &str) -> Option<Vec<u8>> {
    let mut values = query.split('&').filter_map(|pair| {
        // Go's parser ignores such pairs.
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let is_read = !pair.contains(';');
        let (name, value) = (decoded(name, true)?, decoded(value, true)?);
        (is_read && *name == *NAME).then_some(value)
    });
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    BASE64URL.decode(&value).ok()
}

/// Decodes percent-encoding, and `+` in a query string; `None` for an incomplete escape.
fn decoded(text: &str, in_query: bool) -> Option<Cow<'_, [u8]>> {
    let octets = text.as_bytes();
    if !octets.iter().any(|octet| matches!(octet, b'%' | b'+')) {
        return Some(octets.into());
    }
    let mut decoded = Vec::with_capacity(octets.len());
    let mut rest = octets;
    while let Some((&octet, after)) = rest.split_first() {
        rest = after;
        decoded.push(match octet {
            b'+' if in_query => b' ',
            b'%' => {
                let (digits, after) = rest.split_first_chunk::<2>()?;
                rest = after;
                let digit = |octet: u8| char::from(octet).to_digit(16);
                (digit(digits[0])? << 4 | digit(digits[1])?) as u8
            }
            octet => octet,
        });
    }
    Some(decoded.into())
}

/// The path that is served.
const PATH: &[u8] = b"/dns-query";
/// The variable of the query string.
const NAME: &[u8] = b"dns";
/// base64url without padding (RFC 4648, section 5); as Go's, it ignores bits beyond the last octet.
static BASE64URL: LazyLock<Encoding> = LazyLock::new(|| {
    let mut lenient = BASE64URL_NOPAD.specification();
    lenient.check_trailing_bits = false;
    lenient.encoding().unwrap_or(BASE64URL_NOPAD)
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_is_served() {
        for (path, served) in [
            ("/dns-query", true),
            ("/dns%2Dquery", true),
            ("/dns-query/", false),
            ("/", false),
            ("/DNS-query", false),
            ("/dns-query%", false),
            ("/dns+query", false),
        ] {
            assert_eq!(is_served(path), served, "{path}");
        }
    }

    #[test]
    fn query_string_has_one_message() {
        for (query, expected) in [
            ("dns=AAE", Some(&[0, 1][..])),
            ("dns=AAF", Some(&[0, 1])),
            ("a=b&dns=AAE&c", Some(&[0, 1])),
            ("%64ns=%41AE", Some(&[0, 1])),
            ("dns=-_8", Some(&[0xfb, 0xff])),
            ("dns=AAE;x&dns=AAE", Some(&[0, 1])),
            ("dns=%4&dns=AAE", Some(&[0, 1])),
            ("dns=", Some(&[])),
            ("dns", Some(&[])),
            ("", None),
            ("dnS=AAE", None),
            ("dns=AAE&dns=AAE", None),
            ("dns=AAE=", None),
            ("dns=A+E", None),
            ("dns=+/8", None),
            ("dns=A", None),
        ] {
            assert_eq!(message(query).as_deref(), expected, "{query}");
        }
    }
}
