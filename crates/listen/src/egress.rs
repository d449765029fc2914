//! A worker's outputs: whose replies go out where, and what its forwarder wants done.

mod deferred_delivery;
mod forwarder_actions;
mod listen_sockets;
mod subqueries;

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use cache::{BlockCache, StoreResult};
use forwarder::{FlightResult, ForwardQuery, Forwarder};
use sockets::Epoll;
use wire::{Answer, OptionBytes, Proto, Query, Rcode, Reply};

use super::fair_queue::FairQueue;
use super::listen_socket::OpenSocket;
use super::subquery_join::Suspended;
use super::upstream_sockets::UpstreamSockets;
use super::waiter::{Client, Miss, Waiter};
use crate::server_state::Running;
use deferred_delivery::DeferredDeliveries;
use observe::LineRing;
use plugin::failure::Failure;
use query::serve::{self, Observed, Outcome};
use query::{Block, ServedZone};
use subqueries::FlightOutcome;

/// What a worker writes to.
pub(crate) struct Egress {
    index: usize,
    running: Arc<Running>,
    sockets: Vec<Option<OpenSocket>>,
    parked: bool,
    pub(crate) upstreams: UpstreamSockets,
    /// Log lines.
    pub(crate) lines: LineRing,
    /// The time of this turn.
    pub(crate) now: Instant,
    /// A reply to a TCP client, before it is sent.
    scratch: Vec<u8>,
    /// The upstream whose answer, or failure, is told now.
    upstream: Option<SocketAddr>,
    /// Clients' queries for which all inner lookups have come: when they came in, and since when they are ready.
    ready: FairQueue<(Suspended<Client>, Instant, Instant)>,
    /// Those who joined a flight that has ended and are not told yet.
    deferred: DeferredDeliveries,
}

impl Egress {
    pub(crate) fn new(running: Arc<Running>, index: usize) -> Self {
        let lines = running.logger.ring(LOG_RING_BYTES);
        Self {
            index,
            running,
            sockets: Vec::new(),
            parked: false,
            upstreams: UpstreamSockets::new(),
            lines,
            now: clock::now(),
            scratch: Vec::new(),
            upstream: None,
            ready: FairQueue::new(),
            deferred: DeferredDeliveries::new(),
        }
    }

    /// Single flight: hands a miss to the worker that has the same query in flight, which may be this one.
    pub(crate) fn ask(&mut self, forwarder: &mut Forwarder<Waiter>, now: Instant, miss: Miss) {
        let workers = self.running.inboxes.len();
        let (worker, key) = self.running.flights.worker_for(&miss, Some(self.index), workers);
        if worker == self.index {
            self.ask_here(forwarder, now, miss, key);
        } else {
            let no_room = self.running.inboxes[worker].ask(miss, key);
            if let Some(Miss { query, waiter, .. }) = no_room {
                // The flight stays with the worker that has it, so its entry in the registry is left alone.
                self.fail(waiter, &query.query(), Failure::Overload, now);
            }
        }
    }

