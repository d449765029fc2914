//! The index's hash table with entries that reveal whether they are seen before they are complete.

use std::sync::Arc;

use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::Relaxed;

use crate::cow_map::CowMap;
use crate::kind_set::KindSet;

/// A cluster's index with one kind of entry: numbers by name.
pub struct Index {
    entries: CowMap<Entry>,
    known: KindSet,
}

/// An entry with a number that is written word by word after creation; only the table orders the
/// writes.
#[derive(Clone)]
struct Entry {
    name: usize,
    words: Arc<[AtomicUsize; 2]>,
}

impl Entry {
    fn new(name: usize, number: usize) -> Self {
        let words = [0, 0].map(AtomicUsize::new);
        words.iter().for_each(|word| word.store(number, Relaxed));
        Self { name, words: words.into() }
    }

    fn number(&self) -> usize {
        let [first, second] = [0, 1].map(|word: usize| self.words[word].load(Relaxed));
        assert_eq!(first, second, "half of an entry is seen");
        first
    }
}

impl Index {
    /// Creates an index with this many buckets, a power of two; a name's bucket is the name modulo
    /// that.
    pub fn new(buckets: usize) -> Self {
        Self { entries: CowMap::new(buckets), known: KindSet::none() }
    }

    /// Looks up a name as a worker does.
    pub fn find(&self, name: usize) -> Option<usize> {
        self.entries.of(name as u64).find(|entry| entry.name == name).map(Entry::number)
    }

    /// Replaces or removes the entry of this name; `midst` is called during the change, for each
    /// entry of this name.
    pub fn set(&self, name: usize, number: Option<usize>, midst: impl Fn()) {
        let is = |entry: &Entry| {
            midst();
            entry.name == name
        };
        self.entries.set(name as u64, is, number.map(|number| Entry::new(name, number)));
    }

    /// Replaces all entries.
    pub fn fill(&self, entries: &[(usize, usize)]) {
        let entries = entries.iter().map(|&(name, number)| (name as u64, Entry::new(name, number)));
        self.entries.fill(&entries.collect::<Vec<_>>());
    }

    /// Marks the list as complete.
    pub fn list_is_whole(&self) {
        self.known.add(1);
    }

    /// Whether the list is complete.
    pub fn is_known(&self) -> bool {
        self.known.bits() == 1
    }
}
