//! A worker's egress: sends replies to clients, and drives the forwarder.

mod deferred_delivery;
mod delayed_replies;
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
use wire::{Answer, Proto, Query, Rcode, Reply};

use super::fair_queue::FairQueue;
use super::listen_socket::OpenSocket;
use super::subquery_join::Suspended;
use super::upstream_sockets::UpstreamSockets;
use super::waiter::{Client, Miss, UdpClient, Waiter};
use crate::server_state::ServerState;
use deferred_delivery::DeferredDeliveries;
use delayed_replies::DelayedReplies;
use logging::LineRing;
use plugin::failure::Failure;
use query::serve::{self, Observed, Outcome};
use query::{Block, ServedZone};
use subqueries::{FlightOutcome, Written};

/// The sockets of a worker, and the clients' queries that wait in it.
pub(crate) struct Egress {
    index: usize,
    running: Arc<ServerState>,
    sockets: Vec<Option<OpenSocket>>,
    parked: bool,
    pub(crate) upstreams: UpstreamSockets,
    /// The ring of log lines.
    pub(crate) lines: LineRing,
    /// The time of the current turn.
    pub(crate) now: Instant,
    /// Buffer for a reply to a TCP client.
    scratch: Vec<u8>,
    /// The upstream of the answer or failure that is being delivered.
    upstream: Option<SocketAddr>,
    /// Clients' queries with all subqueries answered: when they were received, and since when they
    /// are ready.
    ready: FairQueue<(Suspended<Client>, Instant, Instant)>,
    /// Clients' queries whose replies wait for their time.
    delayed: DelayedReplies,
    /// Waiters that joined a flight that has ended and are not answered yet.
    deferred: DeferredDeliveries,
}

