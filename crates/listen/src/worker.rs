//! A worker: one thread with one loop, which owns its queries from receipt to reply.
//!
//! Each turn handles upstream replies and tasks of other threads, then receives a batch from every
//! listen socket, answers hits in one batch and passes misses to its forwarder, then handles
//! timers. It blocks, in epoll, only when every listen socket was empty.

mod batch;
mod restart_backoff;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use forwarder::{Forwarder, Limits};
use sockets::{BATCH, Epoll, Events, RecvBatch};
use tokio::sync::mpsc;
use wire::{Proto, accept};

use batch::Batch;
use restart_backoff::RestartBackoff;

use super::egress::Egress;
use super::listen_socket::OpenSocket;
use super::token::{INBOX, UPSTREAM};
use super::waiter::{Miss, Waiter};
use super::worker_tasks::{A_TURN, InFlight, Task};
use crate::server_state::ServerState;
use configuration::Configuration;
use plugin::endpoint::Endpoint;
use query::serve::{self, Observed, Outcome};

/// Starts the thread of worker `index`.
///
/// A panic while a packet is handled affects only that packet, a panic in the forwarder only its
/// queries in flight. A panic anywhere else ends the loop, which restarts after a `RestartBackoff`
/// with the state in `Outliving`. Its queries in flight are lost, and their quotas released.
///
/// # Errors
/// The thread could not be created.
pub fn spawn(running: Arc<ServerState>, index: usize) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
        // If the kernel refuses the request, a wake-up may take up to a scheduler tick longer.
        let _ = sockets::set_time_slice(SLICE);
        let (mut outliving, mut pause) = (Outliving::default(), RestartBackoff::default());
        loop {
            let mut worker = match Worker::new(&running, index, std::mem::take(&mut outliving)) {
                Ok(worker) => worker,
                Err(error) => {
                    running.fatal(&format!("worker {index} cannot run: {error}"));
                    return;
                }
            };
            match catch_unwind(AssertUnwindSafe(|| worker.run())) {
                Ok(()) => return,
                Err(_) => {
                    running.panics.add_shared(1);
                    let pause = pause.next(worker.turned);
                    let ms = pause.as_millis();
                    running
                        .logger
                        .error(None, &format!("worker {index} panicked and starts again in {ms} ms"));
                    outliving = worker.into_outliving();
                    running.flights.release_all(index);
                    thread::sleep(pause);
                    running.worker_restarts.add_shared(1);
                }
            }
        }
    })
}

/// State that outlives a loop that panicked.
#[derive(Default)]
struct Outliving {
    sockets: Vec<OpenSocket>,
    /// Tasks not done yet, which may include a new socket, or the stop.
    tasks: VecDeque<Task>,
    parked: bool,
    drain_until: Option<(Instant, InFlight)>,
}

struct Worker {
    index: usize,
    running: Arc<ServerState>,
    epoll: Epoll,
    forwarder: Forwarder<Waiter>,
    egress: Egress,
    received: RecvBatch,
    upstream_received: RecvBatch,
    tasks: VecDeque<Task>,
    /// Outcomes of this batch's queries, by datagram.
    outcomes: Box<[Outcome]>,
    /// Misses to forward.
    misses: Vec<Miss>,
    /// Barriers that wait until all sockets to be closed are closed.
    barriers: Vec<mpsc::Sender<()>>,
    /// When to stop although queries are in flight.
    drain_until: Option<(Instant, InFlight)>,
    /// Whether the loop has completed a turn.
    turned: bool,
    /// Whether a turn was cut short: the next one must not block.
    cut_short: bool,
}

