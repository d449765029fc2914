//! What was taken off each listen socket: proof that somebody reads it, where our own probes find no room in it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use observe::counters::Counter;
use plugin::endpoint::Endpoint;

/// How often something was taken, by endpoint and whoever takes it: a worker from its UDP socket, and, as if it
/// were one worker more, the TCP side from connections of clients. One that is closed keeps its count.
#[derive(Debug, Default)]
pub struct Taken {
    sockets: Mutex<HashMap<(Endpoint, usize), Arc<Takes>>>,
}

/// Batches taken off one socket, or messages off connections. On a cache line of its own, for the one writer of a socket is in
/// a hurry.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Takes(Counter);

impl Takes {
    /// One more, by the only writer.
    #[inline]
    pub fn note(&self) {
        self.0.add(1);
    }

    /// One more, by one of several writers.
    pub fn note_shared(&self) {
        self.0.add_shared(1);
    }
}

impl Taken {
    /// The counter of this socket, made on first use.
    pub fn socket(&self, endpoint: Endpoint, taker: usize) -> Arc<Takes> {
        self.sockets().entry((endpoint, taker)).or_default().clone()
    }

    /// How often this socket was taken from.
    pub fn count(&self, endpoint: Endpoint, taker: usize) -> u64 {
        self.sockets().get(&(endpoint, taker)).map_or(0, |takes| takes.0.get())
    }

    fn sockets(&self) -> MutexGuard<'_, HashMap<(Endpoint, usize), Arc<Takes>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
