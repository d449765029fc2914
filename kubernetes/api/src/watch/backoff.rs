//! How long to wait after a failure: twice as long after each, with jitter, within a bound.

use std::time::Duration;

use crate::settings::Lost;

/// Failures in a row of each sort: an API that is back is asked again as soon as one that never was gone.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    unheard: u32,
    refused: u32,
    unknown: u32,
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The API is not heard.
    Unheard,
    /// It answers so.
    Refused,
    /// Who asks is not known to it, or nobody here: that is over as soon as a file is another.
    Unknown,
}

impl Failed {
    pub(super) fn of(why: &Lost) -> Self {
        match why {
            Lost::Connection { .. } | Lost::Silent(_) | Lost::Slow(_) => Self::Unheard,
            Lost::Unauthorized { .. } | Lost::Access { .. } => Self::Unknown,
            _ => Self::Refused,
        }
    }
}

impl Backoff {
    /// One more; `random` is 0 to 1. Many nodes lose the same API at the same moment, and should not come back at one.
    pub(super) fn failed(&mut self, what: Failed, random: f64) -> Duration {
        let (failures, most) = match what {
            Failed::Unheard => (&mut self.unheard, MOST_WAIT_TO_CONNECT),
            Failed::Refused => (&mut self.refused, MOST_WAIT),
            Failed::Unknown => (&mut self.unknown, MOST_WAIT_TO_BE_KNOWN),
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
/// With its jitter 5 s.
const MOST_WAIT_TO_BE_KNOWN: Duration = Duration::from_millis(3_333);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_bound_and_begin_again() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..40).map(|_| backoff.failed(Failed::Unheard, 0.5).as_millis()).collect();
        assert_eq!(waits[..8], [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        assert!(waits[8..].iter().all(|wait| *wait == 10_000));
        assert_eq!(
            backoff.failed(Failed::Refused, 0.5).as_millis(),
            200,
            "the first time that it answers so"
        );
        let known = (0..40).map(|_| backoff.failed(Failed::Unknown, 1.0)).collect::<Vec<_>>();
        assert_eq!(known[0].as_millis(), 300, "nor the first that is not accepted");
        assert!(known.iter().all(|wait| *wait < Duration::from_secs(5)), "{known:?}");
        backoff.reset();
        assert_eq!(backoff.failed(Failed::Unheard, 0.0).as_millis(), 100);
        assert_eq!(backoff.failed(Failed::Unheard, 1.0).as_millis(), 600);
    }
}
