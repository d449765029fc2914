//! Octets that wait for somebody: all who share a count share its bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// So many octets of a count, given back when they are dropped.
#[derive(Debug)]
pub struct Held(Arc<AtomicUsize>, usize);

impl Held {
    /// Takes them; `None` where all together would be more than `most`.
    pub fn take(of_all: &Arc<AtomicUsize>, octets: usize, most: usize) -> Option<Self> {
        let held = Self(of_all.clone(), octets);
        (of_all.fetch_add(octets, Relaxed) + octets <= most).then_some(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Relaxed);
    }
}

/// Octets that all evaluations which wait may hold together.
pub const MOST_HELD: usize = 8 << 20;
