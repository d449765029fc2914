//! The reply to one request of a connection that carries several at a time (DNS over HTTPS), and
//! the bytes that such a connection holds.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use wire::Proto;

use super::connection_state::ConnectionState;
use super::connections::Connections;

/// A handle to reply to a request; without a reply, the request is answered with silence.
pub(crate) struct RequestReply {
    account: Arc<Account>,
    sender: Cell<Option<oneshot::Sender<HeldReply>>>,
    /// The client.
    pub peer: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
    /// The transport, for metrics and limits.
    pub proto: Proto,
}

impl RequestReply {
    /// Creates a handle and the receiver of its reply.
    pub(crate) fn new(
        account: &Arc<Account>,
        peer: SocketAddr,
        local: SocketAddr,
        proto: Proto,
    ) -> (Self, oneshot::Receiver<HeldReply>) {
        let (sender, receiver) = oneshot::channel();
        let sender = Cell::new(Some(sender));
        (Self { account: account.clone(), sender, peer, local, proto }, receiver)
    }

    /// Sends the reply. If the byte budget is exhausted, the connection that is evicted may be this
    /// one.
    pub(crate) fn send(&self, reply: &[u8]) {
        if let Some(sender) = self.sender.take()
            && let Some(reply) = self.account.hold(reply)
        {
            // The request may have ended meanwhile.
            let _ = sender.send(reply);
        }
    }
}

/// The bytes that the replies of one connection hold.
pub(crate) struct Account {
    connections: Arc<Connections>,
    shared: Arc<ConnectionState>,
    held: Mutex<usize>,
}

impl Account {
    pub(crate) fn new(connections: Arc<Connections>, shared: Arc<ConnectionState>) -> Arc<Self> {
        Arc::new(Self { connections, shared, held: Mutex::new(0) })
    }

    /// Copies a reply, and counts its bytes until it is dropped. `None` if the budget of all
    /// connections has no room; then this connection is evicted.
    pub(crate) fn hold(self: &Arc<Self>, reply: &[u8]) -> Option<HeldReply> {
        let mut held = self.held();
        let more = *held + reply.len();
        if !self.connections.find_room(&self.shared, |limit| self.shared.hold(more, limit)) {
            return None;
        }
        *held = more;
        drop(held);
        if self.shared.is_short() {
            self.connections.relieve();
        }
        Some(HeldReply { octets: reply.into(), account: self.clone() })
    }

    fn held(&self) -> MutexGuard<'_, usize> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reply whose bytes count as held by its connection.
pub(crate) struct HeldReply {
    octets: Box<[u8]>,
    account: Arc<Account>,
}

impl AsRef<[u8]> for HeldReply {
    fn as_ref(&self) -> &[u8] {
        &self.octets
    }
}

impl Drop for HeldReply {
    fn drop(&mut self) {
        let mut held = self.account.held();
        *held -= self.octets.len();
        // Fewer bytes always fit; a closed connection has released all of its bytes.
        self.account.shared.hold(*held, usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plugin::endpoint::Endpoint;

    /// Bytes count until the reply is dropped, and a handle without a reply ends the wait.
    #[test]
    fn replies_count_until_dropped() {
        let connections = Arc::<Connections>::default();
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        let shared = connections.enter(Endpoint::dns(peer), 9, peer, 1).unwrap();
        let account = Account::new(connections.clone(), shared.clone());
        let (first, mut replied) = RequestReply::new(&account, peer, peer, Proto::Tcp);
        first.send(&[1; 100]);
        first.send(&[2; 100]);
        let second = account.hold(&[3; 50]).unwrap();
        let reply = replied.try_recv().unwrap();
        assert_eq!((reply.as_ref(), connections.octets()), (&[1; 100][..], 150));
        drop(reply);
        assert_eq!(connections.octets(), 50);
        drop(second);
        assert_eq!(connections.octets(), 0);
        let (silent, mut replied) = RequestReply::new(&account, peer, peer, Proto::Tcp);
        drop(silent);
        assert!(matches!(replied.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        let kept = account.hold(&[4; 70]);
        shared.close();
        assert_eq!(connections.octets(), 0);
        drop(kept);
        assert!(connections.octets() == 0 && account.hold(&[5; 9]).is_none());
    }
}
