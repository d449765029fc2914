//! Serves one message of a client's connection: answers it at once, posts it to a worker, or begins
//! a transfer.

use std::time::Instant;

use super::super::query_source::Handled;
use super::super::stream_reply::StreamReply;
use super::super::waiter::Client;
use super::Connection;
use super::transfer::Transfer;
use plugin::failure::Failure;

impl Connection {
    /// Serves one message, or the start of one that is too long: writes the reply, if it is ready,
    /// to `out`. Returns false if the connection must be closed.
    pub(super) fn query(
        &self,
        message: &[u8],
        whole: bool,
        now: Instant,
        out: &mut Vec<u8>,
        transfer: &mut Option<Box<Transfer>>,
    ) -> bool {
        let source = &self.source;
        let client = || {
            let connections = &source.running.connections;
            Client::Stream(StreamReply::new(connections, &self.shared, source.peer, source.local))
        };
        let handled = source.serve(message, whole, now, out, client, |streaming| {
            match source.running.connections.transfers.enter(source.peer.ip(), now) {
                Some(slot) => {
                    *transfer = Some(Transfer::new(*streaming, slot, now));
                    Ok(())
                }
                None => Err((streaming, Failure::Transfers)),
            }
        });
        !matches!(handled, Handled::NoQuery | Handled::Gone)
    }
}
