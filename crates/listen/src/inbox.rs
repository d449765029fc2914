//! What other threads have for a worker.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forwarder::{ExchangeError, ExchangeId, Fair, Who};
use sockets::{ListenSocket, Waker};
use tokio::sync::mpsc;

use super::mailbox::Mailbox;
use super::waiter::Miss;
use configuration::Configuration;

/// What becomes of queries in flight when a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFlight {
    /// All are answered, as if the server did not stop.
    Answered,
    /// They are answered for a short time, for the next process waits for the sockets. Clients of upstreams that are slower
    /// ask again, and the next process answers them.
    Hurried,
}

/// Something for a worker to do.
#[allow(
    clippy::large_enum_variant,
    reason = "queries are nearly all of them; a box would cost an allocation each"
)]
pub(crate) enum Task {
    /// A query that an upstream must answer, from a TCP client or from a worker that found it in flight here.
    Ask {
        /// What is asked, and who waits.
        miss: Miss,
        /// As in [`super::FlightRegistry`].
        key: u64,
        /// Its client's place in this mailbox.
        place: AskPlace,
    },
    /// What became of an exchange over TCP or TLS.
    Exchanged {
        /// Which.
        id: ExchangeId,
        /// The reply, without its length prefix.
        result: Result<Vec<u8>, ExchangeError>,
        /// The reply's octets, as they are counted until the worker has seen to it.
        held: Option<ResultOctets>,
    },
    /// A socket to serve from now on: the nth of its address.
    Open(SocketAddr, usize, ListenSocket),
    /// To how many sockets of an address the kernel gives clients from now on, the first ones; for the worker that has the
    /// very first, whose socket tells the kernel.
    Spread(SocketAddr, usize),
    /// A socket that is too many, the nth of its address.
    CloseOne {
        /// The address.
        address: SocketAddr,
        /// Which.
        nth: usize,
        /// How many clients are given to.
        keep: usize,
    },
    /// An address to serve no more, and the configuration that serves what waits there.
    Close(SocketAddr, Arc<Configuration>),
    /// A barrier: the sender is dropped once every task before this one is done, and what that closes is closed.
    Barrier(mpsc::Sender<()>),
    /// Whether listen sockets are left to another process, unread. They stay open, to send by.
    Park(bool),
    /// The end.
    Stop(InFlight),
}

/// A worker's mailbox. What strangers cause is bounded: queries by number, results of exchanges by octets.
pub(crate) struct Inbox {
    tasks: Mailbox<Task>,
    asks: Arc<Fair>,
    results: Arc<AtomicUsize>,
}

impl Inbox {
    /// Empty.
    ///
    /// # Errors
    /// What the kernel says to one more file descriptor.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { tasks: Mailbox::new()?, asks: Arc::new(Fair::new(ASKS)), results: Arc::default() })
    }

    /// A task of our own, which always fits.
    pub(crate) fn post(&self, task: Task) {
        self.tasks.post(task);
    }

    /// A query that an upstream must answer. Gives back what finds no room, since so many of this client wait already.
    pub(crate) fn ask(&self, miss: Miss, key: u64) -> Option<Miss> {
        let who = Who::of(miss.waiter.client.number());
        if !self.asks.take(who) {
            return Some(miss);
        }
        let place = AskPlace { of: self.asks.clone(), who };
        self.tasks.post(Task::Ask { miss, key, place });
        None
    }

    /// What became of an exchange over TCP or TLS. A reply beyond the octets that may wait is lost, and that is told.
    pub(crate) fn exchanged(&self, id: ExchangeId, mut result: Result<Vec<u8>, ExchangeError>) {
        let octets = result.as_ref().map_or(0, Vec::len);
        let held = ResultOctets::take(&self.results, octets);
        if held.is_none() {
            result = Err(ExchangeError::NoRoom);
        }
        self.tasks.post(Task::Exchanged { id, result, held });
    }

    /// Moves up to `most` tasks to the end of `into`, and is read again at once where more wait.
    pub(crate) fn take(&self, into: &mut VecDeque<Task>, most: usize) {
        self.tasks.take(into, most);
    }

    /// How many queries wait.
    #[cfg(test)]
    pub(crate) fn asks(&self) -> u32 {
        self.asks.taken()
    }

    /// What wakes the reader: it belongs into its epoll.
    pub(crate) fn waker(&self) -> &Waker {
        self.tasks.waker()
    }
}

/// A client's place among the queries that wait for a worker, until that has seen to it.
pub(crate) struct AskPlace {
    of: Arc<Fair>,
    who: Who,
}

impl Drop for AskPlace {
    fn drop(&mut self) {
        self.of.give_back(self.who);
    }
}

/// Octets of a reply that waits for a worker, given back when they are dropped.
pub(crate) struct ResultOctets(Arc<AtomicUsize>, usize);

impl ResultOctets {
    /// Takes them; `None` where all together would be too many.
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

/// Queries of one client that may wait in a worker's mailbox, some 500 octets each; all clients together may have a quarter
/// more. A worker works off as many in some milliseconds.
pub(crate) const ASKS: u32 = 4_096;
/// Octets of replies over TCP and TLS that may wait in a worker's mailbox.
const RESULT_OCTETS: usize = 2 << 20;
/// Tasks that a worker reads in one turn: its own clients must not wait for more.
pub(crate) const A_TURN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> ExchangeId {
        ExchangeId::from_bits(n)
    }

    #[test]
    fn replies_that_wait_are_bounded_in_octets_and_what_is_lost_is_told_in_their_order() {
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
