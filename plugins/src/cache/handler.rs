//! Looks queries up in the cache, and counts hits and misses.

use std::sync::Arc;

use super::CacheSpec;
use ::cache::{AnswerKind, BlockCache, CacheResult, Partition};
use metrics::counters::ThreadCounters;
use plugin::spec::{BuildContext, Explanation, Source};
use plugin::{HostsGuard, Lookup, QueryContext};
use wire::{Query, Reply};

/// The source of `cache` in one block: before `forward`, after all sources that answer from memory.
pub struct CacheSource(Arc<BlockCache>);

/// Builds a block's part of the cache.
pub fn of_block(spec: &CacheSpec, partition: Arc<Partition>, context: &BuildContext<'_>) -> BlockCache {
    let mut spec = spec.clone();
    let zones = std::mem::take(&mut spec.zones);
    if !context.scope(&zones).is_all() {
        spec.zones.clone_from(&zones);
    }
    BlockCache::new(partition, spec, zones)
}

impl CacheSource {
    /// Creates the source for a block's part of the cache.
    pub fn new(cache: Arc<BlockCache>) -> Self {
        Self(cache)
    }
}

impl Source for CacheSource {
    /// Answers from the cache. [`Lookup::Ask`] has the time after which a stale entry may be served
    /// if the upstream has not answered; `forward` decides whether the query is forwarded.
    #[inline]
    fn lookup<'h>(
        &'h self,
        context: &QueryContext<'_>,
        _: &mut HostsGuard<'h>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        counters: ThreadCounters<'_>,
    ) -> Lookup {
        if !self.0.covers(&query.name) {
            return Lookup::Pass;
        }
        counters.add(|zone| &zone.cache_requests);
        let hit = |kind| match kind {
            AnswerKind::Success => counters.add(|zone| &zone.cache_hits[0]),
            AnswerKind::Denial => counters.add(|zone| &zone.cache_hits[1]),
        };
        match self.0.lookup(query, context.now, reply) {
            CacheResult::Hit { kind } => {
                hit(kind);
                Lookup::Answer
            }
            CacheResult::Prefetch { kind } => {
                hit(kind);
                counters.add(|zone| &zone.cache_prefetches);
                Lookup::Refresh
            }
            CacheResult::Stale { kind, refresh } => {
                hit(kind);
                counters.add(|zone| &zone.cache_stale);
                if !refresh {
                    return Lookup::Answer;
                }
                // CoreDNS also counts this refresh as a prefetch.
                counters.add(|zone| &zone.cache_prefetches);
                Lookup::Refresh
            }
            CacheResult::Verify { wait } => {
                counters.add(|zone| &zone.cache_misses);
                Lookup::Ask(Some(wait))
            }
            CacheResult::Miss => {
                counters.add(|zone| &zone.cache_misses);
                Lookup::Pass
            }
        }
    }

    fn explain(&self, query: &Query<'_>) -> Explanation {
        if self.0.covers(&query.name) {
            Explanation::Ends("an earlier answer of an upstream".to_owned())
        } else {
            Explanation::Passes(None)
        }
    }
}
