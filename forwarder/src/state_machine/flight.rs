//! A query in flight: its waiters, its attempts at upstreams, and its state.

use std::hash::{BuildHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client_quota::ClientId;
use wire::{Flags, OwnedQuery, Proto, Query};

use super::timer_wheel::{MachineTime, NEVER};
use super::udp_sockets::UdpSockets;
use super::waiters::WaiterList;
use super::{ForwardQuery, SocketId};
use crate::congestion::Congestion;
use crate::policy::Order;
use crate::{ForwardError, Stanza, Stanzas, StreamKind, Upstream, UpstreamPath};

/// A query in flight. Its size bounds the memory of a worker: see [`super::slot_octets`].
#[derive(Debug)]
pub(super) struct Flight<W> {
    pub(super) held: KeptQuery,
    pub(super) chain: Arc<Stanzas>,
    pub(super) upstreams: Arc<Vec<Arc<Upstream>>>,
    pub(super) cold: Option<Box<ColdState>>,
    pub(super) waiters: WaiterList<W>,
    pub(super) block: u64,
    pub(super) key: u64,
    pub(super) hash: u64,
    pub(super) started: MachineTime,
    /// `deadline`, `hedge_at` and `patience_at` are in microseconds after `started`.
    pub(super) deadline: u32,
    pub(super) hedge_at: u32,
    pub(super) patience_at: u32,
    pub(super) attempts: [Attempt; ATTEMPTS],
    pub(super) order: Order,
    /// The next turn of `order`.
    pub(super) cursor: u8,
    pub(super) stanza: u8,
    pub(super) failures: u8,
    /// The serial of the last attempt.
    pub(super) serial: u8,
    /// Upstreams that are not tried again, one bit each: they answered with an rcode of `failover`,
    /// or failed after another one had.
    pub(super) failed_over: u16,
    /// Upstreams that did not answer our OPT, one bit each.
    pub(super) without_edns: u16,
    /// Upstreams in `without_edns` that answered FORMERR without OPT.
    pub(super) refused_edns: u16,
    pub(super) bits: u8,
    pub(super) state: FlightState,
}

/// A query that prints its question only.
pub(super) struct KeptQuery(pub(super) OwnedQuery);

impl std::fmt::Debug for KeptQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let query = self.0.query();
        write!(f, "{} {} {}", query.name, query.class, query.rtype)
    }
}

/// The state of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlightState {
    /// The flight has waiters.
    Flying,
    /// The flight is answered; other upstreams with attempts have until `read_timeout` to show that
    /// they are alive.
    Settled,
    /// The flight's waiters were answered with a failure; a reply is still cached.
    Late,
}

/// Rarely used state, allocated with the first failure or spare reply, so that most flights stay
/// small.
#[derive(Debug, Default)]
pub(super) struct ColdState {
    /// The last failure.
    pub(super) failure: Option<ForwardError>,
    /// A reply to use if no better one arrives.
    pub(super) reply: Option<Spare>,
    /// Upstreams that could not be sent to lately, one bit each, and the number of pauses for that.
    pub(super) unsent: u16,
    pub(super) pauses: u8,
    /// Whether the metric of queries for which all upstreams are down has counted this flight.
    pub(super) down: bool,
    /// Serial and upstream of the last attempt that failed and was freed.
    pub(super) failed: Option<(u8, u8)>,
    /// The last joining client for which exchanges are counted in place of the first client.
    pub(super) joined: Option<ClientId>,
    /// The number of joining clients so far for which an exchange was counted.
    pub(super) joins: u8,
}

/// A reply that is kept in case no better one arrives.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) bytes: Box<[u8]>,
    pub(super) upstream: u8,
    pub(super) rtt: Duration,
    /// The EDNS level of the query.
    pub(super) edns: EdnsLevel,
    /// Whether other upstreams are still to be tried because of this reply.
    pub(super) failover: bool,
    /// Whether its rcode means that the upstream could not answer.
    pub(super) bad: bool,
}

