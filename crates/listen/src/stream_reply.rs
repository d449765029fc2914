//! Sends a reply to a TCP client.

use std::net::SocketAddr;
use std::sync::Arc;

use super::connection_state::ConnectionState;
use super::connections::Connections;

/// A handle to reply to a TCP client; counts as one query in flight of the connection until it is
/// dropped.
pub(crate) struct StreamReply {
    connections: Arc<Connections>,
    /// The connection.
    shared: Arc<ConnectionState>,
    /// The client.
    pub peer: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
}

impl StreamReply {
    /// Creates a handle, which counts as one more query in flight.
    pub(crate) fn new(
        connections: &Arc<Connections>,
        shared: &Arc<ConnectionState>,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> Self {
        shared.send_query();
        Self { connections: connections.clone(), shared: shared.clone(), peer, local }
    }

    /// Sends a reply with its length prefix. If the connection is closed the reply is dropped; if
    /// the byte budget is exhausted, the connection that is evicted may be this one.
    pub(crate) fn send(&self, reply: &[u8]) {
        if let Ok(length) = u16::try_from(reply.len()) {
            self.connections.find_room(&self.shared, |limit| self.shared.push(reply, length, limit));
        }
    }
}

impl Drop for StreamReply {
    fn drop(&mut self) {
        self.shared.end_query();
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection_state::BUDGET_BYTES;
    use super::*;
    use plugin::endpoint::Endpoint;

    fn enter(connections: &Connections, last: u8) -> Arc<ConnectionState> {
        let at = ([127, 0, 0, 1], 53).into();
        connections.enter(Endpoint::dns(at), usize::MAX, ([127, 0, 0, last], 9).into(), 1).unwrap()
    }

    fn reply(connections: &Arc<Connections>, shared: &Arc<ConnectionState>) -> StreamReply {
        let anybody = SocketAddr::from(([127, 0, 0, 1], 1));
        StreamReply::new(connections, shared, anybody, anybody)
    }

    /// Replies are counted until they are taken; the last query reports that none are left.
    #[test]
    fn replies_count_until_taken() {
        let connections = Arc::<Connections>::default();
        let shared = enter(&connections, 1);
        let (first, second) = (reply(&connections, &shared), reply(&connections, &shared));
        first.send(&[1; 100]);
        drop(first);
        second.send(&[2; 100]);
        assert!(!shared.is_owed_nothing());
        drop(second);
        assert_eq!((shared.in_flight(), shared.is_owed_nothing()), (0, false));
        assert!(connections.octets() >= 204);
        let mut octets = Vec::new();
        shared.take(&mut octets);
        assert_eq!((octets.len(), connections.octets(), shared.is_owed_nothing()), (204, 0, true));
        assert_eq!((&octets[..3], &octets[102..105]), (&[0, 100, 1][..], &[0, 100, 2][..]));
    }

    #[test]
    fn a_reply_finds_room_at_the_cost_of_the_address_that_holds_most() {
        let connections = Arc::<Connections>::default();
        // Eight clients that do not read, with deferred replies, and one that reads in time.
        let slow: Vec<_> = (0..8).map(|_| enter(&connections, 1)).collect();
        let honest = enter(&connections, 2);
        for _ in 0..64 {
            for shared in &slow {
                reply(&connections, shared).send(&[0; 63_000]);
            }
            reply(&connections, &honest).send(&[0; 63_000]);
            let mut read = Vec::new();
            honest.take(&mut read);
            assert_eq!(read.len(), 63_002);
            assert!(connections.octets() <= BUDGET_BYTES);
        }
        assert!(!honest.is_cut());
        let cut = slow.iter().filter(|shared| shared.is_cut()).count() as u64;
        assert!(cut > 0);
        assert_eq!(connections.evicted().map(|(_, count)| count).sum::<u64>(), cut);
    }

    #[test]
    fn a_reply_without_room_ends_the_connection_that_holds_everything_and_gives_all_back() {
        let connections = Arc::<Connections>::default();
        let (other, mine) = (enter(&connections, 1), enter(&connections, 2));
        assert!(other.hold(BUDGET_BYTES - 1_000, BUDGET_BYTES));
        assert!(other.is_short() && !other.hold(BUDGET_BYTES + 1, BUDGET_BYTES));
        assert!(mine.hold(300, BUDGET_BYTES));
        let way = reply(&connections, &mine);
        way.send(&[0; 500]);
        assert!(!other.is_cut());
        way.send(&[0; 500]);
        assert!(other.is_cut() && !mine.is_cut(), "what leaves is no reason to turn others away");
        mine.cut();
        assert_eq!((mine.held(), connections.octets()), (300, BUDGET_BYTES - 700));
        // A reply after the cut changes nothing.
        way.send(&[0; 5]);
        assert!(!mine.hold(0, BUDGET_BYTES));
        for shared in [mine, other] {
            shared.close();
            assert_eq!(shared.held(), 0);
        }
        assert_eq!(connections.octets(), 0);
    }
}
