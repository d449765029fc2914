//! The whole cache: its shards, its partitions and its bound.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use wire::{Name, Query, hash_of, hash_with};

use crate::dump::Writer;
use crate::entry::{ADDED, CD, DO, Key};
use crate::shard::Shard;
use crate::{Partition, Policy};

/// A block's part of the cache.
#[derive(Clone)]
pub struct BlockCache {
    /// Where its answers are.
    pub partition: Arc<Partition>,
    /// How long they live; without zones where every name that can come is within one of them.
    pub policy: Policy,
    /// The zones that the directive names.
    pub zones: Box<[Name]>,
}

impl BlockCache {
    /// The cache, if it keeps answers to `name`.
    #[inline]
    pub fn covering(&self, name: &Name) -> Option<&Self> {
        self.policy.covers(name).then_some(self)
    }
}

/// All server blocks' answers; a handle, cheap to clone.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

impl Cache {
    /// The default bound: 64 MiB.
    pub const DEFAULT_BYTES: usize = 64 << 20;
    /// The smallest bound: 1 MiB.
    pub const MIN_BYTES: usize = 1 << 20;
    /// The greatest bound: 4 GiB.
    pub const MAX_BYTES: usize = 4 << 30;

    /// An empty cache of at most `bytes` bytes of heap, brought between [`Cache::MIN_BYTES`] and [`Cache::MAX_BYTES`].
    ///
    /// `start` is the process's first reading of its clock; a time before it counts as it.
    pub fn new(bytes: usize, start: Instant) -> Self {
        let bytes = bytes.clamp(Self::MIN_BYTES, Self::MAX_BYTES);
        // One to two mebibytes each: what grows or is copied under a lock stays small, however large the cache.
        let count = 1usize << (bytes / SHARD_BYTES).ilog2();
        let shards = (0..count).map(|_| Lock(Mutex::new(Shard::new(bytes / count)))).collect();
        let shared = Shared { start, shards, holders: Mutex::new(Vec::new()), cursor: AtomicUsize::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// The partition of the server block that `identity` (its zones and addresses) names: the same answers as before
    /// while anybody holds it, so that a reload keeps them. Once all holders are gone its answers go too.
    pub fn partition(&self, identity: &str) -> Arc<Partition> {
        let mut holders = self.shared.holders();
        for holder in holders.iter().flatten().filter(|holder| *holder.identity == *identity) {
            if let Some(partition) = holder.partition.upgrade() {
                return partition;
            }
        }
        let number = holders.iter().position(Option::is_none).unwrap_or(holders.len());
        let partition = Arc::new(Partition::new(Arc::clone(&self.shared), number as u32));
        let holder = Holder { identity: identity.into(), partition: Arc::downgrade(&partition) };
        match holders.get_mut(number) {
            Some(place) => *place = Some(holder),
            None => holders.push(Some(holder)),
        }
        partition
    }

    /// Copies answers for another process's cache, those first that were used of late: `most_bytes` at the most. It reads
    /// them with [`crate::Dump::read`].
    pub fn dump(&self, now: Instant, most_bytes: usize) -> Vec<u8> {
        let now = self.shared.milliseconds(now);
        let mut writer = {
            let holders = self.shared.holders();
            let identities = holders.iter().map(|holder| holder.as_ref().map_or("", |of| &of.identity));
            Writer::new(identities, most_bytes)
        };
        for used in [true, false] {
            for at in 0..self.shared.count() {
                let mut from = 0;
                // A few entries for each time the lock is held: queries wait for it meanwhile.
                while let Some(next) = self.shared.lock(at).copy(from, AT_ONCE, used, now, &mut writer) {
                    from = next;
                }
            }
        }
        writer.finish()
    }

    /// Bytes of heap in use, the allocator's rounding included; never over the bound but for the moment in which one of
    /// the shards' tables grows or shrinks.
    pub fn bytes(&self) -> usize {
        (0..self.shared.count()).map(|at| self.shared.lock(at).bytes()).sum()
    }

    /// Frees what nobody can be served any more among the next `budget` entries, and returns how many that were.
    ///
    /// Meant for a timer; nothing breaks without it, for dead entries also go when touched and first when room is needed.
    pub fn sweep(&self, now: Instant, budget: usize) -> usize {
        let now = self.shared.milliseconds(now);
        let mut left = budget;
        let mut freed = 0;
        for _ in 0..self.shared.count() {
            let at = self.shared.cursor.load(Ordering::Relaxed) % self.shared.count();
            loop {
                if left == 0 {
                    return freed;
                }
                let swept = self.shared.lock(at).sweep(now, left.min(AT_ONCE));
                left -= swept.looked_at;
                freed += swept.freed;
                if swept.done {
                    break;
                }
            }
            self.shared.cursor.store(at + 1, Ordering::Relaxed);
        }
        freed
    }
}

/// What the cache's handle and its partitions share.
pub(crate) struct Shared {
    start: Instant,
    shards: Box<[Lock]>,
    /// By number of partition; `None` once its answers are gone.
    holders: Mutex<Vec<Option<Holder>>>,
    /// The shard that is swept next.
    cursor: AtomicUsize,
}

struct Holder {
    identity: Box<str>,
    partition: Weak<Partition>,
}

/// Alone on its cache lines: neighbours are locked by other threads.
#[repr(align(128))]
struct Lock(Mutex<Shard>);

impl Shared {
    #[inline]
    pub(crate) fn milliseconds(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.start);
        BEFORE + passed.as_secs() * 1000 + u64::from(passed.subsec_millis())
    }

    /// The key of a query and the number of its shard: one hash for both.
    #[inline]
    pub(crate) fn key<'q>(&self, partition: u32, query: &'q Query<'_>) -> (Key<'q>, usize) {
        let dnssec_ok = if query.dnssec_ok() { DO } else { 0 };
        let checking_disabled = if query.flags.has(wire::Flags::CD) { CD } else { 0 };
        let mut bits = dnssec_ok | checking_disabled;
        let added = query.added.octets();
        if !added.is_empty() {
            bits |= ADDED;
        }
        self.key_of(partition, &query.name, (query.rtype.0, query.class.0), bits, added)
    }

