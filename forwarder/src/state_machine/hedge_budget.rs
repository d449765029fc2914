//! Bounds the queries that are sent to a second upstream before the first has answered.

/// A token bucket of hedges, in tenths.
///
/// Each reply adds a tenth. A hedge that is answered first is refunded: its upstream is the faster
/// one, and gets one query of each client at most. [`CAPACITY`] is large enough that a busy worker
/// can hedge all its queries in flight when an upstream stops answering.
#[derive(Debug)]
pub(super) struct HedgeBudget {
    tenths: u32,
}

impl HedgeBudget {
    pub(super) fn new() -> Self {
        Self { tenths: FIRST }
    }

    /// Adds the tenth of a hedge that a reply earns.
    pub(super) fn earn(&mut self) {
        self.tenths = (self.tenths + PER_REPLY).min(CAPACITY);
    }

    /// Refunds a hedge that was answered before the query that it hedged.
    pub(super) fn pay_back(&mut self) {
        self.tenths = (self.tenths + HEDGE).min(CAPACITY);
    }

    /// Takes the tokens of a hedge; false if there are too few.
    pub(super) fn take(&mut self) -> bool {
        let enough = self.tenths >= HEDGE;
        if enough {
            self.tenths -= HEDGE;
        }
        enough
    }
}

const HEDGE: u32 = 10;
const PER_REPLY: u32 = HEDGE / 10;
/// Tokens before the first reply: enough to find out that an upstream is silent.
const FIRST: u32 = 10 * HEDGE;
/// The most tokens: hedges for 0.3 s of queries at 2,000 a second.
const CAPACITY: u32 = 600 * HEDGE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hedges_are_a_tenth_of_replies() {
        let mut budget = HedgeBudget::new();
        for replies in 0..5_000 {
            let mut hedges = 0;
            while budget.take() {
                hedges += 1;
            }
            assert_eq!(hedges, if replies == 0 { 10 } else { u32::from(replies % 10 == 0) });
            budget.earn();
        }
    }

    #[test]
    fn answered_hedges_are_free() {
        let mut budget = HedgeBudget::new();
        for _ in 0..1_000 {
            assert!(budget.take());
            budget.pay_back();
        }
        (0..10).for_each(|_| assert!(budget.take()));
        assert!(!budget.take());
    }
}
