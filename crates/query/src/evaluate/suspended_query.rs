//! A client's query that waits, and what upstreams are to be asked for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forwarder::Who;
use wire::{OwnedQuery, Query};

use super::SubqueryAnswer;
use super::subquery_answer::LookupKey;
use crate::ServedZone;
use crate::memory_quota::MemoryPermit;
use crate::route::Route;
use plugin::failure::Failure;

/// A client's query that waits for upstreams.
pub struct SuspendedQuery {
    /// The query.
    pub query: OwnedQuery,
    /// The client's EDNS options, as it sent them.
    pub options: Box<[u8]>,
    /// The zone that answers it.
    pub zone: Arc<ServedZone>,
    /// The zones of the address that it came to.
    pub route: Arc<Route>,
    /// What its lookups came to so far.
    pub found: Vec<Arc<SubqueryAnswer>>,
    /// What was spent on it so far.
    pub spent: Usage,
    /// The upstream that was asked last.
    pub upstream: Option<SocketAddr>,
    /// Whose octets it holds.
    who: Who,
    /// The octets of its options.
    _held: MemoryPermit,
}

impl SuspendedQuery {
    /// # Errors
    /// Where what waits for this client holds too much already.
    pub(super) fn new(
        who: Who,
        query: &Query<'_>,
        zone: &Arc<ServedZone>,
        route: &Arc<Route>,
        found: Vec<Arc<SubqueryAnswer>>,
        spent: Usage,
    ) -> Result<Box<Self>, Failure> {
        let options: Box<[u8]> = query.edns.map_or(&[][..], |edns| edns.options).into();
        let held = MemoryPermit::take(&zone.block.held, who, options.len()).ok_or(Failure::Overload)?;
        if !found.iter().all(|found| found.hold(&zone.block.held, who)) {
            return Err(Failure::Overload);
        }
        let (zone, route) = (zone.clone(), route.clone());
        let query = query.owned();
        Ok(Box::new(Self { query, options, zone, route, found, spent, upstream: None, who, _held: held }))
    }

    /// Keeps what one more lookup came to; where what waits for this client holds too much already, that it failed.
    pub fn add(&mut self, found: Arc<SubqueryAnswer>) {
        let fits = found.hold(&self.zone.block.held, self.who);
        self.found.push(if fits { found } else { found.lost() });
    }

    /// Whether what waits for this client holds half of what it may hold, or more.
    pub fn is_short_of_memory(&self) -> bool {
        self.zone.block.held.has_half(self.who)
    }
}

/// What one client's query has taken, over all evaluations of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// How many wishes upstreams were asked for.
    pub(super) asked: usize,
    /// How many records of what was found were taken apart or copied.
    pub(super) records: usize,
    /// How many steps of its block have counted the query.
    pub(super) counted_steps: usize,
}

/// What must be asked before an evaluation can go on.
pub struct PendingLookups<'h> {
    /// All of it.
    pub asked: Vec<UpstreamQuery<'h>>,
    /// Stale answers on the way that are fetched again: unanswered waits for these.
    pub refreshes: Vec<UpstreamQuery<'h>>,
    /// The client's own query; `None` where it is answered, and refreshes are all that is left.
    pub outer: Option<Box<SuspendedQuery>>,
}

/// What an upstream is to be asked for an evaluation.
pub struct UpstreamQuery<'h> {
    /// The query.
    pub query: OwnedQuery,
    /// The zone that asks.
    pub zone: &'h Arc<ServedZone>,
    /// How long the client waits at most, until a stale answer will do.
    pub patience: Option<Duration>,
    /// Whether it is the client's own, and not one that its answer needs.
    pub own: bool,
}

impl<'h> UpstreamQuery<'h> {
    /// A query that unanswered waits for yet.
    pub fn new(query: &Query<'_>, zone: &'h Arc<ServedZone>, patience: Option<Duration>, own: bool) -> Self {
        Self { query: query.owned(), zone, patience, own }
    }

    /// A query whose answer is for those who ask next: what is kept is for all, and asked for one client's subnet it would
    /// not be.
    pub fn for_next(query: &Query<'_>, zone: &'h Arc<ServedZone>, own: bool) -> Self {
        let asked = Self::new(query, zone, None, own);
        Self { query: asked.query.without_client_subnet(), ..asked }
    }

    pub(super) fn is_for(&self, key: &LookupKey<'_>) -> bool {
        LookupKey::new(self.zone, &self.query.query()) == *key
    }
}
