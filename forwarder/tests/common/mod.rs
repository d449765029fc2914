//! A simulated clock and network for the state machine: upstreams are functions, and no test
//! sleeps.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "helpers of several tests, each of which uses some"
)]

pub mod message;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client_quota::ClientId;
use forwarder::{
    Action, Exchange, ExchangeError, ExchangeId, FlightResult, ForwardError, ForwardQuery, Forwarder, Limits,
    ProbeRequests, Registry, SendError, SocketId, Stanza, StanzaMetrics, StanzaSpec, Stanzas, StreamKind,
    Upstream, UpstreamPath,
};
use wire::{Proto, Rcode, Verdict};

pub use message::{Question, answer, query};

/// The transport of a query to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    Udp,
    Tcp,
    Tls,
}

/// A query that an upstream receives.
pub struct Asked<'a> {
    pub bytes: &'a [u8],
    pub via: Via,
    /// The number of queries that this upstream received before.
    pub nth: usize,
    pub at: Duration,
}

/// An upstream's action on a query.
pub enum Does {
    Reply(Duration, Vec<u8>),
    Refuse(Duration, io::ErrorKind),
    /// The query does not reach the upstream: it has waited for a connection for this time.
    Wait(Duration),
}

type Behaviour = Box<dyn FnMut(Asked<'_>) -> Vec<Does>>;

pub fn silent() -> Behaviour {
    Box::new(|_| Vec::new())
}

/// Answers every query with an address after a delay.
pub fn answers(after_ms: u64) -> Behaviour {
    Box::new(move |asked| vec![Does::Reply(ms(after_ms), answer(asked.bytes))])
}

pub fn replies_with(rcode: Rcode, after_ms: u64) -> Behaviour {
    Box::new(move |asked| vec![Does::Reply(ms(after_ms), message::with_rcode(asked.bytes, rcode))])
}

pub fn refuses() -> Behaviour {
    Box::new(|_| vec![Does::Refuse(ms(1), io::ErrorKind::ConnectionRefused)])
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

enum Event {
    Datagram(SocketId, Vec<u8>),
    Refused(SocketId, io::ErrorKind),
    Unsent(SocketId, u16, SendError),
    Exchanged(ExchangeId, Result<Vec<u8>, ExchangeError>),
}

/// A result of the state machine.
#[derive(Debug)]
pub struct Done {
    pub at: Duration,
    pub waiters: Vec<u32>,
    /// The rcode and the number of answers, or the failure's text.
    pub outcome: Result<(Rcode, u16), String>,
    pub truncated: bool,
    pub subnet: Option<wire::Subnet>,
    pub for_one: bool,
    pub body: Vec<u8>,
    pub upstream: Option<SocketAddr>,
    pub late: bool,
}

/// A query that an upstream received.
#[derive(Debug)]
pub struct Got {
    pub at: Duration,
    pub upstream: SocketAddr,
    pub via: Via,
    pub socket: Option<SocketId>,
    pub bytes: Vec<u8>,
}

/// The network, which drives a state machine.
pub struct Net {
    start: Instant,
    pub now: Instant,
    behaviours: HashMap<SocketAddr, (Behaviour, usize)>,
    events: BTreeMap<(Instant, u64), Event>,
    serial: u64,
    pub sockets: HashMap<SocketId, SocketAddr>,
    pub sockets_max: usize,
    pub opened: Vec<SocketId>,
    /// Failed sends: time and upstream.
    pub unsent: Vec<(Duration, SocketAddr)>,
    /// The error of sends to `unsendable_to`, or to all upstreams.
    pub unsendable: Option<SendError>,
    pub unsendable_to: Option<SocketAddr>,
    /// Sockets on a removed local address: every send fails.
    pub spoiled: HashSet<SocketId>,
    /// Sockets that were reported to the state machine as failed.
    pub reported: HashSet<SocketId>,
    pub close_panics: bool,
    /// The number of cancelled exchanges.
    pub cancelled: usize,
    /// Clients that joined a flight, and for which its exchange is counted from then on.
    pub joined: Vec<ClientId>,
    pub got: Vec<Got>,
    pub done: Vec<Done>,
    pub by_waiter: HashMap<u32, usize>,
}

impl Net {
    fn schedule(&mut self, after: Duration, event: Event) {
        self.serial += 1;
        self.events.insert((self.now + after, self.serial), event);
    }

    fn unsendable_to(&self, upstream: SocketAddr) -> Option<SendError> {
        self.unsendable.filter(|_| self.unsendable_to.is_none_or(|only| only == upstream))
    }

    fn ask(&mut self, upstream: SocketAddr, via: Via, socket: Option<SocketId>, bytes: &[u8]) -> Vec<Does> {
        let at = self.now - self.start;
        self.got.push(Got { at, upstream, via, socket, bytes: bytes.to_vec() });
        let Some((behaviour, nth)) = self.behaviours.get_mut(&upstream) else { return Vec::new() };
        *nth += 1;
        behaviour(Asked { bytes, via, nth: *nth - 1, at })
    }
}

impl Net {
    /// Performs the state machine's actions until there are no more.
    pub fn drive(&mut self, forwarder: &mut Forwarder<u32>) {
        loop {
            let Some(action) = forwarder.poll(self.now) else { break };
            if let Some((socket, result)) = self.perform(action) {
                forwarder.opened(socket, result);
            }
        }
        let mut datagram = Vec::new();
        while let Some(socket) = forwarder.poll_transmit(&mut datagram) {
            self.send(socket, &datagram);
            datagram.clear();
        }
    }

    fn perform(&mut self, action: Action<'_, u32>) -> Option<(SocketId, Result<SocketAddr, SendError>)> {
        match action {
            Action::Open(socket, upstream) => return Some((socket, self.open(socket, &upstream))),
            Action::Close(socket) => self.close(socket),
            Action::Exchange(exchange) => self.exchange(exchange),
            Action::Cancel(_, _, id) => self.cancel(id),
            Action::Join { client, .. } => self.joined.push(client),
            Action::Finished(finished) => self.finished(finished),
        }
        None
    }

    fn open(&mut self, socket: SocketId, upstream: &Arc<Upstream>) -> Result<SocketAddr, SendError> {
        if let Some(error) = self.unsendable_to(upstream.address()) {
            self.unsent.push((self.now - self.start, upstream.address()));
            return Err(error);
        }
        let before = self.sockets.insert(socket, upstream.address());
        assert!(before.is_none(), "opened twice");
        self.opened.push(socket);
        self.sockets_max = self.sockets_max.max(self.sockets.len());
        Ok(SocketAddr::from(([127, 0, 0, 1], 40_000 + socket.index() as u16)))
    }

    fn close(&mut self, socket: SocketId) {
        assert!(!self.close_panics, "on demand");
        assert!(self.sockets.remove(&socket).is_some(), "closed without being open");
    }

    fn send(&mut self, socket: SocketId, datagram: &[u8]) {
        let upstream = self.sockets[&socket];
        assert!(!self.reported.contains(&socket), "sent through a socket with a reported failure");
        // If no file descriptor is left, sockets that are open still work.
        let unsendable = self.unsendable_to(upstream).filter(|error| *error != SendError::Files);
        let spoiled = self.spoiled.contains(&socket);
        let spoiled = spoiled.then_some(SendError::Refused(io::ErrorKind::InvalidInput));
        if let Some(error) = unsendable.or(spoiled) {
            self.unsent.push((self.now - self.start, upstream));
            let id = u16::from_be_bytes([datagram[0], datagram[1]]);
            return self.schedule(Duration::ZERO, Event::Unsent(socket, id, error));
        }
        for does in self.ask(upstream, Via::Udp, Some(socket), datagram) {
            match does {
                Does::Reply(after, bytes) => self.schedule(after, Event::Datagram(socket, bytes)),
                Does::Refuse(after, error) => self.schedule(after, Event::Refused(socket, error)),
                Does::Wait(_) => unreachable!("a datagram waits for no connection"),
            }
        }
    }

    fn exchange(&mut self, exchange: Exchange<'_>) {
        let (id, upstream) = (exchange.id, exchange.upstream.address());
        let via = if exchange.kind == StreamKind::Tls { Via::Tls } else { Via::Tcp };
        if let Some(SendError::Refused(error)) = self.unsendable_to(upstream) {
            self.unsent.push((self.now - self.start, upstream));
            let error = Err(ExchangeError::Dial { upstream, error });
            return self.schedule(Duration::ZERO, Event::Exchanged(id, error));
        }
        for does in self.ask(upstream, via, None, exchange.message) {
            match does {
                Does::Reply(after, bytes) => self.schedule(after, Event::Exchanged(id, Ok(bytes))),
                Does::Refuse(after, error) => {
                    let error = ExchangeError::Dial { upstream, error };
                    self.schedule(after, Event::Exchanged(id, Err(error)));
                }
                Does::Wait(time) => {
                    let error = ExchangeError::Overloaded { upstream };
                    self.schedule(time, Event::Exchanged(id, Err(error)));
                }
            }
        }
    }

    fn cancel(&mut self, id: ExchangeId) {
        self.events.retain(|_, event| !matches!(event, Event::Exchanged(exchange, _) if *exchange == id));
        self.cancelled += 1;
    }

    fn finished(&mut self, finished: FlightResult<'_, u32>) {
        let at = self.now - self.start;
        let (mut truncated, mut body, mut subnet, mut for_one) = (false, Vec::new(), None, false);
        let outcome = finished.outcome.map_err(|failure| failure.to_string()).map(|answer| {
            truncated = answer.flags.has(wire::Flags::TC);
            body.clone_from(&answer.body);
            (subnet, for_one) = (answer.subnet, answer.subnet_specific);
            (answer.rcode, answer.counts[0])
        });
        let upstream = finished.upstream.map(|upstream| upstream.address());
        let waiters: Vec<u32> = finished.waiters.collect();
        for &waiter in &waiters {
            let before = self.by_waiter.insert(waiter, self.done.len());
            assert!(before.is_none(), "waiter {waiter} was handed back twice");
        }
        self.done.push(Done {
            at,
            waiters,
            outcome,
            truncated,
            subnet,
            for_one,
            body,
            upstream,
            late: finished.late,
        });
    }
}

/// A state machine, its network, and the stanzas.
pub struct World {
    pub forwarder: Forwarder<u32>,
    pub net: Net,
    pub registry: Registry,
    pub probes: ProbeRequests,
    pub chain: Arc<Stanzas>,
    pub metrics: Arc<StanzaMetrics>,
    waiter: u32,
    /// Whether an equal query was in flight when the last query was refused.
    pub flies: bool,
}

impl World {
    /// Creates a world with a single stanza.
    pub fn new(spec: StanzaSpec, behaviours: Vec<Behaviour>) -> Self {
        Self::with_limits(Limits::default(), vec![(spec, behaviours)])
    }

    #[allow(clippy::disallowed_methods, reason = "a test's time begins at any moment")]
    pub fn with_limits(limits: Limits, stanzas: Vec<(StanzaSpec, Vec<Behaviour>)>) -> Self {
        let now = Instant::now();
        let (registry, probes) = Registry::new(now);
        let metrics = Arc::new(StanzaMetrics::default());
        let mut net = Net {
            start: now,
            now,
            behaviours: HashMap::new(),
            events: BTreeMap::new(),
            serial: 0,
            sockets: HashMap::new(),
            sockets_max: 0,
            opened: Vec::new(),
            unsendable: None,
            unsendable_to: None,
            spoiled: HashSet::new(),
            reported: HashSet::new(),
            close_panics: false,
            cancelled: 0,
            joined: Vec::new(),
            unsent: Vec::new(),
            got: Vec::new(),
            done: Vec::new(),
            by_waiter: HashMap::new(),
        };
        let mut built = Vec::new();
        let mut last = 0;
        for (spec, behaviours) in stanzas {
            let mut upstreams = Vec::new();
            for behaviour in behaviours {
                last += 1;
                net.behaviours.insert(address(last), (behaviour, 0));
                upstreams.push(registry.upstream(address(last), None, None));
            }
            built.push(Arc::new(Stanza::new(spec, upstreams, metrics.clone()).unwrap()));
        }
        let chain = Arc::new(Stanzas::new(built));
        Self {
            forwarder: Forwarder::new(limits, now),
            net,
            registry,
            probes,
            chain,
            metrics,
            waiter: 0,
            flies: false,
        }
    }

    pub fn behave(&mut self, upstream: u8, behaviour: Behaviour) {
        self.net.behaviours.insert(address(upstream), (behaviour, 0));
    }

    pub fn upstream(&self, at: u8) -> Arc<Upstream> {
        let found = self.registry.upstreams().into_iter().find(|upstream| upstream.address() == address(at));
        found.expect("the world has it")
    }

    /// Marks an upstream down, as three failed probes do.
    pub fn take_down(&self, upstream: u8) {
        for _ in 0..3 {
            self.upstream(upstream).probed(UpstreamPath::Udp, false);
        }
    }

    pub fn time(&self) -> Duration {
        self.net.now - self.net.start
    }

    /// Sends a query for the A records of `name` over UDP; returns the waiter.
    pub fn ask(&mut self, name: &str) -> u32 {
        self.ask_with(Question::new(name)).expect("taken")
    }

    pub fn ask_with(&mut self, question: Question<'_>) -> Result<u32, ForwardError> {
        self.waiter += 1;
        let waiter = self.waiter;
        let packet = query(&question);
        let Verdict::Pass(query) = wire::accept(&packet) else { panic!("the gate takes {}", question.name) };
        let ask = ForwardQuery {
            chain: &self.chain.clone(),
            query: &query,
            proto: if question.tcp { Proto::Tcp } else { Proto::Udp },
            block: question.block,
            key: 0,
            patience: question.patience,
            asker: question.asker,
        };
        let asked = self.forwarder.ask(self.net.now, ask, waiter).map(drop);
        self.drive();
        asked.map_err(|refused| {
            assert_eq!(refused.waiter, waiter);
            self.flies = refused.flies;
            refused.failure
        })?;
        Ok(waiter)
    }

    /// Performs the state machine's actions.
    pub fn drive(&mut self) {
        self.net.drive(&mut self.forwarder);
    }

    /// Advances time to `at` after the start.
    pub fn run_until(&mut self, at: Duration) {
        let end = self.net.start + at;
        loop {
            let event = self.net.events.first_key_value().map(|(&(at, _), _)| at);
            let wake = self.forwarder.next_wake();
            let next = [event, wake].into_iter().flatten().min().filter(|&next| next <= end);
            let Some(next) = next else { break };
            self.net.now = self.net.now.max(next);
            let now = self.net.now;
            if event.is_some_and(|event| event <= now) {
                let Some(((_, _), event)) = self.net.events.pop_first() else { break };
                match event {
                    Event::Datagram(socket, bytes) => self.forwarder.datagram(now, socket, &bytes),
                    Event::Refused(socket, error) => self.forwarder.socket_error(socket, error),
                    Event::Unsent(socket, id, error) => {
                        if matches!(error, SendError::Refused(_)) {
                            self.net.reported.insert(socket);
                        }
                        self.forwarder.unsent(socket, id, error);
                    }
                    Event::Exchanged(id, result) => {
                        let result = result.as_ref().map(Vec::as_slice).map_err(Clone::clone);
                        self.forwarder.exchanged(now, id, result);
                    }
                }
            } else {
                self.forwarder.tick();
            }
            self.drive();
        }
        self.net.now = self.net.now.max(end);
    }

    pub fn run_for(&mut self, time: Duration) {
        let until = self.time() + time;
        self.run_until(until);
    }

    /// Returns the number of queries that an upstream received.
    pub fn got(&self, upstream: u8) -> usize {
        self.net.got.iter().filter(|got| got.upstream == address(upstream)).count()
    }

    /// Returns the result for the waiter.
    pub fn result(&self, waiter: u32) -> &Done {
        let at = self.net.by_waiter.get(&waiter).unwrap_or_else(|| panic!("waiter {waiter} has no result"));
        &self.net.done[*at]
    }
}

/// Returns the address of the n-th upstream.
pub fn address(at: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 100 + at], 53))
}

pub fn sequential() -> StanzaSpec {
    StanzaSpec { policy: forwarder::Policy::Sequential, ..StanzaSpec::default() }
}
