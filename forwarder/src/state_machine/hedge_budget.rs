//! How many queries may be sent to a second upstream while the first is silent.

/// A bucket of hedges, in tenths.
///
/// Each reply earns a tenth. A hedge that is answered first is paid back: the upstream that gave it
/// is the faster one, and gets one query of each client at most. Up to [`CAPACITY`] are kept, so that
/// a busy worker whose upstream falls silent can hedge all that is in flight at that moment.
#[derive(Debug)]
pub(super) struct HedgeBudget {
    tenths: u32,
}

impl HedgeBudget {
    pub(super) fn new() -> Self {
        Self { tenths: FIRST }
    }

    /// A reply was received.
    pub(super) fn earn(&mut self) {
        self.tenths = (self.tenths + PER_REPLY).min(CAPACITY);
    }

    /// A hedge was answered before the query that it hedged.
    pub(super) fn pay_back(&mut self) {
        self.tenths = (self.tenths + HEDGE).min(CAPACITY);
    }

    /// Takes one hedge, if there is one.
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
/// Before the first reply: enough to learn that an upstream is silent.
const FIRST: u32 = 10 * HEDGE;
/// 0.3 s worth of queries at 2,000 a second.
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
