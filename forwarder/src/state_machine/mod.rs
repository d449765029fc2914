//! The state machine of one worker: queries, replies and time go in; it is polled for datagrams,
//! exchanges and results.
//!
//! ```text
//!                 ask            first good reply            read_timeout of the others
//!   (no flight) -------> Flying ------------------> Settled -----------------------------> (gone)
//!                          |  all tries failed,                late reply, or 10 s
//!                          +------- deadline -----> Late --------------------------------> (gone)
//! ```
//!
//! A flight is a query to upstreams for all clients with the same query. It has up to four attempts
//! at a time, each one message to one upstream. This module does no I/O, reads no clock and takes
//! no lock.

mod actions;
mod attempts;
mod ecs_limit;
mod edns_fallback;
mod flight;
mod flight_table;
mod hedge_budget;
mod output;
mod repeat;
mod replies;
mod send_errors;
mod timer_wheel;
mod udp_sockets;
mod waiters;

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};
use wire::{Answer, Proto, Query};

pub use actions::{Action, Exchange, ExchangeId, FlightResult, ForwardQuery, Refused, SocketId};
pub use waiters::{RemainingWaiters, Waiters};

use crate::{DEADLINE, ExchangeError, ForwardError, SendError, Upstream};
use client_quota::{ClientId, ClientQuota};
use ecs_limit::EcsLimit;
use flight::{
    ATTEMPTS, Attempt, AttemptState, Flight, FlightState, KeptQuery, OVER_TCP, SUBNET, key_bits, key_hash,
};
use flight_table::FlightTable;
use hedge_budget::HedgeBudget;
use output::Output;
use timer_wheel::{MachineTime, NEVER, TimerWheel};
use udp_sockets::{AttemptId, UdpSockets};
use waiters::{WaiterList, WaiterSlab};

/// Limits of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum flights of one client; all clients together may have a quarter more. Flights that
    /// linger after their end count. [`slot_octets`] bytes each. Default 8,192, min 1, max 2^23.
    pub flights: usize,
    /// Maximum waiters of one client that joined a flight; all clients together may have a quarter
    /// more. [`waiter_octets`] bytes each. Default 16,384, min 1, max 2^30.
    pub waiters: usize,
    /// UDP sockets in use per upstream; as many again may be retiring. Default 32, min 1.
    pub sockets: usize,
    /// Queries after which a socket retires. Default 1,000.
    pub socket_queries: u32,
    /// Age at which a socket retires. Default 10 s.
    pub socket_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            flights: 8_192,
            waiters: 16_384,
            sockets: 32,
            socket_queries: 1_000,
            socket_age: Duration::from_secs(10),
        }
    }
}

/// All queries of one worker at upstreams, and the clients that wait for them. `W` is the worker's
/// record of a client.
#[derive(Debug)]
pub struct Forwarder<W> {
    epoch: Instant,
    /// The last conversion of [`Self::machine_time`]: one input converts the same time several times.
    converted: Cell<(Instant, MachineTime)>,
    table: FlightTable<W>,
    /// Quota of flights with waiters.
    places: ClientQuota,
    waiters: WaiterSlab<W>,
    timers: TimerWheel,
    sockets: UdpSockets,
    budget: HedgeBudget,
    rng: StdRng,
    hasher: foldhash::quality::RandomState,
    subnets: EcsLimit,
    /// Flights without waiters, in the order in which they lost the last one; some have ended
    /// since.
    lingering: VecDeque<(u32, u32)>,
    linger_limit: usize,
    flying: usize,
    sweep_at: MachineTime,
    output: Output<W>,
    answer: Answer,
    message: Vec<u8>,
}

impl<W> Forwarder<W> {
    /// Creates a state machine without queries; `now` is its epoch.
    pub fn new(limits: Limits, now: Instant) -> Self {
        let limits = Limits { sockets: limits.sockets.max(1), ..limits };
        // ChaCha, seeded by the kernel: ids must not be predictable from earlier ones.
        let mut rng = StdRng::from_os_rng();
        let places = ClientQuota::new(limits.flights.clamp(1, FLIGHTS_MAX) as u32);
        let linger_limit = places.capacity() as usize;
        Self {
            epoch: now,
            converted: Cell::new((now, MachineTime(0))),
            // Results of the exchanges of an abandoned state machine may still arrive: they must
            // match no flight of the next one.
            table: FlightTable::new(places.capacity() as usize, rng.random()),
            places,
            waiters: WaiterSlab::new(limits.waiters),
            timers: TimerWheel::new(),
            sockets: UdpSockets::new(limits),
            budget: HedgeBudget::new(),
            rng,
            hasher: foldhash::quality::RandomState::default(),
            subnets: EcsLimit::default(),
            lingering: VecDeque::new(),
            linger_limit,
            flying: 0,
            sweep_at: MachineTime::NEVER,
            output: Output::new(),
            answer: Answer::default(),
            message: Vec::with_capacity(512),
        }
    }

