//! The cache of one server block, as its plugin and the workers use it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::{Answer, Ede, Name, OptionBytes, Query, Rcode, Reply};

use crate::{AnswerKind, CacheResult, CacheSpec, Export, Partition, StoreResult};

/// The cache of one server block: its partition, used within its limits. Names outside its zones
/// are neither looked up nor stored.
pub struct BlockCache {
    partition: Arc<Partition>,
    /// The block's limits; `zones` is empty if every name that the block gets is within one of
    /// them.
    spec: CacheSpec,
    /// The zones of the directive `cache`.
    zones: Box<[Name]>,
}

impl BlockCache {
    /// Creates a block's cache. `zones` are the directive's zones; the zones of `spec` are compared
    /// with names, and may be empty if every name that the block gets is within one of them.
    pub fn new(partition: Arc<Partition>, spec: CacheSpec, zones: Vec<Name>) -> Self {
        Self { partition, spec, zones: zones.into() }
    }

    /// The block's limits; `zones` is empty if every name that the block gets is within one of
    /// them.
    pub fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    /// The zones of the directive `cache`.
    pub fn zones(&self) -> &[Name] {
        &self.zones
    }

    /// Whether answers to `name` may be stored.
    #[inline]
    pub fn covers(&self, name: &Name) -> bool {
        self.spec.covers(name)
    }

    /// Looks up `query` and writes the answer into `reply`, which must have been started for
    /// `query` and have no records.
    ///
    /// Each record's TTL counts down to 0. Rcode, AA, RA and Extended DNS Errors are the
    /// upstream's; AD only for a client that set DO or AD (RFC 6840, section 5.8). Allocates
    /// nothing but what the reply's buffer needs; takes one short lock.
    ///
    /// A query that the client sent without RD gets fresh answers only, because answers to such
    /// queries are never stored. If a rule of the server cleared RD, the query is treated like any
    /// other, with a key of its own.
    #[inline]
    pub fn lookup(&self, query: &Query<'_>, now: Instant, reply: &mut Reply<'_>) -> CacheResult {
        self.partition.lookup(&self.spec, query, now, reply)
    }

    /// Stores an upstream's `answer` to `query` if it is cacheable; clamps its TTLs.
    pub fn store(&self, query: &Query<'_>, answer: &mut Answer, now: Instant) -> StoreResult {
        self.partition.store(&self.spec, query, answer, now)
    }

    /// Stores the SERVFAIL for an upstream that did not answer, with its Extended DNS Error, for
    /// the time of `servfail`: until then the query is not forwarded again.
    pub fn store_failure(&self, query: &Query<'_>, error: Option<Ede>, now: Instant) {
        let mut options = OptionBytes::none();
        error.into_iter().for_each(|error| options.push_ede(error));
        let ede = options.as_bytes().to_vec();
        // The failure for one client's subnet proves nothing about others: an upstream may fail for
        // a part of the network, and a client may send a subnet that makes it fail (RFC 7871,
        // section 7.4, makes only denials valid for all).
        let subnet_specific = query.forwards_client_subnet();
        let mut answer = Answer { rcode: Rcode::SERVFAIL, ede, subnet_specific, ..Answer::default() };
        self.store(query, &mut answer, now);
    }

    /// Answers from the cache after the upstream failed or was too slow. False if there is no
    /// answer to serve; a stored failure does not count as one.
    ///
    /// An expired answer has the TTL [`STALE_TTL`](crate::STALE_TTL) or that of the block, and
    /// Extended DNS Error 3, or 19 for NXDOMAIN (RFC 8914, section 4). Records the failure as
    /// [`BlockCache::refresh_failed`] does.
    pub fn serve_stale(&self, query: &Query<'_>, now: Instant, reply: &mut Reply<'_>) -> bool {
        self.partition.serve_stale(&self.spec, query, now, reply)
    }

    /// Records a failed background refresh, which delays the next one; [`BlockCache::store`] and
    /// [`BlockCache::serve_stale`] do so themselves.
    pub fn refresh_failed(&self, query: &Query<'_>, now: Instant) {
        self.partition.refresh_failed(&self.spec, query, now);
    }

    /// Imports the answers that another process had for the same block, `since` after the export;
    /// returns how many. Skips keys that are present, since these entries are newer, and answers
    /// that the block would not store.
    pub fn import(&self, export: &Export<'_>, since: Duration, now: Instant) -> usize {
        self.partition.import(&self.spec, export, since, now)
    }

    /// Returns the number of stored answers of this kind: `coredns_cache_entries`.
    pub fn entries(&self, kind: AnswerKind) -> usize {
        self.partition.entries(kind)
    }

    /// Returns the number of answers of this kind evicted before they expired:
    /// `coredns_cache_evictions_total`.
    pub fn evictions(&self, kind: AnswerKind) -> u64 {
        self.partition.evictions(kind)
    }
}
