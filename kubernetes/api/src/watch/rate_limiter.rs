//! How fast the API is asked: a bucket of tokens that fills with time.

use std::time::{Duration, Instant};

/// Tokens for requests; each takes one.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Between two tokens; zero where there is no bound.
    interval: Duration,
    burst: u32,
    /// When all tokens that were taken are back.
    full: Instant,
}

impl Bucket {
    /// Full: `burst` tokens, at least one, and `per_second` that come.
    pub(super) fn new(per_second: f64, burst: u32, now: Instant) -> Self {
        let interval = if per_second > 0.0 { LONGEST.min(1.0 / per_second) } else { 0.0 };
        Self { interval: Duration::from_secs_f64(interval), burst: burst.max(1), full: now }
    }

    /// # Errors
    /// When there will be one.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let full = self.full.max(now) + self.interval;
        let free = now + self.interval.saturating_mul(self.burst);
        if full > free {
            return Err(now + (full - free));
        }
        self.full = full;
        Ok(())
    }
}

/// In seconds: one request an hour is as good as none.
const LONGEST: f64 = 3_600.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_then_each_waits_its_turn() {
        #[allow(clippy::disallowed_methods, reason = "some moment to begin with")]
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut bucket = Bucket::new(10.0, 3, start);
        for _ in 0..3 {
            assert_eq!(bucket.take(start), Ok(()));
        }
        assert_eq!(bucket.take(start), Err(start + ms(100)));
        assert_eq!(bucket.take(start + ms(40)), Err(start + ms(100)));
        assert_eq!(bucket.take(start + ms(100)), Ok(()));
        assert_eq!(bucket.take(start + ms(100)), Err(start + ms(200)));
        // It never holds more than a burst.
        let later = start + ms(100_000);
        assert_eq!((0..10).filter(|_| bucket.take(later).is_ok()).count(), 3);
        for (per_second, burst, free) in
            [(0.0, 0, 1_000), (-1.0, 5, 1_000), (f64::NAN, 1, 1_000), (1e-300, 0, 1), (5.0, u32::MAX, 1_000)]
        {
            let mut bucket = Bucket::new(per_second, burst, start);
            assert_eq!(
                (0..1_000).filter(|_| bucket.take(start).is_ok()).count(),
                free,
                "{per_second} {burst}"
            );
        }
    }
}