    /// Queries the upstreams of the first stanza that forwards the name, or joins a flight with the
    /// same query. Returns the waiter if the flight's question is spelled differently (0x20): the
    /// waiter must store its own spelling, which its reply repeats.
    ///
    /// # Errors
    /// The waiter and why: [`ForwardError::NoStanza`], [`ForwardError::NoUpstream`] or
    /// [`ForwardError::AllLoop`], [`ForwardError::NoHealthy`] (with failfast),
    /// [`ForwardError::MaxConcurrent`], [`ForwardError::TableFull`], [`ForwardError::Subnets`]
    /// (call again without the client's subnet). After `Ok` the waiter is handed back with
    /// [`Action::Finished`], once.
    pub fn ask(
        &mut self,
        now: Instant,
        ask: ForwardQuery<'_>,
        waiter: W,
    ) -> Result<Option<&mut W>, Refused<W>> {
        let refuse = |waiter, failure| Err(Refused { waiter, failure, flies: false });
        let Some(at) = ask.chain.matching(0, &ask.query.name) else {
            return refuse(waiter, ForwardError::NoStanza);
        };
        let stanza = &ask.chain.stanzas()[at];
        let bits = key_bits(ask.query, stanza.asks_over_tcp(ask.proto));
        let hash = key_hash(ask.block, ask.query, bits, &self.hasher);
        let client = ClientId::of(ask.asker);
        let started = self.machine_time(now);
        let until = ask.patience.map_or(MachineTime::NEVER, |patience| started.after(patience));
        let patience_at =
            ask.patience.map_or(NEVER, |patience| u32::try_from(patience.as_micros()).unwrap_or(NEVER));
        if let Some(slot) = self.table.find(hash, &ask, bits) {
            return self.join(slot, &ask, waiter, until);
        }
        if bits & SUBNET != 0 && self.subnets.is_full(ask.query, &self.hasher) {
            return refuse(waiter, ForwardError::Subnets);
        }
        let upstreams = stanza.upstreams();
        if upstreams.is_empty() {
            return refuse(waiter, stanza.without_upstreams());
        }
        let spec = stanza.spec();
        let tcp = stanza.asks_over_tcp(ask.proto);
        let is_down = |upstream: &Arc<Upstream>| upstream.is_down(upstream.path(tcp), spec.max_fails);
        if spec.failfast && upstreams.iter().all(is_down) {
            stanza.metrics().healthcheck_broken.add_shared(1);
            return refuse(waiter, ForwardError::NoHealthy);
        }
        let Some(admitted) = stanza.admit(client) else {
            return refuse(waiter, ForwardError::MaxConcurrent(spec.max_concurrent));
        };
        if !self.places.acquire(client) {
            return refuse(waiter, ForwardError::TableFull);
        }
        // The table has a slot for each unit of `places`: if the table is full, one slot has a
        // flight without waiters, which is evicted.
        if self.table.is_full() && !self.evict() {
            self.places.release(client);
            return refuse(waiter, ForwardError::TableFull);
        }
        let flight = Flight {
            held: KeptQuery(ask.query.owned()),
            chain: ask.chain.clone(),
            order: crate::policy::Order::in_sequence(0),
            upstreams,
            cold: None,
            waiters: WaiterList::new(waiter, patience_at, client),
            block: ask.block,
            key: ask.key,
            hash,
            started,
            deadline: DEADLINE.as_micros() as u32,
            hedge_at: NEVER,
            patience_at,
            attempts: [Attempt::FREE; ATTEMPTS],
            cursor: 0,
            stanza: at as u8,
            failures: 0,
            serial: 0,
            failed_over: 0,
            without_edns: 0,
            refused_edns: 0,
            bits: bits | if ask.proto == Proto::Tcp { OVER_TCP } else { 0 },
            state: FlightState::Flying,
        };
        // From here on the flight owns the admission, and releases it however it ends.
        admitted.keep();
        let slot = self.table.insert(flight);
        if bits & SUBNET != 0 {
            self.subnets.enter(ask.query, &self.hasher);
        }
        self.flying += 1;
        self.begin(now, slot);
        self.rearm(slot);
        Ok(None)
    }

