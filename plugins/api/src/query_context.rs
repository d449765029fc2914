//! The context of a query, and the result of a source.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sockets::{Local, Peer};
use wire::{Proto, Query};

use crate::failure::Failure;
use crate::reply_size::ReplySize;

/// Client, transport and time of a query.
#[derive(Debug, Clone, Copy)]
pub struct QueryContext<'b> {
    /// When the batch of the query was received.
    pub now: Instant,
    /// The transport of the query.
    pub proto: Proto,
    /// The index of the thread, which selects the thread's counters.
    pub writer: usize,
    client: &'b Peer,
    /// The address of the listener; if that is a wildcard, `local` is the address that the client
    /// used.
    listener: SocketAddr,
    local: Option<Local>,
}

impl<'b> QueryContext<'b> {
    /// Creates the context of a query from `client` to the listener at `server`.
    pub fn new(now: Instant, client: &'b Peer, server: SocketAddr, proto: Proto, writer: usize) -> Self {
        Self { now, proto, writer, client, listener: server, local: None }
    }

    /// Reuses the context for another query of the batch.
    #[inline]
    pub fn take_up(&mut self, client: &'b Peer, local: Option<Local>) {
        (self.client, self.local) = (client, local);
    }

    /// Returns the maximum size in bytes of a reply to `query` in any block, regardless of the
    /// block's own limit.
    pub fn room(&self, query: &Query<'_>) -> usize {
        ReplySize::at_most(wire::MAX_UDP_SIZE).limit(query, self.proto)
    }

    /// Returns the client's address.
    pub fn client(&self) -> SocketAddr {
        self.client.address()
    }

    /// Returns the server address that the client used.
    pub fn server(&self) -> SocketAddr {
        self.local.map_or(self.listener, |local| (local.address, self.listener.port()).into())
    }
}

/// The result of a lookup that does not wait, for one plugin or for all plugins of a block.
#[derive(Debug)]
pub enum Lookup {
    /// The reply is written.
    Answer,
    /// The reply is written, and CNAMEs in its answer section must be followed.
    Follow,
    /// As `Follow`, but the query fails if the target of a CNAME has no answer.
    FollowOrFail,
    /// The reply is written, and the last CNAME of its answer section must be followed; the rcode of
    /// its target becomes that of the reply (RFC 6604, section 3).
    FollowLast,
    /// The reply is written, and an upstream must be queried to refresh the cache.
    Refresh,
    /// The next plugin gets the query; the reply is unchanged.
    Pass,
    /// An upstream must be queried; after this duration the client gets a stale answer.
    Ask(Option<Duration>),
    /// The query fails. With [`Failure::Dropped`] it has no reply.
    Fail(Failure),
    /// The reply is written, and leaves after a delay.
    Delay(Box<Delay>),
}

/// The delay of a reply.
#[derive(Debug)]
pub struct Delay {
    /// How long the reply waits.
    pub duration: Duration,
    /// The failure that replaces the written reply.
    pub failure: Option<Failure>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Verdict, accept};

    #[test]
    fn room_is_capped_at_largest_datagram() {
        let client = Peer::from(SocketAddr::from(([127, 0, 0, 1], 4321)));
        let server = SocketAddr::from(([127, 0, 0, 1], 53));
        for (size, proto, expected) in [
            (512_u16, Proto::Udp, 512),
            (1232, Proto::Udp, 1232),
            (4096, Proto::Udp, 4096),
            (4097, Proto::Udp, 4096),
            (65535, Proto::Udp, 4096),
            (512, Proto::Tcp, 65535),
        ] {
            let mut packet = b"\0\x07\x01\0\0\x01\0\0\0\0\0\x01\x01a\0\0\x01\0\x01\0\0\x29".to_vec();
            packet.extend_from_slice(&size.to_be_bytes());
            packet.extend_from_slice(&[0; 6]);
            let Verdict::Pass(query) = accept(&packet) else { panic!("{size} is refused") };
            let context = QueryContext::new(clock::now(), &client, server, proto, 0);
            assert_eq!(context.room(&query), expected, "{size} over {proto:?}");
        }
    }
}
