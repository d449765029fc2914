//! When a name is asked for again.

use std::time::Duration;

/// How often names are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// From one round to the next; default 15 min, at least 5 s.
    interval: Duration,
    /// Up to how much is added, evenly spread over nodes; default 60 s.
    jitter: Duration,
    /// How soon a TTL may bring the next round about; never where TTLs do not count.
    floor: Option<Duration>,
}

impl Schedule {
    /// Every `interval`, brought to at least 5 s, with `jitter` or else a fifteenth of the interval.
    ///
    /// A TTL brings the next round about earlier: after 5 min at the soonest, or after an interval that is less, and never
    /// under 30 s.
    pub fn every(interval: Duration, jitter: Option<Duration>) -> Self {
        let interval = interval.max(LEAST_INTERVAL);
        let floor = interval.clamp(LEAST_FLOOR, FLOOR);
        Self { interval, jitter: jitter.unwrap_or(interval / 15), floor: Some(floor) }
    }

    /// Every `interval` as it is, at least 5 s: no jitter, whatever the TTLs say.
    pub fn exactly(interval: Duration) -> Self {
        Self { interval: interval.max(LEAST_INTERVAL), jitter: Duration::ZERO, floor: None }
    }

    /// How long after the beginning of a round an answer is asked for again. `draw` is from 0 to 1, by chance.
    pub fn after_answer(&self, ttl: Option<u32>, draw: f64) -> Duration {
        let early = match (ttl, self.floor) {
            (Some(ttl), Some(floor)) => Duration::from_secs(ttl.into()).max(floor).min(self.interval),
            _ => self.interval,
        };
        early + self.jitter.mul_f64(draw.clamp(0.0, 1.0))
    }

    /// How long after the beginning of a round in which nobody said anything, for the `failures`th time in a row.
    ///
    /// 30 s, or 5 s where nobody ever did; twice that each time, and later than an answer never.
    pub fn after_failure(&self, failures: u32, heard_before: bool, draw: f64) -> Duration {
        let first = if heard_before { FIRST_RETRY } else { FIRST_RETRY_UNKNOWN };
        let retry = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        retry.mul_f64(1.0 + draw.clamp(0.0, 1.0) / 2.0).min(self.after_answer(None, draw))
    }

    /// From one round to the next.
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
    fn a_ttl_brings_the_next_round_forward_within_bounds_and_never_puts_it_off() {
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
    fn failures_are_tried_again_ever_later_but_no_later_than_answers() {
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