    /// The key of a name, type and class with these bits, and the number of its shard.
    #[inline]
    pub(crate) fn key_of<'q>(
        &self,
        partition: u32,
        name: &'q Name,
        (rtype, class): (u16, u16),
        bits: u8,
        added: &'q [u8],
    ) -> (Key<'q>, usize) {
        let rest = u64::from(partition) << 32 | u64::from(rtype) << 16 | u64::from(class);
        let mut hash = name.hash_code();
        if !added.is_empty() {
            hash = hash_with(hash, hash_of(added));
        }
        let hash = hash_with(hash ^ u64::from(bits), rest);
        let key = Key { partition, hash: hash as u32, name, rtype, class, bits, added };
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

    /// The identity of a partition.
    pub(crate) fn identity(&self, partition: u32) -> Option<Box<str>> {
        Some(self.holders().get(partition as usize)?.as_ref()?.identity.clone())
    }

    /// Takes all of a partition's answers out, then frees its number.
    pub(crate) fn forget(&self, partition: u32) {
        for at in 0..self.count() {
            while self.lock(at).purge(partition, AT_ONCE) == AT_ONCE {}
        }
        if let Some(holder) = self.holders().get_mut(partition as usize) {
            *holder = None;
        }
    }

    fn holders(&self) -> MutexGuard<'_, Vec<Option<Holder>>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers of an earlier process are older than this one; they are at most so many milliseconds old.
const BEFORE: u64 = 1 << 40;

/// The least that one shard's bound is.
const SHARD_BYTES: usize = 1 << 20;

/// How many entries are looked at under one holding of a lock.
const AT_ONCE: usize = 128;
