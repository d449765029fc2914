//! The index's buckets, with entries that show whether they are seen before they are whole.

use std::sync::Arc;

use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::Relaxed;

use crate::cow_map::CowMap;
use crate::kind_set::KindSet;

/// A cluster's index, of one sort of entry: numbers by name.
pub struct Index {
    entries: CowMap<Entry>,
    known: KindSet,
}

/// Its number is written after it was made, word by word, and nothing but the buckets orders that.
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
    /// With so many buckets, a power of two: a name's is the one of this number, counted around.
    pub fn new(buckets: usize) -> Self {
        Self { entries: CowMap::new(buckets), known: KindSet::none() }
    }

    /// What a worker finds.
    pub fn find(&self, name: usize) -> Option<usize> {
        self.entries.of(name as u64).find(|entry| entry.name == name).map(Entry::number)
    }

    /// Puts an entry in place of what has its name, or takes that away; `midst` is called in the midst of it, for each entry of
    /// this name.
    pub fn set(&self, name: usize, number: Option<usize>, midst: impl Fn()) {
        let is = |entry: &Entry| {
            midst();
            entry.name == name
        };
        self.entries.set(name as u64, is, number.map(|number| Entry::new(name, number)));
    }

    /// Makes these all the entries.
    pub fn fill(&self, entries: &[(usize, usize)]) {
        let entries = entries.iter().map(|&(name, number)| (name as u64, Entry::new(name, number)));
        self.entries.fill(&entries.collect::<Vec<_>>());
    }

    /// Says that all of a list is there.
    pub fn list_is_whole(&self) {
        self.known.add(1);
    }

    /// Whether that is known.
    pub fn is_known(&self) -> bool {
        self.known.bits() == 1
    }
}