    /// Adds a waiter to a flight, until the flight ends or `until` has passed.
    fn join(
        &mut self,
        slot: u32,
        ask: &ForwardQuery<'_>,
        waiter: W,
        until: MachineTime,
    ) -> Result<Option<&mut W>, Refused<W>> {
        let flight = &mut self.table[slot];
        let until = flight.offset(until);
        let client = ClientId::of(ask.asker);
        let node = match self.waiters.push(&mut flight.waiters, waiter, until, client) {
            Ok(node) => node,
            Err(waiter) => return Err(Refused { waiter, failure: ForwardError::TableFull, flies: true }),
        };
        let same_letters = flight.held.0.question() == ask.query.question;
        flight.patience_at = flight.patience_at.min(until);
        if client != flight.waiters.client {
            self.join_exchange(slot, client);
        }
        self.rearm(slot);
        if same_letters {
            return Ok(None);
        }
        Ok(self.waiters.waiter(&mut self.table[slot].waiters, node))
    }

    /// Takes a datagram received on one of our sockets. One that matches no query is ignored.
    pub fn datagram(&mut self, now: Instant, socket: SocketId, bytes: &[u8]) {
        if self.sockets.upstream(socket).is_none() {
            return;
        }
        let id = bytes.first_chunk::<2>().map(|id| u16::from_be_bytes(*id));
        let owner = id.and_then(|id| self.sockets.owner(socket, id));
        let Some((slot, at)) = owner.and_then(|owner| self.resolve(owner)) else {
            self.sockets.unmatched(socket);
            return;
        };
        match self.answer.read(bytes, self.table[slot].held.0.question()) {
            Ok(()) if self.repeats_subnet(slot, at) => self.replied(now, slot, at, bytes),
            Err(error) if error != wire::Malformed::Question && bytes.len() >= wire::HEADER => {
                self.garbled(now, slot, at);
            }
            _ => self.sockets.unmatched(socket),
        }
    }

    /// Takes the result of [`Action::Open`]. If the socket could not be opened, its queries are
    /// sent from another one to the same upstream, or these attempts fail.
    pub fn opened(&mut self, socket: SocketId, result: Result<SocketAddr, SendError>) {
        let error = match result {
            Ok(local) => return self.sockets.opened(socket, local),
            Err(error) => error,
        };
        let Some(upstream) = self.sockets.upstream(socket).map(|upstream| upstream.address()) else { return };
        let owners = self.sockets.owners(socket).to_vec();
        let other = self.sockets.not_opened(socket, &mut self.rng);
        for &owner in &owners {
            let Some((slot, at)) = self.resolve(owner) else { continue };
            if let Some(other) = other {
                let attempt = &mut self.table[slot].attempts[at];
                attempt.socket = other;
                attempt.id = self.sockets.register(other, owner, &mut self.rng);
            } else {
                self.output.failing.push_back((owner, ForwardError::NoSocket { upstream, error }));
            }
        }
    }

    /// Takes an error of a socket (ICMP, no route): its attempts fail at once.
    pub fn socket_error(&mut self, socket: SocketId, error: io::ErrorKind) {
        let (local, upstream) = (self.sockets.local(socket), self.sockets.upstream(socket));
        let Some(upstream) = upstream.map(|upstream| upstream.address()) else { return };
        let failure = ForwardError::Network { local, upstream, error };
        let owners = self.sockets.owners(socket).iter();
        self.output.failing.extend(owners.map(|&owner| (owner, failure.clone())));
    }

    /// Takes the result of an exchange over TCP or TLS; the result of one that has timed out
    /// changes nothing.
    pub fn exchanged(&mut self, now: Instant, id: ExchangeId, result: Result<&[u8], ExchangeError>) {
        let (slot, generation, serial) = id.parts();
        let Some((slot, at)) = self.resolve(AttemptId { slot, generation, serial }) else { return };
        match result {
            Ok(bytes) => match self.answer.read(bytes, self.table[slot].held.0.question()) {
                Ok(()) if self.repeats_subnet(slot, at) => self.replied(now, slot, at, bytes),
                Ok(()) => self.strayed(now, slot, at),
                Err(_) => self.garbled(now, slot, at),
            },
            Err(error) => self.failed(now, slot, at, error.into()),
        }
    }

