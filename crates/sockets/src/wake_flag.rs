//! Whether a wake-up is on its way: a waker without its descriptor.

use crate::sync::atomic::{AtomicBool, Ordering};

/// Lets the first of many wake-ups through, and the next one only when that was seen.
#[derive(Debug)]
pub(crate) struct Pending(AtomicBool);

impl Pending {
    /// No wake-up is on its way.
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// A wake-up: `signal` makes the descriptor readable, unless one is on its way.
    pub(crate) fn raise(&self, signal: impl FnOnce()) {
        if !self.0.swap(true, Ordering::AcqRel) {
            signal();
        }
    }

    /// The wake-up was seen: `silence` makes the descriptor unreadable.
    pub(crate) fn lower(&self, silence: impl FnOnce()) {
        silence();
        // After it: the other way round a wake-up between the two would be read away and yet seem to be on its way for
        // ever. A swap, so that what its callers queued before is seen.
        self.0.swap(false, Ordering::AcqRel);
    }
}
