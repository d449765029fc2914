//! TCP and TLS connections to upstreams, on tokio: bounded, reused, pipelined where that delays no
//! query.
//!
//! A worker submits an [`Exchange`] without waiting; the result is returned through [`Deliver`].
//! This module must not know flights, policies or health: it manages connections and reports how
//! each exchange ended.
//!
//! `pool` chooses connections, `connection` is the task of one, `dial` opens it.

mod connection;
mod dial;
mod pool;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(crate) use dial::{dial, handshake};

use crate::metrics::UpstreamProto;
use crate::{ConnectionLimits, Exchange, ExchangeError, ExchangeId, StreamKind, Upstream};
use client_quota::ClientId;
use connection::Command;
use pool::{Choice, Closed, Overtaking, PIPELINE, Pool};

/// Delivers results of exchanges from tokio's threads to the worker that submitted them.
pub trait Deliver: Send + Sync + 'static {
    /// Delivers the result of the exchange `id` of `worker`: the reply as received, or an error.
    fn deliver(&self, worker: usize, id: ExchangeId, result: Result<Vec<u8>, ExchangeError>);
}

/// All connections of the process; a handle, cheap to clone, of which every worker has one.
#[derive(Clone)]
pub struct Streams {
    pools: Arc<ConnectionPools>,
}

/// All connections, by upstream and kind.
pub(crate) struct ConnectionPools {
    runtime: Handle,
    deliver: Arc<dyn Deliver>,
    pools: Mutex<HashMap<Key, Links>>,
}

/// The upstream's number and the kind of its connections.
type Key = (u32, StreamKind);

/// A pool, and the queues of its connections.
struct Links {
    upstream: Weak<Upstream>,
    pool: Pool,
    queues: HashMap<u64, mpsc::Sender<Command>>,
    /// When the pool is checked again without an event of a connection.
    wakes_at: Option<Instant>,
}

/// A worker's number, and the id of its exchange.
pub(crate) type RequestId = (usize, ExchangeId);

/// A query that was submitted.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    pub(crate) message: Vec<u8>,
    pub(crate) client: ClientId,
    /// The client's quota; `None` once no client waits, and for a copy.
    pub(crate) place: Option<Place>,
    /// A copy, sent to see in which order replies arrive: its failure is ignored.
    pub(crate) is_copy: bool,
    /// Since when the query waits for a connection, or when its wait for one began.
    pub(crate) waiting_since: Instant,
    /// Whether the query got its connection so late that a missing reply is no failure of the
    /// upstream.
    pub(crate) is_late: bool,
    /// The time at which the query's clients are answered with a failure.
    pub(crate) give_up_at: Instant,
    /// After this the reply is of no use to the cache either.
    pub(crate) deadline: Instant,
}

/// A unit of an upstream's quota of queries on connections, released on drop.
#[derive(Debug)]
pub(crate) struct Place {
    upstream: Arc<Upstream>,
    client: ClientId,
}

impl Place {
    fn take(upstream: &Arc<Upstream>, client: ClientId) -> Option<Self> {
        upstream.stream_places().acquire(client).then(|| Self { upstream: upstream.clone(), client })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.upstream.stream_places().release(self.client);
    }
}

/// The upstream of a connection, its kind, and its limits.
#[derive(Clone)]
pub(crate) struct Destination {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) kind: StreamKind,
    pub(crate) limits: ConnectionLimits,
}

impl Destination {
    fn key(&self) -> Key {
        (self.upstream.id(), self.kind)
    }

    fn most(&self) -> usize {
        self.limits.max_connections as usize
    }
}

impl Streams {
    /// Creates pools without connections; the tasks of connections will run on `runtime`.
    pub fn new(runtime: Handle, deliver: Arc<dyn Deliver>) -> Self {
        Self { pools: Arc::new(ConnectionPools { runtime, deliver, pools: Mutex::default() }) }
    }

    /// Sends a query over an open connection, a new one, or once one is idle. Returns at once; the
    /// result is delivered to `worker`, exactly once unless the exchange is cancelled.
    pub fn exchange(&self, worker: usize, exchange: Exchange<'_>) {
        let destination =
            Destination { upstream: exchange.upstream.clone(), kind: exchange.kind, limits: exchange.limits };
        let request = Request {
            id: (worker, exchange.id),
            message: exchange.message.to_vec(),
            client: exchange.client,
            place: Place::take(exchange.upstream, exchange.client),
            is_copy: false,
            waiting_since: Instant::now(),
            is_late: false,
            give_up_at: Instant::from_std(exchange.give_up_at),
            deadline: Instant::from_std(exchange.deadline),
        };
        match request.place {
            Some(_) => self.pools.submit(&destination, request),
            None => {
                let error = ExchangeError::Overloaded { upstream: exchange.upstream.address() };
                self.pools.deliver(request.id, Err(error));
            }
        }
    }