    /// Advances the time: the following polls perform due actions (hedges, time-outs, patience,
    /// deadlines, sockets to retire).
    pub fn tick(&mut self) {
        self.output.ticking = true;
    }

    /// Returns when [`Forwarder::tick`] must be called next.
    pub fn next_wake(&self) -> Option<Instant> {
        let at = self.timers.next_due().unwrap_or(MachineTime::NEVER).min(self.sweep_at);
        (at != MachineTime::NEVER).then(|| self.epoch + at.since(MachineTime(0)))
    }

    /// Takes the next of the remaining waiters.
    pub fn next_waiter(&mut self, rest: &mut RemainingWaiters<W>) -> Option<W> {
        self.waiters.next(&mut rest.0)
    }

    /// Returns the number of flights with waiters.
    pub fn in_flight(&self) -> usize {
        self.flying
    }

    /// Returns the number of slots in use: those of [`Forwarder::in_flight`] and of lingering
    /// flights.
    #[cfg(feature = "testing")]
    pub fn occupied(&self) -> usize {
        self.table.len()
    }

    /// Ends everything: the polls that follow hand out all waiters with [`ForwardError::Shutdown`]
    /// and close all sockets. To drain instead, continue without new queries until
    /// [`Forwarder::in_flight`] is 0.
    pub fn shutdown(&mut self) {
        self.output.stopping = Some(0);
    }

    /// Ends a state machine that panicked and passes its waiters to `report`; the caller drops its
    /// sockets and exchanges. Relies only on each slot having a flight or none.
    pub fn abandon(mut self, mut report: impl FnMut(W, &Query<'_>)) {
        if let Some((slot, list)) = self.output.take_impatient()
            && let Some(flight) = self.table.get(slot)
        {
            self.waiters.hand_out(list).for_each(|waiter| report(waiter, &flight.held.0.query()));
        }
        for slot in self.table.taken() {
            let flight = &mut self.table[slot];
            for waiter in self.waiters.take_all(&mut flight.waiters) {
                report(waiter, &flight.held.0.query());
            }
        }
    }

    fn machine_time(&self, now: Instant) -> MachineTime {
        let (at, time) = self.converted.get();
        if at == now {
            return time;
        }
        let time = MachineTime(now.saturating_duration_since(self.epoch).as_micros() as u64);
        self.converted.set((now, time));
        time
    }

    /// Returns the slot and index of an attempt, if it still exists.
    fn resolve(&self, owner: AttemptId) -> Option<(u32, usize)> {
        if !self.table.holds(owner.slot, owner.generation) {
            return None;
        }
        self.table[owner.slot].attempt(owner.serial).map(|at| (owner.slot, at))
    }
}

impl<W> Drop for Forwarder<W> {
    /// Releases the flights' units of `max_concurrent` and of upstreams: they are counted over all
    /// workers, and a state machine that panicked leaves its flights as they are.
    fn drop(&mut self) {
        for slot in self.table.taken() {
            let flight = &self.table[slot];
            if flight.state == FlightState::Flying {
                flight.stanza().release(flight.waiters.client);
            }
            for attempt in flight.attempts.iter().filter(|attempt| attempt.state != AttemptState::Free) {
                let upstream = &flight.upstreams[usize::from(attempt.upstream)];
                upstream.congestion(attempt.path()).ended(flight.waiters.client);
            }
        }
    }
}

/// Returns the bytes of a flight's slot, including the record of the first waiter; a question of
/// more than 118 bytes is allocated separately.
pub const fn slot_octets<W>() -> usize {
    size_of::<flight_table::Slot<W>>()
}

/// Returns the bytes of a waiter that joined a flight.
pub const fn waiter_octets<W>() -> usize {
    size_of::<waiters::Node<W>>()
}

/// Exchange ids have 24 bits for the slot, and there are a quarter more slots.
const FLIGHTS_MAX: usize = 1 << 23;
/// How long after its start a flight accepts a reply for the cache: by then the client has retried.
const LATE: Duration = Duration::from_secs(10);
/// How often sockets are checked for their age.
const SWEEP: Duration = Duration::from_secs(1);
