//! The cache of one server block: lookups and stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wire::{Answer, Name, Query, Reply};

use crate::cacheability::{Cacheability, is_shareable, judge};
use crate::entry::{Entry, ExportedEntry, Freshness, Ttls};
use crate::export::{Export, data};
use crate::shard::PartitionCounts;
use crate::shards::Shards;
use crate::{AnswerKind, CacheSpec, STALE_TTL, StaleMode, VERIFY_WAIT};

/// The answers of one server block, separate from other blocks'. Freed with its last `Arc`.
pub struct Partition {
    shards: Arc<Shards>,
    number: u32,
    counts: Arc<PartitionCounts>,
    /// The shard to evict from next if a query's own shard has no entry of this partition.
    hand: AtomicUsize,
}

/// Result of a lookup. The reply is written for a hit, a prefetch and a stale answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheResult {
    /// Not found; the reply is unchanged.
    Miss,
    /// A fresh answer.
    Hit {
        /// Success or denial.
        kind: AnswerKind,
    },
    /// A fresh answer, popular and about to expire. This caller, and no other, should refresh it.
    Prefetch {
        /// Success or denial.
        kind: AnswerKind,
    },
    /// An expired answer.
    Stale {
        /// Success or denial.
        kind: AnswerKind,
        /// Whether this caller, and no other, should refresh it.
        refresh: bool,
    },
    /// There is an expired answer, but the upstream must be queried first. If it does not answer
    /// within `wait`, call [`BlockCache::serve_stale`](crate::BlockCache::serve_stale); pass its
    /// answer to [`BlockCache::store`](crate::BlockCache::store) in any case.
    Verify {
        /// How long the client should wait.
        wait: Duration,
    },
}

/// Result of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreResult {
    /// Stored, with clamped TTLs; the first client gets the same as later ones.
    Kept(AnswerKind),
    /// Not stored; pass it on as it is.
    Passed,
    /// Not stored, because it is a failure (with `prefer_positive`, anything but a positive answer)
    /// while an earlier answer may be served: answer with
    /// [`BlockCache::serve_stale`](crate::BlockCache::serve_stale), and with this one only if that
    /// returns false.
    EarlierIsBetter,
}

impl Partition {
    pub(crate) fn new(shards: Arc<Shards>, number: u32) -> Self {
        Self { shards, number, counts: Arc::default(), hand: AtomicUsize::new(0) }
    }

    /// See [`BlockCache::lookup`](crate::BlockCache::lookup).
    pub(crate) fn lookup(
        &self,
        spec: &CacheSpec,
        query: &Query<'_>,
        now: Instant,
        reply: &mut Reply<'_>,
    ) -> CacheResult {
        if !spec.covers(&query.name) {
            return CacheResult::Miss;
        }
        let now = self.shards.milliseconds(now);
        let (key, shard) = self.shards.key(self.number, query);
        let mut shard = self.shards.lock(shard);
        let Some((at, entry)) = shard.find(&key) else { return CacheResult::Miss };
        let kind = entry.kind();
        if !spec.keeps(kind, &query.name) {
            return CacheResult::Miss;
        }
        let refreshable = is_shareable(query);
        match entry.state(now, window(spec)) {
            Freshness::Fresh => {
                entry.visit();
                let ttls = fresh_ttls(spec, entry, now);
                entry.write(query, ttls, reply);
                match spec.prefetch {
                    Some(prefetch)
                        if prefetch.amount > 0
                            && refreshable
                            && !entry.is_failure()
                            && entry.count(now, prefetch.amount, prefetch.duration)
                            && entry.ends_soon(now, prefetch.percentage)
                            && entry.claim(now) =>
                    {
                        CacheResult::Prefetch { kind }
                    }
                    _ => CacheResult::Hit { kind },
                }
            }
            Freshness::Stale if refreshable => self.lookup_stale(spec, query, now, entry, reply),
            Freshness::Stale => CacheResult::Miss,
            Freshness::Dead => {
                let dead = shard.remove(at);
                drop(shard);
                drop(dead);
                CacheResult::Miss
            }
        }
    }

