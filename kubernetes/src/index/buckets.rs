//! A hash table in buckets, each replaced whole: a change costs its own bucket, and no reader waits for it.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};

/// Entries by hash. Read by many threads at once, changed by one.
pub(crate) struct Buckets<T> {
    buckets: Box<[ArcSwapOption<Box<[T]>>]>,
}

/// A bucket as it was when it was looked at.
pub(crate) type Bucket<T> = Guard<Option<Arc<Box<[T]>>>>;

impl<T: Clone> Buckets<T> {
    /// Without entries; `count` is a power of two.
    pub(crate) fn new(count: usize) -> Self {
        Self { buckets: (0..count).map(|_| ArcSwapOption::empty()).collect() }
    }

    /// Where entries of this hash are, if there are any.
    #[inline]
    pub(crate) fn of(&self, hash: u64) -> Bucket<T> {
        self.place(hash).load()
    }

    /// Puts an entry in place of the one that `is` is true of, or beside the others; `None` takes it away.
    pub(crate) fn set(&self, hash: u64, is: impl Fn(&T) -> bool, entry: Option<T>) {
        let place = self.place(hash);
        let old = place.load();
        let others = old.iter().flat_map(|bucket| bucket.iter()).filter(|entry| !is(entry));
        // As much room as it takes: most buckets have a few entries, and are made for each of them.
        let mut new = Vec::with_capacity(others.clone().count() + usize::from(entry.is_some()));
        new.extend(others.cloned());
        new.extend(entry);
        place.store((!new.is_empty()).then(|| Arc::new(new.into_boxed_slice())));
    }

    /// Makes these all the entries, each with its hash: what was there goes.
    pub(crate) fn fill(&self, entries: Vec<(u64, T)>) {
        let mut counts = vec![0; self.buckets.len()];
        entries.iter().for_each(|(hash, _)| counts[self.number(*hash)] += 1);
        let mut buckets: Vec<Vec<T>> = counts.into_iter().map(Vec::with_capacity).collect();
        for (hash, entry) in entries {
            buckets[self.number(hash)].push(entry);
        }
        for (place, bucket) in self.buckets.iter().zip(buckets) {
            place.store((!bucket.is_empty()).then(|| Arc::new(bucket.into_boxed_slice())));
        }
    }

    /// Every entry, in no order; one that comes or goes meanwhile may be among them or not.
    pub(crate) fn each(&self, mut tell: impl FnMut(&T)) {
        for place in &self.buckets {
            place.load_full().iter().flat_map(|bucket| bucket.iter()).for_each(&mut tell);
        }
    }

    #[inline]
    fn place(&self, hash: u64) -> &ArcSwapOption<Box<[T]>> {
        // No place is outside.
        &self.buckets[self.number(hash)]
    }

    #[inline]
    fn number(&self, hash: u64) -> usize {
        // A power of two.
        hash as usize & (self.buckets.len() - 1)
    }

    /// Every entry, in no order.
    pub(crate) fn all(&self) -> Vec<T> {
        let mut all = Vec::new();
        self.each(|entry| all.push(entry.clone()));
        all
    }
}
