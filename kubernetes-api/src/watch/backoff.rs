//! How long to wait after a failure: twice as long after each, with jitter, within a bound.

use std::time::Duration;

/// Failures in a row: of an API that is not heard, and of one that answers so. Each have their own number, so that an API
/// that is back is asked again as soon as one that never was gone.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    unheard: u32,
    refused: u32,
}

impl Backoff {
    /// One more; `random` is 0 to 1. Many nodes lose the same API at the same moment, and should not come back at one.
    pub(super) fn failed(&mut self, is_heard: bool, random: f64) -> Duration {
        let (failures, most) = match is_heard {
            true => (&mut self.refused, MOST_WAIT),
            false => (&mut self.unheard, MOST_WAIT_TO_CONNECT),
        };
        let base = LEAST.saturating_mul(1 << (*failures).min(16)).min(most);
        *failures += 1;
        base.mul_f64(0.5 + random.clamp(0.0, 1.0))
    }

    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

const LEAST: Duration = Duration::from_millis(200);
pub(super) const MOST_WAIT: Duration = Duration::from_secs(30);
const MOST_WAIT_TO_CONNECT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_bound_and_begin_again() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..40).map(|_| backoff.failed(false, 0.5).as_millis()).collect();
        assert_eq!(waits[..8], [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        assert!(waits[8..].iter().all(|wait| *wait == 10_000));
        assert_eq!(backoff.failed(true, 0.5).as_millis(), 200, "the first time that it answers so");
        backoff.reset();
        assert_eq!(backoff.failed(false, 0.0).as_millis(), 100);
        assert_eq!(backoff.failed(false, 1.0).as_millis(), 600);
    }
}
