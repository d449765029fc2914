//! What a plugin may know of a query besides the query, and what it may say to it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sockets::{Local, Peer};
use wire::{Proto, Query};

use crate::envelope::ReplySize;
use crate::failure::Failure;

/// Who asks, how and when: what a plugin may know besides the query.
#[derive(Debug, Clone, Copy)]
pub struct QueryContext<'b> {
    /// When the batch that the query came in was taken up.
    pub now: Instant,
    /// The client's transport.
    pub proto: Proto,
    /// Which thread counts the query.
    pub writer: usize,
    client: &'b Peer,
    /// Where the listener stands, and what the client asked where that stands for many addresses.
    listener: SocketAddr,
    local: Option<Local>,
}

impl<'b> QueryContext<'b> {
    /// That of a query from `client` to the address `server`.
    pub fn new(now: Instant, client: &'b Peer, server: SocketAddr, proto: Proto, writer: usize) -> Self {
        Self { now, proto, writer, client, listener: server, local: None }
    }

    /// The same for another query of the batch.
    #[inline]
    pub fn take_up(&mut self, client: &'b Peer, local: Option<Local>) {
        (self.client, self.local) = (client, local);
    }

    /// Largest reply to `query` in bytes that any block sends, whatever the client says that it takes.
    pub fn room(&self, query: &Query<'_>) -> usize {
        ReplySize::at_most(wire::MAX_UDP_SIZE).limit(query, self.proto)
    }

    /// The client.
    pub fn client(&self) -> SocketAddr {
        self.client.address()
    }

    /// The address it asked.
    pub fn server(&self) -> SocketAddr {
        self.local.map_or(self.listener, |local| (local.address, self.listener.port()).into())
    }
}

/// What became of a query without waiting: in one plugin, and in all of a block's.
#[derive(Debug)]
pub enum Lookup {
    /// The reply is written.
    Answer,
    /// The reply is written, and CNAMEs in its answer section are to be followed.
    Follow,
    /// As `Follow`, but where the target of one has no answer the query fails.
    FollowOrFail,
    /// The reply is written, and an upstream is to be asked for the next one.
    Refresh,
    /// Not mine: the next plugin is asked; the reply is as it was.
    Pass,
    /// An upstream must be asked; the client waits at most this long, then takes a stale answer.
    Ask(Option<Duration>),
    /// Mine, but there is no answer.
    Fail(Failure),
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Verdict, accept};

    #[test]
    fn no_more_is_composed_for_a_datagram_than_may_be_sent() {
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