    /// See [`BlockCache::store`](crate::BlockCache::store).
    pub(crate) fn store(
        &self,
        spec: &CacheSpec,
        query: &Query<'_>,
        answer: &mut Answer,
        now: Instant,
    ) -> StoreResult {
        let verdict = judge(spec, query, answer);
        if verdict == Cacheability::Private {
            return StoreResult::Passed;
        }
        let now = self.shards.milliseconds(now);
        self.counts.set_window(window(spec));
        let (key, at) = self.shards.key(self.number, query);
        // Allocated before the lock is taken.
        let entry = match verdict {
            Cacheability::Keep { kind, failure, life } => Entry::new(key, answer, now, life, kind, failure),
            _ => None,
        };
        let mut shard = self.shards.lock(at);
        let mut earlier = None;
        if let Some((at, known)) = shard.find(&key) {
            if outlasts(spec, known, verdict, now) {
                // A failure for one client's subnet does not affect retries for others.
                if !answer.subnet_specific {
                    known.note_failure(now, spec.stale.as_ref());
                }
                return StoreResult::EarlierIsBetter;
            }
            if matches!(verdict, Cacheability::Failure | Cacheability::Incomplete) {
                return StoreResult::Passed;
            }
            earlier = Some(shard.remove(at));
        }
        let Some(mut entry) = entry else { return StoreResult::Passed };
        if let Some(earlier) = &earlier {
            entry.inherit(earlier);
        }
        let kind = entry.kind();
        let capacity = spec.store(kind).capacity;
        if !self.counts.reserve(kind, capacity) && !shard.take_place(self.number, kind, now) {
            drop(shard);
            if !self.take_place_elsewhere(at, kind, now) {
                return StoreResult::Passed;
            }
            shard = self.shards.lock(at);
            // Another thread may have stored the same key in between.
            if let Some((at, _)) = shard.find(&key) {
                drop(shard.remove(at));
            }
        }
        if !shard.insert(&self.counts, entry, now) {
            return StoreResult::Passed;
        }
        drop(shard);
        self.shrink(at, kind, capacity, now);
        StoreResult::Kept(kind)
    }

    /// See [`BlockCache::serve_stale`](crate::BlockCache::serve_stale).
    pub(crate) fn serve_stale(
        &self,
        spec: &CacheSpec,
        query: &Query<'_>,
        now: Instant,
        reply: &mut Reply<'_>,
    ) -> bool {
        if !spec.covers(&query.name) {
            return false;
        }
        let now = self.shards.milliseconds(now);
        let (key, shard) = self.shards.key(self.number, query);
        let mut shard = self.shards.lock(shard);
        let Some((_, entry)) = shard.find(&key) else { return false };
        // A stored SERVFAIL is no stale answer: the lookup that has just failed has the newer
        // reason.
        if entry.is_failure() || !spec.keeps(entry.kind(), &query.name) {
            return false;
        }
        match (entry.state(now, window(spec)), &spec.stale) {
            (Freshness::Fresh, _) => {
                entry.visit();
                entry.write(query, fresh_ttls(spec, entry, now), reply);
                true
            }
            (Freshness::Stale, Some(stale)) if is_shareable(query) => {
                entry.note_failure(now, Some(stale));
                write_stale(spec, query, entry, reply);
                true
            }
            _ => false,
        }
    }

    /// See [`BlockCache::refresh_failed`](crate::BlockCache::refresh_failed).
    pub(crate) fn refresh_failed(&self, spec: &CacheSpec, query: &Query<'_>, now: Instant) {
        let now = self.shards.milliseconds(now);
        let (key, shard) = self.shards.key(self.number, query);
        let mut shard = self.shards.lock(shard);
        if let Some((_, entry)) = shard.find(&key) {
            entry.note_failure(now, spec.stale.as_ref());
        }
    }

    /// See [`BlockCache::import`](crate::BlockCache::import).
    pub(crate) fn import(
        &self,
        spec: &CacheSpec,
        export: &Export<'_>,
        since: Duration,
        now: Instant,
    ) -> usize {
        let now = self.shards.milliseconds(now);
        self.counts.set_window(window(spec));
        let Some(identity) = self.shards.identity(self.number) else { return 0 };
        let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let mut taken = 0;
        for (mut exported, name, octets) in export.of(&identity) {
            exported.age = exported.age.saturating_add(since);
            taken += usize::from(self.take_over(spec, &exported, &name, octets, now));
        }
        taken
    }

    fn take_over(
        &self,
        spec: &CacheSpec,
        exported: &ExportedEntry,
        name: &Name,
        octets: &[u8],
        now: u64,
    ) -> bool {
        let Some(overrides) = exported.overrides(octets) else { return false };
        let kinds = (exported.rtype, exported.class);
        let (key, at) = self.shards.key_of(self.number, name, kinds, exported.key_bits(), overrides);
        let entry = Entry::from_export(exported, self.number, key.hash, data(octets), now);
        let kind = entry.kind();
        if !spec.covers(name)
            || !spec.keeps(kind, name)
            || entry.state(now, window(spec)) == Freshness::Dead
            || !entry.is(&key)
        {
            return false;
        }
        let mut shard = self.shards.lock(at);
        shard.find(&key).is_none()
            && self.counts.reserve(kind, spec.store(kind).capacity)
            && shard.insert(&self.counts, entry, now)
    }

