//! Limits the rate of requests with a token bucket.

use std::time::{Duration, Instant};

/// A token bucket; each request takes a token.
#[derive(Debug)]
pub(super) struct TokenBucket {
    /// Interval between two tokens; zero means no limit.
    interval: Duration,
    burst: u32,
    /// When the bucket will be full.
    full: Instant,
}

impl TokenBucket {
    /// Creates a full bucket of `burst` tokens, at least one, which gains `per_second`.
    pub(super) fn new(per_second: f64, burst: u32, now: Instant) -> Self {
        let interval = if per_second > 0.0 { MAX_INTERVAL_S.min(1.0 / per_second) } else { 0.0 };
        Self { interval: Duration::from_secs_f64(interval), burst: burst.max(1), full: now }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// When the next token will be available.
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

/// Maximum interval in seconds: lower rates become one request per hour.
const MAX_INTERVAL_S: f64 = 3_600.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_then_interval() {
        #[allow(clippy::disallowed_methods, reason = "any instant will do")]
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut bucket = TokenBucket::new(10.0, 3, start);
        for _ in 0..3 {
            assert_eq!(bucket.take(start), Ok(()));
        }
        assert_eq!(bucket.take(start), Err(start + ms(100)));
        assert_eq!(bucket.take(start + ms(40)), Err(start + ms(100)));
        assert_eq!(bucket.take(start + ms(100)), Ok(()));
        assert_eq!(bucket.take(start + ms(100)), Err(start + ms(200)));
        // It never holds more than `burst` tokens.
        let later = start + ms(100_000);
        assert_eq!((0..10).filter(|_| bucket.take(later).is_ok()).count(), 3);
        for (per_second, burst, free) in
            [(0.0, 0, 1_000), (-1.0, 5, 1_000), (f64::NAN, 1, 1_000), (1e-300, 0, 1), (5.0, u32::MAX, 1_000)]
        {
            let mut bucket = TokenBucket::new(per_second, burst, start);
            assert_eq!(
                (0..1_000).filter(|_| bucket.take(start).is_ok()).count(),
                free,
                "{per_second} {burst}"
            );
        }
    }
}
