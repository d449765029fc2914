//! A query to forward, and the client that waits for its answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client_quota::client_number;
use sockets::Local;
use wire::{ClientParams, OwnedQuery, Proto, Query};

use super::request_reply::RequestReply;
use super::stream_reply::StreamReply;
use super::subquery_join::{SubqueryHandle, Suspended};
use plugin::failure::Failure;
use query::ServedZone;
use query::evaluate::{FollowCnames, PendingLookups, SubqueryAnswer, UpstreamQuery};

/// A query that an upstream must answer (a cache miss).
pub(crate) struct Miss {
    /// The query.
    pub query: OwnedQuery,
    /// The client, and the data to write its reply.
    pub waiter: Waiter,
    /// How long the client waits before it gets a stale answer.
    pub patience: Option<Duration>,
    /// Whether no upstream is asked: the client's query resumes after `patience`.
    pub is_timer: bool,
}

impl Miss {
    /// Creates the miss of a client's query.
    pub(crate) fn new(asked: UpstreamQuery<'_>, client: Client, started: Instant) -> Self {
        let UpstreamQuery { query, zone, patience, is_timer, .. } = asked;
        let waiter =
            Waiter { asker: query.client_params(), spelled: None, zone: zone.clone(), client, started };
        Self { query, waiter, patience, is_timer }
    }

    /// Returns the misses of all subqueries of a client's query, and of background refreshes.
    pub(crate) fn all(
        lookups: PendingLookups<'_>,
        client: Client,
        started: Instant,
    ) -> impl Iterator<Item = Self> {
        let PendingLookups { asked, refreshes, suspended: outer } = lookups;
        let mut clients = match outer {
            Some(outer) => {
                let (number, proto) = (client.number(), client.proto());
                let shares = SubqueryHandle::all(Suspended { outer, client }, number, proto, &asked);
                shares.into_iter().map(Client::Subquery).collect()
            }
            None => Vec::new(),
        };
        clients.reverse();
        let refreshes = refreshes.into_iter().map(move |asked| Self::new(asked, Client::Background, started));
        let asked =
            asked.into_iter().filter_map(move |asked| Some(Self::new(asked, clients.pop()?, started)));
        // Subqueries that a client waits for precede refreshes, in case a limit is reached.
        asked.chain(refreshes)
    }

    /// Returns the query and client to answer with a failure, as a limit was reached; `None` if
    /// other subqueries are outstanding, the last of which resumes the client's query.
    pub(crate) fn without_room(self) -> Option<(OwnedQuery, Client)> {
        let Waiter { client, zone, .. } = self.waiter;
        match client {
            Client::Subquery(share) => {
                let query = self.query.query();
                let failed = SubqueryAnswer::new(&zone, &query, Err(Failure::Overload), FollowCnames::No);
                share.complete(failed, None).map(|inner| (inner.outer.query, inner.client))
            }
            client => Some((self.query, client)),
        }
    }
}

/// A client of a query in flight; the query itself is stored once for all of them.
pub(crate) struct Waiter {
    /// The fields in which the client's query differs.
    pub asker: ClientParams,
    /// The question in the client's spelling (0x20), if the flight's first query has another one.
    pub spelled: Option<Box<[u8]>>,
    /// The client's zone, of the configuration under which the query was received.
    pub zone: Arc<ServedZone>,
    /// The client to reply to.
    pub client: Client,
    /// When the query was received.
    pub started: Instant,
}

impl Waiter {
    /// Creates a waiter of this query.
    pub(crate) fn new(query: &Query<'_>, zone: &Arc<ServedZone>, client: Client, started: Instant) -> Self {
        Self { asker: query.client_params(), spelled: None, zone: zone.clone(), client, started }
    }

    /// Returns the client's query; `same` is the query stored for all waiters.
    pub(crate) fn query<'q>(&'q self, same: &Query<'q>) -> Query<'q> {
        self.asker.query(same, self.spelled.as_deref())
    }
}

/// A client to reply to.
pub(crate) enum Client {
    /// A UDP client.
    Udp {
        /// The listen socket's index and address.
        socket: (u16, SocketAddr),
        /// The client.
        peer: SocketAddr,
        /// The local address that the client queried, if the socket is bound to the wildcard
        /// address.
        local: Option<Local>,
    },
    /// A UDP client behind a proxy: boxed, so that the others need no room for it.
    Proxied(Box<UdpClient>),
    /// A TCP client.
    Stream(StreamReply),
    /// A client of DNS over HTTPS.
    Request(Box<RequestReply>),
    /// No client: a background refresh (a prefetch, or of a stale answer).
    Background,
    /// A client's query that has this one as a subquery.
    Subquery(SubqueryHandle<Self>),
}

/// A UDP client and where its reply goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UdpClient {
    /// The listen socket's index and address.
    pub socket: (u16, SocketAddr),
    /// The client.
    pub peer: SocketAddr,
    /// As in [`Client::Udp`].
    pub local: Option<Local>,
    /// The client, or the proxy that sent the query.
    pub reply_to: SocketAddr,
}

impl Client {
    /// Returns the UDP client, if it is one.
    #[inline]
    pub(crate) fn udp(&self) -> Option<UdpClient> {
        match self {
            Self::Udp { socket, peer, local } => {
                Some(UdpClient { socket: *socket, peer: *peer, local: *local, reply_to: *peer })
            }
            Self::Proxied(client) => Some(**client),
            Self::Stream(_) | Self::Request(_) | Self::Background | Self::Subquery(_) => None,
        }
    }

    /// Returns the client's address as a number; 0 without a client.
    pub(crate) fn number(&self) -> u128 {
        match self {
            Self::Udp { peer, .. } => client_number(peer.ip()),
            Self::Proxied(client) => client_number(client.peer.ip()),
            Self::Stream(stream) => client_number(stream.peer.ip()),
            Self::Request(request) => client_number(request.peer.ip()),
            Self::Background => 0,
            Self::Subquery(share) => share.number(),
        }
    }

    /// Sends a reply to the client of a connection; nothing to any other.
    pub(crate) fn send_stream(&self, reply: &[u8]) {
        match self {
            Self::Stream(stream) => stream.send(reply),
            Self::Request(request) => request.send(reply),
            Self::Udp { .. } | Self::Proxied(_) | Self::Background | Self::Subquery(_) => {}
        }
    }

    /// Returns the transport of the query.
    pub(crate) fn proto(&self) -> Proto {
        match self {
            Self::Stream(_) => Proto::Tcp,
            Self::Request(request) => request.proto,
            Self::Udp { .. } | Self::Proxied(_) | Self::Background => Proto::Udp,
            Self::Subquery(share) => share.proto(),
        }
    }
}

// The bytes of a miss in flight, and of a query that joins one, as docs/limits.md states them.
const _: () = assert!(forwarder::slot_octets::<Waiter>() <= 512);
const _: () = assert!(forwarder::waiter_octets::<Waiter>() <= 170);
