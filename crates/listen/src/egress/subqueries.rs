//! Clients' queries that wait for subqueries: adds the answers, and resumes the queries some at a
//! time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cache::BlockCache;
use forwarder::Forwarder;
use wire::{Answer, Proto, Query, Reply};

use super::{Egress, block_cache, push_answer};
use crate::subquery_join::{SubqueryHandle, Suspended};
use crate::waiter::{Client, Miss, UdpClient, Waiter};
use plugin::failure::Failure;
use plugin::{HostsGuard, QueryContext};
use query::evaluate::{
    self, Evaluated, Evaluation, FollowCnames, NeedsUpstream, SubqueryAnswer, SuspendedQuery,
};
use query::{Block, serve};

/// A flight's outcome, for all its waiters.
pub(super) struct FlightOutcome<'a> {
    pub(super) result: Result<&'a Answer, &'a Failure>,
    /// Whether a stale answer is better, if there is one.
    pub(super) earlier_is_better: bool,
    pub(super) subquery_answers: SubqueryAnswers,
}

/// Answers made for subqueries so far, by the parameters of the query. Subqueries with equal
/// parameters share one, since an answer may have 64 KiB and thousands may wait for it.
pub(super) type SubqueryAnswers = Vec<(wire::ClientParams, bool, Arc<SubqueryAnswer>)>;

impl<'a> FlightOutcome<'a> {
    pub(super) fn new(result: Result<&'a Answer, &'a Failure>, earlier_is_better: bool) -> Self {
        Self { result, earlier_is_better, subquery_answers: SubqueryAnswers::new() }
    }

    /// Returns the cache that may have a better answer than this outcome.
    pub(super) fn stale_cache<'b>(&self, block: &'b Block) -> Option<&'b BlockCache> {
        block_cache(block).filter(|_| self.earlier_is_better)
    }

    /// Writes the reply to a query: a stale answer if one exists and is preferred, else the
    /// flight's answer or failure.
    pub(super) fn write(
        &self,
        block: &Block,
        query: &Query<'_>,
        now: Instant,
        reply: &mut Reply<'_>,
    ) -> Written {
        if self.stale_cache(block).is_some_and(|cache| cache.serve_stale(query, now, reply)) {
            return Written::Stale;
        }
        match self.result {
            Ok(answer) => {
                push_answer(reply, query, answer);
                Written::Answer
            }
            Err(failure) => {
                serve::fail(reply, failure);
                Written::Failure
            }
        }
    }
}

/// The kind of reply that [`FlightOutcome::write`] has written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// The flight's answer.
    Answer,
    /// A stale answer of the cache.
    Stale,
    /// The flight's failure.
    Failure,
}

impl Egress {
    /// Adds a subquery's answer to the client's query: the upstream's, or a stale one if it exists
    /// and is preferred. Returns the waiter if it is no subquery.
    pub(super) fn subquery_answered(
        &mut self,
        mut waiter: Waiter,
        same: &Query<'_>,
        outcome: &mut FlightOutcome<'_>,
        now: Instant,
    ) -> Option<Waiter> {
        let share = match std::mem::replace(&mut waiter.client, Client::Background) {
            Client::Subquery(share) => share,
            client => return Some(Waiter { client, ..waiter }),
        };
        let started = waiter.started;
        let found = self.found(&waiter, &share, same, outcome, now);
        if let Some(inner) = share.complete(found, self.upstream) {
            self.make_ready(inner, started, now);
        }
        None
    }

    /// Queues a query to be resumed, or refuses it if the queue is full.
    pub(super) fn make_ready(&mut self, inner: Suspended<Client>, started: Instant, now: Instant) {
        let short = inner.outer.is_short_of_memory();
        let ready = (inner, started, now);
        if let Err((inner, started, _)) = self.ready.push(ready.0.client.number(), ready, short) {
            self.refuse(inner, started, Failure::Overload, now);
        }
    }

    /// Returns the answer of a subquery for this waiter.
    fn found(
        &mut self,
        waiter: &Waiter,
        share: &SubqueryHandle<Client>,
        same: &Query<'_>,
        outcome: &mut FlightOutcome<'_>,
        now: Instant,
    ) -> Arc<SubqueryAnswer> {
        // The spelling of the name does not matter: the reply has the client's own question.
        let query = waiter.asker.query(same, None);
        let alike =
            outcome.subquery_answers.iter().find(|(asker, _, _)| asker.gets_same_answer(&waiter.asker));
        if let Some((_, earlier, found)) = alike {
            if *earlier {
                waiter.zone.counters(self.index).add(|zone| &zone.cache_stale);
            }
            return found.clone();
        }
        let mut message = Vec::new();
        let mut reply = Reply::start(&mut message, &query);
        let written = outcome.write(&waiter.zone.block, &query, now, &mut reply);
        let earlier = written == Written::Stale;
        if earlier {
            waiter.zone.counters(self.index).add(|zone| &zone.cache_stale);
        }
        if let (Written::Failure, Err(failure)) = (written, outcome.result) {
            // A failure of the client's own query is logged when that query ends.
            if !share.own {
                waiter.zone.block.envelope.query_failed(failure, &query, now);
            }
            return SubqueryAnswer::new(&waiter.zone, &query, Err(failure.clone()), FollowCnames::No);
        }
        let found = SubqueryAnswer::of_reply(&waiter.zone, &query, &reply, FollowCnames::No);
        outcome.subquery_answers.push((waiter.asker, earlier, found.clone()));
        found
    }

