//! The shards, behind their locks: what the cache's handle and its partitions share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use wire::{Name, Query, hash_of, hash_with};

use crate::entry::{CD, CacheKey, DO, OVERRIDES};
use crate::shard::Shard;

/// What the cache's handle and its partitions share.
pub(crate) struct Shards {
    start: Instant,
    shards: Box<[Lock]>,
    /// Those of partitions by number; `None` once its answers are gone.
    identities: Mutex<Vec<Option<Box<str>>>>,
    /// The shard that is swept next.
    cursor: AtomicUsize,
}

/// Alone on its cache lines: neighbours are locked by other threads.
#[repr(align(128))]
struct Lock(Mutex<Shard>);

impl Shards {
    /// Empty shards, of `bytes` bytes in all at most.
    pub(crate) fn new(bytes: usize, start: Instant) -> Self {
        // One to two mebibytes each: what grows or is copied under a lock stays small, however large the cache.
        let count = 1usize << (bytes / SHARD_BYTES).ilog2();
        let shards = (0..count).map(|_| Lock(Mutex::new(Shard::new(bytes / count)))).collect();
        Self { start, shards, identities: Mutex::new(Vec::new()), cursor: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn milliseconds(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.start);
        BEFORE + passed.as_secs() * 1000 + u64::from(passed.subsec_millis())
    }

    /// The key of a query and the number of its shard: one hash for both.
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

    /// The key of a name, type and class with these bits, and the number of its shard.
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
        // A panic that was caught elsewhere must not make the cache useless: what it holds is plain data.
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard that is swept next.
    pub(crate) fn next_shard(&self) -> usize {
        self.cursor.load(Ordering::Relaxed) % self.count()
    }

    /// The next one is the one behind this.
    pub(crate) fn went_past(&self, shard: usize) {
        self.cursor.store(shard + 1, Ordering::Relaxed);
    }

    /// A number for a new partition, which is nobody else's until it is forgotten.
    pub(crate) fn number(&self, identity: &str) -> u32 {
        let mut identities = self.identities();
        let number = identities.iter().position(Option::is_none).unwrap_or(identities.len());
        match identities.get_mut(number) {
            Some(place) => *place = Some(identity.into()),
            None => identities.push(Some(identity.into())),
        }
        number as u32
    }

    /// The identity of a partition.
    pub(crate) fn identity(&self, partition: u32) -> Option<Box<str>> {
        self.identities().get(partition as usize)?.clone()
    }

    /// Takes all of a partition's answers out, then frees its number.
    pub(crate) fn forget(&self, partition: u32) {
        for at in 0..self.count() {
            while self.lock(at).purge(partition, AT_ONCE) == AT_ONCE {}
        }
        if let Some(identity) = self.identities().get_mut(partition as usize) {
            *identity = None;
        }
    }

    /// Those of all partitions, by number.
    pub(crate) fn identities(&self) -> MutexGuard<'_, Vec<Option<Box<str>>>> {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers of an earlier process are older than this one; they are at most so many milliseconds old.
const BEFORE: u64 = 1 << 40;

/// The least that one shard's bound is.
const SHARD_BYTES: usize = 1 << 20;

/// How many entries are looked at under one holding of a lock.
pub(crate) const AT_ONCE: usize = 128;
