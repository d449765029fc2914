//! Clients behind a proxy that names them only in the first datagram of a session.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The clients by the proxy's address and port; the one not used for the longest time is replaced.
#[derive(Debug)]
pub(super) struct Sessions {
    lifetime: Duration,
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The client of each session, when it was used last, and its number in `order`.
    clients: HashMap<SocketAddr, (SocketAddr, Instant, u64)>,
    /// Sessions in the order of their last use.
    order: BTreeMap<u64, SocketAddr>,
    next: u64,
}

impl Sessions {
    /// Creates the table; `most` is above 0.
    pub(super) fn new(lifetime: Duration, most: usize) -> Self {
        Self { lifetime, most, state: Mutex::default() }
    }

    /// Stores the client of a session.
    pub(super) fn store(&self, proxy: SocketAddr, client: SocketAddr, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.remove(proxy);
        if state.clients.len() >= self.most
            && let Some((_, oldest)) = state.order.first_key_value()
        {
            let oldest = *oldest;
            state.remove(oldest);
        }
        state.insert(proxy, client, now);
    }

    /// Returns the client of a session, whose lifetime begins anew; `None` once it is over.
    pub(super) fn client(&self, proxy: SocketAddr, now: Instant) -> Option<SocketAddr> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (client, used) = state.remove(proxy)?;
        if now.saturating_duration_since(used) >= self.lifetime {
            return None;
        }
        state.insert(proxy, client, now);
        Some(client)
    }
}

impl State {
    fn remove(&mut self, proxy: SocketAddr) -> Option<(SocketAddr, Instant)> {
        let (client, used, number) = self.clients.remove(&proxy)?;
        self.order.remove(&number);
        Some((client, used))
    }

    fn insert(&mut self, proxy: SocketAddr, client: SocketAddr, now: Instant) {
        self.next += 1;
        self.order.insert(self.next, proxy);
        self.clients.insert(proxy, (client, now, self.next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_and_are_bounded() {
        let sessions = Sessions::new(Duration::from_secs(10), 2);
        let at = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let begin = clock::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        assert_eq!(sessions.client(at(1), begin), None);
        sessions.store(at(1), at(101), begin);
        sessions.store(at(2), at(102), begin);
        // Each use begins the lifetime anew.
        assert_eq!(sessions.client(at(1), after(9)), Some(at(101)));
        assert_eq!(sessions.client(at(1), after(18)), Some(at(101)));
        assert_eq!(sessions.client(at(2), after(18)), None);
        // The one not used for the longest time goes.
        sessions.store(at(3), at(103), after(19));
        sessions.store(at(4), at(104), after(20));
        assert_eq!(sessions.client(at(1), after(20)), None);
        assert_eq!(sessions.client(at(3), after(20)), Some(at(103)));
        sessions.store(at(3), at(105), after(21));
        assert_eq!(sessions.client(at(3), after(21)), Some(at(105)));
        assert_eq!(sessions.client(at(4), after(21)), Some(at(104)));
    }
}
