//! The state of a running server that its threads share.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use client_quota::ClientQuota;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::bind::with_port;
use crate::single_flight::FlightRegistry;
use crate::worker_tasks::{InFlight, Inbox, Task};
use crate::{Connections, ReceiveCounts, ResponseCounts};
use configuration::{Configuration, PersistentState};
use logging::LineRing;
use logging::logger::Logger;
use logging::ring::DEFAULT_BYTES;
use metrics::counters::Counter;
use plugin::failure::Failure;
use query::ServedZone;
use query::serve::{self, Observed, Outcome};
use wire::Query;

/// When a worker last began a turn; on a cache line of its own, as it is written in every turn.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Heartbeat(pub(crate) AtomicU64);

/// State that all threads of a running server share.
pub struct ServerState {
    /// The configuration now served.
    pub configuration: ArcSwap<Configuration>,
    /// State that outlives a configuration.
    pub shared: PersistentState,
    /// The inbox of each worker.
    pub(crate) inboxes: Vec<Inbox>,
    /// When each worker last began a turn, in milliseconds since the start.
    pub(crate) heartbeats: Vec<Heartbeat>,
    /// Counts of receives on each listen socket.
    pub taken: ReceiveCounts,
    /// The port of endpoints with port 0.
    free_port: AtomicU16,
    /// Upstreams over TCP and TLS.
    pub(crate) streams: forwarder::Streams,
    /// Which worker has a query in flight.
    pub(crate) flights: FlightRegistry,
    /// Connections of TCP clients.
    pub connections: Arc<Connections>,
    /// Responses of DNS over HTTPS and over QUIC.
    pub responses: ResponseCounts,
    /// Places of the requests of DNS over HTTPS and over QUIC.
    pub(crate) requests: Arc<ClientQuota>,
    /// The log.
    pub logger: Logger,
    /// Panics caught.
    pub panics: Counter,
    /// Restarts of workers after panics.
    pub worker_restarts: Counter,
    /// Queries answered with SERVFAIL because a limit was reached.
    pub shed: Counter,
    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub kernel_drops: Counter,
    /// Replies dropped because the kernel did not accept them.
    pub send_drops: Counter,
    /// When the process started.
    pub start: Instant,
    /// The ring of log lines of all TCP clients: one for each client would make memory grow with
    /// load.
    tcp_lines: Mutex<LineRing>,
    errors: Mutex<HashMap<(&'static str, SocketAddr), Instant>>,
    fatal: mpsc::UnboundedSender<String>,
}

impl ServerState {
    /// Creates the state of a server that has bound nothing yet; fatal errors are sent to `fatal`.
    ///
    /// # Errors
    /// The workers' event descriptors could not be created.
    pub fn new(
        configuration: Configuration,
        shared: PersistentState,
        workers: usize,
        streams: forwarder::Streams,
        logger: Logger,
        fatal: mpsc::UnboundedSender<String>,
        start: Instant,
    ) -> io::Result<Self> {
        Ok(Self {
            configuration: ArcSwap::from_pointee(configuration),
            shared,
            inboxes: (0..workers).map(|_| Inbox::new()).collect::<io::Result<_>>()?,
            heartbeats: (0..workers).map(|_| Heartbeat::default()).collect(),
            taken: ReceiveCounts::default(),
            free_port: AtomicU16::new(0),
            streams,
            flights: FlightRegistry::new(),
            connections: Arc::default(),
            responses: ResponseCounts::default(),
            requests: Arc::new(ClientQuota::new(REQUESTS)),
            tcp_lines: Mutex::new(logger.ring(DEFAULT_BYTES)),
            logger,
            panics: Counter::default(),
            worker_restarts: Counter::default(),
            shed: Counter::default(),
            kernel_drops: Counter::default(),
            send_drops: Counter::default(),
            start,
            errors: Mutex::default(),
            fatal,
        })
    }

    /// Locks the ring of log lines of TCP clients.
    pub(crate) fn tcp_lines(&self) -> MutexGuard<'_, LineRing> {
        self.tcp_lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the process began.
    pub(crate) fn since_start_ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_millis() as u64
    }

