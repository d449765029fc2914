//! Restart backoff of a worker that panicked.

use std::time::Duration;

/// The pause before a worker restarts: 10 ms, doubled each time up to 1 s while the loop does not
/// complete a turn. So a bad packet costs little, and a bug in every turn does not occupy a core or
/// fill the log.
#[derive(Default)]
pub(super) struct RestartBackoff(Option<Duration>);

impl RestartBackoff {
    /// Returns the next pause; `turned`: the loop completed a turn since the last one.
    pub(super) fn next(&mut self, turned: bool) -> Duration {
        let pause = match self.0 {
            Some(last) if !turned => (last * 2).min(LONGEST_PAUSE),
            _ => SHORTEST_PAUSE,
        };
        *self.0.insert(pause)
    }
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_until_a_turn_is_done() {
        let mut pause = RestartBackoff::default();
        let mut next = |turned| pause.next(turned).as_millis();
        let growing = [10, 20, 40, 80, 160, 320, 640, 1000, 1000];
        assert_eq!(growing.map(|_| next(false)), growing);
        assert_eq!([next(true), next(true), next(false), next(false), next(true)], [10, 10, 20, 40, 10]);
    }
}