/// One transmission of the query to an upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// In microseconds after the flight's start.
    pub(super) sent: u32,
    /// Used over UDP only.
    pub(super) socket: SocketId,
    pub(super) id: u16,
    pub(super) upstream: u8,
    pub(super) serial: u8,
    pub(super) transport: UpstreamTransport,
    pub(super) state: AttemptState,
    pub(super) edns: EdnsLevel,
    pub(super) kind: AttemptKind,
}

/// Why an attempt was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptKind {
    /// No earlier attempt is expected to be answered.
    First,
    /// Another upstream may still answer.
    Hedge,
    /// The same upstream may still answer an earlier attempt.
    Copy,
}

/// The state of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptState {
    /// Unused.
    Free,
    /// The attempt waits for its reply, or for `read_timeout`.
    Waiting,
    /// The attempt timed out, and is counted as failed; its reply is still accepted.
    Counted,
}

/// The transport of an attempt: its [`UpstreamPath`], with the kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamTransport {
    Udp,
    Stream(StreamKind),
}

/// The EDNS content of an attempt's query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EdnsLevel {
    /// Our OPT, with the client's subnet and the options that middleware added, if there are any.
    Whole,
    /// Our OPT alone.
    Bare,
    /// No OPT.
    Plain,
}

/// How to send an attempt.
#[derive(Clone, Copy)]
pub(super) struct Try {
    pub(super) upstream: u8,
    /// Over TCP although UDP would do: the reply was truncated.
    pub(super) tcp: bool,
    /// The highest EDNS level.
    pub(super) edns: EdnsLevel,
    /// Whether this upstream or another may still answer an earlier attempt.
    pub(super) hedge: bool,
}

impl Try {
    pub(super) fn new(upstream: u8) -> Self {
        Self { upstream, tcp: false, edns: EdnsLevel::Whole, hedge: false }
    }
}

impl Attempt {
    pub(super) fn path(&self) -> UpstreamPath {
        match self.transport {
            UpstreamTransport::Udp => UpstreamPath::Udp,
            UpstreamTransport::Stream(_) => UpstreamPath::Stream,
        }
    }

    pub(super) const FREE: Self = Self {
        sent: 0,
        socket: SocketId { index: u32::MAX, generation: 0 },
        id: 0,
        upstream: 0,
        serial: 0,
        transport: UpstreamTransport::Udp,
        state: AttemptState::Free,
        edns: EdnsLevel::Whole,
        kind: AttemptKind::First,
    };
}

impl<W> Flight<W> {
    pub(super) fn stanza(&self) -> &Arc<Stanza> {
        &self.chain.stanzas()[usize::from(self.stanza)]
    }

    /// Converts a time to microseconds after the flight's start.
    pub(super) fn offset(&self, at: MachineTime) -> u32 {
        u32::try_from(at.0.saturating_sub(self.started.0)).unwrap_or(NEVER)
    }

    pub(super) fn machine_time(&self, offset: u32) -> MachineTime {
        if offset == NEVER { MachineTime::NEVER } else { MachineTime(self.started.0 + u64::from(offset)) }
    }