    /// Cancels an exchange: a connection without another query is closed.
    pub fn cancel(&self, worker: usize, upstream: &Arc<Upstream>, kind: StreamKind, id: ExchangeId) {
        let mut pools = self.pools.lock();
        let Some(links) = pools.get_mut(&(upstream.id(), kind)) else { return };
        // The query may wait while a copy of it is on a connection.
        drop(links.pool.cancel((worker, id)));
        for lane in links.pool.having((worker, id)) {
            links.command(lane, Command::GiveUp((worker, id)));
        }
    }

    /// Counts an exchange against this client's quota, if the exchange waits for a connection and
    /// the client has quota left.
    pub fn join(
        &self,
        worker: usize,
        upstream: &Arc<Upstream>,
        kind: StreamKind,
        limits: ConnectionLimits,
        id: ExchangeId,
        client: ClientId,
    ) {
        let destination = Destination { upstream: upstream.clone(), kind, limits };
        let mut pools = self.pools.lock();
        let Some(links) = pools.get_mut(&destination.key()) else { return };
        let now = Instant::now();
        if links.pool.join((worker, id), client, destination.most(), now) {
            self.pools.go_on(&destination, links, now);
        }
    }

    /// Returns the number of connections.
    pub fn connections(&self) -> usize {
        self.pools.lock().values().map(|links| links.pool.connections()).sum()
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").field("connections", &self.connections()).finish()
    }
}

impl Links {
    fn new(upstream: &Arc<Upstream>, now: Instant) -> Self {
        Self {
            upstream: Arc::downgrade(upstream),
            pool: Pool::new(now),
            queues: HashMap::new(),
            wakes_at: None,
        }
    }

    /// Sends a command to a connection. Its queue has room for all queries that it may have at a
    /// time; only a `GiveUp` may be dropped, and then the query's deadline has the same effect.
    fn command(&self, lane: u64, command: Command) {
        if let Some(queue) = self.queues.get(&lane) {
            let _ = queue.try_send(command);
        }
    }

    fn note(&self) {
        if let Some(upstream) = self.upstream.upgrade() {
            upstream.metrics().connections(
                self.pool.connections(),
                self.pool.waiting(),
                self.pool.pipelines(),
            );
        }
    }
}

impl ConnectionPools {
    /// Sends a query to the connection that the pool chooses, or lets it wait.
    fn submit(self: &Arc<Self>, destination: &Destination, request: Request) {
        let now = Instant::now();
        let mut pools = self.lock();
        if !pools.contains_key(&destination.key()) {
            pools.retain(|_, links| links.upstream.strong_count() > 0 || links.pool.connections() > 0);
        }
        let links = pools.entry(destination.key()).or_insert_with(|| Links::new(&destination.upstream, now));
        let choice = links.pool.choose(request.id, request.client, destination.most(), now);
        if matches!(choice, Choice::Open(_) | Choice::Wait)
            && let Some(lane) = links.pool.try_order(request.id, request.client, choice == Choice::Wait, now)
        {
            links.command(lane, Command::Ask(request.copy()));
        }
        match choice {
            Choice::Wait => links.pool.wait(request, false),
            _ => self.dispatch(destination, links, request, choice),
        }
        self.go_on(destination, links, now);
        drop(pools);
    }

    /// Sends waiting queries for which a connection is free, and fails those that have waited too
    /// long.
    fn go_on(self: &Arc<Self>, destination: &Destination, links: &mut Links, now: Instant) {
        let upstream = destination.upstream.address();
        for request in links.pool.expired(now) {
            self.deliver(request.id, Err(ExchangeError::Overloaded { upstream }));
        }
        while let Some((request, choice)) = links.pool.next(destination.most(), now) {
            self.dispatch(destination, links, request, choice);
        }
        links.note();
        let soon = links.pool.needs_wake().then(|| now + WAKE);
        let Some(at) = soon.into_iter().chain(links.pool.next_expiry()).min() else { return };
        if links.wakes_at.is_none_or(|wakes_at| at < wakes_at) {
            links.wakes_at = Some(at);
            let (pools, destination) = (self.clone(), destination.clone());
            self.runtime.spawn(async move {
                tokio::time::sleep_until(at).await;
                let mut locked = pools.lock();
                if let Some(links) = locked.get_mut(&destination.key())
                    && links.wakes_at == Some(at)
                {
                    links.wakes_at = None;
                    pools.go_on(&destination, links, Instant::now());
                }
            });
        }
    }

