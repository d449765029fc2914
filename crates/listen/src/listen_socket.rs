//! A worker's listen socket, and the replies to send from it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use sockets::{BATCH, ListenSocket, SendBatch};

use super::receive_counts::ReceiveCounter;
use crate::server_state::ServerState;
use configuration::Configuration;

/// A listen socket, and the batch of replies to send from it.
pub(crate) struct OpenSocket {
    /// As configured: without the interface of a link-local address.
    pub(crate) address: SocketAddr,
    /// The socket's index among all sockets of the address.
    pub(crate) nth: usize,
    pub(crate) socket: ListenSocket,
    pub(crate) replies: SendBatch,
    /// Counts the batches received.
    pub(crate) taken: Arc<ReceiveCounter>,
    /// Set while the socket is closing: it is read until it is empty, one batch in each turn.
    pub(crate) last: Option<Last>,
    kernel_drops: u32,
    new_drops: u64,
}

/// The number of batches that may still be read from a closing socket, and the configuration that
/// serves them.
pub(crate) struct Last {
    batches: u32,
    configuration: Arc<Configuration>,
}

impl OpenSocket {
    pub(crate) fn new(
        address: SocketAddr,
        nth: usize,
        socket: ListenSocket,
        taken: Arc<ReceiveCounter>,
    ) -> Self {
        let replies = SendBatch::new(BATCH, REPLY_BYTES, MOST_REPLY_BYTES);
        Self { address, nth, socket, replies, taken, last: None, kernel_drops: 0, new_drops: 0 }
    }

    /// Marks the socket to be closed once it is empty.
    pub(crate) fn end(&mut self, configuration: &Arc<Configuration>) {
        self.last.get_or_insert_with(|| Last { batches: LAST_BATCHES, configuration: configuration.clone() });
    }

    /// Notes the kernel's counter of datagrams dropped on a full receive buffer.
    pub(crate) fn note_kernel_drops(&mut self, counter: Option<u32>) {
        if let Some(counter) = counter {
            self.new_drops += u64::from(counter.wrapping_sub(self.kernel_drops));
            self.kernel_drops = counter;
        }
    }

    /// Sends the batch; replies that the kernel does not accept are dropped and counted, as clients
    /// retry.
    pub(crate) fn send(&mut self, running: &ServerState, now: Instant) {
        if self.new_drops > 0 {
            running.kernel_drops.add_shared(std::mem::take(&mut self.new_drops));
        }
        if self.replies.is_empty() {
            return;
        }
        let sent = self.socket.send(&mut self.replies);
        if let Some(error) = sent.error {
            running.send_drops.add_shared((sent.dropped + sent.refused) as u64);
            running.io_error("send", self.address, &error, now);
        }
    }
}

impl Last {
    /// Takes one of the remaining batches, and returns the configuration that serves it. `None`
    /// after the last, so that a flood cannot keep the socket open.
    pub(crate) fn configuration(&mut self) -> Option<Arc<Configuration>> {
        self.batches = self.batches.checked_sub(1)?;
        Some(self.configuration.clone())
    }
}

/// Batches read from a socket before it is closed: more than its buffer of 4 MiB holds.
const LAST_BATCHES: u32 = 1024;
/// Initial bytes of a reply slot; a larger reply makes it grow, once.
const REPLY_BYTES: usize = 1500;
/// The longest reply over UDP. The memory that a cached answer of 64 KiB needed before it was
/// truncated is freed.
const MOST_REPLY_BYTES: usize = 4096;