    /// Returns the number of attempts that wait and have not timed out.
    pub(super) fn waiting(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.state == AttemptState::Waiting).count()
    }

    /// Whether a reply would still be accepted.
    pub(super) fn is_listening(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.state != AttemptState::Free)
    }

    /// Whether an attempt at this upstream waits and has not timed out.
    pub(super) fn is_asking(&self, upstream: u8) -> bool {
        self.attempts
            .iter()
            .any(|attempt| attempt.state == AttemptState::Waiting && attempt.upstream == upstream)
    }

    pub(super) fn is_down(&self, upstream: u8) -> bool {
        let max_fails = self.stanza().spec().max_fails;
        self.upstreams[usize::from(upstream)].is_down(self.path(upstream), max_fails)
    }

    /// Whether the upstream lost so many hedges lately, over the path of this query, that others
    /// are tried first.
    pub(super) fn is_suspect(&self, upstream: u8, now: Instant) -> bool {
        self.upstreams[usize::from(upstream)].is_suspect(self.path(upstream), now)
    }

    /// Returns the path of this query to an upstream.
    pub(super) fn path(&self, upstream: u8) -> UpstreamPath {
        self.upstreams[usize::from(upstream)].path(self.asks_over_tcp())
    }

    /// Whether plain upstreams of the flight's present stanza are queried over TCP.
    pub(super) fn asks_over_tcp(&self) -> bool {
        let proto = if self.bits & OVER_TCP != 0 { Proto::Tcp } else { Proto::Udp };
        self.stanza().asks_over_tcp(proto)
    }

    /// Returns the index for a new attempt: a free one, else the oldest copy that timed out, else
    /// the oldest attempt that timed out. A slow name's first transmission is the first to be
    /// answered.
    pub(super) fn attempt_to_use(&self) -> Option<usize> {
        self.attempts.iter().position(|attempt| attempt.state == AttemptState::Free).or_else(|| {
            (0..ATTEMPTS)
                .filter(|&at| self.attempts[at].state == AttemptState::Counted)
                .min_by_key(|&at| (self.attempts[at].kind != AttemptKind::Copy, self.attempts[at].sent))
        })
    }

    pub(super) fn attempt(&self, serial: u8) -> Option<usize> {
        self.attempts
            .iter()
            .position(|attempt| attempt.state != AttemptState::Free && attempt.serial == serial)
    }

    /// Returns the next upstream to try: the first from the cursor on that is up, has not failed
    /// over, has no waiting attempt, can be sent to, and has room for one more query of this
    /// client.
    pub(super) fn pick(&self) -> Pick {
        let (count, mut all_down, mut full) = (self.order.len(), true, None);
        for turn in usize::from(self.cursor)..usize::from(self.cursor) + count {
            let upstream = self.order.at(turn);
            if self.is_down(upstream) {
                continue;
            }
            all_down = false;
            if (self.failed_over | self.unsent()) >> upstream & 1 == 1 || self.is_asking(upstream) {
                continue;
            }
            if self.congestion(upstream).has_room(self.waiters.client) {
                return Pick::Upstream { upstream, cursor: ((turn + 1) % count) as u8 };
            }
            full = full.or(Some(upstream));
        }
        match full {
            Some(upstream) => Pick::Full { upstream },
            None if all_down => Pick::AllDown,
            None => Pick::None,
        }
    }

    /// Returns the congestion state of this query's path to an upstream.
    pub(super) fn congestion(&self, upstream: u8) -> &Congestion {
        self.upstreams[usize::from(upstream)].congestion(self.path(upstream))
    }

    /// Returns the send time of the last attempt in use at an upstream, and how many precede it.
    pub(super) fn sent_to(&self, upstream: u8) -> Option<(u32, u32)> {
        let open = |attempt: &&Attempt| attempt.state != AttemptState::Free && attempt.upstream == upstream;
        let attempts = self.attempts.iter().filter(open);
        let last = attempts.clone().map(|attempt| attempt.sent).max()?;
        Some((last, attempts.count() as u32 - 1))
    }

    pub(super) fn cold(&mut self) -> &mut ColdState {
        self.cold.get_or_insert_default()
    }

    /// Returns the upstreams that could not be sent to lately, one bit each.
    pub(super) fn unsent(&self) -> u16 {
        self.cold.as_ref().map_or(0, |cold| cold.unsent)
    }

    pub(super) fn spare(&self) -> Option<&Spare> {
        self.cold.as_ref()?.reply.as_ref()
    }

    /// Whether `ask` is the same query.
    pub(super) fn is_for(&self, ask: &ForwardQuery<'_>, bits: u8) -> bool {
        self.block == ask.block && self.bits & KEY == bits && self.asks(ask.query)
    }

    /// Whether another flight has the same query.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.block == other.block && (self.bits ^ other.bits) & KEY == 0 && self.asks(&other.held.0.query())
    }

    fn asks(&self, query: &Query<'_>) -> bool {
        let (ours, theirs) = (self.held.0.question(), query.question);
        let split = ours.len().saturating_sub(4);
        ours.len() == theirs.len()
            && ours[split..] == theirs[split..]
            && ours[..split].eq_ignore_ascii_case(&theirs[..split])
            && (self.bits & (SUBNET | ADDED) == 0 || {
                let held = self.held.0.query();
                subnet(&held) == subnet(query) && held.overrides == query.overrides
            })
    }
}

