//! Go's syntax for values: durations, numbers and truth values of a Corefile.

use std::time::Duration;

/// Why a word is no valid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// An invalid duration.
    #[error("bad duration `{found:.120}`, expected numbers with units such as `1h30m`, `1.5s` or `500ms`")]
    NotDuration {
        /// The text found.
        found: String,
    },
    /// A number without unit: Go accepts that only for `0`.
    #[error("missing unit in duration `{found:.120}`, expected ns, us, ms, s, m or h after each number")]
    MissingUnit {
        /// The text found.
        found: String,
    },
    /// A number with an unknown unit.
    #[error("unknown unit `{unit:.120}` in duration `{found:.120}`, expected ns, us, ms, s, m or h")]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The text found.
        found: String,
    },
    /// A duration above 2^63 - 1 ns, some 292 years.
    #[error("duration `{found:.120}` is too long")]
    DurationTooLong {
        /// The text found.
        found: String,
    },
    /// A duration below 0. Go accepts it; no directive does.
    #[error("duration `{found:.120}` is negative")]
    NegativeDuration {
        /// The text found.
        found: String,
        /// The duration without its sign.
        magnitude: Duration,
    },
    /// An invalid whole number.
    #[error("bad number `{found:.120}`, expected decimal digits")]
    NotNumber {
        /// The text found.
        found: String,
    },
    /// A whole number beyond 64 bits.
    #[error("number `{found:.120}` is too large")]
    NumberTooLarge {
        /// The text found.
        found: String,
    },
    /// An invalid truth value.
    #[error("bad truth value `{found:.120}`, expected true or false")]
    NotBool {
        /// The text found.
        found: String,
    },
}

/// Reads a duration as Go's `time.ParseDuration`: an optional sign, then `0` or numbers with units, in any order, added.
/// A number may have a fraction (`1.5s`, `.5s`, `1.s`). Units: ns, us, `µs` (either mu), ms, s, m, h.
///
/// # Errors
/// Any other text; a duration above 2^63 - 1 ns; a negative duration, with its magnitude.
pub fn parse_duration(text: &str) -> Result<Duration, ValueError> {
    let found = || text.to_owned();
    let (negative, mut rest) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(ValueError::NotDuration { found: found() });
    }
    let mut total_ns: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split_where(rest, |c| c != '.' && !c.is_ascii_digit());
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let (fraction, second_dot) = split_where(fraction, |c| c == '.');
        if whole.is_empty() && fraction.is_empty() {
            return Err(ValueError::NotDuration { found: found() });
        }
        let (unit, after) = split_where(after, |c| c == '.' || c.is_ascii_digit());
        if unit.is_empty() || !second_dot.is_empty() {
            return Err(ValueError::MissingUnit { found: found() });
        }
        let unit_ns =
            unit_ns(unit).ok_or_else(|| ValueError::UnknownUnit { unit: unit.to_owned(), found: found() })?;
        total_ns = nanoseconds(whole, fraction, unit_ns)
            .and_then(|ns| total_ns.checked_add(ns))
            .filter(|&ns| ns <= MIN_DURATION_NS)
            .ok_or_else(|| ValueError::DurationTooLong { found: found() })?;
        rest = after;
    }
    let magnitude = Duration::from_nanos(total_ns);
    match negative && total_ns > 0 {
        true => Err(ValueError::NegativeDuration { found: found(), magnitude }),
        false if total_ns == MIN_DURATION_NS => Err(ValueError::DurationTooLong { found: found() }),
        false => Ok(magnitude),
    }
}

