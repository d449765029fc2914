//! When a name is looked up again.

use std::time::Duration;

/// The schedule of lookups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// The time between rounds; default 15 min, at least 5 s.
    interval: Duration,
    /// Maximum random addition to the interval, which spreads nodes evenly; default 60 s.
    jitter: Duration,
    /// The earliest next round because of a TTL; `None` if TTLs are ignored.
    floor: Option<Duration>,
}

impl Schedule {
    /// Every `interval`, at least 5 s, plus a jitter of up to `jitter`, by default a fifteenth of the interval.
    ///
    /// A shorter TTL makes the next round earlier: after 5 min at the earliest, or after a shorter interval, but never before 30 s.
    pub fn every(interval: Duration, jitter: Option<Duration>) -> Self {
        let interval = interval.max(LEAST_INTERVAL);
        let floor = interval.clamp(LEAST_FLOOR, FLOOR);
        Self { interval, jitter: jitter.unwrap_or(interval / 15), floor: Some(floor) }
    }

    /// Every `interval`, at least 5 s, without jitter; TTLs are ignored.
    pub fn exactly(interval: Duration) -> Self {
        Self { interval: interval.max(LEAST_INTERVAL), jitter: Duration::ZERO, floor: None }
    }

    /// The delay from the start of a round with an answer to the next lookup. `draw` is a random number from 0 to 1.
    pub fn after_answer(&self, ttl: Option<u32>, draw: f64) -> Duration {
        let early = match (ttl, self.floor) {
            (Some(ttl), Some(floor)) => Duration::from_secs(ttl.into()).max(floor).min(self.interval),
            _ => self.interval,
        };
        early + self.jitter.mul_f64(draw.clamp(0.0, 1.0))
    }

    /// The delay from the start of a round without any reply, the `failures`th in a row.
    ///
    /// 30 s, or 5 s if no server ever replied, doubled each time, and at most the delay after an answer.
    pub fn after_failure(&self, failures: u32, heard_before: bool, draw: f64) -> Duration {
        let first = if heard_before { FIRST_RETRY } else { FIRST_RETRY_UNKNOWN };
        let retry = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        retry.mul_f64(1.0 + draw.clamp(0.0, 1.0) / 2.0).min(self.after_answer(None, draw))
    }

    /// The time between rounds.
    pub fn interval(&self) -> Duration {
        self.interval
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self::every(Duration::from_secs(15 * 60), None)
    }
}

/// The shortest interval.
pub const LEAST_INTERVAL: Duration = Duration::from_secs(5);
const FLOOR: Duration = Duration::from_secs(5 * 60);
const LEAST_FLOOR: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_secs(30);
const FIRST_RETRY_UNKNOWN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn ttl_makes_the_next_round_earlier() {
        let usual = Schedule::default();
        let short = Schedule::every(seconds(60), Some(Duration::ZERO));
        let shortest = Schedule::every(seconds(10), Some(Duration::ZERO));
        let exact = Schedule::exactly(seconds(600));
        for (schedule, ttl, draw, expected) in [
            (usual, None, 0.0, 900),
            (usual, None, 1.0, 960),
            (usual, Some(0), 0.0, 300),
            (usual, Some(60), 0.5, 330),
            (usual, Some(400), 0.0, 400),
            (usual, Some(100_000), 1.0, 960),
            (usual, Some(u32::MAX), 7.0, 960),
            (short, Some(1), 0.0, 60),
            (Schedule::every(seconds(200), None), Some(1), 0.0, 200),
            (Schedule::every(seconds(1000), Some(seconds(7))), Some(1), 1.0, 307),
            (shortest, Some(1), 1.0, 10),
            (exact, Some(1), 1.0, 600),
            (Schedule::exactly(seconds(1)), None, 1.0, 5),
            (Schedule::exactly(seconds(5)), None, 1.0, 5),
            (Schedule::every(Duration::ZERO, None), None, 0.0, 5),
        ] {
            assert_eq!(schedule.after_answer(ttl, draw), seconds(expected), "{schedule:?} {ttl:?} {draw}");
        }
    }

    #[test]
    fn failure_backoff() {
        let schedule = Schedule::default();
        let waits = |heard, draw| {
            (1..8).map(|n| schedule.after_failure(n, heard, draw).as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(waits(false, 0.0), [5, 10, 20, 40, 80, 160, 320]);
        assert_eq!(waits(true, 0.0), [30, 60, 120, 240, 480, 900, 900]);
        assert_eq!(waits(true, 1.0), [45, 90, 180, 360, 720, 960, 960]);
        assert_eq!(schedule.after_failure(u32::MAX, true, 0.0), seconds(900));
        assert_eq!(Schedule::exactly(seconds(5)).after_failure(1, true, 1.0), seconds(5));
    }
}
