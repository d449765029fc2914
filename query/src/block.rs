//! A server block as queries find it: what answers, and what every query and reply of it passes.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use corefile::Location;
use observe::counters::{ThreadCounters, ZoneSet};
use observe::{ErrorLog, LogRules};
use plugin::failure::Failure;
use wire::{Flags, Name, OPTION_NSID, Query, Reply};

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
    /// Octets that evaluations which wait hold; those of all blocks.
    pub held: Arc<AtomicUsize>,
    /// The identifier sent to those who ask for it.
    pub nsid: Option<Box<[u8]>>,
    /// The largest UDP reply.
    pub bufsize: usize,
    /// What the directive `bufsize` says, where it is written.
    pub written_bufsize: Option<u16>,
    /// Which queries are logged.
    pub log: Option<LogRules>,
    /// Where failures are logged.
    pub errors: Option<Arc<ErrorLog>>,
}

/// One zone of one block on one endpoint.
pub struct ServedZone {
    /// Its place in the configuration's list of zones.
    pub index: usize,
    /// The zone.
    pub zone: Name,
    /// The block that serves it.
    pub block: Arc<Block>,
    /// The endpoint, as `Endpoint::label`.
    pub server: String,
    /// What is counted, if the block has `prometheus`.
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

    /// Completes a reply: identifier, size, header.
    #[inline]
    pub fn finish(&self, query: &Query<'_>, reply: &mut Reply<'_>, limit: usize) -> (Flags, usize) {
        if let Some(nsid) = &self.block.nsid
            && query.edns.is_some_and(|edns| edns.nsid)
        {
            reply.options.push(OPTION_NSID, nsid);
        }
        reply.finish(query, limit)
    }

    /// The largest reply over UDP to this query.
    #[inline]
    pub fn udp_limit(&self, query: &Query<'_>) -> usize {
        query.udp_limit().min(self.block.bufsize).max(512)
    }

    /// The largest reply over UDP that the log tells of this query: the client's size, and no more than `bufsize`, where that
    /// is written, as in CoreDNS.
    pub fn told_udp_size(&self, query: &Query<'_>) -> u16 {
        (query.udp_limit() as u16).min(self.block.written_bufsize.unwrap_or(u16::MAX))
    }

    /// Tells the block's `errors` why a query failed.
    pub fn tell(&self, failure: &Failure, query: &Query<'_>, now: Instant) {
        if let Some(errors) = self.block.errors.as_ref().filter(|_| failure.is_error()) {
            errors.report(now, failure.rcode().0, &query.name, query.rtype, &failure.to_string());
        }
    }
}
