//! How long to wait after a failure: twice as long after each, with jitter, within a bound.

use std::time::Duration;

/// Failures in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// One more; `random` is 0 to 1. Many nodes lose the same API at the same moment, and should not come back at one.
    pub(super) fn failed(&mut self, most: Duration, random: f64) -> Duration {
        let base = LEAST.saturating_mul(1 << self.failures.min(16)).min(most);
        self.failures += 1;
        base.mul_f64(0.5 + random.clamp(0.0, 1.0))
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

const LEAST: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_bound_and_begin_again() {
        let (mut backoff, most) = (Backoff::default(), Duration::from_secs(10));
        let waits: Vec<_> = (0..40).map(|_| backoff.failed(most, 0.5).as_millis()).collect();
        assert_eq!(waits[..8], [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        assert!(waits[8..].iter().all(|wait| *wait == 10_000));
        backoff.reset();
        assert_eq!(backoff.failed(most, 0.0).as_millis(), 100);
        assert_eq!(backoff.failed(most, 1.0).as_millis(), 600);
    }
}
