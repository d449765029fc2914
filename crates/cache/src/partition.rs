//! One server block's part of the cache: lookups and stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wire::{Answer, Name, Query, Reply};

use crate::cacheability::{Cacheability, fills, judge};
use crate::entry::{Entry, ExportedEntry, Freshness, Ttls};
use crate::export::{Dump, data};
use crate::shard::PartitionCounts;
use crate::shards::Shards;
use crate::{AnswerKind, CacheSpec, STALE_TTL, StaleMode, VERIFY_WAIT};

/// One server block's answers, apart from those of all other blocks. It is freed with its last `Arc`.
pub struct Partition {
    shards: Arc<Shards>,
    number: u32,
    counts: Arc<PartitionCounts>,
    /// The shard that a place is taken from next, where a query's own has none.
    hand: AtomicUsize,
}

/// What a lookup found. All but [`CacheResult::Miss`] and [`CacheResult::Verify`] have filled the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheResult {
    /// Nothing; the reply is as it was.
    Miss,
    /// Answered.
    Hit {
        /// What the answer is.
        kind: AnswerKind,
    },
    /// Answered, and this caller, only this one, should ask the upstream: the answer is popular and will expire soon.
    Prefetch {
        /// What the answer is.
        kind: AnswerKind,
    },
    /// Answered with an expired answer.
    Stale {
        /// What the answer is.
        kind: AnswerKind,
        /// Whether this caller, only this one, should ask the upstream now.
        refresh: bool,
    },
    /// There is an expired answer, and the upstream is to be asked first. If it does not answer within `wait`, call
    /// [`Partition::serve_stale`]; its answer is for [`Partition::store`] all the same.
    Verify {
        /// How long the client should wait.
        wait: Duration,
    },
}

/// What became of an upstream's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreResult {
    /// It is kept; its TTLs were clamped, so the first client sees what later ones see.
    Kept(AnswerKind),
    /// It is not kept, and may be passed on as it is.
    Passed,
    /// It is not kept, for it is a failure (under `prefer_positive` anything but an answer) where
    /// an earlier answer may still be served: answer with [`Partition::serve_stale`] instead, and
    /// with this one only if that finds nothing any more.
    EarlierIsBetter,
}

impl Partition {
    pub(crate) fn new(shards: Arc<Shards>, number: u32) -> Self {
        Self { shards, number, counts: Arc::default(), hand: AtomicUsize::new(0) }
    }

