//! TCP and TLS connections to upstreams, on tokio: pipelined (RFC 7766), few, bounded, used again.
//!
//! A worker hands an [`Exchange`] in and never waits; the result comes back through [`Deliver`]. This half must not know
//! flights, policies or health: it keeps connections and says how each exchange ended.

mod connection;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(crate) use connection::{dial, handshake};

use crate::metrics::UpstreamProto;
use crate::upstream::STREAM_PLACES;
use crate::{ConnectionLimits, Exchange, ExchangeError, ExchangeId, StreamKind, Upstream, Who};

/// Takes the results of exchanges, on tokio's threads: by queue to the worker that asked.
pub trait Deliver: Send + Sync + 'static {
    /// The exchange `id` of `worker` ended, with the reply as it came or the reason why there is none.
    fn deliver(&self, worker: usize, id: ExchangeId, result: Result<Vec<u8>, ExchangeError>);
}

/// All connections of the process. Cheap to clone; every worker has one.
#[derive(Clone)]
pub struct Streams {
    pools: Arc<ConnectionPools>,
}

/// All connections, by upstream and kind, and what they share.
pub(crate) struct ConnectionPools {
    runtime: Handle,
    deliver: Arc<dyn Deliver>,
    pools: Mutex<HashMap<Key, Vec<Arc<Link>>>>,
}

/// Connections to one upstream of one kind.
pub(crate) type Key = (u32, StreamKind);

/// One connection as the others see it.
pub(crate) struct Link {
    queue: mpsc::Sender<Request>,
    /// Queries given to it whose clients wait.
    pub(crate) load: AtomicUsize,
    /// Queries are outstanding and nothing has been read for a while: new queries prefer other connections.
    pub(crate) stalled: AtomicBool,
    /// It takes no more queries: it closes once those in flight are answered.
    pub(crate) retired: AtomicBool,
}

/// One query on its way.
pub(crate) struct Request {
    pub(crate) worker: usize,
    pub(crate) id: ExchangeId,
    pub(crate) message: Vec<u8>,
    /// Taken while somebody waits: `None` once that is over, and a late reply fills the cache alone.
    pub(crate) place: Option<Place>,
    pub(crate) connect_by: Instant,
    pub(crate) deadline: Instant,
    /// How often it was given to another connection because its own was closed.
    pub(crate) moved: u8,
}

/// A client's place among the queries on an upstream's connections, given back with this.
pub(crate) struct Place {
    upstream: Arc<Upstream>,
    who: Who,
}

impl Place {
    fn take(upstream: &Arc<Upstream>, who: Who) -> Option<Self> {
        upstream.stream_places().take(who).then(|| Self { upstream: upstream.clone(), who })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.upstream.stream_places().give_back(self.who);
    }
}

/// What a connection needs to know of those who use it.
#[derive(Clone)]
pub(crate) struct Destination {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) kind: StreamKind,
    pub(crate) limits: ConnectionLimits,
}

impl Streams {
    /// No connections yet; they will live on `runtime`.
    pub fn new(runtime: Handle, deliver: Arc<dyn Deliver>) -> Self {
        Self { pools: Arc::new(ConnectionPools { runtime, deliver, pools: Mutex::default() }) }
    }

    /// Sends a query over a connection that is there, or a new one. Returns at once; the result is delivered to `worker`,
    /// exactly once.
    pub fn exchange(&self, worker: usize, exchange: Exchange<'_>) {
        let destination =
            Destination { upstream: exchange.upstream.clone(), kind: exchange.kind, limits: exchange.limits };
        let request = Request {
            worker,
            id: exchange.id,
            message: exchange.message.to_vec(),
            place: Place::take(exchange.upstream, exchange.who),
            connect_by: Instant::from_std(exchange.connect_by),
            deadline: Instant::from_std(exchange.deadline),
            moved: 0,
        };
        match request.place {
            Some(_) => self.pools.submit(&destination, request),
            None => self.pools.refuse(&destination, &request),
        }
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.pools.lock().values().map(Vec::len).sum()
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").field("connections", &self.connections()).finish()
    }
}