    /// See [`BlockCache::entries`](crate::BlockCache::entries).
    pub(crate) fn entries(&self, kind: AnswerKind) -> usize {
        self.counts.entries(kind)
    }

    /// See [`BlockCache::evictions`](crate::BlockCache::evictions).
    pub(crate) fn evictions(&self, kind: AnswerKind) -> u64 {
        self.counts.evictions(kind)
    }

    fn lookup_stale(
        &self,
        spec: &CacheSpec,
        query: &Query<'_>,
        now: u64,
        entry: &mut Entry,
        reply: &mut Reply<'_>,
    ) -> CacheResult {
        let Some(stale) = &spec.stale else { return CacheResult::Miss };
        entry.visit();
        let refresh = match stale.mode {
            StaleMode::Immediate => entry.claim(now),
            // No client gets an expired answer while the upstream may work. Once the upstream has
            // failed, one client waits for it and the others do not.
            StaleMode::Verify { timeout } if !entry.has_failed() || entry.claim(now) => {
                return CacheResult::Verify { wait: timeout.unwrap_or(VERIFY_WAIT) };
            }
            StaleMode::Verify { .. } => false,
        };
        write_stale(spec, query, entry, reply);
        CacheResult::Stale { kind: entry.kind(), refresh }
    }

    /// Evicts an entry from any shard but `own`; the caller must hold no lock.
    fn take_place_elsewhere(&self, own: usize, kind: AnswerKind, now: u64) -> bool {
        let count = self.shards.count();
        let first = self.hand.fetch_add(1, Ordering::Relaxed);
        (0..count)
            .map(|step| (first.wrapping_add(step)) % count)
            .filter(|&at| at != own)
            .any(|at| self.shards.lock(at).take_place(self.number, kind, now))
    }

    /// Evicts a few entries at each store, after a reload with a smaller capacity.
    fn shrink(&self, own: usize, kind: AnswerKind, capacity: usize, now: u64) {
        for _ in 0..SHRINK {
            if self.counts.entries(kind) <= capacity {
                return;
            }
            let taken = self.take_place_elsewhere(own, kind, now)
                || self.shards.lock(own).take_place(self.number, kind, now);
            if !taken {
                return;
            }
            self.counts.release(kind);
        }
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        self.shards.forget(self.number);
    }
}

/// Whether the stored entry must stay in place of the new answer.
fn outlasts(spec: &CacheSpec, known: &Entry, verdict: Cacheability, now: u64) -> bool {
    let usable = !known.is_failure() && known.state(now, window(spec)) != Freshness::Dead;
    let prefers_positive = spec.stale.is_some_and(|stale| stale.prefer_positive);
    usable
        && match verdict {
            Cacheability::Failure | Cacheability::Keep { failure: true, .. } => true,
            Cacheability::Uncacheable(kind) | Cacheability::Keep { kind, .. } => {
                prefers_positive && kind == AnswerKind::Denial && known.kind() == AnswerKind::Success
            }
            Cacheability::Incomplete => prefers_positive && known.kind() == AnswerKind::Success,
            Cacheability::Private => true,
        }
}

fn fresh_ttls(spec: &CacheSpec, entry: &Entry, now: u64) -> Ttls {
    if spec.keep_ttl { Ttls::AsKept } else { Ttls::LessSeconds(entry.age(now) / 1000) }
}

fn write_stale(spec: &CacheSpec, query: &Query<'_>, entry: &Entry, reply: &mut Reply<'_>) {
    let ttl = spec.stale.and_then(|stale| stale.ttl);
    let ttl = ttl.unwrap_or_else(|| if entry.has_failed() { STALE_TTL } else { 0 });
    entry.write(query, Ttls::All(ttl), reply);
    reply.options.push_ede(entry.stale_reason());
}

/// Returns the time after expiry in which answers may be served, in milliseconds.
fn window(spec: &CacheSpec) -> u64 {
    spec.stale.map_or(0, |stale| u64::try_from(stale.window.as_millis()).unwrap_or(u64::MAX))
}

/// Entries above the capacity that one store evicts.
const SHRINK: usize = 4;