    fn dispatch(
        self: &Arc<Self>,
        destination: &Destination,
        links: &mut Links,
        request: Request,
        choice: Choice,
    ) {
        let now = Instant::now();
        let mut request = request;
        request.is_late = now >= request.waiting_since + LATE || request.give_up_at < now + SHORT;
        let proto = match destination.kind {
            StreamKind::Tcp => UpstreamProto::Tcp,
            StreamKind::Tls => UpstreamProto::Tls,
        };
        let reused = match choice {
            Choice::Wait => return links.pool.wait(request, true),
            Choice::Send(lane) => {
                links.command(lane, Command::Ask(request));
                true
            }
            Choice::Open(lane) => {
                let (queue, commands) = mpsc::channel(2 * PIPELINE + 2);
                links.queues.insert(lane, queue);
                let give_up_at = request.give_up_at;
                links.command(lane, Command::Ask(request));
                let task = connection::run(self.clone(), destination.clone(), lane, commands, give_up_at);
                self.runtime.spawn(task);
                false
            }
        };
        destination.upstream.metrics().connection(proto, reused);
    }

    /// Ends a query of a connection: `overtaking` is what its reply shows about the order of
    /// replies, `None` without a reply. Returns whether the connection gets no more queries.
    fn over(
        self: &Arc<Self>,
        destination: &Destination,
        lane: u64,
        id: RequestId,
        overtaking: Option<Overtaking>,
    ) -> bool {
        let now = Instant::now();
        let mut pools = self.lock();
        let Some(links) = pools.get_mut(&destination.key()) else { return true };
        links.pool.answered(lane, id, overtaking, now);
        self.go_on(destination, links, now);
        if links.pool.has_too_many_idle(destination.limits.max_idle) {
            links.pool.retire(lane);
        }
        links.pool.is_retired(lane)
    }

    fn retire(&self, destination: &Destination, lane: u64) {
        if let Some(links) = self.lock().get_mut(&destination.key()) {
            links.pool.retire(lane);
        }
    }

    /// Moves the queries pipelined behind one that blocks its connection (head-of-line blocking) to
    /// others.
    fn move_on(self: &Arc<Self>, destination: &Destination, lane: u64, requests: Vec<Request>) {
        let now = Instant::now();
        let mut pools = self.lock();
        let Some(links) = pools.get_mut(&destination.key()) else { return };
        for request in requests {
            links.pool.answered(lane, request.id, None, now);
            links.pool.wait(Request { waiting_since: now, ..request }, true);
        }
        links.pool.answers_in_order(now);
        self.go_on(destination, links, now);
    }

    /// Removes a closed connection: its unanswered queries are sent again, or fail.
    fn closed(
        self: &Arc<Self>,
        destination: &Destination,
        lane: u64,
        why: Closed,
        left: Vec<Request>,
        error: &ExchangeError,
    ) {
        let now = Instant::now();
        let mut pools = self.lock();
        let Some(links) = pools.get_mut(&destination.key()) else { return };
        links.queues.remove(&lane);
        let again = links.pool.closed(lane, why, now);
        for request in left.into_iter().rev() {
            if again && request.place.is_some() && now < request.give_up_at {
                links.pool.wait(Request { waiting_since: now, ..request }, true);
            } else if !request.is_copy {
                self.deliver(request.id, Err(error.clone()));
            }
        }
        self.go_on(destination, links, now);
    }

    fn deliver(&self, (worker, id): RequestId, result: Result<Vec<u8>, ExchangeError>) {
        self.deliver.deliver(worker, id, result);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Links>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Request {
    /// Returns a copy of the query for a trial, for which no client waits.
    fn copy(&self) -> Self {
        Self { message: self.message.clone(), place: None, is_copy: true, ..*self }
    }
}

/// A query got its connection late if it waited this long, or has less than [`SHORT`] until its
/// client gives up.
const LATE: Duration = Duration::from_millis(500);
/// Less than the 2.8 s that a second transmission to a silent upstream has.
const SHORT: Duration = Duration::from_millis(2_500);
/// How long until waiting queries may try to open a connection again.
const WAKE: Duration = Duration::from_millis(10);