/// The result of [`Flight::pick`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    Upstream {
        upstream: u8,
        cursor: u8,
    },
    /// Every upstream that may be tried has as many outstanding queries as it answers in time; the
    /// first of them.
    Full {
        upstream: u8,
    },
    /// Every upstream is down.
    AllDown,
    /// Every upstream that is up has a waiting attempt, has failed over, or cannot be sent to.
    None,
}

impl ForwardQuery<'_> {
    /// Returns a hash that is equal for all queries that would share a flight, given the same
    /// hasher. Workers use it to choose the worker that forwards a query, so that equal misses of
    /// different workers share a flight too. `None` if no stanza forwards the name.
    pub fn fingerprint(&self, hasher: &impl BuildHasher) -> Option<u64> {
        let at = self.chain.matching(0, &self.query.name)?;
        let bits = key_bits(self.query, self.chain.stanzas()[at].asks_over_tcp(self.proto));
        Some(key_hash(self.block, self.query, bits, hasher))
    }
}

/// Returns the part of a flight's key besides name, type, class, client subnet, and what middleware
/// added for upstreams.
pub(super) fn key_bits(query: &Query<'_>, tcp: bool) -> u8 {
    let mut bits = 0;
    for (bit, set) in [
        (0x01, query.flags.has(Flags::RD)),
        (0x02, query.flags.has(Flags::CD)),
        (DNSSEC_OK, query.dnssec_ok()),
        (TCP, tcp),
        (SUBNET, subnet(query).is_some()),
        (ADDED, query.overrides.is_for_upstreams()),
    ] {
        if set {
            bits |= bit;
        }
    }
    bits
}

/// Returns the hash of a flight's key.
pub(super) fn key_hash(block: u64, query: &Query<'_>, bits: u8, hasher: &impl BuildHasher) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u64(block ^ u64::from(bits) << 56);
    state.write_u32(u32::from(query.rtype.0) << 16 | u32::from(query.class.0));
    state.write(query.name.as_wire());
    if let Some(subnet) = subnet(query) {
        subnet.hash(&mut state);
    }
    if bits & ADDED != 0 {
        query.overrides.hash(&mut state);
    }
    state.finish()
}

fn subnet<'q>(query: &Query<'q>) -> Option<&'q [u8]> {
    query.edns.and_then(|edns| edns.client_subnet)
}

/// Returns the error of an attempt without reply.
pub(super) fn silent(attempt: &Attempt, upstream: SocketAddr, sockets: &UdpSockets) -> ForwardError {
    let stream = match attempt.transport {
        UpstreamTransport::Udp => None,
        UpstreamTransport::Stream(kind) => Some(kind),
    };
    ForwardError::Silent { stream, local: sockets.local(attempt.socket), upstream }
}

/// Attempts of a flight at a time.
pub(super) const ATTEMPTS: usize = 4;
/// In a flight's bits: plain upstreams of its first stanza are queried over TCP.
const TCP: u8 = 0x08;
/// In a flight's bits: there is a client subnet.
pub(super) const SUBNET: u8 = 0x10;
/// In a flight's bits, and no part of its key: attempts from now on are sent without the client's
/// subnet.
pub(super) const BARE: u8 = 0x20;
/// In a flight's bits, and no part of its key: its first client queried over TCP.
pub(super) const OVER_TCP: u8 = 0x80;
/// The bits of a flight that belong to its key.
const KEY: u8 = !(BARE | OVER_TCP);
/// In a flight's bits: middleware added flags or options for upstreams.
pub(super) const ADDED: u8 = 0x40;
/// In a flight's bits: the query has DO set.
pub(super) const DNSSEC_OK: u8 = 0x04;
