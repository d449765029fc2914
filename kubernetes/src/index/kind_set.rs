//! An atomic set of kinds: one thread writes it, all workers read it.

use crate::sync::atomic::AtomicU8;
use crate::sync::atomic::Ordering::{Acquire, Release};

/// A set of kinds, a bit for each.
pub(crate) struct KindSet(AtomicU8);

impl KindSet {
    pub(crate) fn none() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Returns the bits. A thread that sees a bit sees all changes of the index before it was
    /// added.
    #[inline]
    pub(crate) fn bits(&self) -> u8 {
        self.0.load(Acquire)
    }

    pub(crate) fn add(&self, bit: u8) {
        self.0.fetch_or(bit, Release);
    }

    pub(crate) fn remove(&self, bit: u8) {
        self.0.fetch_and(!bit, Release);
    }
}
