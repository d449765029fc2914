//! The locked shards, shared by the cache's handle and its partitions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use wire::{Name, Query, hash_of, hash_with};

use crate::entry::{CD, CacheKey, DO, OVERRIDES};
use crate::shard::Shard;

/// State shared by the cache's handle and its partitions.
pub(crate) struct Shards {
    start: Instant,
    shards: Box<[Lock]>,
    /// Identities of partitions by number; `None` for a free number.
    identities: Mutex<Vec<Option<Box<str>>>>,
    /// The shard to sweep next.
    cursor: AtomicUsize,
}

/// A locked shard, on cache lines of its own, as other threads lock its neighbours (false sharing).
#[repr(align(128))]
struct Lock(Mutex<Shard>);

impl Shards {
    /// Creates empty shards of at most `bytes` bytes together.
    pub(crate) fn new(bytes: usize, start: Instant) -> Self {
        // One to two MiB each: tables that grow or are copied under a lock stay small in a cache of
        // any size.
        let count = 1usize << (bytes / SHARD_BYTES).ilog2();
        let shards = (0..count).map(|_| Lock(Mutex::new(Shard::new(bytes / count)))).collect();
        Self { start, shards, identities: Mutex::new(Vec::new()), cursor: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn milliseconds(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.start);
        BEFORE + passed.as_secs() * 1000 + u64::from(passed.subsec_millis())
    }

    /// Returns key and shard number of a query, from one hash.
    #[inline]
    pub(crate) fn key<'q>(&self, partition: u32, query: &'q Query<'_>) -> (CacheKey<'q>, usize) {
        let dnssec_ok = if query.dnssec_ok() { DO } else { 0 };
        let checking_disabled = if query.flags.has(wire::Flags::CD) { CD } else { 0 };
        let mut bits = dnssec_ok | checking_disabled;
        let overrides = query.overrides.octets();
        if !overrides.is_empty() {
            bits |= OVERRIDES;
        }
        self.key_of(partition, &query.name, (query.rtype.0, query.class.0), bits, overrides)
    }

    /// Returns key and shard number of a name, type and class with these bits.
    #[inline]
    pub(crate) fn key_of<'q>(
        &self,
        partition: u32,
        name: &'q Name,
        (rtype, class): (u16, u16),
        bits: u8,
        overrides: &'q [u8],
    ) -> (CacheKey<'q>, usize) {
        let rest = u64::from(partition) << 32 | u64::from(rtype) << 16 | u64::from(class);
        let mut hash = name.hash_code();
        if !overrides.is_empty() {
            hash = hash_with(hash, hash_of(overrides));
        }
        let hash = hash_with(hash ^ u64::from(bits), rest);
        let key = CacheKey { partition, hash: hash as u32, name, rtype, class, bits, overrides };
        (key, (hash >> 32) as usize & (self.count() - 1))
    }

    pub(crate) fn count(&self) -> usize {
        self.shards.len()
    }

    #[inline]
    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // A panic elsewhere must not disable the cache: a shard is plain data.
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the shard that is swept next.
    pub(crate) fn next_shard(&self) -> usize {
        self.cursor.load(Ordering::Relaxed) % self.count()
    }

    /// Continues the sweep at the next shard.
    pub(crate) fn went_past(&self, shard: usize) {
        self.cursor.store(shard + 1, Ordering::Relaxed);
    }

    /// Allocates a number for a new partition.
    pub(crate) fn number(&self, identity: &str) -> u32 {
        let mut identities = self.identities();
        let number = identities.iter().position(Option::is_none).unwrap_or(identities.len());
        match identities.get_mut(number) {
            Some(place) => *place = Some(identity.into()),
            None => identities.push(Some(identity.into())),
        }
        number as u32
    }

    /// Returns the identity of a partition.
    pub(crate) fn identity(&self, partition: u32) -> Option<Box<str>> {
        self.identities().get(partition as usize)?.clone()
    }

    /// Removes all answers of a partition, then frees its number.
    pub(crate) fn forget(&self, partition: u32) {
        for at in 0..self.count() {
            while self.lock(at).purge(partition, AT_ONCE) == AT_ONCE {}
        }
        if let Some(identity) = self.identities().get_mut(partition as usize) {
            *identity = None;
        }
    }

    /// Locks the identities of all partitions, by number.
    pub(crate) fn identities(&self) -> MutexGuard<'_, Vec<Option<Box<str>>>> {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Milliseconds added to all times, so that imported answers that are older than this process have
/// a time too: they may be this old.
const BEFORE: u64 = 1 << 40;

/// Smallest limit of one shard.
const SHARD_BYTES: usize = 1 << 20;

/// Entries examined per lock.
pub(crate) const AT_ONCE: usize = 128;
