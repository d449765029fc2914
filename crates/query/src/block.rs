//! A server block as queries find it: what answers, and what every query and reply of it passes.

use std::sync::Arc;

use corefile::Location;
use forwarder::Fair;
use observe::counters::{ThreadCounters, ZoneSet};
use plugin::endpoint::Endpoint;
use plugin::envelope::Envelope;
use plugin::lent::Lent;
use wire::{Flags, Name, Proto, Query, Reply};

use crate::pipeline::Pipeline;

/// One server block.
pub struct Block {
    /// Its place in the file.
    pub index: usize,
    /// Its number, different for every block built since the start.
    pub id: u64,
    /// Where its first key stands.
    pub at: Location,
    /// The directives it has, in the order in which they take effect.
    pub directives: Vec<&'static str>,
    /// The first of its zones.
    pub first_zone: Name,
    /// Its first endpoint, as `Endpoint::label`.
    pub first_server: String,
    /// What answers.
    pub pipeline: Pipeline,
    /// Octets that evaluations hold while they wait for upstreams, counted for all blocks together.
    pub held: Arc<Fair>,
    /// What every query and reply passes, whichever plugin answers.
    pub envelope: Envelope,
    /// What its plugins lend.
    pub lent: Lent,
}

/// One zone of one block on one endpoint.
pub struct ServedZone {
    /// Its place in the configuration's list of zones.
    pub index: usize,
    /// The zone.
    pub zone: Name,
    /// The block that serves it.
    pub block: Arc<Block>,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The same, as `Endpoint::label`.
    pub server: String,
    /// What is counted, if the block's queries are, or what its cache does.
    pub counters: Option<ZoneSet>,
}

impl std::fmt::Debug for ServedZone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.zone, self.server)
    }
}

impl ServedZone {
    /// Where thread `writer` counts.
    #[inline]
    pub fn counters(&self, writer: usize) -> ThreadCounters<'_> {
        ThreadCounters::new(self.counters.as_deref(), writer)
    }

    /// Completes a reply: options, size, header. Returns the flags and the size sent.
    #[inline]
    pub fn finish(&self, query: &Query<'_>, reply: &mut Reply<'_>, proto: Proto) -> (Flags, usize) {
        self.block.envelope.write_options(query, &mut reply.options);
        reply.finish(query, self.block.envelope.size.limit(query, proto))
    }
}
