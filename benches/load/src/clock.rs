//! The clock of a run: the only place that reads the time.

use std::time::{Duration, Instant};

/// Nanoseconds since the run began, the same for all of its threads.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero: Instant,
}

impl Clock {
    /// Starts a clock at zero.
    #[allow(clippy::disallowed_methods, reason = "the time is read here, for all other code")]
    pub fn start() -> Self {
        Self { zero: Instant::now() }
    }

    /// Returns the nanoseconds since the clock's start; overflows after 584 years.
    #[inline]
    #[allow(clippy::disallowed_methods, reason = "the time is read here, for all other code")]
    pub fn now_ns(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }

    /// Sleeps until `at_ns`; returns at once if that is past.
    pub fn sleep_until(&self, at_ns: u64) {
        std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(self.now_ns())));
    }
}
