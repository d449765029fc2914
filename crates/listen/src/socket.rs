//! A listen socket of one worker, with the replies that wait to leave by it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use sockets::{BATCH, ListenSocket, SendBatch};

use super::taken::Takes;
use crate::running::Running;
use configuration::Configuration;

/// One listen socket with the replies that wait to leave by it.
pub(crate) struct OpenSocket {
    /// As the configuration has it: without the interface that a link-local address was found on.
    pub(crate) address: SocketAddr,
    /// Its number among all workers' sockets of the address.
    pub(crate) nth: usize,
    pub(crate) socket: ListenSocket,
    pub(crate) replies: SendBatch,
    /// Counts the batches taken off it.
    pub(crate) taken: Arc<Takes>,
    /// It is read to its end, a batch in each turn, and closed.
    pub(crate) last: Option<Last>,
    kernel_drops: u32,
    new_drops: u64,
}

/// What a socket that is to be closed may still bring, and the configuration that serves it.
pub(crate) struct Last {
    batches: u32,
    configuration: Arc<Configuration>,
}

impl OpenSocket {
    pub(crate) fn new(address: SocketAddr, nth: usize, socket: ListenSocket, taken: Arc<Takes>) -> Self {
        let replies = SendBatch::new(BATCH, REPLY_BYTES, MOST_REPLY_BYTES);
        Self { address, nth, socket, replies, taken, last: None, kernel_drops: 0, new_drops: 0 }
    }

    /// Has it closed once it is read to its end.
    pub(crate) fn end(&mut self, configuration: &Arc<Configuration>) {
        self.last.get_or_insert_with(|| Last { batches: LAST_BATCHES, configuration: configuration.clone() });
    }

    /// Notes the kernel's counter of datagrams that found no room.
    pub(crate) fn note_kernel_drops(&mut self, counter: Option<u32>) {
        if let Some(counter) = counter {
            self.new_drops += u64::from(counter.wrapping_sub(self.kernel_drops));
            self.kernel_drops = counter;
        }
    }

    /// Sends the batch; what the kernel does not take is dropped and counted, as the client will ask again.
    pub(crate) fn send(&mut self, running: &Running, now: Instant) {
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
    /// What serves one more batch; `None` where it brought as many as may be: a flood must not keep it open.
    pub(crate) fn configuration(&mut self) -> Option<Arc<Configuration>> {
        self.batches = self.batches.checked_sub(1)?;
        Some(self.configuration.clone())
    }
}

/// Batches that a socket may bring before it is closed: more than its 4 MiB hold.
const LAST_BATCHES: u32 = 1024;
/// Bytes that a reply slot has from the start; a larger reply makes it grow, once.
const REPLY_BYTES: usize = 1500;
/// No reply over UDP is longer. What a cached answer of 64 KiB needed on its way is given back.
const MOST_REPLY_BYTES: usize = 4096;