    /// Hands a miss to this worker's forwarder, and does what that asks for.
    pub(crate) fn ask_here(&mut self, forwarder: &mut Forwarder<Waiter>, now: Instant, miss: Miss, key: u64) {
        let Miss { query: held, waiter, patience } = miss;
        let zone = waiter.zone.clone();
        let Some(forwarding) = zone.block.pipeline.forwarding() else { return };
        let query = held.query();
        let ask = ForwardQuery {
            chain: &forwarding.chain,
            query: &query,
            proto: waiter.client.proto(),
            block: zone.block.id,
            key,
            patience,
            asker: waiter.client.number(),
        };
        let asked = match forwarder.ask(now, ask, waiter) {
            Ok(Some(waiter)) => {
                waiter.spelled = Some(query.question.into());
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(refused) => Err(refused),
        };
        self.drive(forwarder, now);
        if let Err(refused) = asked {
            if workers_share(&self.running) && !refused.flies {
                self.running.flights.release(key, self.index);
            }
            if matches!(refused.failure, forwarder::ForwardError::Subnets) {
                // Answered as by a resolver that does not know the option: the reply lacks it, which tells the client.
                let query = held.without_subnet();
                self.ask(forwarder, now, Miss { query, waiter: refused.waiter, patience });
                return;
            }
            self.fail(refused.waiter, &query, Failure::Forward(refused.failure), now);
        }
    }

    /// Sends what the forwarder has for upstreams, and reports what the network refused.
    pub(crate) fn flush(&mut self, epoll: &Epoll, forwarder: &mut Forwarder<Waiter>, now: Instant) {
        // Each error ends a try: the retries it causes are bounded by the forwarder.
        while self.upstreams.flush(epoll, forwarder) {
            self.drive(forwarder, now);
        }
    }

    /// Sends what has gathered for clients.
    pub(crate) fn send_replies(&mut self, now: Instant) {
        for socket in self.sockets.iter_mut().flatten() {
            socket.send(&self.running, now);
        }
    }

    /// Tells everybody who waits in a forwarder that panicked, and forgets its sockets with what was to be sent on them.
    pub(crate) fn abandon(&mut self, mut broken: Forwarder<Waiter>, now: Instant) {
        // What these wait for has come.
        while !self.deferred.is_empty() {
            self.answer_some(&mut broken);
        }
        self.upstreams = UpstreamSockets::new();
        let running = self.running.clone();
        running.guarded(move || {
            broken.abandon(|waiter, query| {
                self.running.clone().guarded(|| self.fail(waiter, query, Failure::Panic, now));
            });
        });
    }

    /// Writes, sends, counts and logs the reply to one waiter.
    fn deliver(
        &mut self,
        waiter: &Waiter,
        same: &Query<'_>,
        failure: Option<Failure>,
        now: Instant,
        write: impl FnOnce(&mut Reply<'_>, &Query<'_>),
    ) {
        self.deliver_if(waiter, same, failure, now, |reply, query| {
            write(reply, query);
            true
        });
    }

    /// The same, if `write` says that there is something to send; false where nothing was sent.
    fn deliver_if(
        &mut self,
        waiter: &Waiter,
        same: &Query<'_>,
        failure: Option<Failure>,
        now: Instant,
        write: impl FnOnce(&mut Reply<'_>, &Query<'_>) -> bool,
    ) -> bool {
        let query = waiter.query(same);
        let zone = &waiter.zone;
        let mut outcome = Outcome::OPEN;
        let (proto, client, local) = match &waiter.client {
            // What an inner lookup came to goes to `resume`.
            Client::Background | Client::Subquery(_) => return false,
            Client::Udp { socket: (socket_index, address), peer, local } => {
                // None where a reload closed the address meanwhile: no reply can be sent from it.
                let Some(open) = socket_at(&mut self.sockets, usize::from(*socket_index), *address) else {
                    return false;
                };
                if open.replies.is_full() {
                    open.send(&self.running, now);
                }
                let Some(out) = open.replies.slot() else { return false };
                let mut reply = Reply::start(out, &query);
                if !write(&mut reply, &query) {
                    return false;
                }
                serve::finish(zone, &query, &mut reply, Proto::Udp, failure, &mut outcome);
                open.replies.commit(&(*peer).into(), *local);
                let local = local.map_or(*address, |local| (local.address, address.port()).into());
                (Proto::Udp, *peer, local)
            }
            Client::Stream(stream) => {
                let mut reply = Reply::start(&mut self.scratch, &query);
                if !write(&mut reply, &query) {
                    return false;
                }
                serve::finish(zone, &query, &mut reply, Proto::Tcp, failure, &mut outcome);
                stream.send(&self.scratch);
                (Proto::Tcp, stream.peer, stream.local)
            }
        };
        let nanos = now.saturating_duration_since(waiter.started).as_nanos() as u64;
        let seen = Observed { client, local: Some(local), proto, nanos, now, upstream: self.upstream };
        self.observe(zone, &outcome, &seen, &query);
        true
    }

    /// Counts and logs a query whose reply has left.
    #[inline]
    fn observe(&mut self, zone: &ServedZone, outcome: &Outcome, seen: &Observed, query: &Query<'_>) {
        let (counters, is_ipv6) = (zone.counters(self.index), seen.client.is_ipv6());
        self.running.count_shed(outcome);
        serve::count(counters, slice::from_ref(outcome), seen.proto, is_ipv6, seen.nanos);
        // A panic while the line is logged does not undo the reply; other clients wait for the same flight.
        self.running.guarded(|| {
            #[cfg(test)]
            crate::failpoint::at("log", &query.name);
            serve::log(zone, outcome, seen, query, &mut self.lines);
        });
    }

    /// Answers a waiter whose query failed: from an earlier answer if there is one, else with the failure.
    fn fail(&mut self, waiter: Waiter, same: &Query<'_>, failure: Failure, now: Instant) {
        self.answer_waiter(waiter, same, &mut FlightOutcome::new(Err(&failure), true), now);
    }

    /// Answers a waiter with what its flight came to.
    fn answer_waiter(
        &mut self,
        waiter: Waiter,
        same: &Query<'_>,
        outcome: &mut FlightOutcome<'_>,
        now: Instant,
    ) {
        let Some(waiter) = self.subquery_answered(waiter, same, outcome, now) else { return };
        if outcome.earlier_is_better && self.answer_stale(&waiter, same, now) {
            return;
        }
        match outcome.result {
            Ok(answer) => {
                self.deliver(&waiter, same, None, now, |reply, query| push_answer(reply, query, answer));
            }
            Err(failure) => {
                self.deliver(&waiter, same, Some(failure.clone()), now, |reply, _| {
                    serve::fail(reply, failure)
                });
            }
        }
    }

    /// Answers a waiter from an earlier answer, if the block's cache has one that may still be served; nobody at all is
    /// answered by noting the failure.
    fn answer_stale(&mut self, waiter: &Waiter, same: &Query<'_>, now: Instant) -> bool {
        let Some(cache) = block_cache(&waiter.zone.block, same) else { return false };
        if matches!(waiter.client, Client::Background) {
            cache.partition.failed(&cache.spec, same, now);
            return true;
        }
        let mut found = false;
        let tried = self.deliver_if(waiter, same, None, now, |reply, query| {
            found = cache.partition.serve_stale(&cache.spec, query, now, reply);
            found
        });
        if found {
            waiter.zone.counters(self.index).add(|zone| &zone.cache_stale);
        }
        tried && found
    }

    /// Keeps the SERVFAIL of an upstream that did not answer, with its Extended DNS Error, as long as `servfail` says: until
    /// then nobody asks it the same again. That there was no room here says nothing of those who ask next.
    fn remember_failure(
        &mut self,
        waiter: &Waiter,
        failure: &forwarder::ForwardError,
        query: &Query<'_>,
        now: Instant,
    ) {
        let failure = Failure::Forward(failure.clone());
        if failure.rcode() != Rcode::SERVFAIL || failure.is_overload() {
            return;
        }
        if let Some(cache) = block_cache(&waiter.zone.block, query) {
            let mut options = OptionBytes::none();
            failure.ede().into_iter().for_each(|ede| options.push_ede(ede));
            let ede = options.as_bytes().to_vec();
            // What became of one client's subnet says nothing of others: an upstream may fail for a part of the network, and a
            // client may send a subnet that makes it fail (RFC 7871, section 7.4, has denials alone taken as those of all).
            let subnet_specific = query.forwards_client_subnet();
            let mut answer = Answer { rcode: Rcode::SERVFAIL, ede, subnet_specific, ..Answer::default() };
            cache.partition.store(&cache.spec, query, &mut answer, now);
        }
    }

    /// The block with that number, if it still serves.
    fn block(&self, id: u64) -> Option<Arc<Block>> {
        self.running.configuration.load().blocks.iter().find(|block| block.id == id).cloned()
    }

    /// Keeps what came of a query, and tells everybody who waits for it.
    fn finished(&mut self, flight: FlightResult<'_, Waiter>) {
        self.finish_flight(flight);
        self.upstream = None;
    }

    fn finish_flight(&mut self, flight: FlightResult<'_, Waiter>) {
        let now = self.now;
        let FlightResult { mut waiters, outcome, query, block, key, upstream, .. } = flight;
        self.upstream = upstream.map(|upstream| upstream.address());
        let first = waiters.next();
        let over = !matches!(outcome, Err(forwarder::ForwardError::Patience));
        if over && workers_share(&self.running) {
            self.running.flights.release(key, self.index);
        }
        #[cfg(test)]
        crate::failpoint::at("tell", &query.name);
        let (told, earlier_is_better) = match outcome {
            Ok(answer) => {
                let held = match &first {
                    Some(waiter) => Some(waiter.zone.block.clone()),
                    None => self.block(block),
                };
                let cache = held.as_deref().and_then(|block| block_cache(block, &query));
                let stored = self.running.guarded(|| {
                    #[cfg(test)]
                    crate::failpoint::at("reply", &query.name);
                    cache.map(|cache| cache.partition.store(&cache.spec, &query, answer, now))
                });
                match stored {
                    Some(stored) => (Ok(answer), stored == Some(StoreResult::EarlierIsBetter)),
                    None => (Err(Failure::Panic), true),
                }
            }
            Err(failure) => {
                if let (Some(waiter), true) = (&first, over) {
                    self.remember_failure(waiter, &failure, &query, now);
                }
                (Err(Failure::Forward(failure)), true)
            }
        };
        let mut outcome = FlightOutcome::new(told.as_deref(), earlier_is_better);
        if let Some(waiter) = first {
            self.answer_waiter(waiter, &query, &mut outcome, now);
        }
        if !waiters.is_empty() {
            let FlightOutcome { subquery_answers, .. } = outcome;
            self.answer_joined(waiters, &query, told, earlier_is_better, subquery_answers);
        }
    }
}

/// The socket at `address` that a reply leaves by: the one with that index, where this worker took the query from it; else, where
/// another one did, whose sockets have other indices, this worker's own.
#[inline]
fn socket_at(
    sockets: &mut [Option<OpenSocket>],
    index: usize,
    address: SocketAddr,
) -> Option<&mut OpenSocket> {
    let is_it = |open: &OpenSocket| open.address == address;
    let stays = |open: &OpenSocket| is_it(open) && open.last.is_none();
    let index = match sockets.get(index) {
        Some(Some(open)) if is_it(open) => index,
        _ => sockets.iter().position(|open| open.as_ref().is_some_and(stays))?,
    };
    sockets.get_mut(index)?.as_mut()
}

/// Writes what an upstream said to this client.
fn push_answer(reply: &mut Reply<'_>, query: &Query<'_>, answer: &Answer) {
    reply.push_answer(query, answer);
    if let (Some(subnet), Some(asked)) =
        (answer.subnet, query.edns.as_ref().and_then(|edns| edns.client_subnet))
    {
        reply.options.push_subnet(asked, subnet.scope());
    }
}

/// The block's part of the cache, if it keeps answers to this query.
fn block_cache<'b>(block: &'b Block, query: &Query<'_>) -> Option<&'b BlockCache> {
    block.pipeline.forwarding()?.cache.as_ref()?.covering(&query.name)
}

/// Whether there is another worker that may have the same query in flight.
fn workers_share(running: &Running) -> bool {
    running.inboxes.len() > 1
}

/// Log lines that may wait for the writer.
const LOG_RING_BYTES: usize = 1 << 20;
