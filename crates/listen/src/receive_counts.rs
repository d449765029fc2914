//! Counts receives on each listen socket. For the watchdog a rising count proves that the socket is
//! read, even while its probes are dropped because the socket is full.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::counters::Counter;
use plugin::endpoint::Endpoint;

/// The number of receives, by endpoint and reader: a worker on its UDP socket, and, as one more
/// reader, the TCP side on clients' connections. The count of a closed socket stays.
#[derive(Debug, Default)]
pub struct ReceiveCounts {
    sockets: Mutex<HashMap<(Endpoint, usize), Arc<ReceiveCounter>>>,
}

/// Batches received from one socket, or messages from connections. On a cache line of its own, as a
/// socket's writer must not contend with others.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct ReceiveCounter(Counter);

impl ReceiveCounter {
    /// Adds one; for a single writer.
    #[inline]
    pub fn note(&self) {
        self.0.add(1);
    }

    /// Adds one; for several writers.
    pub fn note_shared(&self) {
        self.0.add_shared(1);
    }
}

impl ReceiveCounts {
    /// Returns the counter of this socket, created on first use.
    pub fn socket(&self, endpoint: Endpoint, taker: usize) -> Arc<ReceiveCounter> {
        self.sockets().entry((endpoint, taker)).or_default().clone()
    }

    /// Returns the number of receives on this socket.
    pub fn count(&self, endpoint: Endpoint, taker: usize) -> u64 {
        self.sockets().get(&(endpoint, taker)).map_or(0, |takes| takes.0.get())
    }

    fn sockets(&self) -> MutexGuard<'_, HashMap<(Endpoint, usize), Arc<ReceiveCounter>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