impl ConnectionPools {
    /// Gives a query to the connection that is likely to answer it first.
    pub(crate) fn submit(self: &Arc<Self>, destination: &Destination, request: Request) {
        let proto = match destination.kind {
            StreamKind::Tcp => UpstreamProto::Tcp,
            StreamKind::Tls => UpstreamProto::Tls,
        };
        let mut pools = self.lock();
        let links = pools.entry((destination.upstream.id(), destination.kind)).or_default();
        let best = links
            .iter()
            .filter(|link| !link.retired.load(Ordering::Relaxed))
            .map(|link| (link.stalled.load(Ordering::Relaxed), link.load.load(Ordering::Relaxed), link))
            .filter(|&(_, load, _)| load < PIPELINE)
            .min_by_key(|&(stalled, load, _)| (stalled, load));
        // Many servers answer one query of a connection after the other, so a second connection is opened long before the
        // first is full: at two queries for each, and two more with each connection more.
        let enough = best.is_some_and(|(stalled, load, _)| !stalled && load < 2 * links.len());
        let (link, reused) = match best {
            Some((.., link)) if enough || links.len() >= CONNECTIONS => (link.clone(), true),
            _ if links.len() < CONNECTIONS => {
                let (queue, requests) = mpsc::channel(PIPELINE);
                let link = Arc::new(Link {
                    queue,
                    load: AtomicUsize::new(0),
                    stalled: AtomicBool::new(false),
                    retired: AtomicBool::new(false),
                });
                links.push(link.clone());
                let task = connection::run(
                    self.clone(),
                    destination.clone(),
                    link.clone(),
                    requests,
                    request.connect_by,
                );
                self.runtime.spawn(task);
                (link, false)
            }
            _ => {
                drop(pools);
                return self.refuse(destination, &request);
            }
        };
        destination.upstream.metrics().connection(proto, reused);
        link.load.fetch_add(1, Ordering::Relaxed);
        let refused = link.queue.try_send(request);
        drop(pools);
        // A link leaves the pool before its queue closes, and its queue has room for its whole load: this does not happen.
        if let Err(mpsc::error::TrySendError::Full(request) | mpsc::error::TrySendError::Closed(request)) =
            refused
        {
            link.load.fetch_sub(1, Ordering::Relaxed);
            self.refuse(destination, &request);
        }
    }

    fn refuse(&self, destination: &Destination, request: &Request) {
        let upstream = destination.upstream.address();
        self.deliver(request, Err(ExchangeError::Overloaded { upstream }));
    }

    pub(crate) fn deliver(&self, request: &Request, result: Result<Vec<u8>, ExchangeError>) {
        self.deliver.deliver(request.worker, request.id, result);
    }

    /// Takes a connection out of its pool: it gets no more queries.
    pub(crate) fn remove(&self, destination: &Destination, link: &Arc<Link>) {
        let (mut pools, key) = (self.lock(), (destination.upstream.id(), destination.kind));
        if let Some(links) = pools.get_mut(&key) {
            links.retain(|other| !Arc::ptr_eq(other, link));
            if links.is_empty() {
                pools.remove(&key);
            }
        }
    }

    /// Whether more connections of the pool are idle than `max_idle` allows.
    pub(crate) fn too_many_idle(&self, destination: &Destination) -> bool {
        let max = destination.limits.max_idle as usize;
        if max == 0 {
            return false;
        }
        let pools = self.lock();
        let links = pools.get(&(destination.upstream.id(), destination.kind)).map_or(&[][..], Vec::as_slice);
        let left = |link: &&Arc<Link>| {
            link.load.load(Ordering::Relaxed) == 0 && !link.retired.load(Ordering::Relaxed)
        };
        links.iter().filter(left).count() > max
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Vec<Arc<Link>>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connections to one upstream of one kind at a time, over all workers.
pub(crate) const CONNECTIONS: usize = 16;
/// Queries on one connection at a time; 2,048 to one upstream in all, twice the `max_concurrent` that AKS writes.
pub(crate) const PIPELINE: usize = 128;
// Whoever has a place finds a connection with room.
const _: () = assert!(STREAM_PLACES as usize / 4 * 5 <= CONNECTIONS * PIPELINE);
