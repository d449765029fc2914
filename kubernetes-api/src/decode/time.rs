//! Times as Kubernetes writes them: RFC 3339, in UTC or with an offset.

use std::time::Duration;

use crate::objects::SinceEpoch;

/// `2026-11-23T13:42:25.123456789Z`; `None` for anything else, and for what was before 1970.
pub(super) fn parse(text: &str) -> Option<SinceEpoch> {
    let (date, time) = text.split_once(['T', 't'])?;
    let mut date = date.split('-');
    let (year, month, day) = (number(date.next()?, 4)?, number(date.next()?, 2)?, number(date.next()?, 2)?);
    if date.next().is_some() || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (time, offset) = offset(time)?;
    let (time, nanos) =
        time.split_once('.').map_or(Some((time, 0)), |(time, part)| Some((time, nanos(part)?)))?;
    let mut time = time.split(':');
    let (hour, minute, second) =
        (number(time.next()?, 2)?, number(time.next()?, 2)?, number(time.next()?, 2)?);
    if time.next().is_some() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    u64::try_from(seconds).ok().map(|seconds| SinceEpoch(Duration::new(seconds, nanos)))
}

/// The time without its offset, and that in seconds east.
fn offset(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix(['Z', 'z']) {
        return Some((time, 0));
    }
    let at = time.rfind(['+', '-'])?;
    let (hours, minutes) = time[at + 1..].split_once(':')?;
    let seconds = number(hours, 2)? * 3_600 + number(minutes, 2)? * 60;
    Some((&time[..at], if time.as_bytes()[at] == b'-' { -seconds } else { seconds }))
}

fn number(text: &str, digits: usize) -> Option<i64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

fn nanos(part: &str) -> Option<u32> {
    let digits = !part.is_empty() && part.len() <= 9 && part.bytes().all(|byte| byte.is_ascii_digit());
    if digits { Some(part.parse::<u32>().ok()? * 10_u32.pow(9 - part.len() as u32)) } else { None }
}

/// Days since 1970 in the Gregorian calendar, with years that begin in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
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