    /// Resumes queries that are ready, and answers deferred waiters, for [`A_MOMENT`]. Appends the
    /// subqueries of resumed queries to `misses`, a bounded number for each.
    pub(crate) fn resume_ready(&mut self, forwarder: &mut Forwarder<Waiter>, misses: &mut Vec<Miss>) {
        let mut since = None;
        while self.has_ready() {
            let now = clock::now();
            if let Some((inner, started, ready)) = self.ready.pop() {
                if now.saturating_duration_since(ready) < LONGEST {
                    self.resume(inner, started, now, misses);
                } else {
                    // The query's client has given up.
                    self.refuse(inner, started, Failure::Overload, now);
                }
            }
            self.answer_some(forwarder);
            if clock::now().saturating_duration_since(*since.get_or_insert(now)) >= A_MOMENT {
                break;
            }
        }
    }

    /// Whether queries are ready or waiters deferred.
    pub(crate) fn has_ready(&self) -> bool {
        !(self.ready.is_empty() && self.deferred.is_empty())
    }

    /// Resumes a client's query after its subqueries are answered.
    fn resume(&mut self, inner: Suspended<Client>, started: Instant, now: Instant, misses: &mut Vec<Miss>) {
        let Suspended { outer, client } = inner;
        let SuspendedQuery { query: held, options, zone, route, answers, spent, upstream, .. } = *outer;
        let (peer, server, proto) = match (&client, client.udp()) {
            (_, Some(UdpClient { socket: (_, address), peer, local, .. })) => {
                let server = local.map_or(address, |local| (local.address, address.port()).into());
                (peer, server, Proto::Udp)
            }
            (Client::Stream(stream), None) => (stream.peer, stream.local, Proto::Tcp),
            (Client::Request(request), None) => (request.peer, request.local, request.proto),
            (_, None) => return,
        };
        let peer = peer.into();
        let context = QueryContext::new(now, &peer, server, proto, self.index);
        let (mut tables, mut query) = (HostsGuard::default(), held.query());
        if let Some(edns) = &mut query.edns {
            edns.options = &options;
        }
        let mut evaluation = Evaluation::new(&route, &context, &mut tables, &query, answers, spent);
        evaluation.patience = forwarder::DEADLINE.saturating_sub(now.saturating_duration_since(started));
        let end = evaluation.run(&zone);
        let before = std::mem::replace(&mut self.upstream, upstream);
        if let Some(refreshes) = evaluation.refreshes() {
            misses.extend(Miss::all(*refreshes, Client::Background, now));
        }
        match end {
            Ok(Evaluated::Answer(message, failure)) => {
                let waiter = Waiter::new(&query, &zone, client, started);
                self.deliver(&waiter, &query, now, |reply, query| {
                    evaluate::write(&message, query, reply);
                    failure
                });
            }
            Ok(Evaluated::Drop) => {}
            Err(NeedsUpstream) => match evaluation.wait(&zone) {
                Ok(mut lookups) => {
                    lookups.suspended.iter_mut().for_each(|outer| outer.upstream = upstream);
                    misses.extend(Miss::all(*lookups, client, started));
                }
                Err(failure) => {
                    self.refuse_query(&query, Waiter::new(&query, &zone, client, started), failure, now)
                }
            },
        }
        self.upstream = before;
    }

    /// Answers a client's query with a failure.
    fn refuse(&mut self, inner: Suspended<Client>, started: Instant, failure: Failure, now: Instant) {
        let Suspended { outer, client } = inner;
        let query = outer.query.query();
        self.refuse_query(&query, Waiter::new(&query, &outer.zone, client, started), failure, now);
    }

    fn refuse_query(&mut self, query: &Query<'_>, waiter: Waiter, failure: Failure, now: Instant) {
        self.deliver(&waiter, query, now, |reply, _| {
            serve::fail(reply, &failure);
            Some(failure)
        });
    }
}

/// How long a query may wait to be resumed: together with the time of its upstreams, its client has
/// given up by then.
const LONGEST: Duration = Duration::from_secs(2);
/// How long a worker resumes queries and answers deferred waiters before it reads its sockets
/// again.
pub(super) const A_MOMENT: Duration = Duration::from_millis(1);
