//! Due times of queries at a fixed rate, regardless of earlier queries. No clock.

/// Points in time at equal intervals, in nanoseconds of the run.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    start_ns: u64,
    per_second: u64,
}

impl Schedule {
    /// Creates a schedule of `per_second` points a second (at least 1), the first at `start_ns`.
    pub fn new(start_ns: u64, per_second: u64) -> Self {
        Self { start_ns, per_second: per_second.max(1) }
    }

    /// Returns the number of points from the start up to and at `now_ns`.
    #[inline]
    pub fn due(&self, now_ns: u64) -> u64 {
        let Some(passed_ns) = now_ns.checked_sub(self.start_ns) else { return 0 };
        (u128::from(passed_ns) * u128::from(self.per_second) / SECOND) as u64 + 1
    }

    /// Returns the time of point `index`, counted from 0.
    #[inline]
    pub fn at_ns(&self, index: u64) -> u64 {
        self.start_ns + (u128::from(index) * SECOND).div_ceil(u128::from(self.per_second)) as u64
    }
}

const SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Points are due at the rate, and none before the start.
    #[test]
    fn points_at_rate_from_start() {
        let schedule = Schedule::new(1_000, 4);
        for (now_ns, due) in
            [(0, 0), (999, 0), (1_000, 1), (250_000_999, 1), (250_001_000, 2), (1_000_001_000, 5)]
        {
            assert_eq!(schedule.due(now_ns), due, "{now_ns}");
        }
        assert_eq!((schedule.at_ns(0), schedule.at_ns(4)), (1_000, 1_000_001_000));
    }

    #[test]
    fn a_day_late_nothing_is_forgotten() {
        let schedule = Schedule::new(0, 1_000_000);
        assert_eq!(schedule.due(86_400_000_000_000), 86_400_000_001);
    }

    proptest! {
        /// A point is due exactly at its time, not before.
        #[test]
        fn point_is_due_at_its_time(rate in 1u64..20_000_000, index in 0u64..10_000_000) {
            let schedule = Schedule::new(77, rate);
            let at = schedule.at_ns(index);
            prop_assert!(schedule.due(at) > index);
            prop_assert!(schedule.due(at - 1) <= index);
        }
    }
}
