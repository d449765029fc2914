//! A query on its way to upstreams: who waits for its answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forwarder::client_number;
use sockets::Local;
use wire::{ClientParams, OwnedQuery, Proto, Query};

use super::pending::{Inner, Share};
use super::stream_reply::StreamReply;
use plugin::failure::Failure;
use query::ServedZone;
use query::evaluate::{FollowCnames, PendingLookups, SubqueryAnswer, UpstreamQuery};

/// A query that an upstream must answer.
pub(crate) struct Miss {
    /// What is asked.
    pub query: OwnedQuery,
    /// Who waits.
    pub waiter: Waiter,
    /// How long until a stale answer will do.
    pub patience: Option<Duration>,
}

impl Miss {
    /// That of what a client asked.
    pub(crate) fn new(asked: UpstreamQuery<'_>, client: Client, started: Instant) -> Self {
        let UpstreamQuery { query, zone, patience, .. } = asked;
        let waiter =
            Waiter { asker: query.client_params(), spelled: None, zone: zone.clone(), client, started };
        Self { query, waiter, patience }
    }

    /// Those of all that a client's answer needs, and of what is fetched again on its way.
    pub(crate) fn all(
        lookups: PendingLookups<'_>,
        client: Client,
        started: Instant,
    ) -> impl Iterator<Item = Self> {
        let PendingLookups { asked, refreshes, suspended: outer } = lookups;
        let mut clients = match outer {
            Some(outer) => {
                let (number, proto) = (client.number(), client.proto());
                let shares = Share::all(Inner { outer, client }, number, proto, &asked);
                shares.into_iter().map(Client::Inner).collect()
            }
            None => Vec::new(),
        };
        clients.reverse();
        let refreshes = refreshes.into_iter().map(move |asked| Self::new(asked, Client::Nobody, started));
        let asked =
            asked.into_iter().filter_map(move |asked| Some(Self::new(asked, clients.pop()?, started)));
        // Whom a client waits for comes first, where there is not room for all.
        asked.chain(refreshes)
    }

    /// Whom to tell, and of which query, that there is no room for this one; `None` where others are waited for, the last of
    /// which goes on.
    pub(crate) fn without_room(self) -> Option<(OwnedQuery, Client)> {
        let Waiter { client, zone, .. } = self.waiter;
        match client {
            Client::Inner(share) => {
                let query = self.query.query();
                let failed = SubqueryAnswer::new(&zone, &query, Err(Failure::Overload), FollowCnames::No);
                share.came(failed, None).map(|inner| (inner.outer.query, inner.client))
            }
            client => Some((self.query, client)),
        }
    }
}

/// One client of a query in flight; the query itself is kept once for all of them.
pub(crate) struct Waiter {
    /// What the client's query has of its own.
    pub asker: ClientParams,
    /// The question as the client spelled it, where others asked first and spelled it another way.
    pub spelled: Option<Box<[u8]>>,
    /// The zone that asks; of the configuration that the query came in under.
    pub zone: Arc<ServedZone>,
    /// Who gets the reply.
    pub client: Client,
    /// When the query came in.
    pub started: Instant,
}

impl Waiter {
    /// A client of this query.
    pub(crate) fn new(query: &Query<'_>, zone: &Arc<ServedZone>, client: Client, started: Instant) -> Self {
        Self { asker: query.client_params(), spelled: None, zone: zone.clone(), client, started }
    }

    /// The client's query; `same` is what is kept for all.
    pub(crate) fn query<'q>(&'q self, same: &Query<'q>) -> Query<'q> {
        self.asker.query(same, self.spelled.as_deref())
    }
}

/// Who gets a reply.
pub(crate) enum Client {
    /// A UDP client.
    Udp {
        /// The listen socket's index and address.
        socket: (u16, SocketAddr),
        /// The client.
        peer: SocketAddr,
        /// The address it asked, where the socket is bound to all.
        local: Option<Local>,
    },
    /// A TCP client.
    Stream(StreamReply),
    /// There is no client: a prefetch, or the refresh of a stale answer.
    Nobody,
    /// A query of a client that needs this answer for its own.
    Inner(Share<Self>),
}

impl Client {
    /// Its address as a number; 0 where there is no client.
    pub(crate) fn number(&self) -> u128 {
        match self {
            Self::Udp { peer, .. } => client_number(peer.ip()),
            Self::Stream(stream) => client_number(stream.peer.ip()),
            Self::Nobody => 0,
            Self::Inner(share) => share.number(),
        }
    }

    /// How the query came.
    pub(crate) fn proto(&self) -> Proto {
        match self {
            Self::Stream(_) => Proto::Tcp,
            Self::Udp { .. } | Self::Nobody => Proto::Udp,
            Self::Inner(share) => share.proto(),
        }
    }
}

// The memory of a miss in flight, and of a query that joins one, as docs/limits.md states them.
const _: () = assert!(forwarder::slot_octets::<Waiter>() <= 512);
const _: () = assert!(forwarder::waiter_octets::<Waiter>() <= 170);
