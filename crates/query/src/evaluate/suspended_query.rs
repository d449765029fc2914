//! A client's query that waits for upstreams, and the queries for them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use client_quota::ClientId;
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
    /// The client's EDNS options as sent.
    pub options: Box<[u8]>,
    /// The zone that serves it.
    pub zone: Arc<ServedZone>,
    /// The zones of the client's endpoint.
    pub route: Arc<Route>,
    /// The answers so far.
    pub answers: Vec<Arc<SubqueryAnswer>>,
    /// Resources used so far.
    pub spent: Usage,
    /// The upstream that answered last.
    pub upstream: Option<SocketAddr>,
    /// The client that the query's memory is accounted to.
    client: ClientId,
    /// The permit for the memory of `options`.
    _held: MemoryPermit,
}

impl SuspendedQuery {
    /// # Errors
    /// If this client's suspended queries hold too much memory.
    pub(super) fn new(
        client: ClientId,
        query: &Query<'_>,
        zone: &Arc<ServedZone>,
        route: &Arc<Route>,
        answers: Vec<Arc<SubqueryAnswer>>,
        spent: Usage,
    ) -> Result<Box<Self>, Failure> {
        let options: Box<[u8]> = query.edns.map_or(&[][..], |edns| edns.options).into();
        let held = MemoryPermit::take(&zone.block.held, client, options.len()).ok_or(Failure::Overload)?;
        if !answers.iter().all(|answer| answer.hold(&zone.block.held, client)) {
            return Err(Failure::Overload);
        }
        let (zone, route) = (zone.clone(), route.clone());
        let query = query.owned();
        Ok(Box::new(Self {
            query,
            options,
            zone,
            route,
            answers,
            spent,
            upstream: None,
            client,
            _held: held,
        }))
    }

    /// Adds an answer, or a failure in its place if this client's suspended queries hold too much
    /// memory.
    pub fn add(&mut self, answer: Arc<SubqueryAnswer>) {
        let fits = answer.hold(&self.zone.block.held, self.client);
        self.answers.push(if fits { answer } else { answer.lost() });
    }

    /// Whether this client's suspended queries hold at least half of the memory that they may hold.
    pub fn is_short_of_memory(&self) -> bool {
        self.zone.block.held.holds_half(self.client)
    }
}

/// Resources used by all evaluations of one client's query.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Number of subqueries sent to upstreams.
    pub(super) asked: usize,
    /// Records decoded or copied.
    pub(super) records: usize,
    /// The number of steps of the block's middleware that have counted the query.
    pub(super) counted_steps: usize,
}

/// Queries that upstreams must answer before an evaluation can continue.
pub struct PendingLookups<'h> {
    /// Queries that the answer needs.
    pub asked: Vec<UpstreamQuery<'h>>,
    /// Refreshes of stale answers, without a client.
    pub refreshes: Vec<UpstreamQuery<'h>>,
    /// The client's query; `None` if it is answered and only refreshes are left.
    pub suspended: Option<Box<SuspendedQuery>>,
}

/// A query for upstreams.
pub struct UpstreamQuery<'h> {
    /// The query.
    pub query: OwnedQuery,
    /// A zone of the block that forwards it.
    pub zone: &'h Arc<ServedZone>,
    /// How long the client waits before it gets a stale answer.
    pub patience: Option<Duration>,
    /// Whether it is the client's own query rather than a subquery.
    pub own: bool,
    /// Whether no upstream is asked: the client's query resumes after `patience`, with the answers
    /// that it has.
    pub is_timer: bool,
}

impl<'h> UpstreamQuery<'h> {
    /// Creates a query without a client yet.
    pub fn new(query: &Query<'_>, zone: &'h Arc<ServedZone>, patience: Option<Duration>, own: bool) -> Self {
        Self { query: query.owned(), zone, patience, own, is_timer: false }
    }

    /// Creates the wait of a delayed reply to `query`.
    pub(super) fn timer(query: &Query<'_>, zone: &'h Arc<ServedZone>, delay: Duration) -> Self {
        Self { is_timer: true, ..Self::new(query, zone, Some(delay), true) }
    }

    /// Creates a refresh of a cached answer. The answer is for all clients, so the query is sent
    /// without the client's subnet.
    pub fn for_next(query: &Query<'_>, zone: &'h Arc<ServedZone>, own: bool) -> Self {
        let asked = Self::new(query, zone, None, own);
        Self { query: asked.query.without_client_subnet(), ..asked }
    }

    pub(super) fn is_for(&self, key: &LookupKey<'_>) -> bool {
        LookupKey::new(self.zone, &self.query.query()) == *key
    }
}
