//! Exponential backoff with jitter after failures.

use std::time::Duration;

use crate::settings::WatchError;

/// Consecutive failures of each class: the delay after a rejection does not depend on an earlier
/// outage.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    unreachable: u32,
    rejected: u32,
    credentials: u32,
}

/// Class of a failure, which decides the maximum delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureClass {
    /// The API does not respond.
    Unreachable,
    /// The API responds with an error.
    Rejected,
    /// Credentials are rejected or cannot be read: a changed file may end this.
    Credentials,
}

impl FailureClass {
    pub(super) fn of(why: &WatchError) -> Self {
        match why {
            WatchError::Connection { .. } | WatchError::Silent(_) | WatchError::Slow(_) => Self::Unreachable,
            WatchError::Unauthorized { .. } | WatchError::Access { .. } => Self::Credentials,
            _ => Self::Rejected,
        }
    }
}

impl Backoff {
    /// Counts a failure and returns the delay; `random` is 0 to 1. The jitter spreads nodes that
    /// lose the API at the same time.
    pub(super) fn failed(&mut self, what: FailureClass, random: f64) -> Duration {
        let (failures, most) = match what {
            FailureClass::Unreachable => (&mut self.unreachable, MAX_WAIT_CONNECT),
            FailureClass::Rejected => (&mut self.rejected, MAX_WAIT),
            FailureClass::Credentials => (&mut self.credentials, MAX_WAIT_CREDENTIALS),
        };
        let base = MIN_WAIT.saturating_mul(1 << (*failures).min(16)).min(most);
        *failures += 1;
        base.mul_f64(0.5 + random.clamp(0.0, 1.0))
    }

    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

const MIN_WAIT: Duration = Duration::from_millis(200);
pub(super) const MAX_WAIT: Duration = Duration::from_secs(30);
const MAX_WAIT_CONNECT: Duration = Duration::from_secs(10);
/// 5 s including jitter.
const MAX_WAIT_CREDENTIALS: Duration = Duration::from_millis(3_333);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_their_maximum() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> =
            (0..40).map(|_| backoff.failed(FailureClass::Unreachable, 0.5).as_millis()).collect();
        assert_eq!(waits[..8], [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        assert!(waits[8..].iter().all(|wait| *wait == 10_000));
        assert_eq!(backoff.failed(FailureClass::Rejected, 0.5).as_millis(), 200, "classes are independent");
        let known = (0..40).map(|_| backoff.failed(FailureClass::Credentials, 1.0)).collect::<Vec<_>>();
        assert_eq!(known[0].as_millis(), 300, "classes are independent");
        assert!(known.iter().all(|wait| *wait < Duration::from_secs(5)), "{known:?}");
        backoff.reset();
        assert_eq!(backoff.failed(FailureClass::Unreachable, 0.0).as_millis(), 100);
        assert_eq!(backoff.failed(FailureClass::Unreachable, 1.0).as_millis(), 600);
    }
}
