//! The one place that reads clocks; everything else is handed the time.

use std::time::{Instant, SystemTime};

/// The monotonic clock.
#[inline]
#[allow(clippy::disallowed_methods, reason = "this is the one reader")]
pub fn now() -> Instant {
    Instant::now()
}

/// The wall clock, for what is printed or published.
#[allow(clippy::disallowed_methods, reason = "this is the one reader")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}
