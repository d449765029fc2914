//! How many hedges are allowed: 10 % of the queries and 10 a second.

use super::timers::MachineTime;

/// A bucket of hedges, counted in thousandths.
///
/// What is not used is kept up to [`CAPACITY`], so that a busy worker whose upstream falls silent can hedge all that is
/// in flight at that moment, while the sum stays below 10 % and 10 a second at any time.
#[derive(Debug)]
pub(super) struct HedgeBudget {
    thousandths: u64,
    filled_at: MachineTime,
}

impl HedgeBudget {
    pub(super) fn new() -> Self {
        Self { thousandths: 10 * HEDGE, filled_at: MachineTime(0) }
    }

    /// A query was sent.
    pub(super) fn earn(&mut self) {
        self.add(PER_QUERY);
    }

    /// Takes one hedge, if there is one.
    pub(super) fn take(&mut self, now: MachineTime) -> bool {
        let micros = now.0.saturating_sub(self.filled_at.0);
        // Only whole thousandths of a token are earned; the remainder of the time counts at the next call.
        let earned = micros * PER_SECOND / 1_000_000;
        self.filled_at.0 += earned * 1_000_000 / PER_SECOND;
        self.add(earned);
        let enough = self.thousandths >= HEDGE;
        if enough {
            self.thousandths -= HEDGE;
        }
        enough
    }

    fn add(&mut self, thousandths: u64) {
        self.thousandths = (self.thousandths + thousandths).min(CAPACITY);
    }
}

const HEDGE: u64 = 1_000;
const PER_QUERY: u64 = HEDGE / 10;
const PER_SECOND: u64 = HEDGE * 10;
/// 0.3 s worth of queries at 2,000 a second.
const CAPACITY: u64 = 600 * HEDGE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hedges_stay_below_a_tenth_of_the_queries_and_ten_a_second() {
        for per_second in [0, 1, 50, 1_000, 20_000] {
            let mut budget = HedgeBudget::new();
            let (mut queries, mut hedges) = (0, 0);
            for ms in 0..10_000 {
                for _ in 0..(per_second * (ms + 1) / 1_000 - per_second * ms / 1_000) {
                    queries += 1;
                    budget.earn();
                }
                while budget.take(MachineTime(ms * 1_000)) {
                    hedges += 1;
                }
                assert!(100 * hedges <= 10 * queries + 1_000 + ms, "{hedges} of {queries} after {ms} ms");
            }
            assert!(hedges >= queries / 10 + 100, "{hedges} of {queries}");
        }
    }
}
