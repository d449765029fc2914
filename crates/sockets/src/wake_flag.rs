//! The pending flag of a waker, without its descriptor.

use crate::sync::atomic::{AtomicBool, Ordering};

/// A flag that passes on the first of many wake-ups, and the next one only after the flag was
/// drained.
#[derive(Debug)]
pub(crate) struct WakeFlag(AtomicBool);

impl WakeFlag {
    /// Creates a flag without a pending wake-up.
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Wakes: `signal` makes the descriptor readable, unless a wake-up is pending.
    pub(crate) fn raise(&self, signal: impl FnOnce()) {
        if !self.0.swap(true, Ordering::AcqRel) {
            signal();
        }
    }

    /// Drains: `silence` makes the descriptor unreadable.
    pub(crate) fn lower(&self, silence: impl FnOnce()) {
        silence();
        // After `silence`: otherwise a wake-up between the two would be drained and yet stay
        // pending forever. A swap, to acquire what the wakers queued before.
        self.0.swap(false, Ordering::AcqRel);
    }
}