impl Worker {
    fn new(running: &Arc<ServerState>, index: usize, outliving: Outliving) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(running.inboxes[index].waker(), INBOX)?;
        let mut egress = Egress::new(running.clone(), index);
        for socket in outliving.sockets {
            egress.adopt(socket, &epoll)?;
        }
        egress.park(outliving.parked, &epoll)?;
        Ok(Self {
            index,
            running: running.clone(),
            epoll,
            forwarder: Forwarder::new(Limits::default(), clock::now()),
            egress,
            received: RecvBatch::new(BATCH, CLIENT_BYTES),
            upstream_received: RecvBatch::new(BATCH, UPSTREAM_BYTES),
            tasks: outliving.tasks,
            outcomes: vec![Outcome::OPEN; BATCH].into(),
            misses: Vec::with_capacity(BATCH),
            barriers: Vec::new(),
            drain_until: outliving.drain_until,
            turned: false,
            cut_short: false,
        })
    }

    /// Returns the state for the next loop, and drops the rest.
    fn into_outliving(self) -> Outliving {
        let (parked, drain_until) = (self.egress.is_parked(), self.drain_until);
        Outliving { sockets: self.egress.into_sockets(), tasks: self.tasks, parked, drain_until }
    }

    fn run(&mut self) {
        let mut events = Events::new(256);
        let mut timeout = Some(Duration::ZERO);
        // After a panic there may be tasks with an already consumed wake-up.
        self.read_tasks(clock::now());
        loop {
            let count = match self.epoll.wait(&mut events, timeout) {
                Ok(count) => count,
                Err(error) => {
                    self.running.fatal(&format!("worker {}: epoll: {error}", self.index));
                    return;
                }
            };
            #[cfg(test)]
            crate::failpoint::each_turn(self.running.shared.probe);
            let now = clock::now();
            self.egress.now = now;
            self.running.heartbeats[self.index].0.store(self.running.since_start_ms(now), Relaxed);
            if count > 0 {
                for event in events.iter() {
                    match event.token {
                        INBOX => self.read_tasks(now),
                        token if token & UPSTREAM != 0 => {
                            self.read_upstream(now, (token & !UPSTREAM) as usize)
                        }
                        // Events of listen sockets only end the wait: all of them are read below.
                        _ => {}
                    }
                }
            }
            let mut busy = false;
            let configuration = self.running.configuration.load();
            for socket_index in self.egress.socket_indices() {
                busy |= match self.egress.last(socket_index) {
                    None => !self.egress.is_parked() && self.serve_socket(&configuration, socket_index, now),
                    Some(last) => self.serve_last(last, socket_index, now),
                };
            }
            drop(configuration);
            let wake = self.forwarder.next_wake();
            if wake.is_some_and(|wake| wake <= now) {
                self.input(now, Forwarder::tick);
            }
            self.egress.end_delays(now);
            self.resume_ready();
            self.flush(now);
            // Errors of datagrams may have made more queries ready.
            busy |= self.egress.has_ready();
            if let Some((until, in_flight)) = self.drain_until
                && ((!busy && self.forwarder.in_flight() == 0 && self.egress.next_delayed().is_none())
                    || now >= until)
            {
                if in_flight == InFlight::Answered {
                    self.input(now, Forwarder::shutdown);
                    while self.egress.has_ready() {
                        self.resume_ready();
                    }
                    self.flush(now);
                }
                return;
            }
            self.turned = true;
            busy |= std::mem::take(&mut self.cut_short);
            let wake = self.forwarder.next_wake().into_iter().chain(self.egress.next_delayed()).min();
            timeout = Some(match (busy, wake) {
                (true, _) => Duration::ZERO,
                (false, Some(wake)) => wake.saturating_duration_since(now).min(HEARTBEAT),
                (false, None) => HEARTBEAT,
            });
        }
    }

    /// Resumes some clients' queries with answered subqueries, and answers some deferred waiters.
    fn resume_ready(&mut self) {
        // A panic affects only the query concerned.
        self.running.guarded(|| self.egress.resume_ready(&mut self.forwarder, &mut self.misses));
        self.forward_misses(self.egress.now);
    }

    /// Forwards the misses, in order.
    fn forward_misses(&mut self, now: Instant) {
        let mut misses = std::mem::take(&mut self.misses);
        for miss in misses.drain(..) {
            #[cfg(test)]
            crate::failpoint::at("miss", &miss.query.query().name);
            let done = self.running.guarded(|| self.egress.ask(&mut self.forwarder, now, miss));
            self.went_well(done, now);
        }
        self.misses = misses;
    }

    /// Sends the batches to upstreams and to clients.
    fn flush(&mut self, now: Instant) {
        let done = self.running.guarded(|| self.egress.flush(&self.epoll, &mut self.forwarder, now));
        self.went_well(done, now);
        self.egress.send_replies(now);
    }

    /// Passes input to the forwarder and executes its actions; false if that panicked.
    fn input(&mut self, now: Instant, input: impl FnOnce(&mut Forwarder<Waiter>)) -> bool {
        let done = self.running.guarded(|| {
            input(&mut self.forwarder);
            self.egress.drive(&mut self.forwarder, now);
        });
        self.went_well(done, now)
    }

    /// Handles a panic of the forwarder (`done` is `None`); returns whether there was none. The
    /// forwarder's state may be inconsistent: it and its sockets are replaced, and its waiters
    /// answered with SERVFAIL.
    fn went_well(&mut self, done: Option<()>, now: Instant) -> bool {
        if done.is_none() {
            let broken = std::mem::replace(&mut self.forwarder, Forwarder::new(Limits::default(), now));
            self.running.flights.release_all(self.index);
            self.egress.abandon(broken, now);
            self.cut_short = true;
            let index = self.index;
            self.running.logger.error(
                None,
                &format!(
                    "worker {index}: forwarding panicked, its queries in flight fail and it begins anew"
                ),
            );
        }
        done.is_some()
    }

    /// Receives a batch from a listen socket and serves it; false if the socket was empty.
    fn serve_socket(&mut self, configuration: &Configuration, socket_index: usize, now: Instant) -> bool {
        let Some(socket) = self.egress.socket(socket_index) else { return false };
        let address = socket.address;
        // Replies to earlier queries are sent first: the send batch must have room for a reply to
        // each datagram.
        socket.send(&self.running, now);
        match socket.socket.receive(&mut self.received) {
            Ok(0) => return false,
            Ok(_) => socket.taken.note(),
            Err(error) => {
                self.running.io_error("receive", address, &error, now);
                return false;
            }
        }
        socket.note_kernel_drops(self.received.kernel_drops());
        if !self.serve_batch(configuration, socket_index, now) {
            // The address is not in the new configuration: a reload closes this socket, and its
            // task is in the inbox already.
            self.read_tasks(now);
            if let Some(Some(configuration)) = self.egress.last(socket_index) {
                self.serve_batch(&configuration, socket_index, now);
            }
        }
        true
    }

    /// Serves the batch that was received; false if the configuration does not have the address.
    fn serve_batch(&mut self, configuration: &Configuration, socket_index: usize, now: Instant) -> bool {
        let Some(socket) = self.egress.socket(socket_index) else { return true };
        let address = socket.address;
        let Some(plan) = configuration.endpoints.get(&Endpoint::dns(address)) else { return false };
        let mut batch = Batch {
            plan,
            received: &self.received,
            replies: &mut socket.replies,
            outcomes: &mut self.outcomes,
            misses: &mut self.misses,
            socket_index: socket_index as u16,
            address,
            now,
            writer: self.index,
            begun: 0,
        };
        // A panic affects only the packet begun last; the others continue.
        while self.running.guarded(|| batch.serve()).is_none() {
            // The packet is parsed a second time: if the parser is what panics, its client gets no
            // reply.
            self.running.guarded(|| batch.fail());
        }
        let begun = batch.begun;
        socket.send(&self.running, now);
        self.observe(configuration, socket_index, begun, now);
        self.forward_misses(now);
        true
    }

    /// Counts and logs the first `count` queries of this batch, after it was sent; equal outcomes
    /// are counted together.
    fn observe(&mut self, configuration: &Configuration, socket_index: usize, count: usize, began: Instant) {
        let now = clock::now();
        let nanos = now.saturating_duration_since(began).as_nanos() as u64;
        let Some(socket) = self.egress.socket(socket_index) else { return };
        let address = socket.address;
        let Some(plan) = configuration.endpoints.get(&Endpoint::dns(address)) else { return };
        let zone_of =
            |outcome: &Outcome| outcome.zone.and_then(|index| configuration.zones.get(index as usize));
        let outcomes = &self.outcomes[..count];
        let mut logged = false;
        for alike in outcomes.chunk_by(|one, next| one.is_like(next)) {
            let Some(first) = alike.first().filter(|first| first.counted) else { continue };
            let zone = zone_of(first);
            let counters = zone
                .map_or_else(|| plan.served.dropped_counters(self.index), |zone| zone.counters(self.index));
            // A socket has clients of one address family only.
            serve::count(counters, alike, Proto::Udp, address.is_ipv6(), nanos);
            logged |= zone.is_some_and(|zone| serve::is_logged(zone, first));
        }
        if !logged {
            return;
        }
        for (index, outcome) in outcomes.iter().enumerate() {
            let zone = zone_of(outcome).filter(|zone| outcome.counted && serve::is_logged(zone, outcome));
            let Some(zone) = zone else { continue };
            let datagram = self.received.get(index);
            let local = datagram.local.map_or(address, |local| (local.address, address.port()).into());
            let Some(batch::Unwrapped { octets, client }) = batch::unwrap(plan, &datagram, now) else {
                continue;
            };
            let (local, proto) = (Some(local), Proto::Udp);
            let seen = Observed { client, local, proto, nanos, now, upstream: None };
            // A batch keeps the outcomes of its queries, a few bytes each, not the queries: only one
            // that is logged is parsed again.
            self.running.guarded(|| {
                if let Some(query) = accept(octets).query() {
                    #[cfg(test)]
                    crate::failpoint::at("reread", &query.name);
                    self.running.log(zone, outcome, &seen, query, &mut self.egress.lines);
                }
            });
        }
    }

    fn read_tasks(&mut self, now: Instant) {
        let room = A_TURN.saturating_sub(self.tasks.len());
        self.running.inboxes[self.index].take(&mut self.tasks, room);
        while let Some(task) = self.tasks.pop_front() {
            match task {
                Task::Ask { miss, key, permit: _permit } => {
                    #[cfg(test)]
                    crate::failpoint::at("task", &miss.query.query().name);
                    let (forwarder, egress) = (&mut self.forwarder, &mut self.egress);
                    let done = self.running.guarded(|| egress.ask_here(forwarder, now, miss, key));
                    self.went_well(done, now);
                }
                Task::Exchanged { id, result, held: _held } => {
                    let result = result.as_deref().map_err(Clone::clone);
                    self.input(now, |forwarder| forwarder.exchanged(now, id, result));
                }
                Task::Open(address, nth, socket) => {
                    if let Err(error) = self.egress.open_listener(address, nth, socket, &self.epoll) {
                        self.running.fatal(&format!("worker {}: epoll: {error}", self.index));
                    }
                }
                Task::Spread(address, over) => {
                    if let Some(socket_index) = self.egress.socket_index_of(address, 0) {
                        self.egress.spread(socket_index, over);
                    }
                }
                Task::CloseOne { address, nth, keep } => self.close_one(address, nth, keep),
                Task::Close(address, configuration) => self.egress.close_listener(address, &configuration),
                Task::Barrier(sender) if self.egress.is_closing() => self.barriers.push(sender),
                Task::Barrier(sender) => drop(sender),
                Task::Park(parked) => {
                    if let Err(error) = self.egress.park(parked, &self.epoll) {
                        self.running.fatal(&format!("worker {}: epoll: {error}", self.index));
                    }
                }
                Task::Stop(in_flight) => self.drain_until = Some((now + drain(in_flight), in_flight)),
            }
        }
    }

    /// Marks a surplus socket to be closed, once it is empty.
    fn close_one(&mut self, address: SocketAddr, nth: usize, keep: usize) {
        let Some(socket_index) = self.egress.socket_index_of(address, nth) else { return };
        // The first worker has the same task, and may not have done it yet. From here on the kernel
        // gives datagrams to the other sockets.
        self.egress.spread(socket_index, keep);
        if let Some(open) = self.egress.socket(socket_index) {
            open.end(&self.running.configuration.load_full());
        }
    }

    /// Serves one batch from a closing socket; closes it and returns false if it is empty or has
    /// reached its limit.
    fn serve_last(
        &mut self,
        configuration: Option<Arc<Configuration>>,
        socket_index: usize,
        now: Instant,
    ) -> bool {
        if configuration.is_some_and(|configuration| self.serve_socket(&configuration, socket_index, now)) {
            return true;
        }
        self.egress.close(socket_index, &self.epoll);
        if !self.egress.is_closing() {
            self.barriers.clear();
        }
        false
    }

    fn read_upstream(&mut self, now: Instant, socket_index: usize) {
        // At most four batches a turn: clients must not wait while an upstream floods this socket.
        for _ in 0..4 {
            let received = self.egress.upstreams.receive(socket_index, &mut self.upstream_received);
            let id = match received {
                Some((id, Ok(count))) if count > 0 => id,
                Some((id, Err(error))) => {
                    if !self.input(now, |forwarder| forwarder.socket_error(id, error.kind())) {
                        return;
                    }
                    continue;
                }
                _ => return,
            };
            for index in 0..self.upstream_received.len() {
                let datagram = self.upstream_received.get(index);
                if datagram.truncated {
                    continue;
                }
                let (forwarder, egress) = (&mut self.forwarder, &mut self.egress);
                let done = self.running.guarded(|| {
                    forwarder.datagram(now, id, datagram.bytes);
                    egress.drive(forwarder, now);
                });
                if !self.went_well(done, now) {
                    return;
                }
            }
            if self.upstream_received.len() < self.upstream_received.capacity() {
                return;
            }
        }
    }
}

/// Bytes of a client's datagram that are read; a longer one is a format error.
const CLIENT_BYTES: usize = 4096;
/// Maximum size of an upstream's datagram, whatever EDNS size we advertised.
const UPSTREAM_BYTES: usize = 65_535;
/// How long queries in flight may take once the server stops.
const fn drain(in_flight: InFlight) -> Duration {
    match in_flight {
        // Queries time out after 4.8 s.
        InFlight::Answered => Duration::from_millis(4850),
        // The next process or reload waits for this one, so queries in flight get less time.
        InFlight::Hurried => Duration::from_secs(1),
    }
}
/// The scheduler's time slice that workers request: the minimum of Linux (`sched_attr`), and more
/// than a turn takes. A worker that wakes for a query preempts a thread with a longer slice;
/// otherwise it would wait for the next tick (4 ms).
const SLICE: Duration = Duration::from_micros(100);
/// How long a worker may block without a heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(500);
