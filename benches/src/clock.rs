//! The clock of a run: the one place where the time is read.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the run began, the same for all of its threads.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero: Instant,
}

impl Clock {
    /// A clock that shows zero now.
    #[allow(clippy::disallowed_methods, reason = "here the time is read, for everybody else")]
    pub fn start() -> Self {
        Self { zero: Instant::now() }
    }

    /// Nanoseconds since its start; 584 years fit.
    #[inline]
    #[allow(clippy::disallowed_methods, reason = "here the time is read, for everybody else")]
    pub fn now_ns(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }

    /// Sleeps until `at_ns`; returns at once when that is past.
    pub fn sleep_until(&self, at_ns: u64) {
        std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(self.now_ns())));
    }
}

/// Today's date in UTC as `2026-01-31`.
pub fn today() -> String {
    #[allow(clippy::disallowed_methods, reason = "here the time is read, for everybody else")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs() / 86_400)
}

/// The date of a day counted from 1970-01-01.
fn date(day: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, day);
    loop {
        let days = 365 + u64::from(leap(year));
        if left < days {
            break;
        }
        left -= days;
        year += 1;
    }
    let mut month = 1;
    for days in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < days {
            break;
        }
        left -= days;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (day, text) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (789, "1972-02-29"),
            (11_016, "2000-02-29"),
            (11_322, "2000-12-31"),
            (20_778, "2026-11-21"),
        ] {
            assert_eq!(date(day), text);
        }
    }
}
