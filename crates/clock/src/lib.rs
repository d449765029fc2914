//! Reads the clocks, for all crates: other code receives the time as an argument.

pub mod throttle;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns the time of the monotonic clock.
#[inline]
#[allow(clippy::disallowed_methods, reason = "this is the one reader")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the time since boot, suspension included (CLOCK_BOOTTIME): the same for all processes of
/// the machine.
pub fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

/// Returns the time of the wall clock, for output and timestamps.
#[allow(clippy::disallowed_methods, reason = "this is the one reader")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Returns the time of the wall clock in milliseconds since 1970.
pub fn wall_ms() -> u64 {
    wall().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
