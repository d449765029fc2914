//! The index's seqlock table, with entries of two words.

use crate::seqlock_table::{SeqlockTable, SlotContent};

/// Numbers by name, each stored twice.
pub struct Entries(SeqlockTable<2>);

impl Entries {
    /// Creates a table with this many cells, a power of two.
    pub fn new(cells: usize) -> Self {
        Self(SeqlockTable::new(cells))
    }

    /// Looks up a name as a worker does: misses an entry that is being written, or that did not
    /// fit.
    pub fn find(&self, name: u32) -> Option<[u64; 2]> {
        let found = self.0.find(0, |head| head == name, |_| true);
        found.map(|SlotContent { words, .. }| words)
    }

    /// Replaces or removes the number of this name, which is not 0.
    pub fn set(&self, name: u32, number: Option<u64>) {
        let content = number.map(|number| SlotContent { head: name, words: [number; 2] });
        self.0.set(0, |content| content.head == name, content);
    }
}