/// Prints a duration as Go does: `1h0m0s`, `1.5s`, `500ms`, `1µs`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    let ns = duration.as_nanos();
    match ns {
        0 => "0s".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => decimal(ns, 1_000, 3) + "µs",
        1_000_000..SECOND_NS => decimal(ns, 1_000_000, 6) + "ms",
        _ => {
            let minutes = ns / MINUTE_NS;
            let seconds = decimal(ns % MINUTE_NS, SECOND_NS, 9);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{seconds}s"),
                (0, minutes) => format!("{minutes}m{seconds}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

/// Reads a whole number as Go's `strconv.Atoi`: decimal digits with an optional sign.
///
/// # Errors
/// Any other text; a number beyond 64 bits.
pub fn parse_int(text: &str) -> Result<i64, ValueError> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ValueError::NotNumber { found: text.to_owned() });
    }
    text.parse().map_err(|_| ValueError::NumberTooLarge { found: text.to_owned() })
}

/// Reads a truth value as Go's `strconv.ParseBool`: 1, t, T, true, True, TRUE and 0, f, F, false, False, FALSE.
///
/// # Errors
/// Any other text.
pub fn parse_bool(text: &str) -> Result<bool, ValueError> {
    match text {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
        _ => Err(ValueError::NotBool { found: text.to_owned() }),
    }
}

fn split_where(text: &str, is_end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(is_end).unwrap_or(text.len()))
}

fn unit_ns(unit: &str) -> Option<u64> {
    match unit {
        "ns" => Some(1),
        "us" | "\u{b5}s" | "\u{3bc}s" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        "m" => Some(60_000_000_000),
        "h" => Some(3_600_000_000_000),
        _ => None,
    }
}

/// Returns `whole.fraction` times the unit, truncated to nanoseconds; `None` above 2^63. As in Go
/// the fraction passes through a 64-bit float, which affects printed values.
fn nanoseconds(whole: &str, fraction: &str, unit_ns: u64) -> Option<u64> {
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let (numerator, denominator) = leading_fraction(fraction);
    let part = (numerator as f64 * (unit_ns as f64 / denominator)) as u64;
    whole.checked_mul(unit_ns)?.checked_add(part).filter(|&ns| ns <= MIN_DURATION_NS)
}

/// Returns the fraction's digits as a number, and the power of ten that divides it. Digits beyond
/// 63 bits are dropped.
fn leading_fraction(digits: &str) -> (u64, f64) {
    let mut numerator: u64 = 0;
    let mut denominator = 1.0;
    for digit in digits.bytes() {
        let next = numerator.checked_mul(10).and_then(|n| n.checked_add(u64::from(digit - b'0')));
        let Some(next) = next.filter(|&n| n <= MIN_DURATION_NS) else { break };
        numerator = next;
        denominator *= 10.0;
    }
    (numerator, denominator)
}

/// Prints `value / unit` with a fraction of at most `places` digits, without trailing zeros.
fn decimal(value: u128, unit: u128, places: usize) -> String {
    let fraction = format!("{:0places$}", value % unit);
    match fraction.trim_end_matches('0') {
        "" => (value / unit).to_string(),
        fraction => format!("{}.{fraction}", value / unit),
    }
}

