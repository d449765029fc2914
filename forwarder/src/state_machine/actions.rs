//! Inputs and outputs of the state machine: queries, actions, results.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::{Answer, Proto, Query};

use super::waiters::Waiters;
use crate::{ConnectionLimits, ForwardError, Stanzas, StreamKind, Upstream};
use client_quota::ClientId;

/// The id of a UDP socket of a worker. The index is small and reused, the generation is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SocketId {
    /// Returns the socket's index in a table: below (upstreams in use) x (sockets per upstream) x
    /// 2.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// Identifies a query over TCP or TLS, until its result is passed to
/// [`crate::Forwarder::exchanged`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExchangeId(u64);

impl ExchangeId {
    pub(crate) fn new(slot: u32, generation: u32, serial: u8) -> Self {
        Self(u64::from(generation) << 32 | u64::from(slot & 0x00ff_ffff) << 8 | u64::from(serial))
    }

    pub(crate) fn parts(self) -> (u32, u32, u8) {
        ((self.0 >> 8) as u32 & 0x00ff_ffff, (self.0 >> 32) as u32, self.0 as u8)
    }

    /// Returns the id as a number, for tests that use [`crate::Streams`] without a state machine.
    #[cfg(feature = "testing")]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the id with this number.
    #[cfg(feature = "testing")]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for ExchangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, generation, serial) = self.parts();
        write!(f, "ExchangeId({slot}.{generation}.{serial})")
    }
}

/// A query to send over a connection.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// Identifies the query in the result.
    pub id: ExchangeId,
    /// The upstream.
    pub upstream: &'a Arc<Upstream>,
    /// TCP or TLS.
    pub kind: StreamKind,
    /// The message without its length; its id is replaced by one of the connection's.
    pub message: &'a [u8],
    /// The stanza's limits.
    pub limits: ConnectionLimits,
    /// The client, for the upstream's quota.
    pub client: ClientId,
    /// When the query's clients are answered with a failure; a connection without another query is
    /// closed then.
    pub give_up_at: Instant,
    /// After this time the reply is of no use to the cache either.
    pub deadline: Instant,
}

/// An action that [`crate::Forwarder::poll`] returns, for the driver (the worker) to perform.
#[allow(clippy::large_enum_variant, reason = "each miss ends with the large one; a box would allocate")]
pub enum Action<'a, W> {
    /// Connect a UDP socket to the upstream, from a random source port (RFC 5452, section 9.2), and
    /// report its local address, or why that failed, to [`crate::Forwarder::opened`] before the
    /// next poll.
    Open(SocketId, Arc<Upstream>),
    /// Close a socket; its index may be opened again at once.
    Close(SocketId),
    /// Hand a query to [`crate::Streams`].
    Exchange(Exchange<'a>),
    /// Cancel an exchange: its result would change nothing.
    Cancel(Arc<Upstream>, StreamKind, ExchangeId),
    /// Count an exchange, which waits for a connection, against the quota of another client of its
    /// flight.
    Join {
        /// The exchange's upstream.
        upstream: Arc<Upstream>,
        /// TCP or TLS.
        kind: StreamKind,
        /// The stanza's limits.
        limits: ConnectionLimits,
        /// The exchange.
        id: ExchangeId,
        /// The client.
        client: ClientId,
    },
    /// Answer clients: a flight ended, or some of its waiters gave up.
    Finished(FlightResult<'a, W>),
}

/// A client's query that the cache has not answered.
#[derive(Clone, Copy)]
pub struct ForwardQuery<'a> {
    /// The block's stanzas.
    pub chain: &'a Arc<Stanzas>,
    /// The query.
    pub query: &'a Query<'a>,
    /// The client's transport: upstreams are queried over the same one unless the stanza sets
    /// another.
    pub proto: Proto,
    /// The block's number: equal queries of different blocks are different flights.
    pub block: u64,
    /// The caller's key; [`FlightResult`] returns the key of the flight's first query.
    pub key: u64,
    /// How long this waiter waits at most; `None`: until the flight ends.
    pub patience: Option<Duration>,
    /// The client's number, for quotas ([`ClientId`]).
    pub asker: u128,
}

/// A query that was refused; the caller must answer the waiter.
#[derive(Debug)]
pub struct Refused<W> {
    /// The waiter of the query.
    pub waiter: W,
    /// The error.
    pub failure: ForwardError,
    /// Whether the same query is in flight, and only this waiter was refused.
    pub flies: bool,
}

/// The end of a flight, or of some of its waiters.
pub struct FlightResult<'a, W> {
    /// The waiters. None if the answer arrived after all had timed out.
    pub waiters: Waiters<'a, W>,
    /// The answer, which the caller may change or take, or the error.
    pub outcome: Result<&'a mut Answer, ForwardError>,
    /// The query of the first waiter.
    pub query: Query<'a>,
    /// As in [`ForwardQuery::block`].
    pub block: u64,
    /// As in [`ForwardQuery::key`].
    pub key: u64,
    /// The upstream that answered, or that failed last.
    pub upstream: Option<&'a Arc<Upstream>>,
    /// The time from the query to the upstream's reply; zero without a reply.
    pub rtt: Duration,
    /// Whether all waiters had timed out before: there is no client, but the answer may be cached.
    pub late: bool,
}