    /// Looks for an answer to `query` and writes it into `reply`, which must hold the question of `query` and no
    /// records.
    ///
    /// Records are counted down each by itself and never below 0; rcode, AA, RA and Extended DNS Errors are as the
    /// upstream sent them, AD only for a client that set DO or AD (RFC 6840, section 5.8). Nothing is allocated but what
    /// the reply's buffer may need, and one short lock is taken.
    ///
    /// A query that came without RD is answered from what is fresh only: what an upstream says to it is never kept. One
    /// from which a rule of ours took RD is as any other, with a key of its own.
    pub fn lookup(
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
        let refreshable = fills(query);
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

    /// Takes an upstream's `answer` to `query` and keeps it where it may be kept.
    ///
    /// Failures that we make ourselves, such as the SERVFAIL for an upstream that did not answer, may be stored too.
    pub fn store(
        &self,
        spec: &CacheSpec,
        query: &Query<'_>,
        answer: &mut Answer,
        now: Instant,
    ) -> StoreResult {
        let verdict = judge(spec, query, answer);
        if verdict == Cacheability::Aside {
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
                // One client's subnet says nothing of when others may ask again.
                if !answer.subnet_specific {
                    known.note_failure(now, spec.stale.as_ref());
                }
                return StoreResult::EarlierIsBetter;
            }
            if matches!(verdict, Cacheability::Failure | Cacheability::Unanswered) {
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
            // Another thread may have stored the same key since the lookup.
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

    /// Answers from an earlier answer after the upstream failed or was too slow; false where there is none to be served,
    /// and an earlier failure is none.
    ///
    /// The expired answer's TTLs are [`STALE_TTL`] or what the block says, and Extended DNS Error 3 (19 for NXDOMAIN)
    /// says that it is stale (RFC 8914, section 4). The failure is noted as by [`Partition::failed`].
    pub fn serve_stale(
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
        // A stored failure (SERVFAIL) is no stale answer: the lookup that has just failed gives the newer reason.
        if entry.is_failure() || !spec.keeps(entry.kind(), &query.name) {
            return false;
        }
        match (entry.state(now, window(spec)), &spec.stale) {
            (Freshness::Fresh, _) => {
                entry.visit();
                entry.write(query, fresh_ttls(spec, entry, now), reply);
                true
            }
            (Freshness::Stale, Some(stale)) if fills(query) => {
                entry.note_failure(now, Some(stale));
                write_stale(spec, query, entry, reply);
                true
            }
            _ => false,
        }
    }

    /// Notes that a refresh in the background failed, so that the upstream is left alone for a while.
    ///
    /// [`Partition::store`] and [`Partition::serve_stale`] note failures by themselves.
    pub fn failed(&self, spec: &CacheSpec, query: &Query<'_>, now: Instant) {
        let now = self.shards.milliseconds(now);
        let (key, shard) = self.shards.key(self.number, query);
        let mut shard = self.shards.lock(shard);
        if let Some((_, entry)) = shard.find(&key) {
            entry.note_failure(now, spec.stale.as_ref());
        }
    }

    /// Takes over the answers that another process had for the same block, `since` after they were copied; returns how many.
    /// What is known here already is newer, and what the block would not keep stays out.
    pub fn warm(&self, spec: &CacheSpec, dump: &Dump<'_>, since: Duration, now: Instant) -> usize {
        let now = self.shards.milliseconds(now);
        self.counts.set_window(window(spec));
        let Some(identity) = self.shards.identity(self.number) else { return 0 };
        let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let mut taken = 0;
        for (mut carried, name, octets) in dump.of(&identity) {
            carried.age = carried.age.saturating_add(since);
            taken += usize::from(self.take_over(spec, &carried, &name, octets, now));
        }
        taken
    }

    fn take_over(
        &self,
        spec: &CacheSpec,
        carried: &ExportedEntry,
        name: &Name,
        octets: &[u8],
        now: u64,
    ) -> bool {
        let Some(overrides) = carried.overrides(octets) else { return false };
        let kinds = (carried.rtype, carried.class);
        let (key, at) = self.shards.key_of(self.number, name, kinds, carried.key_bits(), overrides);
        let entry = Entry::carried(carried, self.number, key.hash, data(octets), now);
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

    /// How many answers of that kind are kept: `coredns_cache_entries`.
    pub fn entries(&self, kind: AnswerKind) -> usize {
        self.counts.entries(kind)
    }

    /// How many answers of that kind went before their time to make room: `coredns_cache_evictions_total`.
    pub fn evictions(&self, kind: AnswerKind) -> u64 {
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
            // Nobody is given an expired answer while the upstream may be well. Once it has failed, one waits for it
            // and the others do not.
            StaleMode::Verify { timeout } if !entry.has_failed() || entry.claim(now) => {
                return CacheResult::Verify { wait: timeout.unwrap_or(VERIFY_WAIT) };
            }
            StaleMode::Verify { .. } => false,
        };
        write_stale(spec, query, entry, reply);
        CacheResult::Stale { kind: entry.kind(), refresh }
    }

    /// Takes the place of an entry in any shard but `own`; no lock may be held.
    fn take_place_elsewhere(&self, own: usize, kind: AnswerKind, now: u64) -> bool {
        let count = self.shards.count();
        let first = self.hand.fetch_add(1, Ordering::Relaxed);
        (0..count)
            .map(|step| (first.wrapping_add(step)) % count)
            .filter(|&at| at != own)
            .any(|at| self.shards.lock(at).take_place(self.number, kind, now))
    }

    /// After a reload with a smaller capacity each store takes a few entries more away than it adds.
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

/// Whether `known` must not give way to an answer of that verdict.
fn outlasts(spec: &CacheSpec, known: &Entry, verdict: Cacheability, now: u64) -> bool {
    let usable = !known.is_failure() && known.state(now, window(spec)) != Freshness::Dead;
    let prefers_positive = spec.stale.is_some_and(|stale| stale.prefer_positive);
    usable
        && match verdict {
            Cacheability::Failure | Cacheability::Keep { failure: true, .. } => true,
            Cacheability::Fleeting(kind) | Cacheability::Keep { kind, .. } => {
                prefers_positive && kind == AnswerKind::Denial && known.kind() == AnswerKind::Success
            }
            Cacheability::Unanswered => prefers_positive && known.kind() == AnswerKind::Success,
            Cacheability::Aside => true,
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

/// In milliseconds.
fn window(spec: &CacheSpec) -> u64 {
    spec.stale.map_or(0, |stale| u64::try_from(stale.window.as_millis()).unwrap_or(u64::MAX))
}

/// How many entries over the capacity one store takes away.
const SHRINK: usize = 4;
