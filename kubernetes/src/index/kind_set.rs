//! Kinds of which something is true: told by the one writer, read by every worker.

use crate::sync::atomic::AtomicU8;
use crate::sync::atomic::Ordering::{Acquire, Release};

/// A bit for each kind.
pub(crate) struct Kinds(AtomicU8);

impl Kinds {
    pub(crate) fn none() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Their bits. Whoever sees one sees all that was put into the index before it was added.
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
