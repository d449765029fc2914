//! The cells of an index, of two words each.

use crate::cells::{Cells, Content};

/// Numbers by name, each twice.
pub struct Entries(Cells<2>);

impl Entries {
    /// With so many cells, a power of two.
    pub fn new(cells: usize) -> Self {
        Self(Cells::new(cells))
    }

    /// What a worker finds: not what is written just now, and nothing that has no room.
    pub fn find(&self, name: u32) -> Option<[u64; 2]> {
        let found = self.0.find(0, |head| head == name, |_| true);
        found.map(|Content { words, .. }| words)
    }

    /// Puts a number in place of what has its name, which is not 0, or takes that away.
    pub fn set(&self, name: u32, number: Option<u64>) {
        let content = number.map(|number| Content { head: name, words: [number; 2] });
        self.0.set(0, |content| content.head == name, content);
    }
}