    /// Returns the address that is bound: with the port that was chosen for port 0.
    pub fn bound(&self, address: SocketAddr) -> SocketAddr {
        with_port(address, self.free_port.load(Relaxed))
    }

    pub(crate) fn set_free_port(&self, port: u16) {
        self.free_port.store(port, Relaxed);
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.inboxes.len()
    }

    /// Returns the longest time since a worker began a turn.
    pub fn slowest_worker(&self, now: Instant) -> Duration {
        let oldest = self.heartbeats.iter().map(|beat| beat.0.load(Relaxed)).min().unwrap_or_default();
        Duration::from_millis(self.since_start_ms(now).saturating_sub(oldest))
    }

    /// Runs `work`; if it panics, counts the panic and returns `None`.
    #[inline]
    pub(crate) fn guarded<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(work)).ok();
        if done.is_none() {
            self.panics.add_shared(1);
        }
        done
    }

    /// Logs a finished query, and counts it if it failed because a limit was reached. A panic costs
    /// the line, not the replies of other queries.
    #[inline]
    pub(crate) fn log(
        &self,
        zone: &ServedZone,
        outcome: &Outcome,
        seen: &Observed,
        query: &Query<'_>,
        lines: &mut LineRing,
    ) {
        if outcome.failure.as_deref().is_some_and(Failure::is_overload) {
            self.shed.add_shared(1);
        }
        self.guarded(|| {
            #[cfg(test)]
            crate::failpoint::at("log", &query.name);
            serve::log(zone, outcome, seen, query, lines);
        });
    }

    /// Logs an error of a socket, at most once a minute for each call and address.
    pub(crate) fn io_error(&self, what: &'static str, address: SocketAddr, error: &io::Error, now: Instant) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let last = errors.get(&(what, address));
        if last.is_some_and(|&last| now.saturating_duration_since(last) < Duration::from_secs(60)) {
            return;
        }
        errors.insert((what, address), now);
        self.logger.error(None, &format!("{what} on {address}: {error}"));
    }

    /// Waits until every worker has done the tasks posted so far, so that replaced state is dropped
    /// on this thread.
    pub fn settle(&self, handle: &Handle) {
        let (sender, mut receiver) = mpsc::channel(1);
        for inbox in &self.inboxes {
            inbox.post(Task::Barrier(sender.clone()));
        }
        drop(sender);
        // A worker that hangs must not block a reload for ever.
        let done = async { tokio::time::timeout(Duration::from_secs(2), receiver.recv()).await };
        let _ = handle.block_on(done);
    }

    /// Stops reading the listen sockets, for another process, or reads them again.
    pub fn park(&self, parked: bool) {
        for inbox in &self.inboxes {
            inbox.post(Task::Park(parked));
        }
    }

    /// Stops the workers once queries in flight are answered.
    pub fn end(&self, workers: impl Iterator<Item = JoinHandle<()>>, in_flight: InFlight, handle: &Handle) {
        for inbox in &self.inboxes {
            inbox.post(Task::Stop(in_flight));
        }
        for worker in workers {
            let _ = worker.join();
        }
        // Replies that workers have just handed to connections must still be written.
        handle.block_on(self.connections.drain(LAST_REPLIES));
    }

    /// Closes connections that await no answer: their clients reconnect, and firewall rules apply
    /// to the new connection.
    pub fn end_idle_connections(&self) {
        self.connections.end_idle();
    }

    /// Ends the process with an error: it cannot serve any more.
    pub fn fatal(&self, message: &str) {
        // Sending fails only if the process ends already.
        let _ = self.fatal.send(message.to_owned());
    }
}

/// Requests of one client address at the same time, of all its connections; all addresses together
/// may have a quarter more.
pub(crate) const REQUESTS: u32 = 2048;
/// How long TCP clients may take to read their last replies.
const LAST_REPLIES: Duration = Duration::from_millis(500);