impl Egress {
    pub(crate) fn new(running: Arc<ServerState>, index: usize) -> Self {
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
            delayed: DelayedReplies::default(),
            deferred: DeferredDeliveries::new(),
        }
    }

    /// Forwards a miss: on the worker that has the same query in flight (single flight), or on this
    /// one.
    pub(crate) fn ask(&mut self, forwarder: &mut Forwarder<Waiter>, now: Instant, miss: Miss) {
        if miss.is_timer {
            self.delay(miss, now);
            return;
        }
        let workers = self.running.inboxes.len();
        let (worker, key) = self.running.flights.worker_for(&miss, Some(self.index), workers);
        if worker == self.index {
            self.ask_here(forwarder, now, miss, key);
        } else {
            let no_room = self.running.inboxes[worker].ask(miss, key);
            if let Some(Miss { query, waiter, .. }) = no_room {
                // That worker still has the flight, so its entry in the registry stays.
                self.fail(waiter, &query.query(), Failure::Overload, now);
            }
        }
    }

    /// Forwards a miss with this worker's forwarder.
    pub(crate) fn ask_here(&mut self, forwarder: &mut Forwarder<Waiter>, now: Instant, miss: Miss, key: u64) {
        if miss.is_timer {
            self.delay(miss, now);
            return;
        }
        let Miss { query: held, waiter, patience, .. } = miss;
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
                // Answers like a resolver that does not implement the option: the reply has no
                // subnet.
                let query = held.without_subnet();
                self.ask(forwarder, now, Miss { query, waiter: refused.waiter, patience, is_timer: false });
                return;
            }
            self.fail(refused.waiter, &query, Failure::Forward(refused.failure), now);
        }
    }

    /// Sends the forwarder's datagrams, and reports errors of the network to it.
    pub(crate) fn flush(&mut self, epoll: &Epoll, forwarder: &mut Forwarder<Waiter>, now: Instant) {
        // Each error ends an attempt; the forwarder bounds the retries.
        while self.upstreams.flush(epoll, forwarder) {
            self.drive(forwarder, now);
        }
    }

    /// Sends the batches of replies to clients.
    pub(crate) fn send_replies(&mut self, now: Instant) {
        for socket in self.sockets.iter_mut().flatten() {
            socket.send(&self.running, now);
        }
    }

    /// Answers all waiters of a forwarder that panicked with SERVFAIL, and drops its sockets.
    pub(crate) fn abandon(&mut self, mut broken: Forwarder<Waiter>, now: Instant) {
        // The answers of deferred waiters have arrived already.
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

    /// Sends, counts and logs the reply to one waiter. `write` writes the reply, and returns the
    /// failure that the reply reports.
    fn deliver(
        &mut self,
        waiter: &Waiter,
        same: &Query<'_>,
        now: Instant,
        write: impl FnOnce(&mut Reply<'_>, &Query<'_>) -> Option<Failure>,
    ) {
        let query = waiter.query(same);
        let zone = &waiter.zone;
        let mut outcome = Outcome::OPEN;
        let (proto, client, local) = match &waiter.client {
            udp @ (Client::Udp { .. } | Client::Proxied(_)) => {
                let Some(UdpClient { socket: (socket_index, address), peer, local, reply_to }) = udp.udp()
                else {
                    return;
                };
                // `None` if a reload closed the address meanwhile: no reply can be sent from it.
                let Some(open) = socket_at(&mut self.sockets, usize::from(socket_index), address) else {
                    return;
                };
                if open.replies.is_full() {
                    open.send(&self.running, now);
                }
                let Some(out) = open.replies.slot() else { return };
                let mut reply = Reply::start(out, &query);
                let failure = write(&mut reply, &query);
                serve::finish(zone, &query, &mut reply, Proto::Udp, failure, &mut outcome);
                open.replies.commit(&reply_to.into(), local);
                let local = local.map_or(address, |local| (local.address, address.port()).into());
                (Proto::Udp, peer, local)
            }
            client => {
                let (proto, peer, local) = match client {
                    Client::Stream(stream) => (Proto::Tcp, stream.peer, stream.local),
                    Client::Request(request) => (request.proto, request.peer, request.local),
                    // The answer of a subquery is passed to `resume`.
                    Client::Udp { .. } | Client::Proxied(_) | Client::Background | Client::Subquery(_) => {
                        return;
                    }
                };
                let mut reply = Reply::start(&mut self.scratch, &query);
                let failure = write(&mut reply, &query);
                serve::finish(zone, &query, &mut reply, proto, failure, &mut outcome);
                client.send_stream(&self.scratch);
                (proto, peer, local)
            }
        };
        let nanos = now.saturating_duration_since(waiter.started).as_nanos() as u64;
        let seen = Observed { client, local: Some(local), proto, nanos, now, upstream: self.upstream };
        self.observe(zone, &outcome, &seen, &query);
    }

    /// Counts and logs a query after its reply was sent.
    #[inline]
    fn observe(&mut self, zone: &ServedZone, outcome: &Outcome, seen: &Observed, query: &Query<'_>) {
        let (counters, is_ipv6) = (zone.counters(self.index), seen.client.is_ipv6());
        serve::count(counters, slice::from_ref(outcome), seen.proto, is_ipv6, seen.nanos);
        self.running.log(zone, outcome, seen, query, &mut self.lines);
    }

    /// Answers a waiter of a failed query: with a stale answer if there is one, else with the
    /// failure.
    fn fail(&mut self, waiter: Waiter, same: &Query<'_>, failure: Failure, now: Instant) {
        self.answer_waiter(waiter, same, &mut FlightOutcome::new(Err(&failure), true), now);
    }

    /// Answers a waiter with its flight's outcome.
    fn answer_waiter(
        &mut self,
        waiter: Waiter,
        same: &Query<'_>,
        outcome: &mut FlightOutcome<'_>,
        now: Instant,
    ) {
        let Some(waiter) = self.subquery_answered(waiter, same, outcome, now) else { return };
        if matches!(waiter.client, Client::Background) {
            if let Some(cache) = outcome.stale_cache(&waiter.zone.block) {
                cache.refresh_failed(same, now);
            }
            return;
        }
        let mut written = Written::Answer;
        self.deliver(&waiter, same, now, |reply, query| {
            written = outcome.write(&waiter.zone.block, query, now, reply);
            match &outcome.result {
                Err(failure) if written == Written::Failure => Some((*failure).clone()),
                _ => None,
            }
        });
        if written == Written::Stale {
            waiter.zone.counters(self.index).add(|zone| &zone.cache_stale);
        }
    }

    /// Returns the block with this number, if it is still served.
    fn block(&self, id: u64) -> Option<Arc<Block>> {
        self.running.configuration.load().blocks.iter().find(|block| block.id == id).cloned()
    }

    /// Caches a flight's result, and answers its waiters.
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
        crate::failpoint::at("deliver", &query.name);
        let (result, earlier_is_better) = match outcome {
            Ok(answer) => {
                let held = match &first {
                    Some(waiter) => Some(waiter.zone.block.clone()),
                    None => self.block(block),
                };
                let cache = held.as_deref().and_then(block_cache);
                let stored = self.running.guarded(|| {
                    #[cfg(test)]
                    crate::failpoint::at("reply", &query.name);
                    cache.map(|cache| cache.store(&query, answer, now))
                });
                match stored {
                    Some(stored) => (Ok(answer), stored == Some(StoreResult::EarlierIsBetter)),
                    None => (Err(Failure::Panic), true),
                }
            }
            Err(failure) => {
                let failure = Failure::Forward(failure);
                // A local limit that was reached does not affect the next query, so it is not
                // cached.
                let is_upstreams = failure.rcode() == Rcode::SERVFAIL && !failure.is_overload();
                let cache = first.as_ref().and_then(|waiter| block_cache(&waiter.zone.block));
                if let Some(cache) = cache.filter(|_| over && is_upstreams) {
                    cache.store_failure(&query, failure.ede(), now);
                }
                (Err(failure), true)
            }
        };
        let mut outcome = FlightOutcome::new(result.as_deref(), earlier_is_better);
        if let Some(waiter) = first {
            self.answer_waiter(waiter, &query, &mut outcome, now);
        }
        if !waiters.is_empty() {
            let FlightOutcome { subquery_answers, .. } = outcome;
            self.answer_joined(waiters, &query, result, earlier_is_better, subquery_answers);
        }
    }
}

/// Returns the socket at `address` to reply from: the socket with this index if this worker
/// received the query; otherwise this worker's own socket at the address, as another worker's
/// indices differ.
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

/// Writes an upstream's answer for this client.
fn push_answer(reply: &mut Reply<'_>, query: &Query<'_>, answer: &Answer) {
    reply.push_answer(query, answer);
    if let (Some(subnet), Some(asked)) =
        (answer.subnet, query.edns.as_ref().and_then(|edns| edns.client_subnet))
    {
        reply.options.push_subnet(asked, subnet.scope());
    }
}

/// Returns the cache of a block, if it has one.
fn block_cache(block: &Block) -> Option<&BlockCache> {
    block.pipeline.forwarding()?.cache.as_deref()
}

/// Whether another worker may have the same query in flight.
fn workers_share(running: &ServerState) -> bool {
    running.inboxes.len() > 1
}

/// Bytes of log lines that may wait for the writer.
const LOG_RING_BYTES: usize = 1 << 20;
