//! A server block as the query path sees it.

use std::sync::Arc;

use client_quota::ClientQuota;
use corefile::Location;
use metrics::counters::{ThreadCounters, ZoneSet};
use plugin::endpoint::Endpoint;
use plugin::extensions::Extensions;
use plugin::hooks::Hooks;
use wire::{Flags, Name, Proto, Query, Reply};

use crate::pipeline::Pipeline;

/// One server block.
pub struct Block {
    /// The block's index in the Corefile.
    pub index: usize,
    /// Unique among all blocks built since the start.
    pub id: u64,
    /// The position of the block's first key.
    pub at: Location,
    /// The block's directives, in the order in which they act.
    pub directives: Vec<&'static str>,
    /// The block's first zone.
    pub first_zone: Name,
    /// The block's first endpoint, as `Endpoint::label`.
    pub first_server: String,
    /// Middleware and sources.
    pub pipeline: Pipeline,
    /// Memory of suspended queries, shared by all blocks.
    pub held: Arc<ClientQuota>,
    /// Hooks that apply to every query and reply of the block.
    pub envelope: Hooks,
    /// Values that the block's plugins share with each other.
    pub lent: Extensions,
}

/// One zone of one block on one endpoint.
pub struct ServedZone {
    /// The zone's index in the configuration's list of zones.
    pub index: usize,
    /// The zone.
    pub zone: Name,
    /// The block that serves it.
    pub block: Arc<Block>,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The endpoint as `Endpoint::label`.
    pub server: String,
    /// Counters, if the block's queries are counted or it has a cache.
    pub counters: Option<ZoneSet>,
}

impl std::fmt::Debug for ServedZone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.zone, self.server)
    }
}

impl ServedZone {
    /// Returns the counters of thread `writer`.
    #[inline]
    pub fn counters(&self, writer: usize) -> ThreadCounters<'_> {
        ThreadCounters::new(self.counters.as_deref(), writer)
    }

    /// Completes a reply: options, size limit, header. Returns flags and size as sent.
    #[inline]
    pub fn finish(&self, query: &Query<'_>, reply: &mut Reply<'_>, proto: Proto) -> (Flags, usize) {
        self.block.envelope.write_options(query, &mut reply.options);
        reply.finish(query, self.block.envelope.size.limit(query, proto))
    }
}
