//! A copy-on-write hash map: a change replaces one bucket, and readers never wait.

use std::iter;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::sync::{ArcSwapOption, Guard};

/// Entries by hash. Many threads read the map; one thread writes it.
pub(crate) struct CowMap<T> {
    buckets: Box<[ArcSwapOption<Bucket<T>>]>,
    /// Number of replaced buckets.
    #[cfg(test)]
    stores: AtomicUsize,
}

/// Entries with their hashes. Most buckets have one entry or none, which is stored inline.
struct Bucket<T> {
    first: (u64, T),
    others: Box<[(u64, T)]>,
}

/// Immutable view of a bucket, for the entries of one hash.
pub(crate) struct BucketView<T> {
    bucket: Guard<Option<Arc<Bucket<T>>>>,
    hash: u64,
}

impl<T> BucketView<T> {
    /// Returns the entries of the hash; the caller compares keys.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let entries = self.bucket.iter().flat_map(|bucket| bucket.entries());
        entries.filter(|(hash, _)| *hash == self.hash).map(|(_, entry)| entry)
    }

    /// Returns the first entry for which `is` holds.
    #[inline]
    pub(crate) fn find(&self, is: impl Fn(&T) -> bool) -> Option<&T> {
        let Bucket { first: (hash, first), others } = &**self.bucket.as_ref()?;
        if *hash == self.hash && is(first) {
            return Some(first);
        }
        others.iter().filter(|(hash, _)| *hash == self.hash).map(|(_, entry)| entry).find(|entry| is(entry))
    }
}

impl<T> Bucket<T> {
    fn entries(&self) -> impl Iterator<Item = &(u64, T)> {
        iter::once(&self.first).chain(&self.others)
    }

    /// Creates a bucket, or `None` without entries; `others` is the number of entries after the
    /// first.
    fn of(mut entries: impl Iterator<Item = (u64, T)>, others: usize) -> Option<Arc<Self>> {
        let first = entries.next()?;
        // `collect` without a known length would over-allocate.
        let mut all = Vec::with_capacity(others);
        all.extend(entries);
        Some(Arc::new(Self { first, others: all.into() }))
    }
}

impl<T: Clone> CowMap<T> {
    /// Creates an empty map with `count` buckets, a power of two.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            buckets: (0..count).map(|_| ArcSwapOption::empty()).collect(),
            #[cfg(test)]
            stores: AtomicUsize::new(0),
        }
    }

    /// Returns the entries of a hash.
    #[inline]
    pub(crate) fn of(&self, hash: u64) -> BucketView<T> {
        BucketView { bucket: self.place(hash).load(), hash }
    }

    /// Removes the first entry for which `is` holds, if there is one, and appends an entry.
    pub(crate) fn set(&self, hash: u64, is: impl Fn(&T) -> bool, entry: Option<T>) {
        let place = self.place(hash);
        let old = place.load();
        let entries = || old.iter().flat_map(|bucket| bucket.entries());
        let replaced = entries().position(|(other, entry)| *other == hash && is(entry));
        let kept = entries().enumerate().filter(|(number, _)| Some(*number) != replaced);
        let kept = kept.map(|(_, entry)| entry.clone());
        let count = entries().count() + usize::from(entry.is_some()) - usize::from(replaced.is_some());
        let all = kept.chain(entry.map(|entry| (hash, entry)));
        self.store(place, Bucket::of(all, count.saturating_sub(1)));
    }

    /// Replaces all entries. The buckets are allocated one after another, so that they are close to
    /// each other in memory.
    pub(crate) fn fill(&self, entries: &[(u64, T)]) {
        // A counting sort: offsets of the buckets, then their entries.
        let mut places = vec![0; self.buckets.len() + 1];
        entries.iter().for_each(|(hash, _)| places[self.number(*hash) + 1] += 1);
        (1..places.len()).for_each(|number| places[number] += places[number - 1]);
        let mut order = vec![0; entries.len()];
        for (entry, (hash, _)) in entries.iter().enumerate() {
            let place = &mut places[self.number(*hash)];
            order[*place] = entry;
            *place += 1;
        }
        // Each place is the end of its bucket by now.
        let mut start = 0;
        for (place, end) in self.buckets.iter().zip(places) {
            let own = &order[start..end];
            start = end;
            if !own.is_empty() || place.load().is_some() {
                let entries = own.iter().map(|entry| entries[*entry].clone());
                self.store(place, Bucket::of(entries, own.len().saturating_sub(1)));
            }
        }
    }

    /// Calls `visit` for each entry, in no order; concurrent changes may or may not be included.
    pub(crate) fn each(&self, mut visit: impl FnMut(&T)) {
        for place in &self.buckets {
            place.load_full().iter().flat_map(|bucket| bucket.entries()).for_each(|(_, entry)| visit(entry));
        }
    }

    fn store(&self, place: &ArcSwapOption<Bucket<T>>, bucket: Option<Arc<Bucket<T>>>) {
        place.store(bucket);
        #[cfg(test)]
        self.stores.fetch_add(1, Relaxed);
    }

    /// Returns the number of replaced buckets.
    #[cfg(test)]
    pub(super) fn stores(&self) -> usize {
        self.stores.load(Relaxed)
    }

    #[inline]
    fn place(&self, hash: u64) -> &ArcSwapOption<Bucket<T>> {
        // `number` is below the length, so this cannot panic.
        &self.buckets[self.number(hash)]
    }

    #[inline]
    fn number(&self, hash: u64) -> usize {
        // The length is a power of two: the mask is the remainder.
        hash as usize & (self.buckets.len() - 1)
    }
}
