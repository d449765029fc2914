//! Parses times in RFC 3339, in UTC or with an offset.

use crate::objects::SinceEpoch;

/// Parses a time such as `2026-11-23T13:42:25.123456789Z`; `None` if it is invalid or before 1970.
pub(super) fn parse(text: &str) -> Option<SinceEpoch> {
    let at: jiff::Timestamp = text.parse().ok()?;
    at.as_duration().try_into().ok().map(SinceEpoch)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn parses_rfc3339() {
        for (text, seconds, nanos) in [
            ("1970-01-01T00:00:00Z", 0, 0),
            ("2026-11-23T13:42:25.5Z", 1_795_441_345, 500_000_000),
            ("2024-02-29T23:59:59.000000001Z", 1_709_251_199, 1),
            ("2000-03-01T01:00:00+01:00", 951_868_800, 0),
            ("1999-12-31T23:30:00-00:30", 946_684_800, 0),
        ] {
            assert_eq!(parse(text), Some(SinceEpoch(Duration::new(seconds, nanos))), "{text}");
        }
        for text in [
            "",
            "T",
            "1969-12-31T23:59:59Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T0:0:0Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+é1:00",
            "２026-01-01T00:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
