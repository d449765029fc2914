//! Tasks of other threads for a worker.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use client_quota::{ClientId, ClientQuota};
use forwarder::{ExchangeError, ExchangeId};
use sockets::{ListenSocket, Waker};
use tokio::sync::mpsc;

use super::waiter::Miss;
use super::wake_queue::WakeQueue;
use configuration::Configuration;

/// How queries in flight are treated when a server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFlight {
    /// All are answered, as if the server did not stop.
    Answered,
    /// They are answered for a short time, as the next process waits for the sockets. Clients of
    /// slower upstreams retry, and the next process answers them.
    Hurried,
}

/// A task for a worker.
#[allow(
    clippy::large_enum_variant,
    reason = "queries are nearly all of them; a box would cost an allocation each"
)]
pub(crate) enum Task {
    /// A miss, of a TCP client or of another worker that found it in flight here.
    Ask {
        /// The query and its client.
        miss: Miss,
        /// The flight's key in [`super::FlightRegistry`].
        key: u64,
        /// The query's unit of the client's quota in this inbox.
        permit: AskPermit,
    },
    /// The result of an exchange over TCP or TLS.
    Exchanged {
        /// The exchange.
        id: ExchangeId,
        /// The reply, without its length prefix.
        result: Result<Vec<u8>, ExchangeError>,
        /// The reply's bytes, counted until the worker has handled it.
        held: Option<ResultOctets>,
    },
    /// A new socket: the nth of its address.
    Open(SocketAddr, usize, ListenSocket),
    /// Spread an address's datagrams over this many of its sockets, the first ones; a task for the
    /// worker of the first socket, on which the option is set.
    Spread(SocketAddr, usize),
    /// Close a surplus socket, the nth of its address.
    CloseOne {
        /// The address.
        address: SocketAddr,
        /// The socket's index.
        nth: usize,
        /// How many sockets receive datagrams.
        keep: usize,
    },
    /// Close an address; the configuration serves the datagrams that wait there.
    Close(SocketAddr, Arc<Configuration>),
    /// A barrier: the sender is dropped once every task before this one is done, and the sockets
    /// that these tasks close are closed.
    Barrier(mpsc::Sender<()>),
    /// Stop reading the listen sockets, for another process, or read them again. They stay open for
    /// sending.
    Park(bool),
    /// Stop.
    Stop(InFlight),
}

/// A worker's inbox. Tasks that clients cause are bounded: queries by number, results of exchanges
/// by bytes.
pub(crate) struct Inbox {
    tasks: WakeQueue<Task>,
    asks: Arc<ClientQuota>,
    results: Arc<AtomicUsize>,
}

impl Inbox {
    /// Creates an empty inbox.
    ///
    /// # Errors
    /// If the kernel refuses another file descriptor.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { tasks: WakeQueue::new()?, asks: Arc::new(ClientQuota::new(ASKS)), results: Arc::default() })
    }

    /// Posts a task of the server itself, which is never refused.
    pub(crate) fn post(&self, task: Task) {
        self.tasks.post(task);
    }

    /// Posts a miss, or returns it if the client's quota is exhausted.
    pub(crate) fn ask(&self, miss: Miss, key: u64) -> Option<Miss> {
        let client = ClientId::of(miss.waiter.client.number());
        if !self.asks.acquire(client) {
            return Some(miss);
        }
        let permit = AskPermit { of: self.asks.clone(), client };
        self.tasks.post(Task::Ask { miss, key, permit });
        None
    }

    /// Posts the result of an exchange over TCP or TLS. A reply beyond the byte limit is dropped,
    /// and [`ExchangeError::NoRoom`] posted instead.
    pub(crate) fn exchanged(&self, id: ExchangeId, mut result: Result<Vec<u8>, ExchangeError>) {
        let octets = result.as_ref().map_or(0, Vec::len);
        let held = ResultOctets::take(&self.results, octets);
        if held.is_none() {
            result = Err(ExchangeError::NoRoom);
        }
        self.tasks.post(Task::Exchanged { id, result, held });
    }

    /// Moves up to `most` tasks to the end of `into`; the reader is woken again if tasks are left.
    pub(crate) fn take(&self, into: &mut VecDeque<Task>, most: usize) {
        self.tasks.take(into, most);
    }

    /// Returns the number of queries that wait.
    #[cfg(test)]
    pub(crate) fn asks(&self) -> u32 {
        self.asks.in_use()
    }

    /// The waker, for the reader's epoll.
    pub(crate) fn waker(&self) -> &Waker {
        self.tasks.waker()
    }
}

/// A unit of a client's quota of queries that wait for a worker, released on drop.
pub(crate) struct AskPermit {
    of: Arc<ClientQuota>,
    client: ClientId,
}

impl Drop for AskPermit {
    fn drop(&mut self) {
        self.of.release(self.client);
    }
}

/// Bytes of a reply that waits for a worker, released on drop.
pub(crate) struct ResultOctets(Arc<AtomicUsize>, usize);

impl ResultOctets {
    /// Counts the bytes; `None` if all together would exceed the limit.
    fn take(of_all: &Arc<AtomicUsize>, octets: usize) -> Option<Self> {
        let held = Self(of_all.clone(), octets);
        (of_all.fetch_add(octets, Relaxed) + octets <= RESULT_OCTETS).then_some(held)
    }
}

impl Drop for ResultOctets {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Relaxed);
    }
}

/// Queries of one client that may wait in a worker's inbox, some 500 bytes each; all clients
/// together may have a quarter more. A worker handles as many in some milliseconds.
pub(crate) const ASKS: u32 = 4_096;
/// Bytes of replies over TCP and TLS that may wait in a worker's inbox.
const RESULT_OCTETS: usize = 2 << 20;
/// Tasks that a worker handles in one turn: its own clients must not wait for more.
pub(crate) const A_TURN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> ExchangeId {
        ExchangeId::from_bits(n)
    }

    /// Queued replies are bounded in bytes; for each dropped one an error is queued in its place.
    #[test]
    fn queued_replies_are_bounded() {
        let inbox = Inbox::new().unwrap();
        let (mut tasks, fits) = (VecDeque::new(), RESULT_OCTETS / 60_000);
        for _ in 0..2 {
            (0..100).for_each(|n| inbox.exchanged(id(n), Ok(vec![0; 60_000])));
            inbox
                .exchanged(id(100), Err(ExchangeError::Overloaded { upstream: ([192, 0, 2, 1], 53).into() }));
            inbox.take(&mut tasks, 200);
            assert!(inbox.results.load(Relaxed) <= RESULT_OCTETS);
            for n in 0..=100 {
                let Some(Task::Exchanged { id: which, result, .. }) = tasks.pop_front() else {
                    panic!("a result for each")
                };
                assert_eq!(which, id(n));
                match result {
                    Ok(reply) => assert!(reply.len() == 60_000 && n < fits as u64, "{n}"),
                    Err(ExchangeError::NoRoom) => assert!((fits as u64..100).contains(&n), "{n}"),
                    Err(error) => assert!(n == 100, "{n}: {error}"),
                }
            }
            assert_eq!(inbox.results.load(Relaxed), 0, "what was seen to makes room");
        }
    }
}
