//! JSON strings and timestamps of log lines.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::Offset;

use super::log_format::{HEX, push_fraction, push_number, push_pair};

/// Appends `text` as a JSON string (RFC 8259, section 7); bytes that are not UTF-8 become U+FFFD.
pub(crate) fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    let start = out.len();
    for chunk in text.utf8_chunks() {
        out.extend_from_slice(chunk.valid().as_bytes());
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    quote_from(out, start);
}

/// Turns `out[start..]`, which must be UTF-8, into a JSON string in place.
pub(crate) fn quote_from(out: &mut Vec<u8>, start: usize) {
    let end = out.len();
    let more: usize = out[start..].iter().map(|byte| escaped(*byte).1 - 1).sum();
    out.resize(end + more + 2, b'"');
    // Backwards, since every byte moves to the right or stays.
    let mut to = out.len() - 1;
    for from in (start..end).rev() {
        let (text, length) = escaped(out[from]);
        to -= length;
        out[to..to + length].copy_from_slice(&text[..length]);
    }
    out[start] = b'"';
}

/// A byte's text within a JSON string, and the length of the text.
fn escaped(byte: u8) -> ([u8; 6], usize) {
    let short = |letter| ([b'\\', letter, 0, 0, 0, 0], 2);
    match byte {
        b'"' | b'\\' => short(byte),
        b'\n' => short(b'n'),
        b'\r' => short(b'r'),
        b'\t' => short(b't'),
        0..0x20 => {
            let [high, low] = [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]);
            ([b'\\', b'u', b'0', b'0', high, low], 6)
        }
        _ => ([byte, 0, 0, 0, 0, 0], 1),
    }
}

/// Appends `at` in UTC in the format of RFC 3339, section 5.6, with up to nine decimals. A time before 1970 reads as the start
/// of 1970.
pub(crate) fn push_time(out: &mut Vec<u8>, at: SystemTime) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    // A time after the year 9999 reads as 1970, too.
    let second = i64::try_from(since.as_secs()).unwrap_or_default();
    let at = Offset::UTC.to_datetime(Timestamp::from_second(second).unwrap_or_default());
    push_number(out, at.year().unsigned_abs().into());
    for (before, number) in
        [(b'-', at.month()), (b'-', at.day()), (b'T', at.hour()), (b':', at.minute()), (b':', at.second())]
    {
        out.push(before);
        push_pair(out, number.unsigned_abs().into());
    }
    push_fraction(out, since.subsec_nanos());
    out.push(b'Z');
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn timestamps() {
        for (seconds, nanos, text) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_782_399, 0, "2000-02-28T23:59:59Z"),
            (951_782_400, 0, "2000-02-29T00:00:00Z"),
            (951_868_800, 0, "2000-03-01T00:00:00Z"),
            (1_709_164_800, 0, "2024-02-29T00:00:00Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00Z"),
            (1_795_248_408, 366_387_750, "2026-11-21T08:06:48.36638775Z"),
            (1_795_248_408, 1, "2026-11-21T08:06:48.000000001Z"),
        ] {
            let mut out = Vec::new();
            push_time(&mut out, UNIX_EPOCH + Duration::new(seconds, nanos));
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    #[test]
    fn strings() {
        for (text, json) in [
            (&b"a \"b\" \\"[..], r#""a \"b\" \\""#),
            (b"one\ntwo\r\t\0\x1f\x7f", "\"one\\ntwo\\r\\t\\u0000\\u001f\x7f\""),
            ("\u{e9}".as_bytes(), "\"\u{e9}\""),
            (b"a\xffb", "\"a\u{fffd}b\""),
        ] {
            let mut out = Vec::new();
            push_string(&mut out, text);
            assert_eq!(String::from_utf8(out.clone()).unwrap(), json);
            let back: String = serde_json::from_slice(&out).unwrap();
            assert_eq!(back, String::from_utf8_lossy(text));
        }
    }
}
