//! A listen socket of one worker, with the replies that wait to leave by it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use sockets::{BATCH, ListenSocket, Outgoing};

use super::taken::Takes;
use crate::running::Running;

/// One listen socket with the replies that wait to leave by it.
pub(super) struct OpenSocket {
    /// As the configuration has it: without the interface that a link-local address was found on.
    pub(super) address: SocketAddr,
    /// Its number among all workers' sockets of the address.
    pub(super) nth: usize,
    pub(super) socket: ListenSocket,
    pub(super) replies: Outgoing,
    /// Counts the batches taken off it.
    pub(super) taken: Arc<Takes>,
    kernel_drops: u32,
    new_drops: u64,
}

impl OpenSocket {
    pub(super) fn new(address: SocketAddr, nth: usize, socket: ListenSocket, taken: Arc<Takes>) -> Self {
        let replies = Outgoing::new(BATCH, REPLY_BYTES);
        Self { address, nth, socket, replies, taken, kernel_drops: 0, new_drops: 0 }
    }

    /// Notes the kernel's counter of datagrams that found no room.
    pub(super) fn note_kernel_drops(&mut self, counter: Option<u32>) {
        if let Some(counter) = counter {
            self.new_drops += u64::from(counter.wrapping_sub(self.kernel_drops));
            self.kernel_drops = counter;
        }
    }

    /// Sends the batch; what the kernel does not take is dropped and counted, as the client will ask again.
    pub(super) fn send(&mut self, running: &Running, now: Instant) {
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

/// Bytes that a reply slot has from the start; a larger reply makes it grow, once.
const REPLY_BYTES: usize = 1500;
