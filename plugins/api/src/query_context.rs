//! The context of a query, and the result of a source.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sockets::{Local, Peer};
use wire::{Proto, Query};

use crate::failure::Failure;
use crate::hooks::ReplySize;

/// Client, transport and time of a query.
#[derive(Debug, Clone, Copy)]
pub struct QueryContext<'b> {
    /// When the batch of the query was received.
    pub now: Instant,
    /// The client's transport.
    pub proto: Proto,
    /// The thread that counts the query.
    pub writer: usize,
    client: &'b Peer,
    /// The address of the listener, and the one that the client used if the listener has a wildcard.
    listener: SocketAddr,
    local: Option<Local>,
}

impl<'b> QueryContext<'b> {
    /// The context of a query from `client` to the address `server`.
    pub fn new(now: Instant, client: &'b Peer, server: SocketAddr, proto: Proto, writer: usize) -> Self {
        Self { now, proto, writer, client, listener: server, local: None }
    }

    /// The same for another query of the batch.
    #[inline]
    pub fn take_up(&mut self, client: &'b Peer, local: Option<Local>) {
        (self.client, self.local) = (client, local);
    }

    /// Largest reply to `query` in bytes that any block sends, regardless of the size that the
    /// client advertises.
    pub fn room(&self, query: &Query<'_>) -> usize {
        ReplySize::at_most(wire::MAX_UDP_SIZE).limit(query, self.proto)
    }

    /// The client.
    pub fn client(&self) -> SocketAddr {
        self.client.address()
    }

    /// The server address that the client used.
    pub fn server(&self) -> SocketAddr {
        self.local.map_or(self.listener, |local| (local.address, self.listener.port()).into())
    }
}

/// The result of a lookup that does not wait: of one plugin, and of all plugins of a block.
#[derive(Debug)]
pub enum Lookup {
    /// The reply is written.
    Answer,
    /// The reply is written, and CNAMEs in its answer section must be followed.
    Follow,
    /// As `Follow`, but the query fails if the target of one has no answer.
    FollowOrFail,
    /// The reply is written, and an upstream must be queried to refresh the cache.
    Refresh,
    /// The next plugin gets the query; the reply is unchanged.
    Pass,
    /// An upstream must be queried; after this time the client gets a stale answer.
    Ask(Option<Duration>),
    /// The query fails.
    Fail(Failure),
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