const SECOND_NS: u128 = 1_000_000_000;
const MINUTE_NS: u128 = 60 * SECOND_NS;
/// The magnitude of Go's smallest duration; the largest duration is one less.
const MIN_DURATION_NS: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parse_durations() {
        for (text, ns) in [
            ("0", 0),
            ("+0", 0),
            ("-0", 0),
            ("0s", 0),
            ("-0s", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            ("500ms", 500_000_000),
            ("1us", 1_000),
            ("1µs", 1_000),
            ("1μs", 1_000),
            ("1.", -1),
            ("1.s", 1_000_000_000),
            (".5s", 500_000_000),
            ("3m1h", 3_780_000_000_000),
            ("1s1s", 2_000_000_000),
            ("0.100000000000000000000h", 360_000_000_000),
            ("0.9223372036854775807h", 3_320_413_933_267),
            ("39h9m14.425s", 140_954_425_000_000),
            ("9223372036854775807ns", i64::MAX),
            ("9223372036854775807.9ns", i64::MAX),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("9223372036854ms775us807ns", i64::MAX),
            ("72000s", 72_000_000_000_000),
        ] {
            let expected = u64::try_from(ns).ok().map(Duration::from_nanos);
            assert_eq!(parse_duration(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn bad_durations() {
        for (text, expected) in [
            ("", "bad duration ``, expected numbers with units such as `1h30m`, `1.5s` or `500ms`"),
            ("-", "bad duration `-`, expected numbers with units such as `1h30m`, `1.5s` or `500ms`"),
            ("s", "bad duration `s`, expected numbers with units such as `1h30m`, `1.5s` or `500ms`"),
            (".s", "bad duration `.s`, expected numbers with units such as `1h30m`, `1.5s` or `500ms`"),
            ("..5s", "bad duration `..5s`, expected numbers with units such as `1h30m`, `1.5s` or `500ms`"),
            ("30", "missing unit in duration `30`, expected ns, us, ms, s, m or h after each number"),
            ("1m30", "missing unit in duration `1m30`, expected ns, us, ms, s, m or h after each number"),
            ("1..s", "missing unit in duration `1..s`, expected ns, us, ms, s, m or h after each number"),
            ("00", "missing unit in duration `00`, expected ns, us, ms, s, m or h after each number"),
            ("1.2.3s", "missing unit in duration `1.2.3s`, expected ns, us, ms, s, m or h after each number"),
            ("1d", "unknown unit `d` in duration `1d`, expected ns, us, ms, s, m or h"),
            ("1 s", "unknown unit ` s` in duration `1 s`, expected ns, us, ms, s, m or h"),
            ("1S", "unknown unit `S` in duration `1S`, expected ns, us, ms, s, m or h"),
            ("1s-1s", "unknown unit `s-` in duration `1s-1s`, expected ns, us, ms, s, m or h"),
            ("9223372036854775808ns", "duration `9223372036854775808ns` is too long"),
            ("99999999999999999999s", "duration `99999999999999999999s` is too long"),
            ("3000000h", "duration `3000000h` is too long"),
            ("-5s", "duration `-5s` is negative"),
            ("-9223372036854775808ns", "duration `-9223372036854775808ns` is negative"),
        ] {
            assert_eq!(parse_duration(text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn negative_duration_magnitude() {
        let Err(ValueError::NegativeDuration { magnitude, .. }) = parse_duration("-1.5s") else { panic!() };
        assert_eq!(magnitude, Duration::from_millis(1500));
    }

    #[test]
    fn format_durations() {
        for (ns, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (500_000_000, "500ms"),
            (3_300_000_000, "3.3s"),
            (60_000_000_000, "1m0s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (3_600_000_000_000, "1h0m0s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (9_223_372_036_854_775_807, "2562047h47m16.854775807s"),
        ] {
            assert_eq!(format_duration(Duration::from_nanos(ns)), expected);
        }
        assert_eq!(format_duration(Duration::MAX), "5124095576030431h0m15.999999999s");
    }

    #[test]
    fn parse_numbers() {
        for (text, expected) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("+53", Some(53)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("+", None),
            ("--1", None),
            ("1_000", None),
            ("0x10", None),
            (" 1", None),
            ("1.0", None),
            ("١", None),
        ] {
            assert_eq!(parse_int(text).ok(), expected, "{text}");
        }
        assert_eq!(
            parse_int("99999999999999999999"),
            Err(ValueError::NumberTooLarge { found: "99999999999999999999".to_owned() })
        );
    }

    #[test]
    fn parse_bools() {
        for (text, expected) in [
            ("1", Some(true)),
            ("t", Some(true)),
            ("True", Some(true)),
            ("FALSE", Some(false)),
            ("0", Some(false)),
            ("tRUE", None),
            ("yes", None),
            ("", None),
        ] {
            assert_eq!(parse_bool(text).ok(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn printed_durations_read_back(ns in 0..=i64::MAX as u64) {
            // The fraction of a second passes through a float with 53 bits of precision, yet a
            // printed duration is read back exactly.
            let duration = Duration::from_nanos(ns);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "[-+.0-9a-zµμ ]{0,40}") {
            let _ = parse_duration(&text);
            let _ = parse_int(&text);
        }
    }
}
